"""Functions of libraries that native code calls: LAPACK's, through scipy."""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module

from ...hlo.errors import UserError

_LAPACK = "lapack."


@functools.cache
def address_of(name: str) -> int:
    """The address of a function by its name in a plan, e.g. "lapack.sgesdd".

    UserError where it is not there; what it is remains loaded as long as the process runs.
    """
    if not name.startswith(_LAPACK):
        raise UserError(f"the program calls '{name}', which this version of girih does not know")
    routine = name.removeprefix(_LAPACK)
    try:
        exported = import_module("scipy.linalg.cython_lapack").__pyx_capi__
    except ImportError as error:
        raise UserError(
            f"the program calls LAPACK ({routine}) through scipy, which is not installed: "
            "pip install 'girih[linalg]'"
        ) from error
    capsule = exported.get(routine)
    if capsule is None:
        raise UserError(f"this scipy's LAPACK has no routine {routine}")
    title_of = ctypes.pythonapi.PyCapsule_GetName
    title_of.restype, title_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    signature = title_of(capsule)
    if signature is None or b"int *" not in signature:
        raise UserError(
            "this scipy's LAPACK does not take 32-bit integers; install an ordinary one with: "
            "pip install --force-reinstall scipy"
        )
    return pointer_of(capsule, signature)

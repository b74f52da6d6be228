"""What a caller passes becomes an array that the kernels can read, or an error that names it.

Arrays are taken as they are, without a copy: numpy's, and those of any library that speaks DLPack
(torch, jax, ...). Types are never cast. Python scalars take the declared type if their kind fits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Argument, Result, describe
from ..hlo.types import element_type

Array = np.ndarray[Any, Any]
_PYTHON = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}
_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost (pinned memory)
_DEVICE_NAMES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda-managed", 14: "oneapi"}


class Leaf:
    """What one flat argument or result has to be."""

    __slots__ = ("bytes", "dtype", "kind", "overwritten", "path", "shape")

    def __init__(self, declared: Argument | Result, overwritten: bool = False) -> None:
        """`overwritten`: the plan gives a result in this argument's memory, which is donated."""
        if not all(isinstance(dim, int) for dim in declared.dims):
            raise UserError(
                f"{declared}: this program's sizes are not fixed; compile it for fixed sizes"
            )
        element = element_type(declared.element)
        self.path = declared.path
        self.dtype = element.dtype
        self.kind = element.kind
        self.shape = tuple(int(dim) for dim in declared.dims)
        self.bytes = math.prod(self.shape) * self.dtype.itemsize
        self.overwritten = overwritten

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def accept(self, value: Any, giving: bool = False) -> tuple[Array, bool]:
        """The value as a C-contiguous, aligned array of this type; and whether it is a copy.

        `giving`: it has to be writable if the plan overwrites it.
        """
        array = self._to_array(value)
        if array.dtype != self.dtype or array.shape != self.shape:
            raise self._mismatch(array)
        flags = array.flags
        usable = flags.c_contiguous and flags.aligned
        if usable and (flags.writeable or not (giving and self.overwritten)):
            return array, False
        return np.array(array, order="C", copy=True), True

    def _to_array(self, value: Any) -> Array:
        if isinstance(value, np.ma.MaskedArray):
            raise self.refuse("got a masked array, whose mask would be lost", "pass x.filled(...)")
        if isinstance(value, np.ndarray):
            return np.asarray(value)
        if isinstance(value, np.generic):  # before float, of which numpy.float64 is a subclass
            return np.asarray(value)
        if isinstance(value, (bool, int, float, complex)):
            return self._from_scalar(value)
        if hasattr(value, "__dlpack__"):
            return self._from_dlpack(value)
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            try:
                return np.asarray(value)
            except Exception as error:  # whatever the foreign object raises
                raise self.refuse(f"its {type(value).__name__} cannot be read: {error}") from error
        raise self.refuse(
            f"got {describe(value)}", "pass an array, such as numpy.asarray(x, dtype)"
        )

    def _from_scalar(self, value: bool | int | float | complex) -> Array:
        """A scalar of the declared type, if its kind holds the value."""
        kinds = {
            bool: ("bool",),
            int: ("int", "uint", "float", "complex"),
            float: ("float", "complex"),
            complex: ("complex",),
        }
        if self.shape != ():
            raise self.refuse(f"got the scalar {value!r}", "pass an array of that shape")
        if self.kind not in kinds[type(value)]:
            raise self.refuse(f"got the {type(value).__name__} {value!r}")
        try:
            with np.errstate(over="ignore"):
                array = np.array(value, self.dtype)
        except (OverflowError, ValueError, TypeError) as error:
            raise self.refuse(f"got {value!r}, which does not fit") from error
        stored = _PYTHON[self.kind](array[()])
        exact = stored == value if isinstance(value, int) else True
        if not exact or (math.isfinite(abs(value)) and not math.isfinite(abs(stored))):
            raise self.refuse(f"got {value!r}, which it cannot hold")
        return array

    def _from_dlpack(self, value: Any) -> Array:
        try:
            device, number = value.__dlpack_device__()
            if int(device) not in _CPU_DEVICES:
                name = _DEVICE_NAMES.get(int(device), f"device type {int(device)}")
                raise self.refuse(
                    f"the array is on {name}:{number}, the program runs on the CPU",
                    "move it there first",
                )
            # torch keeps some negations as a flag, which its capsules leave out without a word.
            if getattr(value, "is_neg", bool)() is True:
                value = value.resolve_neg()
            return _read_capsule(value.__dlpack__())
        except UserError:
            raise
        except Exception as error:  # whatever the foreign object raises
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise self.refuse(f"its {type(value).__name__} cannot be read: {reason}") from error

    def _mismatch(self, array: Array) -> UserError:
        got = f"got {describe(array)}"
        if array.shape != self.shape:
            return self.refuse(got)
        if array.dtype.newbyteorder() == self.dtype:
            return self.refuse(f"{got} in foreign byte order")
        return self.refuse(
            got, f"types are never cast silently, pass x.astype({self.dtype.name!r})"
        )

    def refuse(self, reason: str, remedy: str = "") -> UserError:
        """The error for a value that is not what this leaf has to be."""
        return UserError(f"{self.path}: expected {self}, {reason}{'; ' if remedy else ''}{remedy}")


def check_donations(leaves: Sequence[Leaf], arrays: Sequence[Array]) -> None:
    """UserError if memory that may be overwritten is passed a second time."""
    for index, leaf in enumerate(leaves):
        if not leaf.overwritten or not arrays[index].nbytes:
            continue
        for other, array in enumerate(arrays):
            if other != index and np.may_share_memory(arrays[index], array):
                raise UserError(
                    f"{leaf.path} is donated and its memory is overwritten, but "
                    f"{leaves[other].path} lies in the same memory; pass a copy of one of them"
                )


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("rank", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# DLPack's (code, bits) -> name in numpy or ml_dtypes.
_DLPACK_TYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16", (5, 64): "complex64", (5, 128): "complex128", (6, 8): "bool",
    (7, 8): "float8_e3m4", (8, 8): "float8_e4m3", (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}  # fmt: skip


class _Borrowed:
    """Foreign memory for numpy's array interface; keeps its owner, a DLPack capsule, alive."""

    def __init__(self, capsule: Any, address: int, shape: Any, strides: Any, size: int) -> None:
        self.capsule = capsule
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),  # read-only: its library may share the memory
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
        }


def _read_capsule(capsule: Any) -> Array:
    """The array of a DLPack capsule, without a copy, of numpy's or ml_dtypes' type.

    numpy.from_dlpack refuses bfloat16 and the 8-bit floats, hence our own reader. The capsule is
    not consumed: its destructor frees the memory once the array, which holds it, is gone.
    """
    from .tensors import numpy_type

    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    kind = tensor.dtype
    name = _DLPACK_TYPES.get((kind.code, kind.bits))
    if name is None or kind.lanes != 1:
        raise TypeError(f"DLPack type code {kind.code} of {kind.bits} bits is not known")
    dtype = numpy_type(name)
    shape = tuple(tensor.shape[: tensor.rank]) if tensor.rank else ()
    strides = None
    if tensor.strides and tensor.rank:
        strides = tuple(dtype.itemsize * step for step in tensor.strides[: tensor.rank])
    if 0 in shape:
        return np.zeros(shape, dtype)
    address = (tensor.data or 0) + tensor.byte_offset
    return np.asarray(_Borrowed(capsule, address, shape, strides, dtype.itemsize)).view(dtype)

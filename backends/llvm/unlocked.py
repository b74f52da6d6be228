"""LLVM's two long calls, without the lock that llvmlite holds during every call.

llvmlite needs its lock because its modules share one context. Here each module has a context of its
own and each thread a target machine of its own; between those LLVM shares nothing, so that several
threads compile at once. `ctypes` gives Python's lock free as well.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.cache
def _function(name: str) -> Any:
    """A function of llvmlite's library with the types that llvmlite declared for it."""
    from llvmlite.binding import ffi

    declared = getattr(ffi.lib, name)
    # A handle of our own on the loaded library: its functions are objects of their own.
    own = getattr(ctypes.CDLL(ffi.lib._name), name)
    own.argtypes, own.restype = declared.argtypes, declared.restype
    return own


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """`passes.run(module, builder)`."""
    _function("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """`machine.emit_object(module)`; RuntimeError if LLVM cannot."""
    return _emit(machine, module, 1)


def emit_assembly(machine: Any, module: Any) -> str:
    """`machine.emit_assembly(module)`; RuntimeError if LLVM cannot."""
    return _emit(machine, module, 0).decode()


def _emit(machine: Any, module: Any, as_object: int) -> bytes:
    from llvmlite.binding import ffi

    with ffi.OutputString() as error:
        buffer = _function("LLVMPY_TargetMachineEmitToMemory")(machine, module, as_object, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)

"""What a caller passes becomes an array that the kernels can read, or an error that names it.

Arrays are taken as they are, without a copy: numpy's, and those of any library that speaks DLPack
(torch, jax, ...). Types are never cast. Python scalars take the declared type if their kind fits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Argument, Result
from ..hlo.trees import describe
from ..hlo.types import element_type
from .devices.arrays import is_on_gpu
from .dlpack import CPU, CUDA_HOST, host_array

Array = np.ndarray[Any, Any]
_PYTHON = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}
_DEVICE_NAMES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda-managed", 14: "oneapi"}


class Leaf:
    """What one flat argument or result has to be."""

    __slots__ = ("bytes", "dtype", "given", "key", "kind", "overwritten", "path", "shape")

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
        given = declared.given if isinstance(declared, Argument) else None
        self.given = None if given is None else element_type(given).dtype
        self.key = declared.key

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def accept(self, value: Any, giving: bool = False) -> tuple[Array, bool]:
        """The value as a C-contiguous, aligned array of this type; and whether it is a copy.

        `giving`: it has to be writable if the plan overwrites it.
        """
        array = self._to_array(value)
        if self.given is not None and array.dtype == self.given and array.shape == self.shape:
            return self._converted(array), True
        if array.dtype != self.dtype or array.shape != self.shape:
            raise self._mismatch(array)
        flags = array.flags
        usable = flags.c_contiguous and flags.aligned
        if usable and (flags.writeable or not (giving and self.overwritten)):
            return array, False
        return np.array(array, order="C", copy=True), True

    def _converted(self, array: Array) -> Array:
        """As the framework converts it on its own; UserError where an integer does not fit."""
        with np.errstate(over="ignore"):
            made = array.astype(self.dtype, order="C")
        if self.kind in ("int", "uint") and (made != array).any():
            raise self.refuse(f"{array.dtype.name} holds a number that does not fit")
        return made

    def accept_view(self, value: Any, borrow: Callable[[Any], Any], giving: bool) -> Any:
        """The value in the memory of the program's device; None where it is the host's.

        `giving`: the plan may overwrite it, if it does so at all.
        """
        if not is_on_gpu(value):
            return None
        try:
            view = borrow(value)
        except (ValueError, TypeError) as error:
            raise self.refuse(str(error)) from error
        if view.dtype != self.dtype or view.shape != self.shape:
            raise self.refuse(f"got {view.dtype.name}[{','.join(map(str, view.shape))}]")
        view.given = giving and self.overwritten
        return view

    def _to_array(self, value: Any) -> Array:
        if self.key is not None and type(value).__name__ == "PRNGKeyArray" and "jax" in sys.modules:
            return np.asarray(sys.modules["jax"].random.key_data(value))
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
            if int(device) not in (CPU, CUDA_HOST):
                name = _DEVICE_NAMES.get(int(device), f"device type {int(device)}")
                raise self.refuse(
                    f"the array is on {name}:{number}, the program runs on the CPU",
                    "move it there first",
                )
            # torch keeps some negations as a flag, which its capsules leave out without a word.
            # Conjugates, and tensors that gradients flow to, it refuses.
            if getattr(value, "is_neg", bool)() is True:
                value = value.resolve_neg()
            if getattr(value, "is_conj", bool)() is True:
                value = value.resolve_conj()
            if getattr(value, "requires_grad", False) is True:
                value = value.detach()
            return host_array(value.__dlpack__())
        except UserError:
            raise
        except Exception as error:  # whatever the foreign object raises
            if type(value).__module__.startswith("jaxlib"):  # types that its capsules lack
                return np.asarray(value)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise self.refuse(f"its {type(value).__name__} cannot be read: {reason}") from error

    def _mismatch(self, array: Array) -> UserError:
        got = f"got {describe(array)}"
        if array.shape != self.shape:
            return self.refuse(got)
        if array.dtype.newbyteorder() == self.dtype:
            return self.refuse(
                f"{got} in foreign byte order", f"pass x.astype({self.dtype.name!r})"
            )
        return self.refuse(
            got, f"types are never cast silently, pass x.astype({self.dtype.name!r})"
        )

    def refuse(self, reason: str, remedy: str = "") -> UserError:
        """The error for a value that is not what this leaf has to be."""
        return UserError(f"{self.path}: expected {self}, {reason}{'; ' if remedy else ''}{remedy}")


def as_keys(kind: str, array: Any) -> Any:
    """Random keys of JAX's of these integers, where JAX is loaded; else the integers."""
    jax = sys.modules.get("jax")
    return array if jax is None else jax.random.wrap_key_data(jax.numpy.asarray(array), impl=kind)


def check_donations(leaves: Sequence[Leaf], arrays: Sequence[Any]) -> None:
    """UserError if memory that may be overwritten is passed a second time. `arrays`: of the host,
    or views of a device's memory."""
    for index, leaf in enumerate(leaves):
        if not leaf.overwritten or not arrays[index].nbytes:
            continue
        for other, array in enumerate(arrays):
            if other != index and _may_share(arrays[index], array):
                raise UserError(
                    f"{leaf.path} is donated and its memory is overwritten, but "
                    f"{leaves[other].path} lies in the same memory; pass a copy of one of them"
                )


def _may_share(one: Any, other: Any) -> bool:
    hosts = isinstance(one, np.ndarray), isinstance(other, np.ndarray)
    if all(hosts):
        return np.may_share_memory(one, other)
    if any(hosts):
        return False
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes

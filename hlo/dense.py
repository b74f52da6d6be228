"""Constant tensors, as attributes of operations hold them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .errors import CompilerBug
from .types import TensorType, tensor_of

Array = np.ndarray[Any, Any]


class Dense:
    """A constant tensor: a type and its numpy array; a splat is a view of one element.

    Equal types and equal bytes make equal constants (NaN payloads and zero signs count).
    """

    __slots__ = ("type", "array", "_digest")

    def __init__(self, type: TensorType, array: Array) -> None:
        if array.shape != type.dims or array.dtype != type.dtype:
            raise CompilerBug(f"constant {array.dtype}{array.shape} does not fit its type {type}")
        self.type, self.array = type, array
        self._digest: bytes | None = None

    @classmethod
    def of(cls, array: Array) -> Dense:
        return cls(tensor_of(array), array)

    @classmethod
    def splat(cls, value: Any, type: TensorType) -> Dense:
        one = np.asarray(value).astype(type.dtype)
        return cls(type, np.broadcast_to(one, type.dims))

    @property
    def is_splat(self) -> bool:
        """Whether it is stored as one element (or has just one)."""
        array = self.array
        return array.size == 1 or (array.size > 0 and not any(array.strides))

    @property
    def splat_value(self) -> Any:
        """The numpy scalar that every element equals; only for splats."""
        return self.array[(0,) * self.array.ndim]

    @property
    def digest(self) -> bytes:
        """Sixteen bytes that name the content."""
        if self._digest is None:
            state = hashlib.blake2b(digest_size=16)
            if self.is_splat:
                state.update(b"splat" + np.asarray(self.splat_value).tobytes())
            else:
                state.update(np.ascontiguousarray(self.array).view(np.uint8).data)
            self._digest = state.digest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dense) and self.type is other.type and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((id(self.type), self.digest))

    def __repr__(self) -> str:
        return f"Dense({self.type}{', splat' if self.is_splat else ''})"

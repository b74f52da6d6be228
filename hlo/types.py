"""Types of values: element types, tensors, tokens and tuples.

Every type is interned: equal types are the same object, so `is` and `==` agree and hashing is
cheap. Layout is no part of a type; a sharding may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import ml_dtypes
import numpy as np

from .symbols import Dim, SymbolicDim

if TYPE_CHECKING:
    from .sharding import Sharding


class ElementType:
    """One element's set of values, spelled as in StableHLO (`f32`, `ui8`, `complex<f64>`).

    `kind` is bool, int, uint, float or complex; `bits` is the width of the value; `dtype` is the
    numpy type that holds it in memory (sub-byte types take one byte per element).
    """

    __slots__ = ("name", "kind", "bits", "dtype")
    table: ClassVar[dict[str, ElementType]] = {}

    name: str
    kind: str
    bits: int
    dtype: np.dtype[Any]

    def __init__(self, name: str, kind: str, bits: int, dtype: Any) -> None:
        self.name, self.kind, self.bits, self.dtype = name, kind, bits, np.dtype(dtype)
        ElementType.table[name] = self

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return element_type, (self.name,)


I1 = ElementType("i1", "bool", 1, np.bool_)
I2 = ElementType("i2", "int", 2, ml_dtypes.int2)
I4 = ElementType("i4", "int", 4, ml_dtypes.int4)
I8 = ElementType("i8", "int", 8, np.int8)
I16 = ElementType("i16", "int", 16, np.int16)
I32 = ElementType("i32", "int", 32, np.int32)
I64 = ElementType("i64", "int", 64, np.int64)
UI2 = ElementType("ui2", "uint", 2, ml_dtypes.uint2)
UI4 = ElementType("ui4", "uint", 4, ml_dtypes.uint4)
UI8 = ElementType("ui8", "uint", 8, np.uint8)
UI16 = ElementType("ui16", "uint", 16, np.uint16)
UI32 = ElementType("ui32", "uint", 32, np.uint32)
UI64 = ElementType("ui64", "uint", 64, np.uint64)
F4E2M1FN = ElementType("f4E2M1FN", "float", 4, ml_dtypes.float4_e2m1fn)
F6E2M3FN = ElementType("f6E2M3FN", "float", 6, ml_dtypes.float6_e2m3fn)
F6E3M2FN = ElementType("f6E3M2FN", "float", 6, ml_dtypes.float6_e3m2fn)
F8E3M4 = ElementType("f8E3M4", "float", 8, ml_dtypes.float8_e3m4)
F8E4M3 = ElementType("f8E4M3", "float", 8, ml_dtypes.float8_e4m3)
F8E4M3FN = ElementType("f8E4M3FN", "float", 8, ml_dtypes.float8_e4m3fn)
F8E4M3FNUZ = ElementType("f8E4M3FNUZ", "float", 8, ml_dtypes.float8_e4m3fnuz)
F8E4M3B11FNUZ = ElementType("f8E4M3B11FNUZ", "float", 8, ml_dtypes.float8_e4m3b11fnuz)
F8E5M2 = ElementType("f8E5M2", "float", 8, ml_dtypes.float8_e5m2)
F8E5M2FNUZ = ElementType("f8E5M2FNUZ", "float", 8, ml_dtypes.float8_e5m2fnuz)
F8E8M0FNU = ElementType("f8E8M0FNU", "float", 8, ml_dtypes.float8_e8m0fnu)
BF16 = ElementType("bf16", "float", 16, ml_dtypes.bfloat16)
F16 = ElementType("f16", "float", 16, np.float16)
F32 = ElementType("f32", "float", 32, np.float32)
F64 = ElementType("f64", "float", 64, np.float64)
C64 = ElementType("complex<f32>", "complex", 64, np.complex64)
C128 = ElementType("complex<f64>", "complex", 128, np.complex128)

_BY_DTYPE = {kind.dtype: kind for kind in ElementType.table.values()}


def element_type(name: str) -> ElementType:
    """The element type of that StableHLO name; ValueError if there is none."""
    try:
        return ElementType.table[name]
    except KeyError:
        raise ValueError(f"no element type is named '{name}'") from None


def element_type_of(dtype: Any) -> ElementType:
    """The element type that a numpy (or ml_dtypes) dtype holds; ValueError if there is none."""
    try:
        return _BY_DTYPE[np.dtype(dtype)]
    except KeyError:
        raise ValueError(f"no element type holds numpy's {np.dtype(dtype)}") from None


def real_type(element: ElementType) -> ElementType:
    """The type of the parts of a complex element; other elements are their own."""
    return {C64: F32, C128: F64}.get(element, element)


class QuantizedType:
    """`real = scale * (stored - zero_point)`, per tensor (`axis` None) or along one axis."""

    __slots__ = ("storage", "expressed", "axis", "scales", "zero_points", "minimum", "maximum")
    _interned: ClassVar[dict[tuple[Any, ...], QuantizedType]] = {}

    storage: ElementType
    expressed: ElementType
    axis: int | None
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    minimum: int
    maximum: int

    def __new__(
        cls,
        storage: ElementType,
        expressed: ElementType,
        axis: int | None,
        scales: Iterable[float],
        zero_points: Iterable[int],
        minimum: int,
        maximum: int,
    ) -> QuantizedType:
        parts = (
            storage, expressed, axis, tuple(scales), tuple(zero_points), minimum, maximum,
        )  # fmt: skip
        known = cls._interned.get(parts)
        if known is None:
            if len(parts[3]) != len(parts[4]):
                raise ValueError("a quantised type has other numbers of scales and zero points")
            known = super().__new__(cls)
            for name, part in zip(cls.__slots__, parts, strict=True):
                setattr(known, name, part)
            cls._interned[parts] = known
        return known

    kind = "quantized"

    @property
    def name(self) -> str:
        axis = "" if self.axis is None else f":{self.axis}"
        pairs = zip(self.scales, self.zero_points, strict=True)
        scales = ",".join(f"{scale!r}:{zero}" for scale, zero in pairs)
        if self.axis is not None:
            scales = "{" + scales + "}"
        bounds = f"<{self.minimum}:{self.maximum}>"
        return f"!quant.uniform<{self.storage.name}{bounds}:{self.expressed.name}{axis},{scales}>"

    def along(self, axis: int | None) -> QuantizedType:
        """The same parameters along another axis; without one if all positions agree."""
        scales, zeros = self.scales, self.zero_points
        if axis is None and len(set(zip(scales, zeros, strict=False))) == 1:
            scales, zeros = scales[:1], zeros[:1]
        return QuantizedType(
            self.storage, self.expressed, axis, scales, zeros, self.minimum, self.maximum
        )

    def fault(self, dims: Sequence[Dim]) -> str:
        """Why a tensor of these dims cannot have this element, or nothing."""
        if not self.storage.is_integer or not self.expressed.is_float:
            return "it must store integers for floats"
        low = -(1 << (self.storage.bits - 1)) if self.storage.kind == "int" else 0
        high = low + (1 << self.storage.bits) - 1
        if not low <= self.minimum <= self.maximum <= high:
            return f"its bounds must lie in {low} to {high}"
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scales):
            return "its scales must be positive and finite"
        if not all(self.minimum <= zero <= self.maximum for zero in self.zero_points):
            return "its zero points must lie within its bounds"
        if self.axis is None:
            return "" if len(self.scales) == 1 else "it needs one scale"
        if not 0 <= self.axis < len(dims):
            return f"it has no dimension {self.axis}"
        if len(self.scales) != dims[self.axis] and isinstance(dims[self.axis], int):
            return f"dimension {self.axis} needs {dims[self.axis]} scales"
        return ""

    bits = property(lambda self: self.storage.bits)
    dtype = property(lambda self: self.storage.dtype)
    itemsize = property(lambda self: self.storage.itemsize)
    is_float = is_integer = is_complex = is_bool = False

    def __repr__(self) -> str:
        return self.name


Element = ElementType | QuantizedType


class TensorType:
    """`f32[4,8]`: an element type and dimensions, with an optional sharding.

    Before propagation only arguments of the entry and results of `sharding_constraint` have a
    `sharding`; None means that nothing is said. Its mesh is one of the module's (`Module.meshes`).
    """

    __slots__ = ("dims", "element", "sharding", "rank", "is_static", "_size")
    _interned: ClassVar[dict[tuple[Any, ...], TensorType]] = {}

    dims: tuple[Any, ...]
    element: Any
    sharding: Sharding | None
    rank: int
    is_static: bool

    def __new__(
        cls, dims: Iterable[Dim], element: Element, sharding: Sharding | None = None
    ) -> TensorType:
        key = (tuple(dims), element, sharding)
        known = cls._interned.get(key)
        if known is None:
            known = super().__new__(cls)
            known.dims = tuple(d if isinstance(d, SymbolicDim) else int(d) for d in key[0])
            known.element, known.sharding = element, sharding
            known.rank = len(known.dims)
            known.is_static = all(isinstance(d, int) for d in known.dims)
            known._size = math.prod(known.dims) if known.is_static else -1
            cls._interned[key] = known
        return known

    @property
    def size(self) -> Any:
        """Number of elements: a size that a call fixes where a dimension is."""
        return self._size if self.is_static else math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes in memory, dense and row-major."""
        return self.size * self.element.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.element.dtype

    def with_dims(self, dims: Iterable[Dim]) -> TensorType:
        """The same element with other dimensions, without a sharding."""
        return TensorType(dims, self.element)

    def with_element(self, element: Element) -> TensorType:
        """Another element with the same dimensions, without a sharding."""
        return TensorType(self.dims, element)

    def with_sharding(self, sharding: Sharding | None) -> TensorType:
        """The same tensor, cut so; None: nothing is said."""
        return self if sharding is self.sharding else TensorType(self.dims, self.element, sharding)

    def __repr__(self) -> str:
        sharding = "" if self.sharding is None else f"@{self.sharding}"
        return f"{self.element.name}[{','.join(map(repr, self.dims))}]{sharding}"

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.dims, self.element, self.sharding)


class TokenType:
    """Orders effects; has no value. One object, `TOKEN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "token"

    def __reduce__(self) -> str:
        return "TOKEN"


TOKEN = TokenType()


class _TypeGroup:
    """Types together, interned per class."""

    __slots__ = ("members",)
    _interned: ClassVar[dict[tuple[Any, ...], Any]] = {}

    members: tuple[Any, ...]

    def __new__(cls, members: Iterable[Type]) -> Self:
        key = (cls, *members)
        known = cls._interned.get(key)
        if known is None:
            known = super().__new__(cls)
            known.members = key[1:]
            cls._interned[key] = known
        return known

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.members))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.members,)


class TupleType(_TypeGroup):
    """Several values as one; only at the edge of a program."""

    __slots__ = ()


class FutureType(_TypeGroup):
    """The results of an asynchronous operation, before `async_done` waits for them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"future{super().__repr__()}"


Type = TensorType | TokenType | TupleType | FutureType


def unsharded(kind: Type) -> Type:
    """The type without what it says of a sharding."""
    if isinstance(kind, TensorType) and kind.sharding is not None:
        return TensorType(kind.dims, kind.element)
    return kind


def tensor_of(array: np.ndarray[Any, Any]) -> TensorType:
    """The type of a numpy array."""
    return TensorType(array.shape, element_type_of(array.dtype))

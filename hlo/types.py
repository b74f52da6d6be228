"""Types of values: element types, symbolic dimensions, tensors, tokens and tuples.

Every type is interned: equal types are the same object, so `is` and `==` agree and hashing is
cheap. Layout is no part of a type; a sharding may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import ml_dtypes
import numpy as np

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


class Decisions:
    """What sizes are assumed to be while code is made of them; see `deciding`."""

    def __init__(self, hints: dict[str, int], ranges: dict[str, tuple[int, int | None]]) -> None:
        self.hints, self.ranges = hints, ranges
        self.guards: dict[Any, str] = {}

    def below(self, left: Any, right: Any) -> bool:
        """left < right: proven, else as it is at the hints, which becomes a guard."""
        d = right - left
        if not isinstance(d, SymbolicDim):
            return d > 0
        low, high = d.range(self.ranges)
        if low is not None and low > 0:
            return True
        if high is not None and high <= 0:
            return False
        holds = d.bind(self.hints) > 0
        if (d, holds) not in self.guards:
            import traceback
            self.guards[d, holds] = "".join(traceback.format_stack(limit=6)[:-2])
        return holds


_ACTIVE: list[Decisions] = []


def surely_below(left: Any, right: Any) -> bool:
    """Whether left < right for all sizes; False where that is not known."""
    d = right - left
    if not isinstance(d, SymbolicDim):
        return d > 0
    low, _ = d.range(_ACTIVE[-1].ranges)
    return low is not None and low > 0


def surely_at_most(left: Any, right: Any) -> bool:
    return surely_below(left, right + 1)


def most(size: Any) -> Any:
    """The largest that a size may be."""
    return size.range(_ACTIVE[-1].ranges)[1] if isinstance(size, SymbolicDim) else size


def larger(a: Any, b: Any) -> Any:
    """What neither size is above."""
    return b if surely_at_most(a, b) else a if surely_at_most(b, a) else a + b


def at_hint(size: Any) -> Any:
    """The size where decisions are taken."""
    return size.bind(_ACTIVE[-1].hints) if isinstance(size, SymbolicDim) else size


def _interval_mul(a, b):
    ends = [None if x is None or y is None else x * y for x in a for y in b]
    if None in ends:
        if (a[0] or 0) >= 0 and (b[0] or 0) >= 0 and a[0] is not None and b[0] is not None:
            return (a[0] * b[0], None)
        return (None, None)
    return min(ends), max(ends)


class SymbolicDim:
    __slots__ = ("poly",)
    _interned: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def __new__(cls, terms, offset: int = 0):
        if isinstance(terms, str):
            poly = {(terms,): 1}
        elif isinstance(terms, dict):
            poly = terms
        else:
            poly = {(n,): f for n, f in terms}
        if offset:
            poly = {**poly, (): poly.get((), 0) + offset}
        return cls._make(poly)

    @classmethod
    def _make(cls, poly):
        items = tuple(sorted(((m, c) for m, c in poly.items() if c), key=repr))
        if not items:
            return 0
        if len(items) == 1 and items[0][0] == ():
            return items[0][1]
        known = cls._interned.get(items)
        if known is None:
            known = object.__new__(cls)
            known.poly = items
            cls._interned[items] = known
        return known

    @property
    def terms(self):
        return tuple((m[0], c) for m, c in self.poly if m)

    @property
    def offset(self):
        return dict(self.poly).get((), 0)

    @staticmethod
    def _poly(x):
        return dict(x.poly) if isinstance(x, SymbolicDim) else {(): int(x)}

    def __divmod__(self, other):
        return _divided(self, other)

    def __add__(self, other):
        if isinstance(other, float):
            return float(self) + other
        if not isinstance(other, (int, SymbolicDim)):
            return NotImplemented
        p = self._poly(self)
        for m, c in self._poly(other).items():
            p[m] = p.get(m, 0) + c
        return self._make(p)

    __radd__ = __add__

    def __neg__(self):
        return self._make({m: -c for m, c in self.poly})

    def __sub__(self, other):
        if isinstance(other, float):
            return float(self) - other
        return self + -other if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        if isinstance(other, float):
            return float(self) * other
        if not isinstance(other, (int, SymbolicDim)):
            return NotImplemented
        p = {}
        for m, c in self.poly:
            for n, d in self._poly(other).items():
                k = tuple(sorted(m + n, key=repr))
                p[k] = p.get(k, 0) + c * d
        return self._make(p)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return _divided(self, other)[0]

    def __rfloordiv__(self, other):
        return _divided(other, self)[0]

    def __mod__(self, other):
        return _divided(self, other)[1]

    def __rmod__(self, other):
        return _divided(other, self)[1]

    def __truediv__(self, other):
        return float(self) / float(other)

    def __rtruediv__(self, other):
        return float(other) / float(self)

    def __pow__(self, n):
        r = 1
        for _ in range(n):
            r = r * self
        return r

    def __lt__(self, other):
        return _ACTIVE[-1].below(self, other)

    def __gt__(self, other):
        return _ACTIVE[-1].below(other, self)

    def __le__(self, other):
        return not _ACTIVE[-1].below(other, self)

    def __ge__(self, other):
        return not _ACTIVE[-1].below(self, other)

    def __float__(self):
        return float(self.bind(_ACTIVE[-1].hints))

    def __bool__(self):
        return True

    def bind(self, values) -> int:
        total = 0
        for m, c in self.poly:
            for a in m:
                c = c * (values[a] if isinstance(a, str) else _atom_value(a, values))
            total += c
        return total

    def range(self, ranges):
        low = high = 0
        for m, c in self.poly:
            r = (1, 1)
            for a in m:
                r = _interval_mul(r, ranges[a] if isinstance(a, str) else _atom_range(a, ranges))
            if c < 0:
                r = (r[1], r[0])
            low = None if low is None or r[0] is None else low + c * r[0]
            high = None if high is None or r[1] is None else high + c * r[1]
        return low, high

    def __repr__(self) -> str:
        parts = []
        for m, c in self.poly:
            names = "*".join(a if isinstance(a, str) else f"(({a[1]!r}){a[0]}({a[2]!r}))" for a in m)
            parts.append(f"{c}" if not m else names if c == 1 else f"{c}*{names}")
        return "+".join(parts).replace("+-", "-")

    def __reduce__(self):
        return SymbolicDim, (dict(self.poly),)


def _bind(x, values):
    return x.bind(values) if isinstance(x, SymbolicDim) else x


def _atom_value(a, values):
    op, l, r = a
    l, r = _bind(l, values), _bind(r, values)
    return l // r if op == "//" else l % r


def _rng(x, ranges):
    return x.range(ranges) if isinstance(x, SymbolicDim) else (x, x)


def _atom_range(a, ranges):
    op, l, r = a
    (ll, lh), (rl, rh) = _rng(l, ranges), _rng(r, ranges)
    if op == "//":
        if ll is not None and ll >= 0 and rl is not None and rl > 0:
            return (0 if rh is None else ll // rh, None if lh is None else lh // rl)
        return (None, None)
    return (0, None if rh is None else rh - 1)


def _divided(a, b):
    if isinstance(b, int):
        if b == 1:
            return a, 0
        pa = SymbolicDim._poly(a)
        q = {m: c // b for m, c in pa.items()}
        rest = {m: c % b for m, c in pa.items()}
        q, rest = SymbolicDim._make(q), SymbolicDim._make(rest)
        if not isinstance(rest, SymbolicDim):
            return q, rest
        if _ACTIVE:
            low, high = rest.range(_ACTIVE[-1].ranges)
            if low is not None and low >= 0 and high is not None and high < b:
                return q, rest
        return q + SymbolicDim._make({(("//", rest, b),): 1}), SymbolicDim._make({(("%", rest, b),): 1})
    pa, pb = SymbolicDim._poly(a), SymbolicDim._poly(b)
    if len(pb) == 1:  # a monomial
        (mb, cb), = pb.items()
        q, rest = {}, {}
        for m, c in pa.items():
            left = list(m)
            ok = c % cb == 0
            for x in mb:
                if x in left:
                    left.remove(x)
                else:
                    ok = False
            (q if ok else rest)[tuple(left) if ok else m] = c // cb if ok else c
        q, rest = SymbolicDim._make(q), SymbolicDim._make(rest)
        if rest == 0:
            return q, 0
        if _ACTIVE:
            low, high = _rng(rest, _ACTIVE[-1].ranges)
            dlow, _ = _rng(b - rest, _ACTIVE[-1].ranges)
            if low is not None and low >= 0 and dlow is not None and dlow > 0:
                return q, rest
        return q + SymbolicDim._make({(("//", rest, b),): 1}), SymbolicDim._make({(("%", rest, b),): 1})
    if a is b:
        return 1, 0
    return SymbolicDim._make({(("//", a, b),): 1}), SymbolicDim._make({(("%", a, b),): 1})


Dim = int | SymbolicDim

_TERM = re.compile(r"([+-]?)(?:(\d+)\*)?([A-Za-z_]\w*|\d+)")


def parse_dim(text: str) -> Dim:
    """Read what `repr` of a dimension writes: `128`, `batch`, `2*t+1`; ValueError otherwise."""
    total: Dim = 0
    position = 0
    compact = text.replace(" ", "")
    while position < len(compact):
        match = _TERM.match(compact, position)
        if not match or (position and not match[1]):
            raise ValueError(f"'{text}' is no dimension")
        factor = int(match[2] or 1) * (-1 if match[1] == "-" else 1)
        term = int(match[3]) if match[3].isdigit() else SymbolicDim(match[3])
        total = total + term * factor
        position = match.end()
    if not compact:
        raise ValueError("a dimension is empty")
    return total


class TensorType:
    """`f32[4,8]`: an element type and dimensions, with an optional sharding.

    Before propagation only arguments of the entry and results of `sharding_constraint` have a
    `sharding`; None means that nothing is said. Its mesh is one of the module's (`Module.meshes`).
    """

    __slots__ = ("dims", "element", "sharding", "rank", "is_static")
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
            cls._interned[key] = known
        return known

    @property
    def size(self) -> int:
        """Number of elements; ValueError if a dimension is symbolic."""
        if not self.is_static and not _ACTIVE:
            raise ValueError(f"{self} has no fixed size")
        return math.prod(self.dims)

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


class _Group:
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


class TupleType(_Group):
    """Several values as one; only at the edge of a program."""

    __slots__ = ()


class FutureType(_Group):
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

"""chlo's trigonometric, hyperbolic and other simple functions, as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..access import Access, Space
from ..graph import Op
from ..room import Case, OpDefinition, constraint, operand
from ..types import (
    BF16,
    C64,
    C128,
    F16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    UI8,
    UI16,
    UI32,
    UI64,
    TensorType,
    Type,
)
from . import complex_functions, numerics
from .clauses import is_tensor, same_dims
from .decomposed import Decomposed, Term, exp, expm1, in_f32, log, log1p, sqrt, where
from .examples import TOLERANCES, f32, hostile
from .shape import broadcast_indices

Formula = Callable[..., Term]


class RealFunction(Decomposed):
    """A formula of one real operand; complex numbers go through numpy's function."""

    pattern = "elementwise"
    operand = operand()
    C0 = constraint(
        "operand has a legal element type",
        lambda o: (
            is_tensor(o.operand) and o.operand.element.kind in o.definition.kinds  # type: ignore[attr-defined]
        ),
    )

    def __init__(
        self, name: str, formula: Formula, doc: str, complex: Any = None, domain: str = "all",
        cost_class: str = "simple",
    ) -> None:  # fmt: skip
        self.name = name  # type: ignore[misc]
        self.formula, self.complex, self.domain = formula, complex, domain
        self.cost_class = cost_class  # type: ignore[misc]
        self.kinds = ("float", "complex") if complex is not None else ("float",)
        self.__doc__ = doc

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if o.operand.element.is_complex:
            return numerics.elementwise(self.complex, arrays, arrays[0].dtype)
        return super().evaluate(o, *arrays, **context)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return None if o.operand.element.is_complex else in_f32(b, self.formula, values)

    def cases(self) -> Iterator[Case]:
        for element in (F32, F64, F16, BF16, C64):
            if element.kind in self.kinds:
                yield Case(
                    f"{self.name}_{element.name}",
                    hostile(element, 1, self.domain),
                    tolerance=max(TOLERANCES.get(element.name, 1e-5), 1e-6),
                )


def _largest(x: Term) -> float:
    return float(np.finfo(x.element.dtype).max)


def _tan(x: Term) -> Term:
    return x.op("tan")


def _sinh(x: Term) -> Term:
    half = math.log(0.5)
    grown = expm1(abs(x))
    small = (grown + grown / (grown + 1.0)) * 0.5
    small = where(x < 0.0, -small, small)
    large = exp(x + half) - exp(-x + half)
    return where(x.equals(0.0), x, where(abs(x) < 1.0, small, large))


def _cosh(x: Term) -> Term:
    half = math.log(0.5)
    return exp(x + half) + exp(-x + half)


def _acos(x: Term) -> Term:
    root = sqrt((1.0 - x) * (1.0 + x))
    angle = 2.0 * root.op("atan2", 1.0 + x)
    return where(x.equals(-1.0), math.pi, angle)


def _asin(x: Term) -> Term:
    return 2.0 * x.op("atan2", 1.0 + sqrt((1.0 - x) * (1.0 + x)))


def _atan(x: Term) -> Term:
    return x.op("atan2", 1.0)


def _acosh(x: Term) -> Term:
    over = x - 1.0
    usual = log1p(over + sqrt(over * (over + 2.0)))
    huge = log(x) + math.log(2.0)
    inside = where(x >= math.sqrt(_largest(x)), huge, usual)
    return where(x < 1.0, math.nan, inside)


def _asinh(x: Term) -> Term:
    size = abs(x)
    square = size * size
    small = log1p(size + square / (1.0 + sqrt(1.0 + square)))
    huge = log(size) + math.log(2.0)
    result = where(size >= math.sqrt(_largest(x)), huge, small)
    return where(x.equals(0.0), x, where(x < 0.0, -result, result))


def _atanh(x: Term) -> Term:
    size = abs(x)
    result = 0.5 * log1p(2.0 * size / (1.0 - size))
    inside = where(size > 1.0, math.nan, result)
    return where(x.equals(0.0), x, where(x < 0.0, -inside, inside))


class Square(Decomposed, name="chlo.square"):
    """result = operand * operand."""

    pattern = "elementwise"
    operand = operand()
    C0 = constraint(
        "operand is a float or complex tensor",
        lambda o: o.operand.element.kind in ("float", "complex"),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return numerics.elementwise(complex_functions.square, arrays, arrays[0].dtype)

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return None if o.operand.element.is_complex else [b("multiply", values[0], values[0])]

    def cases(self) -> Iterator[Case]:
        for element in (F32, BF16, C64):
            yield Case(f"square_{element.name}", hostile(element, 1, "finite"))


class Conjugate(Decomposed, name="chlo.conj"):
    """result = operand with its imaginary part negated."""

    pattern = "elementwise"
    operand = operand()
    C0 = constraint(
        "operand is a float or complex tensor",
        lambda o: o.operand.element.kind in ("float", "complex"),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        (x,) = values
        if not o.operand.element.is_complex:
            return [x]
        return [b("complex", b("real", x), b("negate", b("imag", x)))]

    def cases(self) -> Iterator[Case]:
        yield Case("conj", hostile(C64, 1))


class IsInfinite(Decomposed):
    """Which floats are infinite: of both signs, or of one."""

    pattern = "elementwise"
    predicate = True
    operand = operand()
    C0 = constraint("operand is a float tensor", lambda o: o.operand.element.is_float)

    def __init__(self, name: str, signs: tuple[int, ...]) -> None:
        self.name, self.signs = name, signs  # type: ignore[misc]

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_element(I1)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        x = Term(b, values[0])
        tests = [x.equals(sign * math.inf) for sign in self.signs]
        return [(tests[0] if len(tests) == 1 else tests[0] | tests[1]).value]

    def cases(self) -> Iterator[Case]:
        yield Case(self.name, hostile(F32, 1))


class NextAfter(Decomposed, name="chlo.next_after"):
    """result = the float next to lhs in the direction of rhs."""

    pattern = "elementwise"
    lhs = operand()
    rhs = operand()
    C1 = constraint(
        "lhs and rhs have the same float type of whole bytes",
        lambda o: (
            o.lhs.element.is_float
            and o.lhs.element.bits >= 8
            and o.lhs.element is o.rhs.element
            and same_dims(o.lhs.dims, o.rhs.dims)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.lhs.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        x, y = (Term(b, v) for v in values)
        width = x.element.bits
        bits = {8: UI8, 16: UI16, 32: UI32, 64: UI64}[width]
        sign = 1 << (width - 1)
        ours, theirs = x.bits(bits), y.bits(bits)
        size, negative = ours & (sign - 1), ours & sign
        other_size, other_negative = theirs & (sign - 1), theirs & sign
        away = (size < other_size) & negative.equals(other_negative)
        stepped = where(away, ours + 1, ours - 1)
        from_zero = other_negative | 1
        result = where(size.equals(0), where(other_size.equals(0), theirs, from_zero), stepped)
        result = where(x.equals(y), theirs, result)
        unordered = x.differs(x) | y.differs(y)
        return [where(unordered, math.nan, result.bits(x.element)).value]

    def cases(self) -> Iterator[Case]:
        for element in (F32, F64, F16, BF16):
            yield Case(f"next_after_{element.name}", hostile(element, 2))


class HighProduct(Decomposed, name="chlo.mulhi"):
    """result = the upper half of the double-width product lhs * rhs."""

    pattern = "elementwise"
    commutative = True
    lhs = operand()
    rhs = operand()
    C1 = constraint(
        "lhs and rhs have the same integer type",
        lambda o: (
            o.lhs.element.is_integer
            and o.lhs.element is o.rhs.element
            and same_dims(o.lhs.dims, o.rhs.dims)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.lhs.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        x, y = (Term(b, v) for v in values)
        element = x.element
        signed = element.kind == "int"
        if element.bits < 64:
            wide = I64 if signed else UI64
            product = x.convert(wide) * y.convert(wide)
            shift = "shift_right_arithmetic" if signed else "shift_right_logical"
            return [product.op(shift, element.bits).convert(element).value]
        u, v = x.convert(UI64), y.convert(UI64)
        low = 0xFFFFFFFF
        u0, u1, v0, v1 = u & low, u >> 32, v & low, v >> 32
        middle = u1 * v0 + ((u0 * v0) >> 32)
        other = u0 * v1 + (middle & low)
        high = u1 * v1 + (middle >> 32) + (other >> 32)
        if signed:
            high = high - where(x < 0, v, 0) - where(y < 0, u, 0)
        return [high.convert(element).value]

    def cases(self) -> Iterator[Case]:
        for element in (I8, UI8, I32, UI32, I64, UI64):
            yield Case(f"mulhi_{element.name}", hostile(element, 2))


class Broadcasting(Decomposed):
    """A two-operand operation whose operands are broadcast to each other first, as numpy does."""

    pattern = "opaque"
    lhs = operand()
    rhs = operand()
    C1 = constraint(
        "trailing dimensions agree or are 1",
        lambda o: all(
            1 in pair or pair[0] == pair[1]
            for pair in zip(o.lhs.dims[::-1], o.rhs.dims[::-1], strict=False)
        ),
    )

    def __init__(self, name: str, base: str, since: str = "1.0") -> None:
        self.name, self.base, self.since = name, base, since  # type: ignore[misc]

    def infer(self, o: Op) -> Sequence[Type]:
        dims = np.broadcast_shapes(o.lhs.dims, o.rhs.dims)
        if self.base == "compare":
            return [TensorType(dims, I1)]
        if self.base == "complex":
            return [TensorType(dims, C64 if o.lhs.element is F32 else C128)]
        return [TensorType(dims, o.lhs.element)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        dims = np.broadcast_shapes(o.lhs.dims, o.rhs.dims)
        wide = [b.broadcast(v, dims, range(len(dims) - v.rank, len(dims))) for v in values]
        facts = {k: v for k, v in o.attributes.items() if k != "broadcast_dimensions"}
        return [b(self.base, *wide, **facts)]

    def access(self, o: Op) -> Access | None:
        dims = o.type.dims
        lines = []
        for v in o.operands:
            lines.append(broadcast_indices(v.dims, dims, range(len(dims) - v.rank, len(dims))))
        return Space(dims).access(*lines)

    def cases(self) -> Iterator[Case]:
        left, right = f32([[1], [2]]), f32([3, 5, 7])
        if self.base in ("and", "or", "xor") or self.base.startswith("shift"):
            left, right = left.astype(np.int32), right.astype(np.int32)
        direction = {"comparison_direction": "LT"} if self.base == "compare" else {}
        yield Case(self.name, (left, right), direction)


class BroadcastSelect(Decomposed, name="chlo.broadcast_select"):
    """result = on_true where pred, else on_false; all three broadcast to each other as in numpy."""

    pattern = "opaque"
    since = "1.2"
    pred = operand()
    on_true = operand()
    on_false = operand()
    C1 = constraint(
        "pred is i1, on_true and on_false have one element type",
        lambda o: o.pred.element is I1 and o.on_true.element is o.on_false.element,
    )
    C2 = constraint(
        "trailing dimensions agree or are 1",
        lambda o: all(
            len({size for size in sizes if size != 1}) < 2
            for sizes in zip_longest(*(v.dims[::-1] for v in o.operands), fillvalue=1)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [TensorType(np.broadcast_shapes(*(v.dims for v in o.operands)), o.on_true.element)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        (kind,) = self.infer(o)
        dims = kind.dims if isinstance(kind, TensorType) else ()
        wide = [b.broadcast(v, dims, range(len(dims) - v.rank, len(dims))) for v in values]
        return [b("select", *wide)]

    def access(self, o: Op) -> Access | None:
        dims = o.type.dims
        lines = [
            broadcast_indices(v.dims, dims, range(len(dims) - v.rank, len(dims)))
            for v in o.operands
        ]
        return Space(dims).access(*lines)

    def cases(self) -> Iterator[Case]:
        pred = np.array([[True], [False]])
        yield Case("chlo.broadcast_select", (pred, f32([1, 2, 3]), f32(7)))


ROOMS: tuple[OpDefinition, ...] = (
    RealFunction("chlo.tan", _tan, "result = tangent.", np.tan, domain="finite"),
    RealFunction("chlo.sinh", _sinh, "result = (exp(x) - exp(-x)) / 2.", np.sinh),
    RealFunction("chlo.cosh", _cosh, "result = (exp(x) + exp(-x)) / 2.", np.cosh),
    RealFunction("chlo.acos", _acos, "result = the angle whose cosine is operand.", np.arccos),
    RealFunction("chlo.asin", _asin, "result = the angle whose sine is operand.", np.arcsin),
    RealFunction("chlo.atan", _atan, "result = the angle whose tangent is operand.", np.arctan),
    RealFunction("chlo.acosh", _acosh, "result = log(x + sqrt(x^2 - 1)).", np.arccosh),
    RealFunction("chlo.asinh", _asinh, "result = log(x + sqrt(x^2 + 1)).", np.arcsinh),
    RealFunction("chlo.atanh", _atanh, "result = log((1 + x) / (1 - x)) / 2.", np.arctanh),
    Square(),
    Conjugate(),
    IsInfinite("chlo.is_inf", (1, -1)),
    IsInfinite("chlo.is_pos_inf", (1,)),
    IsInfinite("chlo.is_neg_inf", (-1,)),
    NextAfter(),
    HighProduct(),
    *(
        Broadcasting(f"chlo.broadcast_{base}", base)
        for base in (
            "add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum",
            "multiply", "or", "power", "remainder", "subtract", "xor",
        )
    ),
    *(
        Broadcasting(f"chlo.broadcast_{base}", base, "1.2")
        for base in ("shift_left", "shift_right_arithmetic", "shift_right_logical")
    ),
    *(
        Broadcasting(f"chlo.broadcast_{base}", f"chlo.{base}", "1.2")
        for base in ("next_after", "polygamma", "zeta")
    ),
    BroadcastSelect(),
)  # fmt: skip

"""Arithmetic on each element: add, mul, div, pow, remainder, exp, floor, bitwise operators, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term, exp, log, log1p, where
from ....hlo.types import I1
from ..context import Blocked, Context, Number, Operand


def binary(name: str, on_bool: str = "", exact: bool = False) -> Callable[..., Value]:
    """An operation of the same meaning; on booleans the one named `on_bool`.

    `exact`: bf16 and f16 meet a scalar in f32, as PyTorch's products do; sums round it first.
    """

    def lower(c: Context, self: Operand, other: Operand) -> Value:
        element = c.work_element(self, other) if exact else c.element
        if element is I1 and not on_bool:
            raise Blocked("is not defined on booleans")
        left, right = c.together(self, other, element=element)
        return c.narrow(c(on_bool if element is I1 else name, left, right))

    return lower


def sum_of(name: str, on_bool: str = "", reverse: bool = False) -> Callable[..., Value]:
    """self + alpha * other, self - alpha * other, or the latter with exchanged roles."""

    def lower(c: Context, self: Operand, other: Operand, alpha: Number = 1) -> Value:
        if reverse:
            self, other = other, self
        element = c.work_element(alpha)
        if alpha != 1:
            whole = isinstance(other, Value)
            other = c.multiply(c.convert(other, element), alpha) if whole else other * alpha
        left, right = c.together(self, other, element=element)
        return c.narrow(c(on_bool if element is I1 and on_bool else name, left, right))

    return lower


def unary(name: str) -> Callable[..., Value]:
    """An operation of the same meaning, computed in the result's type."""

    def lower(c: Context, self: Value) -> Value:
        return c(name, c.convert(self, c.element))

    return lower


def rounding(name: str) -> Callable[..., Value]:
    """A rounding, which leaves integers as they are."""

    def lower(c: Context, self: Value) -> Value:
        return c(name, self) if self.element.is_float else self

    return lower


def formula(body: Callable[[Context, Value], Value]) -> Callable[..., Value]:
    """A formula over the operand, computed in f32 for bf16 and f16, rounded once."""

    def lower(c: Context, self: Value) -> Value:
        return c.narrow(body(c, c.wide(c.convert(self, c.element))))

    return lower


def formula_of_two(body: Callable[[Term, Term], Term]) -> Callable[..., Value]:
    """A formula over two terms, computed in f32 for bf16 and f16, rounded once."""

    def lower(c: Context, self: Operand, other: Operand) -> Value:
        x, y = (c.wide(v) for v in c.together(self, other, element=c.element))
        return c.narrow(body(Term(c.builder, x), Term(c.builder, y)).value)

    return lower


def truncate(c: Context, x: Value) -> Value:
    """The integer part of a float."""
    negative = c.builder.compare("LT", x, c.full(0, x.dims, x.element))
    return c("select", negative, c("ceil", x), c("floor", x))


def _signs_differ(c: Context, left: Value, right: Value) -> Value:
    zero = c.full(0, left.dims, left.element)
    return c("xor", c.builder.compare("LT", left, zero), c.builder.compare("LT", right, zero))


def _floor_fix(c: Context, rest: Value, right: Value) -> Value:
    """Where C's remainder and quotient are not Python's: rest != 0 and its sign is not right's."""
    nonzero = c.builder.compare("NE", rest, c.full(0, rest.dims, rest.element))
    return c("and", nonzero, _signs_differ(c, rest, right))


def remainder(c: Context, self: Operand, other: Operand) -> Value:
    """self - floor(self / other) * other: has the sign of `other`."""
    left, right = c.together(self, other, element=c.element)
    rest = c("remainder", left, right)
    return c.narrow(c("select", _floor_fix(c, rest, right), c("add", rest, right), rest))


def _floor_quotient(c: Context, left: Value, right: Value) -> Value:
    if left.element.is_integer:
        quotient = c("divide", left, right)
        if left.element.kind == "uint":
            return quotient
        rest = c("subtract", left, c("multiply", quotient, right))
        return c("select", _floor_fix(c, rest, right), c.subtract(quotient, 1), quotient)
    # As PyTorch: exact where (left - rest) / right is, and division by zero gives inf or nan.
    rest = c("remainder", left, right)
    exact = c("divide", c("subtract", left, rest), right)
    lower = c("select", _floor_fix(c, rest, right), c.subtract(exact, 1), exact)
    floor = c("floor", lower)
    above = c.builder.compare(
        "GT", c("subtract", lower, floor), c.full(0.5, lower.dims, lower.element)
    )
    floor = c("select", above, c.add(floor, 1), floor)
    plain = c("divide", left, right)
    zero = c.full(0, left.dims, left.element)
    is_zero = c.builder.compare("EQ", lower, zero)
    floor = c("select", is_zero, c("multiply", plain, zero), floor)
    return c("select", c.builder.compare("EQ", right, zero), plain, floor)


def floor_divide(c: Context, self: Operand, other: Operand) -> Value:
    """floor(self / other)."""
    left, right = c.together(self, other, element=c.element)
    return c.narrow(_floor_quotient(c, left, right))


def div(c: Context, self: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    """self / other: true division, or rounded to zero ("trunc") or down ("floor")."""
    left, right = c.together(self, other, element=c.work_element(self, other))
    if rounding_mode is None:
        return c.narrow(c("divide", left, right))
    if rounding_mode == "floor":
        return c.narrow(_floor_quotient(c, left, right))
    quotient = c("divide", left, right)
    return c.narrow(truncate(c, quotient) if quotient.element.is_float else quotient)


def power(c: Context, self: Operand, exponent: Operand) -> Value:
    """self ** exponent; small constant exponents are products and roots, as in PyTorch."""
    if isinstance(exponent, complex) and not exponent.imag:
        exponent = exponent.real
    if isinstance(self, Value) and not isinstance(exponent, Value):
        x = c.convert(self, c.element)
        simple = _constant_power(c, c.wide(x), exponent)
        if simple is not None:
            return c.narrow(simple)
    left, right = c.together(self, exponent, element=c.element)
    return c.narrow(c("power", left, right))


def _constant_power(c: Context, x: Value, exponent: Number) -> Value | None:
    if exponent == 0:
        return c.full(1, x.dims, x.element)
    if exponent in (1, 2, 3):
        result = x
        for _ in range(int(exponent) - 1):  # type: ignore[arg-type]
            result = c("multiply", result, x)
        return result
    if x.element.kind in ("float", "complex"):
        if exponent == 0.5:
            return c("sqrt", x)
        if exponent == -0.5:
            return c("rsqrt", x) if x.element.is_float else c.divide(1, c("sqrt", x))
        if exponent in (-1, -2):
            return c.divide(1, x if exponent == -1 else c("multiply", x, x))
    return None


def clamp(c: Context, self: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """minimum(maximum(self, min), max); a missing bound does not bound."""
    x = c.fill(self, c.type)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)):
        return c("clamp", c.scalar(min, c.element), x, c.scalar(max, c.element))
    if min is not None:
        x = c("maximum", x, c.fill(min, x.tensor))
    if max is not None:
        x = c("minimum", x, c.fill(max, x.tensor))
    return x


def clamp_min(c: Context, self: Value, min: Operand) -> Value:
    return clamp(c, self, min)


def clamp_max(c: Context, self: Value, max: Operand) -> Value:
    return clamp(c, self, None, max)


def bitwise_not(c: Context, self: Value) -> Value:
    return c("not", self)


def absolute(c: Context, self: Value) -> Value:
    return self if self.element.kind in ("bool", "uint") else c("abs", self)


def sign(c: Context, self: Value) -> Value:
    """-1, 0 or 1; booleans are their own sign, nan has sign 0."""
    if self.element is I1:
        return self
    if self.element.kind == "uint":
        return c.binary("minimum", self, 1)
    if self.element.is_float:
        return c.select(c.is_nan(self), 0, c("sign", self))
    return c("sign", self)


def round_decimals(c: Context, self: Value, decimals: int = 0) -> Value:
    """Half to even at that many decimals."""
    if decimals == 0:
        return rounding("round_nearest_even")(c, self)
    scale = float(10 ** abs(decimals))
    x = c.wide(self)
    if decimals > 0:
        return c.narrow(c.divide(c("round_nearest_even", c.multiply(x, scale)), scale))
    return c.narrow(c.multiply(c("round_nearest_even", c.divide(x, scale)), scale))


def lerp(c: Context, self: Value, end: Value, weight: Operand) -> Value:
    """self + weight * (end - self), from the nearer end."""
    x, y = (c.wide(c.fill(v, c.type)) for v in (self, end))
    w = c.fill(weight, x.tensor)
    step = c("subtract", y, x)
    near = c("add", x, c("multiply", w, step))
    far = c("subtract", y, c("multiply", step, c.subtract(1, w)))
    size = c("abs", w)
    small = c.builder.compare("LT", size, c.full(0.5, size.dims, size.element))
    return c.narrow(c("select", small, near, far))


def addcmul(c: Context, self: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    """self + value * tensor1 * tensor2."""
    x, y, z = (c.wide(c.fill(v, c.type)) for v in (self, tensor1, tensor2))
    scaled = y if value == 1 else c.multiply(y, value)
    return c.narrow(c("add", x, c("multiply", scaled, z)))


def addcdiv(c: Context, self: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    """self + value * tensor1 / tensor2."""
    x, y, z = (c.wide(c.fill(v, c.type)) for v in (self, tensor1, tensor2))
    above = y if value == 1 else c.multiply(y, value)
    return c.narrow(c("add", x, c("divide", above, z)))


def nan_to_num(
    c: Context,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """nan, inf and -inf replaced, by default with 0 and the largest finite values."""
    if self.element.is_complex:
        parts = (c.part(name, self) for name in ("real", "imag"))
        return c("complex", *(nan_to_num(c, part, nan, posinf, neginf) for part in parts))
    if not self.element.is_float:
        return self
    limits = ml_dtypes.finfo(self.element.dtype)
    low = float(limits.min) if neginf is None else neginf
    high = float(limits.max) if posinf is None else posinf
    result = c.select(c.is_nan(self), 0.0 if nan is None else nan, self)
    infinite = c.full(math.inf, self.dims, self.element)
    result = c.select(c.builder.compare("EQ", self, infinite), high, result)
    negative = c.full(-math.inf, self.dims, self.element)
    return c.select(c.builder.compare("EQ", self, negative), low, result)


def hypot(c: Context, self: Value, other: Value) -> Value:
    """sqrt(self² + other²) without overflow on the way."""
    x, y = (c("abs", c.wide(v)) for v in c.together(self, other, element=c.element))
    large, small = c("maximum", x, y), c("minimum", x, y)
    ratio = c("divide", small, large)
    root = c("sqrt", c.add(c("multiply", ratio, ratio), 1))
    trivial = c.builder.compare("EQ", small, c.full(0, x.dims, x.element))
    result = c("select", trivial, large, c("multiply", large, root))
    infinite = c("or", c.compare("EQ", x, math.inf), c.compare("EQ", y, math.inf))
    return c.narrow(c.select(infinite, math.inf, result))


def _log_sum(log_base: float) -> Callable[[Term, Term], Term]:
    """log(base ** x + base ** y) by that base; complex numbers are ordered by their real parts."""

    def body(x: Term, y: Term) -> Term:
        if x.element.is_complex:
            first = x.op("real") >= y.op("real")
            large, small = where(first, x, y), where(first, y, x)
        else:
            large, small = x.op("maximum", y), x.op("minimum", y)
        grown = large + log1p(exp((small - large) * log_base)) / log_base
        if x.element.is_complex:
            return grown
        # also where both are infinite, and their difference is nan
        return where(x.equals(y), x + math.log(2) / log_base, grown)

    return body


def xlogy_of(x: Term, y: Term) -> Term:
    """x * log(y), 0 where x is 0; nan where y is."""
    return where(y.differs(y), y, where(x.equals(0), 0, x * log(y)))


def _heaviside(x: Term, at_zero: Term) -> Term:
    """0 below zero, 1 above it, at zero what the other says; 0 where it is nan."""
    return where(x.equals(0), at_zero, (x > 0).convert(x.element))


def extremum_ignoring_nan(name: str) -> Callable[..., Value]:
    """fmax and fmin: the other operand where one is nan."""

    def lower(c: Context, self: Value, other: Value) -> Value:
        x, y = c.together(self, other, element=c.element)
        if not x.element.is_float:
            return c(name, x, y)
        chosen = c("select", c.is_nan(y), x, c(name, x, y))
        return c("select", c.is_nan(x), y, chosen)

    return lower


def _reciprocal(c: Context, x: Value) -> Value:
    return c.divide(1, x)


def _log_by(base: float) -> Callable[[Context, Value], Value]:
    return lambda c, x: _times_real(c, c("log", x), 1 / math.log(base))


def _times_real(c: Context, x: Value, factor: float) -> Value:
    """x * factor; each part of a complex number by itself, so that 0 * inf does not meet."""
    if not x.element.is_complex:
        return c.multiply(x, factor)
    return c("complex", *(c.multiply(c.part(name, x), factor) for name in ("real", "imag")))


def _exp2(c: Context, x: Value) -> Value:
    if x.element.is_complex:
        return c("exponential", _times_real(c, x, math.log(2)))
    return c("power", c.full(2, x.dims, x.element), x)


def _fraction(c: Context, x: Value) -> Value:
    return c("subtract", x, truncate(c, x))


def square(c: Context, self: Value) -> Value:
    x = c.convert(self, c.element)
    return c("multiply", x, x)


def angle(c: Context, self: Value) -> Value:
    """The argument of complex numbers; pi of negative ones, 0 of others, nan of nan."""
    if self.element.is_complex:
        return c("atan2", c.part("imag", self), c.part("real", self))
    x = c.convert(self, c.element)
    negative = c.builder.compare("LT", x, c.full(0, x.dims, x.element))
    half = c.select(negative, c.full(math.pi, x.dims, x.element), 0.0)
    return c("select", c.is_nan(x), x, half)


def logit(c: Context, self: Value, eps: float | None = None) -> Value:
    """log(self / (1 - self)), self first clamped to [eps, 1 - eps]."""
    x = c.wide(c.convert(self, c.element))
    if eps is not None:
        low, high = c.scalar(eps, x.element), c.scalar(1 - eps, x.element)
        x = c("clamp", low, x, high)
    return c.narrow(c("log", c("divide", x, c.subtract(1, x))))


def _scaled(factor: float) -> Callable[[Context, Value], Value]:
    return lambda c, x: c.multiply(x, factor)


_ADD, _SUB = sum_of("add", "or"), sum_of("subtract")
_RSUB = sum_of("subtract", reverse=True)
_MUL = binary("multiply", "and", exact=True)
_AND, _OR, _XOR = binary("and", "and"), binary("or", "or"), binary("xor", "xor")
_MAX, _MIN = binary("maximum", "or"), binary("minimum", "and")
_FMOD = binary("remainder")

_UNARY = {
    "exp": "exponential", "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh",
    "sigmoid": "logistic", "neg": "negate", "sinh": "chlo.sinh", "cosh": "chlo.cosh",
    "asin": "chlo.asin", "acos": "chlo.acos", "atan": "chlo.atan", "asinh": "chlo.asinh",
    "acosh": "chlo.acosh", "atanh": "chlo.atanh", "erf": "chlo.erf", "erfc": "chlo.erfc",
    "erfinv": "chlo.erf_inv", "lgamma": "chlo.lgamma",
}  # fmt: skip

_FORMULAS = {
    "reciprocal": _reciprocal, "log2": _log_by(2), "log10": _log_by(10), "exp2": _exp2,
    "frac": _fraction, "deg2rad": _scaled(math.pi / 180), "rad2deg": _scaled(180 / math.pi),
}  # fmt: skip


def _truncated(c: Context, self: Value) -> Value:
    return truncate(c, self) if self.element.is_float else self


_XLOGY = formula_of_two(xlogy_of)
_OPERATORS = {"and": _AND, "or": _OR, "xor": _XOR}

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}.default": unary(meaning) for name, meaning in _UNARY.items()},
    **{f"aten.{name}.default": formula(body) for name, body in _FORMULAS.items()},
    **{f"aten.add.{kind}": _ADD for kind in ("Tensor", "Scalar")},
    **{f"aten.sub.{kind}": _SUB for kind in ("Tensor", "Scalar")},
    **{f"aten.rsub.{kind}": _RSUB for kind in ("Tensor", "Scalar")},
    **{f"aten.mul.{kind}": _MUL for kind in ("Tensor", "Scalar")},
    **{f"aten.div.{kind}": div for kind in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    **{f"aten.true_divide.{kind}": div for kind in ("Tensor", "Scalar")},
    **{f"aten.floor_divide.{kind}": floor_divide for kind in ("default", "Scalar", "Tensor")},
    **{f"aten.fmod.{kind}": _FMOD for kind in ("Tensor", "Scalar")},
    **{f"aten.remainder.{kind}": remainder for kind in ("Tensor", "Scalar", "Scalar_Tensor")},
    **{
        f"aten.{name}.{kind}": power
        for name in ("pow", "float_power")
        for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar", "Tensor")
    },
    **{
        f"aten.bitwise_{name}.{kind}": body
        for name, body in (("and", _AND), ("or", _OR), ("xor", _XOR))
        for kind in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.__{name}__.{kind}": body
        for name, body in _OPERATORS.items()
        for kind in ("Tensor", "Scalar")
    },
    **{f"aten.clamp.{kind}": clamp for kind in ("default", "Tensor")},
    **{f"aten.clip.{kind}": clamp for kind in ("default", "Tensor")},
    **{f"aten.clamp_min.{kind}": clamp_min for kind in ("default", "Tensor")},
    **{f"aten.clamp_max.{kind}": clamp_max for kind in ("default", "Tensor")},
    **{f"aten.lerp.{kind}": lerp for kind in ("Scalar", "Tensor")},
    **{f"aten.xlogy.{kind}": _XLOGY for kind in ("Tensor", "Scalar_Other", "Scalar_Self")},
    **{f"aten.special_xlogy.{kind}": _XLOGY for kind in ("default", "other_scalar", "self_scalar")},
    "aten.abs.default": absolute,
    "aten.addcdiv.default": addcdiv,
    "aten.addcmul.default": addcmul,
    "aten.angle.default": angle,
    "aten.atan2.default": binary("atan2"),
    "aten.bitwise_not.default": bitwise_not,
    "aten.ceil.default": rounding("ceil"),
    "aten.floor.default": rounding("floor"),
    "aten.fmax.default": extremum_ignoring_nan("maximum"),
    "aten.fmin.default": extremum_ignoring_nan("minimum"),
    "aten.hypot.default": hypot,
    "aten.heaviside.default": formula_of_two(_heaviside),
    "aten.logaddexp.default": formula_of_two(_log_sum(1.0)),
    "aten.logaddexp2.default": formula_of_two(_log_sum(math.log(2))),
    "aten.logit.default": logit,
    "aten.maximum.default": _MAX,
    "aten.max.other": _MAX,
    "aten.minimum.default": _MIN,
    "aten.min.other": _MIN,
    "aten.nan_to_num.default": nan_to_num,
    "aten.round.decimals": round_decimals,
    "aten.special_round.default": round_decimals,
    "aten.round.default": rounding("round_nearest_even"),
    "aten.sgn.default": sign,
    "aten.sign.default": sign,
    "aten.square.default": square,
    "aten.trunc.default": _truncated,
}

"""Random draws: uniform and normal numbers, dropout, samples of distributions.

The distributions are PyTorch's, the bits are not: they follow from the program's generator
(`draws.py`), Threefry's 64 for each element, and are the same on every target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.types import F32, F64, I1, I32, I64, UI64, ElementType, TensorType
from ..context import Blocked, Context, Number, Operand, static
from ..draws import drawn
from .running import running_of
from .sorting import sorted_along

_DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Of a uniform number: as many as PyTorch's have, so that all are exact."""


def bits(c: Context, dims: Sequence[Dim]) -> Value:
    """Random ui64, other ones at each draw; as many as there may be where data decide a size."""
    origin = f"{c.node.origin[0]}: " if c.node.origin else ""
    name = c.node.target.split(".")[1] if c.node.target.startswith("aten.") else c.node.target
    c.notes.append(f"{origin}'{name}' draws random numbers, at each call other ones")
    most = [c.most(dim) for dim in dims]
    words = drawn(c.builder, c.stream.next(c.builder), TensorType(most, UI64))
    for axis, dim in enumerate(dims):
        words = c.slice(words, axis, 0, dim)
    return words


def _leading(c: Context, words: Value, digits: int, real: ElementType) -> Value:
    """The first bits of words as whole numbers of `real`."""
    words = c("shift_right_logical", words, c.full(64 - digits, words.dims, UI64))
    return c.convert(c.convert(words, I32 if digits < 32 else I64), real)


def uniform_of(c: Context, dims: Sequence[Dim], element: ElementType) -> Value:
    """Numbers in [0, 1): multiples of 2**-digits, in f64, or in f32 for smaller types."""
    digits, real = _DIGITS.get(element.name, 24), F64 if element is F64 else F32
    return c.multiply(_leading(c, bits(c, dims), digits, real), 2.0**-digits)


def above_zero(c: Context, dims: Sequence[Dim], real: ElementType) -> Value:
    """Numbers in (0, 1], for logarithms."""
    return c.subtract(1, uniform_of(c, dims, real))


def normal_of(c: Context, dims: Sequence[Dim], element: ElementType) -> Value:
    """Normal numbers of mean 0 and deviation 1, as `uniform_of`; by the inverse of their
    distribution."""
    digits, real = (52, F64) if element is F64 else (23, F32)
    places = _leading(c, bits(c, dims), digits, real)
    inside = c.subtract(c.multiply(c.add(places, 0.5), 2.0 ** (1 - digits)), 1)  # of (-1, 1)
    return c.multiply(c("chlo.erf_inv", inside), math.sqrt(2))


def real_of(element: ElementType) -> ElementType:
    """What samples of a type are computed in."""
    return F64 if element is F64 else F32


def _like(c: Context, value: Operand) -> Value:
    """A parameter of a distribution, spread over the result."""
    return c.fill(value, TensorType(c.dims, real_of(c.element)))


# Uniform, normal and whole numbers.


def _complex(c: Context, draw: Callable[[Context, ElementType], Value]) -> Value:
    """A draw for the real part, and one for the imaginary part of a complex result."""
    if not c.element.is_complex:
        return c.convert(draw(c, c.element), c.element)
    half = F64 if c.element.bits == 128 else F32
    return c("complex", draw(c, half), draw(c, half))


def rand(c: Context, *args: Any, **kwargs: Any) -> Value:
    """rand, rand_like: the declared result says all."""
    return _complex(c, lambda c, element: uniform_of(c, c.dims, element))


def randn(c: Context, *args: Any, **kwargs: Any) -> Value:
    """randn, randn_like; half of the variance is a complex number's real part's."""
    result = _complex(c, lambda c, element: normal_of(c, c.dims, element))
    return c.multiply(result, math.sqrt(0.5)) if c.element.is_complex else result


def uniform(c: Context, self: Value, *ends: Number, **named: Any) -> Value:
    """uniform_(from=0, to=1); rounding never gives `to`."""
    low, high = (*ends, *([named.get("from", 0.0), named.get("to", 1.0)][len(ends) :]))[:2]
    start, end = (_complex_part(c, value) for value in (low, high))

    def draw(c: Context, element: ElementType) -> Value:
        share = uniform_of(c, c.dims, element)
        value = c.convert(c.add(c.multiply(share, end - start), start), element)
        return c.select(c.compare("LT", value, end), value, start) if end > start else value

    return _complex(c, draw)


def _complex_part(c: Context, value: Any) -> float:
    if isinstance(value, (Value, SymbolicDim)):
        raise Blocked("draws between numbers that the program computes", "scale torch.rand(...)")
    return float(value)


def _whole(c: Context, low: Operand, high: Operand) -> Value:
    """Whole numbers in [low, high)."""
    words = bits(c, c.dims)
    if isinstance(low, int) and isinstance(high, int) and high - low < 1 << 32:
        if high <= low:
            raise Blocked(f"draws whole numbers from {low} to below {high}")
        upper = c("shift_right_logical", words, c.full(32, words.dims, UI64))
        scaled = c.multiply(upper, high - low)
        rest = c("shift_right_logical", scaled, c.full(32, words.dims, UI64))
        return c.convert(c.add(c.convert(rest, I64), low), c.element)
    start, end = (c.fill(value, TensorType(words.dims, I64)) for value in (low, high))
    span = c.convert(c("subtract", end, start), UI64)
    rest = c.convert(c("remainder", words, span), I64)
    return c.convert(c("add", rest, start), c.element)


def randint(c: Context, high: Operand, size: Any, **kwargs: Any) -> Value:
    return _whole(c, 0, high)


def randint_from(c: Context, low: Operand, high: Operand, size: Any, **kwargs: Any) -> Value:
    return _whole(c, low, high)


def randint_like(c: Context, self: Value, high: Operand, **kwargs: Any) -> Value:
    return _whole(c, 0, c.builder.reshape(high, ()) if isinstance(high, Value) else high)


def randint_like_from(c: Context, self: Value, low: Operand, high: Operand, **kwargs: Any) -> Value:
    low, high = (c.builder.reshape(x, ()) if isinstance(x, Value) else x for x in (low, high))
    return _whole(c, low, high)


def random(c: Context, self: Value, *ends: Any, **named: Any) -> Value:
    """random_(from, to): whole numbers, by default all that the type has exactly."""
    given: list[Any] = [*ends, *(named[name] for name in ("from", "to") if name in named)]
    if given and given[-1] is not None:
        return _whole(c, given[0] if len(given) > 1 else 0, given[-1])
    digits = {"i1": 1, "f32": 24, "f64": 53, "f16": 11, "bf16": 8, "i64": 63, "ui8": 8}.get(
        c.element.name, c.element.bits - 1
    )
    if c.element.is_float:
        digits += 1  # 2 ** digits is exact, too
        return c.convert(_whole(c, 0, (1 << (digits - 1)) + 1), c.element)
    words = c(
        "shift_right_logical", words := bits(c, c.dims), c.full(64 - digits, words.dims, UI64)
    )
    return c.convert(words, c.element)


def randperm(c: Context, n: Dim, **kwargs: Any) -> Value:
    """0 to n - 1 in the order of random keys."""
    return c.convert(sorted_along(c, bits(c, c.dims), 0, False)[1], c.element)


def normal(c: Context, self: Value, mean: Any = 0.0, std: Any = 1.0, **kwargs: Any) -> Value:
    """normal_(mean, std) and normal_functional."""
    return normal_between(c, mean, std)


def normal_between(
    c: Context, mean: Any, std: Operand = 1.0, size: Any = None, **kwargs: Any
) -> Value:
    """torch.normal of tensors, or of numbers and a size. Each part of a complex number has half of
    the variance, and a mean that is a number itself."""
    if not c.element.is_complex:
        return c.convert(_normal(c, mean, std, c.element), c.element)
    half = F64 if c.element.bits == 128 else F32
    spread = c.multiply(c.fill(std, TensorType(c.dims, half)), math.sqrt(0.5))
    middle = 0.0 if isinstance(mean, Value) else mean
    result = c("complex", *(_normal(c, middle, spread, half) for _ in range(2)))
    return c("add", result, c.fill(mean, c.type)) if isinstance(mean, Value) else result


def _normal(c: Context, mean: Operand, std: Operand, element: ElementType) -> Value:
    kind = TensorType(c.dims, real_of(element))
    scaled = c("multiply", normal_of(c, c.dims, element), c.fill(std, kind))
    return c("add", scaled, c.fill(mean, kind))


# Distributions.


def bernoulli(c: Context, self: Value, *args: Any, **kwargs: Any) -> Value:
    """1 with the probability that each element is."""
    return c.convert(holds(c, self), c.element)


def bernoulli_by(c: Context, self: Value, p: Operand = 0.5, **kwargs: Any) -> Value:
    """1 with probability p."""
    return c.convert(holds(c, p), c.element)


def holds(c: Context, probability: Operand, dims: Sequence[Dim] | None = None) -> Value:
    """i1: true with a probability."""
    dims = c.dims if dims is None else dims
    is_wide = isinstance(probability, Value) and probability.element is F64
    share = uniform_of(c, dims, F64 if is_wide else F32)
    return c.builder.compare("LT", share, c.fill(probability, share.tensor))


def exponential(c: Context, self: Value, lambd: Number = 1.0, **kwargs: Any) -> Value:
    return c.convert(c.divide(exponential_of(c, c.dims, c.element), lambd), c.element)


def exponential_of(c: Context, dims: Sequence[Dim], element: ElementType) -> Value:
    """-log of numbers in (0, 1), so that none is 0, which others divide by."""
    digits, real = (52, F64) if element is F64 else (23, F32)
    places = _leading(c, bits(c, dims), digits, real)
    return c("negate", c("log", c.multiply(c.add(places, 0.5), 2.0**-digits)))


def cauchy(
    c: Context, self: Value, median: Number = 0.0, sigma: Number = 1.0, **kwargs: Any
) -> Value:
    angle = c.multiply(c.subtract(uniform_of(c, c.dims, real_of(c.element)), 0.5), math.pi)
    return c.convert(c.add(c.multiply(c("tan", angle), sigma), median), c.element)


def log_normal(
    c: Context, self: Value, mean: Number = 1.0, std: Number = 2.0, **kwargs: Any
) -> Value:
    return c.convert(c("exponential", _normal(c, mean, std, real_of(c.element))), c.element)


def geometric(c: Context, self: Value, p: Number, **kwargs: Any) -> Value:
    """How many trials the first success of probability p takes: 1, 2, ..."""
    real = F64 if c.element.is_integer else real_of(c.element)
    if p == 1:
        return c.full(1, c.dims, c.element)
    trials = c.divide(c("log", above_zero(c, c.dims, real)), math.log1p(-float(p)))  # type: ignore[arg-type]
    return c.convert(c.binary("maximum", c("ceil", trials), 1), c.element)


def multinomial(
    c: Context, self: Value, num_samples: int, replacement: bool = False, **kwargs: Any
) -> Value:
    """Positions along the last dimension, with probabilities in proportion to its elements."""
    weights = c.convert(self, real_of(self.element))
    axis = self.rank - 1
    if not replacement:  # those whose exponentially distributed times are over first
        times = c("divide", exponential_of(c, self.dims, weights.element), weights)
        return c.slice(sorted_along(c, times, axis, False)[1], axis, 0, num_samples)
    sums = running_of(c, "add", weights, axis)
    total = c.slice(sums, axis, static(self.dims[axis]) - 1, static(self.dims[axis]))
    point = c("multiply", uniform_of(c, c.dims, weights.element), c.spread(total, c.dims))
    wide = (*c.dims, self.dims[axis])
    lead = list(range(axis))
    below = c.builder.compare(
        "LE",
        c.builder.broadcast(sums, wide, [*lead, axis + 1]),
        c.builder.broadcast(point, wide, [*lead, axis]),
    )
    count = c.reduce("add", c.convert(below, I64), [axis + 1])
    last = c.reduce("maximum", _where_positive(c, weights), [axis])  # rounding may pass by the end
    last = c.along(last, c.dims, [axis])
    return c("minimum", count, last)


def _where_positive(c: Context, weights: Value) -> Value:
    """The position of each element of the last dimension, 0 where it is not positive."""
    return c.select(c.compare("GT", weights, 0.0), c.iota(weights.dims, weights.rank - 1), 0)


# Dropout.


def _kept(c: Context, x: Value, p: float, dims: Sequence[Dim]) -> Value:
    """Which elements stay, [dims] with ones where one draw serves a whole dimension."""
    return c.spread(holds(c, 1 - p, dims), x.dims)


def _per_feature(x: Value) -> list[Dim]:
    if x.rank < 2:
        raise Blocked("drops features of a tensor without them", "give it 2 or more dimensions")
    return [*x.dims[:2], *[1] * (x.rank - 2)]


def _dropped(c: Context, x: Value, p: float, kept: Value) -> Value:
    """x / (1 - p) where it is kept, else zero."""
    if p == 1:
        return c.multiply(x, 0)
    scaled = c.convert(c.divide(c.wide(x), 1 - p), x.element)
    return c.select(kept, scaled, 0)


def dropped(c: Context, x: Value, p: float) -> Value:
    """Zeros with probability p; the rest is scaled so that the mean stays."""
    return _dropped(c, x, p, _kept(c, x, p, x.dims))


def dropout(by_feature: bool) -> Callable[..., Value]:
    """dropout and feature_dropout; the input itself in eval mode."""

    def lower(c: Context, input: Value, p: float, train: bool | None) -> Value:
        if not train or not p:
            return input
        dims = _per_feature(input) if by_feature else input.dims
        return _dropped(c, input, p, _kept(c, input, p, dims))

    return lower


def native_dropout(c: Context, input: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """The result, and where it is kept."""
    if train is False or not p:
        return input, c.full(True, input.dims, I1)
    kept = _kept(c, input, p, input.dims)
    return _dropped(c, input, p, kept), kept


def native_dropout_backward(c: Context, grad_output: Value, mask: Value, scale: float) -> Value:
    return c.select(mask, c.narrow(c.multiply(c.wide(grad_output), scale)), 0)


_SELU = 1.7580993408473766  # scale * alpha: minus the value that stands for what is dropped


def alpha_dropout(by_feature: bool) -> Callable[..., Value]:
    """What is dropped becomes selu(-inf); the result is scaled so that mean and variance stay."""

    def lower(c: Context, input: Value, p: float, train: bool | None) -> Value:
        if not train or not p:
            return input
        if p == 1:
            return c.multiply(input, 0)
        kept = _kept(c, input, p, _per_feature(input) if by_feature else input.dims)
        a = 1 / math.sqrt((_SELU * _SELU * p + 1) * (1 - p))
        x = c.select(kept, c.wide(input), -_SELU)
        return c.narrow(c.add(c.multiply(x, a), a * _SELU * p))

    return lower


def rrelu(
    c: Context, self: Value, lower: Number = 1 / 8, upper: Number = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Value:  # fmt: skip
    """x, or x times a slope where it is not positive: a random one in training, else the middle."""
    return _rrelu(c, self, lower, upper, training)[0]


def rrelu_with_noise(
    c: Context, self: Value, noise: Value, lower: Number = 1 / 8, upper: Number = 1 / 3,
    training: bool = False, generator: Any = None,
) -> tuple[Value, Value]:  # fmt: skip
    """The result, and the slopes, 1 where it is positive."""
    result, slopes = _rrelu(c, self, lower, upper, training)
    return result, c.convert(slopes, noise.element) if training else noise


def _rrelu(c: Context, self: Value, lower: Any, upper: Any, training: bool) -> tuple[Value, Value]:
    x = c.wide(self)
    if training:
        slopes = c.add(c.multiply(uniform_of(c, x.dims, x.element), upper - lower), lower)
    else:
        slopes = c.full((lower + upper) / 2, x.dims, x.element)
    slopes = c.select(c.compare("LE", x, 0.0), slopes, 1.0)
    return c.narrow(c("multiply", x, slopes)), slopes


TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}{end}.default": body
       for name, body in (("dropout", dropout(False)), ("feature_dropout", dropout(True)),
                          ("alpha_dropout", alpha_dropout(False)),
                          ("feature_alpha_dropout", alpha_dropout(True)))
       for end in ("", "_")},
    "aten.bernoulli.Tensor": bernoulli_by,
    "aten.bernoulli.default": bernoulli,
    "aten.bernoulli.float": bernoulli_by,
    "aten.bernoulli.p": bernoulli_by,
    "aten.cauchy.default": cauchy,
    "aten.exponential.default": exponential,
    "aten.geometric.default": geometric,
    "aten.log_normal.default": log_normal,
    "aten.multinomial.default": multinomial,
    "aten.native_dropout.default": native_dropout,
    "aten.native_dropout_backward.default": native_dropout_backward,
    "aten.normal.Tensor_Tensor": normal_between,
    "aten.normal.Tensor_float": normal_between,
    "aten.normal.default": normal,
    "aten.normal.float_Tensor": normal_between,
    "aten.normal.float_float": normal_between,
    "aten.normal_functional.default": normal,
    "aten.rand.default": rand,
    "aten.rand_like.default": rand,
    "aten.randint.default": randint,
    "aten.randint.low": randint_from,
    "aten.randint_like.Tensor": randint_like,
    "aten.randint_like.default": randint_like,
    "aten.randint_like.low_dtype": randint_like_from,
    "aten.randn.default": randn,
    "aten.randn_like.default": randn,
    "aten.random.default": random,
    "aten.random.from": random,
    "aten.random.to": random,
    "aten.randperm.default": randperm,
    "aten.rrelu.default": rrelu,
    "aten.rrelu_with_noise_functional.default": rrelu_with_noise,
    "aten.uniform.default": uniform,
}  # fmt: skip

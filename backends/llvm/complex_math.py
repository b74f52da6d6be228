"""Arithmetic on complex registers, by parts. Functions of complex<f32> are computed in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import Function, Value, circular, constant, math
from .elements import Pair, Register

LOG_2 = 0.6931471805599453
# Of f64: where sums of parts overflow or parts lose bits, and by how much they are shifted then.
HUGE, TINY, SHIFT = 2.0**1020, 2.0**-1000, 64
# Where squares of parts overflow or lose bits.
ROOT_HUGE, ROOT_TINY = 2.0**500, 2.0**-480


def apply(f: Function, name: str, operands: Sequence[Register]) -> Register | None:
    """The operation on complex (or, for `abs`, to real) registers; None if there is no code."""
    pairs = [value for value in operands if isinstance(value, Pair)]
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain(f, *pairs)
    rule = _WIDE.get(name)
    if rule is None:
        return None
    narrow = pairs[0].real.element == "float"
    if narrow:
        pairs = [Pair(*(f.cast("fpext", part, "double") for part in pair)) for pair in pairs]
    result = rule(f, *pairs)
    if not narrow:
        return result
    if isinstance(result, Pair):
        return Pair(*(f.cast("fptrunc", part, "float") for part in result))
    return f.cast("fptrunc", result, "float")


def _add(f: Function, x: Pair, y: Pair) -> Pair:
    return Pair(f.add(x[0], y[0]), f.add(x[1], y[1]))


def _subtract(f: Function, x: Pair, y: Pair) -> Pair:
    return Pair(f.sub(x[0], y[0]), f.sub(x[1], y[1]))


def _multiply(f: Function, x: Pair, y: Pair) -> Pair:
    real = f.sub(f.mul(x[0], y[0]), f.mul(x[1], y[1]))
    return Pair(real, f.add(f.mul(x[0], y[1]), f.mul(x[1], y[0])))


def _extreme(predicate: str) -> Callable[..., Pair]:
    def emit(f: Function, x: Pair, y: Pair) -> Pair:
        """The first or last in lexicographic order; x if it holds a NaN."""
        tie = f.land(f.compare("oeq", x[0], y[0]), f.compare(predicate, x[1], y[1]))
        better = f.lor(f.compare(predicate, x[0], y[0]), tie)
        same = f.land(f.compare("oeq", x[0], y[0]), f.compare("oeq", x[1], y[1]))
        keep = f.lor(f.lor(better, same), f.compare("uno", x[0], x[1]))
        return Pair(f.select(keep, x[0], y[0]), f.select(keep, x[1], y[1]))

    return emit


def _negate(f: Function, x: Pair) -> Pair:
    return Pair(f.neg(x[0]), f.neg(x[1]))


def _size(f: Function, x: Pair) -> Value:
    """The modulus, without overflow in between."""
    a, b = (f.intrinsic("llvm.fabs", part.type, part) for part in x)
    swap = f.compare("ogt", b, a)
    large, small = f.select(swap, b, a), f.select(swap, a, b)
    ratio = f.select(f.compare("oeq", large, 0.0), 0.0, f.div(small, large))
    size = f.mul(large, math.sqrt(f, f.fma(ratio, ratio, constant(ratio.type, 1.0))))
    infinite = f.compare("oeq", large, float("inf"))
    return f.select(infinite, large, f.select(f.compare("uno", a, b), float("nan"), size))


def _divide(f: Function, x: Pair, y: Pair) -> Pair:
    """Smith's way: the divisor is scaled by its larger part."""
    size_real, size_imaginary = (f.intrinsic("llvm.fabs", part.type, part) for part in y)
    flat = f.compare("oge", size_real, size_imaginary)
    large, small = f.select(flat, y[0], y[1]), f.select(flat, y[1], y[0])
    ratio = f.div(small, large)
    ratio = f.select(f.compare("oeq", large, 0.0), small, ratio)
    divisor = f.fma(small, ratio, large)
    first, second = f.select(flat, x[0], x[1]), f.select(flat, x[1], x[0])
    real = f.div(f.fma(second, ratio, first), divisor)
    up = f.sub(x[1], f.mul(x[0], ratio))
    down = f.sub(f.mul(x[1], ratio), x[0])
    return Pair(real, f.div(f.select(flat, up, down), divisor))


def _exp(f: Function, x: Pair) -> Pair:
    size = math.exp(f, x[0])
    zero = f.compare("oeq", x[1], 0.0)
    return Pair(
        f.select(zero, size, f.mul(size, circular.cos(f, x[1]))),
        f.select(zero, x[1], f.mul(size, circular.sin(f, x[1]))),
    )


def _log(f: Function, x: Pair) -> Pair:
    """log |x| + i angle; parts that are huge or subnormal are brought near one first."""
    large, small = _ordered(f, x)
    factor, back = _rescaling(f, large)
    a, b = f.mul(large, factor), f.mul(small, factor)
    far = f.add(math.log(f, _size(f, Pair(a, b))), f.mul(back, LOG_2))
    # Near one: log1p(|x|^2 - 1) / 2.
    excess = f.fma(b, b, f.mul(f.sub(a, 1.0), f.add(a, 1.0)))
    near = f.mul(math.log1p(f, excess), 0.5)
    close = f.compare("olt", f.intrinsic("llvm.fabs", excess.type, excess), 0.5)
    return Pair(f.select(close, near, far), circular.atan2(f, x[1], x[0]))


def _ordered(f: Function, x: Pair) -> tuple[Value, Value]:
    """The larger and the smaller magnitude of the parts."""
    a, b = (f.intrinsic("llvm.fabs", part.type, part) for part in x)
    swap = f.compare("ogt", b, a)
    return f.select(swap, b, a), f.select(swap, a, b)


def _rescaling(f: Function, large: Value) -> tuple[Value, Value]:
    """(factor, n): `large * factor` is neither huge nor subnormal, and factor * 2^n = 1."""
    huge, tiny = f.compare("ogt", large, HUGE), f.compare("olt", large, TINY)
    factor = f.select(huge, 2.0**-SHIFT, f.select(tiny, constant(large.type, 2.0**SHIFT), 1.0))
    exponent = f.select(huge, SHIFT, f.select(tiny, constant(large.type, -SHIFT), 0.0))
    return factor, exponent


def _one(f: Function, x: Pair, sign: float = 1.0) -> Pair:
    return Pair(f.add(x[0], sign), x[1])


def _log1p(f: Function, x: Pair) -> Pair:
    """|1 + x|^2 - 1 = 2 re + re^2 + im^2."""
    square = f.fma(x[0], x[0], f.fma(x[1], x[1], f.mul(x[0], 2.0)))
    near = f.mul(math.log1p(f, square), 0.5)
    far, angle = _log(f, _one(f, x))
    small = f.compare("olt", f.intrinsic("llvm.fabs", square.type, square), 0.5)
    return Pair(f.select(small, near, far), angle)


def _expm1(f: Function, x: Pair) -> Pair:
    """e^re cos im - 1 = (e^re - 1) cos im - 2 sin(im / 2)^2."""
    half = circular.sin(f, f.mul(x[1], 0.5))
    real = f.sub(f.mul(math.expm1(f, x[0]), circular.cos(f, x[1])), f.mul(f.mul(half, half), 2.0))
    imaginary = f.mul(math.exp(f, x[0]), circular.sin(f, x[1]))
    return Pair(real, f.select(f.compare("oeq", x[1], 0.0), x[1], imaginary))


def _sqrt(f: Function, x: Pair) -> Pair:
    large, small = _ordered(f, x)
    factor, back = _rescaling(f, large)
    scaled = Pair(f.mul(x[0], factor), f.mul(x[1], factor))
    size = _size(f, scaled)
    half = f.mul(f.add(f.intrinsic("llvm.fabs", size.type, scaled[0]), size), 0.5)
    root = math.sqrt(f, half)
    other = f.div(f.intrinsic("llvm.fabs", size.type, scaled[1]), f.mul(root, 2.0))
    # x[0] = 0 alone gives a root of zero, and an infinite part no quotient.
    infinite = f.compare("oeq", large, float("inf"))
    both = f.compare("oeq", f.intrinsic("llvm.fabs", size.type, x[1]), float("inf"))
    rest = f.select(both, constant(size.type, float("inf")), 0.0)
    rest = f.select(f.compare("uno", small, small), float("nan"), rest)
    other = f.select(infinite, rest, f.select(f.compare("oeq", root, 0.0), 0.0, other))
    grown = f.select(
        f.compare("ogt", back, 0.0),
        2.0 ** (SHIFT // 2),
        f.select(f.compare("olt", back, 0.0), constant(size.type, 2.0 ** -(SHIFT // 2)), 1.0),
    )
    root, other = f.mul(root, grown), f.mul(other, grown)
    right = f.compare("oge", x[0], 0.0)
    real, imaginary = f.select(right, root, other), f.select(right, other, root)
    return Pair(real, f.intrinsic("llvm.copysign", size.type, imaginary, x[1]))


def _hyperbolic(f: Function, x: Value) -> tuple[Value, Value]:
    """(sinh, cosh)."""
    size = f.intrinsic("llvm.fabs", x.type, x)
    t = math.expm1(f, size)
    inverse = f.div(t, f.add(t, 1.0))
    infinite = f.compare("oeq", t, float("inf"))
    inverse = f.select(infinite, 1.0, inverse)
    sinh = f.mul(f.add(t, inverse), 0.5)
    cosh = f.add(f.mul(f.sub(t, inverse), 0.5), 1.0)
    return f.intrinsic("llvm.copysign", x.type, sinh, x), cosh


def _sine(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[1])
    return Pair(f.mul(circular.sin(f, x[0]), cosh), f.mul(circular.cos(f, x[0]), sinh))


def _cosine(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[1])
    return Pair(f.mul(circular.cos(f, x[0]), cosh), f.neg(f.mul(circular.sin(f, x[0]), sinh)))


def _tanh(f: Function, x: Pair) -> Pair:
    """(t (1 + s^2) + i s (1 - t^2)) / (1 + t^2 s^2) with t = tanh re, s = tan im."""
    t, s = math.tanh(f, x[0]), circular.tan(f, x[1])
    cosh_squared = f.fma(s, s, constant(s.type, 1.0))
    _, cosh = _hyperbolic(f, x[0])
    rest = f.div(1.0, f.mul(cosh, cosh))
    product = f.mul(t, s)
    divisor = f.fma(product, product, constant(s.type, 1.0))
    return Pair(f.div(f.mul(t, cosh_squared), divisor), f.div(f.mul(s, rest), divisor))


def _tan(f: Function, x: Pair) -> Pair:
    rotated = _tanh(f, Pair(f.neg(x[1]), x[0]))
    return Pair(rotated[1], f.neg(rotated[0]))


def _reciprocal(f: Function, x: Pair) -> Pair:
    kind = x[0].type
    return _divide(f, Pair(constant(kind, 1.0), constant(kind, 0.0)), x)


def _logistic(f: Function, x: Pair) -> Pair:
    return _reciprocal(f, _one(f, _exp(f, _negate(f, x))))


def _power(f: Function, x: Pair, y: Pair) -> Pair:
    value = _exp(f, _multiply(f, y, _log(f, x)))
    zero = f.land(f.compare("oeq", x[0], 0.0), f.compare("oeq", x[1], 0.0))
    none = f.land(f.compare("oeq", y[0], 0.0), f.compare("oeq", y[1], 0.0))
    # Zero to a power: zero where the real part is positive, else undefined.
    limit = f.select(f.compare("ogt", y[0], 0.0), constant(x[0].type, 0.0), float("nan"))
    real = f.select(none, 1.0, f.select(zero, limit, value[0]))
    return Pair(real, f.select(none, 0.0, f.select(zero, limit, value[1])))


def _cbrt(f: Function, x: Pair) -> Pair:
    kind = x[0].type
    return _power(f, x, Pair(constant(kind, 1 / 3), constant(kind, 0.0)))


def _sign(f: Function, x: Pair) -> Pair:
    size = _size(f, x)
    zero = f.compare("oeq", size, 0.0)
    return Pair(*(f.select(zero, part, f.div(part, size)) for part in x))


def _atan2(f: Function, x: Pair, y: Pair) -> Pair:
    """-i log((y + i x) / sqrt(x^2 + y^2))."""
    length = _sqrt(f, _add(f, _multiply(f, x, x), _multiply(f, y, y)))
    rotated = Pair(f.add(y[0], f.sub(0.0, x[1])), f.add(y[1], x[0]))
    value = _log(f, _divide(f, rotated, length))
    return Pair(value[1], f.neg(value[0]))


def _sinh(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[0])
    real = f.compare("oeq", x[1], 0.0)  # also where cosh is infinite
    imaginary = f.select(real, x[1], f.mul(cosh, circular.sin(f, x[1])))
    return Pair(f.mul(sinh, circular.cos(f, x[1])), imaginary)


def _cosh(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[0])
    real = f.compare("oeq", x[1], 0.0)
    zero = f.mul(_signed(f, constant(sinh.type, 1.0), sinh), x[1])
    imaginary = f.select(real, zero, f.mul(sinh, circular.sin(f, x[1])))
    return Pair(f.mul(cosh, circular.cos(f, x[1])), imaginary)


def _square(f: Function, x: Pair) -> Pair:
    """re = (x + y)(x - y), which neither overflows early nor cancels; im = 2 x y."""
    a, b = (f.intrinsic("llvm.fabs", part.type, part) for part in x)
    same = f.land(f.compare("oeq", a, b), f.compare("one", a, float("inf")))
    real = f.mul(f.add(x[0], x[1]), f.sub(x[0], x[1]))
    return Pair(f.select(same, 0.0, real), f.mul(f.mul(x[0], x[1]), 2.0))


def _arc(f: Function, x: Value, y: Value) -> tuple[Value, Value]:
    """(w, t) for x, y >= 0: asin(x + iy) = atan2(x, w) + it, acos(x + iy) = atan2(w, x) - it.

    Hull, Fairgrieve and Tang, "Implementing the complex arcsine and arccosine functions using
    exception handling", ACM TOMS 23 (1997).
    """
    above, beyond = f.add(x, 1.0), f.sub(x, 1.0)
    r, s = _size(f, Pair(above, y)), _size(f, Pair(beyond, y))
    a = f.mul(f.add(r, s), 0.5)
    half = f.mul(f.add(a, x), 0.5)
    square = f.mul(y, y)
    outside = f.compare("oge", x, 1.0)
    first = f.div(square, f.add(r, above))
    plus, minus = f.add(s, beyond), f.sub(s, beyond)
    # plus * minus = y^2: each is taken where it does not cancel.
    w_inside = math.sqrt(f, f.mul(half, f.add(first, minus)))
    quotients = f.add(f.div(half, f.add(r, above)), f.div(half, plus))
    w = f.select(outside, f.mul(y, math.sqrt(f, quotients)), w_inside)
    # x = 1 and y = 0 leave 0 / 0.
    w = f.select(f.land(f.compare("oeq", plus, 0.0), outside), 0.0, w)
    rest = f.select(outside, plus, f.div(square, minus))
    excess = f.mul(f.add(first, rest), 0.5)
    near = math.log1p(f, f.add(excess, math.sqrt(f, f.mul(excess, f.add(a, 1.0)))))
    far = math.log(f, f.add(a, math.sqrt(f, f.mul(f.sub(a, 1.0), f.add(a, 1.0)))))
    t = f.select(f.compare("olt", a, 1.5), near, far)
    # A tiny y has no square.
    flat = f.div(y, math.sqrt(f, f.mul(f.sub(1.0, x), above)))
    inside = f.land(f.compare("olt", x, 1.0), f.compare("olt", y, ROOT_TINY))
    t = f.select(inside, flat, t)
    # Huge parts have no square either: w = y and t = log 2|z|.
    large, _ = _ordered(f, Pair(x, y))
    huge = f.compare("oge", large, ROOT_HUGE)
    logarithm = f.add(_log(f, Pair(x, y))[0], LOG_2)
    infinite = f.compare("oeq", large, float("inf"))
    logarithm = f.select(infinite, constant(x.type, float("inf")), logarithm)
    return f.select(huge, y, w), f.select(huge, logarithm, t)


def _sizes(f: Function, x: Pair) -> tuple[Value, Value]:
    return (
        f.intrinsic("llvm.fabs", x[0].type, x[0]),
        f.intrinsic("llvm.fabs", x[1].type, x[1]),
    )


def _signed(f: Function, size: Value, like: Value) -> Value:
    return f.intrinsic("llvm.copysign", size.type, size, like)


def _asin(f: Function, x: Pair) -> Pair:
    a, b = _sizes(f, x)
    w, t = _arc(f, a, b)
    return Pair(_signed(f, circular.atan2(f, a, w), x[0]), _signed(f, t, x[1]))


def _acos(f: Function, x: Pair) -> Pair:
    w, t = _arc(f, *_sizes(f, x))
    return Pair(circular.atan2(f, w, x[0]), f.neg(_signed(f, t, x[1])))


def _asinh(f: Function, x: Pair) -> Pair:
    """i asin(-i x)."""
    a, b = _sizes(f, x)
    w, t = _arc(f, b, a)
    return Pair(_signed(f, t, x[0]), _signed(f, circular.atan2(f, b, w), x[1]))


def _acosh(f: Function, x: Pair) -> Pair:
    """i acos(x) or -i acos(x), whichever has a positive real part."""
    w, t = _arc(f, *_sizes(f, x))
    return Pair(t, _signed(f, circular.atan2(f, w, x[0]), x[1]))


def _atanh_sizes(f: Function, x: Value, y: Value) -> tuple[Value, Value]:
    """The parts of atanh(x + iy) for x, y >= 0:
    log1p(4x / ((1 - x)^2 + y^2)) / 4 and atan2(2y, (1 - x)(1 + x) - y^2) / 2."""
    gap, square = f.sub(1.0, x), f.mul(y, y)
    ratio = f.div(f.mul(x, 4.0), f.fma(gap, gap, square))
    real = f.mul(math.log1p(f, ratio), 0.25)
    angle = circular.atan2(f, f.mul(y, 2.0), f.sub(f.mul(gap, f.add(x, 1.0)), square))
    imaginary = f.mul(angle, 0.5)
    # x = 1: log(2 / y) / 2, as a tiny y has no square.
    pole = f.land(f.compare("oeq", gap, 0.0), f.compare("olt", y, ROOT_TINY))
    real = f.select(pole, f.mul(f.sub(LOG_2, math.log(f, y)), 0.5), real)
    # Huge parts: x / (x^2 + y^2) and pi / 2.
    large, _ = _ordered(f, Pair(x, y))
    huge = f.compare("oge", large, ROOT_HUGE)
    a, b = f.div(x, large), f.div(y, large)
    small = f.div(f.div(a, f.fma(a, a, f.mul(b, b))), large)
    small = f.select(f.compare("oeq", large, float("inf")), 0.0, small)
    return f.select(huge, small, real), f.select(huge, 1.5707963267948966, imaginary)


def _atanh(f: Function, x: Pair) -> Pair:
    real, imaginary = _atanh_sizes(f, *_sizes(f, x))
    return Pair(_signed(f, real, x[0]), _signed(f, imaginary, x[1]))


def _atan(f: Function, x: Pair) -> Pair:
    """-i atanh(i x)."""
    a, b = _sizes(f, x)
    real, imaginary = _atanh_sizes(f, b, a)
    return Pair(_signed(f, imaginary, x[0]), _signed(f, real, x[1]))


_PLAIN: dict[str, Callable[..., Register]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "negate": _negate,
    "square": _square,
    "maximum": _extreme("ogt"),
    "minimum": _extreme("olt"),
}

_WIDE: dict[str, Callable[..., Register]] = {
    "divide": _divide,
    "abs": _size,
    "sign": _sign,
    "exponential": _exp,
    "exponential_minus_one": _expm1,
    "log": _log,
    "log_plus_one": _log1p,
    "logistic": _logistic,
    "sqrt": _sqrt,
    "rsqrt": lambda f, x: _reciprocal(f, _sqrt(f, x)),
    "cbrt": _cbrt,
    "sine": _sine,
    "cosine": _cosine,
    "tan": _tan,
    "tanh": _tanh,
    "power": _power,
    "atan2": _atan2,
    "sinh": _sinh,
    "cosh": _cosh,
    "asin": _asin,
    "acos": _acos,
    "atan": _atan,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
}

NAMES = frozenset((*_PLAIN, *_WIDE))

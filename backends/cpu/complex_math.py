"""Arithmetic on complex registers, by parts. Functions of complex<f32> are computed in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import circular, math
from .elements import Pair, Register
from .llvm import Function, Value, constant


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
    return Pair(math.log(f, _size(f, x)), circular.atan2(f, x[1], x[0]))


def _one(f: Function, x: Pair, sign: float = 1.0) -> Pair:
    return Pair(f.add(x[0], sign), x[1])


def _log1p(f: Function, x: Pair) -> Pair:
    """|1 + x|^2 - 1 = 2 re + re^2 + im^2."""
    square = f.fma(x[0], x[0], f.fma(x[1], x[1], f.mul(x[0], 2.0)))
    near = f.mul(math.log1p(f, square), 0.5)
    far = math.log(f, _size(f, _one(f, x)))
    small = f.compare("olt", f.intrinsic("llvm.fabs", square.type, square), 0.5)
    return Pair(f.select(small, near, far), circular.atan2(f, x[1], f.add(x[0], 1.0)))


def _expm1(f: Function, x: Pair) -> Pair:
    """e^re cos im - 1 = (e^re - 1) cos im - 2 sin(im / 2)^2."""
    half = circular.sin(f, f.mul(x[1], 0.5))
    real = f.sub(f.mul(math.expm1(f, x[0]), circular.cos(f, x[1])), f.mul(f.mul(half, half), 2.0))
    return Pair(real, f.mul(math.exp(f, x[0]), circular.sin(f, x[1])))


def _sqrt(f: Function, x: Pair) -> Pair:
    size = _size(f, x)
    root = math.sqrt(f, f.mul(f.add(f.intrinsic("llvm.fabs", size.type, x[0]), size), 0.5))
    other = f.div(f.intrinsic("llvm.fabs", size.type, x[1]), f.mul(root, 2.0))
    other = f.select(f.compare("oeq", root, 0.0), 0.0, other)
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
    turned = _tanh(f, Pair(f.neg(x[1]), x[0]))
    return Pair(turned[1], f.neg(turned[0]))


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
    turned = Pair(f.add(y[0], f.sub(0.0, x[1])), f.add(y[1], x[0]))
    value = _log(f, _divide(f, turned, length))
    return Pair(value[1], f.neg(value[0]))


def _sinh(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[0])
    return Pair(f.mul(sinh, circular.cos(f, x[1])), f.mul(cosh, circular.sin(f, x[1])))


def _cosh(f: Function, x: Pair) -> Pair:
    sinh, cosh = _hyperbolic(f, x[0])
    return Pair(f.mul(cosh, circular.cos(f, x[1])), f.mul(sinh, circular.sin(f, x[1])))


def _asinh(f: Function, x: Pair) -> Pair:
    """log(z + sqrt(z^2 + 1)) for re >= 0; odd."""
    size = f.intrinsic("llvm.fabs", x[0].type, x[0])
    left = f.compare("slt", math.bits(f, x[0]), 0)
    z = Pair(size, f.select(left, f.neg(x[1]), x[1]))
    value = _log(f, _add(f, z, _sqrt(f, _one(f, _multiply(f, z, z)))))
    return Pair(*(f.select(left, f.neg(part), part) for part in value))


def _asin(f: Function, x: Pair) -> Pair:
    value = _asinh(f, Pair(f.neg(x[1]), x[0]))
    return Pair(value[1], f.neg(value[0]))


def _acos(f: Function, x: Pair) -> Pair:
    value = _asin(f, x)
    return Pair(f.sub(1.5707963267948966, value[0]), f.neg(value[1]))


def _acosh(f: Function, x: Pair) -> Pair:
    root = _multiply(f, _sqrt(f, _one(f, x)), _sqrt(f, _one(f, x, -1.0)))
    return _log(f, _add(f, x, root))


def _atanh(f: Function, x: Pair) -> Pair:
    """(log(1 + z) - log(1 - z)) / 2."""
    value = _subtract(f, _log1p(f, x), _log1p(f, _negate(f, x)))
    return Pair(f.mul(value[0], 0.5), f.mul(value[1], 0.5))


def _atan(f: Function, x: Pair) -> Pair:
    value = _atanh(f, Pair(f.neg(x[1]), x[0]))
    return Pair(value[1], f.neg(value[0]))


_PLAIN: dict[str, Callable[..., Register]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "negate": _negate,
    "square": lambda f, x: _multiply(f, x, x),
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

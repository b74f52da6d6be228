"""Functions of floats as straight-line vector code: no calls, no tables, no branches but where said.

Every function takes and gives f32 or f64 registers of any width; other floats come here as f32.
Measured errors stand in specs/numerics.md (`benchmarks/math_ulp.py` measures them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from . import polynomials as p
from .llvm import Function, Value, bits_of, constant, vector

_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}
_INTEGER = {"float": "i32", "double": "i64"}
# ln 2 = high + low, high short enough that its product with an exponent is exact
_LN2 = {
    "float": (0.693145751953125, 1.4286068203094172e-06),
    "double": (0.6931471803691238, 1.9082149292705877e-10),
}


def _double(x: Value) -> bool:
    return x.element == "double"


def bits(f: Function, x: Value) -> Value:
    """The bits of floats as integers."""
    return f.bitcast(x, vector(x.lanes, _INTEGER[x.element]))


def _float(f: Function, raw: Value) -> Value:
    return f.bitcast(raw, vector(raw.lanes, "float" if bits_of(raw.type) == 32 else "double"))


def _abs(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.fabs", x.type, x)


def _copysign(f: Function, size: Value, sign: Value) -> Value:
    return f.intrinsic("llvm.copysign", size.type, size, sign)


def polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """sum(coefficients[i] * x**i)."""
    total = constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = f.fma(total, x, constant(x.type, coefficient))
    return total


# Rounding.


def _native_rounding(f: Function) -> bool:
    attributes = f.module.attributes
    return "+sse4.1" in attributes or "+neon" in attributes


def round_even(f: Function, x: Value) -> Value:
    """The nearest integer, ties to even."""
    if _native_rounding(f):
        return f.intrinsic("llvm.roundeven", x.type, x)
    shifter = constant(x.type, 2.0 ** _MANTISSA[x.element])
    size = _abs(f, x)
    near = _copysign(f, f.sub(f.add(size, shifter), shifter), x)
    return f.select(f.compare("olt", size, shifter), near, x)


def floor(f: Function, x: Value) -> Value:
    if _native_rounding(f):
        return f.intrinsic("llvm.floor", x.type, x)
    near = round_even(f, x)
    return _copysign(f, f.select(f.compare("ogt", near, x), f.sub(near, 1.0), near), x)


def ceil(f: Function, x: Value) -> Value:
    if _native_rounding(f):
        return f.intrinsic("llvm.ceil", x.type, x)
    near = round_even(f, x)
    return _copysign(f, f.select(f.compare("olt", near, x), f.add(near, 1.0), near), x)


def truncate(f: Function, x: Value) -> Value:
    """The integer next to x towards zero."""
    if _native_rounding(f):
        return f.intrinsic("llvm.trunc", x.type, x)
    return _copysign(f, floor(f, _abs(f, x)), x)


def round_away(f: Function, x: Value) -> Value:
    """The nearest integer, ties away from zero."""
    whole = truncate(f, x)
    away = f.add(whole, _copysign(f, constant(x.type, 1.0), x))
    far = f.compare("oge", _abs(f, f.sub(x, whole)), 0.5)
    return f.select(far, away, whole)


def sqrt(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.sqrt", x.type, x)


# Exponentials: x = n ln 2 + r, exp(x) = 2^n exp(r).


def _limited(f: Function, x: Value, low: float, high: float) -> Value:
    """x in [low, high]; NaN stays."""
    x = f.select(f.compare("ogt", x, high), high, x)
    return f.select(f.compare("olt", x, low), low, x)


def _nearest(f: Function, x: Value) -> tuple[Value, Value]:
    """The nearest integer of a small float, as float and as integer (any number for NaN)."""
    shifter = constant(x.type, 1.5 * 2.0 ** _MANTISSA[x.element])
    shifted = f.add(x, shifter)
    whole = f.sub(shifted, shifter)
    return whole, f.sub(bits(f, shifted), _bits_number(shifter))


def _bits_number(x: Value) -> Value:
    """The bits of a positive constant 1.5 * 2**k."""
    assert x.number is not None
    mantissa, exponent = math.frexp(float(x.number))
    own = _MANTISSA[x.element]
    number = ((exponent - 1 + _BIAS[x.element]) << own) + int((mantissa * 2 - 1) * 2**own)
    return constant(vector(x.lanes, _INTEGER[x.element]), number)


def _power_of_two(f: Function, n: Value) -> Value:
    """2**n for integers n with a normal result."""
    kind = "float" if bits_of(n.type) == 32 else "double"
    return _float(f, f.shl(f.add(n, _BIAS[kind]), _MANTISSA[kind]))


def _reduced(f: Function, x: Value) -> tuple[Value, Value]:
    """(n, r) with x = n ln 2 + r, |r| <= ln(2) / 2."""
    whole, n = _nearest(f, f.mul(x, 1.4426950408889634))
    high, low = _LN2[x.element]
    r = f.fma(whole, constant(x.type, -high), x)
    return n, f.fma(whole, constant(x.type, -low), r)


def _exp_series(f: Function, r: Value) -> Value:
    """exp(r) - 1 for the reduced r."""
    series = polynomial(f, r, p.EXP_F64 if _double(r) else p.EXP_F32)
    return f.fma(f.mul(r, r), series, r)


def exp(f: Function, x: Value) -> Value:
    """e^x; subnormal results are rounded once more."""
    x = _limited(f, x, *((-746.0, 710.0) if _double(x) else (-104.0, 89.0)))
    n, r = _reduced(f, x)
    value = f.add(_exp_series(f, r), 1.0)
    half = f.ashr(n, 1)
    value = f.mul(value, _power_of_two(f, half))
    return f.mul(value, _power_of_two(f, f.sub(n, half)))


def expm1(f: Function, x: Value) -> Value:
    """e^x - 1, exact for tiny x."""
    limited = _limited(f, x, *((-40.0, 710.0) if _double(x) else (-18.0, 89.0)))
    n, r = _reduced(f, limited)
    scale = _power_of_two(f, f.sub(n, 1))
    value = f.mul(f.fma(scale, _exp_series(f, r), f.sub(scale, 0.5)), 2.0)
    return f.select(f.compare("oeq", x, 0.0), x, value)


def logistic(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x)."""
    return f.div(1.0, f.add(exp(f, f.neg(x)), 1.0))


def tanh(f: Function, x: Value) -> Value:
    """t / (t + 2) with t = e^2x - 1."""
    size = _abs(f, x)
    limit = 20.0 if _double(x) else 10.0
    t = expm1(f, f.mul(f.select(f.compare("ogt", size, limit), limit, size), 2.0))
    return _copysign(f, f.div(t, f.add(t, 2.0)), x)


# Logarithms: x = 2^e (1 + r) with sqrt(1/2) <= 1 + r < sqrt(2).


def _split(f: Function, x: Value) -> tuple[Value, Value]:
    """(e as a float, r) of a positive normal x."""
    raw = bits(f, x)
    root = 0x3FE6A09E667F3BCD if _double(x) else 0x3F3504F3
    exponent = f.ashr(f.sub(raw, root), _MANTISSA[x.element])
    mantissa = _float(f, f.sub(raw, f.shl(exponent, _MANTISSA[x.element])))
    return f.cast("sitofp", exponent, x.element), f.sub(mantissa, 1.0)


def _log_parts(f: Function, exponent: Value, r: Value) -> Value:
    high, low = (constant(r.type, part) for part in _LN2[r.element])
    if _double(r):
        s = f.div(r, f.add(r, 2.0))
        z = f.mul(s, s)
        half = f.mul(f.mul(r, r), 0.5)
        series = f.mul(s, f.add(half, f.mul(z, polynomial(f, z, p.LOG64))))
        tail = f.fma(exponent, low, series)
        return f.fma(exponent, high, f.sub(r, f.sub(half, tail)))
    square = f.mul(r, r)
    tail = f.mul(f.mul(square, r), polynomial(f, r, p.LOG32))
    tail = f.fma(exponent, low, tail)
    tail = f.fma(square, constant(r.type, -0.5), tail)
    return f.fma(exponent, high, f.add(r, tail))


def _finished_log(f: Function, x: Value, value: Value, zero: float = 0.0) -> Value:
    """Special results: -inf at `zero`, NaN below, inf and NaN as they are."""
    infinity = float("inf")
    value = f.select(f.compare("olt", x, infinity), value, x)
    value = f.select(f.compare("oeq", x, zero), -infinity, value)
    return f.select(f.compare("olt", x, zero), float("nan"), value)


def log(f: Function, x: Value) -> Value:
    """The natural logarithm."""
    mantissa, bias = _MANTISSA[x.element], _BIAS[x.element]
    tiny = f.compare("olt", x, 2.0 ** (1 - bias))
    scaled = f.select(tiny, f.mul(x, 2.0**mantissa), x)
    exponent, r = _split(f, scaled)
    exponent = f.select(tiny, f.sub(exponent, float(mantissa)), exponent)
    return _finished_log(f, x, _log_parts(f, exponent, r))


def log1p(f: Function, x: Value) -> Value:
    """log(1 + x): the rounding error of 1 + x is added back."""
    u = f.add(x, 1.0)
    exponent, r = _split(f, u)
    lost = f.sub(x, f.sub(u, 1.0))
    value = f.add(_log_parts(f, exponent, r), f.div(lost, u))
    value = f.select(f.compare("oeq", x, 0.0), x, value)
    return _finished_log(f, x, value, -1.0)


# The error function.


def erf(f: Function, x: Value) -> Value:
    """x (1 + series) for small |x|, 1 - erfc(|x|) for larger, sign of x."""
    size = _abs(f, x)
    square = f.mul(x, x)
    small = f.fma(x, polynomial(f, square, p.ERF_SMALL_F64 if _double(x) else p.ERF_SMALL_F32), x)
    if _double(x):
        bounded = f.select(f.compare("ogt", size, 6.0), 6.0, size)
        rest = _erfc_positive(f, bounded)
        limit = 1.0
    else:
        bounded = f.select(f.compare("ogt", size, 4.0), 4.0, size)
        rest = exp(f, polynomial(f, bounded, p.ERFC_LOG_F32))
        limit = 0.95
    large = _copysign(f, f.sub(1.0, rest), x)
    return f.select(f.compare("ogt", size, limit), large, small)


def _erfc_positive(f: Function, x: Value) -> Value:
    """erfc for x >= 0.9: exp(-x^2) times a bounded function."""
    t = f.div(f.sub(x, 3.75), f.add(x, 3.75))
    series = polynomial(f, t, p.ERFC_SCALED_F64 if _double(x) else p.ERFC_SCALED_F32)
    square = f.mul(x, x)
    lost = f.fma(x, x, f.neg(square))
    value = f.div(f.mul(exp(f, f.neg(square)), series), f.fma(x, constant(x.type, 2.0), constant(x.type, 1.0)))
    return f.sub(value, f.mul(value, lost))


def erfc(f: Function, x: Value) -> Value:
    """1 - erf(x) without cancellation."""
    size = _abs(f, x)
    limit = 28.0 if _double(x) else 10.2
    far = _erfc_positive(f, f.select(f.compare("ogt", size, limit), limit, size))
    far = f.select(f.compare("olt", x, 0.0), f.sub(2.0, far), far)
    near = f.sub(1.0, erf(f, x))
    return f.select(f.compare("ogt", size, 0.92), far, near)


# Circular functions.

# pi/2 in pieces whose products with small integers are exact enough under fma
_HALF_PI = {
    "float": (1.57079637, -4.37113883e-08, -1.71512451e-15),
    "double": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
}
_LIMIT = {"float": 48000.0, "double": 1e8}  # above, reduce exactly


def _two_over_pi(count: int) -> list[float]:
    """2/pi as a sum of `count` floats of 24 bits each, with the same spacing."""
    digits = 24 * count
    # Machin's formula in integers.
    one = 1 << (digits + 64)

    def inverse_tangent(n: int) -> int:
        total, power, k, sign = 0, one // n, 1, 1
        while power:
            total += sign * (power // k)
            power //= n * n
            k, sign = k + 2, -sign
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    value = (2 * one << digits) // pi
    chunks = []
    for number in range(count):
        chunk = value >> (digits - 24 * (number + 1)) & 0xFFFFFF
        chunks.append(math.ldexp(chunk, -24 * (number + 1)))
    return chunks


def _reduce_exactly(f: Function, x: Value) -> tuple[Value, Value]:
    """(quadrant, r) for any finite f64: x times 2/pi modulo 4, piece by piece."""
    count = 48
    table = f.module.table("two_over_pi", "double", _two_over_pi(count))
    zero = constant(x.type, 0.0)
    with f.for_range(0, count, 1, [zero, zero]) as loop:
        high, low = loop.carried
        piece = f.splat(f.load("double", f.pointer(table, loop.index, "double")), x.lanes)
        product = f.mul(x, piece)
        lost = f.fma(x, piece, f.neg(product))
        for part in (product, lost):
            part = f.sub(part, f.mul(round_even(f, f.mul(part, 0.25)), 4.0))
            total = f.add(high, part)
            # the rounding error of the sum, exactly
            back = f.sub(total, high)
            low = f.add(low, f.add(f.sub(high, f.sub(total, back)), f.sub(part, back)))
            high = f.sub(total, f.mul(round_even(f, f.mul(total, 0.25)), 4.0))
        loop.carry(high, low)
    high, low = loop.results
    whole, quadrant = _nearest(f, high)
    rest = f.sub(high, whole)
    r = f.fma(rest, constant(x.type, 1.5707963267948966), f.fma(
        rest, constant(x.type, 6.123233995736766e-17), f.mul(low, 1.5707963267948966)
    ))  # fmt: skip
    return quadrant, r


def _quadrant(f: Function, x: Value) -> tuple[Value, Value]:
    """(n modulo 4, r) with x = n pi/2 + r; a helper, as large arguments take a slower way."""
    name = f"quadrant_{x.element}_{x.lanes}"
    integer = vector(x.lanes, _INTEGER[x.element])
    result = f"{{ {integer}, {x.type} }}"
    if not f.module.has(name):
        _define_quadrant(f, name, x.type, integer, result)
    both = f.emit(result, f"call {result} @{name}({x})")
    return (
        f.emit(integer, f"extractvalue {result} {both.name}, 0"),
        f.emit(x.type, f"extractvalue {result} {both.name}, 1"),
    )


def _define_quadrant(f: Function, name: str, kind: str, integer: str, result: str) -> None:
    g = f.module.helper(name, [(kind, "x")], result, inline="noinline")
    (x,) = g.arguments
    whole, n = _nearest(g, g.mul(x, 0.6366197723675814))
    r = x
    for piece in _HALF_PI[x.element]:
        r = g.fma(whole, constant(kind, -piece), r)
    large = g.compare("ogt", _abs(g, x), _LIMIT[x.element])
    any_large = large
    if x.lanes > 1:
        any_large = g.intrinsic("llvm.vector.reduce.or", large.type, large, returns="i1")
    branch = g.if_else(any_large)
    with branch.then():
        wide = g.cast("fpext", x, "double") if x.element == "float" else x
        far_n, far_r = _reduce_exactly(g, wide)
        if x.element == "float":
            far_n, far_r = g.cast("trunc", far_n, "i32"), g.cast("fptrunc", far_r, "float")
        branch.give(g.select(large, far_n, n), g.select(large, far_r, r))
    with branch.otherwise():
        branch.give(n, r)
    n, r = branch.results
    pair = g.emit(result, f"insertvalue {result} poison, {n}, 0")
    g.ret(g.emit(result, f"insertvalue {result} {pair.name}, {r}, 1"))


def _sine_cosine(f: Function, r: Value) -> tuple[Value, Value]:
    z = f.mul(r, r)
    double = _double(r)
    series = polynomial(f, z, p.SIN_F64 if double else p.SIN_F32)
    sine = f.fma(f.mul(z, r), series, r)
    series = polynomial(f, z, p.COS_F64 if double else p.COS_F32)
    half = f.mul(z, 0.5)
    near = f.sub(1.0, half)
    # what 1 - z/2 lost is added back
    lost = f.sub(f.sub(1.0, near), half)
    return sine, f.add(near, f.fma(f.mul(z, z), series, lost))


def _circular(f: Function, x: Value, shift: int) -> Value:
    n, r = _quadrant(f, x)
    sine, cosine = _sine_cosine(f, r)
    n = f.add(n, shift)
    value = f.select(f.compare("ne", f.land(n, 1), 0), cosine, sine)
    flip = f.compare("ne", f.land(n, 2), 0)
    value = f.select(flip, f.neg(value), value)
    return f.select(f.compare("oeq", _abs(f, x), float("inf")), float("nan"), value)


def sin(f: Function, x: Value) -> Value:
    return f.select(f.compare("oeq", x, 0.0), x, _circular(f, x, 0))


def cos(f: Function, x: Value) -> Value:
    return _circular(f, x, 1)


def tan(f: Function, x: Value) -> Value:
    """sin / cos of the same reduced argument."""
    n, r = _quadrant(f, x)
    sine, cosine = _sine_cosine(f, r)
    odd = f.compare("ne", f.land(n, 1), 0)
    value = f.div(f.select(odd, f.neg(cosine), sine), f.select(odd, sine, cosine))
    value = f.select(f.compare("oeq", _abs(f, x), float("inf")), float("nan"), value)
    return f.select(f.compare("oeq", x, 0.0), x, value)


def atan2(f: Function, y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    across, up = _abs(f, x), _abs(f, y)
    steep = f.compare("ogt", up, across)
    small, large = f.select(steep, across, up), f.select(steep, up, across)
    t = f.div(small, large)
    t = f.select(f.compare("oeq", small, large), 1.0, t)
    t = f.select(f.compare("oeq", large, 0.0), 0.0, t)
    # atan(t) = pi/4 + atan((t - 1) / (t + 1))
    far = f.compare("ogt", t, 0.4142135623730951)
    u = f.select(far, f.div(f.sub(t, 1.0), f.add(t, 1.0)), t)
    z = f.mul(u, u)
    series = polynomial(f, z, p.ATAN_F64 if _double(x) else p.ATAN_F32)
    high, low, _ = _HALF_PI[x.element]
    angle = f.fma(f.mul(z, u), series, u)
    angle = f.select(far, f.add(f.add(angle, low * 0.5), high * 0.5), angle)
    angle = f.select(steep, f.add(f.sub(high, angle), low), angle)
    left = f.compare("slt", bits(f, x), 0)
    angle = f.select(left, f.add(f.sub(high * 2, angle), low * 2), angle)
    nan = f.compare("uno", x, y)
    return f.select(nan, float("nan"), _copysign(f, angle, y))


def atan(f: Function, x: Value) -> Value:
    return atan2(f, x, constant(x.type, 1.0))


# Powers and roots.


def power(f: Function, x: Value, y: Value) -> Value:
    """x to the y as C's pow: exp(y log|x|) in twice the precision, signs and special values."""
    if y.number is not None:
        simple = {1.0: lambda: x, 2.0: lambda: f.mul(x, x), -1.0: lambda: f.div(1.0, x),
                  3.0: lambda: f.mul(f.mul(x, x), x)}.get(float(y.number))  # fmt: skip
        if simple is not None:
            return simple()
    size = _abs(f, x)
    if _double(x):
        value = _exp_log_product(f, size, y)
    else:
        wide = f.mul(log(f, f.cast("fpext", size, "double")), f.cast("fpext", y, "double"))
        value = f.cast("fptrunc", exp(f, wide), "float")
    whole = f.compare("oeq", round_even(f, y), y)
    half = f.mul(y, 0.5)
    odd = f.land(whole, f.compare("une", round_even(f, half), half))
    negative = f.compare("slt", bits(f, x), 0)
    value = f.select(f.land(negative, odd), f.neg(value), value)
    infinity = float("inf")
    broken = f.land(f.compare("olt", x, 0.0), f.lnot(whole))
    broken = f.land(broken, f.compare("olt", size, infinity))
    value = f.select(broken, float("nan"), value)
    units = f.land(f.compare("oeq", size, 1.0), f.compare("oeq", _abs(f, y), infinity))
    one = f.lor(f.lor(units, f.compare("oeq", x, 1.0)), f.compare("oeq", y, 0.0))
    return f.select(one, 1.0, value)


def _exp_log_product(f: Function, x: Value, y: Value) -> Value:
    """exp(y log x) for x >= 0 in f64, the logarithm's rounding error carried along."""
    near = log(f, x)
    # One Newton step finds what `near` lacks: log x = near + log(x e^-near).
    bounded = _limited(f, near, -700.0, 700.0)
    rest = f.sub(f.mul(x, exp(f, f.neg(bounded))), 1.0)
    usable = f.compare("olt", _abs(f, rest), 1e-12)
    rest = f.select(usable, rest, 0.0)
    product = f.mul(near, y)
    lost = f.add(f.fma(near, y, f.neg(product)), f.mul(rest, y))
    value = exp(f, product)
    finite = f.compare("olt", _abs(f, product), 709.0)
    return f.select(finite, f.fma(value, lost, value), value)


def cbrt(f: Function, x: Value) -> Value:
    """The cube root: a third of the exponent, then Halley's steps in f64."""
    wide = x if _double(x) else f.cast("fpext", x, "double")
    size = _abs(f, wide)
    tiny = f.compare("olt", size, 2.0**-1000)
    size = f.select(tiny, f.mul(size, 2.0**54), size)
    guess = _float(f, f.add(f.udiv(bits(f, size), 3), 0x2A9F7893782DA1CE))
    for _ in range(3):
        cube = f.mul(f.mul(guess, guess), guess)
        double, twice = f.add(cube, cube), f.add(size, size)
        guess = f.mul(guess, f.div(f.add(cube, twice), f.add(double, size)))
    guess = f.select(tiny, f.mul(guess, 2.0**-18), guess)
    guess = _copysign(f, guess, wide)
    special = f.lor(f.compare("oeq", size, 0.0), f.compare("ueq", size, float("inf")))
    guess = f.select(special, wide, guess)
    return guess if _double(x) else f.cast("fptrunc", guess, "float")


def remainder(f: Function, x: Value, y: Value) -> Value:
    """x - y * truncate(x / y), exact; a helper, as it takes steps."""
    name = f"remainder_{x.element}_{x.lanes}"
    if not f.module.has(name):
        _define_remainder(f, name, x.type)
    return f.call(name, x.type, x, y)


def _define_remainder(f: Function, name: str, kind: str) -> None:
    """Subtracts the divisor times powers of two, largest first, while the quotient is inexact."""
    g = f.module.helper(name, [(kind, "x"), (kind, "y")], kind, inline="noinline")
    x, y = g.arguments
    wide = [g.cast("fpext", v, "double") if v.element == "float" else v for v in (x, y)]
    size, divisor = (_abs(g, v) for v in wide)
    steps = 280 if x.element == "float" else 2100
    each = 24  # bits of the quotient per step
    rest = size
    with g.for_range(0, steps // each + 1, 1, [rest]) as loop:
        (rest,) = loop.carried
        shift = g.mul(g.sub(constant("i64", steps // each), loop.index), each)
        half = g.lshr(shift, 1)
        low = _power_of_two(g, g.min(half, 1020))
        high = _power_of_two(g, g.min(g.sub(shift, half), 1020))
        large = g.mul(g.mul(divisor, g.splat(low, size.lanes)), g.splat(high, size.lanes))
        usable = g.compare("ole", large, rest)
        quotient = truncate(g, g.div(rest, large))
        less = g.fma(g.neg(quotient), large, rest)
        less = g.select(g.compare("olt", less, 0.0), g.add(less, large), less)
        less = g.select(g.compare("oge", less, large), g.sub(less, large), less)
        loop.carry(g.select(usable, less, rest))
    (rest,) = loop.results
    infinity = float("inf")
    rest = g.select(g.compare("oeq", divisor, infinity), size, rest)
    bad = g.lor(g.compare("oeq", divisor, 0.0), g.compare("oeq", size, infinity))
    bad = g.lor(bad, g.compare("uno", *wide))
    rest = _copysign(g, g.select(bad, float("nan"), rest), wide[0])
    rest = g.select(bad, float("nan"), rest)
    g.ret(g.cast("fptrunc", rest, "float") if x.element == "float" else rest)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exponential": exp,
    "exponential_minus_one": expm1,
    "log": log,
    "log_plus_one": log1p,
    "logistic": logistic,
    "tanh": tanh,
    "erf": erf,
    "erfc": erfc,
    "sine": sin,
    "cosine": cos,
    "tan": tan,
    "atan2": atan2,
    "power": power,
    "sqrt": sqrt,
    "cbrt": cbrt,
    "remainder": remainder,
    "floor": floor,
    "ceil": ceil,
    "round_nearest_even": round_even,
    "round_nearest_afz": round_away,
}

"""Functions of floats as straight-line vector code: no tables, no branches, no calls but one.

Every function takes and gives f32 or f64 registers of any width; other floats come here as f32.
Measured errors stand in specs/numerics.md (`benchmarks/math_ulp.py` measures them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from . import Function, Value, bits_of, constant, vector
from . import polynomials as p

_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}
# Adding it leaves a small float's nearest integer in the low bits.
_SHIFTER = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
INTEGER = {"float": "i32", "double": "i64"}
# ln 2 = high + low, high short enough that its product with an exponent is exact
_LN2 = {
    "float": (0.693145751953125, 1.4286068203094172e-06),
    "double": (0.6931471803691238, 1.9082149292705877e-10),
}


def is_double(x: Value) -> bool:
    return x.element == "double"


def bits(f: Function, x: Value) -> Value:
    """The bits of floats as integers."""
    return f.bitcast(x, vector(x.lanes, INTEGER[x.element]))


def _float(f: Function, raw: Value) -> Value:
    return f.bitcast(raw, vector(raw.lanes, "float" if bits_of(raw.type) == 32 else "double"))


def absolute(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.fabs", x.type, x)


def copysign(f: Function, size: Value, sign: Value) -> Value:
    return f.intrinsic("llvm.copysign", size.type, size, sign)


def polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """sum(coefficients[i] * x**i)."""
    total = constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = f.fma(total, x, constant(x.type, coefficient))
    return total


def exact_fma(f: Function, a: Value, b: Value, c: Value) -> Value:
    """a*b + c of finite numbers as if rounded once, on every target. Where nothing else overflows,
    the product and the sum have to be finite."""
    if f.module.fused:
        return f.fma(a, b, c)
    if not is_double(a):  # products of two f32 are exact in f64
        a, b, c = (f.cast("fpext", value, "double") for value in (a, b, c))
        return f.cast("fptrunc", f.add(f.mul(a, b), c), "float")
    product = f.mul(a, b)
    (a, a_low), (b, b_low) = _halves(f, a), _halves(f, b)
    lost = f.add(f.sub(f.mul(a, b), product), f.mul(a, b_low))
    lost = f.add(f.add(lost, f.mul(a_low, b)), f.mul(a_low, b_low))
    total = f.add(product, c)
    back = f.sub(total, product)
    rest = f.add(f.sub(product, f.sub(total, back)), f.sub(c, back))
    return f.add(total, f.add(rest, lost))


def _halves(f: Function, x: Value) -> tuple[Value, Value]:
    """x as a sum of its upper 26 bits and the rest, so that products of parts hardly round."""
    upper = _float(f, f.land(bits(f, x), constant(vector(x.lanes, "i64"), -1 << 27)))
    return upper, f.sub(x, upper)


# Rounding.


def _native_rounding(f: Function) -> bool:
    module = f.module
    on_gpu = module.architecture == "nvptx64"
    return on_gpu or "+sse4.1" in module.attributes or "+neon" in module.attributes


def round_even(f: Function, x: Value) -> Value:
    """The nearest integer, ties to even."""
    if _native_rounding(f):
        return f.intrinsic("llvm.roundeven", x.type, x)
    shifter = constant(x.type, 2.0 ** _MANTISSA[x.element])
    size = absolute(f, x)
    near = copysign(f, f.sub(f.add(size, shifter), shifter), x)
    return f.select(f.compare("olt", size, shifter), near, x)


def floor(f: Function, x: Value) -> Value:
    if _native_rounding(f):
        return f.intrinsic("llvm.floor", x.type, x)
    near = round_even(f, x)
    return copysign(f, f.select(f.compare("ogt", near, x), f.sub(near, 1.0), near), x)


def ceil(f: Function, x: Value) -> Value:
    if _native_rounding(f):
        return f.intrinsic("llvm.ceil", x.type, x)
    near = round_even(f, x)
    return copysign(f, f.select(f.compare("olt", near, x), f.add(near, 1.0), near), x)


def truncate(f: Function, x: Value) -> Value:
    """The integer next to x towards zero."""
    if _native_rounding(f):
        return f.intrinsic("llvm.trunc", x.type, x)
    return copysign(f, floor(f, absolute(f, x)), x)


def round_away(f: Function, x: Value) -> Value:
    """The nearest integer, ties away from zero."""
    whole = truncate(f, x)
    away = f.add(whole, copysign(f, constant(x.type, 1.0), x))
    far = f.compare("oge", absolute(f, f.sub(x, whole)), 0.5)
    return f.select(far, away, whole)


def sqrt(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.sqrt", x.type, x)


# Exponentials: x = n ln 2 + r, exp(x) = 2^n exp(r).


def _limited(f: Function, x: Value, low: float, high: float) -> Value:
    """x in [low, high]; NaN stays."""
    if f.module.architecture == "nvptx64" and not is_double(x):
        x = f.intrinsic("llvm.minimum", x.type, x, constant(x.type, high))
        return f.intrinsic("llvm.maximum", x.type, x, constant(x.type, low))
    x = f.select(f.compare("ogt", x, high), high, x)
    return f.select(f.compare("olt", x, low), low, x)


def nearest(f: Function, x: Value) -> tuple[Value, Value]:
    """The nearest integer of a small float, as float and as integer (any number for NaN)."""
    shifter = constant(x.type, _SHIFTER[x.element])
    shifted = f.add(x, shifter)
    return f.sub(shifted, shifter), f.sub(bits(f, shifted), _bits_number(shifter))


def _bits_number(x: Value) -> Value:
    """The bits of a positive constant 1.5 * 2**k."""
    assert x.number is not None
    mantissa, exponent = math.frexp(float(x.number))
    own = _MANTISSA[x.element]
    number = ((exponent - 1 + _BIAS[x.element]) << own) + int((mantissa * 2 - 1) * 2**own)
    return constant(vector(x.lanes, INTEGER[x.element]), number)


def _power_of_two(f: Function, n: Value) -> Value:
    """2**n for integers n with a normal result."""
    kind = "float" if bits_of(n.type) == 32 else "double"
    return _float(f, f.shl(f.add(n, _BIAS[kind]), _MANTISSA[kind]))


def _reduced(f: Function, x: Value) -> tuple[Value, Value, Value]:
    """(n, n as an integer, r): x = n ln 2 + r, |r| a little over ln(2) / 2 at most."""
    shifter = constant(x.type, _SHIFTER[x.element])
    shifted = f.fma(x, constant(x.type, 1.4426950408889634), shifter)
    n = f.sub(shifted, shifter)
    high, low = _LN2[x.element]
    r = f.fma(n, constant(x.type, -high), x)
    whole = f.sub(bits(f, shifted), _bits_number(shifter))
    return n, whole, f.fma(n, constant(x.type, -low), r)


def _exp_series(f: Function, r: Value) -> Value:
    """exp(r) - 1 for the reduced r."""
    series = polynomial(f, r, p.EXP_F64 if is_double(r) else p.EXP_F32)
    return f.fma(f.mul(r, r), series, r)


def exp(f: Function, x: Value) -> Value:
    """e^x; subnormal results are rounded once more."""
    x = _limited(f, x, *((-746.0, 710.0) if is_double(x) else (-104.0, 89.0)))
    n, whole, r = _reduced(f, x)
    value = polynomial(f, r, (1.0, 1.0, *(p.EXP_F64 if is_double(x) else p.EXP_F32)))
    scaled = _scaled(f, value, n)
    if scaled is not None:
        return scaled
    half = f.ashr(whole, 1)
    value = f.mul(value, _power_of_two(f, half))
    return f.mul(value, _power_of_two(f, f.sub(whole, half)))


def _scaled(f: Function, value: Value, n: Value) -> Value | None:
    """value * 2^n in one instruction, where the target has it for these lanes."""
    if "+avx512f" not in f.module.attributes or value.lanes * bits_of(value.type) != 512:
        return None
    name = f"llvm.x86.avx512.mask.scalef.p{'d' if is_double(value) else 's'}.512"
    mask = constant(f"i{value.lanes}", -1)
    rounding = constant("i32", 4)  # the current mode
    return f.call(name, value.type, value, n, value, mask, rounding, declare=True)


def expm1(f: Function, x: Value) -> Value:
    """e^x - 1, exact for tiny x."""
    limited = _limited(f, x, *((-40.0, 710.0) if is_double(x) else (-18.0, 89.0)))
    value = f.mul(_half_expm1(f, limited), 2.0)
    return f.select(f.compare("oeq", x, 0.0), x, value)


def _half_expm1(f: Function, x: Value) -> Value:
    """(e^x - 1) / 2 of an x that is not too large; halved, no power of two overflows."""
    _, n, r = _reduced(f, x)
    scale = _power_of_two(f, f.sub(n, 1))
    return f.fma(scale, _exp_series(f, r), f.sub(scale, 0.5))


def logistic(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x) for x >= 0, e^x / (1 + e^x) below."""
    e = exp(f, f.neg(absolute(f, x)))
    above = f.select(f.compare("olt", x, 0.0), e, 1.0)
    return f.div(above, f.add(e, 1.0))


def tanh(f: Function, x: Value) -> Value:
    """t / (t + 1) with t = (e^2x - 1) / 2."""
    size = absolute(f, x)
    limit = 20.0 if is_double(x) else 10.0
    t = _half_expm1(f, f.mul(f.select(f.compare("ogt", size, limit), limit, size), 2.0))
    return copysign(f, f.div(t, f.add(t, 1.0)), x)


# Logarithms: x = 2^e (1 + r) with sqrt(1/2) <= 1 + r < sqrt(2).


def _split(f: Function, x: Value) -> tuple[Value, Value]:
    """(e as a float, r) of a positive normal x."""
    raw = bits(f, x)
    root = 0x3FE6A09E667F3BCD if is_double(x) else 0x3F3504F3
    exponent = f.ashr(f.sub(raw, root), _MANTISSA[x.element])
    mantissa = _float(f, f.sub(raw, f.shl(exponent, _MANTISSA[x.element])))
    return f.cast("sitofp", exponent, x.element), f.sub(mantissa, 1.0)


def _log_parts(f: Function, exponent: Value, r: Value) -> Value:
    high, low = (constant(r.type, part) for part in _LN2[r.element])
    if is_double(r):
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
    size = absolute(f, x)
    square = f.mul(x, x)
    small = f.fma(x, polynomial(f, square, p.ERF_SMALL_F64 if is_double(x) else p.ERF_SMALL_F32), x)
    if is_double(x):
        rest = _erfc_positive(f, f.select(f.compare("ogt", size, 6.0), 6.0, size))
        limit = 1.0
    else:
        # Where it counts erfc is below 1/4, so few bits of it are needed, and none near 2^-126.
        bounded = f.select(f.compare("ogt", size, 4.0), 4.0, size)
        power = polynomial(f, bounded, p.ERFC_LOG2_F32)
        whole, n = nearest(f, power)
        fraction = polynomial(f, f.sub(power, whole), p.EXP2_SHORT_F32)
        rest = _float(f, f.add(bits(f, fraction), f.shl(n, 23)))
        limit = 0.86
    large = copysign(f, f.sub(1.0, rest), x)
    return f.select(f.compare("ogt", size, limit), large, small)


def _erfc_positive(f: Function, x: Value) -> Value:
    """erfc for x >= 0.45: exp(-x^2) times a bounded function."""
    t = f.div(f.sub(x, 3.75), f.add(x, 3.75))
    series = polynomial(f, t, p.ERFC_SCALED_F64 if is_double(x) else p.ERFC_SCALED_F32)
    square = f.mul(x, x)
    lost = exact_fma(f, x, x, f.neg(square))
    divisor = f.fma(x, constant(x.type, 2.0), constant(x.type, 1.0))
    value = f.div(f.mul(exp(f, f.neg(square)), series), divisor)
    return f.sub(value, f.mul(value, lost))


def erfc(f: Function, x: Value) -> Value:
    """1 - erf(x) without cancellation."""
    size = absolute(f, x)
    limit = 28.0 if is_double(x) else 10.2
    far = _erfc_positive(f, f.select(f.compare("ogt", size, limit), limit, size))
    far = f.select(f.compare("olt", x, 0.0), f.sub(2.0, far), far)
    near = f.sub(1.0, erf(f, x))
    return f.select(f.compare("ogt", size, 0.47), far, near)


# Powers and roots.


def power(f: Function, x: Value, y: Value) -> Value:
    """x to the y as C's pow: exp(y log|x|) in twice the precision, signs and special values."""
    if y.number is not None:
        simple = {1.0: lambda: x, 2.0: lambda: f.mul(x, x), -1.0: lambda: f.div(1.0, x),
                  3.0: lambda: f.mul(f.mul(x, x), x)}.get(float(y.number))  # fmt: skip
        if simple is not None:
            return simple()
    size = absolute(f, x)
    if is_double(x):
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
    units = f.land(f.compare("oeq", size, 1.0), f.compare("oeq", absolute(f, y), infinity))
    one = f.lor(f.lor(units, f.compare("oeq", x, 1.0)), f.compare("oeq", y, 0.0))
    return f.select(one, 1.0, value)


def _exp_log_product(f: Function, x: Value, y: Value) -> Value:
    """exp(y log x) for x >= 0 in f64, the logarithm as a sum of two numbers."""
    high, low = _log_pair(f, x)
    product = f.mul(high, y)
    lost = f.fma(low, y, exact_fma(f, high, y, f.neg(product)))
    value = exp(f, product)
    finite = f.compare("olt", absolute(f, product), 709.0)
    return f.select(finite, f.fma(value, lost, value), value)


def _log_pair(f: Function, x: Value) -> tuple[Value, Value]:
    """log x = high + low with about 60 bits for positive finite x; special values in high."""
    tiny = f.compare("olt", x, 2.0**-1022)
    exponent, r = _split(f, f.select(tiny, f.mul(x, 2.0**52), x))
    exponent = f.select(tiny, f.sub(exponent, 52.0), exponent)
    # log(1 + r) = 2 s + s^3 R(s^2) with s = r / (2 + r), the division's rest kept
    divisor = f.add(r, 2.0)
    divisor_low = f.sub(r, f.sub(divisor, 2.0))
    s = f.div(r, divisor)
    minus = f.neg(s)
    s_low = f.div(f.fma(minus, divisor_low, exact_fma(f, minus, divisor, r)), divisor)
    z = f.mul(s, s)
    series = f.mul(f.mul(s, z), polynomial(f, z, p.LOG64))
    low = f.fma(s_low, constant(x.type, 2.0), series)
    ln2_high, ln2_low = (constant(x.type, part) for part in _LN2["double"])
    whole, twice = f.mul(exponent, ln2_high), f.add(s, s)
    total = f.add(whole, twice)
    back = f.sub(total, whole)
    lost = f.add(f.sub(whole, f.sub(total, back)), f.sub(twice, back))
    low = f.add(f.fma(exponent, ln2_low, low), lost)
    high = f.add(total, low)
    rest = f.sub(low, f.sub(high, total))
    special = _finished_log(f, x, high)
    return special, f.select(f.compare("oeq", special, high), rest, 0.0)


def cbrt(f: Function, x: Value) -> Value:
    """The cube root: a third of the exponent, then Halley's steps in f64."""
    wide = x if is_double(x) else f.cast("fpext", x, "double")
    size = absolute(f, wide)
    tiny = f.compare("olt", size, 2.0**-1000)
    size = f.select(tiny, f.mul(size, 2.0**54), size)
    guess = _float(f, f.add(f.udiv(bits(f, size), 3), 0x2A9F7893782DA1CE))
    for _ in range(3):
        cube = f.mul(f.mul(guess, guess), guess)
        double, twice = f.add(cube, cube), f.add(size, size)
        guess = f.mul(guess, f.div(f.add(cube, twice), f.add(double, size)))
    guess = f.select(tiny, f.mul(guess, 2.0**-18), guess)
    guess = copysign(f, guess, wide)
    special = f.lor(f.compare("oeq", size, 0.0), f.compare("ueq", size, float("inf")))
    guess = f.select(special, wide, guess)
    return guess if is_double(x) else f.cast("fptrunc", guess, "float")


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
    size, divisor = (absolute(g, v) for v in wide)
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
        less = exact_fma(g, g.neg(quotient), large, rest)
        less = g.select(g.compare("olt", less, 0.0), g.add(less, large), less)
        less = g.select(g.compare("oge", less, large), g.sub(less, large), less)
        loop.carry(g.select(usable, less, rest))
    (rest,) = loop.results
    infinity = float("inf")
    rest = g.select(g.compare("oeq", divisor, infinity), size, rest)
    bad = g.lor(g.compare("oeq", divisor, 0.0), g.compare("oeq", size, infinity))
    bad = g.lor(bad, g.compare("uno", *wide))
    rest = copysign(g, g.select(bad, float("nan"), rest), wide[0])
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
    "power": power,
    "sqrt": sqrt,
    "cbrt": cbrt,
    "remainder": remainder,
    "floor": floor,
    "ceil": ceil,
    "round_nearest_even": round_even,
    "round_nearest_afz": round_away,
}

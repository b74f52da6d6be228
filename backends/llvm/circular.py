"""sin, cos, tan and atan2 of floats: exact reduction of large angles, then short polynomials."""

from __future__ import annotations

from collections.abc import Callable
from math import ldexp

from . import Function, Value, constant, math, vector
from . import polynomials as p

# pi/2 in pieces, of which multiples by small integers are subtracted with one rounding each
_HALF_PI = {
    "float": (1.57079637, -4.37113883e-08, -1.71512451e-15),
    "double": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
}
_LIMIT = {"float": 48000.0, "double": 1e8}  # above, reduce exactly


_LIFT = 400  # so that the last pieces are no subnormal numbers


def _two_over_pi(count: int) -> list[float]:
    """2/pi * 2^_LIFT as a sum of `count` floats of 24 bits each, with the same spacing."""
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
        chunks.append(ldexp(chunk, _LIFT - 24 * (number + 1)))
    return chunks


def _reduce_exactly(f: Function, x: Value) -> tuple[Value, Value]:
    """(quadrant, r) for any finite f64: x times 2/pi modulo 4, piece by piece."""
    count = 48
    x = f.mul(x, 2.0**-_LIFT)
    table = f.module.table("two_over_pi", "double", _two_over_pi(count))
    zero = constant(x.type, 0.0)
    with f.for_range(0, count, 1, [zero, zero]) as loop:
        high, low = loop.carried
        piece = f.splat(f.load("double", f.pointer(table, loop.index, "double")), x.lanes)
        product = f.mul(x, piece)
        lost = math.exact_fma(f, x, piece, f.neg(product))
        for part in (product, lost):
            part = f.sub(part, f.mul(math.round_even(f, f.mul(part, 0.25)), 4.0))
            total = f.add(high, part)
            # the rounding error of the sum, exactly
            back = f.sub(total, high)
            low = f.add(low, f.add(f.sub(high, f.sub(total, back)), f.sub(part, back)))
            high = f.sub(total, f.mul(math.round_even(f, f.mul(total, 0.25)), 4.0))
        loop.carry(high, low)
    high, low = loop.results
    whole, quadrant = math.nearest(f, high)
    rest = f.sub(high, whole)
    r = f.fma(rest, constant(x.type, 1.5707963267948966), f.fma(
        rest, constant(x.type, 6.123233995736766e-17), f.mul(low, 1.5707963267948966)
    ))  # fmt: skip
    return quadrant, r


def _quadrant(f: Function, x: Value) -> tuple[Value, Value]:
    """(n modulo 4, r) with x = n pi/2 + r; a helper, as large arguments take a slower way."""
    name = f"quadrant_{x.element}_{x.lanes}"
    integer = vector(x.lanes, math.INTEGER[x.element])
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
    whole, n = math.nearest(g, g.mul(x, 0.6366197723675814))
    r = x
    for piece in _HALF_PI[x.element]:
        r = math.exact_fma(g, whole, constant(kind, -piece), r)
    large = g.compare("ogt", math.absolute(g, x), _LIMIT[x.element])
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
    double = math.is_double(r)
    series = math.polynomial(f, z, p.SIN_F64 if double else p.SIN_F32)
    sine = f.fma(f.mul(z, r), series, r)
    series = math.polynomial(f, z, p.COS_F64 if double else p.COS_F32)
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
    return f.select(f.compare("oeq", math.absolute(f, x), float("inf")), float("nan"), value)


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
    value = f.select(f.compare("oeq", math.absolute(f, x), float("inf")), float("nan"), value)
    return f.select(f.compare("oeq", x, 0.0), x, value)


def atan2(f: Function, y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    across, up = math.absolute(f, x), math.absolute(f, y)
    steep = f.compare("ogt", up, across)
    small, large = f.select(steep, across, up), f.select(steep, up, across)
    t = f.div(small, large)
    t = f.select(f.compare("oeq", small, large), 1.0, t)
    t = f.select(f.compare("oeq", large, 0.0), 0.0, t)
    # atan(t) = pi/4 + atan((t - 1) / (t + 1))
    far = f.compare("ogt", t, 0.4142135623730951)
    u = f.select(far, f.div(f.sub(t, 1.0), f.add(t, 1.0)), t)
    z = f.mul(u, u)
    series = math.polynomial(f, z, p.ATAN_F64 if math.is_double(x) else p.ATAN_F32)
    high, low, _ = _HALF_PI[x.element]
    angle = f.fma(f.mul(z, u), series, u)
    angle = f.select(far, f.add(f.add(angle, low * 0.5), high * 0.5), angle)
    angle = f.select(steep, f.add(f.sub(high, angle), low), angle)
    left = f.compare("slt", math.bits(f, x), 0)
    angle = f.select(left, f.add(f.sub(high * 2, angle), low * 2), angle)
    nan = f.compare("uno", x, y)
    return f.select(nan, float("nan"), math.copysign(f, angle, y))


def atan(f: Function, x: Value) -> Value:
    return atan2(f, x, constant(x.type, 1.0))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sine": sin,
    "cosine": cos,
    "tan": tan,
    "atan2": atan2,
}

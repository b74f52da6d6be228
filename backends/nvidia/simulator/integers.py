"""Integer arithmetic and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .syntax import Immediate, Instruction
from .table import expression
from .translate import Emitter, kind_of, unsigned

_TYPES = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64")


def _forms(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}:{type_}" for name in names for type_ in _TYPES)


def _wide(kind: str) -> str:
    return kind[0] + str(2 * int(kind[1:]))


# ---------------------------------------------------------------- run time


def quotient(a: Any, b: Any) -> Any:
    """a / b towards zero; all ones where b is 0."""
    result = np.asarray(a // np.where(b == 0, b.dtype.type(1), b), a.dtype)
    if a.dtype.kind == "i":
        safe = np.where(b == 0, b.dtype.type(1), b)
        result = result + ((result * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~a.dtype.type(0), result)


def remainder(a: Any, b: Any) -> Any:
    """With the sign of a; a where b is 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, a - quotient(a, safe) * safe)


def high_product(a: Any, b: Any) -> Any:
    """The upper half of the product of 64-bit integers."""
    if a.dtype.kind == "i":
        x, y = a.view(np.uint64), b.view(np.uint64)
        high = high_product(x, y)
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
        return high.view(np.int64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = a & mask, a >> half, b & mask, b >> half
    low, middle, other = al * bl, ah * bl, al * bh
    carry = (low >> half) + (middle & mask) + (other & mask)
    return ah * bh + (middle >> half) + (other >> half) + (carry >> half)


def population(a: Any) -> Any:
    """Number of ones, as u4."""
    a = a.astype(np.uint64)
    a = a - ((a >> np.uint64(1)) & np.uint64(0x5555555555555555))
    twos = np.uint64(0x3333333333333333)
    a = (a & twos) + ((a >> np.uint64(2)) & twos)
    a = (a + (a >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((a * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint32)


def leading_zeros(a: Any) -> Any:
    """As u4; the width where a is 0."""
    bits = a.dtype.itemsize * 8
    high = (a >> a.dtype.type(bits // 2)).astype(np.float64)
    low = (a & a.dtype.type((1 << bits // 2) - 1)).astype(np.float64)
    return np.where(high > 0, bits // 2 - np.frexp(high)[1], bits - np.frexp(low)[1]).astype(
        np.uint32
    )


_REVERSED = np.asarray([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def reverse_bits(a: Any) -> Any:
    array = np.ascontiguousarray(np.atleast_1d(a))
    octets = _REVERSED[array.view(np.uint8).reshape(array.size, a.dtype.itemsize)][:, ::-1]
    return np.ascontiguousarray(octets).view(a.dtype).reshape(np.shape(a))


def extract_field(a: Any, position: Any, length: Any) -> Any:
    """`length` bits of a from `position`, extended by their sign for signed a."""
    bits = a.dtype.itemsize * 8
    plain = a.view(np.uint32 if bits == 32 else np.uint64)
    one = plain.dtype.type(1)
    position = (position & np.uint32(0xFF)).astype(plain.dtype)
    length = (length & np.uint32(0xFF)).astype(plain.dtype)
    ones = ~plain.dtype.type(0)
    mask = np.where(length >= bits, ones, (one << length) - one) & (ones >> position)
    field = (plain >> position) & mask
    if a.dtype.kind == "i":
        last = np.minimum(position + length - one, plain.dtype.type(bits - 1))
        sign = (plain >> last) & one
        field = field | np.where((sign != 0) & (length != 0), ~mask, plain.dtype.type(0))
    return np.where(length == 0, plain.dtype.type(0), field).view(a.dtype)


def insert_field(a: Any, b: Any, position: Any, length: Any) -> Any:
    """b with `length` bits from `position` taken from the low bits of a."""
    bits, one = a.dtype.itemsize * 8, a.dtype.type(1)
    position = (position & np.uint32(0xFF)).astype(a.dtype)
    length = (length & np.uint32(0xFF)).astype(a.dtype)
    ones = np.where(length >= bits, ~a.dtype.type(0), (one << length) - one)
    mask = ones << position
    return (b & ~mask) | ((a << position) & mask)


def leading_bit(a: Any, shift_amount: bool) -> Any:
    """Position of the most significant bit that is no copy of the sign; all ones if none."""
    bits = a.dtype.itemsize * 8
    plain = a.view(np.uint32 if bits == 32 else np.uint64)
    if a.dtype.kind == "i":
        plain = np.where(a < 0, ~plain, plain)
    zeros = leading_zeros(plain)
    found = zeros if shift_amount else np.uint32(bits - 1) - zeros
    return np.where(plain == 0, np.uint32(0xFFFFFFFF), found)


def funnel(low: Any, high: Any, amount: Any, left: bool, wrap: bool) -> Any:
    """The upper word of high:low << amount, or the lower word of high:low >> amount."""
    amount = (amount & np.uint32(31)) if wrap else np.minimum(amount, np.uint32(32))
    pair = (high.astype(np.uint64) << np.uint64(32)) | low
    amount = amount.astype(np.uint64)
    shifted = (pair << amount) >> np.uint64(32) if left else pair >> amount
    return shifted.astype(np.uint32)


_PERMUTATIONS = {
    "f4e": [[i, i + 1, i + 2, i + 3] for i in range(4)],
    "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
    "rc8": [[i] * 4 for i in range(4)],
    "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
    "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


def permute_bytes(a: Any, b: Any, selector: Any, mode: str) -> Any:
    """Four bytes of b:a, chosen by nibbles of `selector`; a nibble's top bit copies the sign."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.uint32(0)
    for position in range(4):
        if mode:
            table = np.asarray(_PERMUTATIONS[mode], np.uint64)
            chosen, sign = table[selector & np.uint32(3), position], np.uint32(0)
        else:
            nibble = selector >> np.uint32(4 * position)
            chosen, sign = (nibble & np.uint32(7)).astype(np.uint64), nibble & np.uint32(8)
        octet = ((pair >> (chosen * np.uint64(8))) & np.uint64(0xFF)).astype(np.uint32)
        copied = np.where(octet & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
        octet = np.where(sign != 0, copied, octet)
        result = result | (octet << np.uint32(8 * position))
    return result


def look_up(a: Any, b: Any, c: Any, table: int) -> Any:
    """The function of three bits whose values are the bits of `table`, on every bit."""
    result = a & a.dtype.type(0)
    for index in range(8):
        if table >> index & 1:
            term = a if index & 4 else ~a
            term = term & (b if index & 2 else ~b)
            result = result | (term & (c if index & 1 else ~c))
    return result


def dot_bytes(a: Any, b: Any, c: Any, signed_a: bool, signed_b: bool) -> Any:
    """c plus the products of the four bytes of a and b, as i8."""
    total = c
    for position in range(4):
        x = ((a >> np.uint32(8 * position)) & np.uint32(0xFF)).astype(np.uint8)
        y = ((b >> np.uint32(8 * position)) & np.uint32(0xFF)).astype(np.uint8)
        x = x.view(np.int8) if signed_a else x
        y = y.view(np.int8) if signed_b else y
        total = total + x.astype(np.int64) * y.astype(np.int64)
    return total


def dot_halves(a: Any, b: Any, c: Any, signed_a: bool, signed_b: bool, high: bool) -> Any:
    """c plus the products of the two halves of a with two bytes of b, as i8."""
    total = c
    for position in range(2):
        x = ((a >> np.uint32(16 * position)) & np.uint32(0xFFFF)).astype(np.uint16)
        shift = np.uint32(8 * position + (16 if high else 0))
        y = ((b >> shift) & np.uint32(0xFF)).astype(np.uint8)
        x = x.view(np.int16) if signed_a else x
        y = y.view(np.int8) if signed_b else y
        total = total + x.astype(np.int64) * y.astype(np.int64)
    return total


def saturated_add(a: Any, b: Any, sign: int) -> Any:
    exact = a.astype(np.int64) + sign * b.astype(np.int64)
    return np.clip(exact, -(1 << 31), (1 << 31) - 1).astype(np.int32)


# ---------------------------------------------------------------- the table


@expression(*_forms("add", "sub"))
def add(e: Emitter, i: Instruction) -> None:
    e.only(i, "sat", "cc")
    type_, sign = i.parts[-1], "+" if i.parts[0] == "add" else "-"
    d, a, b = i.operands[:3]
    if "sat" in i.parts:
        a, b = e.use(a, "i4"), e.use(b, "i4")
        source = f"{e.helper(saturated_add)}({a}, {b}, {sign}1)"
        return e.define(d, "i4", source)
    kind = unsigned(kind_of(type_))
    a, b = e.use(a, kind), e.use(b, kind)
    result = e.fresh()
    e.line(f"{result} = {a} {sign} {b}")
    flag = e.fresh()
    if "cc" in i.parts:
        test = f"{result} < {a}" if sign == "+" else f"{a} < {b}"
        e.line(f"{flag} = ({test}).astype(u4)")
    e.define(d, kind, result)
    if "cc" in i.parts:
        e.define(i.operands[-1], "u4", flag)


@expression("addc", "subc")
def add_with_carry(e: Emitter, i: Instruction) -> None:
    kind = unsigned(kind_of(i.parts[-1]))
    d, a, b, carry = i.operands
    a, b = e.use(a, kind), e.use(b, kind)
    carried = f"{e.use(carry, 'u4')}.astype({kind})"
    partial, result = e.fresh(), e.fresh()
    if i.parts[0] == "addc":
        e.line(f"{partial} = {a} + {b}")
        e.line(f"{result} = {partial} + {carried}")
        over = f"(({partial} < {a}) | ({result} < {partial}))"
    else:
        e.line(f"{partial} = {a} - {b}")
        e.line(f"{result} = {partial} - {carried}")
        over = f"(({a} < {b}) | ({partial} < {carried}))"
    flag = e.fresh()
    e.line(f"{flag} = {over}.astype(u4)")
    e.define(d, kind, result)
    if "cc" in i.parts:
        e.define(carry, "u4", flag)


def _product(e: Emitter, i: Instruction) -> tuple[str, str]:
    """Kind and source of the product of the first two sources."""
    e.only(i, "lo", "hi", "wide", "cc", "sat")
    kind = kind_of(i.parts[-1])
    a, b = i.operands[1:3]
    if "wide" in i.parts:
        wide = _wide(kind)
        return wide, f"{e.use(a, kind)}.astype({wide}) * {e.use(b, kind)}.astype({wide})"
    if "hi" in i.parts:
        if kind[1] == "8":
            return kind, f"{e.helper(high_product)}({e.use(a, kind)}, {e.use(b, kind)})"
        wide, bits = _wide(kind), 8 * int(kind[1:])
        product = f"{e.use(a, kind)}.astype({wide}) * {e.use(b, kind)}.astype({wide})"
        return kind, f"(({product}) >> {e.constant(wide, bits)}).astype({kind})"
    kind = unsigned(kind)
    return kind, f"{e.use(a, kind)} * {e.use(b, kind)}"


@expression(*_forms("mul"))
def multiply(e: Emitter, i: Instruction) -> None:
    kind, source = _product(e, i)
    e.define(i.operands[0], kind, source)


@expression(*_forms("mad"), "madc")
def multiply_add(e: Emitter, i: Instruction) -> None:
    kind, source = _product(e, i)
    addend = e.use(i.operands[3], kind)
    if "sat" in i.parts:
        source = f"{e.helper(saturated_add)}({source}, {addend}, 1)"
        return e.define(i.operands[0], kind, source)
    partial, result = e.fresh(), e.fresh()
    e.line(f"{partial} = {source}")
    e.line(f"{result} = {partial} + {addend}")
    plain = unsigned(kind)
    over = f"({result}.view({plain}) < {partial}.view({plain}))"
    if i.parts[0] == "madc":
        carry, total = f"{e.use(i.operands[4], 'u4')}.astype({kind})", e.fresh()
        e.line(f"{total} = {result} + {carry}")
        over = f"({over} | ({total}.view({plain}) < {result}.view({plain})))"
        result = total
    flag = e.fresh()
    if "cc" in i.parts:
        e.line(f"{flag} = {over}.astype(u4)")
    e.define(i.operands[0], kind, result)
    if "cc" in i.parts:
        e.define(i.operands[4], "u4", flag)


@expression("mul24", "mad24")
def multiply_24(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    wide, eight = _wide(kind), e.constant(kind, 8)
    a, b = (f"(({e.use(o, kind)} << {eight}) >> {eight})" for o in i.operands[1:3])
    product = f"({a}.astype({wide}) * {b}.astype({wide}))"
    if "hi" in i.parts:
        product = f"({product} >> {e.constant(wide, 16)})"
    source = f"{product}.astype({kind})"
    if i.parts[0] == "mad24":
        source = f"{source} + {e.use(i.operands[3], kind)}"
    e.define(i.operands[0], kind, source)


@expression(*_forms("div", "rem"))
def divide(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    helper = e.helper(quotient if i.parts[0] == "div" else remainder)
    a, b = i.operands[1:3]
    if kind[0] == "u" and isinstance(b, Immediate) and b.value % (1 << 8 * int(kind[1:])):
        sign = "//" if i.parts[0] == "div" else "%"
        return e.define(i.operands[0], kind, f"{e.use(a, kind)} {sign} {e.use(b, kind)}")
    e.define(i.operands[0], kind, f"{helper}({e.use(a, kind)}, {e.use(b, kind)})")


@expression(*_forms("min", "max"))
def extreme(e: Emitter, i: Instruction) -> None:
    e.only(i, "relu")
    kind = kind_of(i.parts[-1])
    name = "minimum" if i.parts[0] == "min" else "maximum"
    source = f"np.{name}({e.use(i.operands[1], kind)}, {e.use(i.operands[2], kind)})"
    if "relu" in i.parts:
        source = f"np.maximum({source}, {e.constant(kind, 0)})"
    e.define(i.operands[0], kind, source)


@expression(*_forms("neg"))
def negate(e: Emitter, i: Instruction) -> None:
    kind = unsigned(kind_of(i.parts[-1]))
    e.define(i.operands[0], kind, f"{e.constant(kind, 0)} - {e.use(i.operands[1], kind)}")


@expression(*_forms("abs"))
def absolute(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    e.define(i.operands[0], kind, f"np.abs({e.use(i.operands[1], kind)})")


@expression("sad")
def absolute_difference(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    a, b = e.use(i.operands[1], kind), e.use(i.operands[2], kind)
    plain = unsigned(kind)
    difference = f"(np.maximum({a}, {b}) - np.minimum({a}, {b})).view({plain})"
    e.define(i.operands[0], plain, f"{difference} + {e.use(i.operands[3], plain)}")


@expression(*_forms("and", "or", "xor"))
def bitwise(e: Emitter, i: Instruction) -> None:
    kind = unsigned(kind_of(i.parts[-1]))
    sign = {"and": "&", "or": "|", "xor": "^"}[i.parts[0]]
    e.define(
        i.operands[0], kind, f"{e.use(i.operands[1], kind)} {sign} {e.use(i.operands[2], kind)}"
    )


@expression(*_forms("not"))
def invert(e: Emitter, i: Instruction) -> None:
    kind = unsigned(kind_of(i.parts[-1]))
    e.define(i.operands[0], kind, f"~{e.use(i.operands[1], kind)}")


@expression(*_forms("cnot"))
def logical_not(e: Emitter, i: Instruction) -> None:
    kind = unsigned(kind_of(i.parts[-1]))
    e.define(
        i.operands[0],
        kind,
        f"({e.use(i.operands[1], kind)} == {e.constant(kind, 0)}).astype({kind})",
    )


@expression("shl", "shr")
def shift(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    bits = 8 * int(kind[1:])
    amount = i.operands[2]
    most = bits - 1 if kind[0] == "i" and i.parts[0] == "shr" else bits
    if i.parts[0] == "shl":
        kind = unsigned(kind)
    if isinstance(amount, Immediate):
        by = e.constant(kind, min(amount.value % (1 << 32), most))
    else:
        by = f"np.minimum({e.use(amount, 'u4')}, {e.constant('u4', most)}).astype({kind})"
    sign = "<<" if i.parts[0] == "shl" else ">>"
    e.define(i.operands[0], kind, f"{e.use(i.operands[1], kind)} {sign} {by}")


@expression("shf")
def funnel_shift(e: Emitter, i: Instruction) -> None:
    low, high, amount = (e.use(o, "u4") for o in i.operands[1:])
    left, wrap = i.parts[1] == "l", i.parts[2] == "wrap"
    e.define(i.operands[0], "u4", f"{e.helper(funnel)}({low}, {high}, {amount}, {left}, {wrap})")


def _simple(
    function: Callable[..., Any], result: str = ""
) -> Callable[[Emitter, Instruction], None]:
    """d = function(a, ...): the first source in the instruction's type, the rest as u4."""

    def emit(e: Emitter, i: Instruction) -> None:
        kind = kind_of(i.parts[-1])
        first, *rest = i.operands[1:]
        wanted = function.__code__.co_argcount
        if len(rest) + 1 != wanted:
            raise e.error(i, f"it takes {wanted} operands")
        sources = ", ".join([e.use(first, kind), *(e.use(o, "u4") for o in rest)])
        e.define(i.operands[0], result or kind, f"{e.helper(function)}({sources})")

    return emit


@expression("popc")
def popc(e: Emitter, i: Instruction) -> None:
    _simple(population, "u4")(e, i)


@expression("clz")
def clz(e: Emitter, i: Instruction) -> None:
    _simple(leading_zeros, "u4")(e, i)


@expression("brev")
def brev(e: Emitter, i: Instruction) -> None:
    _simple(reverse_bits)(e, i)


@expression("bfe")
def bfe(e: Emitter, i: Instruction) -> None:
    _simple(extract_field)(e, i)


@expression("bfi")
def bfi(e: Emitter, i: Instruction) -> None:
    kind = kind_of(i.parts[-1])
    a, b = e.use(i.operands[1], kind), e.use(i.operands[2], kind)
    position, length = e.use(i.operands[3], "u4"), e.use(i.operands[4], "u4")
    e.define(i.operands[0], kind, f"{e.helper(insert_field)}({a}, {b}, {position}, {length})")


@expression("bfind")
def bfind(e: Emitter, i: Instruction) -> None:
    value = e.use(i.operands[1], kind_of(i.parts[-1]))
    e.define(i.operands[0], "u4", f"{e.helper(leading_bit)}({value}, {'shiftamt' in i.parts})")


@expression("bmsk")
def bit_mask(e: Emitter, i: Instruction) -> None:
    ones, base, length = e.constant("u4", -1), *(e.use(o, "u4") for o in i.operands[1:])
    if i.parts[1] == "wrap":
        base, length = (f"({x} & {e.constant('u4', 31)})" for x in (base, length))
    zero = e.constant("u4", 0)
    e.define(i.operands[0], "u4", f"{e.helper(insert_field)}({ones}, {zero}, {base}, {length})")


@expression("prmt")
def permute(e: Emitter, i: Instruction) -> None:
    a, b, selector = (e.use(o, "u4") for o in i.operands[1:])
    mode = i.parts[2] if len(i.parts) > 2 else ""
    e.define(i.operands[0], "u4", f"{e.helper(permute_bytes)}({a}, {b}, {selector}, {mode!r})")


@expression("lop3")
def logic_of_three(e: Emitter, i: Instruction) -> None:
    table = i.operands[4]
    if not isinstance(table, Immediate) or len(i.parts) > 2:
        raise e.error(i, "only lop3.b32 with a constant table is simulated")
    a, b, c = (e.use(o, "u4") for o in i.operands[1:4])
    e.define(i.operands[0], "u4", f"{e.helper(look_up)}({a}, {b}, {c}, {table.value})")


@expression("dp4a", "dp2a")
def dot(e: Emitter, i: Instruction) -> None:
    signed_a, signed_b = i.parts[-2] == "s32", i.parts[-1] == "s32"
    kind = "i4" if signed_a or signed_b else "u4"
    a, b = e.use(i.operands[1], "u4"), e.use(i.operands[2], "u4")
    c = f"{e.use(i.operands[3], kind)}.astype(i8)"
    if i.parts[0] == "dp4a":
        source = f"{e.helper(dot_bytes)}({a}, {b}, {c}, {signed_a}, {signed_b})"
    else:
        high = i.parts[1] == "hi"
        source = f"{e.helper(dot_halves)}({a}, {b}, {c}, {signed_a}, {signed_b}, {high})"
    e.define(i.operands[0], kind, f"{source}.astype({kind})")

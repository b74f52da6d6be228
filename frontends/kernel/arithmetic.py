"""Operators on tiles: promotion, broadcasting, arithmetic, comparison, casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...hlo.types import BF16, F16, F32, I1, I32, ElementType, TensorType
from .values import INDEX, Affine, LanguageError, Tile, TracedMemory, current, is_number

_RANKS = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def promoted(*values: Any) -> ElementType:
    """The element type that values meet in: bool < integers < floats, then the wider one.

    Python numbers take the type of the tiles; one of a higher kind makes them i32 or f32.
    """
    tiles = [value.dtype for value in values if isinstance(value, Tile)]
    numbers = [value for value in values if not isinstance(value, Tile)]
    found = tiles[0] if tiles else None
    for element in tiles[1:]:
        assert found is not None
        found = _meet(found, element)
    for number in numbers:
        kind = _number_element(number)
        if found is None or _RANKS[kind.kind] > _RANKS[found.kind]:
            found = kind
    assert found is not None
    return found


def _number_element(number: Any) -> ElementType:
    if isinstance(number, (bool, np.bool_)):
        return I1
    return I32 if isinstance(number, (int, np.integer)) else F32


def _meet(left: ElementType, right: ElementType) -> ElementType:
    if left is right:
        return left
    ranks = [_RANKS.get(element.kind, -1) for element in (left, right)]
    if -1 in ranks:
        raise LanguageError(f"{left} and {right} do not meet; cast one with .to(...)")
    if ranks[0] != ranks[1]:
        return left if ranks[0] > ranks[1] else right
    if {left, right} == {F16, BF16}:
        return F32
    if left.bits == right.bits or (left.kind != right.kind and left.kind != "float"):
        wide, small = (left, right) if left.bits > right.bits else (right, left)
        if wide.kind == "int" and wide.bits > small.bits:
            return wide
        raise LanguageError(f"{left} and {right} do not meet; cast one with .to(...)")
    return left if left.bits > right.bits else right


def tile_of(value: Any, element: ElementType | None = None, dims: Any = ()) -> Tile:
    """A tile, or a number as a constant tile of those dims."""
    if isinstance(value, Tile):
        return value
    if isinstance(value, TracedMemory):
        raise LanguageError(
            f"{value} is memory: read a window of it first, as in {value.name}[...]"
        )
    if not is_number(value):
        raise LanguageError(f"a tile or a number is needed here, not {_described(value)}")
    element = element or _number_element(value)
    _check_fits(value, element)
    return Tile(current().constant(value, TensorType(dims, element)), Affine.of(value))


def _check_fits(number: Any, element: ElementType) -> None:
    if element.is_integer and not isinstance(number, (float, np.floating)):
        low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
        high = (1 << (element.bits - (element.kind == "int"))) - 1
        if not low <= int(number) <= high:
            raise LanguageError(f"{number} does not fit into {element}")


def _described(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def cast(tile: Tile, element: ElementType) -> Tile:
    """`tile` as that element type; to bool: whether it is not zero."""
    if tile.dtype is element:
        return tile
    trace = current()
    if element is I1:
        zero = trace.constant(0, tile.value.tensor)
        return Tile(trace.builder.compare("NE", tile.value, zero))
    return Tile(trace.builder.convert(tile.value, element))


def common_dims(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """numpy's rule: aligned at the end, sizes of 1 repeat."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise LanguageError(f"tiles of {listed} do not broadcast") from None


def spread(tile: Tile, dims: tuple[int, ...]) -> Tile:
    """`tile` broadcast to `dims`."""
    if tile.shape == dims:
        return tile
    value = tile.value
    mapped = tuple(range(len(dims) - value.rank, len(dims)))
    # A size-1 dim that a reshape put in is left out: one broadcast then says it all.
    source = value.op.operands[0] if value.op and value.op.name == "reshape" else None
    if source is not None and [n for n in value.dims if n != 1] == list(source.dims):
        mapped = tuple(at for at, n in zip(mapped, value.dims, strict=True) if n != 1)
        value = source
    if any(n not in (1, dims[at]) for n, at in zip(value.dims, mapped, strict=True)):
        raise LanguageError(f"a tile of {list(tile.shape)} does not broadcast to {list(dims)}")
    trace = current()
    kept = [(n, at) for n, at in zip(value.dims, mapped, strict=True) if n == dims[at]]
    if len(kept) != value.rank:
        value = trace.builder.reshape(value, [n for n, _ in kept])
        mapped = tuple(at for _, at in kept)
    return Tile(trace.builder.broadcast(value, dims, mapped))


def together(*values: Any, element: ElementType | None = None) -> list[Tile]:
    """All values as tiles of one type and one shape."""
    for value in values:
        if not is_number(value):
            tile_of(value)  # says what is wrong with it
    element = element or promoted(*values)
    dims = common_dims(*(value.shape for value in values if isinstance(value, Tile)))
    found = []
    for value in values:
        if isinstance(value, Tile):
            found.append(spread(cast(value, element), dims))
        else:
            found.append(tile_of(value, element, dims))
    return found


def apply(name: str, *values: Any, element: ElementType | None = None) -> Tile:
    """An elementwise operation on values that are brought together."""
    return Tile(current().op(name, *(tile.value for tile in together(*values, element=element))))


def _needs_float(*values: Any) -> ElementType:
    element = promoted(*values)
    return element if element.is_float else F32


def divide(left: Any, right: Any) -> Tile:
    """True division: integers become f32."""
    return apply("divide", left, right, element=_needs_float(left, right))


def floor_divide(left: Any, right: Any) -> Tile:
    """The largest integer not above left / right, as in Python."""
    trace = current()
    x, y = together(left, right)
    if x.dtype.is_float:
        return Tile(trace.op("floor", trace.op("divide", x.value, y.value)))
    quotient = Tile(trace.op("divide", x.value, y.value))
    if _truncates(left, right, x.dtype):
        trace.natural.add(quotient.value)
        return quotient
    return apply("subtract", quotient, cast(_crosses_zero(x, y), x.dtype))


def modulo(left: Any, right: Any) -> Tile:
    """left - right * (left // right), as in Python: the sign is that of `right`."""
    trace = current()
    x, y = together(left, right)
    rest = Tile(trace.op("remainder", x.value, y.value))
    if _truncates(left, right, x.dtype):
        trace.natural.add(rest.value)
        return rest
    zero = Tile(trace.constant(0, x.value.tensor))
    shifted = apply("add", rest, y)
    return Tile(trace.op("select", _crosses(rest, y, zero).value, shifted.value, rest.value))


def _truncates(left: Any, right: Any, element: ElementType) -> bool:
    """Whether division towards zero is the same as towards minus infinity."""
    trace = current()
    return element.kind == "uint" or (trace.is_natural(left) and trace.is_natural(right))


def _crosses_zero(x: Tile, y: Tile) -> Tile:
    rest = Tile(current().op("remainder", x.value, y.value))
    return _crosses(rest, y, Tile(current().constant(0, x.value.tensor)))


def _crosses(rest: Tile, y: Tile, zero: Tile) -> Tile:
    """Whether the rest is not zero and of another sign than `y`."""
    differs = apply("xor", compare("LT", rest, zero), compare("LT", y, zero))
    return apply("and", compare("NE", rest, zero), differs)


def compare(direction: str, left: Any, right: Any) -> Tile:
    """Elementwise comparison: EQ, NE, LT, LE, GT or GE."""
    x, y = together(left, right)
    return Tile(current().builder.compare(direction, x.value, y.value))


def negate(value: Any) -> Tile:
    tile = tile_of(value)
    if tile.dtype is I1:
        raise LanguageError("a truth value has no negative; use ~")
    return _indexed(Tile(current().op("negate", tile.value)), lambda x: x.times(-1), value)


def invert(value: Any) -> Tile:
    tile = tile_of(value)
    if tile.dtype.is_float:
        raise LanguageError(f"~ needs integers or truth values, not {tile}")
    return Tile(current().op("not", tile.value))


def _indexed(result: Tile, form: Callable[..., Affine], *values: Any) -> Tile:
    """The result with the affine form of the operands' ones, where all have one."""
    forms = [Affine.of(value) for value in values]
    if result.value.rank == 0 and result.dtype is I32 and all(f is not None for f in forms):
        return _known(result, form(*forms))
    return result


def index_of(number: int) -> Tile:
    """An index whose value is known; as an index it behaves like those that are not."""
    return Tile(current().constant(number, INDEX), Affine((), number))


def _known(result: Tile, form: Affine) -> Tile:
    """An index with its affine form; a constant where that has no terms."""
    if not form.terms:
        return index_of(form.constant)
    result.affine = form
    return result


def _add(left: Any, right: Any) -> Tile:
    return _indexed(apply("add", left, right), lambda x, y: x.plus(y), left, right)


def _subtract(left: Any, right: Any) -> Tile:
    return _indexed(apply("subtract", left, right), lambda x, y: x.plus(y, -1), left, right)


def _multiply(left: Any, right: Any) -> Tile:
    result = apply("multiply", left, right)
    first, second = Affine.of(left), Affine.of(right)
    if result.value.rank == 0 and result.dtype is I32 and first and second:
        for one, other in ((first, second), (second, first)):
            if not one.terms:
                return _known(result, other.times(one.constant))
        if current().is_natural(left) and current().is_natural(right):
            current().natural.add(result.value)
    return result


def _bits(name: str) -> Callable[[Any, Any], Tile]:
    def build(left: Any, right: Any) -> Tile:
        if promoted(left, right).is_float:
            raise LanguageError("bit operations need integers or truth values")
        return apply(name, left, right)

    return build


def _shift_right(left: Any, right: Any) -> Tile:
    logical = promoted(left, right).kind == "uint"
    return _bits("shift_right_logical" if logical else "shift_right_arithmetic")(left, right)


def _power(left: Any, right: Any) -> Tile:
    """Small constant integer powers are products; others the power function."""
    if isinstance(right, int) and 1 <= right <= 4 and isinstance(left, Tile):
        result = left
        if right >= 2:
            result = square = apply("multiply", left, left)
            if right >= 3:
                result = apply("multiply", square, left if right == 3 else square)
        return result
    return apply("power", left, right, element=_needs_float(left, right))


def _matmul(left: Any, right: Any) -> Tile:
    raise LanguageError("write a product of matrices as tl.dot(a, b, acc)")


BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Tile]]] = {
    "Add": (operator.add, _add),
    "Sub": (operator.sub, _subtract),
    "Mult": (operator.mul, _multiply),
    "Div": (operator.truediv, divide),
    "FloorDiv": (operator.floordiv, floor_divide),
    "Mod": (operator.mod, modulo),
    "Pow": (operator.pow, _power),
    "MatMult": (operator.matmul, _matmul),
    "BitAnd": (operator.and_, _bits("and")),
    "BitOr": (operator.or_, _bits("or")),
    "BitXor": (operator.xor, _bits("xor")),
    "LShift": (operator.lshift, _bits("shift_left")),
    "RShift": (operator.rshift, _shift_right),
}
"""Name of the syntax node -> on constants, on tiles."""

COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "Eq": (operator.eq, "EQ"),
    "NotEq": (operator.ne, "NE"),
    "Lt": (operator.lt, "LT"),
    "LtE": (operator.le, "LE"),
    "Gt": (operator.gt, "GT"),
    "GtE": (operator.ge, "GE"),
}

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Tile]]] = {
    "USub": (operator.neg, negate),
    "UAdd": (operator.pos, tile_of),
    "Invert": (operator.invert, invert),
}


def is_traced(*values: Any) -> bool:
    """Whether one of the values is computed by the kernel."""
    return any(isinstance(value, (Tile, TracedMemory)) for value in values)

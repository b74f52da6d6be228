"""Operations that move elements, as index arithmetic: which element of an operand is wanted where.

Each rule computes `width` elements of an operation's result from the operands' elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...hlo.errors import CompilerBug
from ...hlo.graph import Op
from ...hlo.types import I32, I64
from .. import llvm
from . import arithmetic, elements
from .elements import Register
from .index import SAME, ZERO, Affine, delinear, linear, number

if TYPE_CHECKING:
    from .elementwise import ElementEmitter, Mask

Rule = Callable[["ElementEmitter", Op, tuple[Affine, ...], int, "Mask | None"], Register]
TABLE_BYTES = 65536  # larger constants must come as operands


def _constant(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    dense = op.attributes["value"]
    element = op.type.element
    if dense.is_splat:
        return elements.register_constant(element, dense.splat_value, width)
    if dense.type.bytes > TABLE_BYTES:
        raise CompilerBug(f"a constant of {dense.type} must be an operand of its kernel")
    pointer = e.function.module.data(dense.array.tobytes())
    return e.load(pointer, element, linear(index, op.type.dims), width, mask)


def _iota(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    at = index[op.iota_dimension]
    if width > 1:
        place = e.indexer.vector(at, width)
        source = I32 if place.element == "i32" else I64
    else:
        place, source = e.indexer.scalar(at), I64
    return arithmetic.convert(e.function, place, source, op.type.element)


def _broadcast_in_dim(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source = op.operands[0]
    inner = tuple(
        ZERO if size == 1 else index[target]
        for size, target in zip(source.dims, op.broadcast_dimensions, strict=True)
    )
    return e.at(source, inner, width, mask)


def _broadcast(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    return e.at(op.operands[0], index[len(op.broadcast_sizes) :], width, mask)


def _reshape(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source = op.operands[0]
    inner = delinear(e.indexer, linear(index, op.type.dims), source.dims, width)
    return e.at(source, inner, width, mask)


def _transpose(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    inner = [ZERO] * len(index)
    for at, source in zip(index, op.permutation, strict=True):
        inner[source] = at
    return e.at(op.operands[0], tuple(inner), width, mask)


def _slice(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    inner = tuple(
        at * stride + start
        for at, start, stride in zip(index, op.start_indices, op.strides, strict=True)
    )
    return e.at(op.operands[0], inner, width, mask)


def _reverse(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    inner = tuple(
        at * -1 + (size - 1) if position in op.dimensions else at
        for position, (at, size) in enumerate(zip(index, op.type.dims, strict=True))
    )
    return e.at(op.operands[0], inner, width, mask)


def _pad(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source, padding = op.operands
    outside = e.at(padding, (), width, None)
    inner: list[Affine] = []
    inside: Mask | None = None
    paddings = zip(
        index, source.dims, op.edge_padding_low, op.interior_padding, strict=True
    )  # fmt: skip
    for at, size, low, interior in paddings:
        shifted = at + -low
        step = interior + 1
        if step > 1:
            # Division wants a non-negative dividend: shift by whole steps and back.
            steps = max(0, -(shifted.low // step))
            quotient, rest = e.indexer.divide(shifted + steps * step, step, width)
            shifted = quotient + -steps
            on_element = e.in_range(rest, 0, 1, width)
            if on_element is False:
                return outside
            inside = e.both(inside, on_element)
        valid = e.in_range(shifted, 0, size, width)
        if valid is False:
            return outside
        inside = e.both(inside, valid)
        inner.append(shifted.within(0, size - 1))
    value = e.at(source, tuple(inner), width, e.both(mask, inside))
    if inside is None:
        return value
    return arithmetic.select(e.function, inside.value, value, outside)


def _concatenate(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    dimension = op.dimension
    at = index[dimension]
    result: Register | None = None
    begin = 0
    for piece in op.operands:
        size = piece.dims[dimension]
        valid = e.in_range(at, begin, begin + size, width) if size else False
        if valid is not False:
            inner = (at + -begin).within(0, size - 1)
            place = (*index[:dimension], inner, *index[dimension + 1 :])
            value = e.at(piece, place, width, e.both(mask, valid))
            if result is None or valid is None:
                result = value
            else:
                result = arithmetic.select(e.function, valid.value, value, result)
        begin += size
    assert result is not None
    return result


def _dynamic_slice(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source, *starts = op.operands
    inner = tuple(
        (at + e.clamped(start, (), size - window, width, None)).within(0, size - 1)
        for at, start, size, window in zip(index, starts, source.dims, op.slice_sizes, strict=True)
    )
    return e.at(source, inner, width, mask)


def _dynamic_update_slice(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source, update, *starts = op.operands
    inside: Mask | None = None
    inner: list[Affine] = []
    for at, start, size, window in zip(index, starts, source.dims, update.dims, strict=True):
        shifted = at - e.clamped(start, (), size - window, width, None)
        valid = e.in_range(shifted, 0, window, width) if window else False
        if valid is False:
            return e.at(source, index, width, mask)
        inside = e.both(inside, valid)
        inner.append(shifted.within(0, window - 1))
    value = e.at(update, tuple(inner), width, e.both(mask, inside))
    if inside is None:
        return value
    return arithmetic.select(e.function, inside.value, value, e.at(source, index, width, mask))


def _gather(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    source, starts = op.operands
    batch = [at for d, at in enumerate(index) if d not in op.offset_dims]
    inside = [at for d, at in enumerate(index) if d in op.offset_dims]
    dropped = {*op.collapsed_slice_dims, *op.attributes.get("operand_batching_dims", ())}
    window = iter(inside)
    inner = [ZERO if d in dropped else next(window) for d in range(source.rank)]
    vector_dim = op.index_vector_dim
    for number_of, target in enumerate(op.start_index_map):
        place = list(batch)
        if vector_dim < starts.rank:
            place.insert(vector_dim, number(number_of))
        high = source.dims[target] - op.slice_sizes[target]
        start = e.clamped(starts, tuple(place), high, width, mask)
        inner[target] = (inner[target] + start).within(0, source.dims[target] - 1)
    pairs = zip(
        op.attributes.get("operand_batching_dims", ()),
        op.attributes.get("start_indices_batching_dims", ()),
        strict=True,
    )
    for target, batching in pairs:
        inner[target] = batch[batching - (1 if batching > vector_dim else 0)]
    return e.at(source, tuple(inner), width, mask)


def _bitcast_convert(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    f, source = e.function, op.operands[0]
    old, new = source.element, op.type.element
    if old.is_complex or new.is_complex:
        if old is new:
            return e.at(source, index, width, mask)
        raise arithmetic.unsupported(op)
    raw_type, integer = elements.memory_type(f, new), f"i{new.bits}"
    if new.bits == old.bits:
        raw = elements.narrow(f, _real(e.at(source, index, width, mask)), old)
        return elements.widen(f, f.bitcast(raw, llvm.vector(width, raw_type)), new)
    if new.bits < old.bits:
        raw = elements.narrow(f, _real(e.at(source, index[:-1], width, mask)), old)
        bits = f.bitcast(raw, llvm.vector(width, f"i{old.bits}"))
        part = index[-1] * new.bits
        if part.lanes == SAME:
            count = f.splat(e.indexer.scalar(part), width)
        else:
            count = e.indexer.vector(part, width)
        opcode = "trunc" if llvm.bits_of(count.type) > old.bits else "zext"
        if llvm.bits_of(count.type) != old.bits:
            count = f.cast(opcode, count, f"i{old.bits}")
        bits = f.cast("trunc", f.lshr(bits, count), integer)
        if new.bits < 8:
            bits = f.cast("zext", bits, "i8")
        return elements.widen(f, f.bitcast(bits, llvm.vector(width, raw_type)), new)
    total: llvm.Value | None = None
    for part in range(new.bits // old.bits):
        register = _real(e.at(source, (*index, number(part)), width, mask))
        raw = elements.narrow(f, register, old)
        bits = f.bitcast(raw, llvm.vector(width, f"i{max(8, old.bits)}"))
        wide = f.shl(f.cast("zext", bits, f"i{max(8, new.bits)}"), part * old.bits)
        total = wide if total is None else f.lor(total, wide)
    assert total is not None
    return elements.widen(f, f.bitcast(total, llvm.vector(width, raw_type)), new)


def _real(register: Register) -> llvm.Value:
    assert isinstance(register, llvm.Value)
    return register


def _get_dimension_size(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    del index, mask
    size = op.operands[0].dims[op.dimension]
    return e.function.constant(llvm.vector(width, "i32"), size)


RULES: dict[str, Rule] = {
    "constant": _constant,
    "iota": _iota,
    "broadcast_in_dim": _broadcast_in_dim,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "bitcast_convert": _bitcast_convert,
    "get_dimension_size": _get_dimension_size,
}

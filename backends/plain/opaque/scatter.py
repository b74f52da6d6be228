"""scatter: updates applied in their order by one worker, lanes along the updates' last dim."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ....hlo.deciding import at_hint, common_divisor
from ....hlo.graph import Op
from ...llvm import arithmetic, elements
from ...llvm.elementwise import ElementEmitter, Inside, Mask, scalar_region
from ...llvm.index import Affine, LoopAxis, linear, number, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import fitting, lanes_for_types, steps
from .frame import copy_unless_same, frame_of, nest


def emit(op: Op, target: Target) -> KernelCode:
    """Copies the inputs (unless results share their memory), then applies every update."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    count = len(op.operands) // 2
    inputs, updates = op.operands[:count], op.operands[count + 1 :]
    if not inputs[0].tensor.size:
        return frame.finish(0, 0.0)
    dims = updates[0].dims
    width = _width(op, target)
    with scopes.branch(f.compare("slt", frame.begin, frame.end)):
        for value, pointer, result in zip(inputs, frame.pointers, frame.outputs, strict=False):
            copy_unless_same(f, scopes, result, pointer, value.tensor.bytes)
        if updates[0].tensor.size:
            inner = dims[-1] if dims else 1
            with nest(scopes, dims[:-1]) as outer:
                for j, lanes, _, mask in steps(scopes, target, 0, inner, inner, width, 1):
                    at = (*outer, j)[: len(dims)]
                    place, inside = place_of(emitter, op, at, lanes)
                    if inside is False:
                        continue
                    wanted = emitter.both(mask, inside)
                    single = wanted is not None and lanes == 1
                    # A scalar test skips the update; masks of vectors do it lane by lane.
                    with scopes.branch(wanted.value) if single else nullcontext():  # type: ignore[union-attr]
                        if single:
                            place = pinned(place, scopes.depth, emitter)
                            wanted = None
                        apply_update(frame, emitter, op, at, place, lanes, wanted)
    flops = at_hint(updates[0].tensor.size) * len(op.regions[0].ops)
    return frame.finish(1, float(flops), parallel=False)


def _width(op: Op, target: Target) -> int:
    """Vectors only where neighbours in the updates are neighbours in the input."""
    count = len(op.operands) // 2
    updates = op.operands[count + 1 :]
    rank = updates[0].rank
    if not rank or rank - 1 not in op.update_window_dims:
        return 1
    windows = windowed_dims(op)
    if windows[op.update_window_dims.index(rank - 1)] != op.operands[0].rank - 1:
        return 1
    inner = updates[0].dims[-1]
    width = fitting(lanes_for_types(target, [value.element for value in updates]), inner)
    return width if target.vector_bits == 512 or common_divisor(inner, width) == width else 1


def windowed_dims(op: Op) -> list[int]:
    """The input's dims that the updates' window dims run along."""
    skipped = {*op.inserted_window_dims, *op.input_batching_dims}
    return [d for d in range(op.operands[0].rank) if d not in skipped]


def place_of(
    emitter: ElementEmitter, op: Op, at: Sequence[Affine], width: int
) -> tuple[tuple[Affine, ...], Inside]:
    """The index in the input of an update element, and where it lies inside."""
    count = len(op.operands) // 2
    indices = op.operands[count]
    scatter_dims = [a for d, a in enumerate(at) if d not in op.update_window_dims]
    windows = dict(zip(windowed_dims(op), op.update_window_dims, strict=True))
    place: list[Affine] = []
    inside: Mask | None = None
    for d, size in enumerate(op.operands[0].dims):
        position = at[windows[d]] if d in windows else Affine((), 0)
        if d in op.input_batching_dims:
            batching = op.scatter_indices_batching_dims[op.input_batching_dims.index(d)]
            position = position + scatter_dims[batching - (batching > op.index_vector_dim)]
        if d in op.scatter_dims_to_operand_dims:
            component = op.scatter_dims_to_operand_dims.index(d)
            where = list(scatter_dims)
            if op.index_vector_dim < indices.rank:
                where.insert(op.index_vector_dim, number(component))
            position = position + _start(emitter, indices, tuple(where), size)
        valid = emitter.in_range(position, 0, size, width)
        if valid is False:
            return (), False
        inside = emitter.both(inside, valid)
        place.append(position.within(0, size - 1))
    return tuple(place), inside


def _start(
    emitter: ElementEmitter, indices: object, where: tuple[Affine, ...], size: int
) -> Affine:
    """An index component, brought to [-2^40, 2^40]: far outside stays outside."""
    f = emitter.function
    value = indices
    register = emitter.value(value, where, 1)  # type: ignore[arg-type]
    signed = value.element.kind == "int"  # type: ignore[attr-defined]
    wide = f.cast("sext" if signed else "zext", register, "i64")  # type: ignore[arg-type]
    if signed:
        wide = f.max(wide, -(1 << 40))
        wide = f.min(wide, 1 << 40)
    else:
        wide = f.min(wide, 1 << 40, signed=False)
    # Axes are not negative: shifted up here, and down again in the index.
    shifted = f.add(wide, 1 << 40)
    axis = LoopAxis(shifted, (1 << 41) + 1, depth=emitter.scopes.depth)
    return of_axis(axis) + -(1 << 40)


def pinned(place: Sequence[Affine], depth: int, emitter: ElementEmitter) -> tuple[Affine, ...]:
    """The place as axes of the branch that tested it, so that no access moves out of the test."""
    found = []
    for at in place:
        if at.terms:
            value = emitter.indexer.scalar(at)
            at = of_axis(LoopAxis(value, at.high + 1, depth=depth))
        found.append(at)
    return tuple(found)


def apply_update(
    frame: object,
    emitter: ElementEmitter,
    op: Op,
    at: Sequence[Affine],
    place: Sequence[Affine],
    width: int,
    mask: Mask | None,
) -> None:
    f = emitter.function
    count = len(op.operands) // 2
    inputs, updates = op.operands[:count], op.operands[count + 1 :]
    outputs = frame.outputs  # type: ignore[attr-defined]
    offset = linear(place, inputs[0].dims)
    body = op.regions[0]
    new = [emitter.value(value, tuple(at), width, mask) for value in updates]
    old = [
        emitter.load(pointer, result.element, offset, width, mask)
        for pointer, result in zip(outputs, op.results, strict=True)
    ]
    kinds = [argument.element for argument in body.arguments]
    given = [
        arithmetic.convert(f, register, value.element, kind)
        for register, value, kind in zip([*old, *new], [*op.results, *updates], kinds, strict=True)
    ]
    for pointer, result, register in zip(
        outputs, op.results, scalar_region(f, body, given, width), strict=True
    ):
        if isinstance(register, elements.Pair) or not elements.is_rounded(result.element):
            emitter.store(pointer, register, result.element, offset, width, mask)
        else:
            rounded = elements.rounded(f, register, result.element)
            emitter.store(pointer, rounded, result.element, offset, width, mask)

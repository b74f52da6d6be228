"""dynamic_update_slice and scatter: a copy, unless operand and result are one, then the updates.

Updates that may meet in one element are applied by one thread in their order, so that results
never depend on scheduling; what keeps its place along a dim of the result is done in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....hlo.graph import Op
from ....hlo.symbols import maximum
from ... import llvm
from ...llvm.elementwise import ElementEmitter
from ...llvm.index import Affine, Indexer, delinear, linear
from ...plain.opaque.scatter import apply_update, pinned, place_of, windowed_dims
from .loops import nested
from .work import Place, Worker

if TYPE_CHECKING:
    from .region import RegionLowering

_VECTOR = 16  # bytes of one access


def copy(work: Worker, source: Place, target: Place, size: int) -> None:
    """Copies bytes, a vector at a time; nothing happens where both are one place."""
    if not size or source == target:
        return
    vectors, rest = divmod(size, _VECTOR)
    threads = maximum(vectors, rest)
    step = work.begin([source], [target], threads)
    f, scopes, (read, write) = step.function, step.scopes, step.pointers
    indexer = Indexer(scopes)
    kind = f"<{_VECTOR} x i8>"
    with scopes.branch(f.compare("ne", read, write)):
        if vectors:
            with step.each(vectors) as place:
                at = indexer.scalar(place)
                value = f.load(kind, f.pointer(read, at, kind), align=_VECTOR)
                f.store(value, f.pointer(write, at, kind), align=_VECTOR)
        if rest:
            with step.each(rest) as place:
                at = indexer.scalar(place + vectors * _VECTOR)
                f.store(f.load("i8", f.pointer(read, at, "i8")), f.pointer(write, at, "i8"))
    work.end(step, threads)


def slice_update(lowering: RegionLowering, op: Op, output: Place) -> None:
    """The operand with a window replaced."""
    source, update, *starts = op.operands
    copy(lowering.work, lowering.stored(source), output, source.tensor.bytes)
    count = update.tensor.size
    if not count:
        return
    step, emitter = lowering.open([update, *starts], [output], count)
    with step.each(count) as at:
        index = delinear(emitter.indexer, at, update.dims, 1)
        register = emitter.value(update, index)
        place = [
            one + emitter.clamped(start, (), size - window, 1, None)
            for one, start, size, window in zip(
                index, starts, source.dims, update.dims, strict=True
            )
        ]
        where = linear(place, source.dims)
        emitter.store(step.pointers[-1], register, update.element, where)
    lowering.work.end(step, count)


@dataclass
class _UpdateFrame:
    """What `apply_update` asks of a kernel."""

    outputs: Sequence[llvm.Value]


def scatter(lowering: RegionLowering, op: Op, outputs: Sequence[Place]) -> None:
    """Inputs with updates combined in; a thread per place along the dims that stay apart."""
    count = len(op.operands) // 2
    inputs, updates = op.operands[:count], op.operands[count + 1 :]
    for value, output in zip(inputs, outputs, strict=True):
        copy(lowering.work, lowering.stored(value), output, value.tensor.bytes)
    dims = updates[0].dims
    if not updates[0].tensor.size or not inputs[0].tensor.size:
        return
    parallel = _parallel_dims(op)
    serial = [d for d in range(len(dims)) if d not in parallel]
    sizes = [dims[d] for d in parallel]
    threads = math.prod(sizes)
    step, emitter = lowering.open(op.operands[count:], outputs, threads)
    scopes, frame = step.scopes, _UpdateFrame(step.pointers[-len(outputs) :])
    with step.each(threads) as at:
        outer = delinear(emitter.indexer, at, sizes, 1)

        def body(inner: list[Affine], values: list[object]) -> list[object]:
            index = [Affine((), 0)] * len(dims)
            for place, d in (*zip(outer, parallel, strict=True), *zip(inner, serial, strict=True)):
                index[d] = place
            _apply(emitter, op, index, frame)
            return values

        nested(scopes, [dims[d] for d in serial], [], body)  # type: ignore[arg-type]
    lowering.work.end(step, threads)


def _apply(emitter: ElementEmitter, op: Op, index: list[Affine], frame: _UpdateFrame) -> None:
    """One update, where it lies inside."""
    place, inside = place_of(emitter, op, index, 1)
    if inside is False:
        return
    scopes = emitter.scopes
    with scopes.branch(inside.value) if inside is not None else nullcontext():
        if inside is not None:
            place = pinned(place, scopes.depth, emitter)
        apply_update(frame, emitter, op, index, place, 1, None)


def _parallel_dims(op: Op) -> list[int]:
    """The dims of the updates along which two updates never meet in one element."""
    count = len(op.operands) // 2
    indices, updates = op.operands[count], op.operands[count + 1]
    if op.unique_indices:
        return list(range(updates.rank))
    windows = dict(zip(op.update_window_dims, windowed_dims(op), strict=True))
    found = [d for d, own in windows.items() if own not in op.scatter_dims_to_operand_dims]
    scattered = [d for d in range(updates.rank) if d not in op.update_window_dims]
    batching = {d - (d > op.index_vector_dim) for d in op.scatter_indices_batching_dims}
    assert len(scattered) == indices.rank - (op.index_vector_dim < indices.rank)
    return sorted([*found, *(d for n, d in enumerate(scattered) if n in batching)])

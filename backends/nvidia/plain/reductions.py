"""reduce, one thread per result, in the order of the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....hlo.graph import Op
from ...llvm.elements import Register
from ...llvm.index import Affine, delinear
from ...plain.monoid import Reduction
from .loops import nested
from .work import Place

if TYPE_CHECKING:
    from .region import RegionLowering


def reduce(lowering: RegionLowering, op: Op, outputs: Sequence[Place]) -> None:
    """results[kept] = body over the reduced dims, the initial values first."""
    reduction = Reduction(op)
    dims, reduced = reduction.inputs[0].dims, sorted(op.dimensions)
    kept = [d for d in range(len(dims)) if d not in set(reduced)]
    sizes = [dims[d] for d in kept]
    count = math.prod(sizes)
    if not count:
        return
    step, emitter = lowering.open(op.operands, outputs, count)
    f, targets = step.function, step.pointers[-len(outputs) :]

    def initial() -> list[Register]:
        registers = [emitter.value(value, ()) for value in reduction.initial]
        return reduction.read(f, registers)

    with step.each(count) as at:
        outer = delinear(emitter.indexer, at, sizes, 1)

        def body(inner: list[Affine], values: list[Register]) -> list[Register]:
            index = [Affine((), 0)] * len(dims)
            for place, d in (*zip(outer, kept, strict=True), *zip(inner, reduced, strict=True)):
                index[d] = place
            read = [emitter.value(value, index) for value in reduction.inputs]
            return reduction.combine(f, values, reduction.read(f, read), 1)

        single = reduction.single is not None
        start = reduction.identity(1) if single else initial()
        values = nested(step.scopes, [dims[d] for d in reduced], start, body)
        if single and not all(map(reduction.is_identity, reduction.initial)):
            values = reduction.combine(f, initial(), values, 1)
        values = reduction.finished(f, values)
        for result, value, pointer in zip(op.results, values, targets, strict=True):
            emitter.store(pointer, value, result.element, at)
    lowering.work.end(step, count)

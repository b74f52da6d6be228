"""`columns` nests: reductions over the rows of a tile with what surrounds them, in few passes.

    m = reduce(s), p = f(s, m), l = reduce(p), g(m, l)    s, p: (rows, columns), m, l: (columns)

Lanes run along columns, so nothing is ever joined across lanes. Each pass reads the rows once: it
computes all reductions that depend on earlier passes only, and the roots that need no later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....hlo.graph import Op, Region, Value
from ...llvm.elements import Register
from ...llvm.elementwise import Mask, Override
from ...llvm.index import CONSECUTIVE, SAME, Affine, linear
from ...llvm.target import KernelCode
from ...plain.frame import Frame, lanes_for, tile_range
from ...plain.monoid import Reduction, flat, spread, unflat
from ..codegen import Target

_VECTORS = 4  # columns at a time: sums that hide the latency of an addition


@dataclass
class _ColumnPass:
    reductions: list[Reduction] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)


def fits(region: Region) -> bool:
    """Whether the region is made of one tile shape, its column vectors, and recognised sums."""
    shapes = {op.operands[0].dims for op in region.ops if op.name == "reduce"}
    if len(shapes) != 1:
        return False
    (dims,) = shapes
    if not all(isinstance(dim, int) for dim in dims):
        return False
    if len(dims) != 2 or 0 in dims or dims[0] < 2 or dims[1] < 8:
        return False
    return all(_fits(op, dims) for op in region.ops) and all(
        value.dims in (dims, dims[1:]) for value in region.results
    )


def _fits(op: Op, dims: tuple[int, ...]) -> bool:
    if op.name == "reduce":
        single = len(op.results) == 1 and tuple(op.dimensions) == (0,)
        return single and Reduction(op).single is not None
    if op.name == "constant":
        return op.attributes["value"].is_splat
    if op.name == "broadcast_in_dim":
        source, mapped = op.operands[0].dims, tuple(op.broadcast_dimensions)
        return not source or (source, mapped, op.type.dims) == (dims[1:], (1,), dims)
    if op.name == "iota":
        return op.type.dims == dims
    plain = op.definition.pattern == "elementwise" and len(op.results) == 1
    return plain and op.result.dims in (dims, dims[1:], ())


def emit(region: Region, target: Target, flops: float) -> KernelCode:
    """The kernel of a region that `fits`: one tile."""
    return _ColumnsEmitter(region, target).emit(flops)


class _ColumnsEmitter:
    def __init__(self, region: Region, target: Target) -> None:
        self.region, self.target = region, target
        self.frame = Frame(target, region.argument_types, region.result_types)
        self.f = self.frame.function
        self.emitter = self.frame.emitter(region)
        self.width = lanes_for(target, region)
        self.rows, self.columns = next(
            op.operands[0].dims for op in region.ops if op.name == "reduce"
        )
        self.passes = self._plan()
        self.found: dict[tuple[Value, object], Register] = {}

    def _plan(self) -> list[_ColumnPass]:
        stages: dict[Value, int] = {}
        for op in self.region.ops:
            own = max((stages.get(value, 0) for value in op.operands), default=0)
            stages[op.results[0]] = own + (op.name == "reduce")
        passes = [_ColumnPass() for _ in range(max(stages.values()) + 1)]
        for op in self.region.ops:
            if op.name == "reduce":
                stage = max(stages.get(value, 0) for value in op.operands)
                passes[stage].reductions.append(Reduction(op))
        for number, root in enumerate(self.region.results):
            if root.rank == 2:
                passes[stages.get(root, 0)].roots.append(number)
        return [step for step in passes if step.reductions or step.roots]

    def emit(self, flops: float) -> KernelCode:
        f, scopes = self.f, self.frame.scopes
        for op in self.region.ops:
            if op.name == "reduce":
                self.emitter.overrides[op.result] = self._known(op.result)
        with (
            tile_range(self.frame, 0, 1) as (low, high),
            scopes.branch(f.compare("slt", low, high)),
        ):
            start = 0
            for copies, width in ((_VECTORS, self.width), (1, self.width)):
                stride = copies * width
                end = start + (self.columns - start) // stride * stride
                if end > start:
                    with scopes.loop(
                        start, end, stride, extent=self.columns, lanes=CONSECUTIVE, multiple=width
                    ) as (at, _):
                        self._block(at, copies, width, None)
                start = end
            self._rest(start)
        return self.frame.finish(1, flops)

    def _rest(self, start: int) -> None:
        """Columns behind the last whole vector."""
        f, scopes = self.f, self.frame.scopes
        if start == self.columns:
            return
        if self.target.vector_bits == 512:
            width = self.width
            mask, depth = f.tail_mask(f.lift(self.columns - start, "i64"), width), scopes.depth
            with scopes.loop(
                start, start + 1, width, extent=self.columns, lanes=CONSECUTIVE, multiple=1
            ) as (at, _):
                self._block(at, 1, width, Mask(mask, depth))
            return
        with scopes.loop(start, self.columns, 1, extent=self.columns) as (at, _):
            self._block(at, 1, 1, None)

    def _block(self, at: Affine, copies: int, width: int, mask: Mask | None) -> None:
        """All passes over some columns."""
        self.emitter.base = self.frame.scopes.depth
        places = [at + copy * width for copy in range(copies)]
        for step in self.passes:
            self._pass(step, places, width, mask)
        for number, root in enumerate(self.region.results):
            if root.rank == 1:
                for place in places:
                    register = self.emitter.value(root, [place], width, mask)
                    self.emitter.store(
                        self.frame.outputs[number], register, root.element, place, width, mask
                    )
        self.emitter.base = 0

    def _pass(
        self, step: _ColumnPass, places: Sequence[Affine], width: int, mask: Mask | None
    ) -> None:
        f, scopes, emitter = self.f, self.frame.scopes, self.emitter
        start = [r.identity(width)[0] for r in step.reductions for _ in places]
        with scopes.loop(0, self.rows, 1, flat(start), extent=self.rows, lanes=SAME) as (n, loop):
            totals = iter(unflat(loop.carried, start))
            updated: list[Register] = []
            for reduction in step.reductions:
                for place in places:
                    registers = [
                        emitter.value(value, [n, place], width, mask) for value in reduction.inputs
                    ]
                    read = reduction.read(f, registers)
                    updated += reduction.combine(f, [next(totals)], read, width)
            for number in step.roots:
                root = self.region.results[number]
                for place in places:
                    register = emitter.value(root, [n, place], width, mask)
                    offset = linear([n, place], root.dims)
                    pointer = self.frame.outputs[number]
                    emitter.store(pointer, register, root.element, offset, width, mask)
            loop.carry(*flat(updated))
        totals = iter(unflat(loop.results, start))
        for reduction in step.reductions:
            for place in places:
                values = self._joined(reduction, next(totals), width)
                self.found[reduction.op.result, place.key] = reduction.finished(f, values)[0]

    def _joined(self, reduction: Reduction, total: Register, width: int) -> list[Register]:
        """The sums with the initial value."""
        if all(map(reduction.is_identity, reduction.initial)):
            return [total]
        first = [self.emitter.value(value, (), 1) for value in reduction.initial]
        initial = spread(self.f, reduction.read(self.f, first), width)
        return reduction.combine(self.f, initial, [total], width)

    def _known(self, value: Value) -> Override:
        return lambda index, width, mask: self.found[value, index[0].key]

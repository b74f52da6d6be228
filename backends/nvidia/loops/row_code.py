"""Code of rows: what threads that share a row compute of it, pass by pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....hlo.deciding import common_divisor
from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import math as math_of
from ...llvm.elements import Register, register_type, rounded
from ...llvm.elementwise import Mask, Override, splat
from ...llvm.index import SAME, Affine, LoopAxis, delinear, linear, of_axis
from ...plain.monoid import Reduction
from ...plain.passes import RowPass
from ..frame import Parameter, blocks
from ..target import WARP
from .groups import ThreadGroup
from .head import FusionKernel
from .line import ThreadRow
from .threads import ThreadEmitter

THREADS = 128  # of a block whose warps have rows of their own
_PLAIN = 2.0**60  # numbers whose quotients and remainders are neither subnormal nor infinite


@dataclass(frozen=True)
class RowCut:
    """How many threads share a row: `lanes` of a warp and `warps`; elements of their vectors."""

    lanes: int
    warps: int
    width: int
    kept: int  # elements that a thread may keep

    @property
    def threads(self) -> int:
        return self.lanes * self.warps

    def copies(self, count: int, width: int) -> int:
        """Vectors per turn of the loop over a row; 0: no loop."""
        if isinstance(count, int) and count <= self.threads * self.kept:
            return 0
        return max(1, self.kept // 2 // width)


class _RowEmitter(ThreadEmitter):
    """Divides by numbers of a row with one reciprocal per row.

    q + (x - q d) / d, with q = x (1/d) and 1/d rounded once, is x / d rounded once as long as no
    product here is subnormal or infinite; vectors with other numbers are divided one by one.
    """

    rows: tuple[int, ...] = ()

    def _compute(
        self, value: Value, index: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> Register:
        op = value.op
        if op is None or value in self.overrides or not self.divides(op):
            return super()._compute(value, index, width, mask)
        if max(at.depth for at in index) < self.scopes.depth:
            return super()._compute(value, index, width, mask)
        x, d = op.operands
        assert d.op is not None
        inner = tuple(index[target] for target in d.op.broadcast_dimensions)
        divisor = self.at(d.op.operands[0], inner, 1, None)
        return self.quotient(op, self.at(x, index, width, mask), divisor, width)

    def divides(self, op: Op) -> bool:
        """Whether it divides f32 registers by a number per row."""
        spread = op.operands[1].op if op.name == "divide" else None
        return (
            spread is not None
            and spread.name == "broadcast_in_dim"
            and spread.operands[0].dims == self.rows
            and register_type(op.result.element) == "float"
            and op.result.dims[: len(self.rows)] == self.rows
            and tuple(spread.broadcast_dimensions) == tuple(range(len(self.rows)))
        )

    def quotient(self, op: Op, x: Register, divisor: Register, width: int) -> Register:
        f = self.function
        assert isinstance(x, llvm.Value) and isinstance(divisor, llvm.Value)
        key = "reciprocal", divisor.name
        known = self.scopes.known(0)
        if key not in known:
            with self.scopes.place(0):
                size = math_of.absolute(f, divisor)
                plain = f.land(f.compare("ogt", size, 1 / _PLAIN), f.compare("olt", size, _PLAIN))
                known[key] = f.div(llvm.constant("float", 1.0), divisor), plain
        reciprocal, plain = known[key]
        near = f.mul(x, f.splat(reciprocal, width))
        rest = f.fma(f.neg(near), f.splat(divisor, width), x)
        fast = f.fma(rest, f.splat(reciprocal, width), near)
        sizes = [math_of.absolute(f, f.extract(x, lane)) for lane in range(width)]
        least = most = sizes[0]
        for size in sizes[1:]:
            least = f.intrinsic("llvm.minnum", "float", least, size)
            most = f.intrinsic("llvm.maxnum", "float", most, size)
        inside = f.land(f.compare("ogt", least, 1 / _PLAIN), f.compare("olt", most, _PLAIN))
        plain = f.land(plain, inside)
        branch = f.if_else(plain)
        with branch.then():
            branch.give(fast)
        with branch.otherwise():
            branch.give(f.div(x, f.splat(divisor, width)))
        (found,) = branch.results
        # What was computed before the branch still stands before what follows.
        self.scopes.stack[-1].block = f.block
        return rounded(f, found, op.result.element)


class RowCode:
    """Code of one launch in which a group of threads has a row; with `parts`, a part of it."""

    def __init__(
        self,
        kernel: FusionKernel,
        symbol: str,
        outer: int,
        cut: RowCut,
        parts: int = 1,
        extra: Sequence[Parameter] = (),
    ) -> None:
        region = kernel.region
        self.kernel, self.region, self.outer, self.cut, self.parts = (
            kernel, region, outer, cut, parts,
        )  # fmt: skip
        self.dims = region.results[0].dims[:outer]
        self.rows = math.prod(self.dims)
        self.each = 1 if cut.warps > 1 else max(1, THREADS // cut.lanes)  # rows of a block
        threads = max(WARP, cut.threads * self.each)
        # Of wide elements a thread holds more registers than ptxas would give it by itself.
        wide = any(value.element.itemsize > 4 for value in (*region.arguments, *region.results))
        self.part = kernel.entry(symbol, threads, extra, minimum_blocks=1 if wide else 0)
        self.f, self.scopes = self.part.function, self.part.scopes
        self.emitter = _RowEmitter(self.part.entry, region, self.part.pointers)
        self.emitter.rows = self.dims
        self.group = ThreadGroup(self.part, cut.lanes, cut.warps)
        self.lines: dict[tuple[int, int], ThreadRow] = {}
        f, row = self.f, self.part.block
        self.number: llvm.Value | None = None
        if parts > 1:
            self.number = f.urem(row, parts)
            row = f.udiv(row, parts)
        if self.each > 1:
            row = f.add(f.mul(row, self.each), f.udiv(self.part.thread, cut.lanes))
        self.present: llvm.Value | None = None
        if self.rows % self.each:
            # The threads of rows that do not exist work on the last one and store nothing.
            self.present = f.compare("ult", row, self.rows)
            row = f.min(row, self.rows - 1, signed=False)
        self.place = of_axis(LoopAxis(row, self.rows, SAME, self.scopes.depth))
        self.row = delinear(self.emitter.indexer, self.place, self.dims, 1)

    def finish(self) -> None:
        self.part.finish(blocks(self.rows, self.each) * self.parts)

    def line(self, step: RowPass, parts: int = 1) -> ThreadRow:
        """The row of a pass, whole or in parts."""
        count = math.prod(step.inner)
        key = count, parts
        if key not in self.lines:
            width = common_divisor(self.cut.width, count)
            copies = self.cut.copies(-(-count // parts), width)
            number = self.number if parts > 1 else None
            self.lines[key] = ThreadRow(self.part, self.group, count, width, copies, parts, number)
        return self.lines[key]

    def run(self, step: RowPass) -> None:
        """A pass over the whole row."""
        if step.reductions:
            for reduction, total in zip(step.reductions, self.folded(step), strict=True):
                self.conclude(reduction, total)
        if step.roots:
            for place, guard in self.line(step).places():
                self.store(step, place, self.line(step).width, guard)

    def folded(self, step: RowPass, parts: int = 1) -> list[list[Register]]:
        """The reductions of a pass over the row, or over the part of it that the block has."""

        def read(reduction: Reduction, place: Affine, width: int) -> list[Register]:
            return self.read(step, reduction, place, width)

        return self.line(step, parts).fold(step.reductions, read)

    def index(self, step: RowPass, place: Affine, width: int) -> tuple[Affine, ...]:
        return (*self.row, *delinear(self.emitter.indexer, place, step.inner, width))

    def read(
        self, step: RowPass, reduction: Reduction, place: Affine, width: int
    ) -> list[Register]:
        at = self.index(step, place, width)
        registers = [self.emitter.value(value, at, width) for value in reduction.inputs]
        return reduction.read(self.f, registers)

    def conclude(self, reduction: Reduction, total: Sequence[Register]) -> None:
        """Joins the initial values and makes the results known."""
        if not all(map(reduction.is_neutral, reduction.initial)):
            total = reduction.combine(self.f, self.initial(reduction), total, 1)
        rounded = reduction.finished(self.f, total)
        for result, register in zip(reduction.op.results, rounded, strict=True):
            self.emitter.overrides[result] = self.given(register)

    def initial(self, reduction: Reduction) -> list[Register]:
        registers = [self.emitter.value(value, (), 1) for value in reduction.initial]
        return reduction.read(self.f, registers)

    def given(self, register: Register) -> Override:
        return lambda index, width, mask: splat(self.f, register, width)

    def store(self, step: RowPass, place: Affine, width: int, guard: llvm.Value | None) -> None:
        at = self.index(step, place, width)
        roots: list[tuple[int, Value, Register]] = []
        for number in step.roots:
            root = self.region.results[number]
            roots.append((number, root, self.emitter.value(root, at, width)))
        if self.present is not None:
            guard = self.present if guard is None else self.f.land(guard, self.present)
        if guard is None:
            self.write(roots, at, width)
        else:
            with self.scopes.branch(guard):
                self.write(roots, at, width)

    def write(
        self, roots: Sequence[tuple[int, Value, Register]], at: tuple[Affine, ...], width: int
    ) -> None:
        for number, root, register in roots:
            pointer = self.part.outputs[number]
            self.emitter.store(pointer, register, root.element, linear(at, root.dims), width)

"""Which windows of a tile function lie inside their memory, and where that is known; which masks
say nothing there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....hlo.deciding import surely_at_most, surely_below
from ....hlo.graph import Op, Region, Value
from ....hlo.offsets import Offset, Offsets
from ....hlo.positions import difference, least
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.tiling import MEMORY_OPS
from .moves import move_of


class WindowFacts:
    """What holds for the memory operations of one kernel_call.

    tests: by region, the accesses that are known to lie inside, or not, once it begins.
    masks: by region, comparisons of positions with sizes that the call decides, which hold in whole
    tiles or not; `least_of` has what must not be below 0 for that. idle: those that always do.
    direct: stores of tiles that lie in one piece of a memory which nothing else touches, so that
    a nest computes them where they belong.
    """

    def __init__(self, kernel: Op) -> None:
        self.region = kernel.regions[0]
        self.offsets = Offsets(kernel)
        self.inputs = frozenset(self.region.arguments[: len(kernel.operands)])
        self.notes: list[str] = []
        self.idle: set[Op] = set()
        self.least_of: dict[Op, Offset] = {}
        self.masks: dict[Region, list[Op]] = {}
        self.tests = self._tests()
        self.direct = self._direct()

    def _tests(self) -> dict[Region, list[Op]]:
        chains: dict[Region, tuple[Region, ...]] = {self.region: (self.region,)}
        tests: dict[Region, list[Op]] = {}

        def visit(region: Region) -> None:
            for op in region.ops:
                for inner in op.regions:
                    chains[inner] = (*chains[region], inner)
                    visit(inner)
                if op.name == "compare" and op.result.rank:
                    self._mask(op, chains[region])
                moves = op.definition.loads or op.definition.stores
                if moves and not op.definition.numbered and not self.proven(op):
                    home = self.decided(map(self.offsets.of, offsets_of(op)), chains[region])
                    if home is not None and fits(op):
                        tests.setdefault(home, []).append(op)
                    elif home is None and not self.asked(op):
                        self.notes = ["windows whose offsets come from data are copied"]

        visit(self.region)
        return tests

    def _mask(self, op: Op, chain: tuple[Region, ...]) -> None:
        """Note a comparison that is about the end of a dim whose size the call decides."""
        position = difference(self.offsets, op)
        if position is None or not isinstance(position[0].constant, SymbolicDim):
            return
        lowest = least(position, op.result.dims)
        if surely_at_most(0, self.offsets.range(lowest)[0]):
            self.idle.add(op)
            return
        home = self.decided([lowest], chain)
        if home is not None:
            self.least_of[op] = lowest
            self.masks.setdefault(home, []).append(op)

    def decided(self, offsets: Iterable[Offset], chain: tuple[Region, ...]) -> Region | None:
        """The region at whose start all offsets are known; None if there is none."""
        depth = 0
        for offset in offsets:
            for variable in offset.variables:
                if variable.op is not None:
                    if variable.op.name != "tile_id":
                        return None
                elif variable.owner in chain:
                    depth = max(depth, chain.index(variable.owner))
        return chain[depth]

    def proven(self, op: Op) -> bool:
        return all(self.sides(op, d) == (False, False) for d in range(len(offsets_of(op))))

    def sides(self, op: Op, d: int) -> tuple[bool, bool]:
        """Whether a window may reach outside below and above in dim d."""
        sizes = move_of(op).sizes
        low, high = self.offsets.range(self.offsets.of(offsets_of(op)[d]))
        above = surely_at_most(high + sizes[d], op.operands[0].dims[d])
        return not surely_at_most(0, low), not above

    def _direct(self) -> frozenset[Op]:
        touched: dict[Value, int] = {}
        for op in self.region.walk():
            if op.name in MEMORY_OPS:
                touched[op.operands[0]] = touched.get(op.operands[0], 0) + 1
        return frozenset(
            op
            for op in self.region.walk()
            if op.name == "tile_store"
            and not (op.masked or op.combine)
            and touched[op.operands[0]] == 1
            and contiguous(op.operands[1].dims, op.operands[0].dims)
            and all(self._simple(self.offsets.of(offset)) for offset in offsets_of(op))
        )

    @staticmethod
    def _simple(offset: Offset) -> bool:
        """Whether an offset is known as soon as its block begins."""
        return all(v.op is None or v.op.name == "tile_id" for v in offset.variables)

    def asked(self, op: Op) -> bool:
        """Whether a window of one piece is read in place wherever it turns out to lie inside."""
        return (
            op.name == "tile_load"
            and fits(op)
            and op.operands[0] in self.inputs
            and contiguous(op.sizes, op.operands[0].dims)
        )


def fits(op: Op) -> bool:
    """Whether a window may be no larger than its memory."""
    sizes = move_of(op).sizes
    return not any(
        surely_below(dim, size) for size, dim in zip(sizes, op.operands[0].dims, strict=True)
    )


def contiguous(sizes: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Whether a window is one piece of a row-major memory."""
    first = next((d for d, size in enumerate(sizes) if size != 1), len(sizes))
    return tuple(sizes[first + 1 :]) == tuple(dims[first + 1 :])


def offsets_of(op: Op) -> tuple[Value, ...]:
    """The offset of each dim of a window."""
    return tuple(op.offsets[: op.operands[0].rank])

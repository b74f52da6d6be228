"""The role that multiplies: warp groups issue products, compute between them, release stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....hlo.errors import CompilerBug
from ....hlo.graph import Op
from ....hlo.graph import Value as Tile
from ....optimizer.asynchronous.configuration import (
    PipelineConfiguration,
    Ring,
)
from ....optimizer.asynchronous.work import Panel, PipelineProduct
from ... import llvm
from ...llvm import Function, Value, elements
from . import fragment
from . import instructions as hopper
from .registers import FragmentEvaluator, LazyTile
from .rings import Role


class ProductPart(NamedTuple):
    """One product that is started: the sums that it adds to, whether these count (an i32 says so
    while running), and the words of a left operand of registers."""

    product: PipelineProduct
    sums: Sequence[Value]
    keep: Value | bool
    words: Sequence[Value] = ()


class Consumer(Role):
    """`group` is the number of the warp group among those that multiply, `leader` one thread of
    it."""

    def __init__(
        self, f: Function, plan: PipelineConfiguration, evaluator: FragmentEvaluator, group: Value,
        leader: Value, thread: Value,
    ) -> None:  # fmt: skip
        super().__init__(f, plan, evaluator, 0)
        self.group, self.leader, self.thread = group, leader, thread
        self.base = hopper.address(f, hopper.shared(f, 0))
        self.blocks = plan.rows // hopper.ROWS
        self.waited: set[Ring] = set()
        self.readers: dict[Ring, set[PipelineProduct]] = {}
        evaluator.product = self.value

    def value(self, op: Op) -> LazyTile:
        """A product outside of the loop, which the evaluator asks for."""
        product = self.plan.work.of(op.results[0])
        if product is None:
            raise CompilerBug(f"{op.name} is asked for before it ran")
        found = self.now(product)
        self.done([product])
        return found

    # Tiles.

    def begin_tile(self) -> None:
        """Waits for what stays for the whole tile, and computes the products before the loop."""
        self.waited.clear()
        self.readers = {
            ring: {p for p in self.plan.work.products if set(p.panels) & set(ring.panels)}
            for ring in self.plan.rings
            if not ring.moves
        }
        loop = self.plan.work.loop
        ops = self.plan.work.kernel.regions[0].ops
        before = set(ops[: ops.index(loop)]) if loop is not None else set()
        for product in self.plan.work.outer:
            if product.op in before:
                self.evaluator.tile(product.result)

    def end_tile(self) -> None:
        """Gives back what is still held of what stayed for the tile."""
        self.done(self.plan.work.products)

    def done(self, products: Sequence[PipelineProduct]) -> None:
        """These products are over: what stays for the tile, and is read by no other one, can be
        filled for the next tile."""
        for ring, readers in self.readers.items():
            if readers:
                readers.difference_update(products)
                if not readers:
                    self.wait(ring)
                    self.release(ring)
                    self.advance(ring)

    # Rings.

    def wait(self, ring: Ring) -> None:
        """Waits until the ring's stage is full; once a tile for what stays."""
        if not ring.moves:
            if ring in self.waited:
                return
            self.waited.add(ring)
        stage, parity = self.states[ring]
        self.note("wait", ring)
        hopper.barrier_wait(self.f, self.full(ring, stage), parity)

    def wait_staying(self) -> None:
        """Waits for what the loop reads again and again."""
        read = {panel for product in self.plan.work.inner for panel in product.panels}
        for ring in self.plan.rings:
            if not ring.moves and read & set(ring.panels):
                self.wait(ring)

    def release(
        self, ring: Ring, stage: Value | None = None, back: int = 0, late: bool = False
    ) -> None:
        """Says that this warp group reads a stage no more; to all blocks that fill it. back: how
        far it is behind the current one; late: not in the first round."""
        f = self.f
        self.note("release", ring, count=back, late=late)
        barrier = self.empty(ring, self.states[ring][0] if stage is None else stage)
        if max(ring.shares) == 1:
            with f.if_then(self.leader):
                hopper.barrier_arrive(f, barrier)
        else:
            with f.if_then(f.compare("ult", self.thread, self.plan.cluster)):
                hopper.barrier_arrive(f, barrier, self.thread)

    def before(self, ring: Ring) -> Value:
        """The stage before the current one."""
        f, (stage, _) = self.f, self.states[ring]
        if ring.stages == 1:
            return stage
        return f.select(f.compare("eq", stage, 0), ring.stages - 1, f.sub(stage, 1))

    def leave(self, products: Sequence[PipelineProduct]) -> None:
        """Releases the stages of the loop's rings that these products have read."""
        for ring in self.rings_of(products):
            if ring.moves:
                self.release(ring)
                self.advance(ring)

    def rings_of(self, products: Sequence[PipelineProduct]) -> list[Ring]:
        panels = [panel for product in products for panel in product.panels]
        return list(dict.fromkeys(self.plan.ring(panel) for panel in panels))

    # Products.

    def launch(self, parts: Sequence[ProductPart], again: bool = False) -> list[Value]:
        """Starts products of the current stages once these are full; their sums while they are in
        flight. `again`: those before still add to the same ones."""
        rings = self.rings_of([part.product for part in parts])
        for ring in rings:
            self.wait(ring)
        self.note("start", *rings)
        kept = [[] if again or part.keep is not True else part.sums for part in parts]
        tied = [one for part, sums in zip(parts, kept, strict=True) for one in (*sums, *part.words)]
        fenced = iter(hopper.matrix_fence(self.f, tied))
        found: list[Value] = []
        for part, own in zip(parts, kept, strict=True):
            sums = [next(fenced) for _ in own] or part.sums
            words = [next(fenced) for _ in part.words]
            with self.f.within(part.product.op):
                found += self._issued(part, sums, words)
        hopper.matrix_commit(self.f)
        return found

    def _issued(
        self, part: ProductPart, sums: Sequence[Value], words: Sequence[Value]
    ) -> list[Value]:
        f, product = self.f, part.product
        kind = hopper.matrix_kind(product.kind)
        right = self.descriptor(product.right, product.right_depth_first, None)
        left = None
        if isinstance(product.left, Panel):
            left = self.descriptor(product.left, product.left_depth_first, self.group)
        found: list[Value] = []
        each, count = product.columns // 2, product.depth // kind.depth
        for block in range(self.blocks):
            steps: list[hopper.WgmmaStep] = []
            for step in range(count):
                b = self.stepped(right, product.right, product.right_depth_first, step, 0)
                a: Any = words[4 * (block * count + step) :][:4]
                if left is not None:
                    assert isinstance(product.left, Panel)
                    a = self.stepped(left, product.left, product.left_depth_first, step, block)
                steps.append(hopper.WgmmaStep(a, b, part.keep if step == 0 else True))
            found += hopper.matrix_multiply(
                f, kind, product.columns, sums[block * each : (block + 1) * each], steps,
                left_depth_first=product.left_depth_first,
                right_depth_first=product.right_depth_first,
            )  # fmt: skip
        return found

    def descriptor(self, panel: Panel, depth_first: bool, group: Value | None) -> Value:
        """The descriptor of a panel's current stage, from the warp group's own rows on."""
        f = self.f
        ring = self.plan.ring(panel)
        start = self.stage_offset(ring, self.states[ring][0])
        at = f.add(f.add(start, ring.place(panel)), self.base)
        if group is not None:
            rows = self.plan.rows
            chunk = panel.outer * panel.swizzle * rows // panel.chunk
            at = f.add(at, f.mul(group, chunk if depth_first else rows * panel.swizzle))
        leading = panel.outer * panel.swizzle if depth_first else 16
        return hopper.descriptor(f, at, leading, 8 * panel.swizzle, panel.swizzle)

    def stepped(
        self, start: Value, panel: Panel, depth_first: bool, step: int, block: int
    ) -> Value:
        """The descriptor of one step along the depth, of one block of 64 rows."""
        chunk = panel.outer * panel.swizzle
        if depth_first:
            depth = 32 // panel.width
            offset = step * depth * panel.swizzle + block * chunk * (hopper.ROWS // panel.chunk)
        else:
            at = step * 32
            offset = at // panel.swizzle * chunk + at % panel.swizzle
            offset += block * hopper.ROWS * panel.swizzle
        return self.f.add(start, offset >> 4)

    def words(self, product: PipelineProduct) -> list[Value]:
        """A left operand of registers, as the product takes it, four words for each block of rows
        and step: they are where the sums of a product before left its elements."""
        if isinstance(product.left, Panel):
            return []
        tile, element = self.evaluator.tile(product.left), product.left.element
        depth, bits = product.kind.depth, product.kind.bits
        return [
            tile.word(block * hopper.ROWS + row, step * depth + column, element)
            for block in range(self.blocks)
            for step in range(product.depth // depth)
            for row, column in fragment.left_words(depth, bits)
        ]

    def part(self, product: PipelineProduct) -> ProductPart:
        """A product with what it adds to and a left operand of registers."""
        words, sums = self.words(product), self.nothing(product)
        if product.addend is not None:
            sums = list(self.evaluator.tile(product.addend))
        return ProductPart(product, sums, product.addend is not None, words)

    def nothing(self, product: PipelineProduct) -> list[Value]:
        """Sums that do not count."""
        count = self.blocks * product.columns // 2
        return [llvm.poison(hopper.matrix_kind(product.kind).sums)] * count

    def now(self, product: PipelineProduct) -> LazyTile:
        """A product that is awaited at once."""
        found = self.finished(self.launch([self.part(product)]))
        self.leave([product])
        return self.given(product, found)

    def finished(self, sums: Sequence[Value], flying: int = 0) -> list[Value]:
        """Sums of products once these are done, and all others but the `flying` started last."""
        self.note("await", count=flying)
        return hopper.matrix_wait(self.f, flying, sums)

    def given(self, product: PipelineProduct, found: Sequence[Value]) -> LazyTile:
        """A product's registers; in a narrower type where it has one."""
        element = product.result.element
        if element.bits != 32:
            found = [elements.rounded(self.f, value, element) for value in found]
        return self.evaluator.given(product.result, found)

    def each(
        self, products: Sequence[PipelineProduct], found: Sequence[Value]
    ) -> Iterator[tuple[PipelineProduct, Sequence[Value]]]:
        """Products with their own of registers that stand one behind the other."""
        for product in products:
            count = self.blocks * product.columns // 2
            yield product, found[:count]
            found = found[count:]

    # Loops.

    def bounds(self, loop: Op) -> tuple[Value, Value]:
        lower, upper = (self.evaluator.number(value) for value in loop.operands[:2])
        return lower, upper

    def enter(self, loop: Op, index: Value) -> None:
        """Binds the variable of a round."""
        value = loop.regions[0].arguments[0]
        self.evaluator.bind(value, self.evaluator.given(value, [index]))

    # Two warp groups take turns: one multiplies while the other computes.

    def take_turn(self) -> None:
        if self.plan.ping_pong:
            self.note("take")
            hopper.meet(self.f, self._turn(self.group), 2 * hopper.WARPGROUP)

    def give_turn(self) -> None:
        if self.plan.ping_pong:
            self.note("give", count=1)
            other = self.f.xor(self.group, 1)
            hopper.announce(self.f, self._turn(other), 2 * hopper.WARPGROUP)

    def _turn(self, group: Value) -> Value:
        return self.f.add(group, 1 + self.plan.groups)

    def begin(self) -> None:
        """Before all tiles: the first turn is the first warp group's."""
        if self.plan.ping_pong:
            self.note("give", alone=True)
            with self.f.if_then(self.f.compare("eq", self.group, 0)):
                hopper.announce(self.f, 1 + self.plan.groups, 2 * hopper.WARPGROUP)

    def end(self) -> None:
        """Behind all tiles: the turn that nobody took is taken."""
        if self.plan.ping_pong:
            self.note("take", alone=True)
            with self.f.if_then(self.f.compare("eq", self.group, 0)):
                hopper.meet(self.f, 1 + self.plan.groups, 2 * hopper.WARPGROUP)

    def whole(self, like: Tile, value: Tile) -> list[Value]:
        """All registers of a value, as many as `like` has."""
        return list(self.evaluator.tile(value, self.evaluator.layout(like)))

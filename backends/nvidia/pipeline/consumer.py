"""The role that multiplies: warp groups issue products, compute between them, release stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....hlo.errors import CompilerBug
from ....hlo.graph import Op, Region
from ....hlo.graph import Value as Tile
from ....optimizer.asynchronous.configuration import (
    PipelineConfiguration,
    Ring,
    Style,
    carried_zero,
)
from ....optimizer.asynchronous.work import Panel, PipelineProduct
from ... import llvm
from ...llvm import Function, Value, elements
from ..evaluator import CarriedRegisters
from ..frame import rolled
from . import fragment
from . import instructions as hopper
from .masks import first_rounds, masks
from .registers import FragmentEvaluator, LazyTile
from .rings import Role

Words = list[list[list[Value]]]  # of a left operand: by block and step, four words


class Consumer(Role):
    """`group` is the number of the warp group among those that multiply, `leader` one thread of
    it. `pending` products may be in flight only inside of one of the methods below."""

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

    def run_loop(self) -> None:
        """Runs the loop of the tile and binds its results."""
        loop = self.plan.work.loop
        if loop is None:
            return
        with self.f.within(loop):
            if self.plan.style is Style.CHAIN:
                self.chain(loop)
            elif self.plan.style is Style.ROTATE:
                self.rotate(loop)
            else:
                self.sequence(loop)
        self.done(self.plan.work.inner)

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
        hopper.barrier_wait(self.f, self.full(ring, stage), parity)

    def wait_staying(self) -> None:
        """Waits for what the loop reads again and again."""
        read = {panel for product in self.plan.work.inner for panel in product.panels}
        for ring in self.plan.rings:
            if not ring.moves and read & set(ring.panels):
                self.wait(ring)

    def wait_for(self, products: Sequence[PipelineProduct]) -> list[Ring]:
        """Waits for all panels of products; the rings of the loop among theirs."""
        panels = [panel for product in products for panel in product.panels]
        rings = list(dict.fromkeys(self.plan.ring(panel) for panel in panels))
        for ring in rings:
            self.wait(ring)
        return [ring for ring in rings if ring.moves]

    def release(self, ring: Ring, stage: Value | None = None) -> None:
        """Says that this warp group reads a stage no more; to all blocks that fill it."""
        f = self.f
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

    # Products.

    def issue(
        self,
        product: PipelineProduct,
        accumulators: Sequence[Value],
        keep: Value | bool,
        words: Words | None = None,
    ) -> list[Value]:
        """Starts one product of the current stages; its accumulators while they are in flight."""
        with self.f.within(product.op):
            return self._issued(product, accumulators, keep, words)

    def _issued(
        self, product: PipelineProduct, accumulators: Sequence[Value], keep: Value | bool,
        words: Words | None,
    ) -> list[Value]:  # fmt: skip
        f, kind = self.f, hopper.matrix_kind(product.kind)
        right = self.descriptor(product.right, product.right_depth_first, None)
        left = None
        if isinstance(product.left, Panel):
            left = self.descriptor(product.left, product.left_depth_first, self.group)
        found: list[Value] = []
        each = product.columns // 2
        for block in range(self.blocks):
            steps: list[hopper.WgmmaStep] = []
            for step in range(product.depth // kind.depth):
                b = self.stepped(right, product.right, product.right_depth_first, step, 0)
                a: Any
                if left is None:
                    assert words is not None
                    a = words[block][step]
                else:
                    assert isinstance(product.left, Panel)
                    a = self.stepped(left, product.left, product.left_depth_first, step, block)
                steps.append(hopper.WgmmaStep(a, b, keep if step == 0 else True))
            found += hopper.matrix_multiply(
                f, kind, product.columns, accumulators[block * each : (block + 1) * each], steps,
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

    def words(self, product: PipelineProduct) -> Words | None:
        """A left operand of registers, as the product takes it: its words are where the
        accumulators of a product before left its elements."""
        if isinstance(product.left, Panel):
            return None
        tile = self.evaluator.tile(product.left)
        element = product.left.element
        depth, bits = product.kind.depth, product.kind.bits
        rows, columns = fragment.rows(hopper.ROWS), fragment.columns(depth)
        return [
            [
                [
                    tile.word(block * rows + i, step * columns + j, element)
                    for i, j in fragment.left_words(depth, bits)
                ]
                for step in range(product.depth // depth)
            ]
            for block in range(self.blocks)
        ]

    def start(self, product: PipelineProduct) -> tuple[list[Value], bool]:
        """What a product adds to, and whether that counts."""
        if product.addend is None:
            count = self.blocks * product.columns // 2
            return [llvm.poison(hopper.matrix_kind(product.kind).sums)] * count, False
        return list(self.evaluator.tile(product.addend)), True

    def now(self, product: PipelineProduct) -> LazyTile:
        """A product that is awaited at once."""
        f = self.f
        accumulators, keep = self.start(product)
        words = self.words(product)
        moving = self.wait_for([product])
        accumulators, words = self.fenced(accumulators, keep, words)
        found = self.issue(product, accumulators, keep, words)
        hopper.matrix_commit(f)
        found = hopper.matrix_wait(f, 0, found)
        for ring in moving:
            self.release(ring)
            self.advance(ring)
        return self.given(product, found)

    def given(self, product: PipelineProduct, found: Sequence[Value]) -> LazyTile:
        """A product's registers; in a narrower type where it has one."""
        registers = self.evaluator.given(product.result, found)
        element = product.result.element
        if element.bits == 32:
            return registers
        rounded = [elements.rounded(self.f, value, element) for value in found]
        return self.evaluator.given(product.result, rounded)

    # Loops.

    def bounds(self, loop: Op) -> tuple[Value, Value]:
        lower, upper = (self.evaluator.number(value) for value in loop.operands[:2])
        return lower, upper

    def enter(self, loop: Op, index: Value) -> None:
        """Binds the variable of a round."""
        value = loop.regions[0].arguments[0]
        self.evaluator.bind(value, self.evaluator.given(value, [index]))

    def chain(self, loop: Op) -> None:
        """Products that only add up: each round's are issued while the last ones still run."""
        f, products, body = self.f, self.plan.first_products, loop.regions[0]
        places = [p.addend.index - 1 for p in products if p.addend is not None]
        lower, upper = self.bounds(loop)
        (ring,) = [ring for ring in self.plan.rings if ring.moves]
        self.wait_staying()
        starts: list[Value] = []
        for product, place in zip(products, places, strict=True):
            if carried_zero(self.plan.work, product):
                starts += [llvm.poison(hopper.matrix_kind(product.kind).sums)] * (
                    self.blocks * product.columns // 2
                )
            else:
                starts += self.whole(body.arguments[1 + place], loop.operands[2 + place])
        with f.for_range(
            lower, upper, loop.step, [*self.flat([ring]), *starts],
            at_least_once=True, metadata=rolled(f),
        ) as inner:  # fmt: skip
            sums = list(self.resume([ring], inner.carried))
            later = f.compare("ne", inner.index, lower)
            again = f.cast("zext", later, "i32")
            self.wait(ring)
            hopper.matrix_fence(f)
            flying: list[Value] = []
            for product in products:
                count = self.blocks * product.columns // 2
                keep = again if carried_zero(self.plan.work, product) else True
                flying += self.issue(product, sums[len(flying) : len(flying) + count], keep)
            hopper.matrix_commit(f)
            flying = hopper.matrix_wait(f, 1, flying)
            with f.if_then(later):
                self.release(ring, self.before(ring))
            self.advance(ring)
            inner.carry(*self.flat([ring]), *flying)
        sums = hopper.matrix_wait(f, 0, self.resume([ring], inner.results))
        self.release(ring, self.before(ring))
        for product, place in zip(products, places, strict=True):
            count = self.blocks * product.columns // 2
            result = loop.results[place]
            self.evaluator.bind(result, self.evaluator.given(result, sums[:count]))
            sums = sums[count:]

    def sequence(self, loop: Op) -> None:
        """Each product is awaited where it stands."""
        f, evaluator, body = self.f, self.evaluator, loop.regions[0]
        products = self.plan.first_products
        moving = [ring for ring in self.plan.rings if ring.moves]
        self.wait_staying()
        lower, upper = self.bounds(loop)
        values = CarriedRegisters(evaluator, body.arguments[1:])
        start = [*self.flat(moving), *values.start(loop.operands[2:])]
        with f.for_range(lower, upper, loop.step, start, metadata=rolled(f)) as inner:
            with evaluator.inside():
                values.bind(body.arguments[1:], self.resume(moving, inner.carried))
                self.enter(loop, inner.index)
                for product in products:
                    evaluator.bind(product.result, self.now(product))
                found = values.again(body.results)
            inner.carry(*self.flat(moving), *found)
        values.bind(loop.results, self.resume(moving, inner.results))

    def rotate(self, loop: Op) -> None:
        """The second product of a round runs while the next round's values are computed.

        A round issues its own first products and the second of the round before, computes from the
        first what does not need that second, and only then waits for it.
        """
        self.wait_staying()
        lower, upper = self.bounds(loop)
        code = _Rotation(self, loop, self.plan.first_products, self.plan.second_products[0])
        state = code.begin(lower)
        first = self.f.add(lower, loop.step)
        always, early_masks = masks(self.plan.work)
        if early_masks:
            known = [*always, *(mask.value for mask in early_masks)]
            middle = first_rounds(self.evaluator, early_masks, first, upper, loop.step)
            state = code.rounds(first, middle, known, state)
            first = middle
        code.end(code.rounds(first, upper, always, state))

    def _rings(self, products: Sequence[PipelineProduct]) -> list[Ring]:
        """The rings of the loop that products read."""
        panels = [panel for product in products for panel in product.panels if panel.moves]
        return list(dict.fromkeys(self.plan.ring(panel) for panel in panels))

    def leave(self, rings: Sequence[Ring]) -> None:
        """Releases the stages that were just read."""
        for ring in rings:
            self.release(ring)
            self.advance(ring)

    def start_first(self, first: Sequence[PipelineProduct], rings: Sequence[Ring]) -> list[Value]:
        """Starts the products of windows alone."""
        for ring in rings:
            self.wait(ring)
        starts = [self.start(product) for product in first]
        kept = [value for values, keep in starts if keep for value in values]
        kept = hopper.matrix_fence(self.f, kept)
        flying: list[Value] = []
        for product, (values, keep) in zip(first, starts, strict=True):
            if keep:
                values, kept = kept[: len(values)], kept[len(values) :]
            flying += self.issue(product, values, keep)
        hopper.matrix_commit(self.f)
        return flying

    def bind_first(self, first: Sequence[PipelineProduct], found: Sequence[Value]) -> None:
        for product in first:
            count = self.blocks * product.columns // 2
            self.evaluator.bind(product.result, self.given(product, found[:count]))
            found = found[count:]

    def compute_first(self, first: Sequence[PipelineProduct], rings: Sequence[Ring]) -> None:
        """The products of windows alone, awaited."""
        found = hopper.matrix_wait(self.f, 0, self.start_first(first, rings))
        self.bind_first(first, found)
        self.leave(rings)

    def start_second(
        self,
        second: PipelineProduct,
        rings: Sequence[Ring],
        sums: Sequence[Value],
        flat: Sequence[Value],
    ) -> list[Value]:
        """Starts the product of a computed operand, of the round before."""
        for ring in rings:
            self.wait(ring)
        steps = second.depth // second.kind.depth
        words = [
            [list(flat[4 * (block * steps + step) :][:4]) for step in range(steps)]
            for block in range(self.blocks)
        ]
        keep = second.addend is not None
        sums, fenced = self.fenced(sums, keep, words)
        found = self.issue(second, sums, keep, fenced)
        hopper.matrix_commit(self.f)
        return found

    def fenced(
        self, sums: Sequence[Value], keep: bool, words: Words | None
    ) -> tuple[Sequence[Value], Words | None]:
        """What a product adds to, where that counts, and its left operand, behind a fence."""
        flat = [word for block in words or () for step in block for word in step]
        kept = list(sums) if keep else []
        found = hopper.matrix_fence(self.f, [*kept, *flat])
        left = iter(found[len(kept) :])
        if words is not None:
            words = [[[next(left) for _ in step] for step in block] for block in words]
        return (found[: len(kept)] if keep else sums), words

    # Two warp groups take turns: one multiplies while the other computes.

    def take_turn(self) -> None:
        if self.plan.ping_pong:
            hopper.meet(self.f, self._turn(self.group), 2 * hopper.WARPGROUP)

    def give_turn(self) -> None:
        if self.plan.ping_pong:
            other = self.f.xor(self.group, 1)
            hopper.announce(self.f, self._turn(other), 2 * hopper.WARPGROUP)

    def _turn(self, group: Value) -> Value:
        return self.f.add(group, 1 + self.plan.groups)

    def begin(self) -> None:
        """Before all tiles: the first turn is the first warp group's."""
        if self.plan.ping_pong:
            with self.f.if_then(self.f.compare("eq", self.group, 0)):
                hopper.announce(self.f, 1 + self.plan.groups, 2 * hopper.WARPGROUP)

    def end(self) -> None:
        """Behind all tiles: the turn that nobody took is taken."""
        if self.plan.ping_pong:
            with self.f.if_then(self.f.compare("eq", self.group, 0)):
                hopper.meet(self.f, 1 + self.plan.groups, 2 * hopper.WARPGROUP)

    def whole(self, like: Tile, value: Tile) -> list[Value]:
        """All registers of a value, as many as `like` has."""
        return list(self.evaluator.tile(value, self.evaluator.layout(like)))


class _Rotation:
    """A loop whose second product is a round behind (as in FlashAttention): it carries that
    product's left operand, what that adds to, and the other values."""

    def __init__(
        self,
        consumer: Consumer,
        loop: Op,
        first: Sequence[PipelineProduct],
        second: PipelineProduct,
    ) -> None:
        self.c, self.loop, self.first, self.second = consumer, loop, first, second
        assert isinstance(second.left, Tile)
        body = self.body = loop.regions[0]
        self.arguments = body.arguments[1:]
        self.number = number = body.results.index(second.result)  # of what the second product makes
        behind = _depends(body, self.arguments[number])
        self.early = [
            n for n, value in enumerate(body.results) if n != number and value not in behind
        ]
        others = range(len(self.arguments))
        self.rest = [n for n in others if n != number and n not in self.early]
        self.kept = [*self.early, *self.rest]
        self.first_rings, self.second_rings = consumer._rings(first), consumer._rings([second])
        self.moving = [*self.first_rings, *self.second_rings]

    def begin(self, lower: Value) -> list[list[Value]]:
        """The first round, without its second product."""
        c = self.c
        initial = {n: c.whole(a, self.loop.operands[2 + n]) for n, a in enumerate(self.arguments)}
        with c.evaluator.inside():
            self._enter(lower, initial)
            c.compute_first(self.first, self.first_rings)
            values = self._compute(self.kept)
            words, sums = self._prepare()
        return [words, sums, *values]

    def rounds(
        self, begin: Value, end: Value, holds: Sequence[Tile], state: Sequence[list[Value]]
    ) -> list[list[Value]]:
        """The rounds from `begin` to `end`, in which some masks hold everywhere."""
        c, f, evaluator = self.c, self.c.f, self.c.evaluator
        evaluator.holds = frozenset(holds)
        flat = [element for value in state for element in value]
        with f.for_range(
            begin, end, self.loop.step, [*c.flat(self.moving), *flat], metadata=rolled(f)
        ) as inner:
            words, sums, *given = _split(c.resume(self.moving, inner.carried), state)
            carried = dict(zip(self.kept, given, strict=True))
            with evaluator.inside():
                self._enter(inner.index, carried)
                c.take_turn()
                flying = c.start_first(self.first, self.first_rings)
                over = c.start_second(self.second, self.second_rings, sums, words)
                c.give_turn()
                c.bind_first(self.first, hopper.matrix_wait(f, 1, flying))
                c.leave(self.first_rings)
                soon = self._compute(self.early)
                hopper.pin(f, [e for value in soon for e in value if e.type == "float"])
                over = hopper.matrix_wait(f, 0, over)
                c.leave(self.second_rings)
                value = self.arguments[self.number]
                evaluator.bind(value, evaluator.given(value, over))
                rest = self._compute(self.rest)
                found = [*self._prepare(), *soon, *rest]
            flat = [element for one in found for element in one]
            inner.carry(*c.flat(self.moving), *flat)
        found = _split(c.resume(self.moving, inner.results), state)
        evaluator.holds = frozenset()
        return found

    def end(self, state: Sequence[list[Value]]) -> None:
        """The last round's second product, and the loop's results."""
        c, evaluator = self.c, self.c.evaluator
        words, sums, *given = state
        over = hopper.matrix_wait(
            c.f, 0, c.start_second(self.second, self.second_rings, sums, words)
        )
        c.leave(self.second_rings)
        for n, found in zip(self.kept, given, strict=True):
            evaluator.bind(self.loop.results[n], evaluator.given(self.loop.results[n], found))
        result = self.loop.results[self.number]
        evaluator.bind(result, evaluator.given(result, over))

    def _enter(self, index: Value, found: dict[int, list[Value]]) -> None:
        self.c.enter(self.loop, index)
        for n, elements_ in found.items():
            argument = self.arguments[n]
            self.c.evaluator.bind(argument, self.c.evaluator.given(argument, elements_))

    def _compute(self, which: Sequence[int]) -> list[list[Value]]:
        return [self.c.whole(self.arguments[n], self.body.results[n]) for n in which]

    def _prepare(self) -> tuple[list[Value], list[Value]]:
        """What the second product takes: its left operand's words, and what it adds to."""
        words = self.c.words(self.second)
        assert words is not None
        return [w for block in words for step in block for w in step], self.c.start(self.second)[0]


def _depends(body: Region, value: Tile) -> set[Tile]:
    """Everything that is computed from a value."""
    found = {value}
    for op in body.ops:
        if any(operand in found for operand in op.operands):
            found.update(op.results)
    return found


def _split(flat: Sequence[Value], like: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Lists of the same lengths as those of `like`."""
    found: list[list[Value]] = []
    start = 0
    for one in like:
        found.append(list(flat[start : start + len(one)]))
        start += len(one)
    return found

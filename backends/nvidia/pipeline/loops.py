"""The loop of a tile as the warp groups that multiply run it: when each product is awaited
(`optimizer/asynchronous/configuration.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op, Region
from ....hlo.graph import Value as Tile
from ....optimizer.asynchronous.configuration import Style, carried_zero
from ....optimizer.asynchronous.protocol import FIRST
from ...llvm import Value
from ..evaluator import CarriedRegisters
from . import instructions as hopper
from .consumer import Consumer, ProductPart
from .masks import first_rounds, masks


def run_loop(c: Consumer) -> None:
    """Runs the loop of the tile and binds its results."""
    loop = c.plan.work.loop
    if loop is not None:
        with c.f.within(loop):
            _STYLES[c.plan.style](c, loop)
        c.done(c.plan.work.inner)


def _chain(c: Consumer, loop: Op) -> None:
    """Products that only add up: each round's are issued while the last ones still run."""
    f, products = c.f, c.plan.first_products
    lower, upper = c.bounds(loop)
    (ring,) = [ring for ring in c.plan.rings if ring.moves]
    c.wait_staying()
    zeros = [carried_zero(c.plan.work, product) for product in products]
    starts: list[Value] = []
    places: list[int] = []
    for product, zero in zip(products, zeros, strict=True):
        assert product.addend is not None
        places.append(place := product.addend.index - 1)
        start = loop.operands[2 + place]
        starts += c.nothing(product) if zero else c.whole(product.addend, start)
    with c.rounds(lower, upper, loop.step, [ring], starts, at_least_once=True) as inner:
        sums = c.each(products, inner.carried)
        later = f.compare("ne", inner.index, lower)
        keep = f.cast("zext", later, "i32")
        parts = [
            ProductPart(product, own, keep if zero else True)
            for (product, own), zero in zip(sums, zeros, strict=True)
        ]
        inner.following = c.finished(c.launch(parts, again=True), flying=1)
        with f.if_then(later):
            c.release(ring, c.before(ring), 1, late=True)
        c.advance(ring)
    found = c.finished(inner.results)
    c.release(ring, c.before(ring), 1)
    for place, (_, own) in zip(places, c.each(products, found), strict=True):
        c.evaluator.bind(loop.results[place], c.evaluator.given(loop.results[place], own))


def _sequence(c: Consumer, loop: Op) -> None:
    """Each product is awaited where it stands."""
    evaluator, body = c.evaluator, loop.regions[0]
    products = c.plan.first_products
    moving = [ring for ring in c.plan.rings if ring.moves]
    c.wait_staying()
    lower, upper = c.bounds(loop)
    values = CarriedRegisters(evaluator, body.arguments[1:])
    start = values.start(loop.operands[2:])
    with c.rounds(lower, upper, loop.step, moving, start) as inner, evaluator.inside():
        values.bind(body.arguments[1:], inner.carried)
        c.enter(loop, inner.index)
        for product in products:
            evaluator.bind(product.result, c.now(product))
        inner.following = values.again(body.results)
    values.bind(loop.results, inner.results)


def _rotate(c: Consumer, loop: Op) -> None:
    """The second product of a round runs while the next round's values are computed.

    A round issues its own first products and the second of the round before, computes from the
    first what does not need that second, and only then waits for it.
    """
    c.wait_staying()
    lower, upper = c.bounds(loop)
    code = _Rotation(c, loop)
    state = code.begin(lower)
    first = c.f.add(lower, loop.step)
    always, early_masks = masks(c.plan.work)
    if early_masks:
        known = [*always, *(mask.value for mask in early_masks)]
        middle = first_rounds(c.evaluator, early_masks, first, upper, loop.step)
        state = code.rounds(first, middle, known, state)
        first = middle
    code.end(code.rounds(first, upper, always, state))


_STYLES = {Style.CHAIN: _chain, Style.ROTATE: _rotate, Style.SEQUENCE: _sequence}


class _Rotation:
    """The loop carries the second product's left operand, what that adds to, and the other
    values."""

    def __init__(self, consumer: Consumer, loop: Op) -> None:
        self.c, self.loop = consumer, loop
        self.first = consumer.plan.first_products
        (self.second,) = consumer.plan.second_products
        assert isinstance(self.second.left, Tile)
        body = self.body = loop.regions[0]
        self.arguments = body.arguments[1:]
        self.number = number = body.results.index(self.second.result)
        behind = _depends(body, self.arguments[number])
        self.early = [
            n for n, value in enumerate(body.results) if n != number and value not in behind
        ]
        others = range(len(self.arguments))
        self.rest = [n for n in others if n != number and n not in self.early]
        self.kept = [*self.early, *self.rest]
        rings = (consumer.rings_of([product]) for product in (*self.first, self.second))
        self.moving = list(dict.fromkeys(ring for own in rings for ring in own if ring.moves))

    def begin(self, lower: Value) -> list[list[Value]]:
        """The first round, without its second product."""
        c = self.c
        initial = {n: c.whole(a, self.loop.operands[2 + n]) for n, a in enumerate(self.arguments)}
        with c.evaluator.inside(), c.recorder.repeated(FIRST):
            self._enter(lower, initial)
            self._bind_first(c.finished(self._start_first()))
            values = self._compute(self.kept)
            words, sums = self._prepare()
        return [words, sums, *values]

    def rounds(
        self, begin: Value, end: Value, holds: Sequence[Tile], state: Sequence[list[Value]]
    ) -> list[list[Value]]:
        """The rounds from `begin` to `end`, in which some masks hold everywhere."""
        c, evaluator = self.c, self.c.evaluator
        evaluator.holds = frozenset(holds)
        flat = [element for value in state for element in value]
        with c.rounds(begin, end, self.loop.step, self.moving, flat) as inner, evaluator.inside():
            words, sums, *given = _split(inner.carried, state)
            self._enter(inner.index, dict(zip(self.kept, given, strict=True)))
            c.take_turn()
            flying = self._start_first()
            over = self._start_second(words, sums)
            c.give_turn()
            self._bind_first(c.finished(flying, flying=1))
            soon = self._compute(self.early)
            hopper.pin(c.f, [e for value in soon for e in value if e.type == "float"])
            over = c.finished(over)
            c.leave([self.second])
            value = self.arguments[self.number]
            evaluator.bind(value, evaluator.given(value, over))
            rest = self._compute(self.rest)
            found = [*self._prepare(), *soon, *rest]
            inner.following = [element for one in found for element in one]
        evaluator.holds = frozenset()
        return _split(inner.results, state)

    def end(self, state: Sequence[list[Value]]) -> None:
        """The last round's second product, and the loop's results."""
        c, results = self.c, self.loop.results
        words, sums, *given = state
        over = c.finished(self._start_second(words, sums))
        c.leave([self.second])
        for n, found in zip((*self.kept, self.number), (*given, over), strict=True):
            c.evaluator.bind(results[n], c.evaluator.given(results[n], found))

    def _start_first(self) -> list[Value]:
        """Starts the products of windows alone."""
        return self.c.launch([self.c.part(product) for product in self.first])

    def _bind_first(self, found: Sequence[Value]) -> None:
        for product, own in self.c.each(self.first, found):
            self.c.evaluator.bind(product.result, self.c.given(product, own))
        self.c.leave(self.first)

    def _start_second(self, words: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """Starts the product of a computed operand, of the round before."""
        keep = self.second.addend is not None
        return self.c.launch([ProductPart(self.second, sums, keep, words)])

    def _enter(self, index: Value, found: dict[int, list[Value]]) -> None:
        self.c.enter(self.loop, index)
        for n, registers in found.items():
            argument = self.arguments[n]
            self.c.evaluator.bind(argument, self.c.evaluator.given(argument, registers))

    def _compute(self, which: Sequence[int]) -> list[list[Value]]:
        return [self.c.whole(self.arguments[n], self.body.results[n]) for n in which]

    def _prepare(self) -> tuple[list[Value], list[Value]]:
        """What the second product takes: its left operand's words, and what it adds to."""
        part = self.c.part(self.second)
        return list(part.words), list(part.sums)


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

"""How a worker takes part in a task range: steps that are begun in any order that waits allow.

A turn is one time that control comes to a range; every worker counts turns for itself, so no
counter is ever reset. A step's counter counts its complete runs in its upper half, and the tiles
that are done of the one under way in its lower half. A step is ready once each counter that it
waits for has reached the turn of the wait. A worker looks for the first step that is ready and that
nobody has begun, from the first one on that has tiles left, and stays with it until it has none;
where there is no such step, it helps with the first one that was begun. So small steps beside each
other are whole in one worker's cache, and nobody is idle while there are tiles. Where there is
nothing to help with either, it waits for a step to be complete and looks again. It leaves a range
when no step has tiles left to begin, complete or not.

Numbers of turns are compared by their 32-bit difference, so they may wrap around.

    record:   8-byte words: offset of the step's counter among the counters, number of its range,
              number of its arguments, mask of those that lie in the worker's own memory (their
              slots are offsets in it), number of waits, then of each wait the offset of a counter,
              and 2 * its range + threshold
    counter:  on lines of its own: the count, the turn in which the step was begun last, then of
              each part of the step's tiles turn << 32 | next tile
    turns:    number of ranges, then turns of each before the call, then after it
    memory:   of each worker: turns of all ranges, then its own buffers
"""

from __future__ import annotations

from collections.abc import Callable

from .. import llvm
from . import words

STEP_BYTES = 64
COUNTER, RANGE, ARGUMENTS, MASK, WAITS, FIRST_WAIT = range(6)  # words of a record
MOST_ARGUMENTS = 63  # of a step that has some in the worker's own memory: bits of a mask
BEGUN, PARTS = 8, 16  # bytes of a counter
_SEEN = 64  # steps behind the first unfinished one that a worker looks at: bits of a word

Value = llvm.Value


def emit_ready(module: llvm.Module) -> None:
    """ready(record, counters, turns): whether all that a step waits for is complete."""
    parameters = [("ptr", "record"), ("ptr", "counters"), ("ptr", "turns")]
    f = module.helper("ready", parameters, "i1", inline="noinline")
    record, counters, turns = f.arguments
    count = words.word(f, record, WAITS)
    with f.for_range(0, count) as loop:
        wait = f.pointer(record, f.mul(loop.index, 16), "i8")
        which = words.word(f, wait, FIRST_WAIT + 1)
        turn = f.load("i64", f.pointer(turns, f.lshr(which, 1), "i64"))
        turn = f.sub(f.add(turn, f.land(which, 1)), 1)
        line = f.pointer(counters, words.word(f, wait, FIRST_WAIT), "i8")
        reached = f.lshr(words.atomic_load(f, line, "i64"), 32)
        with f.if_then(f.compare("slt", f.cast("trunc", f.sub(reached, turn), "i32"), 0)):
            f.ret(llvm.constant("i1", 0))
            f.start_block(f.label())
    f.ret(llvm.constant("i1", 1))


def emit_signal(module: llvm.Module) -> None:
    """signal(counter, done, tiles): counts tiles of a run of so many, and the run with its last;
    whether that is so."""
    parameters = [("ptr", "counter"), ("i64", "done"), ("i64", "tiles")]
    f = module.helper("signal", parameters, "i1", inline="noinline")
    counter, done, tiles = f.arguments
    run = f.shl(words.i64(1), 32)
    alone = f.if_else(f.compare("eq", done, tiles))
    with alone.then():
        words.atomic_add(f, counter, run)
        alone.give(llvm.constant("i1", 1))
    with alone.otherwise():
        before = f.land(words.atomic_add(f, counter, done), 0xFFFFFFFF)
        last = f.compare("eq", f.add(before, done), tiles)
        with f.if_then(last):
            words.atomic_add(f, counter, f.sub(run, tiles))
        alone.give(last)
    f.ret(*alone.results)


def emit_own_arguments(module: llvm.Module) -> None:
    """own_arguments(slots, record, memory, into): the step's slots, those that are offsets in the
    worker's memory as addresses; the word before them stays before them."""
    parameters = [("ptr", "slots"), ("ptr", "record"), ("ptr", "memory"), ("ptr", "into")]
    f = module.helper("own_arguments", parameters, "ptr", inline="noinline")
    slots, record, memory, into = f.arguments
    mask = words.word(f, record, MASK)
    with f.for_range(0, words.word(f, record, ARGUMENTS)) as loop:
        slot = f.load("i64", f.pointer(slots, loop.index, "i64"))
        own = f.land(f.lshr(mask, loop.index), 1)
        base = f.mul(f.cast("ptrtoint", memory, "i64"), own)
        f.store(f.add(slot, base), f.pointer(into, loop.index, "i64"))
    f.ret(into)


class RangeWalk:
    """Emits a worker's way through a range into a function that walks steps.

    records, counters, turns: where these begin, the worker's own turns. claim(parts, turn, tiles,
    alone): a piece of a step's tiles. work(index, step, begin, end): runs one. complete(steps):
    counts what is done in the whole program. await_change(seen): returns once another number is
    complete than `seen`, which `completed()` gave.
    """

    def __init__(
        self,
        f: llvm.Function,
        records: Value,
        counters: Value,
        turns: Value,
        claim: Callable[[Value, Value, Value, Value], Value],
        work: Callable[[Value, Value, Value, Value], None],
        complete: Callable[[Value], None],
        completed: Callable[[], Value],
        await_change: Callable[[Value], None],
    ) -> None:
        self.f, self.records, self.counters, self.turns = f, records, counters, turns
        self.claim, self.work, self.complete = claim, work, complete
        self.completed, self.await_change = completed, await_change
        # First step with tiles left; bits of steps from there on that have none; number of the
        # first one that is ready and begun, or -1; of the one that this worker takes part in.
        self.low, self.none, self.begun, self.chosen = (f.alloca("i64", align=8) for _ in range(4))

    def record(self, step: Value) -> Value:
        return self.f.pointer(self.records, words.word(self.f, step, 7), "i8")

    def tiles(self, step: Value) -> Value:
        """A step without tiles is one that has nothing to do."""
        return self.f.max(words.word(self.f, step, 4), 1)

    def emit(self, index: Value, step: Value, size: Value) -> None:
        """A turn of the range of `size` steps that begins with row number `index`, `step`."""
        f = self.f
        place = f.pointer(self.turns, words.word(f, self.record(step), RANGE), "i64")
        turn = f.add(f.load("i64", place), 1)
        f.store(turn, place)
        f.store(words.i64(0), self.low)
        f.store(words.i64(0), self.none)
        again, look, rest, take, wait, done = (f.label() for _ in range(6))
        f.jump(again)
        f.start_block(again)
        seen = self.completed()
        self._skip(size)
        low = f.load("i64", self.low)
        end = f.min(f.sub(size, low), _SEEN)
        f.branch(f.compare("sgt", end, 0), look, done)
        f.start_block(look)
        f.store(words.i64(-1), self.begun)
        with f.for_range(0, end) as loop:
            bit = f.shl(words.i64(1), loop.index)
            some = f.compare("eq", f.land(f.load("i64", self.none), bit), 0)
            with f.if_then(some):
                number = f.add(low, loop.index)
                own = f.pointer(step, f.mul(number, STEP_BYTES), "i8")
                ready = f.call("ready", "i1", self.record(own), self.counters, self.turns)
                with f.if_then(ready):
                    self._begin(number, own, turn, take)
        f.jump(rest)
        f.start_block(rest)
        begun = f.load("i64", self.begun)
        f.store(begun, self.chosen)
        f.branch(f.compare("sge", begun, 0), take, wait)
        f.start_block(take)
        chosen = f.load("i64", self.chosen)
        row = f.pointer(step, f.mul(chosen, STEP_BYTES), "i8")
        self._take(f.add(index, chosen), row, turn)
        bit = f.shl(words.i64(1), f.sub(chosen, low))
        f.store(f.lor(f.load("i64", self.none), bit), self.none)
        f.jump(again)
        f.start_block(wait)
        self.await_change(seen)
        f.jump(again)
        f.start_block(done)

    def await_ready(self, step: Value) -> None:
        """Returns once all that a branch waits for is complete."""
        f = self.f
        again, wait, done = (f.label() for _ in range(3))
        f.jump(again)
        f.start_block(again)
        seen = self.completed()
        ready = f.call("ready", "i1", self.record(step), self.counters, self.turns)
        f.branch(ready, done, wait)
        f.start_block(wait)
        self.await_change(seen)
        f.jump(again)
        f.start_block(done)

    def _skip(self, size: Value) -> None:
        """Goes on behind the first steps of which no tile is left."""
        f = self.f
        head, body, done = (f.label() for _ in range(3))
        f.jump(head)
        f.start_block(head)
        none = f.load("i64", self.none)
        f.branch(f.compare("ne", f.land(none, 1), 0), body, done)
        f.start_block(body)
        f.store(f.lshr(none, 1), self.none)
        f.store(f.add(f.load("i64", self.low), 1), self.low)
        f.jump(head)
        f.start_block(done)

    def _counter(self, step: Value) -> Value:
        offset = words.word(self.f, self.record(step), COUNTER)
        return self.f.pointer(self.counters, offset, "i8")

    def _begin(self, number: Value, step: Value, turn: Value, take: str) -> None:
        """Goes to `take` with step `number` of the range, which is ready, if nobody has begun it;
        else goes on, and notes the first of these."""
        f = self.f
        begin, begun, on = (f.label() for _ in range(3))
        f.store(number, self.chosen)
        word = words.field(f, self._counter(step), BEGUN)
        last = words.atomic_load(f, word, "i64")
        f.branch(f.compare("eq", last, turn), begun, begin)
        f.start_block(begin)
        _, won = words.exchange(f, word, last, turn)
        f.branch(won, take, begun)
        f.start_block(begun)
        first = f.load("i64", self.begun)
        f.store(f.select(f.compare("slt", first, 0), number, first), self.begun)
        f.jump(on)
        f.start_block(on)

    def _take(self, index: Value, step: Value, turn: Value) -> None:
        """Runs pieces of a step that is ready until none is left."""
        f = self.f
        counter = self._counter(step)
        alone = f.compare("eq", words.word(f, step, 5), 0)
        tiles = self.tiles(step)
        following, work, none = (f.label() for _ in range(3))
        f.jump(following)
        f.start_block(following)
        piece = self.claim(words.field(f, counter, PARTS), turn, tiles, alone)
        f.branch(f.compare("slt", piece, 0), none, work)
        f.start_block(work)
        begin, end = f.land(piece, 0xFFFFFFFF), f.lshr(piece, 32)
        with f.if_then(f.compare("ne", words.word(f, step, 4), 0)):
            self.work(index, step, begin, end)
        complete = f.call("signal", "i1", counter, f.sub(end, begin), tiles)
        with f.if_then(complete):
            self.complete(words.i64(1))
        f.jump(following)
        f.start_block(none)

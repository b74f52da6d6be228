"""One worker's way through a program's step table: the executor's functions `execute`."""

from __future__ import annotations

from collections.abc import Callable

from .. import llvm
from . import ranges, words

END, RUN, BRANCH, JUMP, SWITCH = range(5)

Value = llvm.Value

_PARAMETERS = [("ptr", "context"), ("i64", "worker"), ("i64", "threads"), ("ptr", "pool")]


class StepWalk:
    """A function (context, worker, threads, pool): one worker's way through the table; alone: where
    there is no other one."""

    def __init__(self, module: llvm.Module, name: str, alone: bool) -> None:
        f = self.f = module.helper(name, _PARAMETERS, inline="noinline")
        context, self.worker, self.threads, self.pool = f.arguments
        self.steps, self.slots = words.word(f, context, 0, "ptr"), words.word(f, context, 1, "ptr")
        offset = f.mul(words.word(f, context, 6), self.worker)
        self.scratch = f.pointer(words.word(f, context, 5, "ptr"), offset, "i8")
        trace, self.capacity = words.word(f, context, 7, "ptr"), words.word(f, context, 8)
        self.traced = f.compare("ne", trace, words.NULL)
        record = f.add(f.mul(self.capacity, 24), 8)
        self.log = f.pointer(trace, f.mul(record, self.worker), "i8")
        # What only several workers need is left out of the function of one, and the other way
        # round: every program is compiled with both.
        self.alone = alone
        self.own = f.pointer(
            words.word(f, context, 12, "ptr"), f.mul(words.word(f, context, 13), self.worker), "i8"
        )
        self.turns = words.word(f, context, 14, "ptr")
        self.range = ranges.RangeWalk(
            f, words.word(f, context, 11, "ptr"), words.word(f, context, 15, "ptr"), self.own,
            self._claim_of_range, self._work, self._complete, self._completed, self._await_change,
        )  # fmt: skip
        self.arguments = f.alloca("i64", ranges.MOST_ARGUMENTS + 1, align=8)
        # Of the walk: next step; number of runs; tiles of all runs before; number of decisions.
        self.at, self.runs, self.tiles, self.decisions = (
            f.alloca("i64", align=8) for _ in range(4)
        )
        for variable in (self.at, self.runs, self.tiles, self.decisions):
            f.store(words.i64(0), variable)
        self.following, self.leave = f.label(), f.label()

    def emit(self) -> None:
        f = self.f
        if not self.alone:
            with f.if_then(f.compare("ne", self.turns, words.NULL)):
                count = f.load("i64", self.turns)
                f.copy(self.own, words.field(f, self.turns, 8), f.shl(count, 3))
        f.jump(self.following)
        f.start_block(self.following)
        index = f.load("i64", self.at)
        step = f.pointer(self.steps, f.mul(index, ranges.STEP_BYTES), "i8")
        f.store(f.add(index, 1), self.at)
        if not self.alone:
            with f.if_then(f.compare("ne", words.word(f, step, 1), 0)):
                f.call("reach", "void", self.pool, f.load("i64", self.tiles))
        cases = {number: f.label() for number in (END, RUN, BRANCH, JUMP, SWITCH)}
        table = " ".join(f"i64 {number}, label %{label}" for number, label in cases.items())
        f.line(f"switch {words.word(f, step, 0)}, label %{self.leave} [ {table} ]")

        f.start_block(cases[RUN])
        if self.alone:
            self._run_alone(index, step)
        else:
            self._run(index, step)
        f.jump(self.following)

        f.start_block(cases[BRANCH])
        self._decide(step, lambda own: self._branch_target(index, step, own))
        f.start_block(cases[SWITCH])
        self._decide(step, lambda own: self._switch_target(step, own))

        f.start_block(cases[JUMP])
        f.store(words.word(f, step, 3), self.at)
        if not self.alone:  # who comes late need not make turns of which nothing is left
            with f.if_then(f.compare("ne", self.worker, 0)):
                over = words.atomic_load(f, words.field(f, self.pool, words.DONE))
                f.branch(f.compare("ne", over, 0), self.leave, self.following)
                f.start_block(f.label())
        f.jump(self.following)

        f.start_block(cases[END])
        if not self.alone:
            self._end()
        f.jump(self.leave)
        f.start_block(self.leave)
        f.ret()

    def _end(self) -> None:
        """Waits for all tiles and says that the program is done."""
        f = self.f
        f.call("reach", "void", self.pool, f.load("i64", self.tiles))
        with f.if_then(f.compare("ne", self.turns, words.NULL)):
            count = f.load("i64", self.turns)
            after = f.pointer(self.turns, f.add(count, 1), "i64")
            f.copy(after, self.own, f.shl(count, 3))
        words.atomic_store(f, words.i32(1), words.field(f, self.pool, words.DONE))
        sleepers = words.atomic_load(f, words.field(f, self.pool, words.DONE_SLEEPERS))
        with f.if_then(f.compare("ne", sleepers, 0)):
            words.wake(f, self.pool, words.field(f, self.pool, words.DONE))

    def _run_alone(self, index: Value, step: Value) -> None:
        """All tiles of a step. Of a program that has workers, but not now, a step may stand in the
        first one's memory."""
        f = self.f
        tiles = words.word(f, step, 4)
        with f.if_then(f.compare("ne", tiles, 0)):
            given = f.if_else(f.compare("eq", words.word(f, step, 7), 0))
            with given.then():
                given.give(self._slots(step))
            with given.otherwise():
                given.give(self._own_slots(step))
            self._call(index, step, given.results[0], words.i64(0), tiles, words.i64(0))

    def _run(self, index: Value, step: Value) -> None:
        """A step's tiles, piece by piece while there are any, or those of a range of steps."""
        f = self.f
        tiles = words.word(f, step, 4)
        each, shared, one, several, done = (f.label() for _ in range(5))
        kind = words.word(f, step, 6)
        f.branch(f.compare("sge", kind, 0), shared, each)
        f.start_block(shared)
        f.branch(f.compare("ne", kind, 0), several, one)

        f.start_block(several)
        self._range(index, step, kind)
        f.jump(done)

        f.start_block(one)
        with f.if_then(f.compare("ne", tiles, 0)):
            sequence = f.add(f.load("i64", self.runs), 1)
            f.store(sequence, self.runs)
            f.store(f.add(f.load("i64", self.tiles), tiles), self.tiles)
            next_piece, work, none = f.label(), f.label(), f.label()
            f.jump(next_piece)
            f.start_block(next_piece)
            lines = words.field(f, self.pool, words.MAILBOXES + words.RANGE)
            undivided = f.compare("eq", words.word(f, step, 5), 0)
            piece = self._claim(lines, words.LINE, 2, sequence, tiles, undivided)
            f.branch(f.compare("slt", piece, 0), none, work)
            f.start_block(work)
            begin, end = f.land(piece, 0xFFFFFFFF), f.lshr(piece, 32)
            slots = self._slots(step)
            self._call(index, step, slots, begin, end, sequence)
            self._complete(f.sub(end, begin))
            f.jump(next_piece)
            f.start_block(none)
        f.jump(done)

        f.start_block(each)
        with f.if_then(f.compare("ne", tiles, 0)):
            slots = self._own_slots(step)
            self._call(index, step, slots, words.i64(0), tiles, f.load("i64", self.runs))
        f.jump(done)
        f.start_block(done)

    def _range(self, index: Value, step: Value, size: Value) -> None:
        """A turn of the range of `size` steps that begins with this one."""
        f = self.f
        f.store(f.add(f.load("i64", self.tiles), size), self.tiles)
        f.store(f.add(f.load("i64", self.runs), size), self.runs)
        f.store(f.add(index, size), self.at)
        self.range.emit(index, step, size)

    def _claim(
        self, parts: Value, stride: int, part: int, sequence: Value, tiles: Value, alone: Value
    ) -> Value:
        where, how = (self.threads, self.worker), (words.i64(stride), words.i64(part))
        return self.f.call("claim", "i64", parts, *how, sequence, tiles, alone, *where)

    def _claim_of_range(self, parts: Value, turn: Value, tiles: Value, alone: Value) -> Value:
        return self._claim(parts, 8, 4, turn, tiles, alone)  # others may come to help

    def _work(self, index: Value, step: Value, begin: Value, end: Value) -> None:
        """A piece of a step of a range: runs are numbered so that each number is one step's."""
        f = self.f
        behind = f.sub(f.load("i64", self.at), index)
        run = f.sub(f.add(f.load("i64", self.runs), 1), behind)
        self._call(index, step, self._own_slots(step), begin, end, run)

    def _complete(self, count: Value) -> None:
        """Tiles of a step that stands alone, or steps of a range."""
        self.f.call("complete", "void", self.pool, count)

    def _completed(self) -> Value:
        return words.atomic_load(self.f, words.field(self.f, self.pool, words.COMPLETED), "i64")

    def _await_change(self, seen: Value) -> None:
        self.f.call("change", "void", self.pool, seen)

    def _slots(self, step: Value) -> Value:
        return self.f.pointer(self.slots, words.word(self.f, step, 3), "ptr")

    def _own_slots(self, step: Value) -> Value:
        """The slots of a step that has a record: it may have arguments of the worker's own."""
        f = self.f
        record, slots = self.range.record(step), self._slots(step)
        some = f.if_else(f.compare("eq", words.word(f, record, ranges.MASK), 0))
        with some.then():
            some.give(slots)
        with some.otherwise():
            some.give(f.call("own_arguments", "ptr", slots, record, self.own, self.arguments))
        return some.results[0]

    def _call(
        self, index: Value, step: Value, slots: Value, begin: Value, end: Value, run: Value
    ) -> None:
        """run: a number that a step's pieces, and no others, have in common."""
        f = self.f
        function = words.word(f, step, 2, "ptr")
        tiles = slots, begin, end, self.scratch
        traced = f.if_else(self.traced)
        with traced.then():
            which = f.lor(index, f.shl(run, 32))
            f.call("traced", "void", function, *tiles, self.log, self.capacity, which)
        with traced.otherwise():
            f.call_pointer(function, "void", *tiles)

    def _decide(self, step: Value, target_of: Callable[[Value | None], Value]) -> None:
        """Goes where a condition says, which `target_of` reads, perhaps in the worker's own memory;
        all workers go the same way."""
        f = self.f
        each, shared, known, late = (f.label() for _ in range(4))
        f.branch(f.compare("slt", words.word(f, step, 6), 0), each, shared)
        f.start_block(each)
        f.store(target_of(self.own), self.at)
        f.jump(self.following)

        f.start_block(shared)
        if self.alone:
            f.store(target_of(None), self.at)
            f.jump(self.following)
            return
        counted = f.if_else(f.compare("ne", words.word(f, step, 7), 0))
        with counted.then():
            self.range.await_ready(step)
        with counted.otherwise():
            f.call("reach", "void", self.pool, f.load("i64", self.tiles))
        number = f.add(f.load("i64", self.decisions), 1)
        f.store(number, self.decisions)
        ring = words.field(f, self.pool, words.DECISIONS)
        slot = f.pointer(ring, f.urem(number, words.RING), "i64")
        seen = words.atomic_load(f, slot, "i64")
        target = f.call("settle", "i64", slot, seen, number, target_of(None))
        f.branch(f.compare("slt", target, 0), late, known)
        f.start_block(known)
        f.store(target, self.at)
        f.jump(self.following)

        # The caller stays until the others, who are far ahead, have finished the program.
        f.start_block(late)
        with f.if_then(f.compare("eq", self.worker, 0)):
            done, sleepers = (
                words.field(f, self.pool, words.DONE),
                words.field(f, self.pool, words.DONE_SLEEPERS),
            )
            f.call("wait", "void", self.pool, done, words.i32(0), sleepers)
        f.jump(self.leave)

    def _read(self, step: Value, own: Value | None) -> Value:
        """Where what a branch reads lies; own: the memory in which its slot is an offset."""
        f = self.f
        slot = f.load("i64", f.pointer(self.slots, words.word(f, step, 2), "i64"))
        return f.cast("inttoptr", slot, "ptr") if own is None else f.pointer(own, slot, "i8")

    def _branch_target(self, index: Value, step: Value, own: Value | None) -> Value:
        f = self.f
        condition = f.load("i8", self._read(step, own))
        return f.select(f.compare("eq", condition, 0), words.word(f, step, 3), f.add(index, 1))

    def _switch_target(self, step: Value, own: Value | None) -> Value:
        f = self.f
        chosen = f.load("i32", self._read(step, own))
        highest = f.sub(words.word(f, step, 4), 1)
        # Out of range, above or below, takes the last target.
        clamped = f.min(f.cast("sext", chosen, "i64"), highest, signed=False)
        return f.load("i64", f.pointer(words.word(f, step, 3, "ptr"), clamped, "i64"))


def emit_execute(module: llvm.Module) -> None:
    """The functions `execute`, of several workers, and `execute_alone`."""
    _emit_traced(module)
    StepWalk(module, "execute", alone=False).emit()
    StepWalk(module, "execute_alone", alone=True).emit()


def _emit_traced(module: llvm.Module) -> None:
    """traced(function, slots, begin, end, scratch, log, capacity, step): calls the function and
    appends (step, begin, end) to the log, in ticks; a full one keeps counting."""
    parameters = [
        ("ptr", "function"), ("ptr", "slots"), ("i64", "begin"), ("i64", "end"), ("ptr", "scratch"),
        ("ptr", "log"), ("i64", "capacity"), ("i64", "step"),
    ]  # fmt: skip
    f = module.helper("traced", parameters, inline="noinline")
    function, *tiles, log, capacity, step = f.arguments
    started = words.ticks(f)
    f.call_pointer(function, "void", *tiles)
    ended = words.ticks(f)
    count = f.load("i64", log)
    with f.if_then(f.compare("ult", count, capacity)):
        place = words.field(f, f.pointer(log, f.mul(count, 24), "i8"), 8)
        for offset, value in enumerate((step, started, ended)):
            f.store(value, words.field(f, place, 8 * offset))
    f.store(f.add(count, 1), log)
    f.ret()

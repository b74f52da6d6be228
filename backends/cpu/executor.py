"""The executor: native code, written as LLVM IR, that walks a program's step table on all workers.

Two functions enter the image. `girih_run(context, threads, pool)` executes a program;
`girih_worker(pool, worker)` is where the process's worker threads stay for good. One call posts the
program once to each worker; all workers then walk the same table. They claim a step's tiles in
pieces, each from a range of its own first, so that a worker reads what it wrote, and a slow or
descheduled one takes fewer; which worker runs a tile never changes its bits. Where a step says
`wait`, a worker goes on once all tiles of all earlier steps are complete, whoever ran them. A
worker that has not begun when the program ends is not waited for.

A condition is read once: the first worker publishes what it decided in a ring, because the buffer
may have changed when a late worker comes by. A worker that is late by a whole ring leaves.

In a plan with task ranges (ranges.py) a worker goes on within a range to whatever step is ready, and
what every worker needs of a loop, such as its counter, every worker computes for itself.

Waiting spins for a bounded time and then sleeps in the kernel, so that an oversubscribed machine
stays usable.

The layouts below are part of the plan's ABI (plan.format_version): parked workers of one image run
programs of other images. All words are 64 bit; runtime/devices/cpu.py holds the same numbers.

    context:  0 steps, 1 slots, 2 io, 3 patches, 4 patch count, 5 scratch, 6 scratch bytes per
              worker, 7 trace or 0, 8 trace records per worker, 9 and 10 ticks at the traced
              call's begin and end; of plans with task ranges: 11 records, 12 the workers' own
              memory, 13 bytes of it per worker, 14 turns or 0, 15 counters
    step:     8 words: opcode, wait, then RUN: function, first slot, tiles, parallel
                                          BRANCH: slot, target    JUMP: -, target
                                          SWITCH: slot, targets, count
              then steps of the task range that begins here, or -1 where each worker runs the step
              for itself, else 0; offset of its record, 0 where it has none
    patch:    slot index, io index, byte offset: slots[slot] = io[index] + offset
    trace:    per worker: count, then records of (step | run number << 32, begin, end) in ticks;
              pieces that a worker took of one run have equal numbers, on one worker all are 0
    pool:     64-byte lines; line 0 is free; line 1: completed tiles, sleepers (i32);
              line 2: program done (i32), sleepers (i32);
              line 3: libc's `syscall` or `sched_yield`, futex number or 0;
              lines 4-11: decisions = number << 32 | next step;
              line 12+w: worker w's mailbox: state (i32), asleep (i32), execute function, context,
              threads, caller asleep (i32), and its range of a step's tiles = sequence number of
              the step << 32 | next tile; states: 0 idle, 1 posted, 2 taken
"""

from __future__ import annotations

from collections.abc import Callable

from .. import llvm
from . import ranges, words
from .codegen import Target

RUN_SYMBOL = "girih_run"
WORKER_SYMBOL = "girih_worker"
END, RUN, BRANCH, JUMP, SWITCH = range(5)

_STEP_BYTES = 64
_LINE = 64
_COMPLETED, _SLEEPERS, _DONE, _DONE_SLEEPERS = 64, 72, 128, 132
_DECISIONS, _MAILBOXES = 256, 768
_RING = (_MAILBOXES - _DECISIONS) // 8
_IDLE, _POSTED, _TAKEN = range(3)
_NULL = llvm.constant("ptr", 0)
# Of a mailbox:
_ASLEEP, _FUNCTION, _CONTEXT, _THREADS, _CALLER_ASLEEP, _RANGE = 4, 8, 16, 24, 32, 40
# A pause takes 15-50 ns, so this spins for 20 to 60 us: about what waking a thread costs.
_SPINS = 1200

Value = llvm.Value


def emit(target: Target) -> str:
    """The IR of the executor and of the memory routines that LLVM may call."""
    module = target.module()
    _emit_wait(module)
    _emit_reach(module)
    _emit_change(module)
    _emit_claim(module)
    _emit_complete(module)
    _emit_settle(module)
    ranges.emit_ready(module)
    ranges.emit_signal(module)
    ranges.emit_own_arguments(module)
    _emit_execute(module)
    _emit_run(module)
    _emit_worker(module)
    _emit_memory(module)
    return module.text()


def _emit_sleeping(
    f: llvm.Function,
    pool: Value,
    word: Value,
    kind: str,
    asleep: Value,
    ready: Callable[[Value], Value],
) -> None:
    """Returns once `ready` holds of the word of type `kind`: spins, then sleeps on its low bits."""
    spin, more, sleep, again, awake, done = (f.label() for _ in range(6))
    entry = f.block
    f.jump(spin)
    f.start_block(spin)
    count = f.emit("i64", f"phi i64 [ 0, %{entry} ], [ %next, %{more} ]")
    f.branch(ready(words.atomic_load(f, word, kind)), done, more)
    f.start_block(more)
    words.pause(f)
    f.line(f"%next = add i64 {count.name}, 1")
    f.branch(f.compare("ult", Value("i64", "%next"), _SPINS), spin, sleep)
    # The sleeper is counted before the kernel compares the word, and a waker changes the word
    # before it looks at the count: one of the two sees the other.
    f.start_block(sleep)
    words.atomic_add(f, asleep, words.i32(1))
    f.jump(again)
    f.start_block(again)
    now = words.atomic_load(f, word, kind)
    still = f.label()
    f.branch(ready(now), awake, still)
    f.start_block(still)
    words.sleep(f, pool, word, now if kind == "i32" else f.cast("trunc", now, "i32"))
    f.jump(again)
    f.start_block(awake)
    words.atomic_add(f, asleep, words.i32(-1))
    f.jump(done)
    f.start_block(done)
    f.ret()


def _emit_wait(module: llvm.Module) -> None:
    """wait(pool, word, old, asleep): returns once the i32 at `word` is not `old`."""
    parameters = [("ptr", "pool"), ("ptr", "word"), ("i32", "old"), ("ptr", "asleep")]
    f = module.helper("wait", parameters, inline="noinline")
    pool, word, old, asleep = f.arguments
    _emit_sleeping(f, pool, word, "i32", asleep, lambda now: f.compare("ne", now, old))


def _emit_reach(module: llvm.Module) -> None:
    """reach(pool, tiles): returns once so many tiles of the program are complete."""
    f = module.helper("reach", [("ptr", "pool"), ("i64", "tiles")], inline="noinline")
    pool, tiles = f.arguments
    sleepers = words.field(f, pool, _SLEEPERS)
    word = words.field(f, pool, _COMPLETED)
    _emit_sleeping(f, pool, word, "i64", sleepers, lambda now: f.compare("sge", now, tiles))


def _emit_change(module: llvm.Module) -> None:
    """change(pool, tiles): returns once another number of tiles of the program is complete."""
    f = module.helper("change", [("ptr", "pool"), ("i64", "tiles")], inline="noinline")
    pool, tiles = f.arguments
    sleepers = words.field(f, pool, _SLEEPERS)
    word = words.field(f, pool, _COMPLETED)
    _emit_sleeping(f, pool, word, "i64", sleepers, lambda now: f.compare("ne", now, tiles))


def _emit_claim(module: llvm.Module) -> None:
    """claim(lines, sequence, tiles, alone, threads, worker): begin | end << 32 of a piece, or -1.

    Every worker has a range of a step's tiles, equal in all steps, so that what it reads is often
    what it wrote; it takes from others' ranges when its own is empty. A step that is not parallel
    has one range. The words of ranges begin at `lines`, each on a line of its own; runs of a step
    are numbered in `sequence`, whose 32-bit difference counts.
    """
    parameters = [
        ("ptr", "lines"), ("i64", "sequence"), ("i64", "tiles"), ("i1", "alone"), ("i64", "threads"),
        ("i64", "worker"),
    ]  # fmt: skip
    f = module.helper("claim", parameters, "i64", inline="noinline")
    lines, sequence, tiles, alone, threads, worker = f.arguments
    parts = f.select(alone, 1, threads)
    names = (f.label() for _ in range(9))
    following, look, some, attempt, current, take, taken, empty, none = names
    entry = f.block
    f.jump(following)
    f.start_block(following)
    turn = f.emit("i64", f"phi i64 [ 0, %{entry} ], [ %turn, %{empty} ]")
    f.branch(f.compare("ult", turn, parts), look, none)
    f.start_block(look)
    number = f.urem(f.add(worker, turn), parts)
    word = f.pointer(lines, f.mul(number, _LINE), "i8")
    lowest = f.udiv(f.mul(tiles, number), parts)
    highest = f.udiv(f.mul(tiles, f.add(number, 1)), parts)
    f.branch(f.compare("ult", lowest, highest), some, empty)  # nobody writes the word of no tiles
    f.start_block(some)
    first = words.atomic_load(f, word, "i64")
    f.jump(attempt)
    f.start_block(attempt)
    now = f.emit("i64", f"phi i64 [ {first.name}, %{some} ], [ %found, %{take} ]")
    ahead = f.cast("trunc", f.sub(f.lshr(now, 32), sequence), "i32")
    # A later run has begun only when no range of this one had a tile left.
    f.branch(f.compare("sgt", ahead, 0), none, current)
    f.start_block(current)
    same = f.compare("eq", ahead, 0)
    begin = f.select(same, f.land(now, 0xFFFFFFFF), lowest)
    left = f.sub(highest, begin)
    f.branch(f.compare("sgt", left, 0), take, empty)
    f.start_block(take)
    piece = f.max(f.udiv(left, 2), 1)
    end = f.add(begin, f.select(alone, left, piece))
    found, won = words.exchange(f, word, now, f.lor(f.shl(sequence, 32), end))
    f.line(f"%found = add {found}, 0")
    f.branch(won, taken, attempt)
    f.start_block(taken)
    f.ret(f.lor(begin, f.shl(end, 32)))
    f.start_block(empty)
    f.line(f"%turn = add {turn}, 1")
    f.jump(following)
    f.start_block(none)
    f.ret(words.i64(-1))


def _emit_complete(module: llvm.Module) -> None:
    """complete(pool, tiles): counts finished tiles and wakes who waits for them."""
    f = module.helper("complete", [("ptr", "pool"), ("i64", "tiles")], inline="noinline")
    pool, tiles = f.arguments
    words.atomic_add(f, words.field(f, pool, _COMPLETED), tiles)
    with f.if_then(f.compare("ne", words.atomic_load(f, words.field(f, pool, _SLEEPERS)), 0)):
        words.wake(f, pool, words.field(f, pool, _COMPLETED))
    f.ret()


def _emit_settle(module: llvm.Module) -> None:
    """settle(slot, seen, number, target): the step that decision `number` goes to: `target` if no
    worker published it before, else what it published; -1 if the ring has gone round since.

    `seen` was in the slot before the condition was read: if it still is, no worker had gone on, and
    what was read is the condition.
    """
    parameters = [("ptr", "slot"), ("i64", "seen"), ("i64", "number"), ("i64", "target")]
    f = module.helper("settle", parameters, "i64", inline="noinline")
    slot, seen, number, target = f.arguments
    own = f.lor(f.shl(number, 32), target)
    fresh = f.compare("slt", f.lshr(seen, 32), number)
    branch = f.if_else(fresh)
    with branch.then():
        found, won = words.exchange(f, slot, seen, own)
        branch.give(f.select(won, own, found))
    with branch.otherwise():
        branch.give(seen)
    (known,) = branch.results
    late = f.compare("ne", f.lshr(known, 32), number)
    f.ret(f.select(late, -1, f.land(known, 0xFFFFFFFF)))


_EXECUTE_PARAMETERS = [("ptr", "context"), ("i64", "worker"), ("i64", "threads"), ("ptr", "pool")]


class _StepWalk:
    """The function execute(context, worker, threads, pool): one worker's way through the table."""

    def __init__(self, module: llvm.Module) -> None:
        f = self.f = module.helper("execute", _EXECUTE_PARAMETERS, inline="noinline")
        context, self.worker, self.threads, self.pool = f.arguments
        self.steps, self.slots = words.word(f, context, 0, "ptr"), words.word(f, context, 1, "ptr")
        offset = f.mul(words.word(f, context, 6), self.worker)
        self.scratch = f.pointer(words.word(f, context, 5, "ptr"), offset, "i8")
        trace, self.capacity = words.word(f, context, 7, "ptr"), words.word(f, context, 8)
        self.traced = f.compare("ne", trace, _NULL)
        record = f.add(f.mul(self.capacity, 24), 8)
        self.log = f.pointer(trace, f.mul(record, self.worker), "i8")
        self.several = f.compare("ugt", self.threads, 1)
        self.own = f.pointer(
            words.word(f, context, 12, "ptr"), f.mul(words.word(f, context, 13), self.worker), "i8"
        )
        self.turns = words.word(f, context, 14, "ptr")
        self.range = ranges.RangeWalk(
            f, words.word(f, context, 11, "ptr"), words.word(f, context, 15, "ptr"), self.own,
            self._claim, self._work, self._complete, self._completed, self._await_change,
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
        with f.if_then(f.land(self.several, f.compare("ne", self.turns, _NULL))):
            count = f.load("i64", self.turns)
            f.copy(self.own, words.field(f, self.turns, 8), f.shl(count, 3))
        f.jump(self.following)
        f.start_block(self.following)
        index = f.load("i64", self.at)
        step = f.pointer(self.steps, f.mul(index, _STEP_BYTES), "i8")
        f.store(f.add(index, 1), self.at)
        waits = f.compare("ne", words.word(f, step, 1), 0)
        with f.if_then(f.land(self.several, waits)):
            f.call("reach", "void", self.pool, f.load("i64", self.tiles))
        cases = {number: f.label() for number in (END, RUN, BRANCH, JUMP, SWITCH)}
        table = " ".join(f"i64 {number}, label %{label}" for number, label in cases.items())
        f.line(f"switch {words.word(f, step, 0)}, label %{self.leave} [ {table} ]")

        f.start_block(cases[RUN])
        self._run(index, step)
        f.jump(self.following)

        f.start_block(cases[BRANCH])
        self._decide(step, lambda: self._branch_target(index, step))
        f.start_block(cases[SWITCH])
        self._decide(step, lambda: self._switch_target(step))

        f.start_block(cases[JUMP])
        f.store(words.word(f, step, 3), self.at)
        # Who comes late need not make turns of which nothing is left.
        late = f.land(self.several, f.compare("ne", self.worker, 0))
        with f.if_then(late):
            over = words.atomic_load(f, words.field(f, self.pool, _DONE))
            f.branch(f.compare("ne", over, 0), self.leave, self.following)
            f.start_block(f.label())
        f.jump(self.following)

        f.start_block(cases[END])
        with f.if_then(self.several):
            f.call("reach", "void", self.pool, f.load("i64", self.tiles))
            with f.if_then(f.compare("ne", self.turns, _NULL)):
                count = f.load("i64", self.turns)
                after = f.pointer(self.turns, f.add(count, 1), "i64")
                f.copy(after, self.own, f.shl(count, 3))
            words.atomic_store(f, words.i32(1), words.field(f, self.pool, _DONE))
            with f.if_then(
                f.compare("ne", words.atomic_load(f, words.field(f, self.pool, _DONE_SLEEPERS)), 0)
            ):
                words.wake(f, self.pool, words.field(f, self.pool, _DONE))
        f.jump(self.leave)
        f.start_block(self.leave)
        f.ret()

    def _run(self, index: Value, step: Value) -> None:
        """A step's tiles, piece by piece while there are any, or those of a range of steps."""
        f = self.f
        tiles, kind = words.word(f, step, 4), words.word(f, step, 6)
        alone, shared, one, several, done = (f.label() for _ in range(5))
        f.branch(f.land(self.several, f.compare("sge", kind, 0)), shared, alone)
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
            lines = words.field(f, self.pool, _MAILBOXES + _RANGE)
            piece = self._claim(lines, sequence, tiles, f.compare("eq", words.word(f, step, 5), 0))
            f.branch(f.compare("slt", piece, 0), none, work)
            f.start_block(work)
            begin, end = f.land(piece, 0xFFFFFFFF), f.lshr(piece, 32)
            self._call(index, step, begin, end, sequence)
            self._complete(f.sub(end, begin))
            f.jump(next_piece)
            f.start_block(none)
        f.jump(done)

        f.start_block(alone)
        with f.if_then(f.compare("ne", tiles, 0)):
            self._call(index, step, words.i64(0), tiles, f.load("i64", self.runs))
        f.jump(done)
        f.start_block(done)

    def _range(self, index: Value, step: Value, size: Value) -> None:
        """A turn of the range of `size` steps that begins with this one."""
        f = self.f
        with f.for_range(0, size) as loop:
            row = f.pointer(step, f.mul(loop.index, _STEP_BYTES), "i8")
            f.store(f.add(f.load("i64", self.tiles), self.range.tiles(row)), self.tiles)
        f.store(f.add(f.load("i64", self.runs), size), self.runs)
        f.store(f.add(index, size), self.at)
        self.range.emit(index, step, size)

    def _claim(self, lines: Value, sequence: Value, tiles: Value, alone: Value) -> Value:
        where = self.threads, self.worker
        return self.f.call("claim", "i64", lines, sequence, tiles, alone, *where)

    def _work(self, index: Value, step: Value, begin: Value, end: Value) -> None:
        """A piece of a step of a range: runs are numbered so that each number is one step's."""
        f = self.f
        behind = f.sub(f.load("i64", self.at), index)
        self._call(index, step, begin, end, f.sub(f.add(f.load("i64", self.runs), 1), behind))

    def _complete(self, tiles: Value) -> None:
        self.f.call("complete", "void", self.pool, tiles)

    def _completed(self) -> Value:
        return words.atomic_load(self.f, words.field(self.f, self.pool, _COMPLETED), "i64")

    def _await_change(self, seen: Value) -> None:
        self.f.call("change", "void", self.pool, seen)

    def _call(self, index: Value, step: Value, begin: Value, end: Value, run: Value) -> None:
        """run: a number that a step's pieces, and no others, have in common."""
        f = self.f
        started = f.alloca("i64", align=8)
        with f.if_then(self.traced):
            f.store(words.ticks(f), started)
        slots = f.pointer(self.slots, words.word(f, step, 3), "ptr")
        given = f.if_else(f.compare("eq", words.word(f, step, 7), 0))
        with given.then():
            given.give(slots)
        with given.otherwise():
            record = self.range.record(step)
            some = f.if_else(f.compare("eq", words.word(f, record, ranges.MASK), 0))
            with some.then():
                some.give(slots)
            with some.otherwise():
                where = slots, record, self.own, self.arguments
                some.give(f.call("own_arguments", "ptr", *where))
            given.give(*some.results)
        (arguments,) = given.results
        f.call_pointer(words.word(f, step, 2, "ptr"), "void", arguments, begin, end, self.scratch)
        with f.if_then(self.traced):
            which = f.lor(index, f.shl(run, 32))
            _emit_trace(f, self.log, self.capacity, which, f.load("i64", started), words.ticks(f))

    def _decide(self, step: Value, target_of: Callable[[], Value]) -> None:
        """Goes where a condition says; all workers go the same way."""
        f = self.f
        alone, shared, known, late = (f.label() for _ in range(4))
        each = f.compare("slt", words.word(f, step, 6), 0)
        f.branch(f.land(self.several, f.lnot(each)), shared, alone)
        f.start_block(alone)
        f.store(target_of(), self.at)
        f.jump(self.following)

        f.start_block(shared)
        counted = f.if_else(f.compare("ne", words.word(f, step, 7), 0))
        with counted.then():
            self.range.await_ready(step)
        with counted.otherwise():
            f.call("reach", "void", self.pool, f.load("i64", self.tiles))
        number = f.add(f.load("i64", self.decisions), 1)
        f.store(number, self.decisions)
        ring = words.field(f, self.pool, _DECISIONS)
        slot = f.pointer(ring, f.urem(number, _RING), "i64")
        seen = words.atomic_load(f, slot, "i64")
        target = f.call("settle", "i64", slot, seen, number, target_of())
        f.branch(f.compare("slt", target, 0), late, known)
        f.start_block(known)
        f.store(target, self.at)
        f.jump(self.following)

        # The caller stays until the others, who are far ahead, have finished the program.
        f.start_block(late)
        with f.if_then(f.compare("eq", self.worker, 0)):
            done, sleepers = (
                words.field(f, self.pool, _DONE),
                words.field(f, self.pool, _DONE_SLEEPERS),
            )
            f.call("wait", "void", self.pool, done, words.i32(0), sleepers)
        f.jump(self.leave)

    def _read(self, step: Value) -> Value:
        """Where what a branch reads lies, perhaps in the worker's own memory."""
        f = self.f
        slot = f.load("i64", f.pointer(self.slots, words.word(f, step, 2), "i64"))
        each = f.compare("slt", words.word(f, step, 6), 0)
        base = f.select(each, f.cast("ptrtoint", self.own, "i64"), 0)
        return f.cast("inttoptr", f.add(slot, base), "ptr")

    def _branch_target(self, index: Value, step: Value) -> Value:
        f = self.f
        condition = f.load("i8", self._read(step))
        return f.select(f.compare("eq", condition, 0), words.word(f, step, 3), f.add(index, 1))

    def _switch_target(self, step: Value) -> Value:
        f = self.f
        chosen = f.load("i32", self._read(step))
        highest = f.sub(words.word(f, step, 4), 1)
        # Out of range, above or below, takes the last target.
        clamped = f.min(f.cast("sext", chosen, "i64"), highest, signed=False)
        return f.load("i64", f.pointer(words.word(f, step, 3, "ptr"), clamped, "i64"))


def _emit_execute(module: llvm.Module) -> None:
    _StepWalk(module).emit()


def _emit_trace(
    f: llvm.Function, log: Value, capacity: Value, step: Value, begin: Value, end: Value
) -> None:
    """Appends (step, begin, end); a full log keeps counting."""
    count = f.load("i64", log)
    with f.if_then(f.compare("ult", count, capacity)):
        place = words.field(f, f.pointer(log, f.mul(count, 24), "i8"), 8)
        for offset, value in enumerate((step, begin, end)):
            f.store(value, words.field(f, place, 8 * offset))
    f.store(f.add(count, 1), log)


def _emit_run(module: llvm.Module) -> None:
    """girih_run(context, threads, pool): patches the call's pointers in and runs to the end."""
    f = module.function(RUN_SYMBOL, [("ptr", "context"), ("i64", "threads"), ("ptr", "pool")])
    context, threads, pool = f.arguments
    traced = f.compare("ne", words.word(f, context, 7), 0)
    with f.if_then(traced):
        f.store(words.ticks(f), words.field(f, context, 72))
    slots, io = words.word(f, context, 1, "ptr"), words.word(f, context, 2, "ptr")
    patches = words.word(f, context, 3, "ptr")
    with f.for_range(0, words.word(f, context, 4)) as loop:
        patch = f.pointer(patches, f.mul(loop.index, 24), "i8")
        source = f.load("i64", f.pointer(io, words.word(f, patch, 1), "i64"))
        slot = f.pointer(slots, words.word(f, patch, 0), "i64")
        f.store(f.add(source, words.word(f, patch, 2)), slot)

    several = f.compare("ugt", threads, 1)
    with f.if_then(several):
        for offset in (_COMPLETED, *range(_DECISIONS, _MAILBOXES, 8)):
            f.store(words.i64(0), words.field(f, pool, offset))
        with f.for_range(0, threads) as loop:
            mailbox = f.pointer(words.field(f, pool, _MAILBOXES), f.mul(loop.index, _LINE), "i8")
            f.store(words.i64(0), words.field(f, mailbox, _RANGE))
        words.atomic_store(f, words.i32(0), words.field(f, pool, _DONE))
        with f.for_range(1, threads) as loop:
            mailbox = f.pointer(words.field(f, pool, _MAILBOXES), f.mul(loop.index, _LINE), "i8")
            f.store(Value("ptr", "@execute"), words.field(f, mailbox, _FUNCTION))
            f.store(context, words.field(f, mailbox, _CONTEXT))
            f.store(threads, words.field(f, mailbox, _THREADS))
            words.atomic_store(f, words.i32(_POSTED), mailbox)
            with f.if_then(
                f.compare("ne", words.atomic_load(f, words.field(f, mailbox, _ASLEEP)), 0)
            ):
                words.wake(f, pool, mailbox)
    f.call("execute", "void", context, words.i64(0), threads, pool)
    with f.if_then(several), f.for_range(1, threads) as loop:
        mailbox = f.pointer(words.field(f, pool, _MAILBOXES), f.mul(loop.index, _LINE), "i8")
        # Who has not begun shall not; who has is left the time to walk to the end.
        words.exchange(f, mailbox, words.i32(_POSTED), words.i32(_IDLE))
        with f.if_then(f.compare("eq", words.atomic_load(f, mailbox), _TAKEN)):
            caller_asleep = words.field(f, mailbox, _CALLER_ASLEEP)
            f.call("wait", "void", pool, mailbox, words.i32(_TAKEN), caller_asleep)
    # Nobody reads the turns of this call's start any more.
    turns = words.word(f, context, 14, "ptr")
    with f.if_then(f.land(several, f.compare("ne", turns, _NULL))):
        count = f.load("i64", turns)
        f.copy(words.field(f, turns, 8), f.pointer(turns, f.add(count, 1), "i64"), f.shl(count, 3))
    with f.if_then(traced):
        f.store(words.ticks(f), words.field(f, context, 80))
    f.ret()


def _emit_worker(module: llvm.Module) -> None:
    """girih_worker(pool, worker): never returns, and keeps nothing of a finished program."""
    f = module.function(WORKER_SYMBOL, [("ptr", "pool"), ("i64", "worker")])
    pool, worker = f.arguments
    mailbox = f.pointer(words.field(f, pool, _MAILBOXES), f.mul(worker, _LINE), "i8")
    serve = f.label()
    f.jump(serve)
    f.start_block(serve)
    f.call("wait", "void", pool, mailbox, words.i32(_IDLE), words.field(f, mailbox, _ASLEEP))
    _, won = words.exchange(f, mailbox, words.i32(_POSTED), words.i32(_TAKEN))
    with f.if_then(won):
        execute = f.load("ptr", words.field(f, mailbox, _FUNCTION))
        context = f.load("ptr", words.field(f, mailbox, _CONTEXT))
        threads = f.load("i64", words.field(f, mailbox, _THREADS))
        f.call_pointer(execute, "void", context, worker, threads, pool)
        words.atomic_store(f, words.i32(_IDLE), mailbox)
        with f.if_then(
            f.compare("ne", words.atomic_load(f, words.field(f, mailbox, _CALLER_ASLEEP)), 0)
        ):
            words.wake(f, pool, mailbox)
    f.jump(serve)


def _emit_memory(module: llvm.Module) -> None:
    """memcpy, memmove and memset, which LLVM's code generator may call for copies and fills."""
    parameters = [("ptr", "target"), ("ptr", "source"), ("i64", "count")]
    for name in ("memcpy", "memmove"):
        f = module.function(name, parameters, "ptr", linkage="hidden")
        target, source, count = f.arguments
        if name == "memmove":
            distance = f.sub(f.cast("ptrtoint", target, "i64"), f.cast("ptrtoint", source, "i64"))
            # An unsigned distance below count means that the target starts inside the source.
            branch = f.if_else(f.compare("ult", distance, count))
            with branch.then(), f.for_range(0, count) as loop:
                at = f.sub(f.sub(count, 1), loop.index)
                f.store(f.load("i8", f.pointer(source, at, "i8")), f.pointer(target, at, "i8"))
            with branch.otherwise():
                _emit_forward_copy(f, target, source, count)
        else:
            _emit_forward_copy(f, target, source, count)
        f.ret(target)

    f = module.function(
        "memset", [("ptr", "target"), ("i32", "byte"), ("i64", "count")], "ptr", linkage="hidden"
    )
    target, value, count = f.arguments
    byte = f.cast("trunc", value, "i8")
    wide = f.splat(byte, 64)
    whole = f.land(count, -64)
    with f.for_range(0, whole, 64) as loop:
        f.store(wide, f.pointer(target, loop.index, "i8"))
    with f.for_range(whole, count) as loop:
        f.store(byte, f.pointer(target, loop.index, "i8"))
    f.ret(target)


def _emit_forward_copy(f: llvm.Function, target: Value, source: Value, count: Value) -> None:
    whole = f.land(count, -64)
    for first, last, chunk in ((0, whole, "<64 x i8>"), (whole, count, "i8")):
        with f.for_range(first, last, llvm.lanes_of(chunk)) as loop:
            value = f.load(chunk, f.pointer(source, loop.index, "i8"))
            f.store(value, f.pointer(target, loop.index, "i8"))

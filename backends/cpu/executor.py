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

In a plan with task ranges (ranges.py) a worker goes on within a range to whatever step is ready,
and what every worker needs of a loop, such as its counter, every worker computes for itself.

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
    pool:     64-byte lines; line 0 is free; line 1: completed tiles (in ranges: steps), sleepers;
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
from . import ranges, step_walk, words
from .codegen import Target

RUN_SYMBOL = "girih_run"
WORKER_SYMBOL = "girih_worker"

_IDLE, _POSTED, _TAKEN = range(3)
# A pause takes 15-50 ns, so this spins for 20 to 60 us: about what waking a thread costs.
_SPINS = 1200

Value = llvm.Value


def emit(target: Target) -> str:
    """The IR of the executor and of the memory routines that LLVM may call."""
    module = target.module()
    _emit_wait(module)
    _emit_until(module, "reach", "sge")
    _emit_until(module, "change", "ne")
    _emit_claim(module)
    _emit_complete(module)
    _emit_settle(module)
    ranges.emit_ready(module)
    ranges.emit_signal(module)
    ranges.emit_own_arguments(module)
    step_walk.emit_execute(module)
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


def _emit_until(module: llvm.Module, name: str, comparison: str) -> None:
    """name(pool, tiles): returns once the number of complete tiles of the program is in such
    relation to `tiles`."""
    f = module.helper(name, [("ptr", "pool"), ("i64", "tiles")], inline="noinline")
    pool, tiles = f.arguments
    sleepers = words.field(f, pool, words.SLEEPERS)
    word = words.field(f, pool, words.COMPLETED)
    _emit_sleeping(f, pool, word, "i64", sleepers, lambda now: f.compare(comparison, now, tiles))


def _emit_claim(module: llvm.Module) -> None:
    """claim(parts, stride, part, sequence, tiles, alone, threads, worker): begin | end << 32 or -1.

    Every worker has a range of a step's tiles, equal in all steps, so that what it reads is often
    what it wrote; it takes from others' ranges when its own is empty. A step that is not parallel
    has one range. The words of ranges begin at `parts`, `stride` bytes apart; a piece is the
    `part`th part of what is left. Runs of a step are numbered in `sequence`, whose 32-bit
    difference counts.
    """
    parameters = [
        ("ptr", "parts"), ("i64", "stride"), ("i64", "part"), ("i64", "sequence"),
        ("i64", "tiles"), ("i1", "alone"), ("i64", "threads"), ("i64", "worker"),
    ]  # fmt: skip
    f = module.helper("claim", parameters, "i64", inline="noinline")
    parts, stride, part, sequence, tiles, alone, threads, worker = f.arguments
    count = f.select(alone, 1, threads)
    names = (f.label() for _ in range(9))
    following, look, some, attempt, current, take, taken, empty, none = names
    entry = f.block
    f.jump(following)
    f.start_block(following)
    turn = f.emit("i64", f"phi i64 [ 0, %{entry} ], [ %turn, %{empty} ]")
    f.branch(f.compare("ult", turn, count), look, none)
    f.start_block(look)
    number = f.urem(f.add(worker, turn), count)
    word = f.pointer(parts, f.mul(number, stride), "i8")
    lowest = f.udiv(f.mul(tiles, number), count)
    highest = f.udiv(f.mul(tiles, f.add(number, 1)), count)
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
    piece = f.max(f.udiv(left, part), 1)
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
    words.atomic_add(f, words.field(f, pool, words.COMPLETED), tiles)
    with f.if_then(f.compare("ne", words.atomic_load(f, words.field(f, pool, words.SLEEPERS)), 0)):
        words.wake(f, pool, words.field(f, pool, words.COMPLETED))
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
        for offset in (words.COMPLETED, *range(words.DECISIONS, words.MAILBOXES, 8)):
            f.store(words.i64(0), words.field(f, pool, offset))
        with f.for_range(0, threads) as loop:
            mailbox = f.pointer(
                words.field(f, pool, words.MAILBOXES), f.mul(loop.index, words.LINE), "i8"
            )
            f.store(words.i64(0), words.field(f, mailbox, words.RANGE))
        words.atomic_store(f, words.i32(0), words.field(f, pool, words.DONE))
        with f.for_range(1, threads) as loop:
            mailbox = f.pointer(
                words.field(f, pool, words.MAILBOXES), f.mul(loop.index, words.LINE), "i8"
            )
            f.store(Value("ptr", "@execute"), words.field(f, mailbox, words.FUNCTION))
            f.store(context, words.field(f, mailbox, words.CONTEXT))
            f.store(threads, words.field(f, mailbox, words.THREADS))
            words.atomic_store(f, words.i32(_POSTED), mailbox)
            with f.if_then(
                f.compare("ne", words.atomic_load(f, words.field(f, mailbox, words.ASLEEP)), 0)
            ):
                words.wake(f, pool, mailbox)
    for function, when in (("execute", several), ("execute_alone", f.lnot(several))):
        with f.if_then(when):
            f.call(function, "void", context, words.i64(0), threads, pool)
    with f.if_then(several), f.for_range(1, threads) as loop:
        mailbox = f.pointer(
            words.field(f, pool, words.MAILBOXES), f.mul(loop.index, words.LINE), "i8"
        )
        # Who has not begun shall not; who has is left the time to walk to the end.
        words.exchange(f, mailbox, words.i32(_POSTED), words.i32(_IDLE))
        with f.if_then(f.compare("eq", words.atomic_load(f, mailbox), _TAKEN)):
            caller_asleep = words.field(f, mailbox, words.CALLER_ASLEEP)
            f.call("wait", "void", pool, mailbox, words.i32(_TAKEN), caller_asleep)
    # Nobody reads the turns of this call's start any more.
    turns = words.word(f, context, 14, "ptr")
    with f.if_then(f.land(several, f.compare("ne", turns, words.NULL))):
        count = f.load("i64", turns)
        f.copy(words.field(f, turns, 8), f.pointer(turns, f.add(count, 1), "i64"), f.shl(count, 3))
    with f.if_then(traced):
        f.store(words.ticks(f), words.field(f, context, 80))
    f.ret()


def _emit_worker(module: llvm.Module) -> None:
    """girih_worker(pool, worker): never returns, and keeps nothing of a finished program."""
    f = module.function(WORKER_SYMBOL, [("ptr", "pool"), ("i64", "worker")])
    pool, worker = f.arguments
    mailbox = f.pointer(words.field(f, pool, words.MAILBOXES), f.mul(worker, words.LINE), "i8")
    serve = f.label()
    f.jump(serve)
    f.start_block(serve)
    f.call("wait", "void", pool, mailbox, words.i32(_IDLE), words.field(f, mailbox, words.ASLEEP))
    _, won = words.exchange(f, mailbox, words.i32(_POSTED), words.i32(_TAKEN))
    with f.if_then(won):
        execute = f.load("ptr", words.field(f, mailbox, words.FUNCTION))
        context = f.load("ptr", words.field(f, mailbox, words.CONTEXT))
        threads = f.load("i64", words.field(f, mailbox, words.THREADS))
        f.call_pointer(execute, "void", context, worker, threads, pool)
        words.atomic_store(f, words.i32(_IDLE), mailbox)
        with f.if_then(
            f.compare("ne", words.atomic_load(f, words.field(f, mailbox, words.CALLER_ASLEEP)), 0)
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

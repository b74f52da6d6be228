"""The executor: native code, written as LLVM IR, that walks a program's step table on all workers.

Two functions enter the image. `girih_run(context, threads, pool)` executes a program;
`girih_worker(pool, worker)` is where the process's worker threads stay for good. One call posts the
program once to each worker; all workers then walk the same table, each taking its static share of
every step's tiles, and meet at a barrier where a step says `wait`. Waiting spins for a bounded time
and then sleeps in the kernel, so an oversubscribed machine stays usable.

The layouts below are part of the plan's ABI (plan.format_version): parked workers of one image run
programs of other images. All words are 64 bit; runtime/devices/cpu.py holds the same numbers.

    context:  0 steps, 1 slots, 2 io, 3 patches, 4 patch count, 5 scratch, 6 scratch bytes per
              worker, 7 trace or 0, 8 trace records per worker, 9 and 10 ticks at the traced
              call's begin and end
    step:     8 words: opcode, wait, then RUN: function, first slot, tiles, parallel
                                          BRANCH: slot, target    JUMP: -, target
                                          SWITCH: slot, targets, count
    patch:    slot index, io index, byte offset: slots[slot] = io[index] + offset
    trace:    per worker: count, then records of (step, begin, end) in ticks
    pool:     64-byte lines; line 0: barrier arrivals; line 1: barrier generation (i32), sleepers
              (i32); line 2: finished workers (i32), caller asleep (i32); line 3: libc's
              `syscall` or `sched_yield`, futex number or 0;
              line 4+w: worker w's mailbox: generation (i32), asleep (i32), execute function,
              context, threads
"""

from __future__ import annotations

from . import llvm
from .codegen import Target

RUN_SYMBOL = "girih_run"
WORKER_SYMBOL = "girih_worker"
END, RUN, BRANCH, JUMP, SWITCH = range(5)

_STEP_BYTES = 64
_LINE = 64
_ARRIVALS, _GENERATION, _SLEEPERS, _FINISHED, _CALLER_ASLEEP = 0, 64, 68, 128, 132
_SYSTEM, _MAILBOXES = 192, 256
# A pause takes 15-50 ns, so this spins for 20 to 60 us: about what waking a thread costs.
_SPINS = 1200

Value = llvm.Value


def _pause(f: llvm.Function) -> None:
    """Tells the core that this is a spin loop; unknown architectures just spin."""
    if f.module.architecture == "x86_64":
        f.call("llvm.x86.sse2.pause", "void", declare=True)
    else:
        f.call("llvm.aarch64.isb", "void", llvm.constant("i32", 15), declare=True)


def _ticks(f: llvm.Function) -> Value:
    """The time stamp counter, which all cores share."""
    x86 = f.module.architecture == "x86_64"
    name = "llvm.readcyclecounter" if x86 else "llvm.readsteadycounter"
    return f.call(name, "i64", declare=True)


def _futex(f: llvm.Function, pool: Value, word: Value, operation: int, value: Value) -> None:
    """The kernel's wait or wake on an i32, through the function that the runtime put in the pool.

    That function is libc's `syscall` with a futex number, or, where a kernel has no futex
    (number 0), `sched_yield`, which ignores what it is given.
    """
    function = f.load("ptr", _field(f, pool, _SYSTEM))
    number = f.load("i64", _field(f, pool, _SYSTEM + 8))
    arguments = f"{number}, {word}, i64 {operation}, {value}, i64 0, i64 0, i64 0"
    f.emit("i64", f"call i64 (i64, ...) {function.name}({arguments})")


def _sleep(f: llvm.Function, pool: Value, word: Value, expected: Value) -> None:
    """Sleeps while the i32 at `word` holds `expected`; may wake early."""
    _futex(f, pool, word, 128, f.cast("zext", expected, "i64"))  # FUTEX_WAIT_PRIVATE


def _wake(f: llvm.Function, pool: Value, word: Value) -> None:
    _futex(f, pool, word, 129, llvm.constant("i64", 0x7FFFFFFF))  # FUTEX_WAKE_PRIVATE


def emit(target: Target) -> str:
    """The IR of the executor and of the memory routines that LLVM may call."""
    module = target.module()
    _emit_wait(module)
    _emit_barrier(module)
    _emit_execute(module)
    _emit_run(module)
    _emit_worker(module)
    _emit_memory(module)
    return module.text()


def _field(f: llvm.Function, base: Value, offset: int) -> Value:
    return f.pointer(base, offset, "i8")


def _word(f: llvm.Function, base: Value, index: int, type_name: str = "i64") -> Value:
    return f.load(type_name, _field(f, base, 8 * index))


def _atomic_load(f: llvm.Function, pointer: Value) -> Value:
    return f.emit("i32", f"load atomic i32, {pointer} seq_cst, align 4")


def _atomic_store(f: llvm.Function, value: llvm.Operand, pointer: Value) -> None:
    f.line(f"store atomic {f.lift(value, 'i32')}, {pointer} seq_cst, align 4")


def _atomic_add(f: llvm.Function, pointer: Value, value: int) -> Value:
    """The word before the addition."""
    return f.emit("i32", f"atomicrmw add {pointer}, i32 {value} seq_cst")


def _emit_wait(module: llvm.Module) -> None:
    """wait(pool, word, old, asleep): returns once *word != old; `asleep` counts sleepers."""
    f = module.helper(
        "wait",
        [("ptr", "pool"), ("ptr", "word"), ("i32", "old"), ("ptr", "asleep")],
        inline="noinline",
    )
    pool, word, old, asleep = f.arguments
    spin, more, sleep, again, done = (f.label() for _ in range(5))
    entry = f.block
    f.jump(spin)
    f.start_block(spin)
    count = f.emit("i64", f"phi i64 [ 0, %{entry} ], [ %next, %{more} ]")
    f.branch(f.compare("ne", _atomic_load(f, word), old), done, more)
    f.start_block(more)
    _pause(f)
    f.line(f"%next = add i64 {count.name}, 1")
    f.branch(f.compare("ult", Value("i64", "%next"), _SPINS), spin, sleep)
    # The sleeper is counted before the kernel compares the word, and a waker changes the word
    # before it looks at the count: one of the two sees the other.
    f.start_block(sleep)
    _atomic_add(f, asleep, 1)
    f.jump(again)
    f.start_block(again)
    _sleep(f, pool, word, old)
    awake = f.label()
    f.branch(f.compare("ne", _atomic_load(f, word), old), awake, again)
    f.start_block(awake)
    _atomic_add(f, asleep, -1)
    f.jump(done)
    f.start_block(done)
    f.ret()


def _emit_barrier(module: llvm.Module) -> None:
    """barrier(pool, threads): returns once all `threads` workers have called it."""
    f = module.helper("barrier", [("ptr", "pool"), ("i64", "threads")], inline="noinline")
    pool, threads = f.arguments
    arrivals, generation = _field(f, pool, _ARRIVALS), _field(f, pool, _GENERATION)
    sleepers = _field(f, pool, _SLEEPERS)
    now = _atomic_load(f, generation)
    arrived = f.add(_atomic_add(f, arrivals, 1), 1)
    branch = f.if_else(f.compare("eq", arrived, f.cast("trunc", threads, "i32")))
    with branch.then():
        _atomic_store(f, 0, arrivals)
        _atomic_add(f, generation, 1)
        with f.if_then(f.compare("ne", _atomic_load(f, sleepers), 0)):
            _wake(f, pool, generation)
    with branch.otherwise():
        f.call("wait", "void", pool, generation, now, sleepers)
    f.ret()


_EXECUTE_PARAMETERS = [("ptr", "context"), ("i64", "worker"), ("i64", "threads"), ("ptr", "pool")]


def _emit_execute(module: llvm.Module) -> None:
    """execute(context, worker, threads, pool): one worker's walk through the table."""
    f = module.helper("execute", _EXECUTE_PARAMETERS, inline="noinline")
    context, worker, threads, pool = f.arguments
    steps, slots = _word(f, context, 0, "ptr"), _word(f, context, 1, "ptr")
    scratch = f.pointer(_word(f, context, 5, "ptr"), f.mul(_word(f, context, 6), worker), "i8")
    trace, capacity = _word(f, context, 7, "ptr"), _word(f, context, 8)
    traced = f.compare("ne", trace, llvm.constant("ptr", 0))
    record = f.add(f.mul(capacity, 24), 8)
    log = f.pointer(trace, f.mul(record, worker), "i8")
    several = f.compare("ugt", threads, 1)

    at = f.alloca("i64", align=8)  # the step index; a register after clean-up
    f.store(llvm.constant("i64", 0), at)
    following, leave = f.label(), f.label()
    f.jump(following)
    f.start_block(following)
    index = f.load("i64", at)
    step = f.pointer(steps, f.mul(index, _STEP_BYTES), "i8")
    f.store(f.add(index, 1), at)
    opcode = _word(f, step, 0)
    with f.if_then(f.land(several, f.compare("ne", _word(f, step, 1), 0))):
        f.call("barrier", "void", pool, threads)
    cases = {number: f.label() for number in (RUN, BRANCH, JUMP, SWITCH)}
    table = " ".join(f"i64 {number}, label %{label}" for number, label in cases.items())
    f.line(f"switch {opcode}, label %{leave} [ {table} ]")

    f.start_block(cases[RUN])
    begin = f.alloca("i64", align=8)
    with f.if_then(traced):
        f.store(_ticks(f), begin)
    tiles = _word(f, step, 4)
    alone = f.compare("eq", _word(f, step, 5), 0)
    first = f.udiv(f.mul(tiles, worker), threads)
    last = f.udiv(f.mul(tiles, f.add(worker, 1)), threads)
    mine = f.select(f.compare("eq", worker, 0), tiles, 0)
    first, last = f.select(alone, 0, first), f.select(alone, mine, last)
    with f.if_then(f.compare("ult", first, last)):
        arguments = f.pointer(slots, _word(f, step, 3), "ptr")
        f.call_pointer(_word(f, step, 2, "ptr"), "void", arguments, first, last, scratch)
        with f.if_then(traced):
            _emit_trace(f, log, capacity, index, f.load("i64", begin), _ticks(f))
    f.jump(following)

    f.start_block(cases[BRANCH])
    condition = f.load("i8", f.load("ptr", f.pointer(slots, _word(f, step, 2), "ptr")))
    with f.if_then(f.compare("eq", condition, 0)):
        f.store(_word(f, step, 3), at)
    f.jump(following)

    f.start_block(cases[JUMP])
    f.store(_word(f, step, 3), at)
    f.jump(following)

    f.start_block(cases[SWITCH])
    chosen = f.load("i32", f.load("ptr", f.pointer(slots, _word(f, step, 2), "ptr")))
    highest = f.sub(_word(f, step, 4), 1)
    # Out of range, above or below, takes the last target.
    clamped = f.min(f.cast("sext", chosen, "i64"), highest, signed=False)
    f.store(f.load("i64", f.pointer(_word(f, step, 3, "ptr"), clamped, "i64")), at)
    f.jump(following)

    f.start_block(leave)
    f.ret()


def _emit_trace(
    f: llvm.Function, log: Value, capacity: Value, step: Value, begin: Value, end: Value
) -> None:
    """Appends (step, begin, end); a full log keeps counting."""
    count = f.load("i64", log)
    with f.if_then(f.compare("ult", count, capacity)):
        place = _field(f, f.pointer(log, f.mul(count, 24), "i8"), 8)
        for offset, value in enumerate((step, begin, end)):
            f.store(value, _field(f, place, 8 * offset))
    f.store(f.add(count, 1), log)


def _emit_run(module: llvm.Module) -> None:
    """girih_run(context, threads, pool): patches the call's pointers in and runs to the end."""
    f = module.function(RUN_SYMBOL, [("ptr", "context"), ("i64", "threads"), ("ptr", "pool")])
    context, threads, pool = f.arguments
    traced = f.compare("ne", _word(f, context, 7), 0)
    with f.if_then(traced):
        f.store(_ticks(f), _field(f, context, 72))
    slots, io = _word(f, context, 1, "ptr"), _word(f, context, 2, "ptr")
    patches = _word(f, context, 3, "ptr")
    with f.for_range(0, _word(f, context, 4)) as loop:
        patch = f.pointer(patches, f.mul(loop.index, 24), "i8")
        source = f.load("i64", f.pointer(io, _word(f, patch, 1), "i64"))
        slot = f.pointer(slots, _word(f, patch, 0), "i64")
        f.store(f.add(source, _word(f, patch, 2)), slot)

    finished = _field(f, pool, _FINISHED)
    caller_asleep = _field(f, pool, _CALLER_ASLEEP)
    with f.if_then(f.compare("ugt", threads, 1)):
        _atomic_store(f, 0, finished)
        with f.for_range(1, threads) as loop:
            mailbox = f.pointer(_field(f, pool, _MAILBOXES), f.mul(loop.index, _LINE), "i8")
            f.store(Value("ptr", "@execute"), _field(f, mailbox, 8))
            f.store(context, _field(f, mailbox, 16))
            f.store(threads, _field(f, mailbox, 24))
            _atomic_add(f, mailbox, 1)
            with f.if_then(f.compare("ne", _atomic_load(f, _field(f, mailbox, 4)), 0)):
                _wake(f, pool, mailbox)
    f.call("execute", "void", context, llvm.constant("i64", 0), threads, pool)
    with f.if_then(f.compare("ugt", threads, 1)):
        others = f.cast("trunc", f.sub(threads, 1), "i32")
        check, pending, done = f.label(), f.label(), f.label()
        f.jump(check)
        f.start_block(check)
        now = _atomic_load(f, finished)
        f.branch(f.compare("eq", now, others), done, pending)
        f.start_block(pending)
        f.call("wait", "void", pool, finished, now, caller_asleep)
        f.jump(check)
        f.start_block(done)
    with f.if_then(traced):
        f.store(_ticks(f), _field(f, context, 80))
    f.ret()


def _emit_worker(module: llvm.Module) -> None:
    """girih_worker(pool, worker): never returns, and keeps nothing of a finished program."""
    f = module.function(WORKER_SYMBOL, [("ptr", "pool"), ("i64", "worker")])
    pool, worker = f.arguments
    mailbox = f.pointer(_field(f, pool, _MAILBOXES), f.mul(worker, _LINE), "i8")
    finished, caller_asleep = _field(f, pool, _FINISHED), _field(f, pool, _CALLER_ASLEEP)
    serve, entry = f.label(), f.block
    f.jump(serve)
    f.start_block(serve)
    seen = f.emit("i32", f"phi i32 [ 0, %{entry} ], [ %now, %serve_end ]")
    f.call("wait", "void", pool, mailbox, seen, _field(f, mailbox, 4))
    f.line(f"%now = load atomic i32, {mailbox} seq_cst, align 4")
    execute = f.load("ptr", _field(f, mailbox, 8))
    context = f.load("ptr", _field(f, mailbox, 16))
    threads = f.load("i64", _field(f, mailbox, 24))
    f.call_pointer(execute, "void", context, worker, threads, pool)
    _atomic_add(f, finished, 1)
    with f.if_then(f.compare("ne", _atomic_load(f, caller_asleep), 0)):
        _wake(f, pool, finished)
    f.jump("serve_end")
    f.start_block("serve_end")
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

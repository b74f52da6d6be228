"""What the executor does with words that threads share: atomic access, spinning, sleeping."""

from __future__ import annotations

from .. import llvm

SYSTEM = 192  # of the pool: where the runtime's function for sleeping stands, then its number

# The pool's words, in bytes (see executor.py), and fields of a mailbox.
LINE = 64
COMPLETED, SLEEPERS, DONE, DONE_SLEEPERS = 64, 72, 128, 132
DECISIONS, MAILBOXES = 256, 768
RING = (MAILBOXES - DECISIONS) // 8
ASLEEP, FUNCTION, CONTEXT, THREADS, CALLER_ASLEEP, RANGE = 4, 8, 16, 24, 32, 40
NULL = llvm.constant("ptr", 0)

Value = llvm.Value


def field(f: llvm.Function, base: Value, offset: int) -> Value:
    return f.pointer(base, offset, "i8")


def word(f: llvm.Function, base: Value, index: int, type_name: str = "i64") -> Value:
    return f.load(type_name, field(f, base, 8 * index))


def atomic_load(f: llvm.Function, pointer: Value, type_name: str = "i32") -> Value:
    align = llvm.bits_of(type_name) // 8
    return f.emit(type_name, f"load atomic {type_name}, {pointer} seq_cst, align {align}")


def atomic_store(f: llvm.Function, value: Value, pointer: Value) -> None:
    f.line(f"store atomic {value}, {pointer} seq_cst, align {llvm.bits_of(value.type) // 8}")


def atomic_add(f: llvm.Function, pointer: Value, value: Value) -> Value:
    """The word before the addition."""
    return f.emit(value.type, f"atomicrmw add {pointer}, {value} seq_cst")


def exchange(f: llvm.Function, pointer: Value, old: Value, new: Value) -> tuple[Value, Value]:
    """Replaces `old` by `new`; the word before, and whether it was `old`."""
    pair = f.emit(f"{{ {old.type}, i1 }}", f"cmpxchg {pointer}, {old}, {new} seq_cst seq_cst")
    found = f.emit(old.type, f"extractvalue {pair}, 0")
    return found, f.emit("i1", f"extractvalue {pair}, 1")


def i32(number: int) -> Value:
    return llvm.constant("i32", number)


def i64(number: int) -> Value:
    return llvm.constant("i64", number)


def pause(f: llvm.Function) -> None:
    """Tells the core that this is a spin loop; unknown architectures just spin."""
    if f.module.architecture == "x86_64":
        f.call("llvm.x86.sse2.pause", "void", declare=True)
    else:
        f.call("llvm.aarch64.isb", "void", llvm.constant("i32", 15), declare=True)


def ticks(f: llvm.Function) -> Value:
    """The time stamp counter, which all cores share: on aarch64 the virtual one, CNTVCT_EL0."""
    return f.call("llvm.readcyclecounter", "i64", declare=True)


def _futex(f: llvm.Function, pool: Value, word: Value, operation: int, value: Value) -> None:
    """The kernel's wait or wake on an i32, through the function that the runtime put in the pool.

    That function is libc's `syscall` with a futex number, or, where a kernel has no futex
    (number 0), `sched_yield`, which ignores what it is given.
    """
    function = f.load("ptr", field(f, pool, SYSTEM))
    number = f.load("i64", field(f, pool, SYSTEM + 8))
    arguments = f"{number}, {word}, i64 {operation}, {value}, i64 0, i64 0, i64 0"
    f.emit("i64", f"call i64 (i64, ...) {function.name}({arguments})")


def sleep(f: llvm.Function, pool: Value, word: Value, expected: Value) -> None:
    """Sleeps while the i32 at `word` holds `expected`; may wake early."""
    _futex(f, pool, word, 128, f.cast("zext", expected, "i64"))  # FUTEX_WAIT_PRIVATE


def wake(f: llvm.Function, pool: Value, word: Value) -> None:
    _futex(f, pool, word, 129, llvm.constant("i64", 0x7FFFFFFF))  # FUTEX_WAKE_PRIVATE

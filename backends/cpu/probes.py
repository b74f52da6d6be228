"""Small kernels that show what a CPU can do; `calibrate` times them.

Every probe is `name(a, b, c, size, turns)`: three pointers, two i64. Results are stored behind `c`,
so that nothing is optimised away.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import llvm
from .codegen import Target

Value = llvm.Value

_PARAMETERS = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "size"), ("i64", "turns")]
_PRODUCTS = 48  # of one turn of the innermost loop, about what a real micro-kernel has
STREAMS = 8  # vectors of one turn of a bandwidth loop
FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 128, 129
_DELAY = 400_000  # turns of an empty loop: about 100 us


def _begin(module: llvm.Module, name: str) -> tuple[llvm.Function, tuple[Value, ...]]:
    function = module.function(name, _PARAMETERS)
    return function, function.arguments


def block_unroll(rows: int, vectors: int) -> int:
    """Depth steps of one turn of a `block` probe's loop."""
    return min(8, max(2, _PRODUCTS // (rows * vectors)))


def block(
    module: llvm.Module, name: str, target: Target, element: str, rows: int, vectors: int
) -> None:
    """c[i, v] += a[k, i] * b[k, v], a register block of rows x vectors, over `size` depth steps (a
    multiple of the unroll), `turns` times. Sources are packed; b's elements are vectors."""
    f, (a, b, c, size, turns) = _begin(module, name)
    kind = llvm.vector(target.lanes(element), element)
    unroll, lanes = block_unroll(rows, vectors), target.lanes(element)
    zeros = [llvm.constant(kind, 0)] * (rows * vectors)
    with f.for_range(0, turns, 1, zeros, at_least_once=True) as outer:
        with f.for_range(0, size, unroll, [a, b, *outer.carried], at_least_once=True) as inner:
            left, right, *sums = inner.carried
            for step in range(unroll):
                loaded = [
                    f.load(kind, f.pointer(right, (step * vectors + v) * lanes, element))
                    for v in range(vectors)
                ]
                for row in range(rows):
                    scalar = f.load(element, f.pointer(left, step * rows + row, element))
                    spread = f.splat(scalar, lanes)
                    for v, one in enumerate(loaded):
                        place = row * vectors + v
                        sums[place] = f.fma(spread, one, sums[place])
            inner.carry(
                f.pointer(left, unroll * rows, element),
                f.pointer(right, unroll * vectors * lanes, element),
                *sums,
            )
        _, _, *sums = inner.results
        outer.carry(*sums)
    for place, total in enumerate(outer.results):
        f.store(total, f.pointer(c, place * lanes, element))
    f.ret()


def dot(
    module: llvm.Module, name: str, target: Target, element: str, rows: int, vectors: int
) -> None:
    """A register block of the unit that multiplies pairs (bf16) or quads (i8) into 32-bit sums;
    otherwise as `block`, with 32-bit words for elements."""
    f, (a, b, c, size, turns) = _begin(module, name)
    lanes = target.vector_bits // 32
    total_kind = llvm.vector(lanes, "float" if element == "bfloat" else "i32")
    word = llvm.vector(lanes, "i32")
    unroll = block_unroll(rows, vectors)
    zeros = [llvm.constant(total_kind, 0)] * (rows * vectors)
    with f.for_range(0, turns, 1, zeros, at_least_once=True) as outer:
        with f.for_range(0, size, unroll, [a, b, *outer.carried], at_least_once=True) as inner:
            left, right, *sums = inner.carried
            for step in range(unroll):
                loaded = [
                    f.load(word, f.pointer(right, (step * vectors + v) * lanes, "i32"))
                    for v in range(vectors)
                ]
                for row in range(rows):
                    scalar = f.load("i32", f.pointer(left, step * rows + row, "i32"))
                    spread = f.splat(scalar, lanes)
                    for v, one in enumerate(loaded):
                        place = row * vectors + v
                        sums[place] = _dot(f, target, element, sums[place], spread, one)
            inner.carry(
                f.pointer(left, unroll * rows, "i32"),
                f.pointer(right, unroll * vectors * lanes, "i32"),
                *sums,
            )
        _, _, *sums = inner.results
        outer.carry(*sums)
    for place, total in enumerate(outer.results):
        f.store(total, f.pointer(c, place * lanes, "i32"))
    f.ret()


def _dot(
    f: llvm.Function, target: Target, element: str, total: Value, left: Value, right: Value
) -> Value:
    if element == "bfloat":
        kind = llvm.vector(target.vector_bits // 16, "bfloat")
        name = f"llvm.x86.avx512bf16.dpbf16ps.{target.vector_bits}"
        left, right = f.bitcast(left, kind), f.bitcast(right, kind)
    else:
        name = f"llvm.x86.avx512.vpdpbusd.{target.vector_bits}"
        kind = llvm.vector(target.vector_bits // 8, "i8")
        left, right = f.bitcast(left, kind), f.bitcast(right, kind)
    return f.call(name, total.type, total, left, right, declare=True)


def read(module: llvm.Module, name: str, target: Target) -> None:
    """Reads `size` bytes at a (a multiple of STREAMS vectors), `turns` times."""
    f, (a, _, c, size, turns) = _begin(module, name)
    kind, width = llvm.vector(target.vector_bits // 64, "i64"), target.vector_bits // 8
    zeros = [llvm.constant(kind, 0)] * STREAMS
    with f.for_range(0, turns, 1, zeros, at_least_once=True) as outer:
        with f.for_range(0, size, STREAMS * width, outer.carried, at_least_once=True) as inner:
            place = f.pointer(a, inner.index, "i8")
            loaded = [f.load(kind, f.pointer(place, n * width, "i8")) for n in range(STREAMS)]
            sums = zip(inner.carried, loaded, strict=True)
            inner.carry(*(f.xor(total, value) for total, value in sums))
        # A turn must not be merged with the next: memory may have changed in between.
        f.line('call void asm sideeffect "", "~{memory}"()')
        outer.carry(*inner.results)
    for n, total in enumerate(outer.results):
        f.store(total, f.pointer(c, n * width, "i8"))
    f.ret()


def write(module: llvm.Module, name: str, target: Target) -> None:
    """Writes `size` bytes at a, `turns` times."""
    _moves(module, name, target, copies=False)


def copy(module: llvm.Module, name: str, target: Target) -> None:
    """Copies `size` bytes from a to b, `turns` times."""
    _moves(module, name, target, copies=True)


def _moves(module: llvm.Module, name: str, target: Target, *, copies: bool) -> None:
    f, (a, b, _, size, turns) = _begin(module, name)
    kind, width = llvm.vector(target.vector_bits // 64, "i64"), target.vector_bits // 8
    with f.for_range(0, turns, 1, at_least_once=True) as outer:
        filler = f.splat(outer.index, target.vector_bits // 64)
        with f.for_range(0, size, STREAMS * width, at_least_once=True) as inner:
            source = f.pointer(a, inner.index, "i8")
            place = f.pointer(b, inner.index, "i8") if copies else source
            values = [filler] * STREAMS
            if copies:
                values = [f.load(kind, f.pointer(source, n * width, "i8")) for n in range(STREAMS)]
            for n, value in enumerate(values):
                f.store(value, f.pointer(place, n * width, "i8"))
        f.line('call void asm sideeffect "", "~{memory}"()')
    f.ret()


def chase(module: llvm.Module, name: str) -> None:
    """`turns` loads, each from the address that the one before gave; begins at a."""
    f, (a, _, c, _, turns) = _begin(module, name)
    with f.for_range(0, turns, 1, [a], at_least_once=True) as loop:
        loop.carry(f.load("ptr", loop.carried[0]))
    f.store(loop.results[0], c)
    f.ret()


def meet(module: llvm.Module, name: str, *, sleeping: bool) -> None:
    """`turns` hand-overs between two executors through the i32 at a; `size` is this one's number, 0
    or 1. `sleeping` waits in the kernel: b holds libc's syscall, c this kernel's futex number."""
    f, (a, b, c, me, turns) = _begin(module, name)
    with f.for_range(0, turns, 1, at_least_once=True) as loop:
        mine = f.cast("trunc", f.add(f.mul(loop.index, 2), me), "i32")
        again, asleep, ready = f.label(), f.label(), f.label()
        f.jump(again)
        f.start_block(again)
        now = f.emit("i32", f"load atomic i32, {a} seq_cst, align 4")
        f.branch(f.compare("eq", now, mine), ready, asleep)
        f.start_block(asleep)
        if sleeping:
            _system(f, b, c, a, _WAIT, f.cast("zext", now, "i64"))
        f.jump(again)
        f.start_block(ready)
        if sleeping:
            _delay(f)  # until the other one certainly sleeps
        f.line(f"store atomic {f.add(mine, 1)}, {a} seq_cst, align 4")
        if sleeping:
            _system(f, b, c, a, _WAKE, llvm.constant("i64", 1))
    f.ret()


def gather(module: llvm.Module, name: str) -> None:
    """`turns` barriers of `size` executors, each of which counts itself on the i64 at a."""
    f, (a, _, _, size, turns) = _begin(module, name)
    with f.for_range(0, turns, 1, at_least_once=True) as loop:
        f.emit("i64", f"atomicrmw add {a}, i64 1 seq_cst")
        there = f.mul(f.add(loop.index, 1), size)
        again, ready = f.label(), f.label()
        f.jump(again)
        f.start_block(again)
        now = f.emit("i64", f"load atomic i64, {a} seq_cst, align 8")
        f.branch(f.compare("sge", now, there), ready, again)
        f.start_block(ready)
    f.ret()


def delay(module: llvm.Module, name: str) -> None:
    """What `meet` waits before each hand-over to a sleeper, `turns` times."""
    f, (_, _, _, _, turns) = _begin(module, name)
    with f.for_range(0, turns, 1, at_least_once=True):
        _delay(f)
    f.ret()


def _delay(f: llvm.Function) -> None:
    with f.for_range(0, _DELAY, 1, at_least_once=True):
        f.line('call void asm sideeffect "", "~{memory}"()')


def _system(
    f: llvm.Function, function: Value, number: Value, word: Value, operation: int, value: Value
) -> None:
    code = f.emit("i64", f"ptrtoint {number} to i64")
    arguments = f"{code}, {word}, i64 {operation}, {value}, i64 0, i64 0, i64 0"
    f.emit("i64", f"call i64 (i64, ...) {function.name}({arguments})")


def nothing(module: llvm.Module, name: str) -> None:
    """Returns at once."""
    function, _ = _begin(module, name)
    function.ret()


def register_blocks(target: Target) -> Sequence[tuple[int, int]]:
    """(rows, vectors) of the register blocks worth a measurement: the ends and every third row."""
    found = []
    for vectors in (1, 2, 3, 4):
        most = (target.vector_registers - 1 - vectors) // vectors
        rows = {1, 2, 3, 4, 6, 8, most - 1, most, *range(3, most, 3)}
        found += [
            (r, vectors) for r in sorted(rows) if 0 < r <= most and (r <= 16 or r >= most - 1)
        ]
    return found

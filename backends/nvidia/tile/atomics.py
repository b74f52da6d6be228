"""Elements of memory that many threads combine something with, in any order."""

from __future__ import annotations

from ....hlo.build import make_op
from ....hlo.graph import Op, arguments
from ....hlo.types import TensorType
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Pair, Register

_ATOMIC = {
    # Element type and combination -> the operation of `atomicrmw`, where its meaning is ours.
    ("i32", "add"): "add", ("i64", "add"): "add", ("float", "add"): "fadd",
    ("double", "add"): "fadd",
}  # fmt: skip


def combined(
    f: llvm.Function, pointer: llvm.Value, register: Register, element: object, combine: str
) -> None:
    """memory = memory combined with a register, whatever other threads do there meanwhile."""
    kind = elements.memory_type(f, element)
    if isinstance(register, Pair):
        if combine != "add":
            raise arithmetic.unsupported(_operation(combine, element))
        for number, part in enumerate(register):
            at = f.pointer(pointer, number, kind)
            f.line(f"{_unused(f)} = atomicrmw fadd {at}, {part} monotonic")
        return
    operation = _ATOMIC.get((kind, combine))
    bits = llvm.bits_of(kind)
    if operation is None and element.is_integer and bits == element.bits and bits >= 32:  # type: ignore[attr-defined]
        sign = "" if element.kind == "int" else "u"  # type: ignore[attr-defined]
        operation = f"{sign}{'max' if combine == 'maximum' else 'min'}"
    if operation is not None and bits == element.itemsize * 8:  # type: ignore[attr-defined]
        raw = elements.narrow(f, register, element)
        f.line(f"{_unused(f)} = atomicrmw {operation} {pointer}, {raw} monotonic")
        return
    _exchange(f, pointer, register, element, combine)


def _exchange(
    f: llvm.Function, pointer: llvm.Value, register: llvm.Value, element: object, combine: str
) -> None:
    """Reads, combines, and writes where nobody has written meanwhile; else again."""
    op = _operation(combine, element)
    kind = elements.memory_type(f, element)
    word = f"i{llvm.bits_of(kind)}"
    first = f.load(word, pointer)
    before, again, done = f.block, f.label(), f.label()
    f.jump(again)
    f.start_block(again)
    old = f.emit(word, "")
    place = len(f._lines) - 1
    wide = elements.widen(f, f.bitcast(old, kind), element)
    new = arithmetic.apply(f, op, [wide, register])
    assert isinstance(new, llvm.Value)
    raw = f.bitcast(elements.narrow(f, new, element), word)
    both = f.emit(
        f"{{ {word}, i1 }}",
        f"cmpxchg {pointer}, {word} {old.name}, {raw} monotonic monotonic",
    )
    seen = f.emit(word, f"extractvalue {both}, 0")
    written = f.emit("i1", f"extractvalue {both}, 1")
    latch = f.block
    f._lines[place] = (
        f"{old.name} = phi {word} [ {first.name}, %{before} ], [ {seen.name}, %{latch} ]"
    )
    f.branch(written, done, again)
    f.start_block(done)


def _operation(combine: str, element: object) -> Op:
    scalar = TensorType((), element)  # type: ignore[arg-type]
    return make_op(combine, arguments([scalar, scalar]))


def _unused(f: llvm.Function) -> str:
    return f"%{f.label()}"

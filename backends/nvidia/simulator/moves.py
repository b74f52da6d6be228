"""mov, address conversions, and instructions that change nothing here."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import GLOBAL_BASE, LOCAL_BASE, PARAMETER_BASE, SHARED_BASE
from .syntax import SIZES, Instruction, Operand, Register, Sink, Vector
from .table import effect, expression
from .translate import Emitter, kind_of, unsigned

_WINDOWS = {
    "shared": (SHARED_BASE, LOCAL_BASE),
    "local": (LOCAL_BASE, PARAMETER_BASE),
    "param": (PARAMETER_BASE, 2 * PARAMETER_BASE),
    "global": (GLOBAL_BASE, SHARED_BASE),
    "const": (GLOBAL_BASE, SHARED_BASE),
}


def space_of(part: str) -> str:
    """ "shared::cta" -> "shared"."""
    return part.partition("::")[0]


@expression("mov")
def mov(e: Emitter, i: Instruction) -> None:
    d, a = i.operands
    type_ = i.parts[-1]
    if isinstance(d, Vector):
        return _unpack(e, d, a, type_)
    if isinstance(a, Vector):
        return _pack(e, d, a, type_)
    if type_ == "b128":
        raise e.error(i, "registers of 128 bits are not simulated")
    kind = kind_of(type_)
    if kind[0] == "i":
        kind = unsigned(kind)
    if kind != "b1" and isinstance(a, Register) and isinstance(d, Register):
        own = e.program.kinds[a.number]  # copies need no view
        if own[1:] == kind[1:] and own != "b1":
            kind = own
    e.define(d, kind, e.use(a, kind))


def _unpack(e: Emitter, d: Vector, a: Operand, type_: str) -> None:
    total = SIZES[type_]
    if total == 16:
        raise ValueError("128 bits")
    size = total // len(d.items)
    whole, part = f"u{total}", f"u{size}"
    value = e.fresh()
    e.line(f"{value} = {e.use(a, whole)}")
    for position, item in enumerate(d.items):
        if isinstance(item, Sink):
            continue
        shifted = (
            value if not position else (f"({value} >> {e.constant(whole, 8 * size * position)})")
        )
        e.define(item, part, f"{shifted}.astype({part})")


def _pack(e: Emitter, d: Operand, a: Vector, type_: str) -> None:
    total = SIZES[type_]
    if total == 16:
        raise ValueError("128 bits")
    size = total // len(a.items)
    whole, part = f"u{total}", f"u{size}"
    terms = []
    for position, item in enumerate(a.items):
        term = f"{e.use(item, part)}.astype({whole})"
        if position:
            term = f"({term} << {e.constant(whole, 8 * size * position)})"
        terms.append(term)
    e.define(d, whole, " | ".join(terms))


@expression("cvta")
def cvta(e: Emitter, i: Instruction) -> None:
    """cvta.space: generic from space; cvta.to.space: space from generic."""
    to = i.parts[1] == "to"
    space = space_of(i.parts[2 if to else 1])
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE, "param": PARAMETER_BASE}.get(space, 0)
    kind = unsigned(kind_of(i.parts[-1]))
    value = e.use(i.operands[1], kind)
    if not base:
        return e.define(i.operands[0], kind, value)
    sign = "-" if to else "+"
    e.define(i.operands[0], kind, f"{value} {sign} {e.constant(kind, base)}")


def in_window(address: Any, low: int, high: int) -> Any:
    return (address >= np.int64(low)) & (address < np.int64(high))


@expression("isspacep")
def isspacep(e: Emitter, i: Instruction) -> None:
    low, high = _WINDOWS[space_of(i.parts[1])]
    value = e.use(i.operands[1], "i8")
    e.define(i.operands[0], "b1", f"{e.helper(in_window)}({value}, {low}, {high})")


@effect(
    "nanosleep",
    "pmevent",
    "prefetch",
    "prefetchu",
    "applypriority",
    "discard",
    "createpolicy",
    results=0,
)
def nothing(e: Emitter, i: Instruction) -> None:
    """Time does not pass here, and nothing is cached."""


def trapped(S: Any, number: int, threads: Any, text: str) -> None:
    S.fault("trap", text, number, threads)


@effect("trap", "brkpt", results=0)
def trap(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    text = "the kernel gave up" if i.parts[0] == "trap" else "breakpoint"
    e.line(f"{e.helper(trapped)}(S, {e.node.number}, S.threads(A), {text!r})")

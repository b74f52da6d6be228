"""The table of instructions: dotted prefix of an opcode -> what stands for it.

Three kinds. An *expression* writes Python source for a value without effects; an *effect* writes
source that touches memory or other threads; an *operation* is a run-time function with declared
sources and targets. The longest prefix wins: "mma.sync" before "mma"; "add:f32" stands for all
forms of add that end in .f32. Functions are marked here
and collected by `instructions.py` from the modules that it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ....hlo.errors import CompilerBug
from .syntax import Instruction, Operand


@dataclass(frozen=True, slots=True)
class Bound:
    """An operation with its operands: `run(at, *sources)` gives one array per target, or None.

    `sources` pairs an operand with the kind of array that `run` wants ("u4", "f8", "b1",
    "address", ...); `blocking` instructions may park warps.
    """

    run: Callable[..., Any]
    sources: tuple[tuple[Operand, str], ...] = ()
    targets: tuple[tuple[Operand, str], ...] = ()
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """`results`: how many leading operands the instruction writes. `cooperative`: threads of a warp
    or block work together. `lockstep`: the blocks of a grid may run in one batch."""

    kind: str  # "expression", "effect", "operation"
    function: Callable[..., Any]
    results: int = 1
    cooperative: bool = False
    lockstep: bool = True


def _mark(entry: Callable[[Any], Entry], names: Iterable[str]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        function.opcodes = tuple(names)
        function.entry = entry(function)
        return function

    return decorate


def expression(*names: str) -> Callable[[Any], Any]:
    """`function(emitter, instruction)` writes the one result of a pure instruction."""
    return _mark(lambda f: Entry("expression", f), names)


def effect(*names: str, results: int = 1, cooperative: bool = False) -> Callable[[Any], Any]:
    """`function(emitter, instruction)` writes source with effects; never under a mask."""
    return _mark(lambda f: Entry("effect", f, results, cooperative), names)


def operation(*names: str, lockstep: bool = False) -> Callable[[Any], Any]:
    """`function(instruction) -> Bound`, asked once for each instruction of a program."""
    return _mark(lambda f: Entry("operation", f, 0, True, lockstep), names)


def collect(rooms: Iterable[Any]) -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for room in rooms:
        for value in vars(room).values():
            for name in getattr(value, "opcodes", ()):
                if value.__module__ == room.__name__:
                    if name in table:
                        raise CompilerBug(f"instruction '{name}' stands twice in the table")
                    table[name] = value.entry
    return table


def find(table: dict[str, Entry], instruction: Instruction) -> Entry | None:
    """By the longest dotted prefix, then by "name:type", then by the name alone."""
    parts = instruction.parts
    for length in range(len(parts), 1, -1):
        entry = table.get(".".join(parts[:length]))
        if entry is not None:
            return entry
    return table.get(f"{parts[0]}:{parts[-1]}") or table.get(parts[0])

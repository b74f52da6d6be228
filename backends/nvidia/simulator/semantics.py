"""What accesses and fences are to other blocks: strong or weak, acquiring or releasing.

Those with scope .cta or .cluster count for nothing between blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .syntax import Instruction
    from .translate import Program

_ORDERS = frozenset({"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio"})
_NARROW = frozenset({"cta", "cluster"})
_OTHER = frozenset({"shared", "local", "param", "const"})


class Semantics(NamedTuple):
    """What an access or a fence is to other blocks."""

    strong: bool
    acquires: bool = False
    releases: bool = False
    sequential: bool = False  # fence.sc


def semantics(instruction: Instruction) -> Semantics:
    """Of a load, store, atomic or fence."""
    parts = set(instruction.parts)
    kind = instruction.parts[0]
    if kind in ("membar", "fence"):
        if "proxy" in parts or "mbarrier_init" in parts or parts & _NARROW:
            return Semantics(False)
        sequential = kind == "membar" or "sc" in parts
        both = sequential or "acq_rel" in parts
        return Semantics(True, both or "acquire" in parts, both or "release" in parts, sequential)
    if parts & _NARROW:
        return Semantics(False)
    both = "acq_rel" in parts
    strong = bool(parts & _ORDERS) or kind in ("atom", "red")
    return Semantics(strong, both or "acquire" in parts, both or "release" in parts)


def is_global(instruction: Instruction) -> bool:
    return not _OTHER & {part.partition("::")[0] for part in instruction.parts}


def communicates(program: Program) -> bool:
    """May blocks of the program agree on an order? Relaxed atomics alone give none."""
    for node in program.nodes:
        instruction = node.instruction
        kind = instruction.parts[0]
        if kind in ("membar", "fence") and semantics(instruction).strong:
            return True
        if kind in ("ld", "st", "atom", "red") and is_global(instruction):
            said = semantics(instruction)
            if said.acquires or said.releases or (said.strong and kind in ("ld", "st")):
                return True
    return False

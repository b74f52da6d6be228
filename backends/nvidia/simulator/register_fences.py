"""Where wgmma.fence is missing: registers that threads use between a fence and a product.

The PTX ISA wants a fence between any access of a register by a thread and a product that has it as
an accumulator, and between its definition and a product that reads it as a part of A; products of
one chain are in order. It is a property of the text, as the assembler sees it, so all paths of the
control flow are followed once for a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .flow import Block, registers_of
from .syntax import Vector

if TYPE_CHECKING:
    from .translate import Program

_FOUND: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()


def unfenced(program: Program) -> dict[int, str]:
    """Number of a product -> the name of a register of it that lacks a fence."""
    found = _FOUND.get(program)
    if found is None:
        found = _FOUND[program] = _follow(program)
    return found


def _follow(program: Program) -> dict[int, str]:
    blocks = program.flow.blocks
    # By rank of a block, at its begin: registers used, and registers defined, since the last fence.
    begins: dict[int, tuple[int, int]] = {0: (0, 0)}
    found: dict[int, str] = {}
    pending = [0]
    while pending:
        rank = pending.pop()
        block = blocks[rank]
        used, defined = _through(program, block, *begins[rank], found)
        for following in block.successors:
            before = begins.get(following, (-1, -1))
            after = (used, defined) if before[0] < 0 else (before[0] | used, before[1] | defined)
            if after != before:
                begins[following] = after
                pending.append(following)
    return found


def _through(
    program: Program, block: Block, used: int, defined: int, found: dict[int, str]
) -> tuple[int, int]:
    for node in block.nodes:
        parts = node.instruction.parts
        if parts[0] != "wgmma":
            writes = sum(1 << number for number in set(node.writes))
            used |= writes | sum(1 << number for number in set(node.reads))
            defined |= writes
        elif parts[1] == "fence":
            used = defined = 0
        elif parts[1] == "mma_async":
            sums, left = node.instruction.operands[:2]
            wrong = [one for one in registers_of(sums) if used >> one.number & 1]
            if isinstance(left, Vector):
                wrong += [one for one in registers_of(left) if defined >> one.number & 1]
            if wrong:
                found.setdefault(node.number, wrong[0].name)
    return used, defined

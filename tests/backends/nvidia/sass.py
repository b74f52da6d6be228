"""Machine code as nvdisasm prints it: instructions, and the loops among them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from girih.backends.nvidia.assemble import assemble, disassemble, find_tool
from girih.backends.nvidia.target import Architecture

requires_nvdisasm = pytest.mark.skipif(
    find_tool("nvdisasm") is None, reason="nvdisasm is not installed"
)

_LABEL = re.compile(r"^\s*(\.L\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")


@dataclass(frozen=True)
class Instruction:
    """`opcode` with its suffixes ("LDG.E.128"), operands as text, the predicate before it."""

    opcode: str
    operands: str
    predicate: str = ""

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]


def instructions(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """All instructions, and where labels stand among them."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(found)
        for predicate, opcode, operands in _INSTRUCTION.findall(line):
            if predicate == "@!PT":  # never; the assembler fills places with it
                continue
            found.append(Instruction(opcode, operands.strip(), predicate))
    return found, labels


def machine_code(ptx: str, architecture: Architecture) -> str:
    """The disassembly of a PTX module that assembles without a fault."""
    made = assemble(ptx, architecture)
    assert made.faults() == []
    text = disassemble(made.cubin)
    assert text is not None
    return text


def loops(text: str) -> list[list[Instruction]]:
    """The innermost loops: what stands between a label and a branch back to it."""
    code, labels = instructions(text)
    spans = []
    for end, one in enumerate(code):
        target = re.search(r"`\((\.L\w+)\)", one.operands)
        if one.name == "BRA" and target and labels.get(target[1], end + 1) < end:
            spans.append((labels[target[1]], end + 1))
    inner = [
        (a, b)
        for a, b in spans
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)
    ]
    return [code[a:b] for a, b in sorted(set(inner))]


def counts(code: Sequence[Instruction], *, full: bool = False) -> Counter[str]:
    """How often each operation stands there; `full`: with its suffixes."""
    return Counter(one.opcode if full else one.name for one in code)

"""XLA's own program formats, read without XLA: HloModuleProto and HLO text.

In: bytes or text. Out: a module, through the tree of `frontends/stablehlo/`. Imported by `cli`.
"""

from __future__ import annotations

from dataclasses import replace

from ...hlo.errors import UserError
from ...hlo.graph import Module
from ..stablehlo.convert import convert
from .opcodes import lower
from .program import XlaProgram
from .protobuf import find_module, read_protobuf
from .text import is_hlo_text, read_text

__all__ = ["is_hlo", "is_hlo_text", "read_hlo", "read_program"]


def is_hlo(data: bytes | memoryview) -> bool:
    """Whether bytes are an HloModuleProto, HloProto or HloSnapshot, or begin as HLO text does."""
    head = bytes(data[:4096])
    if b"\0" not in head and is_hlo_text(head.decode("utf-8", "replace")):
        return True
    return find_module(memoryview(data)) is not None


def read_hlo(source: str | bytes | memoryview, name: str = "") -> Module:
    """The module of HLO text, or of the bytes of HLO text or an HLO protobuf.

    UserError where the program is malformed, ImportBlockers where girih cannot import it.
    """
    program = read_program(source, name)
    module = convert(lower(program), name or program.name)
    if program.notes:
        module = replace(module, notes=(*module.notes, *program.notes))
    return module


def read_program(source: str | bytes | memoryview, name: str = "") -> XlaProgram:
    """The instruction tree of text or bytes, before anything is checked against the op rooms."""
    if not isinstance(source, str):
        data = memoryview(source).cast("B")
        if find_module(data) is not None:
            return read_protobuf(data, name or "<protobuf>")
        try:
            source = bytes(data).decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(
                f"{name or 'the program'} is neither HLO text nor an HLO protobuf"
            ) from None
    return read_text(source, name or "<text>")

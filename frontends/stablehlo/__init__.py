"""StableHLO programs, as text or as portable artifacts, read without MLIR.

In: text or bytes. Out: a module, by a tree of operations that both readers give. Imported by `cli`,
`frontends/jax`, `frontends/xla`, `girih`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Module
from .. import tree
from .bytecode import MAGIC, read_bytecode
from .convert import Converter
from .text import read_text


def read_stablehlo(
    source: str | bytes | memoryview,
    name: str = "",
    examples: Sequence[Any] = (),
    entry: str | None = None,
) -> Module:
    """The module of a StableHLO program: its text, or the bytes of text or a portable artifact.

    examples: arrays whose shapes fix the sizes that the program's inputs leave free; a note of
    the module says so. Without them these sizes are symbols.
    entry: the function to start with; by default `main`, or the only one that there is.
    UserError where the program is malformed, ImportBlockers where girih cannot import it.
    """
    return Converter(read_tree(source, name), name, examples=examples, entry=entry).module()


def read_tree(source: str | bytes | memoryview, name: str = "") -> tree.Document:
    """The op tree of text or bytes, before anything is checked against the op rooms."""
    if not isinstance(source, str):
        if bytes(source[: len(MAGIC)]) == MAGIC:
            return read_bytecode(source, name or "<bytecode>")
        try:
            source = bytes(source).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(
                f"{name or 'the program'} is neither StableHLO text nor bytecode"
            ) from None
    return read_text(source, name or "<text>")

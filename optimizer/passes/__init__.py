"""Passes: frozen dataclasses, Module -> Module; one that changes nothing returns its argument.

In: a module at the level that a pass `takes`. Out: one at the level that it `gives`; which passes
run in which order `optimizer/pipeline.py` says. Imported by `backends`, `girih`, `optimizer`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from ...hlo.graph import Module
from ...hlo.verify import Level


class Pass(Protocol):
    """What a pipeline runs. `takes` and `gives` are the levels that are checked on both sides."""

    name: ClassVar[str]
    takes: ClassVar[Level]
    gives: ClassVar[Level]

    def __call__(self, module: Module) -> Module: ...

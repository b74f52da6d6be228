"""legalize-quantized: quantised values become the integers that they are stored as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.graph import Module
from ...hlo.quantized import legalized
from ...hlo.verify import HLO, Level


@dataclass(frozen=True)
class LegalizeQuantized:
    """HLO -> HLO: no type is quantised any more; `hlo/quantized.py` is what they mean."""

    name: ClassVar[str] = "legalize-quantized"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = HLO

    def __call__(self, module: Module) -> Module:
        return legalized(module)

"""Weights that follow from other weights: which, and by what operations.

The compiler never asks what stands in a weight. What it makes of weights (a packed order, a folded
scale, a narrower type) is a region of ordinary operations, computed when its data is first asked
for. So the same program on other data is the same code, and what was made can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .build import build_region
from .contiguous import contiguous
from .graph import Dense, Function, Module, Region, Weight
from .interpret import Interpreter, flat_results, prepared

_VIEWS = frozenset({"transpose", "reshape", "slice", "reverse"})


@dataclass(frozen=True, eq=False)
class Derivation:
    """The one result of a region whose arguments are the sources; without sources, of constants."""

    sources: tuple[Weight, ...]
    region: Region

    def __call__(self) -> np.ndarray[Any, Any]:
        """The data, C-contiguous."""
        return contiguous(self._computed())

    def view(self) -> np.ndarray[Any, Any] | None:
        """The data with any strides, without a copy; None where it has to be computed."""
        if len(self.sources) == 1 and all(op.name in _VIEWS for op in self.region.ops):
            return self._computed()
        return None

    def of(self, sources: Sequence[Weight]) -> Derivation:
        """The same of other weights."""
        other = Derivation(tuple(sources), self.region)
        other.__dict__["_interpreter"] = self._interpreter
        return other

    @cached_property
    def _interpreter(self) -> Interpreter:
        return Interpreter(prepared(Module({"main": Function("main", self.region)})))

    def _computed(self) -> np.ndarray[Any, Any]:
        with np.errstate(all="ignore"):
            return flat_results(self._interpreter, [source.view for source in self.sources])[0]


def derived(
    name: str,
    sources: Sequence[Weight],
    region: Region,
    aliases: Sequence[str] = (),
    inverse: tuple[str, Region] | None = None,
) -> Weight:
    """A weight of that name, computed from the sources on demand."""
    return weight_of(name, Derivation(tuple(sources), region), aliases, inverse)


def weight_of(
    name: str,
    derivation: Derivation,
    aliases: Sequence[str] = (),
    inverse: tuple[str, Region] | None = None,
) -> Weight:
    """A weight of that name, computed as the derivation says, on demand."""
    kind = derivation.region.results[0].tensor
    return Weight(name, derivation, kind, aliases, inverse, derivation)


def constant_weight(name: str, dense: Dense) -> Weight:
    """A weight whose data the program itself has."""
    region = build_region([], lambda b: [b("constant", type=dense.type, value=dense)])
    return derived(name, (), region)

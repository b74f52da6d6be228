"""The program at the sizes of one call, of a program whose calls decide sizes.

It shares everything with the whole program but what sizes say: shapes, places in the arena, what
steps and kernels read. A call of new sizes makes one, so what only people ask for (plan, signature)
is made when it is asked for.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any

from ..hlo.signature import Signature
from ..specs.generated import plan_pb2
from . import devices
from .inputs import Leaf
from .sizes import OpenSizes

if TYPE_CHECKING:
    from .program import Program

# What a program at one call's sizes has of its own, or makes when it is asked for.
_OWN = ("_plan", "_signature", "_leaves", "_results", "_device", "memory", "_formulas")


def _shared(whole: Program) -> dict[str, Any]:
    """What the whole program and those at all sizes have in common."""
    known = whole.__dict__.get("_common")
    if known is None:
        whole._opened()
        known = {name: value for name, value in whole.__dict__.items() if name not in _OWN}
        known["_sizes"] = None
        whole.__dict__["_common"] = known
    return known


class AtSizes:
    """What makes a program `whole.at(...)`; `values` are of all symbols, in their order, and are
    admitted."""

    def __init__(self, whole: Program, sizes: OpenSizes, values: tuple[int, ...]) -> None:
        self.__dict__ = _shared(whole).copy()
        self._whole, self._open_sizes, self._values_of = whole, sizes, values
        self._sized = sized = sizes.at(values)
        self._accepts, self._gives = sizes.tensors_at(values, sized, whole._accepts, whole._gives)
        self._device: devices.Device = whole._device_at(sized)
        self._undo = sizes.undo[sized.number]
        self._keeps = self._undo.gives(sized.formulas)
        contexts = self._device.contexts
        self._contexts = deque[Any]() if contexts is None else contexts

    @functools.cached_property
    def _plan(self) -> plan_pb2.Plan:
        return self._open_sizes.message(self._sized)

    @functools.cached_property
    def _signature(self) -> Signature:
        return self._open_sizes.signature_at(self._values_of)

    @functools.cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        return tuple(
            Leaf(argument, leaf.overwritten)
            for argument, leaf in zip(self._signature.arguments, self._whole._leaves, strict=True)
        )

    @functools.cached_property
    def _results(self) -> tuple[Leaf, ...]:
        return tuple(Leaf(result) for result in self._signature.computed)

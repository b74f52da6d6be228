"""What several blocks have of one reduction: in scratch; a later launch joins it in fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from ... import llvm
from ...llvm.elements import Register
from ...llvm.index import Affine
from ...plain.monoid import Reduction, flat, unflat
from ...plain.probe import dummy
from .groups import restored, stored
from .head import FusionKernel
from .threads import ThreadEmitter

_ALIGNMENT = 256  # bytes, of every component


class Partials:
    """Registers of some reductions by (component, place), `count` places; `parameter` is the
    scratch memory that an entry takes, `base` its address there."""

    def __init__(self, kernel: FusionKernel, reductions: Sequence[Reduction], count: int) -> None:
        self.likes = {one: [dummy(element) for element in one.elements] for one in reductions}
        self.offsets: list[int] = []
        size = 0
        for value in self._components():
            self.offsets.append(size)
            piece = max(1, llvm.bits_of(value.type) // 8) * count
            size += -(-piece // _ALIGNMENT) * _ALIGNMENT
        self.parameter = kernel.scratch_memory(size)

    def _components(self) -> list[llvm.Value]:
        return [value for like in self.likes.values() for value in flat(like)]

    def put(
        self,
        emitter: ThreadEmitter,
        base: llvm.Value,
        place: Affine,
        totals: Sequence[Sequence[Register]],
    ) -> None:
        """Keeps the values of all reductions, scalars or vectors of neighbouring places."""
        f = emitter.function
        values = [one for total in totals for one in flat(total)]
        for value, offset in zip(values, self.offsets, strict=True):
            raw, memory = stored(f, value), f.pointer(base, offset, "i8")
            emitter.store_neighbours(memory, raw, raw.element, place)

    def get(
        self, emitter: ThreadEmitter, base: llvm.Value, place: Affine, reduction: Reduction
    ) -> list[Register]:
        """The values of one of the reductions at a place."""
        f, parts, number = emitter.function, [], 0
        at = emitter.indexer.scalar(place)
        for one, like in self.likes.items():
            for value in flat(like):
                if one is reduction:
                    kind = "i8" if value.type == "i1" else value.type
                    memory = f.pointer(base, self.offsets[number], "i8")
                    parts.append(restored(f, f.load(kind, f.pointer(memory, at, kind)), value.type))
                number += 1
        return unflat(parts, self.likes[reduction])

"""Where the elements of a window lie in memory, for threads that read or write it themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....hlo.deciding import surely_divides
from ....hlo.graph import Value
from ... import llvm
from .work import COLUMN, Roles, is_row

if TYPE_CHECKING:
    from .registers import FragmentEvaluator

Element = llvm.Value


class WindowAddresses:
    """Places in memory of a window's elements, as i64, and whether they are inside of it."""

    def __init__(
        self,
        owner: FragmentEvaluator,
        memory: Value,
        offsets: Sequence[Value],
        sizes: Sequence[int],
        roles: Roles,
    ) -> None:
        self.owner, self.memory, self.roles = owner, memory, roles
        known = owner.work.offsets
        places = [known.of(value) for value in offsets]
        self.starts = [owner.number(value) for value in offsets]
        self.sure = [
            known.inside(place, size, dim)
            for place, size, dim in zip(places, sizes, memory.dims, strict=True)
        ]
        # Whether a thread's two neighbours of a row are neighbours in memory, and aligned.
        last = memory.rank - 1
        even = last >= 0 and surely_divides(2, places[last].constant)
        even = even and all(surely_divides(2, factor) for _, factor in places[last].terms)
        row = memory.dims[last] if last >= 0 else 1
        self.pairs = even and surely_divides(2, row) and roles[last] == COLUMN

    def at(self, i: int, j: int) -> tuple[Element, Element | None]:
        """(the element's number in memory, whether it is there; None where it surely is)."""
        f, owner = self.owner.f, self.owner
        index: Element = llvm.constant("i64", 0)
        inside: Element | None = None
        stride = 1
        for dim in reversed(range(self.memory.rank)):
            size, role = self.memory.dims[dim], self.roles[dim]

            def place(dim: int = dim, role: str = role) -> Element:
                start = self.starts[dim]
                inner = owner.along(role, i, j)
                return start if inner is None else f.add(start, inner)

            number = i if is_row(role) else j if role == COLUMN else 0
            at = owner.once((self, dim, number), place)
            wide = owner.once(
                (self, dim, number, stride), lambda a=at, s=stride: self._scaled(a, s)
            )
            index = f.add(index, wide)
            if not self.sure[dim]:
                here = owner.once(
                    (self, dim, number, "in"), lambda a=at, n=size: f.compare("ult", a, n)
                )
                inside = here if inside is None else f.land(inside, here)
            stride *= size
        return index, inside

    def _scaled(self, at: Element, stride: int) -> Element:
        f = self.owner.f
        return f.mul(f.cast("sext", at, "i64"), stride)

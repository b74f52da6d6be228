"""A dry run of an elementwise region: how its accesses depend on the dims of its roots.

What the dry run finds decides the shape of the loops: which dims can run as one, where the range
of a dim should be cut (at the seams of concatenations and paddings), what is read across rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...hlo.graph import Op, Region, Value
from .. import llvm
from ..llvm import arithmetic, elements
from ..llvm.elements import Pair, Register
from ..llvm.elementwise import RULES, ElementEmitter, Inside, Mask
from ..llvm.index import SAME, Affine, LoopAxis, of_axis


class ProbedAccess(NamedTuple):
    """A load of argument `pointer` at constant + sum of row[d] * root index d (if `plain`). `dims`:
    the root's dims on which the place depends."""

    pointer: str
    row: tuple[int, ...]
    constant: int
    plain: bool
    dims: frozenset[int]


@dataclass
class Findings:
    """Coefficients of the root's dims in every index that the code computes; `work` counts the
    operations and loads that it has. `dims`: on which of the root's dims what is computed of an
    operation depends."""

    coefficients: list[tuple[int, ...]] = field(default_factory=list)
    loads: list[ProbedAccess] = field(default_factory=list)
    cuts: list[set[int]] = field(default_factory=list)
    work: int = 0
    dims: dict[Op, frozenset[int]] = field(default_factory=dict)


class _Probe(ElementEmitter):
    def __init__(self, region: Region, axes: Sequence[LoopAxis]) -> None:
        function = llvm.Module().function("probe", [])
        pointers = [llvm.Value("ptr", argument(n)) for n in range(len(region.arguments))]
        super().__init__(function, region, pointers)
        self.axes = axes
        self.found = Findings(cuts=[set() for _ in axes])
        self._dims = {axis: frozenset({d}) for d, axis in enumerate(axes)}
        scalar, quotient = self.indexer.scalar, self.indexer.quotient

        def recorded(index: Affine) -> llvm.Value:
            self.record(index, self.found.coefficients)
            return scalar(index)

        def followed(index: Affine, divisor: int, width: int) -> tuple[LoopAxis, Affine]:
            found = quotient(index, divisor, width)
            self._dims[found[0]] = self.dims([index])
            return found

        self.indexer.scalar = recorded  # type: ignore[method-assign]
        self.indexer.quotient = followed  # type: ignore[method-assign]

    def dims(self, index: Sequence[Affine]) -> frozenset[int]:
        """The root's dims on which an index depends; all of them where nothing is known."""
        every = frozenset(range(len(self.axes)))
        parts = (self._dims.get(axis, every) for at in index for axis, _ in at.terms)
        return frozenset[int]().union(*parts)

    def row(self, index: Affine) -> tuple[int, ...]:
        factors = dict(index.terms)
        return tuple(factors.get(axis, 0) for axis in self.axes)

    def record(self, index: Affine, into: list[tuple[int, ...]]) -> None:
        row = self.row(index)
        if any(row):
            into.append(row)

    def load(
        self,
        pointer: llvm.Value,
        element: object,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> Register:
        plain = all(axis in self.axes for axis, _ in offset.terms) and mask is None
        dims = self.dims([offset])
        access = ProbedAccess(pointer.name, self.row(offset), offset.constant, plain, dims)
        self.found.loads.append(access)
        self.record(offset, self.found.coefficients)
        return dummy(element)

    def in_range(self, at: Affine, low: int, high: int, width: int) -> Inside:
        found = super().in_range(at, low, high, width)
        if isinstance(found, Mask) and len(at.terms) == 1 and at.terms[0][1] == 1:
            axis = at.terms[0][0]
            if axis in self.axes:
                cuts = self.found.cuts[self.axes.index(axis)]
                cuts.update((low - at.constant, high - at.constant))
        return found

    def clamped(
        self, value: Value, index: tuple[Affine, ...], high: int, width: int, mask: Mask | None
    ) -> Affine:
        found = super().clamped(value, index, high, width, mask)
        self._dims.update((axis, self.dims(index)) for axis, _ in found.terms)
        return found

    def _compute(
        self, value: Value, index: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> Register:
        self.found.work += 1
        op = value.op
        if op is not None:
            self.found.dims[op] = self.found.dims.get(op, frozenset()) | self.dims(index)
        if op is None or arithmetic.short_name(op) in RULES:
            return super()._compute(value, index, width, mask)
        for operand in op.operands:
            self.at(operand, index if operand.rank == len(index) else (), width, mask)
        return dummy(op.result.element)


def argument(number: int) -> str:
    """The name of an argument's address in the dry run."""
    return f"%argument{number}"


def dummy(element: object) -> Register:
    """A register of that element type without meaning."""
    value = llvm.poison(elements.register_type(element))
    return Pair(value, value) if element.is_complex else value  # type: ignore[attr-defined]


def probe(region: Region, starts: Sequence[int], sizes: Sequence[int]) -> Findings:
    """What the region's roots read in the box of that start and those sizes."""
    axes = [LoopAxis(llvm.Value("i64", f"%d{d}"), size, SAME) for d, size in enumerate(sizes)]
    emitter = _Probe(region, axes)
    index = box_index([of_axis(axis) for axis in axes], starts, sizes)
    dims = region.results[0].dims
    for root in region.results:
        emitter.value(root, index if root.dims == dims else index[: root.rank])
    for position, (start, cuts) in enumerate(zip(starts, emitter.found.cuts, strict=True)):
        emitter.found.cuts[position] = {cut + start for cut in cuts}
    return emitter.found


def box_index(
    at: Sequence[Affine], starts: Sequence[int], sizes: Sequence[int]
) -> tuple[Affine, ...]:
    """Positions in a box as an index of the whole array."""
    return tuple(
        (one + start).within(start, start + size - 1)
        for one, start, size in zip(at, starts, sizes, strict=True)
    )


def collapse(sizes: Sequence[int], found: Findings) -> list[list[int]]:
    """Groups of neighbouring dims that every index runs through as if they were one."""
    groups: list[list[int]] = []
    for dim in range(len(sizes)):
        if sizes[dim] == 1 and groups:
            groups[-1].append(dim)
            continue
        if groups and all(_runs_on(row, groups[-1], dim, sizes) for row in found.coefficients):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups or [[]]


def _runs_on(row: tuple[int, ...], group: list[int], dim: int, sizes: Sequence[int]) -> bool:
    meaningful = [d for d in group if sizes[d] != 1]
    return not meaningful or row[meaningful[-1]] == row[dim] * sizes[dim]

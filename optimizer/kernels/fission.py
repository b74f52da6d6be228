"""A fusion as several after one another, where it is none as a whole, or better so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import NOTE, Region, Value
from ...hlo.regions import extract, in_order_of_demand
from .tiled import Tilings


def fused(
    b: Builder,
    kind: str,
    region: Region,
    operands: Sequence[Value],
    note: str = "",
    tilings: Tilings | None = None,
) -> tuple[Value, ...]:
    """The results of a fusion of this kind, of those operands that its region uses. note: what the
    user is told of it. tilings: where those of the fusion come from."""
    ops, inputs = in_order_of_demand(set(region.ops), region.results)
    own = ops == [*region.ops] and inputs == [*region.arguments]
    body = region if own else extract(ops, inputs, region.results)
    facts: dict[str, Any] = {"kind": kind, NOTE: note} if note else {"kind": kind}
    if tilings is not None:
        facts |= tilings.listed(body)
    given = [operands[value.index] for value in inputs]
    return b.op("fusion", given, facts, (body,), body.result_types).results


class Fission:
    """A region that becomes kernels of the program which `b` builds. `known`: those of its values
    that lie in memory, as values of that program."""

    def __init__(self, b: Builder, region: Region, operands: Sequence[Value]) -> None:
        self.b, self.region = b, region
        self.known: dict[Value, Value] = dict(zip(region.arguments, operands, strict=True))

    def part(self, values: Sequence[Value]) -> tuple[Region, list[Value]]:
        """What computes values from those in memory, and its operands."""
        members = {op for op in self.region.ops if not self.known.keys() >= set(op.results)}
        ops, inputs = in_order_of_demand(members, values)
        return extract(ops, inputs, values), [self.known[value] for value in inputs]

    def store(self, values: Sequence[Value], note: str) -> None:
        """A kernel of element formulas that computes values of one shape."""
        region, operands = self.part(values)
        self.known.update(zip(values, fused(self.b, "loop", region, operands, note), strict=True))

    def rest(self, note: str) -> list[Value]:
        """The results; those that are left are computed, those of one shape together."""
        left: dict[tuple[int, ...], list[Value]] = {}
        for value in dict.fromkeys(self.region.results):
            if value not in self.known:
                left.setdefault(value.dims, []).append(value)
        for values in left.values():
            self.store(values, note)
        return [self.known[value] for value in self.region.results]

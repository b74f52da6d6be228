"""Puts a region of an operation in the operation's place, on the wire.

Values are numbered within a function in the order of specs/hlo.proto, so all numbers behind such a
place change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Choose = Callable[[str, int], int | None]
_GONE = -1  # the number of a value that nothing may read any more


class Inliner:
    """`choose(name, regions)` says which region takes the operation's place, None for none.

    pair: names of an operation whose only region takes its place too, and of the one that turns
    its result into the region's results; a pair stays as it is where anything else reads that.
    """

    def __init__(self, message: Any, choose: Choose, pair: tuple[str, str] = ("", "")) -> None:
        self.message, self.choose = message, choose
        self.start, self.done = pair
        self.names = list(message.strings)

    def run(self) -> None:
        """Change the message in place, where there is anything to change."""
        for function in self.message.functions:
            if not self._concerns(function.body):
                continue
            self.next = 0
            self.pending: dict[int, list[int]] = {}
            self.whole = self._pairs_are_whole(function.body)
            body = type(function.body)()
            self._region(function.body, body, [])
            function.body.CopyFrom(body)

    def _concerns(self, region: Any) -> bool:
        return any(
            self._name(op) == self.start
            or self.choose(self._name(op), len(op.regions)) is not None
            or any(map(self._concerns, op.regions))
            for op in region.ops
        )

    def _name(self, op: Any) -> str:
        return self.names[op.name]

    def _pairs_are_whole(self, body: Any) -> bool:
        """Whether only the second operation of a pair reads what the first one gives."""
        started: set[int] = set()
        whole = True

        def walk(region: Any, number: int) -> int:
            nonlocal whole
            number += len(region.argument_types)
            for op in region.ops:
                whole &= self._name(op) == self.done or started.isdisjoint(op.operands)
                for nested in op.regions:
                    number = walk(nested, number)
                if self._name(op) == self.start:
                    started.add(number)
                    whole &= len(op.regions) == 1
                number += len(op.result_types)
            whole &= started.isdisjoint(region.results)
            return number

        walk(body, 0)
        return whole

    def _fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def _region(self, old: Any, new: Any, values: list[int]) -> None:
        new.argument_types.extend(old.argument_types)
        values.extend(self._fresh(len(old.argument_types)))
        self._ops(old, new, values)
        new.results.extend([values[number] for number in old.results])

    def _ops(self, old: Any, new: Any, values: list[int]) -> None:
        """`values` has the new number for each old one."""
        for op in old.ops:
            name = self._name(op)
            if self.whole and name == self.start:
                results = self._inlined(op, 0, new, values)
                self.pending[len(values)] = results
                values.append(_GONE)
            elif self.whole and name == self.done and op.operands[0] in self.pending:
                values.extend(self.pending[op.operands[0]])
            elif (chosen := self.choose(name, len(op.regions))) is not None:
                values.extend(self._inlined(op, chosen, new, values))
            else:
                self._kept(op, new, values)

    def _kept(self, op: Any, new: Any, values: list[int]) -> None:
        out = new.ops.add()
        out.CopyFrom(op)
        del out.operands[:], out.regions[:]
        out.operands.extend([values[number] for number in op.operands])
        for region in op.regions:
            self._region(region, out.regions.add(), values)
        values.extend(self._fresh(len(op.result_types)))

    def _inlined(self, op: Any, chosen: int, new: Any, values: list[int]) -> list[int]:
        """The numbers of the results of a region that was put into `new`."""
        operands = [values[number] for number in op.operands]
        results: list[int] = []
        for index, region in enumerate(op.regions):
            if index == chosen:
                values.extend(operands[: len(region.argument_types)])
                self._ops(region, new, values)
                results = [values[number] for number in region.results]
            else:
                values.extend([_GONE] * _values_in(region))
        return results


def _values_in(region: Any) -> int:
    """How many numbers a region takes."""
    inside = sum(len(op.result_types) + sum(map(_values_in, op.regions)) for op in region.ops)
    return len(region.argument_types) + inside

"""one-device: what processes say to each other, for a program that runs on one device.

Shardings, and the operations that state them, go, with one note. A collective over a group of one
is its operand, this process is number 0 of its grid, and what is asynchronous is done at once. What
needs more devices is refused, every place at once; but a program that says that it is for several
processes keeps its exchanges, which are all that the pass `communication` has left of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...hlo.build import Builder
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.processes import grid_of
from ...hlo.regions import rewritten
from ...hlo.verify import INLINED, Level
from ..annotations import without_annotations
from ..library import BETWEEN
from ..licence import BITWISE, Ledger


@dataclass(frozen=True)
class OneDevice:
    """INLINED -> INLINED: no sharding is left, and no operation that communicates, but exchanges of
    a program for several processes; UnsupportedError lists those that need a second device or an
    other end.
    """

    name: ClassVar[str] = "one-device"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        plain = without_annotations(module)
        talks = any(definition.communicates for definition in plain.definitions)
        talk = [op for op in plain.walk() if op.definition.communicates] if talks else []
        annotated = len(plain.notes) > len(module.notes)
        several = grid_of(plain) != (1, 1)
        if annotated and several and not talk:  # the whole program: one device can run it
            plain = replace(plain, attributes={**plain.attributes, **_ALONE})
            several = False
        module = plain
        if all(several and op.name in BETWEEN for op in talk):
            return module
        rewrite = _Rewrite(self.ledger, several)
        body = rewrite.region(module.body)
        if rewrite.blockers:
            raise UnsupportedError("\n".join([_HEAD, *rewrite.blockers]))
        counts = [name if n == 1 else f"{n} {name}" for name, n in rewrite.done.items()]
        note = f"on one device there is nobody to communicate with: {', '.join(counts)} removed"
        return module.with_main(body).with_notes(note)


_ALONE = {"mhlo.num_partitions": 1, "mhlo.num_replicas": 1}

_HEAD = (
    "a compiled program runs on one device, and multi-device execution comes with sharding; the "
    "interpreter runs programs of several devices (girih.interpret_parallel). In the way are:"
)


class _Rewrite:
    """`several`: the module says that it is for more than one device."""

    def __init__(self, ledger: Ledger, several: bool) -> None:
        self.ledger, self.several = ledger, several
        self.blockers: list[str] = []
        self.done: Counter[str] = Counter()
        self.futures: dict[Value, list[Value]] = {}

    def region(self, region: Region) -> Region:
        return rewritten(region, {}, self.change, region.arguments)

    def change(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        """Build what `op` is on one device."""
        if not op.definition.communicates or self.several and op.name in BETWEEN:
            return False
        needed = op.definition.devices(op)
        if self.several or needed > 1:
            why = f"needs {needed} devices" if needed > 1 else "is part of a program for several"
            self.blockers.append(f"  {op.place}{op.name}: {why}")
            needed = 0
        with b.at(op.origin):
            try:
                results = self.alone(b, op, mapping) if needed else None
            except UnsupportedError as error:
                self.blockers.append(f"  {error}")
                results = None
        if results is None:  # only to go on to the next blocker
            mapping.update((value, value) for value in op.results)
            return True
        self.ledger.record("one-device", BITWISE, op)
        self.done[op.name] += 1
        mapping.update(zip(op.results, results, strict=False))
        return True

    def alone(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> Any:
        """What stands for the op's results."""
        operands = [mapping.get(value, value) for value in op.operands]
        if op.name == "async_done":
            return self.futures[op.operands[0]]
        if op.name not in ("async_start", "sdy.manual_computation"):
            return op.definition.alone(b, op, *operands)
        body = op.regions[0]
        mapping.update(zip(body.arguments, operands, strict=False))
        results = self.into(b, body, mapping)
        if op.name == "async_start":
            self.futures[op.result] = results
            return []
        return results

    def into(self, b: Builder, region: Region, mapping: dict[Value, Value]) -> list[Value]:
        """Append the region's operations; its results."""
        for op in region.ops:
            if self.change(b, op, mapping):
                continue
            nested = [rewritten(body, mapping, self.change) for body in op.regions]
            new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
            mapping.update(zip(op.results, new.results, strict=True))
            b.append(new)
        return [mapping.get(value, value) for value in region.results]

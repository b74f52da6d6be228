"""communication: what processes say to each other as `exchange` and ordinary operations.

The one operation that is left says which box goes from which process to which
(`optimizer/exchanges.py`), so that results have the same bits on every transport and in the
interpreter. What is asynchronous is done where it starts; the body of a manual computation stands
in the program, on the blocks that each process has of its operands. Where a library is known to
be faster (`optimizer/library.py`), its collective stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...hlo.build import Builder
from ...hlo.call_order import check_call_order
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.processes import grid_of
from ...hlo.regions import rewritten
from ...hlo.verify import INLINED, Level
from ..exchanges import Exchanges
from ..library import COLLECTIVES, Library, received, sums
from ..licence import BITWISE, REASSOCIATES, Ledger


@dataclass(frozen=True)
class Communication:
    """INLINED -> INLINED: of a program of several processes, `exchange` is the only operation that
    communicates; UnsupportedError lists the operations that cannot be made of it, UserError those
    that only some processes may come to. Replicas of partitions become partitions.
    """

    name: ClassVar[str] = "communication"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    library: Library = Library()

    def __call__(self, module: Module) -> Module:
        replicas, partitions = grid_of(module)
        communicating = any(definition.communicates for definition in module.definitions)
        if (replicas, partitions) == (1, 1) or not communicating:
            return module
        check_call_order(module)
        rewrite = _Rewrite(self.ledger, Exchanges(replicas, partitions), self.library)
        body = rewritten(module.body, {}, rewrite.change, module.body.arguments)
        if rewrite.blockers:
            raise UnsupportedError("\n".join([_HEAD, *rewrite.blockers]))
        module = module.with_main(body).with_notes(*rewrite.notes)
        if 1 in (replicas, partitions):
            return module
        facts = {"mhlo.num_replicas": 1, "mhlo.num_partitions": replicas * partitions}
        return replace(module, attributes={**module.attributes, **facts})


_HEAD = (
    "these operations cannot be compiled for several processes; the interpreter runs them "
    "(girih.interpret_parallel):"
)


class _Rewrite:
    def __init__(self, ledger: Ledger, exchanges: Exchanges, library: Library) -> None:
        self.ledger, self.exchanges, self.library = ledger, exchanges, library
        self.notes: list[str] = []
        self.blockers: list[str] = []
        self.futures: dict[Value, Sequence[Value]] = {}

    def change(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        """Build what stands for an operation that communicates."""
        if not op.definition.communicates or self.stays(op):
            return False
        with b.at(op.origin):
            try:
                results = self.built(b, op, mapping)
            except UnsupportedError as error:
                self.blockers.append(f"  {op.place}{op.name}: {error}")
                results = op.results  # only to go on to the next blocker
        self.ledger.record("communication", BITWISE, op)
        mapping.update(zip(op.results, results, strict=False))
        return True

    def stays(self, op: Op) -> bool:
        """Whether the library computes it."""
        if op.name not in COLLECTIVES or 1 not in self.exchanges.grid:
            return False
        try:
            groups = self.exchanges.groups(op)
        except UnsupportedError:
            return False
        if not self.library.takes(op, groups):
            return False
        added = sums(op) and not op.operands[0].element.is_integer
        self.ledger.record("library-collective", REASSOCIATES if added else BITWISE, op)
        order = "; it adds in an order of its own" if added else ""
        size = f"{received(op, len(groups[0])):.0f} bytes"
        self.notes.append(
            f"{op.place}{op.name}: by the library, which is faster for {size} here{order}"
        )
        return True

    def built(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> Sequence[Value]:
        operands = [mapping.get(value, value) for value in op.operands]
        if op.name == "async_start":
            mapping.update(zip(op.regions[0].arguments, operands, strict=False))
            self.futures[op.result] = self.into(b, op.regions[0], mapping)
            return ()
        if op.name == "async_done":
            if op.operands[0] not in self.futures:
                raise UnsupportedError("what it waits for was started in another region")
            return self.futures[op.operands[0]]
        if op.name == "sdy.manual_computation":
            blocks = self.exchanges.blocks(b, op, operands)
            mapping.update(zip(op.regions[0].arguments, blocks, strict=True))
            return self.exchanges.whole(b, op, self.into(b, op.regions[0], mapping))
        return self.exchanges(b, op, operands)

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

"""kernel-epilogues: elementwise consumers of a kernel's result are computed where it is stored.

The edge from a kernel to an elementwise fusion goes to the place REG: what the kernel is about to
store is still at hand, so the consumer's operations are applied to the tile, and what they read
besides is loaded through the same window. This holds for kernels that users wrote and for those
that the compiler made alike; both are tile functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...hlo.build import Builder
from ...hlo.errors import CompilerBug
from ...hlo.graph import Module, Op, Region, Value, arguments, union_origins
from ...hlo.regions import exhausted, rename, rewritten
from ...hlo.tiling import MEMORY_OPS
from ...hlo.types import Type
from ...hlo.verify import FUSED, Level
from ..tiles.access import Box, Span, TilePropagation, propagate
from ..tiles.expressions import expression, variable
from ..tiles.write import TileWriter, Unwritable, numbers, writable


class _EpilogueMove(NamedTuple):
    """A kernel's result and a fusion that reads it. keep: the result is needed besides."""

    kernel: Op
    result: int
    fusion: Op
    store: Op
    keep: bool

    @property
    def kept(self) -> list[int]:
        """The kernel's results that remain."""
        every = range(len(self.kernel.results))
        return [n for n in every if self.keep or n != self.result]


@dataclass(frozen=True)
class KernelEpilogues:
    """FUSED -> FUSED."""

    name: ClassVar[str] = "kernel-epilogues"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(lambda region: exhausted(region, _first_move))


def _first_move(region: Region) -> Region | None:
    """The region with one fusion taken into the kernel before it; None if there is none."""
    for op in region.ops:
        if op.name != "kernel_call":
            continue
        for number, result in enumerate(op.results):
            store = _only_store(op, number)
            users = dict.fromkeys(user for user, _ in region.uses.get(result, ()))
            for fusion in users if store is not None else ():
                if fusion is None or fusion.name != "fusion" or fusion.kind != "loop":
                    continue
                if store is None or not _reads_before(region, result, fusion):
                    continue
                move = _EpilogueMove(op, number, fusion, store, keep=len(users) > 1)
                kernel = _extended(move)
                if kernel is not None:
                    return _replaced(region, move, kernel)
    return None


def _only_store(kernel: Op, number: int) -> Op | None:
    """The one operation that touches that result's memory, if it just stores."""
    memory = kernel.regions[0].arguments[len(kernel.operands) + number]
    if kernel.starts and kernel.starts[number] != -1:
        return None
    touching = [
        op for op in kernel.regions[0].walk() if op.name in MEMORY_OPS and op.operands[0] is memory
    ]
    if len(touching) != 1 or touching[0].name != "tile_store":
        return None
    (store,) = touching
    return None if store.combine or store.masked else store


def _reads_before(region: Region, result: Value, fusion: Op) -> bool:
    """Whether all that the fusion reads besides exists before the kernel of that result."""
    assert result.op is not None
    position = {op: number for number, op in enumerate(region.ops)}
    at = position[result.op]
    return all(
        value is result or value.op not in position or position[value.op] < at
        for value in fusion.operands
    )


def _extended(move: _EpilogueMove) -> Op | None:
    """The kernel that computes the fusion as well; None where that is not the same element."""
    kernel, fusion = move.kernel, move.fusion
    (body,) = fusion.regions
    result = kernel.results[move.result]
    inner = [a for a, v in zip(body.arguments, fusion.operands, strict=True) if v is result]
    if len(inner) != 1 or not all(map(writable, body.ops)):
        return None
    if any(root.dims != result.dims for root in body.results):
        return None
    stored = move.store.operands[1]
    spans = tuple(
        Span(variable(f"o{d}", None, None), expression(size), 1, bound)
        for d, (size, bound) in enumerate(zip(stored.dims, result.dims, strict=True))
    )
    whole = Box(spans)
    roots = dict.fromkeys(body.results, whole)
    if any(value.op is None for value in body.results):
        return None
    parts = propagate(body.ops, roots)
    if parts.boxes.get(inner[0]) != whole or parts.opaque:
        return None
    try:
        return _EpilogueCopy(move, body, inner[0], parts, whole).run()
    except Unwritable:
        return None


class _EpilogueCopy:
    """The kernel's body once more, with the fusion's operations before the store."""

    def __init__(
        self, move: _EpilogueMove, body: Region, inner: Value, parts: TilePropagation, box: Box
    ) -> None:
        self.move, self.body, self.inner, self.parts, self.box = move, body, inner, parts, box

    def run(self) -> Op:
        kernel, fusion = self.move.kernel, self.move.fusion
        old = kernel.regions[0]
        count = len(kernel.operands)
        result = kernel.results[self.move.result]
        pairs = zip(self.body.arguments, fusion.operands, strict=True)
        added = [(argument, value) for argument, value in pairs if value is not result]
        kept = self.move.kept
        types = [
            *(v.type for v in kernel.operands),
            *(v.type for _, v in added),
            *(kernel.results[n].type for n in kept),
            *fusion.result_types,
        ]
        memory = arguments(types)
        extra = count + len(added)
        mapping: dict[Value, Value] = dict(zip(old.arguments[:count], memory, strict=False))
        for place, number in enumerate(kept):
            mapping[old.arguments[count + number]] = memory[extra + place]
        self.inputs = {a: memory[count + i] for i, (a, _) in enumerate(added)}
        self.targets = memory[extra + len(kept) :]
        regions = [rewritten(old, mapping, self.change, memory)]
        if len(kernel.regions) > 1:
            regions.append(self.reference(kernel.regions[1], types[:extra], kept))
        starts = kernel.starts or (-1,) * len(kernel.results)
        attributes = {
            **kernel.attributes,
            "starts": (*(starts[n] for n in kept), *(-1 for _ in fusion.results)),
        }
        operands = [*kernel.operands, *(value for _, value in added)]
        results = [*(kernel.results[n].type for n in kept), *fusion.result_types]
        origin = union_origins(kernel.origin, fusion.origin)
        return Op(kernel.definition, operands, attributes, regions, results, origin)

    def change(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        """The fusion's stores in place of the store; beside it where its result is needed."""
        if op is self.move.store:
            for new in self.stores(mapping):
                b.append(new)
        return op is self.move.store and not self.move.keep

    def reference(self, old: Region, types: Sequence[Type], kept: Sequence[int]) -> Region:
        """The kernel's reference, then the fusion."""
        own = arguments(types)
        mapping = dict(zip(old.arguments, own, strict=False))
        added = [a for a in self.body.arguments if a is not self.inner]
        mapping.update(zip(added, own[len(old.arguments) :], strict=True))
        ops: list[Op] = []
        for part in (old.ops, self.body.ops):
            for op in part:
                nested = [rename(body, mapping) for body in op.regions]
                new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
                mapping.update(zip(op.results, new.results, strict=True))
                ops.append(new)
            if part is old.ops:
                result = old.results[self.move.result]
                mapping[self.inner] = mapping.get(result, result)
        results = [*(old.results[n] for n in kept), *self.body.results]
        return Region(own, ops, [mapping.get(v, v) for v in results])

    def stores(self, mapping: Mapping[Value, Value]) -> list[Op]:
        """The fusion on the tile that was stored, and the stores of what it gives."""
        _, tile, *offsets = self.move.store.operands
        b = Builder(self.move.fusion.origin, check=False)
        places = {f"o{d}": mapping.get(v, v) for d, v in enumerate(offsets)}
        writer = TileWriter(b, self.inputs, places)
        writer.define(self.inner, mapping.get(tile, tile), self.box)
        writer.write(self.body.ops, self.parts)
        for root, target in zip(self.body.results, self.targets, strict=True):
            if numbers(self.parts.boxes[root]) != writer.tiles[root].dims:
                raise CompilerBug("a tile that is stored has another size than its window")
            b.op("tile_store", [target, writer.tiles[root], *places.values()])
        return b.ops


def _replaced(region: Region, move: _EpilogueMove, new: Op) -> Region:
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    kernel, fusion = move.kernel, move.fusion
    kept = [kernel.results[n] for n in move.kept]
    for op in region.ops:
        if op is kernel:
            copy = new.with_operands([mapping.get(v, v) for v in new.operands])
            ops.append(copy)
            mapping.update(zip([*kept, *fusion.results], copy.results, strict=True))
        elif op is not fusion:
            nested = [rename(body, mapping) for body in op.regions]
            copy = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
            mapping.update(zip(op.results, copy.results, strict=True))
            ops.append(copy)
    return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])

"""kernel-prologues: elementwise producers of a kernel's input are computed where it is loaded.

The edge from an elementwise fusion to a tile function goes to the place REG: instead of the value,
a window of what the fusion reads is loaded, and its operations are applied to the tile. It is done
where the kernel loads each element about once, or else the work would be done many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from ...hlo.build import Builder
from ...hlo.deciding import estimating
from ...hlo.graph import Module, Op, Region, Value, arguments, union_origins
from ...hlo.offsets import Offsets
from ...hlo.regions import exhausted, inline, rename, rewritten
from ...hlo.tiling import MEMORY_OPS, trips
from ...hlo.verify import FUSED, Level
from ..tiles.access import Box, Span, propagate
from ..tiles.expressions import expression, variable
from ..tiles.write import TileWriter, Unwritable, writable

MOST_LOADS = 1.25  # times each element may be loaded, on average


class _PrologueMove(NamedTuple):
    """A fusion whose result is input `operand` of a kernel, and nothing else."""

    fusion: Op
    kernel: Op
    operand: int


@dataclass(frozen=True)
class KernelPrologues:
    """FUSED -> FUSED."""

    name: ClassVar[str] = "kernel-prologues"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(lambda region: exhausted(region, _first_move))


def _first_move(region: Region) -> Region | None:
    for op in region.ops:
        if op.name != "kernel_call":
            continue
        for number, value in enumerate(op.operands):
            fusion = value.op
            if fusion is None or fusion.name != "fusion" or fusion.kind != "loop":
                continue
            if len(fusion.results) != 1 or len(region.uses[value]) != 1:
                continue
            move = _PrologueMove(fusion, op, number)
            if fusion in region.ops and _legal(move):
                try:
                    return _replaced(region, move, _PrologueCopy(move).run())
                except Unwritable:
                    continue
    return None


def _legal(move: _PrologueMove) -> bool:
    """Whether the input is only loaded, about once, and not what a result starts as."""
    kernel, (body,) = move.kernel, move.fusion.regions
    if move.operand in kernel.starts or not all(map(writable, body.ops)):
        return False
    if body.results[0].op is None:
        return False
    memory = kernel.regions[0].arguments[move.operand]
    with estimating():
        loaded = 0
        for op, count in trips(kernel):
            if op.name in MEMORY_OPS and op.operands[0] is memory:
                if op.name != "tile_load":
                    return False
                loaded += count * prod(op.sizes)
        return loaded <= MOST_LOADS * max(1, memory.tensor.size)


class _PrologueCopy:
    """The kernel's body once more, with the fusion's operations after its loads."""

    def __init__(self, move: _PrologueMove) -> None:
        self.move = move
        (self.body,) = move.fusion.regions
        self.memory = move.kernel.regions[0].arguments[move.operand]
        self.offsets = Offsets(move.kernel)

    def run(self) -> Op:
        kernel, fusion, number = self.move.kernel, self.move.fusion, self.move.operand
        old = kernel.regions[0]
        kept = [n for n in range(len(kernel.operands)) if n != number]
        operands = [*(kernel.operands[n] for n in kept), *fusion.operands]
        results = old.arguments[len(kernel.operands) :]
        memory = arguments([*(v.type for v in operands), *(v.type for v in results)])
        mapping = {old.arguments[n]: memory[place] for place, n in enumerate(kept)}
        mapping.update(zip(results, memory[len(operands) :], strict=True))
        self.inputs = dict(zip(self.body.arguments, memory[len(kept) : len(operands)], strict=True))
        regions = [rewritten(old, mapping, self.change, memory)]
        if len(kernel.regions) > 1:
            regions.append(self.reference(kernel.regions[1], kept, [v.type for v in operands]))
        starts = tuple(s - (s > number) for s in kernel.starts)
        attributes = {**kernel.attributes, "starts": starts}
        origin = union_origins(kernel.origin, fusion.origin)
        return Op(kernel.definition, operands, attributes, regions, kernel.result_types, origin)

    def reference(self, old: Region, kept: Sequence[int], types: Sequence[object]) -> Region:
        """The fusion, then the kernel's reference."""
        b = Builder(check=False)
        own = b.arguments(types)  # type: ignore[arg-type]
        (value,) = inline(b, self.body, list(own[len(kept) :]))
        places = {n: own[place] for place, n in enumerate(kept)} | {self.move.operand: value}
        return b.region(inline(b, old, [places[n] for n in range(len(places))]))

    def change(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        """The fusion on a window of what it reads, in place of a load of its result."""
        if not op.operands or op.operands[0] is not self.memory:
            return False
        mapping[op.result] = self.load(b, op, mapping)
        return True

    def load(self, b: Builder, op: Op, mapping: Mapping[Value, Value]) -> Value:
        """The fusion's result for the window that was loaded, with its fill outside."""
        b.origin = self.move.fusion.origin
        spans = []
        for d, (value, size, bound) in enumerate(
            zip(op.offsets, op.sizes, self.memory.dims, strict=True)
        ):
            inside = self.offsets.inside(self.offsets.of(value), size, bound)
            low, high = (0, bound - size) if inside else (None, None)
            spans.append(Span(variable(f"o{d}", low, high), expression(size), 1, bound))
        box = Box(tuple(spans))
        root = self.body.results[0]
        parts = propagate(self.body.ops, {root: box})
        if parts.opaque:
            raise Unwritable("the fusion holds what has no tiles")
        places = {f"o{d}": mapping.get(v, v) for d, v in enumerate(op.offsets)}
        writer = TileWriter(b, self.inputs, places)
        writer.write(self.body.ops, parts)
        return writer.masked(writer.read(root, box), box, op.fill, None)


def _replaced(region: Region, move: _PrologueMove, new: Op) -> Region:
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in region.ops:
        if op is move.fusion:
            continue
        if op is move.kernel:
            copy = new.with_operands([mapping.get(v, v) for v in new.operands])
        else:
            nested = [rename(body, mapping) for body in op.regions]
            copy = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
        mapping.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)
    return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])

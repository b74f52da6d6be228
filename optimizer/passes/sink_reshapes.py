"""sink-reshapes: reshapes go behind what follows a contraction, so that all of it has its own dims
and can be computed on its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import make_op
from ...hlo.graph import Dense, Module, Op, Region, Value, constant_of
from ...hlo.regions import prune, rename
from ...hlo.verify import INLINED, Level


@dataclass(frozen=True)
class SinkReshapes:
    """INLINED -> INLINED: f(reshape(dot), y) becomes reshape(f(dot, reshape(y)))."""

    name: ClassVar[str] = "sink-reshapes"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(self.region)

    def region(self, region: Region) -> Region:
        reshaped = any(op.name == "reshape" for op in region.ops)
        if not reshaped or not any(op.definition.pattern == "contract" for op in region.ops):
            return region
        return _Sinker(region).run()


class _Sinker:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.new: dict[Value, Value] = {}
        self.ops: list[Op] = []
        # Contractions and what follows them elementwise -> the contraction's bit in `reach`.
        self.chain: dict[Value, int] = {}
        self.reach: dict[Value, int] = {}  # the contractions that a value depends on, as bits
        self.contractions = 0
        self.changed = False

    def run(self) -> Region:
        for op in self.region.ops:
            operands = [self.new.get(value, value) for value in op.operands]
            source = self.source(op, operands)
            if source is not None:
                self.sink(op, operands, source)
                continue
            regions = [rename(body, self.new) for body in op.regions] if op.regions else ()
            new = self.append(op.with_operands(operands, regions))
            self.new.update(zip(op.results, new.results, strict=True))
            if op.definition.pattern == "contract":
                bit = 1 << self.contractions
                self.contractions += 1
                self.chain[new.result] = bit
                self.reach[new.result] = self.reach[new.result] | bit
            elif op.definition.pattern == "elementwise" and len(new.results) == 1:
                bits = {self.chain.get(value, 0) for value in operands} - {0}
                follows = [bit for bit in bits if self.follows(operands, bit)]
                if follows:
                    self.chain[new.result] = follows[0]
        if not self.changed:
            return self.region
        results = [self.new.get(value, value) for value in self.region.results]
        return prune(Region(self.region.arguments, self.ops, results))

    def append(self, op: Op) -> Op:
        self.ops.append(op)
        inputs = [*op.operands, *(v for region in op.regions for v in region.captures())]
        bits = 0
        for value in inputs:
            bits |= self.reach.get(value, 0)
        self.reach.update(dict.fromkeys(op.results, bits))
        return op

    def follows(self, operands: list[Value], bit: int) -> bool:
        """Whether the operands depend on that contraction only through its elementwise chain."""
        return all(
            self.base_bit(value) == bit or not self.reach.get(value, 0) & bit for value in operands
        )

    def base_bit(self, value: Value) -> int:
        """The chain that a value belongs to, seen through one reshape."""
        producer = value.op
        if producer is not None and producer.name == "reshape":
            value = producer.operands[0]
        return self.chain.get(value, 0)

    def source(self, op: Op, operands: list[Value]) -> Value | None:
        """The contraction's value behind the first reshaped operand of an elementwise operation."""
        if op.definition.pattern != "elementwise" or len(op.results) != 1 or op.regions:
            return None
        for value in operands:
            producer = value.op
            if producer is not None and producer.name == "reshape":
                before = producer.operands[0]
                bit = self.chain.get(before, 0)
                if bit and value.dims == op.result.dims and self.follows(operands, bit):
                    return before
        return None

    def sink(self, op: Op, operands: list[Value], source: Value) -> None:
        dims, wanted = op.result.dims, source.dims
        moved = [self.reshaped(v, wanted) if v.dims == dims else v for v in operands]
        type = op.result.tensor.with_dims(wanted)
        new = Op(op.definition, moved, op.attributes, (), (type,), op.origin)
        self.append(new)
        self.chain[new.result] = self.chain[source]
        self.new[op.result] = self.reshape(new.result, op.result.tensor.dims, op)
        self.changed = True

    def reshaped(self, value: Value, dims: tuple[int, ...]) -> Value:
        producer = value.op
        if producer is not None and producer.name == "reshape":
            before = producer.operands[0]
            if before.dims == dims:
                return before
        dense = constant_of(value)
        if dense is not None and dense.is_splat and producer is not None:
            spread = Dense.splat(dense.splat_value, dense.type.with_dims(dims))
            made = make_op("constant", (), {"value": spread}, origin=producer.origin)
            return self.append(made).result
        return self.reshape(value, dims, producer)

    def reshape(self, value: Value, dims: tuple[int, ...], like: Op | None) -> Value:
        if value.dims == dims:
            return value
        origin = like.origin if like is not None else ()
        op = make_op("reshape", (value,), {}, (), (value.tensor.with_dims(dims),), origin)
        return self.append(op).result

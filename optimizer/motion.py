"""Moves reshapes behind the elementwise operations that follow a contraction, so that all of them
have the contraction's own dims and can be computed on its tiles."""

from __future__ import annotations

from dataclasses import dataclass

from ..hlo.build import make_op
from ..hlo.graph import Dense, Function, Module, Op, Region, Value, constant_of
from .fusion import CONTRACTIONS, rename


@dataclass(frozen=True)
class SinkReshapes:
    """INLINED -> INLINED: f(reshape(dot), y) becomes reshape(f(dot, reshape(y)))."""

    name = "sink-reshapes"

    def __call__(self, module: Module) -> Module:
        functions = {name: self.function(f) for name, f in module.functions.items()}
        if all(functions[name] is old for name, old in module.functions.items()):
            return module
        return module.with_functions(functions)

    def function(self, function: Function) -> Function:
        body = function.body
        reshaped = {op.operands[0] for op in body.ops if op.name == "reshape"}
        if not any(op.name in CONTRACTIONS for op in body.ops) or not reshaped:
            return function
        return function.with_body(_Sinker(body).run())


class _Sinker:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.new: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.chain: set[Value] = set()  # contractions and what follows them elementwise
        self.changed = False

    def run(self) -> Region:
        for op in self.region.ops:
            operands = [self.new.get(value, value) for value in op.operands]
            source = self.source(op, operands)
            if source is not None:
                self.sink(op, operands, source)
                continue
            regions = [rename(body, self.new) for body in op.regions] if op.regions else ()
            new = op.with_operands(operands, regions)
            self.ops.append(new)
            self.new.update(zip(op.results, new.results, strict=True))
            follows = op.definition.pattern == "elementwise" and any(
                value in self.chain for value in operands
            )
            if op.name in CONTRACTIONS or follows:
                self.chain.update(new.results)
        if not self.changed:
            return self.region
        results = [self.new.get(value, value) for value in self.region.results]
        return Region(self.region.arguments, self.ops, results)

    def source(self, op: Op, operands: list[Value]) -> Value | None:
        """The contraction's value behind the first reshaped operand of an elementwise operation."""
        if op.definition.pattern != "elementwise" or len(op.results) != 1 or op.regions:
            return None
        for value in operands:
            producer = value.op
            if producer is not None and producer.name == "reshape":
                before = producer.operands[0]
                if before in self.chain and value.dims == op.result.dims:
                    return before
        return None

    def sink(self, op: Op, operands: list[Value], source: Value) -> None:
        dims, wanted = op.result.dims, source.dims
        moved = [self.reshaped(v, wanted) if v.dims == dims else v for v in operands]
        type = op.result.tensor.with_dims(wanted)
        new = Op(op.definition, moved, op.attributes, (), (type,), op.origin)
        self.ops.append(new)
        self.chain.add(new.result)
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
            new = make_op("constant", (), {"value": spread}, origin=producer.origin)
            self.ops.append(new)
            return new.result
        return self.reshape(value, dims, producer)

    def reshape(self, value: Value, dims: tuple[int, ...], like: Op | None) -> Value:
        if value.dims == dims:
            return value
        origin = like.origin if like is not None else ()
        op = make_op("reshape", (value,), {}, (), (value.tensor.with_dims(dims),), origin)
        self.ops.append(op)
        return op.result

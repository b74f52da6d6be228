"""Moves reshapes and factors behind contractions, so that what follows one has its own dims and can
be computed on its tiles, and what is read by one is read in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..hlo.build import make_op
from ..hlo.graph import Dense, Module, Op, Region, Value, constant_of
from ..hlo.types import BF16, F16, F32
from ..hlo.verify import INLINED, Level
from .fusable import CONTRACTIONS
from .regions import prune, rename


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
        if not reshaped or not any(op.name in CONTRACTIONS for op in region.ops):
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
            if op.name in CONTRACTIONS:
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


@dataclass(frozen=True)
class SinkScales:
    """INLINED -> INLINED: dot(c * x, y) becomes c * dot(x, y), c one number.

    A slice is read in place by a contraction, and a factor behind it costs nothing; in front of it
    the slice would be copied. `rounds`: also for factors that are no powers of two. `in_place`:
    whatever x is, and also where c * x is rounded to a type narrower than that of the sums, for
    targets whose matrix units read operands as they lie in memory.
    """

    rounds: bool = True
    in_place: bool = False
    name: ClassVar[str] = "sink-scales"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(self.region)

    def region(self, region: Region) -> Region:
        new: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in region.ops:
            regions = [rename(body, new) for body in op.regions] if op.regions else ()
            copy = op.with_operands([new.get(v, v) for v in op.operands], regions)
            scaled = self.scaled(op, copy, region, new) if op.name == "dot_general" else None
            ops += [copy] if scaled is None else scaled
            new.update(zip(op.results, ops[-1].results, strict=True))
        if not new or all(a is b for a, b in new.items()):
            return region
        results = [new.get(value, value) for value in region.results]
        return prune(Region(region.arguments, ops, results))

    def scaled(self, op: Op, copy: Op, region: Region, new: dict[Value, Value]) -> list[Op] | None:
        """The product of what is not scaled, and the factor behind it."""
        for number, value in enumerate(op.operands):
            views: list[Op] = []
            while value.op is not None and value.op.name in ("reshape", "transpose"):
                if len(region.uses[value]) != 1:
                    break
                views.append(value.op)
                value = value.op.operands[0]
            found = self.factor(value, region)
            if found is None or not self.sums_alike(op, value):
                continue
            plain, factor = new.get(found[0], found[0]), found[1]
            made: list[Op] = []
            for view in reversed(views):
                made.append(
                    Op(
                        view.definition,
                        (plain,),
                        view.attributes,
                        (),
                        view.result_types,
                        view.origin,
                    )
                )
                plain = made[-1].result
            operands = [plain if n == number else v for n, v in enumerate(copy.operands)]
            product = Op(op.definition, operands, op.attributes, (), op.result_types, op.origin)
            spread = Dense.splat(factor, op.type)
            constant = make_op("constant", (), {"value": spread}, origin=op.origin)
            scale = make_op("multiply", (product.result, constant.result), origin=op.origin)
            return [*made, product, constant, scale]
        return None

    def sums_alike(self, product: Op, side: Value) -> bool:
        """Whether the factor means the same behind the product as in front of it."""
        if product.type.element is side.element:
            return True
        return self.in_place and product.type.element is F32 and side.element in (F16, BF16)

    def factor(self, value: Value, region: Region) -> tuple[Value, Any] | None:
        """x and c where the value is c * x, and nothing else needs it."""
        element, narrowed = value.element, False
        op = value.op
        if op is None or len(region.uses[value]) != 1:
            return None
        if self.in_place and op.name == "convert":  # c * x in a wider type, rounded
            narrowed = True
            value, op = op.operands[0], op.operands[0].op
        if op is None or op.name != "multiply" or len(region.uses[value]) != 1:
            return None
        for x, c in (op.operands, op.operands[::-1]):
            dense = constant_of(c)
            if dense is None or not dense.is_splat or not value.element.is_float:
                continue
            if narrowed:
                if x.op is None or x.op.name != "convert":
                    continue
                x = x.op.operands[0]
                if x.element is not element:
                    continue
            if not self.in_place and not _is_slice(x):
                continue
            exact = abs(np.frexp(float(dense.splat_value))[0]) == 0.5
            if exact or self.rounds:
                return x, dense.splat_value
        return None


def _is_slice(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "slice" and all(step == 1 for step in op.strides)

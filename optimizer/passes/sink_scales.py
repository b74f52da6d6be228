"""sink-scales: factors go behind contractions, so that what is read by one is read in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...hlo.build import make_op
from ...hlo.graph import Dense, Module, Op, Region, Value, constant_of
from ...hlo.regions import prune, rename
from ...hlo.types import BF16, F16, F32
from ...hlo.verify import INLINED, Level


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
            while value.op is not None and value.op.definition.views == "once":
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

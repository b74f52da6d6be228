"""externalize: constants too large for the program's own text become weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import make_op
from ...hlo.derivation import constant_weight
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.verify import INLINED, Level
from ...hlo.wire import MAXIMUM_CONSTANT_BYTES
from ..rewrite import copied_region


@dataclass(frozen=True)
class Externalize:
    """INLINED -> INLINED: no constant but a splat has more than `limit` bytes."""

    name: ClassVar[str] = "externalize"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    limit: int = MAXIMUM_CONSTANT_BYTES

    def __call__(self, module: Module) -> Module:
        found: dict[str, Op] = {}
        body = self.region(module.body, found)
        if not found:
            return module
        # the program's own region holds all of them, so that a loop does not
        body = Region(body.arguments, [*found.values(), *body.ops], body.results)
        data = {_name(op): op.attributes["value"] for op in module.body.walk() if self.is_large(op)}
        weights = {name: constant_weight(name, data[name]) for name in found}
        return module.with_main(body).with_weights({**module.weights, **weights})

    def region(self, region: Region, found: dict[str, Op]) -> Region:
        """The region without its large constants; `found` gets a `weight` operation for each."""
        replaced: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in region.ops:
            if self.is_large(op):
                replaced[op.result] = self.weight(op, found).result
                continue
            nested = []
            for inner in op.regions:
                if replaced.keys() & inner.captures():
                    inner = copied_region(inner, replaced)
                nested.append(self.region(inner, found))
            fresh = op.with_operands([replaced.get(v, v) for v in op.operands], nested)
            ops.append(fresh)
            if fresh is not op:
                replaced.update(zip(op.results, fresh.results, strict=True))
        if not replaced:
            return region
        return Region(region.arguments, ops, [replaced.get(v, v) for v in region.results])

    def is_large(self, op: Op) -> bool:
        if op.name != "constant":
            return False
        dense = op.attributes["value"]
        return dense.array.nbytes > self.limit and not dense.is_splat

    def weight(self, op: Op, found: dict[str, Op]) -> Op:
        """A `weight` named after the content, so that equal constants are one."""
        name = _name(op)
        if name not in found:
            types = [op.type]
            found[name] = make_op("weight", [], {"weight": name}, (), types, op.origin)
        return found[name]


def _name(op: Op) -> str:
    dense = op.attributes["value"]  # its digest is of the bytes alone
    return f"constant#{dense.digest.hex()}:{dense.type}"

"""matmul-precision: contractions of f32 read bf16 operands and sum in f32, if the user says so.

The narrowing stands in the program as `convert` operations, so that every reader of the module sees
the same numbers. It stands where a value is made, before the views of it, so that what makes the
value stores the narrow form; a weight becomes a bf16 weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...hlo.build import build_region, make_op
from ...hlo.graph import Dense, Function, Module, Op, Origin, Region, Value, Weight
from ...hlo.interpret import interpret
from ...hlo.types import BF16, F32
from ...hlo.verify import INLINED, Level
from ..regions import CONTROL_BODIES, rename

VIEWS = frozenset({"reshape", "transpose", "broadcast_in_dim", "reverse", "slice"})
CONTRACTIONS = frozenset({"dot_general", "convolution"})


@dataclass(frozen=True)
class MatmulPrecision:
    """INLINED -> INLINED: f32 contractions of more than one product read operands of `precision`.

    Left as they are: operands that are not f32, contractions for which the source asks for the
    highest precision, depthwise convolutions (few products, bound by memory), and sums of a single
    product, such as position times frequency.
    """

    precision: str = "bfloat16"
    name: ClassVar[str] = "matmul-precision"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        if self.precision == "float32":
            return module
        narrower = _Narrower(module)
        body = narrower.region(module.body)
        if not narrower.count:
            return module
        weights = {**module.weights, **narrower.weights}
        kept = f"; {narrower.left} stay in float32" if narrower.left else ""
        return (
            module.with_main(body)
            .with_weights(weights)
            .with_notes(
                f"matmul-precision: {narrower.count} contractions read operands rounded to "
                f"bfloat16 and sum in float32{kept}"
            )
        )


class _Narrower:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.weights: dict[str, Weight] = {}
        self.count = 0
        self.left = 0

    def region(self, region: Region) -> Region:
        """The region, and the bodies of its control flow, with narrow operands."""
        mapping: dict[Value, Value] = {}
        narrow: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in region.ops:
            nested = [rename(body, mapping) for body in op.regions]
            if op.name in CONTROL_BODIES:
                nested = [self.region(body) for body in nested]
            operands = [mapping.get(value, value) for value in op.operands]
            if narrows(op):
                operands = [self.narrow(value, narrow, ops) for value in operands]
                self.count += 1
            elif op.name in CONTRACTIONS and op.type.element is F32:
                self.left += 1
            new = op.with_operands(operands, nested)
            if new is not op:
                mapping.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        if not mapping:
            return region
        return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])

    def narrow(self, value: Value, known: dict[Value, Value], ops: list[Op]) -> Value:
        """The value in bf16; what is needed for it is appended to `ops`."""
        found = known.get(value)
        if found is not None:
            return found
        op = value.op
        if op is not None and op.name in VIEWS:
            inner = self.narrow(op.operands[0], known, ops)
            types = [op.type.with_element(BF16)]
            made = make_op(op.name, [inner], op.attributes, (), types, op.origin)
        elif op is not None and op.name == "convert" and op.operands[0].element is BF16:
            known[value] = op.operands[0]
            return op.operands[0]
        elif op is not None and op.name == "weight":
            made = self.weight(op)
        elif op is not None and op.name == "constant":
            dense = Dense(op.type.with_element(BF16), _rounded(op.type)(op.value.array))
            made = make_op("constant", [], {"value": dense}, origin=op.origin)
        else:
            origin: tuple[Origin, ...] = op.origin if op is not None else ()
            types = [value.tensor.with_element(BF16)]
            made = make_op("convert", [value], {}, (), types, origin)
        ops.append(made)
        known[value] = made.result
        return made.result

    def weight(self, op: Op) -> Op:
        """A `weight` operation for the same weight in bf16."""
        original = self.module.weights[op.weight]
        name = f"{op.weight}#bf16"
        if name not in self.weights:
            rounded = _rounded(original.type)
            type = original.type.with_element(BF16)
            self.weights[name] = Weight(name, lambda: rounded(original.array), type)
        types = [self.weights[name].type]
        return make_op("weight", [], {"weight": name}, (), types, op.origin, check=False)


def _rounded(type: Any) -> Callable[[Any], Any]:
    """The function that rounds an array of that type to bf16, by the meaning of `convert`."""
    body = build_region([type], lambda b, x: [b.convert(x, BF16)])
    return lambda array: interpret(Module({"main": Function("main", body)}), [array])[0]


def narrows(op: Op) -> bool:
    """Whether a contraction gains from narrow operands, and its source allows them."""
    if op.name not in CONTRACTIONS or op.type.element is not F32:
        return False
    if any(value.element is not F32 for value in op.operands):
        return False
    if any("HIGH" in str(entry) for entry in op.attributes.get("precision_config", ())):
        return False
    if op.name == "convolution":
        per_group = op.rhs.dims[op.kernel_input_feature_dimension]
        grouped = op.feature_group_count * op.batch_group_count > 1
        return not (grouped and per_group <= 2) and op.rhs.tensor.size > 1
    return math.prod(op.lhs.dims[d] for d in op.lhs_contracting_dimensions) > 1

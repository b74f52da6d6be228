"""matmul-precision: contractions of f32 read rounded operands and sum in f32, if the user says so.

bfloat16 stands in the program as `convert` operations, so that every reader of the module sees
the same numbers. It stands where a value is made, before the views of it, so that what makes the
value stores the narrow form; a weight becomes a bf16 weight. tensorfloat32 is no type of a value:
contractions get attributes (hlo/precision.py), which targets without such products ignore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...hlo.build import build_region, make_op
from ...hlo.derivation import derived
from ...hlo.graph import Dense, Function, Module, Op, Origin, Region, Value, Weight, constant_of
from ...hlo.interpret import interpret
from ...hlo.ops.bodies import monoid
from ...hlo.precision import algorithm, is_f32, with_tf32
from ...hlo.regions import rename
from ...hlo.types import BF16, TensorType
from ...hlo.verify import INLINED, Level

BFLOAT16, TENSORFLOAT32 = "bfloat16", "tensorfloat32"


@dataclass(frozen=True)
class MatmulPrecision:
    """INLINED -> INLINED: f32 contractions of more than one product read operands of `precision`.

    Left as they are: operands that are not f32, contractions for which the source asks for more,
    depthwise convolutions (few products, bound by memory), and sums of a single product, such as
    position times frequency. Products whose dot algorithm asks for bf16 operands get them whatever
    `precision` is.
    """

    precision: str = BFLOAT16
    name: ClassVar[str] = "matmul-precision"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        narrower = _Narrower(module, self.precision)
        body = narrower.region(module.body)
        if body is module.body:
            return module
        module = module.with_main(body).with_weights({**module.weights, **narrower.weights})
        if not narrower.count:
            return module
        kept = f"; {narrower.left} stay in float32" if narrower.left else ""
        reads = "read operands rounded to bfloat16"
        if self.precision == TENSORFLOAT32:
            reads = "may read operands rounded to tensorfloat32 where the target multiplies it"
            kept += "; other targets read float32"
        return module.with_notes(
            f"matmul-precision: {narrower.count} contractions {reads} and sum in float32{kept}"
        )


class _Narrower:
    """`count`: contractions that `precision` changed; `left`: those that it did not."""

    def __init__(self, module: Module, precision: str) -> None:
        self.module, self.precision = module, precision
        self.weights: dict[str, Weight] = {}
        self.uses: dict[Value, Sequence[tuple[Op | None, int]]] = {}  # before anything is changed
        self.count = 0
        self.left = 0

    def region(self, region: Region) -> Region:
        """The region, and the bodies of its control flow, with narrow operands."""
        mapping: dict[Value, Value] = {}
        narrow: dict[Value, Value] = {}
        self.uses.update(region.uses)
        ops: list[Op] = []
        for op in region.ops:
            nested = [rename(body, mapping) for body in op.regions]
            if op.definition.flow:
                nested = [self.region(body) for body in nested]
            operands = [mapping.get(value, value) for value in op.operands]
            wanted = self.wanted(op)
            if wanted == BFLOAT16:
                operands = [self.narrow(value, narrow, ops) for value in operands]
            new = op.with_operands(operands, nested)
            if wanted == TENSORFLOAT32:
                new = Op(op.definition, operands, with_tf32(op), nested, op.result_types, op.origin)
            if new is not op:
                mapping.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        if not mapping:
            return region
        return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])

    def wanted(self, op: Op) -> str:
        """What the operands of a contraction are rounded to; "" where they are not."""
        found = self.precision_of(op)
        if is_f32(op) and algorithm(op) != ("bf16", 1):
            self.count += bool(found)
            self.left += not found
        return found

    def precision_of(self, op: Op) -> str:
        """The same, of any operation; nothing is counted."""
        if not is_f32(op):
            return ""
        if algorithm(op) == ("bf16", 1):
            return BFLOAT16
        if self.precision in (BFLOAT16, TENSORFLOAT32) and narrows(op, self.precision):
            return self.precision
        return ""

    def narrow(self, value: Value, known: dict[Value, Value], ops: list[Op]) -> Value:
        """The value in bf16; what is needed for it is appended to `ops`."""
        found = known.get(value)
        if found is not None:
            return found
        op = value.op
        if op is not None and op.definition.moves in ("whole", "part"):
            inner = self.narrow(op.operands[0], known, ops)
            types = [op.type.with_element(BF16)]
            made = make_op(op.name, [inner], op.attributes, (), types, op.origin)
        elif op is not None and self.selects(op):
            inner = self.narrow(op.operands[0], known, ops)
            start = self.narrow(op.operands[1], known, ops)
            name = str(monoid(op.regions[0]))
            body = build_region([start.type] * 2, lambda b, x, y: [b(name, x, y)])
            types = [op.type.with_element(BF16)]
            made = make_op(op.name, [inner, start], op.attributes, (body,), types, op.origin)
        elif op is not None and op.name == "convert" and op.operands[0].element is BF16:
            known[value] = op.operands[0]
            return op.operands[0]
        elif op is not None and op.name == "weight":
            made = self.weight(op)
        elif op is not None and op.name == "constant":
            dense = Dense(op.type.with_element(BF16), _rounded(op.value))
            made = make_op("constant", [], {"value": dense}, origin=op.origin)
        else:
            origin: tuple[Origin, ...] = op.origin if op is not None else ()
            types = [value.tensor.with_element(BF16)]
            made = make_op("convert", [value], {}, (), types, origin)
        ops.append(made)
        known[value] = made.result
        return made.result

    def selects(self, op: Op) -> bool:
        """Whether an operation takes the largest or smallest elements of windows, for contractions
        alone: that of rounded elements is the rounded one, and its windows are half as large."""
        if op.name != "reduce_window" or len(op.operands) != 2:
            return False
        if monoid(op.regions[0]) not in ("maximum", "minimum"):
            return False
        start = constant_of(op.operands[1])
        users = [user for user, _ in self.uses.get(op.result, ())]
        return start is not None and all(
            user is not None and self.precision_of(user) == BFLOAT16 for user in users
        )

    def weight(self, op: Op) -> Op:
        """A `weight` operation for the same weight in bf16."""
        original = self.module.weights[op.weight]
        name = f"{op.weight}#bf16"
        if name not in self.weights:
            self.weights[name] = derived(name, [original], _rounding(original.type))
        types = [self.weights[name].type]
        return make_op("weight", [], {"weight": name}, (), types, op.origin, check=False)


def _rounding(type: TensorType) -> Region:
    """The function that rounds a value of that type to bf16, by the meaning of `convert`."""
    return build_region([type], lambda b, x: [b.convert(x, BF16)])


def _rounded(dense: Dense) -> Any:
    """The elements of a constant in bf16."""
    return interpret(Module({"main": Function("main", _rounding(dense.type))}), [dense.array])[0]


def narrows(op: Op, precision: str = BFLOAT16) -> bool:
    """Whether a contraction gains from narrow operands, and its source allows them."""
    if not is_f32(op) or algorithm(op) is not None:
        return False
    # "HIGH" is tensorfloat32 where there is that.
    high = ("HIGHEST",) if precision == TENSORFLOAT32 else ("HIGH", "HIGHEST")
    if any(entry in high for entry in op.attributes.get("precision_config", ())):
        return False
    if op.name == "convolution":
        per_group = op.rhs.dims[op.kernel_input_feature_dimension]
        grouped = op.feature_group_count * op.batch_group_count > 1
        return not (grouped and per_group <= 2) and op.rhs.tensor.size > 1
    return math.prod(op.lhs.dims[d] for d in op.lhs_contracting_dimensions) > 1

"""activation-precision: what layers hand to each other is stored in bfloat16, if the user says so.

As in mixed precision elsewhere, the result of a product with weights, and what elementwise
operations make of it, is rounded where it goes to memory; inside of a kernel it stays in float32.
Which values these are is known once operations are kernels. The conversions stand in the kernels'
regions, so that the interpreter says the same of the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import make_op
from ...hlo.graph import Module, Op, Region, Value, arguments
from ...hlo.regions import map_bodies, prune, rename
from ...hlo.types import BF16, F32
from ...hlo.verify import FUSED, Level


@dataclass(frozen=True)
class ActivationPrecision:
    """FUSED -> FUSED: float32 results of kernels that are activations become bfloat16.

    Activations are results of products with a weight, and results of kernels that read one and
    have its dims: sums and statistics are none. What the program returns, what loops carry and what
    anything but a fusion reads stays as it is.
    """

    name: ClassVar[str] = "activation-precision"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        found: list[Value] = []

        def rounded(region: Region) -> Region:
            inner = map_bodies(region, lambda op, body: rounded(body))
            rounder = _Rounder(inner)
            result = rounder.run()
            found.extend(rounder.stored)
            return result

        changed = module.with_bodies(rounded)
        if not found:
            return module
        return changed.with_notes(
            f"activation-precision: {len(found)} values that kernels hand to each other are"
            " stored in bfloat16"
        )


class _Rounder:
    """`stored`: values that were float32, and what holds them in bfloat16 now."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.stored: dict[Value, Value] = {}
        self.renamed: dict[Value, Value] = {}
        self.activations: set[Value] = set()

    def run(self) -> Region:
        ops = [self.changed(op) for op in self.region.ops]
        if not self.stored:
            return self.region
        results = [self.renamed.get(v, v) for v in self.region.results]
        return prune(Region(self.region.arguments, ops, results))

    def changed(self, op: Op) -> Op:
        if op.name == "reshape" and op.operands[0] in self.stored:
            kind = op.type.with_element(BF16)
            new = make_op("reshape", [self.stored[op.operands[0]]], {}, (), [kind], op.origin)
            self.stored[op.result] = new.result
            return new
        self.activations.update(value for value in op.results if self.is_activation(op, value))
        inputs = [value in self.stored for value in op.operands]
        outputs = [value in self.activations and self.may_round(value) for value in op.results]
        if op.name == "fusion" and (any(inputs) or any(outputs)):
            body, places = _rounded_body(op.regions[0], inputs, outputs)
            operands = [self.stored.get(v, self.renamed.get(v, v)) for v in op.operands]
            new = make_op("fusion", operands, op.attributes, (body,), body.result_types, op.origin)
            for value, place, rounds in zip(op.results, places, outputs, strict=True):
                (self.stored if rounds else self.renamed)[value] = new.results[place]
            return new
        bodies = [rename(body, self.renamed) for body in op.regions]
        new = op.with_operands([self.renamed.get(v, v) for v in op.operands], bodies)
        if new is not op:
            self.renamed.update(zip(op.results, new.results, strict=True))
        return new

    def is_activation(self, op: Op, value: Value) -> bool:
        if op.name == "reshape":
            return op.operands[0] in self.activations
        if op.name != "fusion" or value.element is not F32:
            return False
        if any(v in self.activations and v.dims == value.dims for v in op.operands):
            return True
        return op.kind == "contract" and any(_is_weight(v) for v in op.operands)

    def may_round(self, value: Value) -> bool:
        """Whether fusions alone read it, through reshapes as well."""
        users = [user for user, _ in self.region.uses.get(value, ())]
        return bool(users) and all(
            user is not None
            and (user.name == "fusion" or user.name == "reshape" and self.may_round(user.result))
            for user in users
        )


def _is_weight(value: Value) -> bool:
    """Whether it is a matrix of the program's, however it is viewed."""
    op = value.op
    while op is not None and (op.definition.moves == "whole" or op.name == "convert"):
        op = op.operands[0].op
    return op is not None and not op.operands and value.tensor.rank > 1


def _rounded_body(
    body: Region, inputs: Sequence[bool], outputs: Sequence[bool]
) -> tuple[Region, list[int]]:
    """The region that reads and gives bfloat16 where that is said, and the number that each result
    has now: what a region gave in both types it gives once."""
    own = arguments([
        value.tensor.with_element(BF16) if narrow else value.type
        for value, narrow in zip(body.arguments, inputs, strict=True)
    ])  # fmt: skip
    ops: list[Op] = []
    new: dict[Value, Value] = dict(zip(body.arguments, own, strict=True))
    narrow: dict[Value, Value] = {}  # a float32 of `body` -> its bfloat16
    for value, is_narrow in zip(body.arguments, inputs, strict=True):
        if is_narrow:
            narrow[value] = new[value]
            ops.append(make_op("convert", [new[value]], {}, (), [value.type]))
            new[value] = ops[-1].result
    for op in body.ops:
        rounds = op.name == "convert" and op.type.element is BF16
        if rounds and op.operands[0] in narrow:
            new[op.result] = narrow[op.operands[0]]
            continue
        bodies = [rename(inner, new) for inner in op.regions]
        copy = op.with_operands([new.get(v, v) for v in op.operands], bodies)
        new.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)
        if rounds:
            narrow[op.operands[0]] = copy.result
    results: dict[Value, int] = {}
    places = []
    for value, rounds in zip(body.results, outputs, strict=True):
        if rounds and value not in narrow:
            kind = value.tensor.with_element(BF16)
            origin = value.op.origin if value.op is not None else ()
            ops.append(make_op("convert", [new[value]], {}, (), [kind], origin))
            narrow[value] = ops[-1].result
        given = narrow[value] if rounds else new.get(value, value)
        places.append(results.setdefault(given, len(results)))
    return prune(Region(own, ops, [*results])), places

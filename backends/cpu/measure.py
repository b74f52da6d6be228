"""The choices of a compilation for a CPU that a tuning or a measurement decides.

A kernel is timed alone: as a program that has nothing else, on this machine, by the clock that the
tuner brings. Its operands are near, since they were just read; weights lie as they will lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields

import numpy as np

from ...hlo.build import make_op
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Function, Module, Op, Region, Value, Weight, arguments
from ...hlo.text import canonical_op
from ...optimizer.cuts.products import Blocking, ProductShape
from ...optimizer.passes.encode import Encode, Packing
from ...optimizer.plan import headline, kernel_ops
from ...optimizer.schedule import RunStep, Schedule, schedule
from ...optimizer.tuning import Choice, Ready, Tuner, Variant, digest_of
from . import contract
from .build import build
from .codegen import Target
from .kernels import is_contraction
from .machines import cuts_of

_FEWEST = 2  # variants that make a choice
_MOST = 1 << 62  # of a count in a blocking
_PACKED = frozenset({"pack_left", "pack_right"})


class CpuChoices:
    """Implements `tuning.Choices`; `blockings` is what `build` needs of it."""

    def __init__(
        self, tuner: Tuner, target: Target, packing: Callable[[Op], Packing | None] | None
    ) -> None:
        self.tuner, self.target, self.packing = tuner, target, packing
        self.blockings: dict[str, Blocking] = {}
        self._place = f"{target.triple} {' '.join(target.features)} {target.vector_bits}"

    def tiling(self, text: str, variants: Sequence[tuple[Variant, Op]]) -> Op:
        """One of the tile functions of a group; the first where nothing is known."""
        if len(variants) < _FEWEST:
            return variants[0][1]
        choices = [variant.choice for variant, _ in variants]

        def op_of(choice: Choice) -> Op:
            return variants[choices.index(choice)][1]

        choice = self.tuner.choose(
            digest_of(text, self._place),
            f"tile function {headline(kernel_ops(variants[0][1])[1:])}",
            [variant for variant, _ in variants],
            lambda choice: choice in choices,
            lambda choice: self._ready(op_of(choice), self.packing, {}),
        )
        return variants[0][1] if choice is None else op_of(choice)

    def kernels(self, schedule: Schedule) -> None:
        """A blocking for each product; those that take the most time first."""
        cuts, products = cuts_of(self.target), []
        for op in {
            canonical_op(s.op): s.op for s in schedule.steps if isinstance(s, RunStep)
        }.values():
            if not is_contraction(op):
                continue
            try:
                shape = contract.shape_of(op, self.target)
            except UnsupportedError:
                continue  # `build` lists all of them
            if shape is not None and shape.rows and shape.columns and shape.depth and shape.outer:
                found = cuts.best_of_product(shape, max(_FEWEST, self.tuner.measure))
                products.append((op, shape, found))
        for op, shape, found in sorted(products, key=lambda product: -product[2][0][1]):
            if len(found) >= _FEWEST:
                self._product(op, shape, found)

    def _product(
        self, op: Op, shape: ProductShape, found: Sequence[tuple[Blocking, float]]
    ) -> None:
        text = canonical_op(op)
        cuts = cuts_of(self.target)

        def is_legal(choice: Choice) -> bool:
            cut = _blocking(choice)
            return cut is not None and cuts.allow(shape, cut)

        def ready(choice: Choice) -> Ready:
            cut = _blocking(choice)
            return self._ready(op, None, {} if cut is None else {text: cut})

        choice = self.tuner.choose(
            digest_of(text, self._place),
            f"{headline(kernel_ops(op))} {shape.outer}x{shape.rows}x{shape.columns}x{shape.depth}",
            [Variant(asdict(cut), time) for cut, time in found],
            is_legal,
            ready,
        )
        cut = None if choice is None else _blocking(choice)
        if cut is not None:
            self.blockings[text] = cut

    def _ready(
        self,
        op: Op,
        packing: Callable[[Op], Packing | None] | None,
        blockings: Mapping[str, Blocking],
    ) -> Ready:
        module = _alone(op)
        if packing is not None:
            module = Encode(packing)(module)
        steps = schedule(module)
        (plan,), image = build([(steps, ())], self.target, blockings=blockings)
        weights = {name: np.ascontiguousarray(module.weights[name].array) for name in steps.weights}
        constants = {name: dense.array for name, dense in steps.constants.items()}
        return Ready(plan, image, {**constants, **weights})


def _alone(op: Op) -> Module:
    """A program of this operation only; its weights are full of ones."""
    values: dict[Value, Value] = {}
    weights: dict[str, Weight] = {}
    ops: list[Op] = []
    for operand in op.operands:
        if operand in values or operand.op is None or operand.op.name != "weight":
            continue
        name = f"weight{len(weights)}"
        type = operand.tensor
        weights[name] = Weight(name, np.ones(type.dims, type.dtype))
        ops.append(make_op("weight", [], {"weight": name}, result_types=[type]))
        values[operand] = ops[-1].result
    others = [operand for operand in dict.fromkeys(op.operands) if operand not in values]
    own = arguments([operand.type for operand in others])
    values.update(zip(others, own, strict=True))
    copy = op.with_operands([values[operand] for operand in op.operands])
    main = Function("main", Region(own, (*ops, copy), copy.results))
    return Module({"main": main}, weights=weights)


def _blocking(choice: Choice) -> Blocking | None:
    """The blocking that a choice names; None if it is none."""
    if set(choice) != {field.name for field in fields(Blocking)}:
        return None
    for name, value in choice.items():
        if type(value) is not (bool if name in _PACKED else int) or not 0 <= value < _MOST:
            return None
    return Blocking(**choice)

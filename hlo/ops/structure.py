"""Operations that hold a program together: constants, weights, calls, fusions, control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph import Dense, Op
from ..room import OpDefinition, attribute, constraint, variadic
from ..types import Type


class Constant(OpDefinition, name="constant"):
    """result = value."""

    pattern = "source"
    value = attribute(Dense)

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.attributes["value"].type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return o.attributes["value"].array


class WeightOp(OpDefinition, name="weight"):
    """result = the module's external weight of that name."""

    pattern = "source"
    weight = attribute(str)

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return context["module"].weights[o.attributes["weight"]].array


class Call(OpDefinition, name="call"):
    """results = the named function of the inputs."""

    pattern = "control"
    inputs = variadic()
    callee = attribute(str)

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        function = context["module"].functions[o.callee]
        return tuple(context["run"](function.body, arrays))


class Fusion(OpDefinition, name="fusion"):
    """results = its region of the inputs; `kind` says how the parts were put together."""

    pattern = "control"
    isolated = True
    regions = ("body",)
    inputs = variadic()
    kind = attribute(str)
    C1 = constraint(
        "inputs have the types of the region's arguments",
        lambda o: tuple(v.type for v in o.operands) == o.regions[0].argument_types,
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return o.regions[0].result_types

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(context["run"](o.regions[0], arrays))

    def flops(self, o: Op) -> float:
        return sum(inner.definition.flops(inner) for inner in o.regions[0].ops)


ROOMS = (Constant(), WeightOp(), Call(), Fusion())

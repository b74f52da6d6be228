"""Operations that hold a program together: constants, weights, calls, fusions, control flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, Space
from ..graph import Dense, Op, Region
from ..room import BuildRegion, Case, OpDefinition, attribute, constraint, variadic
from ..types import BF16, F32, TensorType, Type
from .examples import counting, f32, i1, i32


class Constant(OpDefinition, name="constant"):
    """result = value."""

    pattern = "source"
    known = True
    stored = True
    value = attribute(Dense)

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.attributes["value"].type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return o.attributes["value"].array

    def access(self, o: Op) -> Access | None:
        return Space(o.type.dims).access()

    def cases(self) -> Iterator[Case]:
        for value in (f32([[1, -0.0], [np.nan, np.inf]]), i32(7), i1([True, False])):
            yield Case(f"constant_{value.dtype}", (), {"value": Dense.of(value)})
        splat = Dense.splat(2, TensorType((2, 3), BF16))
        yield Case("constant_splat", (), {"value": splat})


class WeightOp(OpDefinition, name="weight"):
    """result = the module's external weight of that name."""

    pattern = "source"
    stored = True
    weight = attribute(str)

    def access(self, o: Op) -> Access | None:
        return Space(o.type.dims).access()

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return context["module"].weights[o.attributes["weight"]].array


class Call(OpDefinition, name="call"):
    """results = the named function of the inputs."""

    pattern = "control"
    opaque = "its function says what it reads"
    uncut = "its values pass along edges between it and its function"
    inputs = variadic()
    callee = attribute(str)

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        function = context["module"].functions[o.callee]
        return tuple(context["run"](function.body, arrays))


class CallWithWeights(Call, name="call_with_weights"):
    """results = the named function of the inputs and of other weights: `weights` pairs names in the
    function with names here. Stands only between two passes (optimizer/passes/reroll.py)."""

    since = "1.4"
    weights = attribute(tuple)


class Fusion(OpDefinition, name="fusion"):
    """results = its region of the inputs; `kind` says how the parts were put together."""

    pattern = "control"
    opaque = "the operations inside say what they read"
    uncut = "programs are cut before operations are fused"
    isolated = True
    sealed = True
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

    def cases(self) -> Iterator[Case]:
        def regions(build: BuildRegion) -> tuple[Region, ...]:
            kind = TensorType((2, 3), F32)
            body = build([kind, kind], lambda b, x, y: [b("add", b("multiply", x, y), x)])
            return (body,)

        inputs = (counting(2, 3), counting(2, 3) - 2)
        yield Case("fusion_loop", inputs, {"kind": "loop"}, regions=regions)


ROOMS = (Constant(), WeightOp(), Call(), CallWithWeights(), Fusion())

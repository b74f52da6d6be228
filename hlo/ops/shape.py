"""Operations that move elements without computing: reshape, transpose, concatenate, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import OpDefinition, attribute, constraint, operand, variadic
from ..types import Type


class Concatenate(OpDefinition, name="concatenate"):
    """result = the inputs, one after the other along `dimension`."""

    pattern = "index"
    inputs = variadic()
    dimension = attribute(int)
    C2 = constraint(
        "inputs must agree outside dimension",
        lambda o: len({_without(v.dims, o.dimension) for v in o.inputs}) == 1,
    )
    C3 = constraint("0 < size(inputs)", lambda o: len(o.inputs) > 0)
    C4 = constraint(
        "0 <= dimension < rank(inputs[0])", lambda o: 0 <= o.dimension < o.inputs[0].rank
    )

    def infer(self, o: Op) -> Sequence[Type]:
        first = o.inputs[0]
        dims = list(first.dims)
        dims[o.dimension] = sum(v.dims[o.dimension] for v in o.inputs)
        return [first.tensor.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.concatenate(arrays, o.dimension)


def _without(dims: tuple[Any, ...], dimension: int) -> tuple[Any, ...]:
    return dims[:dimension] + dims[dimension + 1 :]


class Transpose(OpDefinition, name="transpose"):
    """result[i_permutation] = operand[i]: result dim d is operand dim permutation[d]."""

    pattern = "index"
    operand = operand()
    permutation = attribute(tuple)
    C2 = constraint(
        "permutation is a permutation of range(rank(operand))",
        lambda o: sorted(o.permutation) == list(range(o.operand.rank)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_dims([o.operand.dims[d] for d in o.permutation])]

    def evaluate(self, o: Op, array: Any, **context: Any) -> Any:
        return np.transpose(array, o.permutation)


ROOMS = (Concatenate(), Transpose())

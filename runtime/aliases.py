"""Results of a plan that are not computed into an output buffer of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Argument
from ..specs.generated import plan_pb2

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Aliases:
    """Results that are, or may be, a donated argument's memory, or copies made after the run."""

    donated: Sequence[tuple[int, int]]  # (result, argument): what older plans compute in place
    replacing: Sequence[tuple[int, int]]  # (result, argument): in its memory, if that is given up
    copied: Sequence[tuple[int, str, Any]]  # (result, kind, index or array)

    def fill(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write the results that are copies."""
        for result, kind, source in self.copied:
            values = {"output": outputs, "input": inputs}.get(kind)
            array = source if values is None else values[source]
            outputs[result][...] = like(array, outputs[result])


def find_aliases(
    plan: plan_pb2.Plan, arguments: Sequence[Argument], weights: Mapping[str, Array]
) -> Aliases:
    """Results that the plan does not compute into an output buffer of their own."""
    donated: list[tuple[int, int]] = []
    replacing: list[tuple[int, int]] = []
    copied: list[tuple[int, str, Any]] = []
    for result, index in enumerate(plan.outputs):
        buffer = plan.buffers[index]
        if buffer.place == plan_pb2.OUTPUT and buffer.index != result:
            copied.append((result, "output", buffer.index))
        elif buffer.HasField("replaces"):
            number = buffer.replaces
            if number >= len(arguments) or plan.buffers[plan.inputs[number]].bytes != buffer.bytes:
                raise UserError(
                    f"the plan is malformed: result {result} replaces no argument of its size; "
                    "compile the program again"
                )
            if arguments[number].donated:
                replacing.append((result, number))
        elif buffer.place == plan_pb2.INPUT and arguments[buffer.index].donated:
            donated.append((result, buffer.index))
        elif buffer.place == plan_pb2.INPUT:
            copied.append((result, "input", buffer.index))
        elif buffer.place == plan_pb2.WEIGHT:
            copied.append((result, "weight", _weight(weights, buffer)))
        elif buffer.place != plan_pb2.OUTPUT:
            raise UserError(f"the plan leaves result {result} in the arena; compile it again")
    return Aliases(donated, replacing, copied)


def like(array: Array, model: Array) -> Array:
    """The array's bytes with the type and shape of `model`, which has as many."""
    if array.dtype == model.dtype and array.shape == model.shape:
        return array
    return array.reshape(-1).view(model.dtype).reshape(model.shape)


def _weight(weights: Mapping[str, Array], buffer: plan_pb2.Buffer) -> Array:
    """The weight that a buffer names."""
    array = weights.get(buffer.weight)
    if array is None or array.nbytes != buffer.bytes:
        raise UserError(f"the plan names a weight {buffer.weight!r} that is not there")
    return array

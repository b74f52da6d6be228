"""The reference interpreter: runs a module by calling each room's `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import CompilerBug, UserError
from .graph import Module, Op, Region, Value
from .types import TensorType

Environment = dict[Value, Any]


def interpret(module: Module, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The results of the entry function on numpy inputs (flat, in argument order).

    Shapes and dtypes must be the arguments' own; UserError otherwise.
    """
    body = module.body
    if len(inputs) != len(body.arguments):
        raise UserError(f"the program takes {len(body.arguments)} inputs, got {len(inputs)}")
    arrays = [
        _checked(index, value, argument.type)
        for index, (value, argument) in enumerate(zip(inputs, body.arguments, strict=True))
    ]
    return [np.asarray(result) for result in Interpreter(module).run(body, arrays)]


def _checked(index: int, value: Any, type: Any) -> Any:
    if not isinstance(type, TensorType):
        return value
    array = np.asarray(value)
    fits = array.ndim == type.rank and all(
        size == wanted for size, wanted in zip(array.shape, type.dims) if isinstance(wanted, int)
    )
    if not fits or array.dtype != type.dtype:
        raise UserError(f"input {index} must be {type}, got {array.dtype}{list(array.shape)}")
    return array


class Interpreter:
    """Runs regions of one module; `run` is what rooms with regions call back."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(
        self, region: Region, inputs: Sequence[Any], outer: Mapping[Value, Any] | None = None
    ) -> list[Any]:
        """The region's results; `outer` holds values of enclosing regions."""
        values: Environment = dict(outer or {})
        if len(inputs) != len(region.arguments):
            raise CompilerBug(f"a region takes {len(region.arguments)} inputs, got {len(inputs)}")
        values.update(zip(region.arguments, inputs, strict=True))
        for op in region.ops:
            results = self.evaluate(op, [values[operand] for operand in op.operands], values)
            values.update(zip(op.results, results, strict=True))
        return [values[result] for result in region.results]

    def evaluate(self, op: Op, arrays: Sequence[Any], values: Environment) -> Sequence[Any]:
        """The results of one operation on arrays, always a sequence."""
        definition = op.definition
        if op.regions or definition.pattern in ("control", "source"):
            outer = None if definition.isolated or op.name == "call" else values

            def run(region: Region, inputs: Sequence[Any]) -> list[Any]:
                return self.run(region, inputs, outer)

            results = definition.evaluate(op, *arrays, run=run, module=self.module)
        else:
            results = definition.evaluate(op, *arrays)
        return results if isinstance(results, (tuple, list)) else (results,)

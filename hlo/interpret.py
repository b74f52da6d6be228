"""The reference interpreter: runs a module by calling each room's `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import CompilerBug, UnsupportedError, UserError
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
    results = Interpreter(module).run(body, arrays)
    return [np.asarray(leaf) for result in results for leaf in _leaves(result)]


def _checked(index: int, value: Any, type: Any) -> Any:
    if not isinstance(type, TensorType):
        return value
    array = np.asarray(value)
    fits = array.ndim == type.rank and all(
        size == wanted
        for size, wanted in zip(array.shape, type.dims, strict=True)
        if isinstance(wanted, int)
    )
    if not fits or array.dtype != type.dtype:
        raise UserError(f"input {index} must be {type}, got {array.dtype}{list(array.shape)}")
    return array


def _leaves(result: Any) -> Iterator[Any]:
    """The arrays of a result: of a tuple those of its members, of a token none."""
    if isinstance(result, tuple):
        for member in result:
            yield from _leaves(member)
    elif result is not None:
        yield result


def _refuse_quantized(op: Op) -> None:
    """Raise UnsupportedError where stored integers would be taken for real numbers."""
    if op.definition.pattern in ("reduce", "opaque"):
        for value in (*op.operands, *op.results):
            if isinstance(value.type, TensorType) and value.element.kind == "quantized":
                place = f"{op.origin[0]}: " if op.origin else ""
                raise UnsupportedError(f"{place}'{op.name}' is not supported on {value.type}")


class _Lifetimes(NamedTuple):
    """What a region takes from outside, and which values each of its operations uses last."""

    captures: tuple[Value, ...]
    last: tuple[tuple[Value, ...], ...]


class Interpreter:
    """Runs regions of one module; `run` is what rooms with regions call back."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._lifetimes: dict[Region, _Lifetimes] = {}

    def run(
        self, region: Region, inputs: Sequence[Any], outer: Mapping[Value, Any] | None = None
    ) -> list[Any]:
        """The region's results; `outer` holds values of enclosing regions."""
        if len(inputs) != len(region.arguments):
            raise CompilerBug(f"a region takes {len(region.arguments)} inputs, got {len(inputs)}")
        lifetimes = self._of(region)
        values: Environment = {}
        if outer:
            values.update((value, outer[value]) for value in lifetimes.captures)
        values.update(zip(region.arguments, inputs, strict=True))
        for op, last in zip(region.ops, lifetimes.last, strict=True):
            results = self.evaluate(op, [values[operand] for operand in op.operands], values)
            values.update(zip(op.results, results, strict=True))
            for value in last:
                del values[value]
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

    def _of(self, region: Region) -> _Lifetimes:
        """Computed once per region; bodies of loops and reductions run many times."""
        found = self._lifetimes.get(region)
        if found is None:
            kept = set(region.results)
            last: list[tuple[Value, ...]] = []
            for op in reversed(region.ops):
                _refuse_quantized(op)
                used = dict.fromkeys(
                    [*op.operands, *op.results]
                    + [value for inner in op.regions for value in self._of(inner).captures]
                )
                last.append(tuple(value for value in used if value not in kept))
                kept.update(used)
            found = _Lifetimes(tuple(region.captures()), tuple(reversed(last)))
            self._lifetimes[region] = found
        return found

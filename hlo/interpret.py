"""The reference interpreter: runs a module by calling each room's `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import CompilerBug, UnsupportedError, UserError
from .expansion import expansion
from .graph import Function, Module, Op, Region, Value
from .ops.decomposed import Decomposed
from .processes import Grid, Process, refuse_several
from .quantized import legalized
from .sizes import SizeSolver
from .specialize import specialized
from .tiling import Counts, run_tiles
from .types import FutureType, TensorType
from .verify import verify

Environment = dict[Value, Any]
Watch = Callable[[Op, Sequence[Any]], Sequence[Any] | None]


def interpret(module: Module, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The results of the entry function on numpy inputs (flat, in argument order), cut to the sizes
    that data decide.

    Shapes and dtypes must be the arguments' own; UserError otherwise. Quantised values are taken
    and given as their stored integers. A program of several devices is UserError, unless it is
    one over global inputs, whose manual computations say how they are divided.
    """
    refuse_several(module)
    return flat_results(Interpreter(prepared(module)), inputs)


def prepared(module: Module) -> Module:
    """The module as the interpreter runs it: quantised operations on their stored integers."""
    return legalized(module)


def flat_results(interpreter: Interpreter, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The flat results of the entry function; UserError where the inputs do not fit."""
    body = interpreter.module.body
    if len(inputs) != len(body.arguments):
        raise UserError(f"the program takes {len(body.arguments)} inputs, got {len(inputs)}")
    arrays = [
        _checked(index, value, argument.type)
        for index, (value, argument) in enumerate(zip(inputs, body.arguments, strict=True))
    ]
    interpreter = interpreter.at(_sizes(interpreter.module, arrays))
    results = interpreter.run(interpreter.module.body, arrays)
    found = [np.asarray(leaf) for result in results for leaf in _leaves(result)]
    found = found[: len(found) - interpreter.module.logged]
    signature = interpreter.module.signature
    return found if signature is None or not signature.measured else signature.settled(found)


def _checked(index: int, value: Any, type: Any) -> Any:
    if isinstance(type, FutureType):
        raise UserError(f"input {index} is a {type}, which only a running program has")
    if not isinstance(type, TensorType):
        return value
    array = np.asarray(value)
    if not _same_dims(array.shape, type.dims) or array.dtype != type.dtype:
        raise UserError(f"input {index} must be {type}, got {array.dtype}{list(array.shape)}")
    return array


def _sizes(module: Module, arrays: Sequence[Any]) -> dict[str, int]:
    """What symbols stand for; UserError where inputs disagree, or one is out of its range."""
    tensors = [
        (f"input {index}", argument.dims if isinstance(argument.type, TensorType) else ())
        for index, argument in enumerate(module.body.arguments)
    ]
    solver = SizeSolver(tensors, module.symbols, module.constraints)
    return solver.solve([np.shape(array) for array in arrays])


def _same_dims(shape: Sequence[int], dims: Sequence[Any]) -> bool:
    """Whether an array of that shape may have those dimensions, symbolic ones among them."""
    return len(shape) == len(dims) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, dims, strict=True)
    )


def _leaves(result: Any) -> Iterator[Any]:
    """The arrays of a result: of a tuple those of its members, of a token none."""
    if isinstance(result, tuple):
        for member in result:
            yield from _leaves(member)
    elif result is not None:
        yield result


def _require_stored(op: Op) -> None:
    """CompilerBug where integers would be taken for the real numbers that they stand for."""
    if any(isinstance(v.type, TensorType) and v.element.kind == "quantized" for v in op.results):
        raise CompilerBug(f"'{op.name}' is evaluated on quantised values: legalise them first")


def _evaluated(op: Op, arrays: Sequence[Any], **context: Any) -> Any:
    """`evaluate`; UserError for values that the operation has no meaning for, such as a shape that
    is computed and does not fit."""
    try:
        return op.definition.evaluate(op, *arrays, **context)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise UserError(
            f"{op.place}{op.name} cannot be computed on these values: {error}"
        ) from error


class _Lifetimes(NamedTuple):
    """What a region takes from outside, and which values each of its operations uses last."""

    captures: tuple[Value, ...]
    last: tuple[tuple[Value, ...], ...]


class Interpreter:
    """Runs regions of one module; `run` is what rooms with regions call back.

    `process` is where it runs: by default the only process of its grid. `watch` is asked before
    each operation, and may give its results.
    """

    def __init__(
        self, module: Module, process: Process | None = None, watch: Watch | None = None
    ) -> None:
        self.module, self.watch = module, watch
        self.process = process or Grid(1, 1).processes[0]
        self._lifetimes: dict[Region, _Lifetimes] = {}

    def with_weights(self, pairs: Sequence[tuple[str, str]]) -> Interpreter:
        """The same program, in which the first name of each pair means the second one's weight."""
        weights = self.module.weights
        renamed = {inside: weights[here] for inside, here in pairs}
        other = Interpreter(
            self.module.with_weights({**weights, **renamed}), self.process, self.watch
        )
        other._lifetimes = self._lifetimes
        return other

    def on(self, process: Process) -> Interpreter:
        """The same program on another process."""
        other = Interpreter(self.module, process, self.watch)
        other._lifetimes = self._lifetimes  # only one process runs at a time
        return other

    def watched(self, watch: Watch) -> Interpreter:
        """The same program, watched."""
        other = Interpreter(self.module, self.process, watch)
        other._lifetimes = self._lifetimes
        return other

    def at(self, sizes: Mapping[str, int]) -> Interpreter:
        """The same program for fixed sizes; UserError where they contradict its operations."""
        if not sizes:
            return self
        module = specialized(self.module, sizes)
        verify(module)
        return Interpreter(module, self.process)

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
        evaluate = self._sized if self.module.symbols else self.evaluate
        for op, last in zip(region.ops, lifetimes.last, strict=True):
            results = evaluate(op, [values[operand] for operand in op.operands], values)
            values.update(zip(op.results, results, strict=True))
            for value in last:
                del values[value]
        return [values[result] for result in region.results]

    def evaluate(self, op: Op, arrays: Sequence[Any], values: Environment) -> Sequence[Any]:
        """The results of one operation on arrays, always a sequence."""
        known = None if self.watch is None else self.watch(op, arrays)
        if known is not None:
            return known
        definition = op.definition
        expands = isinstance(definition, Decomposed)
        if (
            expands
            or definition.communicates
            or op.regions
            or definition.pattern in ("control", "source")
        ):
            called = op.name in ("call", "call_with_weights")
            outer = None if definition.isolated or called else values
            runs = self.with_weights(op.weights) if op.name == "call_with_weights" else self

            def run(region: Region, inputs: Sequence[Any], watch: Watch | None = None) -> list[Any]:
                inner = runs if watch is None else runs.watched(watch)
                return inner.run(region, inputs, outer)

            context: dict[str, Any] = {"run": run, "module": self.module}
            if expands:
                context.update(expanded=self._expanded)
            if definition.communicates:
                context.update(process=self.process, spread=self._spread(outer))
            results = _evaluated(op, arrays, **context)
        else:
            results = _evaluated(op, arrays)
        return results if isinstance(results, (tuple, list)) else (results,)

    def _expanded(self, op: Op, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The results of an operation from its decomposition."""
        region = expansion(op)
        if region is None:
            types = ", ".join(str(v.type) for v in op.operands)
            raise UnsupportedError(f"'{op.name}' is not supported on {types}")
        module = self.module if op.regions else _NOTHING  # its regions may call functions
        return tuple(Interpreter(module).run(region, arrays))

    def _sized(self, op: Op, arrays: Sequence[Any], values: Environment) -> Sequence[Any]:
        """`evaluate` where sizes are free: UserError where those of the operands do not fit."""
        kinds = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)]
        if all(kind.is_static for kind in kinds):
            return self.evaluate(op, arrays, values)
        shapes = [np.shape(array) for array in arrays]
        if op.definition.pattern == "elementwise" and len({s for s in shapes if s}) > 1:
            raise UserError(f"{op.place}{op.name}: its operands have the shapes {shapes}")
        results = self.evaluate(op, arrays, values)
        for value, array in zip(op.results, results, strict=True):
            shape = np.shape(array)
            if isinstance(value.type, TensorType) and not _same_dims(shape, value.dims):
                raise UserError(f"{op.place}{op.name}: declared {value.type}, but {shape}")
        return results

    def _spread(self, outer: Mapping[Value, Any] | None) -> Any:
        """spread(n, task): task(process, run) on each process of a grid of 1 x n; its results."""

        def spread(count: int, task: Any) -> list[Any]:
            def part(process: Process) -> Any:
                other = self.on(process)
                return task(process, lambda region, inputs: other.run(region, inputs, outer))

            return Grid(1, count).run(part)

        return spread

    def _of(self, region: Region) -> _Lifetimes:
        """Computed once per region; bodies of loops and reductions run many times."""
        found = self._lifetimes.get(region)
        if found is None:
            kept = set(region.results)
            last: list[tuple[Value, ...]] = []
            for op in reversed(region.ops):
                _require_stored(op)
                used = dict.fromkeys(
                    [*op.operands, *op.results]
                    + [value for inner in op.regions for value in self._of(inner).captures]
                )
                last.append(tuple(value for value in used if value not in kept))
                kept.update(used)
            found = _Lifetimes(tuple(region.captures()), tuple(reversed(last)))
            self._lifetimes[region] = found
        return found


_NOTHING = Module({"main": Function("main", Region((), (), ()))})


def evaluated(op: Op, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results of one operation that needs nothing of its module."""
    return Interpreter(_NOTHING).evaluate(op, arrays, {})


def simulate(
    op: Op, arrays: Sequence[Any], *, order: Sequence[int] | None = None
) -> tuple[list[np.ndarray[Any, Any]], Counts]:
    """Results and counts of a kernel_call; `order` permutes its tiles (flat numbers)."""

    interpreter = Interpreter(_NOTHING)

    def run(region: Region, inputs: Sequence[Any], watch: Watch) -> list[Any]:
        return interpreter.watched(watch).run(region, inputs)

    return run_tiles(op, arrays, run, order=order)

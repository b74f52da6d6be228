"""Operations of rooms' cases, and programs, whose sizes a call decides: compiled once, run at many.

`opened(example)` gives the same operation with symbols in place of sizes; `OpenCode` compiles a
module for all of its sizes and runs it at those of its inputs.

    python -m girih.tests.backends.cpu.open_sizes dot_general reduce
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from girih.backends import find
from girih.hlo.assumptions import Assumptions
from girih.hlo.build import Builder
from girih.hlo.cases import Example, all_examples
from girih.hlo.deciding import deciding
from girih.hlo.errors import GirihError
from girih.hlo.graph import Function, Module
from girih.hlo.interpret import interpret
from girih.hlo.sizes import SizeSolver, Symbol
from girih.hlo.size_text import parse_dim
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import TensorType, element_type
from girih.hlo.verify import verify
from girih.optimizer.licence import Ledger
from girih.optimizer.pipeline import Pipeline, pipeline_for
from girih.optimizer.schedule import schedule
from girih.options import Options
from girih.runtime.devices import cpu
from girih.specs.generated import plan_pb2

Array = Any


def bound_plan(plan: Any, values: Mapping[str, int]) -> tuple[Any, list[int]]:
    """The plan at these sizes, and the values of its formulas."""
    sizes = [bound(parse_dim(text), values) for text in plan.formulas]
    made = plan_pb2.Plan()
    made.CopyFrom(plan)
    for buffer in made.buffers:
        if buffer.bytes_formula:
            buffer.bytes = sizes[buffer.bytes_formula - 1]
        for axis, formula in enumerate(buffer.dim_formulas):
            if formula:
                buffer.dims[axis] = sizes[formula - 1]
    ends: dict[int, int] = {}
    for number in sorted(range(len(made.buffers)), key=lambda n: made.buffers[n].offset):
        buffer = made.buffers[number]
        if buffer.place == plan_pb2.ARENA:
            buffer.offset = max((ends[below] for below in buffer.above), default=0)
            ends[number] = buffer.offset + -(-max(buffer.bytes, 1) // 64) * 64
    made.memory.arena_bytes = max(ends.values(), default=0)
    for step in made.steps:
        if step.HasField("run") and step.run.tiles_formula:
            step.run.tiles = sizes[step.run.tiles_formula - 1]
    return made, sizes


class OpenCode:
    """A module compiled for all of its sizes; `guards` are what its code is not for."""

    def __init__(
        self, module: Module, hints: Mapping[str, int], options: Options | None = None
    ) -> None:
        options = options or Options(cache="off")
        self.module = module
        backend = find("cpu", options, None)
        every = pipeline_for(backend, options, Ledger())
        passes = Pipeline(
            tuple(p for p in every.simplify if p.name != "require-static"),
            tuple(p for p in every.references if p.name != "require-static"),
            every.lower,
        )
        with deciding(Assumptions(module.symbols, module.constraints), hints) as decisions:
            self.simple, self.fused = passes.run(module)
            steps = schedule(self.fused, backend.in_tiles)
            (self.plan,), self.image = backend.build([(steps, ())])
        self.guards = list(decisions.guards)
        self.weights = {name: dense.array for name, dense in steps.constants.items()}
        self.weights |= {name: self.fused.weights[name].array for name in steps.weights}
        arguments = [(f"input {n}", a.tensor.dims) for n, a in enumerate(module.body.arguments)]
        self.solver = SizeSolver(arguments, module.symbols, module.constraints)

    def __call__(self, *inputs: Array) -> list[Array]:
        values = self.solver.solve([np.shape(x) for x in inputs])
        for guard in self.guards:
            if not guard.holds(values):
                raise NotCovered(f"{guard} ({guard.origin})")
        plan, sizes = bound_plan(self.plan, values)
        weights = {name: np.ascontiguousarray(w) for name, w in self.weights.items()}
        variant = cpu.CpuVariant(plan, self.image, weights, threads=2, sizes=sizes)
        outputs = [
            np.empty(
                list(plan.buffers[number].dims),
                element_type(plan.buffers[number].element_type).dtype,
            )
            for number in plan.outputs
        ]
        cpu.run(variant.context(), [np.ascontiguousarray(x) for x in inputs], outputs)
        return outputs


class NotCovered(Exception):
    """The code is not for these sizes."""


class Opened(NamedTuple):
    """An operation with open sizes; `at(values)` is the same operation at fixed ones."""

    name: str
    module: Module
    sizes: dict[str, int]  # those of the case
    example: Example

    def at(self, values: Mapping[str, int]) -> Module:
        types = [
            value.tensor.with_dims([bound(d, values) for d in value.tensor.dims])
            for value in self.module.body.arguments
        ]
        results = [
            value.tensor.with_dims([bound(d, values) for d in value.tensor.dims])
            for value in self.module.body.ops[0].results
        ]
        return _module(self.example, types, results)


def _module(
    example: Example, types: Sequence[TensorType], results: Sequence[TensorType] | None
) -> Module:
    op = example.op
    b = Builder()
    arguments = b.arguments(types)
    made = b.op(op.name, arguments, op.attributes, op.regions, results)
    return Module({"main": Function("main", b.region(made.results))}, name="case")


def opened(example: Example) -> Iterator[Opened]:
    """The operation with each of its sizes, and with all of them, replaced by symbols, where its
    clauses allow that."""
    types = [value.type for value in example.module.body.arguments]
    op = example.op
    every = [*types, *(result.type for result in op.results)]
    if not types or not all(isinstance(kind, TensorType) and kind.is_static for kind in every):
        return
    sizes = sorted({d for kind in types for d in kind.dims if d > 1})  # type: ignore[union-attr]
    choices = [[size] for size in sizes] + ([sizes] if len(sizes) > 1 else [])
    for chosen in choices:
        names = {size: SymbolicDim(f"n{size}") for size in chosen}

        def open_type(kind: Any, names: Any = names) -> TensorType:
            return kind.with_dims([names.get(d, d) for d in kind.dims])

        try:
            module = _module(
                example, [open_type(t) for t in types], [open_type(r.type) for r in op.results]
            )
            symbols = {f"n{size}": Symbol(1, 4 * size) for size in chosen}
            module = Module(module.functions, name="case", symbols=symbols)
            verify(module)
        except (GirihError, ValueError, TypeError):
            continue
        made = Opened(
            f"{example.name}[{','.join(map(str, chosen))}]", module,
            {f"n{size}": size for size in chosen}, example,
        )  # fmt: skip
        yield made


def inputs_at(made: Opened, values: Mapping[str, int], seed: int) -> list[Array]:
    """Inputs like those of the case: its own elements, repeated."""
    rng = np.random.default_rng(seed)
    found = []
    for argument, given in zip(made.module.body.arguments, made.example.inputs, strict=True):
        shape = [bound(d, values) for d in argument.tensor.dims]
        source = np.asarray(given).reshape(-1)
        picked = rng.integers(0, max(1, source.size), size=int(np.prod(shape)))
        found.append(source[picked].reshape(shape) if source.size else np.zeros(shape, given.dtype))
    return found


def check(made: Opened) -> str:
    """ "" where the code gives what the interpreter does at several sizes; else what is wrong."""
    try:
        code = OpenCode(made.module, {name: 2 * size for name, size in made.sizes.items()})
    except Exception as error:  # noqa: BLE001 - told
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:160]} [{where.filename[-40:]}:{where.lineno}]"
    for number, factor in enumerate((1, 2, 0, 3, 4)):
        values = {n: max(1, s * factor - (factor == 3)) for n, s in made.sizes.items()}
        try:
            at = made.at(values)
            verify(at)
        except (GirihError, ValueError):
            continue
        given = inputs_at(made, values, number)
        try:
            wanted = interpret(at, given)
        except GirihError:
            continue
        try:
            got = code(*given)
        except NotCovered as error:
            return f"guard {error} at {values}"
        for one, other in zip(got, wanted, strict=True):
            other = np.asarray(other)
            if one.shape != other.shape:
                return f"shape {one.shape} instead of {other.shape} at {values}"
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            tolerance = max(made.example.tolerance, 1e-5 if one.dtype.itemsize > 2 else 2e-2)
            if not np.allclose(
                one.astype(wide), other.astype(wide), tolerance, tolerance, equal_nan=True
            ):
                return f"other values at {values}"
    return ""


def main(names: Sequence[str]) -> None:
    good = bad = 0
    for example in all_examples():
        if names and example.definition.name not in names:
            continue
        for made in opened(example):
            problem = check(made)
            good, bad = good + (not problem), bad + bool(problem)
            if problem:
                print(f"{made.name}: {problem}", flush=True)
    print(f"{good} good, {bad} bad")


if __name__ == "__main__":
    main(sys.argv[1:])

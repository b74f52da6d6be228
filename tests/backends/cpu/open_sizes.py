"""Operations of rooms' cases with sizes that a call decides: compiled once, run at many.

`opened(example)` gives the same operation with symbols in place of sizes; `check` compares what its
program gives with the interpreter.

    python -m girih.tests.backends.cpu.open_sizes dot_general reduce
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import girih
from girih.hlo.build import Builder
from girih.hlo.cases import Example, all_examples
from girih.hlo.errors import GirihError
from girih.hlo.graph import Function, Module
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import TensorType
from girih.hlo.verify import verify
from girih.options import Options

Array = Any
OPTIONS = Options(cache="off")


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
        program = girih.compile(made.module, options=OPTIONS)
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
            got = program.call_flat([np.array(x, order="C") for x in given])
        except GirihError as error:
            return f"{error} at {values}"
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

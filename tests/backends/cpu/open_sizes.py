"""Operations of rooms' cases with sizes that a call decides: compiled once, run at many.

`opened(example)` gives the same operation with symbols in place of sizes; `check` compares what its
program gives with the interpreter.

    python -m girih.tests.backends.cpu.open_sizes cpu:avx2 ptx-sim dot_general reduce
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import girih
from girih.hlo.assumptions import Assumptions, assuming
from girih.hlo.cases import Example, all_examples
from girih.hlo.errors import GirihError
from girih.hlo.graph import Module, Op, Region, Value, arguments
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.specialize import specialized
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import TensorType
from girih.hlo.verify import require_proven_sizes, verify
from girih.options import Options

Array = Any
OPTIONS = Options(cache="off")
MOST = 8  # how much larger than in the case a size may be


class Opened(NamedTuple):
    """An operation with open sizes; `at(values)` is the same operation at fixed ones."""

    name: str
    module: Module
    sizes: dict[str, int]  # those of the case
    example: Example

    def at(self, values: Mapping[str, int]) -> Module:
        """The operation at these sizes; UserError where they are not admitted."""
        return specialized(self.module, values)


SIZES = ("fft_length", "limit_indices", "slice_sizes", "window_dimensions")  # among attributes


def opened(example: Example) -> Iterator[Opened]:
    """The operation with each of its sizes, and with all of them, replaced by symbols: in types
    alone and in attributes as well, where its clauses are proven for all sizes, or at least for
    those that are not below the case's."""
    types = [value.type for value in example.module.body.arguments]
    every = [*types, *(result.type for result in example.op.results)]
    if not types or not all(isinstance(kind, TensorType) and kind.is_static for kind in every):
        return
    sizes = sorted({d for kind in types for d in kind.dims if d > 1})  # type: ignore[union-attr]
    choices = [[size] for size in sizes] + ([sizes] if len(sizes) > 1 else [])
    for chosen in choices:
        names = {size: SymbolicDim(f"n{size}") for size in chosen}
        stated = any(key in SIZES for key in example.op.attributes)
        for attributes in (False, True) if stated else (False,):
            module = _opened(example, _Opening(names, attributes))
            if module is None or (attributes and _stated(module) == _stated(example.module)):
                continue
            name = f"{example.name}[{','.join(map(str, chosen))}]{'a' if attributes else ''}"
            yield Opened(name, module, {f"n{size}": size for size in chosen}, example)


def _opened(example: Example, opening: _Opening) -> Module | None:
    """The module with symbols from 1 on, else from the case's sizes on; None where it has no
    meaning for all of them."""
    for first in (1, 0):
        symbols = {
            repr(name): Symbol(first or size, MOST * size) for size, name in opening.names.items()
        }
        try:
            with assuming(Assumptions(symbols)):
                module = example.module.with_bodies(lambda body: opening.region(body, {}))
            module = replace(module, symbols=symbols)
            require_proven_sizes(module)
        except (GirihError, TypeError, ValueError):
            continue
        return module
    return None


def _stated(module: Module) -> list[Any]:
    return [module.body.ops[0].attributes.get(key) for key in SIZES]


class _Opening:
    """Replaces sizes by symbols, also in bodies; results have what their operations infer."""

    def __init__(self, names: Mapping[int, SymbolicDim], attributes: bool) -> None:
        self.names, self.attributes = names, attributes

    def type(self, kind: Any) -> Any:
        return kind.with_dims([self.names.get(d, d) for d in kind.dims])

    def region(self, region: Region, outer: Mapping[Value, Value]) -> Region:
        own = arguments([self.type(kind) for kind in region.argument_types])
        values = {**outer, **dict(zip(region.arguments, own, strict=True))}
        ops = []
        for op in region.ops:
            ops.append(self.op(op, values))
            values.update(zip(op.results, ops[-1].results, strict=True))
        return Region(own, ops, [values[result] for result in region.results])

    def op(self, op: Op, values: Mapping[Value, Value]) -> Op:
        operands = [values[operand] for operand in op.operands]
        regions = [self.region(region, values) for region in op.regions]
        attributes = dict(op.attributes)
        if self.attributes:
            attributes.update(
                {key: tuple(self.names.get(n, n) for n in attributes[key])
                 for key in SIZES if key in attributes}
            )  # fmt: skip
        types = [self.type(kind) for kind in op.result_types]
        made = Op(op.definition, operands, attributes, regions, types, op.origin)
        inferred = op.definition.inferred(made)
        if inferred is None:
            return made
        return Op(op.definition, operands, attributes, regions, inferred, op.origin)


def inputs_at(made: Opened, values: Mapping[str, int], seed: int) -> list[Array]:
    """Inputs like those of the case: its own elements, repeated; itself where the size is its."""
    rng = np.random.default_rng(seed)
    found = []
    for argument, given in zip(made.module.body.arguments, made.example.inputs, strict=True):
        shape = tuple(bound(d, values) for d in argument.tensor.dims)
        if shape == np.shape(given):
            found.append(given)
            continue
        source = np.asarray(given).reshape(-1)
        picked = rng.integers(0, max(1, source.size), size=int(np.prod(shape)))
        found.append(source[picked].reshape(shape) if source.size else np.zeros(shape, given.dtype))
    return found


def check(made: Opened, target: str = "cpu") -> str:
    """ "" where the code gives what the interpreter does at several sizes; else what is wrong."""
    try:
        program = girih.compile(made.module, target=target, options=OPTIONS)
    except Exception as error:  # noqa: BLE001 - told
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:160]} [{where.filename[-40:]}:{where.lineno}]"
    compared = 0
    for number, factor in enumerate((1, 2, 0, 3, MOST if len(made.sizes) == 1 else 4)):
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
        if [np.shape(x) for x in wanted] != [value.tensor.dims for value in at.body.results]:
            continue  # a shape among the inputs contradicts the types
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
            one, other = one.astype(wide), other.astype(wide)
            most = np.abs(other[np.isfinite(other)]).max(initial=1)  # sums of large numbers
            if not np.allclose(one, other, tolerance, tolerance * most, equal_nan=True):
                return f"other values at {values}"
        compared += 1
    return "" if compared else "compared at no sizes"


def compiles(example: Example, target: str = "cpu") -> bool:
    """Whether there is code for the sizes of the case."""
    try:
        girih.compile(example.module, target=target, options=OPTIONS)
    except GirihError:  # a fusion is none of the operations that programs begin with
        return False
    return True


def main(names: Sequence[str]) -> None:
    targets = [name for name in names if name.startswith(("cpu", "ptx"))]
    names = [name for name in names if name not in targets]
    targets = targets or ["cpu"]
    good = bad = 0
    for example in all_examples():
        if names and example.definition.name not in names:
            continue
        for made in opened(example):
            problem = next(filter(None, (check(made, t) for t in targets)), "")
            if problem and not all(compiles(example, target) for target in targets):
                continue
            good, bad = good + (not problem), bad + bool(problem)
            if problem:
                print(f"{made.name}: {problem}", flush=True)
    print(f"{good} good, {bad} bad")


if __name__ == "__main__":
    main(sys.argv[1:])

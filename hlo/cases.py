"""Every room's cases as little modules: what the tests of every engine run.

for example in all_examples():
    results = interpret(example.module, example.inputs)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .build import Builder
from .graph import Function, Module, Op
from .ops import DEFINITIONS
from .room import Case, OpDefinition
from .types import tensor_of


class Example(NamedTuple):
    """One operation in a module of its own, with inputs."""

    name: str
    definition: OpDefinition
    module: Module
    inputs: tuple[np.ndarray[Any, Any], ...]
    tolerance: float

    @property
    def op(self) -> Op:
        return self.module.body.ops[0]


def example(definition: OpDefinition, case: Case) -> Example:
    """The module that calls the operation on its arguments and returns all its results."""
    inputs = tuple(np.asarray(value) for value in case.inputs)
    b = Builder()
    arguments = b.arguments(case.input_types or tuple(map(tensor_of, inputs)))
    regions = case.regions() if case.regions else ()
    op = b.op(definition.name, arguments, case.attributes, regions, case.result_types)
    module = Module({"main": Function("main", b.region(op.results))}, name="case")
    return Example(case.name, definition, module, inputs, case.tolerance)


def all_examples() -> Iterator[Example]:
    """The cases of all rooms, in the table's order."""
    for definition in DEFINITIONS:
        for case in definition.cases():
            yield example(definition, case)

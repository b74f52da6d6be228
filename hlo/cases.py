"""Every room's cases as little modules: what the tests of every engine run.

for example in all_examples():
    results = interpret(example.module, example.inputs)

`retyped` gives the same example with another element type, where the operation allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .build import Builder, build_region
from .errors import UserError
from .graph import Dense, Function, Module, Op, Region, Value
from .ops import DEFINITIONS, numerics
from .room import Case, OpDefinition
from .types import Element, QuantizedType, TensorType, TupleType, Type, tensor_of
from .verify import HLO, verify


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
    regions = case.regions(build_region) if case.regions else ()
    op = b.op(definition.name, arguments, case.attributes, regions, case.result_types)
    module = Module(
        {"main": Function("main", b.region(op.results))}, name="case", meshes=case.meshes
    )
    return Example(case.name, definition, module, inputs, case.tolerance)


def all_examples() -> Iterator[Example]:
    """The cases of all rooms, in the table's order."""
    for definition in DEFINITIONS:
        for case in definition.cases():
            yield example(definition, case)


def retyped(made: Example, before: Element, after: Element) -> Example | None:
    """The example with `after` wherever it has `before`; None where no clause allows that."""
    types = _Retyping(before, after)
    try:
        module = made.module.with_bodies(lambda body: types.region(body, {}))
        verify(module, HLO)
    except UserError:
        return None
    arguments = made.module.body.arguments
    inputs = tuple(
        types.array(value) if argument.tensor.element is before else value
        for argument, value in zip(arguments, made.inputs, strict=True)
    )
    return made._replace(module=module, inputs=inputs)


def retype(region: Region, before: Element, after: Element) -> Region:
    """The region with `after` wherever it has `before`; VerifyError where a clause forbids that."""
    return _Retyping(before, after).region(region, {})


class _Retyping:
    """Replaces one element type by another, also in bodies and constants."""

    def __init__(self, before: Element, after: Element) -> None:
        self.before, self.after = before, after

    def type(self, type: Type) -> Type:
        if isinstance(type, TupleType):
            return TupleType(map(self.type, type.members))
        if isinstance(type, TensorType) and type.element is self.before:
            return type.with_element(self.after).with_sharding(type.sharding)
        return type

    def array(self, values: Any) -> Any:
        """The nearest values of the other type; of a quantised one the stored integers."""
        kind = self.after
        if not isinstance(kind, QuantizedType):
            if kind.is_complex and numerics.is_float(values.dtype):
                # Many functions leave open what they give where a part is infinite.
                values = np.where(np.isfinite(numerics.wide(values)), values, values.dtype.type(1))
            return numerics.convert(values, kind)
        with np.errstate(all="ignore"):
            steps = np.asarray(numerics.wide(values)) / kind.scales[0] + kind.zero_points[0]
            steps = np.clip(np.rint(np.nan_to_num(steps)), kind.minimum, kind.maximum)
        return steps.astype(np.int64).astype(kind.dtype)

    def region(self, region: Region, outer: dict[Value, Value]) -> Region:
        b = Builder()
        fresh = b.arguments(list(map(self.type, region.argument_types)))
        values = {**outer, **dict(zip(region.arguments, fresh, strict=True))}
        for op in region.ops:
            operands = [values[value] for value in op.operands]
            attributes = {key: self.attribute(value) for key, value in op.attributes.items()}
            if op.name == "compare" and not operands[0].element.is_float:
                attributes.pop("compare_type", None)  # says which order floats have
            regions = [self.region(inner, values) for inner in op.regions]
            types = list(map(self.type, op.result_types))
            results = b.op(op.name, operands, attributes, regions, types).results
            values.update(zip(op.results, results, strict=True))
        return b.region([values[value] for value in region.results])

    def attribute(self, value: Any) -> Any:
        if isinstance(value, Dense) and value.type.element is self.before:
            kind = self.type(value.type)
            assert isinstance(kind, TensorType)
            return Dense(kind, np.broadcast_to(self.array(value.array), kind.dims))
        return value

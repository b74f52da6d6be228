"""Programs next to an example: one thing of it is changed, wherever the result is still a program.

A rule's condition is there because of a program on which the rule would be wrong; that program
differs from an example in little: a size, an attribute, a constant, another use, another operation.
No rule claims to fire on these programs; what it makes of them must mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.build import Builder
from ...hlo.cases import retype
from ...hlo.errors import GirihError
from ...hlo.graph import Dense, Function, Module, Op, Region, Value
from ...hlo.ops import find
from ...hlo.types import BF16, C64, F32, I1, I32, UI8, ElementType, TensorType, Type
from ...hlo.verify import verify
from ..rule import Example

ELEMENTS = (F32, I32, BF16, UI8, C64, I1)
LARGEST = 4096  # elements of a value in a neighbour
OTHER_OPERATIONS = (
    ("add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder", "and", "or"),
    ("negate", "abs", "floor", "exponential", "not"),
)  # fmt: skip

Change = tuple[str, Callable[[Op], "Edit | None"]]


class Edit:
    """An operation as it is to be built again."""

    def __init__(self, op: Op) -> None:
        self.name = op.name
        self.operands = list(op.operands)
        self.attributes: dict[str, Any] = dict(op.attributes)
        self.regions = list(op.regions)
        self.types: list[Type] = list(op.result_types)


def neighbours(example: Example) -> Iterator[Example]:
    """The programs that differ from an example in one thing."""
    for name, build in _changes(example.region):
        try:
            region = build()
        except (GirihError, *_MALFORMED):
            continue  # no program, or one that has no types
        if region is None or _largest(region) > LARGEST:
            continue
        same = region.argument_types == example.region.argument_types
        inputs = example.inputs if same else None
        yield Example(f"{example.name}, {name}", region, inputs, fires=None)


# What is raised where an attribute no longer fits the operation.
_MALFORMED = (ValueError, IndexError, KeyError, TypeError, AssertionError, OverflowError)


def _largest(region: Region) -> int:
    values = [*region.arguments, *(value for op in region.walk() for value in op.results)]
    sizes = [value.type.size for value in values if isinstance(value.type, TensorType)]
    return max(sizes, default=0)


Build = Callable[[], Region | None]


def _changes(region: Region) -> Iterator[tuple[str, Build]]:
    yield from _more_results(region)
    if any(op.name == "while" for op in region.walk()):
        return  # a changed loop may never end
    yield from _other_sizes(region)
    yield from _other_elements(region)
    yield from _other_sources(region)
    for op in region.walk():
        for name, edit in _edits(op, region):
            yield f"{op.name} with {name}", lambda o=op, e=edit: _rebuilt(region, {o: e})


# The program as a whole.


def _more_results(region: Region) -> Iterator[tuple[str, Build]]:
    """A value in the middle is used elsewhere too."""
    for op in region.ops:
        if op.operands and not any(value in region.results for value in op.results):
            results = (*region.results, *op.results)
            yield (
                f"{op.name} used elsewhere",
                lambda r=results: Region(region.arguments, region.ops, r),
            )


def _other_sizes(region: Region) -> Iterator[tuple[str, Build]]:
    """Every dimension of one size gets another one; or those of one argument."""
    sizes = sorted(
        {d for a in region.arguments if isinstance(a.type, TensorType) for d in a.type.dims}
    )
    for size in sizes:
        for other in {0, 1, size + 1, 2 * size} - {size}:
            yield f"{other} for {size}", lambda s=size, o=other: _resized(region, s, o)
    for number, argument in enumerate(region.arguments):
        for d, size in enumerate(getattr(argument.type, "dims", ())):
            for other in {0, 1, size + 1} - {size}:
                dims = (*argument.dims[:d], other, *argument.dims[d + 1 :])
                kind = argument.tensor.with_dims(dims)
                yield (
                    f"{kind} as argument {number}",
                    lambda v=argument, k=kind: _rebuilt(region, {}, {v: k}),
                )


def _resized(region: Region, size: int, other: int) -> Region:
    def changed(kind: Type) -> Type:
        if not isinstance(kind, TensorType) or size not in kind.dims:
            return kind
        return kind.with_dims([other if d == size else d for d in kind.dims])

    edits = {}
    for op in region.ops:
        edit = Edit(op)
        edit.types = list(map(changed, edit.types))
        for key, value in op.attributes.items():
            if isinstance(value, Dense):
                kind = changed(value.type)
                assert isinstance(kind, TensorType)
                edit.attributes[key] = Dense.of(np.resize(value.array, kind.dims))
            elif key in ("limit_indices", "slice_sizes"):
                edit.attributes[key] = tuple(other if d == size else d for d in value)
        edits[op] = edit
    types = {value: changed(value.type) for value in region.arguments}
    return _rebuilt(region, edits, types)


def _other_elements(region: Region) -> Iterator[tuple[str, Build]]:
    present: set[ElementType] = {
        value.type.element
        for op in region.ops
        for value in (*op.operands, *op.results)
        if isinstance(value.type, TensorType)
    }
    for before in sorted(present, key=str):
        for after in ELEMENTS:
            if after is not before:
                yield f"{after} for {before}", lambda b=before, a=after: _retyped(region, b, a)


def _retyped(region: Region, before: ElementType, after: ElementType) -> Region:
    changed = retype(region, before, after)
    verify(Module({"main": Function("main", changed)}))
    return changed


def _other_sources(region: Region) -> Iterator[tuple[str, Build]]:
    """What is an argument becomes a constant, a constant an argument or another constant."""
    for number, argument in enumerate(region.arguments):
        kind = argument.type
        if isinstance(kind, TensorType):
            if not kind.size:
                continue
            for name, numbers in (("varying", [2, 0, 1, 1, 3]), ("equal", [2])):
                array = np.resize(np.array(numbers), kind.dims).astype(kind.dtype)
                dense = Dense(kind, array)
                yield (
                    f"argument {number} {name}",
                    lambda v=argument, c=dense: _rebuilt(region, {}, {}, {v: c}),
                )
    for op in region.ops:
        if op.name == "constant":
            yield "a constant given", lambda o=op: _rebuilt(region, {o: None})


# One operation.


def _edits(op: Op, region: Region) -> Iterator[tuple[str, Edit]]:
    def edit() -> Edit:
        return Edit(op)

    for names in OTHER_OPERATIONS:
        for name in names if op.name in names else ():
            if name != op.name:
                made = edit()
                made.name = name
                yield name, made
    for number, value in enumerate(op.operands):
        for other in _mates(value, op, region):
            made = edit()
            made.operands[number] = other
            yield f"another operand {number}", made
    for key, value in op.attributes.items():
        for other in _other_values(value):
            made = edit()
            made.attributes[key] = other
            if isinstance(other, Dense):
                made.types = [other.type]
                yield f"another {key}", made
            else:
                yield f"{key} = {other}", made
    if len(op.results) == 1 and isinstance(op.result_types[0], TensorType) and op.operands:
        for kind in _other_types(op.result_types[0]):
            made = edit()
            made.types = [kind]
            yield f"result {kind}", made


def _mates(value: Value, op: Op, region: Region) -> Iterator[Value]:
    """Other values of the same type that are there before an operation."""
    if op not in region.ops:
        return
    before = [*region.arguments]
    for other in region.ops:
        if other is op:
            break
        before.extend(other.results)
    yield from [other for other in before if other.type is value.type and other is not value][:3]


def _other_values(value: Any) -> Iterator[Any]:
    """Values that an attribute could have instead."""
    if isinstance(value, Dense):
        yield from _other_constants(value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        directions = ("EQ", "NE", "GE", "GT", "LE", "LT")
        if value in directions:
            yield from (other for other in directions if other != value)
        elif value in ("FLOAT", "TOTALORDER"):
            yield "TOTALORDER" if value == "FLOAT" else "FLOAT"
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            for other in _other_values(item):
                yield (*value[:place], other, *value[place + 1 :])
            if place and value[place - 1] != item:
                yield (*value[: place - 1], item, value[place - 1], *value[place + 1 :])
        if value and isinstance(value[0], int):
            yield value[:-1]


def _other_constants(dense: Dense) -> Iterator[Dense]:
    kind = dense.type
    if not kind.size:
        return
    numbers: Sequence[Any] = (0, 1, 2, 3, -1, 5)
    if kind.element.is_bool:
        numbers = (False, True)
    elif kind.element.is_float:
        numbers = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan)
    for number in numbers:
        if number == -1 and kind.element.kind == "uint":
            continue
        other = Dense.splat(number, kind)
        if other != dense:
            yield other
    if kind.size > 1:
        varying = np.array(dense.array)
        varying.flat[-1] = not varying.flat[-1] if kind.element.is_bool else varying.flat[-1] + 1
        yield Dense.of(varying)
        yield Dense.of(np.ascontiguousarray(np.roll(dense.array, 1)))


def _other_types(kind: TensorType) -> Iterator[TensorType]:
    """Types that a result could have instead, where they are the program's to choose."""
    dims = kind.dims
    for d, size in enumerate(dims):
        for other in {0, 1, size + 1, 2 * size} - {size}:
            yield kind.with_dims((*dims[:d], other, *dims[d + 1 :]))
        for e in range(d):
            if dims[d] != dims[e]:
                swapped = list(dims)
                swapped[d], swapped[e] = dims[e], dims[d]
                yield kind.with_dims(swapped)
        yield kind.with_dims((*dims[:d], 1, *dims[d:]))
        if size == 1:
            yield kind.with_dims((*dims[:d], *dims[d + 1 :]))
        elif size % 2 == 0 and size:
            yield kind.with_dims((*dims[:d], 2, size // 2, *dims[d + 1 :]))
        if d:
            yield kind.with_dims((*dims[: d - 1], dims[d - 1] * size, *dims[d + 1 :]))
    yield kind.with_dims((*dims, 1))
    for element in ELEMENTS:
        if element is not kind.element:
            yield kind.with_element(element)


# Building.


def _rebuilt(
    region: Region,
    edits: Mapping[Op, Edit | None],
    types: Mapping[Value, Type] | None = None,
    constants: Mapping[Value, Dense] | None = None,
) -> Region:
    """The region with some operations as edited (None: an argument in its place), arguments of
    other types, and constants for arguments. Raises where that is no program.
    """
    given, fixed = types or {}, constants or {}
    left = [value for value in region.arguments if value not in fixed]
    freed = [value for op, edit in edits.items() if edit is None for value in op.results]
    b = Builder()
    fresh = b.arguments([*(given.get(v, v.type) for v in left), *(v.type for v in freed)])
    values = dict(zip((*left, *freed), fresh, strict=True))
    for value, dense in fixed.items():
        values[value] = b.constant(dense)
    _build(b, region, edits, values)
    return b.region([values[value] for value in region.results])


def _build(
    b: Builder, region: Region, edits: Mapping[Op, Edit | None], values: dict[Value, Value]
) -> None:
    for op in region.ops:
        edit = edits.get(op, op)
        if edit is None:
            continue  # it has become an argument
        if isinstance(edit, Op):
            edit = Edit(op)
        regions = []
        for inner in edit.regions:
            builder = Builder()
            fresh = builder.arguments(inner.argument_types)
            local = {**values, **dict(zip(inner.arguments, fresh, strict=True))}
            _build(builder, inner, edits, local)
            regions.append(builder.region([local[value] for value in inner.results]))
        operands = [values[value] for value in edit.operands]
        draft = Op(find(edit.name), operands, edit.attributes, regions, edit.types)
        draft.definition.check(draft)
        found = draft.definition.inferred(draft)
        made = b.op(edit.name, operands, edit.attributes, regions, found or edit.types)
        values.update(zip(op.results, made.results, strict=True))

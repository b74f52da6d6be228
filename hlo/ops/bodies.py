"""Regions that compute one element, applied to whole arrays: of reduce, scatter, sort, map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Function, Op, Region
from ..room import RunRegion
from . import numerics
from .decomposed import Decomposed

NO_FUNCTIONS: Mapping[str, Function] = {}

Body = Callable[..., list[Any]]  # arrays of one shape in, arrays of that shape out

MONOIDS: Mapping[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def monoid(region: Region) -> str | None:
    """The name of the associative operation that a two-argument body is; None if it is not one."""
    if len(region.ops) != 1 or len(region.arguments) != 2:
        return None
    (op,) = region.ops
    if op.name not in MONOIDS or region.results != op.results:
        return None
    return op.name if set(op.operands) == set(region.arguments) else None


def monoids(region: Region) -> tuple[str, ...]:
    """For each result the monoid that folds its own two arguments, number n and n of the second
    half; nothing if one of them is not such a fold."""
    count = len(region.arguments) // 2
    names = []
    for n, result in enumerate(region.results):
        pair = {region.arguments[n], region.arguments[count + n]}
        if result.op is None or result.op.name not in MONOIDS or set(result.op.operands) != pair:
            return ()
        names.append(result.op.name)
    return tuple(names)


def overwrites(region: Region) -> bool:
    """Whether the body returns its second argument: the scatter that sets elements."""
    return len(region.arguments) == 2 and region.results == (region.arguments[1],)


def is_liftable(region: Region, functions: Mapping[str, Function]) -> bool:
    """Whether the region's operations mean the same on arrays as on each element."""
    for op in region.ops:
        if op.name == "call":
            if op.callee not in functions or not is_liftable(functions[op.callee].body, functions):
                return False
        elif op.name != "constant" and (op.definition.pattern != "elementwise" or op.regions):
            return False
        if any(result.tensor.rank for result in op.results):
            return False
    return True


def body(region: Region, context: Mapping[str, Any]) -> Body:
    """The region as a function of arrays; element by element where it cannot be lifted."""
    run: RunRegion = context["run"]
    module = context.get("module")
    dtypes = [result.tensor.dtype for result in region.results]

    def whole(*arrays: Any) -> list[Any]:
        shape = np.broadcast_shapes(*(np.shape(array) for array in arrays))
        results = run(region, [np.asarray(array) for array in arrays])
        return [np.broadcast_to(result, shape) for result in results]

    def each(*arrays: Any) -> list[Any]:
        shape = np.broadcast_shapes(*(np.shape(array) for array in arrays))
        lines = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
        results = [np.empty(shape, dtype).reshape(-1) for dtype in dtypes]
        for index in range(lines[0].size):
            values = run(region, [line[index : index + 1].reshape(()) for line in lines])
            for result, value in zip(results, values, strict=True):
                result[index] = value
        return [result.reshape(shape) for result in results]

    return whole if is_liftable(region, module.functions if module else NO_FUNCTIONS) else each


def accumulating(region: Region, context: Mapping[str, Any]) -> Body:
    """The region as a function of arrays that is applied again and again: sums and products of
    small floats are wide ones, to be rounded at the end."""
    name = monoid(region)
    if name not in ("add", "multiply") or not numerics.is_float(region.results[0].tensor.dtype):
        return body(region, context)
    function = MONOIDS[name]

    def wide(total: Any, x: Any) -> list[Any]:
        with np.errstate(all="ignore"):
            return [function(numerics.wide(total), numerics.wide(x))]

    return wide


def of_numbers(region: Region, numbers: Sequence[Any]) -> list[Any] | None:
    """The region's results on numbers; None where more than plain arithmetic makes them."""
    if not is_liftable(region, NO_FUNCTIONS):
        return None
    known = dict(zip(region.arguments, numbers, strict=True))
    for op in region.ops:
        if isinstance(op.definition, Decomposed) or len(op.results) != 1:
            return None
        known[op.result] = op.definition.evaluate(op, *(known[value] for value in op.operands))
    return [known[value] for value in region.results]


def lifted(b: Any, region: Region, values: Sequence[Any]) -> list[Any] | None:
    """The region's operations built on whole tensors; None where it cannot be lifted."""
    if not is_liftable(region, NO_FUNCTIONS):
        return None
    dims = values[0].dims
    known = dict(zip(region.arguments, values, strict=True))
    for op in region.ops:
        operands = [known[value] for value in op.operands]
        kinds = [result.tensor.with_dims(dims) for result in op.results]
        if op.name == "constant":
            known[op.result] = b.constant(op.value.splat_value, kinds[0])
        else:
            made = b.op(op.name, operands, op.attributes, (), kinds)
            known.update(zip(op.results, made.results, strict=True))
    return [known[value] for value in region.results]


def reduce_axes(name: str, x: Any, axes: tuple[int, ...], initial: Any) -> Any:
    """The monoid over some axes; small floats are accumulated in f32 and rounded once."""
    dtype = x.dtype
    function = MONOIDS[name]
    if x.size == 0 and any(x.shape[axis] == 0 for axis in axes):
        rest = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return np.full(rest, initial, dtype)
    values = numerics.wide(x)
    if dtype.kind == "b" and name in ("add", "maximum", "multiply", "minimum"):
        function = np.logical_or if name in ("add", "maximum") else np.logical_and
    with np.errstate(all="ignore"):
        # numpy would sum small integers in i64: the dtype keeps them wrapping
        if function is np.add and values.dtype.kind == "f":  # from +0 on, -0 would be lost
            total = np.add.reduce(values, axis=axes, dtype=values.dtype, initial=-0.0)
        else:
            total = function.reduce(values, axis=axes, dtype=values.dtype)
        return numerics.narrow(function(total, numerics.wide(np.asarray(initial))), dtype)


def reduce_front(combine: Body, arrays: Sequence[Any]) -> list[Any]:
    """The arrays with their first axis folded by `combine`, neighbours first (a balanced tree)."""
    current = list(arrays)
    count = len(arrays)
    while current[0].shape[0] > 1:
        paired = current[0].shape[0] // 2 * 2
        folded = combine(*(x[0:paired:2] for x in current), *(x[1:paired:2] for x in current))
        rest = [x[paired:] for x in current]
        current = [np.concatenate(pair) for pair in zip(folded, rest, strict=True)]
    return [x[0] for x in current[:count]]


def body_flops(o: Op, region: Region) -> float:
    """Operations of one application of a body."""
    return float(sum(op.name != "constant" for op in region.ops))

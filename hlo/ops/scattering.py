"""scatter: updates that are written where data says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, IterationKind, Space, at, identity
from ..factors import Factor, FactorBuilder, FactorKind, Factors, alike, reducing
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, variadic
from ..types import F32, Type
from . import bodies
from .clauses import ascending, at_most, same_dims, same_element, unique, within
from .examples import binary_body, counting, i32, scalar_body
from .indexing import along, batch_places, batching_fits, index_vectors, slice_places
from .reduction import folds, scatter_elements


class Scatter(OpDefinition, name="scatter"):
    """results = inputs, with update_computation(element, update) at scatter_indices + window.

    `operands` are N inputs, scatter_indices, N updates. Elements that fall outside are left out.
    Updates of one element are applied in their row-major order.
    """

    pattern = "opaque"
    regions = ("update_computation",)
    inputs_indices_updates = variadic()
    update_window_dims = attribute(tuple)
    inserted_window_dims = attribute(tuple)
    input_batching_dims = attribute(tuple, ())
    scatter_indices_batching_dims = attribute(tuple, ())
    scatter_dims_to_operand_dims = attribute(tuple)
    index_vector_dim = attribute(int)
    indices_are_sorted = attribute(bool, False)
    unique_indices = attribute(bool, False)
    C0 = constraint(
        "operands are N inputs, scatter_indices and N updates",
        lambda o: len(o.operands) >= 3 and len(o.operands) % 2 == 1,
    )
    C1 = constraint(
        "inputs have the same dimensions",
        lambda o: all(same_dims(v.dims, o.operands[0].dims) for v in _inputs(o)),
    )
    C2 = constraint(
        "rank(inputs[0]) = update_window_dims + inserted_window_dims + input_batching_dims",
        lambda o: (
            o.operands[0].rank
            == len(o.update_window_dims) + len(o.inserted_window_dims) + len(o.input_batching_dims)
        ),
    )
    C3 = constraint(
        "updates have the same dimensions",
        lambda o: all(same_dims(v.dims, _updates(o)[0].dims) for v in _updates(o)),
    )
    C6 = constraint(
        "an update has its input's element type",
        lambda o: all(
            same_element(v.element, u.element) for v, u in zip(_inputs(o), _updates(o), strict=True)
        ),
    )
    C7 = constraint(
        "update_window_dims are unique and ascending",
        lambda o: unique(o.update_window_dims) and ascending(o.update_window_dims),
    )
    C9 = constraint(
        "inserted_window_dims and input_batching_dims are unique",
        lambda o: unique((*o.inserted_window_dims, *o.input_batching_dims)),
    )
    C11 = constraint(
        "0 <= inserted_window_dims and input_batching_dims < rank(inputs[0])",
        lambda o: within((*o.inserted_window_dims, *o.input_batching_dims), o.operands[0].rank),
    )
    C15 = constraint(
        "scatter_indices_batching_dims are other dims of scatter_indices than index_vector_dim, "
        "unique, and as long as those of inputs",
        lambda o: batching_fits(
            o, _indices(o), o.scatter_indices_batching_dims, o.operands[0], o.input_batching_dims
        ),
    )
    C16 = constraint(
        "scatter_dims_to_operand_dims are unique dims of inputs[0]",
        lambda o: (
            unique(o.scatter_dims_to_operand_dims)
            and within(o.scatter_dims_to_operand_dims, o.operands[0].rank)
        ),
    )
    C19 = constraint(
        "scatter_dims_to_operand_dims has one entry per index component",
        lambda o: _component_count(o) in (len(o.scatter_dims_to_operand_dims), None),
    )
    C22 = constraint(
        "0 <= index_vector_dim <= rank(scatter_indices)",
        lambda o: 0 <= o.index_vector_dim <= _indices(o).rank,
    )
    C23 = constraint(
        "update_computation takes two scalars per input and returns one per input",
        lambda o: (
            len(o.regions[0].arguments) == len(o.operands) - 1
            and len(o.regions[0].results) == len(o.operands) // 2
            and not any(v.rank for v in (*o.regions[0].arguments, *o.regions[0].results))
        ),
    )
    C24 = constraint("scatter_indices are integers", lambda o: _indices(o).element.is_integer)
    C4 = constraint(
        "updates have the dims of scatter_indices, but for index_vector_dim, and windows that fit "
        "into the inputs",
        lambda o: _updates_fit(o),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        results = o.regions[0].results
        return [
            v.tensor.with_element(r.tensor.element)
            for v, r in zip(_inputs(o), results, strict=True)
        ]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        count = len(arrays) // 2
        inputs, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
        results = [np.array(x, order="C") for x in inputs]  # copies, with one line of elements
        places, inside = _places(o, inputs[0].shape, indices, updates[0].shape)
        region = o.regions[0]
        if count == 1 and _adds_in_place(region, results[0].dtype):
            flat = results[0].reshape(-1)
            with np.errstate(all="ignore"):
                function = bodies.MONOIDS[bodies.monoid(region) or ""]
                function.at(flat, places[inside], updates[0][inside])
            return (results[0],)
        scatter_elements(
            [r.reshape(-1) for r in results], places[inside], [u[inside] for u in updates], region,
            context,
        )  # fmt: skip
        return tuple(results)

    def access(self, o: Op) -> Access | None:
        rank = o.operands[0].rank
        space = Space(o.results[0].dims)
        kept = [
            d for d in range(rank) if d not in (*o.inserted_window_dims, *o.input_batching_dims)
        ]
        indices = space.whole(_indices(o).dims)
        updates = []
        for d, size in enumerate(_updates(o)[0].dims):
            place = kept[o.update_window_dims.index(d)] if d in o.update_window_dims else None
            if place is None or place in o.scatter_dims_to_operand_dims:
                updates.append(space.inner(size, IterationKind.GATHER))
            else:  # a window dim that no index moves
                updates.append(at(place))
        count = len(o.operands) // 2
        return space.access(*([identity(rank)] * count), indices, *([updates] * count))

    def shard(self, o: Op) -> Factors | None:
        rule, count = FactorBuilder(o), len(_inputs(o))
        inputs, updates = range(count), range(count + 1, 2 * count + 1)
        dims, written = o.operands[0].dims, _updates(o)[0].dims
        windows = o.update_window_dims
        places = slice_places(len(dims), o.inserted_window_dims, o.input_batching_dims, windows)
        batches = batch_places(o, len(written), windows)
        pairs = dict(zip(o.scatter_indices_batching_dims, o.input_batching_dims, strict=True))
        for d, size in enumerate(written):
            if d in batches:
                axis = batches[d]
                held = {count: axis, **alike(updates, d)}
                if axis in pairs:
                    batch = alike(inputs, pairs[axis])
                    rule.add(Factor(size), {**held, **batch}, batch)
                else:
                    rule.add(reducing(size, *folds(o)), held)
                continue
            target = alike(inputs, places[d])
            whole, moves = dims[places[d]], places[d] in o.scatter_dims_to_operand_dims
            if size == whole and not moves:
                rule.add(Factor(size), {**target, **alike(updates, d)}, target)
            else:  # of windows that are as large as the input, each part takes what falls into it
                kind = FactorKind.PASS if size == whole else FactorKind.REPLICATE
                rule.add(Factor(whole, kind, placed=size == whole), target, target)
                rule.add(Factor(size, FactorKind.REPLICATE), alike(updates, d))
        for d in o.inserted_window_dims:  # each part takes what falls into it
            target = alike(inputs, d)
            rule.add(Factor(dims[d], placed=True), target, target)
        return rule.build(once=inputs)

    def cases(self) -> Iterator[Case]:
        table, rows = counting(5, 3), i32([[1], [4], [1], [7], [-1]])
        updates = counting(5, 3) * 10
        attributes = {
            "update_window_dims": (1,), "inserted_window_dims": (0,),
            "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
        }  # fmt: skip
        for name in ("add", "multiply", "maximum"):
            body = binary_body(name, F32)
            yield Case(f"scatter_{name}", (table, rows, updates), attributes, regions=body)
        sets = scalar_body(lambda b, x, y: [y], F32, F32)
        yield Case("scatter_set", (table, rows, updates), attributes, regions=sets)
        blends = scalar_body(lambda b, x, y: [b("subtract", b("multiply", x, x), y)], F32, F32)
        yield Case("scatter_general", (table, rows, updates), attributes, regions=blends)
        window = {
            "update_window_dims": (0, 1), "inserted_window_dims": (),
            "scatter_dims_to_operand_dims": (0, 1), "index_vector_dim": 0,
        }  # fmt: skip
        start = i32([3, 1])
        yield Case("scatter_window", (table, start, counting(2, 2)), window, regions=sets)
        batched = {
            "update_window_dims": (), "inserted_window_dims": (1,), "input_batching_dims": (0,),
            "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,),
            "index_vector_dim": 2,
        }  # fmt: skip
        columns = i32([[[0]], [[2]], [[1]], [[3]], [[0]]])
        body = binary_body("add", F32)
        yield Case("scatter_batched", (table, columns, counting(5, 1)), batched, regions=body)


def _updates_fit(o: Op) -> bool:
    """Whether each index has its window, and each window fits into the input."""
    updates, windows = _updates(o)[0].dims, o.update_window_dims
    gone = (*o.inserted_window_dims, *o.input_batching_dims)
    kept = [dim for d, dim in enumerate(o.operands[0].dims) if d not in gone]
    scattered = [dim for d, dim in enumerate(updates) if d not in windows]
    indexed = [dim for axis, dim in enumerate(_indices(o).dims) if axis != o.index_vector_dim]
    return (
        within(windows, len(updates))
        and same_dims(scattered, indexed)
        and all(at_most(updates[d], dim) for d, dim in zip(windows, kept, strict=True))
    )


def _inputs(o: Op) -> Sequence[Any]:
    return o.operands[: len(o.operands) // 2]


def _indices(o: Op) -> Any:
    return o.operands[len(o.operands) // 2]


def _updates(o: Op) -> Sequence[Any]:
    return o.operands[len(o.operands) // 2 + 1 :]


def _component_count(o: Op) -> int | None:
    """How many components an index has; None while that is symbolic."""
    dims = _indices(o).dims
    count = dims[o.index_vector_dim] if o.index_vector_dim < len(dims) else 1
    return count if isinstance(count, int) else None


def _adds_in_place(region: Any, dtype: np.dtype[Any]) -> bool:
    """Whether numpy's `ufunc.at` applies the body itself, element by element."""
    return (
        dtype.kind in "iufc"
        and bodies.monoid(region) is not None
        and (region.results[0].tensor.dtype == dtype)
    )


def _places(o: Op, dims: Sequence[int], indices: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """For each update element its flat position in the input, and whether it lies inside."""
    vectors = index_vectors(indices, o.index_vector_dim)
    scatter_dims = [d for d in range(len(shape)) if d not in o.update_window_dims]
    windows = [
        d
        for d in range(len(dims))
        if d not in o.inserted_window_dims and d not in o.input_batching_dims
    ]
    batching = [d - (d > o.index_vector_dim) for d in o.scatter_indices_batching_dims]
    places, inside = np.zeros(shape, np.int64), np.ones(shape, bool)
    for d, dim in enumerate(dims):
        position: Any = np.zeros((1,) * len(shape), np.int64)
        if d in o.scatter_dims_to_operand_dims:
            starts = vectors[..., o.scatter_dims_to_operand_dims.index(d)]
            spread = [1] * len(shape)
            for axis, size in zip(scatter_dims, starts.shape, strict=True):
                spread[axis] = size
            position = position + starts.reshape(spread)
        if d in o.input_batching_dims:
            axis = scatter_dims[batching[o.input_batching_dims.index(d)]]
            position = position + along(np.arange(shape[axis]), axis, len(shape))
        if d in windows:
            axis = o.update_window_dims[windows.index(d)]
            position = position + along(np.arange(shape[axis]), axis, len(shape))
        inside &= (position >= 0) & (position < dim)
        places += position * math.prod(dims[d + 1 :])
    return places, inside


ROOMS = (Scatter(),)

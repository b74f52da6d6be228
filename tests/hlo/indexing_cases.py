"""Random gathers and scatters, with every role that a dim can have."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from girih.hlo.ops.examples import binary_body, scalar_body
from girih.hlo.room import Case
from girih.hlo.types import F32


class Slices(NamedTuple):
    """Slices of an operand of `dims`, as sizes; the places of batch dims and offsets among those
    of the slices; the indices' dims, of which `vector` holds the components."""

    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    collapsed: tuple[int, ...]
    batching: tuple[int, ...]
    indices_batching: tuple[int, ...]
    moved: tuple[int, ...]
    offsets: tuple[int, ...]
    result: tuple[int, ...]
    indices: Any
    vector: int


@st.composite
def slices(draw: Any) -> Slices:
    rank = draw(st.integers(1, 3))
    dims = tuple(draw(st.sampled_from((1, 2, 4, 6))) for _ in range(rank))
    roles = [draw(st.sampled_from(("batch", "collapsed", "window"))) for _ in dims]
    if roles.count("batch") > 1:
        roles = ["window" if role == "batch" else role for role in roles]
    batching = tuple(d for d, role in enumerate(roles) if role == "batch")
    collapsed = tuple(d for d, role in enumerate(roles) if role == "collapsed")
    windows = [d for d, role in enumerate(roles) if role == "window"]
    sizes = tuple(
        draw(st.sampled_from(sorted({1, 2, size} - ({2} if size < 2 else set()))))
        if d in windows
        else 1
        for d, size in enumerate(dims)
    )
    free = [d for d in range(rank) if d not in batching]
    moved = tuple(draw(st.permutations(free))[: draw(st.integers(0, len(free)))])
    batch = [draw(st.sampled_from((2, 3, 4))) for _ in range(draw(st.integers(0, 2)))]
    place = draw(st.integers(0, len(batch))) if batching else 0
    if batching:
        batch.insert(place, dims[batching[0]])
    vector = draw(st.integers(0, len(batch)))
    shape = (*batch[:vector], len(moved), *batch[vector:])
    own = tuple(place + (place >= vector) for _ in batching)
    count = len(batch) + len(windows)
    offsets = tuple(sorted(draw(st.permutations(range(count)))[: len(windows)]))
    rest, cut = list(batch), [sizes[d] for d in windows]
    result = tuple(cut.pop(0) if d in offsets else rest.pop(0) for d in range(count))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    indices = generator.integers(-1, 6, shape, np.int32)
    return Slices(
        dims, sizes, collapsed, batching, own, moved, offsets, result, indices, vector
    )  # fmt: skip


@st.composite
def gathers(draw: Any) -> Case:
    s = draw(slices())
    facts = {
        "offset_dims": s.offsets, "collapsed_slice_dims": s.collapsed,
        "operand_batching_dims": s.batching, "start_indices_batching_dims": s.indices_batching,
        "start_index_map": s.moved, "index_vector_dim": s.vector, "slice_sizes": s.sizes,
    }  # fmt: skip
    return Case("gather", (_numbers(s.dims), s.indices), facts)


@st.composite
def scatters(draw: Any) -> Case:
    s = draw(slices())
    facts = {
        "update_window_dims": s.offsets, "inserted_window_dims": s.collapsed,
        "input_batching_dims": s.batching, "scatter_indices_batching_dims": s.indices_batching,
        "scatter_dims_to_operand_dims": s.moved, "index_vector_dim": s.vector,
    }  # fmt: skip
    sets = scalar_body(lambda b, x, y: [y], F32, F32)
    body = draw(st.sampled_from((binary_body("add", F32), binary_body("maximum", F32), sets)))
    return Case("scatter", (_numbers(s.dims), s.indices, _numbers(s.result)), facts, regions=body)


def _numbers(dims: tuple[int, ...]) -> Any:
    return (np.arange(np.prod(dims, dtype=int), dtype=np.float32) % 7 - 3).reshape(dims)

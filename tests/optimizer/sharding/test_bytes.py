"""What devices receive in the annotated programs of the benchmark: no more than was reached, and
what is explained is what the program of one device sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from girih import import_model, partition
from girih.hlo.distributed import interpret_parallel
from girih.hlo.interpret import interpret
from girih.hlo.placement import cut
from girih.hlo.types import TensorType
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.communications import walk_turns
from girih.optimizer.sharding.partition.program import WHOLE
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

EXAMPLES = {**NETWORKS, **OPERATIONS}
DEVICES = 8
REACHED = {
    "a1": 3.5, "a2": 3.5, "a3": 7.0,
    "b1": 5.25, "b2": 11.263, "b3": 10.513, "b4": 5.626,
    "c1": 3.0, "c2": 2.626, "c3": 5.25, "c4": 11.263, "c5": 12.004,
    "d1": 28.001, "d3": 28.001, "d4": 3.555, "e1": 1.094, "e2": 1.094, "e3": 1.094,
    "f1": 0.219, "f2": 0.329, "f3": 0.875, "f4": 0.235, "f5": 0.219, "f6": 0.11,
    "g1": 0.375, "g6": 0.875, "g10": 0.438, "g11": 0.438, "i1": 0.875, "i3": 0.094,
    "h1": 3.0, "h2": 0.012, "h3": 5.024, "h4": 0.007, "h6": 0.007, "h7": 1.75, "h9": 2.0,
    "h10": 0.875, "h11": 0.0, "h12": 0.014, "h13": 0.219, "h14": 3.219, "h15": 3.5, "h16": 28.0,
}  # fmt: skip
"""MiB per device and step, rounded up."""


@pytest.mark.parametrize("name", REACHED)
def test_bytes_of_annotated_programs(name: str) -> None:
    parts = partition(EXAMPLES[name].module(DEVICES))
    counted = 0.0
    for op, times in walk_turns(Inline()(parts.local).body):
        bytes_ = op.definition.traffic(op, DEVICES)
        assert times is not None or not bytes_
        counted += bytes_ * (times or 0)
    assert counted == parts.bytes
    assert counted / 2**20 <= REACHED[name]


def _talking(x: Any) -> Any:
    """Every kind of collective that JAX writes into a manual region, some of them in a loop."""
    rows = lax.all_gather(x, "y", axis=0, tiled=True)
    in_order = lax.all_to_all(rows, "x", 1, 0, tiled=True)
    part = lax.psum_scatter(in_order, "y", scatter_dimension=0, tiled=True)

    def turn(_: Any, c: Any) -> Any:
        return lax.ppermute(jnp.tanh(c), "y", [(0, 1), (1, 2), (3, 3)])

    return lax.psum(lax.fori_loop(0, 3, turn, part), ("x", "y"))


def test_collectives_of_manual_regions_are_explained() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        _talking, mesh=mesh, in_specs=P("y", "x"), out_specs=P(), check_vma=False
    )
    given = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(mapped).trace(given).lower(lowering_platforms=("cpu",)).as_text()
    parts = partition(import_model(text))
    rows = [row for row in parts.communications if row.kind == "manual"]
    assert {(row.op.name, row.axes, row.times) for row in rows} == {
        ("all_gather", ("y",), 1), ("all_to_all", ("x",), 1), ("reduce_scatter", ("y",), 1),
        ("collective_permute", ("y",), 3), ("all_reduce", ("x", "y"), 1),
    }  # fmt: skip
    x = np.random.default_rng(0).standard_normal((16, 8), np.float32)
    kind = parts.local.main.argument_attributes[0][WHOLE]
    assert isinstance(kind, TensorType) and kind.sharding is not None
    blocks = cut(x, kind.sharding, parts.mesh)
    ran = interpret_parallel(parts.local, [[block] for block in blocks])
    assert sum(sum(counts.values()) for counts in ran.received) / DEVICES == parts.bytes
    whole = interpret(import_model(text), [x])[0]
    np.testing.assert_allclose(parts.interpret([x])[0], whole, rtol=1e-5)

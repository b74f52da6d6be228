"""Compiling for a mesh: limits, and shardings that are found. What runs needs processes."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.errors import BudgetError, MemoryLimitError

from .runtime.distributed.test_mesh import SAID, network

MESH = {"data": 2, "model": 2}


def test_what_devices_receive_is_limited() -> None:
    module = network()
    sent = girih.partition(module, mesh=MESH, shardings=SAID).bytes
    assert sent > 0

    def compiled(limit: float) -> girih.Program:
        options = girih.Options(max_reshard=f"total={limit:.0f}")
        return girih.compile(module, mesh=MESH, shardings=SAID, options=options)

    assert compiled(sent).mesh is not None
    with pytest.raises(BudgetError, match="dot_general"):
        compiled(sent - 1)
    with pytest.raises(girih.UserError, match="no axis of 'axis.dato'"):
        girih.compile(
            module, mesh=MESH, shardings=SAID, options=girih.Options(max_reshard="axis.dato=1")
        )


def test_the_memory_of_a_device_is_limited() -> None:
    module = network()
    need = girih.partition(module, mesh=MESH, shardings=SAID).memory.total
    options = girih.Options(max_memory=need // 2)
    with pytest.raises(MemoryLimitError):
        girih.compile(module, mesh=MESH, shardings=SAID, options=options)


def test_shardings_may_be_found() -> None:
    program = girih.compile(network(), mesh={"data": 1, "model": 4}, shardings="auto")
    assert program.mesh is not None and program.mesh.devices == 4
    with pytest.raises(girih.UserError, match="a mapping of patterns, or 'auto', not 'often'"):
        girih.compile(network(), mesh=MESH, shardings="often")


def test_a_mesh_of_one_device_runs_alone() -> None:
    module, x = network(), np.ones((50, 256), np.float32)
    program = girih.compile(module, mesh={"data": 1, "model": 1}, shardings=SAID)
    np.testing.assert_allclose(program(x), girih.compile(module)(x), rtol=1e-5, atol=1e-5)


def test_an_export_for_eight_devices_moves() -> None:
    jax = pytest.importorskip("jax")
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh = AbstractMesh((2, 4), ("data", "model"))  # needs no devices
    cut = jax.ShapeDtypeStruct(
        (8, 8), np.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))
    )
    exported = jax.export.export(jax.jit(lambda x: x @ x.T))(cut)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    alone = girih.compile(exported)
    assert alone.plan.processes == 0 and any("on one device" in n for n in alone.plan.notes)
    np.testing.assert_array_equal(alone(x), x @ x.T)
    small = girih.compile(exported, mesh={"data": 1, "model": 1})
    assert small.mesh is None
    np.testing.assert_array_equal(small(x), x @ x.T)
    wide = girih.compile(exported, mesh={"data": 2, "model": 2})
    assert wide.mesh is not None and wide.mesh.devices == 4

    def mapped(x: object) -> object:
        return jax.lax.psum(x, "data")

    spec = PartitionSpec("data")
    manual = jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    fixed = jax.export.export(jax.jit(manual))(cut)
    for sizes in ({"data": 1, "model": 1}, {"data": 4, "model": 2}):
        with pytest.raises(girih.UnsupportedError, match=r"'data' from 2 to (?s:.*)test_spmd\.py:"):
            girih.compile(fixed, mesh=sizes)

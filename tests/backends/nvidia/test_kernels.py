"""Which emitter takes what, machines of cost models, connected groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends import find
from girih.backends.nvidia import fits, kernels, machines
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.target import ARCHITECTURES, target
from girih.hlo.build import Builder
from girih.hlo.errors import UserError
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import BF16, F32, TensorType
from girih.options import Options

from . import harness


def test_matrix_instructions_by_architecture() -> None:
    b = Builder()
    x, w = b.arguments([TensorType((128, 64), BF16), TensorType((64, 128), BF16)])
    made = b(
        "dot_general", x, w, type=TensorType((128, 128), BF16),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    op = harness.fusion("contract", b.region([made]))
    hopper, ampere = (
        kernels.emit(harness.with_tilings(op, on), on) for on in map(target, ("sm_90a", "sm_80"))
    )
    assert "wgmma" in hopper.text and "wgmma" not in ampere.text
    assert "mma.sync" in compile_ptx(ampere.text, ARCHITECTURES["sm_80"])
    assert not hopper.notes and not ampere.notes


def test_kinds() -> None:
    b = Builder()
    (x,) = b.arguments([TensorType((4, 4), F32)])
    zero = b.constant(0.0, TensorType((), F32))
    total = b.reduce("add", x, zero, [0])
    negated = b("negate", x)
    assert total.op is not None and negated.op is not None
    assert fits.kind_of(total.op) == "reduce" and fits.kind_of(negated.op) == "loop"
    assert fits.kind_of(harness.fusion("contract", b.region([negated]))) == "contract"
    sort = next(d for d in DEFINITIONS if d.name == "sort")
    assert fits.kind_of(harness.operation(sort, next(iter(sort.cases())))) == "opaque"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_has_a_machine(name: str) -> None:
    machine = machines.machine_of(name)
    assert machine.unit("bf16").flops > machine.unit("f32").flops >= machine.unit("f64").flops
    assert [level.name for level in machine.levels] == ["shared", "l2", "memory"]
    assert machines.label(machine) == machine.name


def test_machines_of_files(tmp_path: Any) -> None:
    from girih.optimizer.machine import to_json

    path = tmp_path / "gpu.json"
    path.write_text(to_json(machines.typical("sm_90a")).replace('"sm_90a"', '"mine"'))
    machine = machines.machine_of("sm_80", str(path))
    assert machines.label(machine).startswith("mine ")
    with pytest.raises(UserError, match="is a CPU"):
        find("nvidia", Options(machine="host"))


def attention(q: Any, k: Any, v: Any) -> Any:
    jnp = pytest.importorskip("jax.numpy")
    jax = pytest.importorskip("jax")
    scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32) * 0.125
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("hqk,hkd->hqd", weights, v)


def test_attention_becomes_one_kernel_of_the_pipeline() -> None:
    """Nothing knows attention: connected tiles with products in them go to the matrix units."""
    pytest.importorskip("jax")
    shape = np.zeros((16, 1024, 128), BF16.dtype)
    program = girih.compile(attention, shape, shape, shape, target="ptx-sim:sm_90a")
    (kernel,) = program.plan.kernels
    assert kernel.kind == "tile" and not kernel.notes
    (launch,) = kernel.launches
    assert launch.block[0] == 384  # one warp group copies, two multiply


def test_a_whole_program() -> None:
    pytest.importorskip("jax")
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((2, 32, 16)).astype(np.float32) for _ in range(3))
    program = girih.compile(attention, q, k, v, target="ptx-sim:sm_80")
    np.testing.assert_allclose(program(q, k, v), attention(q, k, v), rtol=1e-4, atol=1e-5)

"""`girih.partition`: whole programs on meshes, in the interpreter of several devices."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.communications import REDUCTION
from girih.partitioning import Partitioned

X, COLUMNS, ROWS = (24, 64), (64, 256), (256, 64)
DOT = {
    "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
}  # fmt: skip


def mlp() -> girih.Module:
    def body(b: Any, x: Any, w1: Any, w2: Any) -> Any:
        return [b("dot_general", b("tanh", b("dot_general", x, w1, **DOT)), w2, **DOT)]

    return build_module([TensorType(dims, F32) for dims in (X, COLUMNS, ROWS)], body)


def inputs(module: girih.Module) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    kinds = module.body.argument_types
    return [generator.standard_normal(kind.dims).astype(kind.dtype) for kind in kinds]  # type: ignore[union-attr]


def check(parts: Partitioned, module: girih.Module) -> None:
    given = inputs(module)
    for got, wanted in zip(parts.interpret(given), girih.interpret(module, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_the_order_in_which_shardings_are_said_says_nothing() -> None:
    said = {"input[0]": ("data",), "input[1]": (None, "model"), "input[2]": ("model",)}
    found = {
        str(girih.partition(mlp(), mesh={"data": 2, "model": 4}, shardings=dict(order)).local)
        for order in itertools.permutations(said.items())
    }
    assert len(found) == 1


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_columns_then_rows_is_one_sum(devices: int) -> None:
    module = mlp()
    parts = girih.partition(
        module, mesh={"model": devices},
        shardings={"input[0]": (), "input[1]": (None, "model")},
    )  # fmt: skip
    check(parts, module)
    if devices == 1:
        assert parts.communications == () and parts.bytes == 0
        return
    (row,) = parts.communications
    assert row.kind == REDUCTION and row.axes == ("model",)
    assert parts.bytes == 2 * X[0] * X[1] * 4 * (devices - 1) / devices


def test_batches_send_nothing() -> None:
    module = mlp()
    parts = girih.partition(module, mesh={"data": 4}, shardings={"input[0]": ("data",)})
    check(parts, module)
    assert parts.communications == ()
    (kind,) = (t for t in parts.local.body.result_types)
    assert kind == TensorType((6, 64), F32)


def test_a_program_moves_to_another_mesh() -> None:
    module = mlp()
    first = girih.partition(
        module, mesh={"data": 2, "model": 4},
        shardings={"input[0]": ("data",), "input[1]": (None, "model")},
    )  # fmt: skip
    check(first, module)
    for sizes in ({"data": 1, "model": 1}, {"data": 3, "model": 2}, {"data": 8, "model": 1}):
        moved = girih.partition(annotated(), mesh=sizes)
        check(moved, module)
        assert (moved.bytes == 0) == (sizes["model"] == 1)


def annotated() -> girih.Module:
    from girih.annotate import annotated

    said = {"input[0]": ("data",), "input[1]": (None, "model")}
    return annotated(mlp(), {"data": 2, "model": 4}, said)


def test_inputs_are_checked() -> None:
    parts = girih.partition(annotated())
    with pytest.raises(girih.UserError, match="takes 3 inputs, got 1"):
        parts.interpret([np.zeros(X, np.float32)])
    with pytest.raises(girih.UserError, match="input 1 must be f32"):
        parts.interpret([np.zeros(d, np.float32) for d in (X, X, ROWS)])
    with pytest.raises(girih.UserError, match="no mesh"):
        girih.partition(mlp())


def test_the_local_program_is_simplified_as_any_other() -> None:
    from girih.hlo.distributed import interpret_parallel
    from girih.optimizer.passes.simplify import Simplify

    parts = girih.partition(annotated())
    small = Simplify()(parts.local)
    blocks = [np.ones(k.dims, np.float32) for k in parts.local.body.argument_types]  # type: ignore[union-attr]
    whole, simple = (interpret_parallel(m, [blocks] * 8).results for m in (parts.local, small))
    for one, other in zip(whole, simple, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-6)


def test_the_same_program_whatever_the_hash_seed() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.test_partitioning import annotated\n"
        "import girih\n"
        "from girih.hlo.text import print_module\n"
        "parts = girih.partition(annotated())\n"
        "print(print_module(parts.local)); print(*parts.communications)\n"
    )
    root = str(Path(girih.__file__).parent)
    found = {
        subprocess.run(
            [sys.executable, "-c", script, root], check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(found) == 1 and found != {b""}


GSPMD = """module @m attributes {mhlo.num_partitions = 6 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<12x12xf32> {mhlo.sharding = "{devices=[2,3]<=[6]}"},
                         %b: tensor<12x12xf32> {mhlo.sharding = "ORDER"}) -> tensor<12x12xf32> {
    %0 = stablehlo.add %a, %b : tensor<12x12xf32>
    return %0 : tensor<12x12xf32>
  }
}"""


def test_meshes_with_devices_in_another_order_are_refused() -> None:
    """Cut alike along axes of the same sizes, each part of the one lies elsewhere in the other."""
    module = girih.import_model(GSPMD.replace("ORDER", "{devices=[2,3]<=[3,2]T(1,0)}"))
    with pytest.raises(girih.UnsupportedError, match="their devices in another order"):
        girih.partition(module)
    parts = girih.partition(girih.import_model(GSPMD.replace("ORDER", "{devices=[6,1]<=[6]}")))
    x, y = np.random.default_rng(0).standard_normal((2, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(parts.interpret([x, y])[0], x + y)

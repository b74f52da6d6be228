"""Kernels on a mesh: tile functions cut by their windows, variants for parts, halos, refusals."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import girih
import girih.language as tl
from girih.hlo.contracts import contract_text

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((16, 8)).astype(np.float32)
W = RANDOM.standard_normal((8, 6)).astype(np.float32)
TAPS = RANDOM.standard_normal((3, 8)).astype(np.float32)
Q, K, V = RANDOM.standard_normal((3, 4, 6, 8)).astype(np.float32)


def normalized(x, out):
    i = tl.tile_id(0)
    rows = x[i * 4 : i * 4 + 4, :]
    out[i * 4 : i * 4 + 4, :] = rows / tl.sqrt(tl.sum(rows * rows, 1, keepdims=True))


def product(x, w, out):
    i = tl.tile_id(0)
    out[i : i + 1, :] = tl.dot(x[i : i + 1, :], w[:, :])


def conv(x, w, out):
    i = tl.tile_id(0)
    near = x[i - 1 : i, :] * w[0:1, :] + x[i + 1 : i + 2, :] * w[2:3, :]
    out[i : i + 1, :] = near + x[i : i + 1, :] * w[1:2, :]


def attention(q, k, v, out):
    h = tl.tile_id(0)
    scores = tl.dot(q[h, :, :], k[h, :, :].T)
    weights = tl.exp(scores - tl.max(scores, 1, keepdims=True))
    out[h, :, :] = tl.dot(weights / tl.sum(weights, 1, keepdims=True), v[h, :, :])


def like_first(x: Any) -> Any:
    return x


def kernel(function: Any, contract: str = "", tile: int = 1, **keywords: Any) -> Any:
    out: Any = like_first
    if function is product:
        out = lambda x, w: tl.Array((x.shape[0], w.shape[1]), x.dtype)  # noqa: E731
    elif function is attention:
        out = lambda q: q  # noqa: E731
    rule = lambda out: out.shape[0] // tile  # noqa: E731
    return girih.kernel(out=out, grid=rule, sharding=contract, **keywords)(function)


def on_mesh(made: Any, arrays: Any, mesh: Any, spec: Any) -> Any:
    """The partitioned kernel, whose results are those of the whole one."""
    parts = girih.partition(made.module(*arrays), mesh=mesh, shardings={"input[0]": spec})
    (got,) = parts.interpret(arrays)
    np.testing.assert_allclose(got, made(*arrays), rtol=1e-5, atol=1e-5)
    return parts


def kernels_of(module: Any) -> list[Any]:
    return [op for op in module.walk() if op.name == "kernel_call"]


@pytest.mark.parametrize("contract", ["", "m k -> m k; replicate={k}"])
@pytest.mark.parametrize("devices", [2, 4])
def test_rows_are_cut_with_the_grid(contract: str, devices: int) -> None:
    parts = on_mesh(kernel(normalized, contract, 4), (X,), {"d": devices}, ("d",))
    (call,) = kernels_of(parts.local)
    assert call.grid == (4 // devices,) and call.operands[0].dims == (16 // devices, 8)
    assert parts.bytes == 0 and not parts.communications


def test_what_windows_say() -> None:
    assert contract_text(kernels_of(kernel(normalized, "", 4).module(X))[0]) == (
        "tile0 _ -> tile0 _; multiple={tile0: 4}"
    )
    assert contract_text(kernels_of(kernel(conv).module(X, TAPS))[0]) == (
        "tile0 _, _ _ -> tile0 _; halo={tile0: 1 1}"
    )
    assert contract_text(kernels_of(kernel(attention).module(Q, K, V))[0]) == (
        "tile0 _ _, tile0 _ _, tile0 _ _ -> tile0 _ _"
    )


def test_heads_are_cut_in_all_operands() -> None:
    parts = on_mesh(kernel(attention), (Q, K, V), {"model": 2}, ("model",))
    (call,) = kernels_of(parts.local)
    assert [value.dims for value in call.operands] == [(2, 6, 8)] * 3


def test_tiles_stay_whole_where_nothing_is_said_of_rows() -> None:
    """Eight parts of 16 rows are no tiles of 4: the rows are gathered, and that is told."""
    parts = on_mesh(kernel(normalized, "", 4), (X,), {"d": 8}, ("d",))
    assert kernels_of(parts.local)[0].grid == (4,)
    assert [row.kind for row in parts.communications] == ["reshard"]


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("contract", ["", "s c, w c -> s c; halo={s: 1 1}; replicate={w}"])
def test_a_halo_moves_its_rows_alone(contract: str, devices: int) -> None:
    parts = on_mesh(kernel(conv, contract), (X, TAPS), {"d": devices}, ("d",))
    assert parts.bytes == 2 * (devices - 1) * X[0].nbytes / devices
    (row,) = parts.communications
    assert row.kind == "inner" and row.op.name == "kernel_call"


def test_sums_of_parts_from_a_variant() -> None:
    said = "m k, k n -> m n; reduction={k}"
    made = kernel(product, said, local={"k": (2, 4)})
    parts = on_mesh(made, (X, W), {"data": 2, "model": 4}, ("data", "model"))
    (call,) = kernels_of(parts.local)
    assert [value.dims for value in call.operands] == [(8, 2), (2, 6)] and call.grid == (8,)
    assert [row.kind for row in parts.communications] == ["reduction"]


def test_no_variant_is_an_error() -> None:
    module = kernel(product, "m k, k n -> m n; reduction={k}", local={"k": 2}).module(X, W)
    with pytest.raises(girih.UnsupportedError, match=r"py:\d+.*part f32\[16,2\], f32\[2,6\]"):
        girih.partition(module, mesh={"d": 4}, shardings={"input[0]": (None, "d")})


@pytest.mark.parametrize(("local", "reason"), [({"z": 2}, "names 'z'"), ({"k": 1}, "from 2 on")])
def test_parts_that_cannot_be(local: Any, reason: str) -> None:
    with pytest.raises(girih.UserError, match=reason):
        kernel(product, "m k, k n -> m n; reduction={k}", local=local).module(X, W)
    with pytest.raises(girih.UserError, match="local= needs sharding="):
        kernel(product, "", local=local).module(X, W)


@pytest.mark.parametrize("limit", ["multiple={m: 3}", "min_local={m: 9}"])
def test_parts_of_other_sizes_are_gathered(limit: str) -> None:
    made = kernel(normalized, f"m k -> m k; replicate={{k}}; {limit}", 4)
    parts = on_mesh(made, (X,), {"d": 2}, ("d",))
    assert kernels_of(parts.local)[0].grid == (4,)
    assert [row.kind for row in parts.communications] == ["reshard"]


def numbered(x, out):
    i = tl.tile_id(0)
    out[i : i + 1, :] = x[i : i + 1, :] + tl.cast(i, x.dtype)


def test_no_contract_and_a_cut_operand_is_an_error() -> None:
    module = girih.kernel(out=like_first, grid=lambda out: out.shape[0])(numbered).module(X)
    with pytest.raises(girih.UserError, match=r"py:\d+.*kernel 'numbered' has no contract"):
        girih.partition(module, mesh={"d": 2}, shardings={"input[0]": ("d",)})


def test_foreign_kernels_have_variants() -> None:
    def twice(x: Any) -> Any:
        return jnp.tanh(x) * 2

    def made(**keywords: Any) -> Any:
        return girih.foreign_kernel(
            "twice", out=like_first, reference=twice, sharding="m k -> m k; replicate={k}",
            **keywords,
        )  # fmt: skip

    module = made(local={"m": (2, 4)}).module(X)
    parts = girih.partition(module, mesh={"d": 4}, shardings={"input[0]": ("d",)})
    np.testing.assert_allclose(parts.interpret([X])[0], np.tanh(X) * 2, rtol=1e-5)
    (call,) = (op for op in parts.local.walk() if op.name == "foreign_call")
    assert call.operands[0].dims == (4, 8) and parts.bytes == 0
    with pytest.raises(girih.UnsupportedError, match="no kernel 'twice' for the part"):
        girih.partition(made().module(X), mesh={"d": 4}, shardings={"input[0]": ("d",)})

"""Calling kernels: libraries of arrays, sizes, references, text, bundles, fresh processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.wire import decode, encode

X = np.random.default_rng(1).standard_normal((40, 33)).astype(np.float32)
Y = np.random.default_rng(2).standard_normal((33, 25)).astype(np.float32)
PRODUCT: dict[str, Any] = {
    "out": lambda a, b: tl.Array((a.shape[0], b.shape[1]), a.dtype),
    "grid": lambda c, TM, TN: (girih.cdiv(c.shape[0], TM), girih.cdiv(c.shape[1], TN)),
}


def body(a, b, c, *, TM=girih.auto, TN=girih.auto, TK=16):
    i, j = tl.tile_id(0) * TM, tl.tile_id(1) * TN
    acc = tl.zeros((TM, TN))
    for k in range(0, a.shape[1], TK):
        acc = tl.dot(a[i : i + TM, k : k + TK], b[k : k + TK, j : j + TN], acc)
    c[i : i + TM, j : j + TN] = acc


matmul = girih.kernel(reference=lambda a, b: a @ b, **PRODUCT)(body)


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-5)


def test_numpy_torch_and_jax_arrays():
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    wanted = X @ Y
    found = matmul(X, Y)
    assert type(found) is np.ndarray
    close(found, wanted)
    found = matmul(torch.from_numpy(X), torch.from_numpy(Y))
    assert isinstance(found, torch.Tensor)
    close(found, wanted)
    found = matmul(jax.numpy.asarray(X), Y)
    assert isinstance(found, jax.Array)
    close(found, wanted)
    close(matmul(np.asfortranarray(X), Y[:, ::1]), wanted)


def test_half_precision_of_torch():
    torch = pytest.importorskip("torch")

    @girih.kernel(out=lambda x: [x, x])
    def kernel(x, double, half):
        double[...] = x[...] + x[...]
        half[...] = (x[...].to(tl.float32) * 0.5).to(x.dtype)

    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(12, dtype=dtype).reshape(3, 4)
        double, half = kernel(x)
        assert double.dtype is dtype and torch.equal(double, x + x) and torch.equal(half, x * 0.5)


def test_open_sizes_are_chosen_without_running_anything():
    chosen = matmul.sizes(X, Y)
    assert chosen["TK"] == 16 and all(isinstance(n, int) for n in chosen.values())
    assert matmul.sizes(X, Y, TM=8)["TM"] == 8
    again = girih.kernel(reference=lambda a, b: a @ b, **PRODUCT)(body)
    assert again.sizes(X, Y) == chosen and again.text(X, Y) == matmul.text(X, Y)
    large = tl.Array((2048, 2048), tl.float32)
    counts = matmul.sizes(large, large, TK=256)
    assert min(counts["TM"], counts["TN"]) >= 64, "small tiles would read each array often"


def test_sizes_that_a_kernel_refuses_are_left_out():
    @girih.kernel(out=lambda x: x, grid=lambda x, T: girih.cdiv(x.size, T))
    def kernel(x, out, *, T=girih.auto):
        assert T <= 32, "T is at most 32"
        out[tl.tile_id(0) * T : tl.tile_id(0) * T + T] = x[
            tl.tile_id(0) * T : (tl.tile_id(0) + 1) * T
        ]

    x = np.arange(1000, dtype=np.float32)
    assert kernel.sizes(x)["T"] <= 32
    np.testing.assert_array_equal(kernel(x), x)

    @girih.kernel(out=lambda x: x)
    def never(x, out, *, T=girih.auto):
        assert T < 0, "no size is right"

    with pytest.raises(girih.UserError, match="no size is right"):
        never.sizes(x)


def test_check_compares_with_the_reference():
    assert matmul.check(X, Y) < 1e-6
    wrong = girih.kernel(reference=lambda a, b: a @ b + 1, **PRODUCT)(body)
    with pytest.raises(girih.UserError, match="output 0 differs from the reference by"):
        wrong.check(X, Y)
    assert wrong.check(X, Y, tolerance=1.0) > 0.01
    with pytest.raises(girih.UserError, match="has no reference= to check against"):
        girih.kernel(**PRODUCT)(body).check(X, Y)
    shape = girih.kernel(reference=lambda a, b: a, **PRODUCT)(body)
    with pytest.raises(girih.UserError, match=r"output 0 is \[40, 25\], its reference gives"):
        shape.check(X, Y)
    broken = girih.kernel(out=lambda x: x, reference=lambda x: x)(_nan)
    with pytest.raises(girih.UserError, match="differs from the reference by inf"):
        broken.check(X)


def _nan(x, out):
    out[...] = x[...] * float("nan")


def test_references_name_the_constants_that_they_need():
    @girih.kernel(out=lambda x: x, reference=lambda x, *, scale: x * np.float32(scale))
    def kernel(x, out, *, scale=2.0):
        out[...] = x[...] * scale

    assert kernel.check(X) == kernel.check(X, scale=3.0) == 0


def test_the_text_is_a_program():
    text = matmul.text(X, Y, TM=16, TN=16)
    assert "kernel_call" in text and "tile_for" in text and "tile_load" in text
    module = parse_module(text)
    assert print_module(module) == text
    close(girih.interpret(module, [X, Y])[0], X @ Y)
    assert print_module(decode(encode(module))) == text
    assert module.body.ops[0].origin == ()
    built = matmul.module(X, Y, TM=16, TN=16)
    tiles = built.body.ops[0].regions[0]
    lines = {origin.line for op in tiles.walk() for origin in op.origin}
    first = body.__code__.co_firstlineno
    assert lines <= set(range(first, first + 6)) and len(lines) > 3


def test_the_module_has_the_reference():
    pytest.importorskip("jax")
    (op,) = matmul.module(X, Y).body.ops
    assert len(op.regions) == 2 and "dot_general" in {inner.name for inner in op.regions[1].ops}
    plain = girih.kernel(reference=lambda a, b: np.array(a) @ np.array(b), **PRODUCT)(body)
    assert len(plain.module(X, Y).body.ops[0].regions) == 1
    assert plain.check(X, Y) < 1e-6


def test_equal_index_scalars_are_one():
    @girih.kernel(out=lambda x: x, grid=8)
    def kernel(x, out):
        out[tl.tile_id(0) * 5 : (tl.tile_id(0) + 1) * 5] = x[
            tl.tile_id(0) // 2 * 10 + tl.tile_id(0) % 2 * 5 : tl.tile_id(0) // 2 * 10
            + 5
            + tl.tile_id(0) % 2 * 5
        ]

    close(kernel.interpret(X), X)
    close(kernel(X), X)


def test_repeated_loads_of_inputs_are_one():
    @girih.kernel(out=lambda x: tl.Array(x.shape, x.dtype, start="x"))
    def kernel(x, out):
        out[...] = x[...] + x[...] * out[...]
        out[...] = x[...] + out[...] + tl.exp(x[...]) * 0.0
        tl.exp(x[0])

    names = [op.name for op in kernel.module(X).walk() if not op.regions]
    assert names.count("tile_load") == 3 and names.count("exponential") == 1
    close(kernel.interpret(X), 2 * X + X * X)
    close(kernel(X), 2 * X + X * X)


def test_sharding_is_kept():
    said = "m k, k n -> m n; reduction={k}"
    split = girih.kernel(sharding=said, **PRODUCT)(body)
    assert split.module(X, Y).body.ops[0].sharding == said


def test_a_contract_that_is_none_is_refused():
    with pytest.raises(girih.UserError, match="the contract `rows` cannot hold"):
        girih.kernel(sharding="rows", **PRODUCT)(body).module(X, Y)


FRESH = """
import sys, numpy as np, girih
program = girih.load(sys.argv[1])
x, y, wanted = (np.load(path) for path in sys.argv[2:])
assert "llvmlite" not in sys.modules and "girih.kernels" not in sys.modules
found = program(x, y)
assert np.abs(np.asarray(found).reshape(wanted.shape) - wanted).max() < 1e-4
anew = girih.compile(sys.argv[1])
assert np.abs(np.asarray(anew(x, y)).reshape(wanted.shape) - wanted).max() < 1e-4
"""


def test_bundles_run_without_the_kernels_source(tmp_path):
    program = matmul.program(X, Y)
    program.save(tmp_path / "matmul.girih")
    paths = []
    for name, array in (("x", X), ("y", Y), ("wanted", X @ Y)):
        np.save(tmp_path / f"{name}.npy", array)
        paths.append(str(tmp_path / f"{name}.npy"))
    command = [sys.executable, "-c", FRESH, str(tmp_path / "matmul.girih"), *paths]
    subprocess.run(command, check=True, cwd=tmp_path)
    again = matmul.program(X, Y)
    again.save(tmp_path / "again.girih")
    assert (tmp_path / "again.girih").read_bytes() == (tmp_path / "matmul.girih").read_bytes()


def test_symbolic_shapes_are_refused():
    with pytest.raises(girih.UserError, match="kernels need fixed shapes"):
        matmul.text(_Symbolic(), Y)


class _Symbolic:
    shape = ("n", 33)
    dtype = np.dtype(np.float32)

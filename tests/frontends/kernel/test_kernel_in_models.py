"""Kernels inside JAX and PyTorch programs: exports carry them, girih compiles them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih.frontends.kernel import payload

X = np.random.default_rng(3).standard_normal((23, 17)).astype(np.float32)
S = np.abs(np.random.default_rng(4).standard_normal(17)).astype(np.float32)


def scale(x, s, out, *, T=8):
    i = tl.tile_id(0) * T
    out[i : i + T] = tl.maximum(x[i : i + T], 0.0) * s[:]


RULES: dict[str, Any] = {"out": lambda x: x, "grid": lambda x, T: girih.cdiv(x.shape[0], T)}


def relu_scaled(x, s):
    import jax.numpy as jnp

    return jnp.where(x > 0, x, 0) * s


with_reference = girih.kernel(reference=relu_scaled, **RULES)(scale)
without = girih.kernel(**RULES)(scale)
KERNELS = pytest.mark.parametrize("kernel", [with_reference, without], ids=["reference", "plain"])
WANTED = np.tanh(np.maximum(X, 0) * S + 1) * 2


def model(kernel):
    import jax.numpy as jnp

    return lambda x, s: jnp.tanh(kernel(x, s) + 1) * 2


def close(found, wanted=WANTED):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)


def kernels_of(module):
    return [op for op in module.walk() if op.name == "kernel_call"]


class TestJax:
    jax = pytest.importorskip("jax")

    @KERNELS
    def test_each_call_has_its_own_line(self, kernel):
        """Although one has been lowered for the same types before."""

        def twice(x, s):
            x = kernel(x, s)
            return kernel(x + 1, s)

        first = twice.__code__.co_firstlineno + 1
        calls = kernels_of(girih.import_model(twice, X, S))
        assert [op.origin[0].line for op in calls] == [first, first + 1]

    @KERNELS
    def test_functions(self, kernel):
        module = girih.import_model(model(kernel), X, S)
        (op,) = kernels_of(module)
        assert len(op.regions) == (2 if kernel is with_reference else 1)
        assert op.origin
        close(girih.interpret(module, [X, S])[0])
        close(girih.compile(module)(X, S))

    def test_stablehlo_carries_kernels_with_a_reference(self):
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        data = girih.export_stablehlo(model(with_reference), X, S, version="1.16.0")
        again = girih.import_model(data)
        (op,) = kernels_of(again)
        assert len(op.regions) == 2
        close(girih.interpret(again, [X, S])[0])
        with mlir.make_ir_context() as context, ir.Location.unknown():
            text = str(stablehlo.deserialize_portable_artifact(context, data))
        assert 'stablehlo.composite "girih.kernel"' in text
        old = girih.import_model(girih.export_stablehlo(again, version="0.18.0"))
        assert not kernels_of(old)
        close(girih.interpret(old, [X, S])[0])
        with pytest.raises(girih.ExportBlockers, match="'scale' has no reference"):
            girih.export_stablehlo(model(without), X, S)

    @KERNELS
    def test_exports(self, kernel):
        exported = self.jax.export.export(self.jax.jit(model(kernel)))(X, S)
        data = exported.serialize()
        again = self.jax.export.deserialize(data)
        for source in (exported, again, bytes(data)):
            module = girih.import_model(source)
            assert len(kernels_of(module)) == 1
            close(girih.interpret(module, [X, S])[0])
        if kernel is with_reference:
            close(again.call(X, S))

    def test_references_are_what_plain_jax_runs(self):
        close(self.jax.jit(model(with_reference))(X, S))
        with pytest.raises(girih.UserError, match="'scale' has no reference=, so XLA cannot run"):
            self.jax.jit(model(without))(X, S)

    @KERNELS
    def test_vmap_is_one_more_axis_of_the_grid(self, kernel):
        from jax import numpy as jnp

        batch = jnp.stack([X, 2 * X, -X])
        wanted = np.maximum(batch, 0) * S
        mapped = self.jax.vmap(kernel, in_axes=(0, None))
        close(mapped(batch, S), wanted)
        (op,) = kernels_of(girih.import_model(mapped, batch, S))
        assert op.grid == (3, 3) and op.result.dims == (3, 23, 17)
        moved = self.jax.vmap(kernel, in_axes=(1, 0))
        scales = jnp.stack([S, 3 * S, S])
        close(moved(batch.swapaxes(0, 1), scales), np.maximum(batch, 0) * scales[:, None])

    def test_vmap_of_loops_and_gathers(self):
        @girih.kernel(out=lambda x, rows: tl.Array((4,), x.dtype, start="x"))
        def kernel(x, rows, out):
            total = tl.zeros((1,))
            for i in range(4):
                total += x[i : i + 1]
            tl.scatter(out, rows[:], 0, x[rows[:]] + total, combine="add")
            tl.store(out, 0, total, mask=total > 0)

        rows = np.array([[2, 3], [1, 1]], np.int32)
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        wanted = np.stack([kernel.interpret(a, r) for a, r in zip(x, rows, strict=True)])
        close(self.jax.vmap(kernel)(self.jax.numpy.asarray(x), rows), wanted)

    def test_a_batch_starts_as_copies_of_one_input(self):
        @girih.kernel(out=lambda x, y: tl.Array(x.shape, x.dtype, start="y"))
        def kernel(x, y, out):
            out[...] += x[...]

        found = self.jax.vmap(kernel, in_axes=(0, None))(self.jax.numpy.asarray(X), X[0])
        close(found, X + X[0])

    def test_derivatives_are_those_of_the_reference(self):
        def loss(kernel):
            return lambda x: kernel(x, S).sum()

        found = self.jax.grad(loss(with_reference))(self.jax.numpy.asarray(X))
        close(found, (X > 0) * S)
        with pytest.raises(girih.UserError, match="has no reference=, so it has no derivative"):
            self.jax.grad(loss(without))(self.jax.numpy.asarray(X))

    def test_a_reference_of_other_types_is_refused(self):
        wrong = girih.kernel(reference=lambda x, s: (x * s).sum(0), **RULES)(scale)
        with pytest.raises(girih.UserError, match=r"'scale': the reference gives float32\[17\]"):
            self.jax.jit(wrong)(X, S)
        several = girih.kernel(reference=lambda x, s: (x, s), **RULES)(scale)
        with pytest.raises(girih.UserError, match="gives 2 results where the kernel gives 1"):
            self.jax.jit(several)(X, S)

    def test_a_reference_in_numpy_is_no_derivative(self):
        kernel = girih.kernel(reference=lambda x, s: np.maximum(x, 0) * s, **RULES)(scale)
        with pytest.raises(girih.UserError, match="'scale': JAX cannot trace its reference"):
            self.jax.grad(lambda x: kernel(x, S).sum())(self.jax.numpy.asarray(X))

    def test_damaged_exports(self):
        text = girih.import_model(model(without), X, S)
        assert text
        for damage, reason in (("zz!", "no base64"), ("AAAA", "damaged")):
            with pytest.raises(girih.ImportBlockers, match=reason):
                girih.import_model(CALL.replace("PAYLOAD", damage))
        other = payload.to_text(without.module(X[:4], S))
        with pytest.raises(girih.ImportBlockers, match="was made for"):
            girih.import_model(CALL.replace("PAYLOAD", other))

    def test_bundles_in_a_fresh_process(self, tmp_path):
        girih.compile(model(with_reference), X, S).save(tmp_path / "model.girih")
        np.savez(tmp_path / "arrays.npz", x=X, s=S, wanted=WANTED)
        subprocess.run([sys.executable, "-c", FRESH], check=True, cwd=tmp_path)


CALL = """
func.func @main(%x: tensor<23x17xf32>, %s: tensor<17xf32>) -> tensor<23x17xf32> {
  %0 = stablehlo.custom_call @girih.kernel(%x, %s) {backend_config = "PAYLOAD"}
    : (tensor<23x17xf32>, tensor<17xf32>) -> tensor<23x17xf32>
  return %0 : tensor<23x17xf32>
}
"""

FRESH = """
import sys, numpy as np, girih
program, arrays = girih.load("model.girih"), np.load("arrays.npz")
found = np.asarray(program(arrays["x"], arrays["s"])).reshape(arrays["wanted"].shape)
assert np.abs(found - arrays["wanted"]).max() < 1e-5
assert not {"jax", "torch", "girih.kernels"} & set(sys.modules)
"""


class TestTorch:
    torch = pytest.importorskip("torch")

    def export(self, kernel):
        torch = self.torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.from_numpy(S))

            def forward(self, x):
                return torch.tanh(kernel(x, self.scale) + 1) * 2

        model = Model()
        with torch.no_grad():
            close(model(torch.from_numpy(X)))
        return torch.export.export(model, (torch.from_numpy(X),))

    @KERNELS
    def test_exports_and_archives(self, kernel, tmp_path):
        exported = self.export(kernel)
        self.torch.export.save(exported, tmp_path / "model.pt2")
        loaded = self.torch.export.load(tmp_path / "model.pt2")
        close(loaded.module()(self.torch.from_numpy(X)).detach())
        for source in (exported, loaded, tmp_path / "model.pt2"):
            module = girih.import_model(source)
            assert [op.name for op in kernels_of(module)] == ["kernel_call"]
            close(girih.interpret(module, [X])[0])
        close(girih.compile(module)(X))

    def test_several_outputs(self, tmp_path):
        torch = self.torch

        @girih.kernel(out=lambda x: [x, tl.Array(x.shape[:1], x.dtype)])
        def parts(x, double, total):
            double[...] = x[...] * 2.0
            total[...] = tl.sum(x[...], 1)

        class Model(torch.nn.Module):
            def forward(self, x):
                double, total = parts(x)
                return double + total[:, None]

        exported = torch.export.export(Model(), (torch.from_numpy(X),))
        torch.export.save(exported, tmp_path / "model.pt2")
        for source in (exported, tmp_path / "model.pt2"):
            module = girih.import_model(source)
            close(girih.interpret(module, [X])[0], X * 2 + X.sum(1, keepdims=True))

    def test_damaged_archives(self, tmp_path):
        exported = self.export(without)
        self.torch.export.save(exported, tmp_path / "model.pt2")
        kernel = without.module(X, S)
        with zipfile.ZipFile(tmp_path / "model.pt2") as old:
            members = {info.filename: old.read(info) for info in old.infolist()}
        with zipfile.ZipFile(tmp_path / "damaged.pt2", "w") as new:
            for name, data in members.items():
                new.writestr(name, data.replace(payload.to_text(kernel).encode(), b"zz!"))
        assert girih.import_model(tmp_path / "model.pt2")
        with pytest.raises(girih.ImportBlockers, match="no base64"):
            girih.import_model(tmp_path / "damaged.pt2")

"""Derivatives and vmap of kernels in JAX and PyTorch, beside those of the frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl

X = np.random.default_rng(3).standard_normal((23, 17)).astype(np.float32)
S = np.abs(np.random.default_rng(4).standard_normal(17)).astype(np.float32)


def scale(x, s, out, *, T=8):
    i = tl.tile_id(0) * T
    out[i : i + T] = tl.maximum(x[i : i + T], 0.0) * s[:]


def nothing_said(x, s, out, *, T=8):
    i = tl.tile_id(0) * T
    out[i : i + T] = x[i : i + T] * s[:]


def on_jax(x, s):
    import jax.numpy as jnp

    return jnp.where(x > 0, x, 0) * s


def on_torch(x, s):
    import torch

    return torch.relu(x) * s


RULES: dict[str, Any] = {"out": lambda x, s: x, "grid": lambda x, T: girih.cdiv(x.shape[0], T)}
KERNELS = {
    "jax": girih.kernel(reference=on_jax, **RULES)(scale),
    "foreign": girih.foreign_kernel("scale", out=lambda x: x, reference=on_jax),
}


class TestJax:
    jax = pytest.importorskip("jax")

    @pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize(
        "what", ["grad", "vjp", "jvp", "hessian", "vmap of grad", "grad of vmap", "remat"]
    )
    def test_transforms(self, kernel, jit, what):
        jax = self.jax
        batch = np.stack([X, 2 * X, -X])

        def derived(f):
            def loss(x, s):
                return (f(x, s) ** 2).sum()

            def mapped(x, s):
                return (jax.vmap(f, (0, None))(x, s) ** 2).sum()

            return {
                "grad": (jax.grad(loss, (0, 1)), X),
                "vjp": (lambda x, s: jax.vjp(f, x, s)[1](x), X),
                "jvp": (lambda x, s: jax.jvp(f, (x, s), (x, s)), X),
                "hessian": (jax.jacfwd(jax.grad(loss, 1), 1), X),
                "vmap of grad": (jax.vmap(jax.grad(loss, (0, 1)), (0, None)), batch),
                "grad of vmap": (jax.grad(mapped, (0, 1)), batch),
                "remat": (jax.grad(lambda x, s: jax.checkpoint(f)(x, s).sum()), X),
            }[what]

        function, x = derived(kernel)
        found = (jax.jit(function) if jit else function)(jax.numpy.asarray(x), S)
        close(jax.tree.leaves(found), jax.tree.leaves(derived(on_jax)[0](x, S)))

    @pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
    def test_training_steps_are_exported(self, kernel):
        jax = self.jax

        def step(f):
            return lambda x, s: x - 0.1 * jax.grad(lambda x: (f(x, s) ** 2).sum())(x)

        exported = jax.export.export(jax.jit(step(kernel)))(X, S)
        close([girih.compile(exported.serialize())(X, S)], [step(on_jax)(X, S)])


class TestTorch:
    torch = pytest.importorskip("torch")
    kernels = KERNELS | {"torch": girih.kernel(reference=on_torch, **RULES)(scale)}
    KINDS = pytest.mark.parametrize("kernel", kernels.values(), ids=kernels)

    def layer(self, f):
        torch = self.torch

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.from_numpy(S))

            def forward(self, x):
                return (torch.tanh(f(x, self.scale) + 1) ** 2).sum()

        return Layer()

    def trained(self, layer):
        x = self.torch.from_numpy(X).requires_grad_()
        layer.zero_grad()
        layer(x).backward()
        return [x.grad, layer.scale.grad]

    @KINDS
    def test_backward(self, kernel):
        wanted = self.trained(self.layer(on_torch))
        close(self.trained(self.layer(kernel)), wanted)

    @KINDS
    @pytest.mark.parametrize("gradients", [True, False])
    def test_compiled_graphs_hold_the_kernel(self, kernel, gradients):
        torch, layer = self.torch, self.layer(kernel)
        torch._dynamo.reset()
        options = {"fallback": False}
        compiled = torch.compile(layer, backend="girih", fullgraph=True, options=options)
        if gradients:
            wanted = self.trained(self.layer(on_torch))
            x = torch.from_numpy(X).requires_grad_()
            compiled(x).backward()
            close([x.grad, layer.scale.grad], wanted)
        else:
            with torch.no_grad():
                x = torch.from_numpy(X)
                close([compiled(x)], [self.layer(on_torch)(x)])

    @KINDS
    @pytest.mark.parametrize("what", ["grad", "jvp", "vmap", "vmap of grad", "grad of vmap"])
    def test_transforms(self, kernel, what):
        func, torch = self.torch.func, self.torch
        x, s = torch.from_numpy(X), torch.from_numpy(S)
        batch = torch.stack([x, 2 * x, -x])

        def derived(f):
            def loss(x, s):
                return (f(x, s) ** 2).sum()

            def mapped(x, s):
                return (func.vmap(f, (0, None))(x, s) ** 2).sum()

            return {
                "grad": lambda: func.grad(loss, (0, 1))(x, s),
                "jvp": lambda: func.jvp(f, (x, s), (x, s)),
                "vmap": lambda: [func.vmap(f, (1, None), 2)(batch.swapaxes(0, 1), s)],
                "vmap of grad": lambda: func.vmap(func.grad(loss, (0, 1)), (0, None))(batch, s),
                "grad of vmap": lambda: func.grad(mapped, (0, 1))(batch, s),
            }[what]()

        close(derived(kernel), derived(on_torch))

    @KINDS
    def test_second_derivatives(self, kernel):
        torch = self.torch

        def second(f):
            x, s = (torch.from_numpy(a).requires_grad_() for a in (X, S))
            (first,) = torch.autograd.grad((f(x, s) ** 2).sum(), x, create_graph=True)
            return torch.autograd.grad((first**2).sum(), s)

        close(second(kernel), second(on_torch))

    @KINDS
    def test_joint_graphs_are_exported(self, kernel):
        from torch.export.experimental import _export_forward_backward

        layer, x = self.layer(kernel), self.torch.from_numpy(X)
        joint = _export_forward_backward(self.torch.export.export(layer, (x,)))
        found = joint.graph_module(layer.scale.detach(), x)[1]
        close([found], self.trained(self.layer(on_torch))[1:])

    def test_integers_and_several_results(self):
        torch = self.torch

        @girih.kernel(
            out=lambda x, rows: [tl.Array(rows.shape, x.dtype), rows],
            reference=lambda x, rows: (x[rows] * 2, rows + 1),
        )
        def taken(x, rows, out, after):
            out[...] = x[rows[:]] * 2.0
            after[...] = rows[...] + 1

        x, rows = (
            torch.from_numpy(X[0]).requires_grad_(),
            torch.tensor([3, 1, 1], dtype=torch.int32),
        )
        values, after = taken(x, rows)
        (values**2).sum().backward()
        wanted = np.zeros_like(X[0])
        np.add.at(wanted, rows.numpy(), 8 * X[0][rows.numpy()])
        close([x.grad], [wanted])
        assert after.tolist() == [4, 2, 2] and not after.requires_grad

    def test_a_batch_starts_as_copies_of_one_input(self):
        @girih.kernel(out=lambda x, y: tl.Array(x.shape, x.dtype, start="y"))
        def kernel(x, y, out):
            out[...] += x[...]

        x = self.torch.from_numpy(X)
        close([self.torch.vmap(kernel, in_dims=(0, None))(x, x[0])], [X + X[0]])

    def test_without_a_reference_there_is_no_derivative(self):
        kernel = girih.kernel(**RULES)(nothing_said)
        with pytest.raises(girih.UserError, match=r"\.py:\d+.*'nothing_said' has no reference="):
            self.trained(self.layer(kernel))
        x, s = self.torch.from_numpy(X), self.torch.from_numpy(S)
        with pytest.raises(girih.UserError, match="'nothing_said' has no reference="):
            self.torch.func.jvp(lambda x: kernel(x, s), (x,), (x,))

    def test_references_that_nobody_differentiates(self):
        def by_hand(x, s):
            return np.asarray([[float(v) for v in row] for row in np.maximum(x, 0)]) * np.asarray(s)

        def halved(x, s, out):
            out[...] = x[...] * 0.5 * s[:]

        kernel = girih.kernel(out=lambda x: x, reference=by_hand)(halved)
        with pytest.raises(girih.UserError, match="'halved' has no derivative: its reference"):
            self.trained(self.layer(kernel))

        def quartered(x, s, out):
            out[...] = x[...] * 0.25 * s[:]

        other = girih.kernel(out=lambda x: x, reference=lambda x, s: x.double() * s)(quartered)
        with pytest.raises(
            girih.UserError, match=r"'quartered': the reference gives torch.float64"
        ):
            self.trained(self.layer(other))

    def test_autocast_leaves_the_derivative_alone(self):
        x = self.torch.from_numpy(X).requires_grad_()
        kernel = girih.kernel(out=lambda x: x, reference=lambda x: x @ x.T @ x)(doubled)
        with self.torch.autocast("cpu", dtype=self.torch.bfloat16):
            result = kernel(x)
            (gradient,) = self.torch.autograd.grad(result.sum(), x)
        again = self.torch.from_numpy(X).requires_grad_()
        (again @ again.T @ again).sum().backward()
        assert gradient.dtype == self.torch.float32
        close([gradient], [again.grad])


def doubled(x, out):
    out[...] = tl.dot(tl.dot(x[...], x[...].T), x[...])


def close(found, wanted):
    for left, right in zip(found, wanted, strict=True):
        left, right = (
            np.asarray(one.detach() if hasattr(one, "detach") else one) for one in (left, right)
        )
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)

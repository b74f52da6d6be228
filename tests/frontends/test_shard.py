"""`girih.shard` inside functions of JAX and PyTorch: in programs, derivatives, batches, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import girih
from girih.annotate import annotated
from girih.frontends.shard_specs import read_dims, sharding_in, spec_text, with_dim
from girih.hlo.graph import Module
from girih.hlo.sharding import Mesh
from girih.hlo.verify import HLO, verify
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.propagated import propagate

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
W = np.linspace(1, 2, 128, dtype=np.float32).reshape(8, 16)
MESH = {"data": 2, "model": 4}


def said(module: Module) -> list[str]:
    """The shardings of constraints; the module is what it has to be."""
    verify(module, HLO)
    return [str(op.type.sharding) for op in module.walk() if op.name == "sharding_constraint"]


def test_specs_are_texts():
    assert spec_text(("data", ("x", "y")), 3) == '[{"data"}, {"x", "y"}, {}]'
    assert with_dim('[{"data"}, {}]', 1) == '[{"data"}, {?}, {}]'
    assert len(read_dims("[]")) == 0
    with pytest.raises(girih.UserError, match="cannot be read"):
        read_dims('[{"data"}')


def test_axes_belong_to_the_first_mesh_that_has_them():
    sized = Mesh((("a", 2), ("b", 4)))
    meshes = {"mesh": sized}
    assert str(sharding_in(meshes, '[{"b"}]')) == '<@mesh, [{"b"}]>'
    assert str(sharding_in(meshes, '[{"c"}, {"a"}]')) == '<@mesh_0, [{"c"}, {"a"}]>'
    assert str(sharding_in(meshes, '[{"d"}]')) == '<@mesh_0, [{"d"}]>'
    assert meshes == {"mesh": sized, "mesh_0": Mesh((("c", None), ("a", None), ("d", None)))}


def test_other_arrays_are_themselves():
    assert girih.shard(X, "data") is X
    with pytest.raises(girih.UserError, match="girih.shard: 3 dims are given, the array has 2"):
        girih.shard(X, "data", None, None)


class TestJax:
    jax = pytest.importorskip("jax")

    @staticmethod
    def loss(x: Any, w: Any) -> Any:
        from jax import numpy as jnp

        return (girih.shard(jnp.tanh(x @ w), "data", ("model",)) * 2).sum()

    def test_it_is_the_identity(self):
        wanted = 2 * np.tanh(X @ W).sum()
        for function in (self.loss, self.jax.jit(self.loss), girih.jit(self.loss)):
            found = function(self.jax.numpy.asarray(X), W)
            np.testing.assert_allclose(found, wanted, atol=1e-4)

    def test_gradients_are_constrained_alike(self):
        gradient = self.jax.grad(self.loss, argnums=1)
        module = girih.import_model(gradient, X, W)
        assert said(module) == ['<@mesh, [{"data"}, {"model"}]>'] * 2
        np.testing.assert_allclose(
            girih.interpret(module, [X, W])[0], gradient(X, W), rtol=1e-4, atol=1e-5
        )

    def test_each_has_its_own_line(self):
        """Although one has been lowered for the same type and spec before."""

        def twice(x: Any) -> Any:
            x = girih.shard(x, "data")
            return girih.shard(x + 1, "data")

        first = twice.__code__.co_firstlineno + 1
        ops = girih.import_model(twice, X).walk()
        lines = [op.origin[0].line for op in ops if op.name == "sharding_constraint"]
        assert lines == [first, first + 1]

    def test_exports_carry_it_and_a_new_dim_is_open(self):
        mapped = self.jax.jit(self.jax.vmap(self.loss, in_axes=(0, None)))
        exported = self.jax.export.export(mapped)(np.stack([X, X, X]), W)
        module = girih.import_model(bytes(exported.serialize()))
        assert said(module) == ['<@mesh, [{?}, {"data"}, {"model"}]>']
        assert module.meshes == {"mesh": Mesh((("data", None), ("model", None)))}

    def test_in_loops(self):
        def turns(x: Any) -> Any:
            def step(carried: Any, _: Any) -> Any:
                return girih.shard(carried * 2, "data"), None

            return self.jax.lax.scan(step, x, None, length=3)[0]

        module = girih.import_model(turns, X)
        assert set(said(module)) == {'<@mesh, [{"data"}, {}]>'}
        np.testing.assert_array_equal(girih.interpret(module, [X])[0], 8 * X)

    def test_a_mesh_of_the_program_is_taken(self):
        from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

        mesh = AbstractMesh((2, 4), ("data", "model"))  # needs no devices
        lies = NamedSharding(mesh, PartitionSpec("data", None))

        def function(x: Any, w: Any) -> Any:
            x = self.jax.lax.with_sharding_constraint(x, lies)
            return girih.shard(x @ w, None, "model")

        exported = self.jax.export.export(self.jax.jit(function))(
            self.jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=lies), W
        )
        module = girih.import_model(exported)
        assert said(module)[-1] == '<@mesh, [{}, {"model"}]>'
        assert list(module.meshes.values()) == [Mesh((("data", 2), ("model", 4)))]

    def test_sizes_come_with_the_mesh(self):
        module = Inline()(girih.import_model(self.loss, X, W))
        with pytest.raises(girih.UserError, match="the size of mesh axis 'data' is open"):
            propagate(module)
        found = propagate(annotated(module, MESH))
        x, w = found.module.body.arguments
        assert str(found.shardings[x]) == '<@mesh, [{"data"}, {}]>'
        assert str(found.shardings[w]) == '<@mesh, [{}, {"model"}]>'
        both = annotated(module, MESH, {"x": (None, "model")})
        assert both.meshes == {"mesh": Mesh(tuple(MESH.items()))}
        assert girih.compile(self.loss, X, W, mesh=MESH).target == "cpu@data=2,model=4"
        alone = girih.compile(self.loss, X, W, mesh={"data": 1, "model": 1})
        np.testing.assert_allclose(alone(X, W), 2 * np.tanh(X @ W).sum(), atol=1e-4)

    def test_errors_have_the_line(self):
        with pytest.raises(girih.UserError, match=r"test_shard\.py:\d+.*did you mean 'data'\?"):
            girih.compile(lambda x: girih.shard(x, "dta"), X, mesh=MESH)
        for spec, reason in (
            (("a", "a"), "axis 'a' is used twice"),
            (("a", None, None), "3 dims are given, the array has 2"),
            ((3,), "a dim is None, an axis or a tuple of axes, not 3"),
        ):
            with pytest.raises(girih.UserError, match=rf"test_shard\.py:\d+: .*{reason}"):
                girih.import_model(lambda x, spec=spec: girih.shard(x, *cast(Any, spec)), X)


class TestTorch:
    torch = pytest.importorskip("torch")

    def module(self, function: Any) -> Any:
        class Model(self.torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return function(x)

        return Model()

    def imported(self, function: Any) -> list[str]:
        """The shardings of the function's program, which computes the same."""
        x = self.torch.tensor(X)
        module = girih.import_model(self.module(function), x)
        np.testing.assert_allclose(
            girih.interpret(module, [X])[0], function(x).numpy(), rtol=1e-5, atol=1e-6
        )
        return said(module)

    def test_in_eager_mode_it_is_the_tensor(self):
        x = self.torch.tensor(X)
        assert girih.shard(x, "data") is x

    def test_programs_have_it(self):
        def function(x: Any) -> Any:
            h = girih.shard(self.torch.relu(x), "data", ("model",)).contiguous()
            return girih.shard(h.t(), None, "data") * 2

        wanted = ['<@mesh, [{"data"}, {"model"}]>', '<@mesh, [{}, {"data"}]>']
        assert self.imported(function) == wanted

    def test_files_and_decompositions_keep_it(self, tmp_path: Path):
        def function(x: Any) -> Any:
            return self.torch.nn.functional.gelu(girih.shard(x, "data"))

        exported = self.torch.export.export(self.module(function), (self.torch.tensor(X),))
        decomposed = exported.run_decompositions()
        file = tmp_path / "model.pt2"
        self.torch.export.save(decomposed, file)
        for source in (exported, decomposed, file):
            assert said(girih.import_model(source)) == ['<@mesh, [{"data"}, {}]>']

    def test_derivatives_and_batches(self):
        def loss(x: Any) -> Any:
            return (girih.shard(x * x, "data") ** 2).sum()

        assert self.imported(self.torch.vmap(lambda x: girih.shard(x, "data"))) == [
            '<@mesh, [{?}, {"data"}]>'
        ]
        x = self.torch.tensor(X, requires_grad=True)
        self.torch.compile(loss, backend="aot_eager", fullgraph=True)(x).backward()
        np.testing.assert_allclose(x.grad.numpy(), 4 * X**3, rtol=1e-5)

    def test_in_branches_and_loops(self):
        from torch._higher_order_ops.while_loop import while_loop

        def function(x: Any) -> Any:
            x = girih.shard(x, "data")
            x = self.torch.cond(
                x.sum() > 0, lambda x: girih.shard(x * 2, "data"), lambda x: x + 1, (x,)
            )
            return while_loop(
                lambda i, x: i < 3,
                lambda i, x: (i + 1, girih.shard(x * 2, "data")),
                (self.torch.tensor(0), x),
            )[1]

        assert self.imported(function) == ['<@mesh, [{"data"}, {}]>'] * 3

    def test_errors_have_the_line(self):
        x = self.torch.tensor(X)
        with pytest.raises(girih.UserError, match=r"test_shard\.py:\d+.*did you mean 'data'\?"):
            girih.compile(self.module(lambda x: girih.shard(x, "dta")), x, mesh=MESH)
        with pytest.raises(girih.UserError, match=r"test_shard\.py:\d+: .*has 2"):
            girih.import_model(self.module(lambda x: girih.shard(x, "a", None, "b")), x)

"""JAX functions, exports and export files become modules that compute what JAX computes."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import girih
from girih.frontends.jax.importing import import_jax, read_exported
from girih.hlo.graph import Module
from girih.hlo.verify import verify

DATA = Path(__file__).parents[1] / "data" / "readers"
SAMPLE = (DATA / "classifier.jax_export").read_bytes()

Pair = namedtuple("Pair", ["first", "second"])


@partial(jax.tree_util.register_dataclass, data_fields=["scale", "shift"], meta_fields=[])
@dataclass
class Affine:
    scale: Any
    shift: Any


def f32(value: Any) -> np.ndarray:
    return np.array(value, np.float32)


def run(module: Module, *inputs: Any, **keywords: Any) -> Any:
    """The module's answer, in the structure of its signature."""
    verify(module)
    assert module.signature is not None
    flat = module.signature.flatten(inputs, keywords)
    results = girih.interpret(module, [np.asarray(leaf) for leaf in flat])
    return module.signature.unflatten(results)


def assert_same(found: Any, expected: Any) -> None:
    left, right = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


TABLE = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)
SMALL = np.arange(3, dtype=np.float32)


@jax.jit
def embedded(x: Any) -> Any:
    return x @ TABLE


def model(params: Any, pair: Pair, *, scale: Any) -> Any:
    """Trees of every kind, a loop, a nested jit, and arrays of two sizes closed over."""
    hidden = embedded(pair.first) + params["bias"]

    def step(carry: Any, row: Any) -> Any:
        return jnp.tanh(carry + row), carry.sum()

    last, sums = jax.lax.scan(step, hidden, params["rows"])
    last = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, last))[1]
    return {"last": last @ jnp.transpose(TABLE) * scale, "sums": sums}, Pair(
        pair.second + SMALL, None
    )


INPUTS = (
    {
        "bias": np.ones(32, np.float32),
        "rows": np.full((2, 1, 32), 0.5, np.float32),
        "unused": np.zeros(2, np.float32),
    },
    Pair(np.ones((1, 64), np.float32), np.ones(3, np.float32)),
)


def test_a_function_keeps_structure_names_and_numbers() -> None:
    module = import_jax(model, *INPUTS, scale=2.0)
    signature = module.signature
    assert signature is not None
    paths = [argument.path for argument in signature.arguments]
    assert paths == [
        "params['bias']",
        "params['rows']",
        "params['unused']",
        "pair.first",
        "pair.second",
        "scale",
    ]
    assert [r.path for r in signature.results] == [
        "output[0]['last']",
        "output[0]['sums']",
        "output[1].first",
    ]
    assert signature.names == ("params", "pair")
    found = run(module, *INPUTS, scale=np.float32(2))
    assert found[1].second is None
    assert_same(found, model(*INPUTS, scale=2.0))


def test_large_closed_over_arrays_are_weights_small_ones_constants() -> None:
    module = import_jax(model, *INPUTS, scale=2.0)
    assert list(module.weights) == ["constant_0"]
    np.testing.assert_array_equal(module.weights["constant_0"].array, TABLE)
    named = {op.attributes["weight"] for op in module.walk() if op.name == "weight"}
    assert named == {"constant_0"}


def test_origins_are_lines_of_this_file() -> None:
    module = import_jax(model, *INPUTS, scale=2.0)
    dots = [op for op in module.walk() if op.name == "dot_general"]
    lines = Path(__file__).read_text().splitlines()
    for op in dots:
        (origin,) = op.origin
        assert origin.file == __file__ and "TABLE" in lines[origin.line - 1]
    assert all(not o.file.endswith("traced.py") for op in module.walk() for o in op.origin)


THROUGH_A_LINK = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in str(finder)]
sys.path.insert(0, sys.argv[1])
import girih, jax.numpy as jnp, numpy as np
module = girih.import_model(lambda x: jnp.tanh(x) + 1, np.ones(3, np.float32))
print(girih.__file__, *{origin.file for op in module.walk() for origin in op.origin})
"""


def test_origins_where_girih_is_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "girih").symlink_to(Path(girih.__file__).parent)
    command = [sys.executable, "-c", THROUGH_A_LINK, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(tmp_path / "girih" / "__init__.py"), "<string>"]


def test_donation_is_kept() -> None:
    @partial(jax.jit, donate_argnums=(0,), donate_argnames=("rate",))
    def update(weights: Any, gradient: Any, *, rate: Any) -> Any:
        return {key: weights[key] - rate * gradient[key] for key in weights}

    weights = {"b": np.ones(3, np.float32), "w": np.ones((2, 3), np.float32)}
    module = import_jax(update, weights, weights, rate=np.float32(0.5))
    assert module.signature is not None
    donated = {a.path: a.aliases for a in module.signature.arguments if a.donated}
    assert donated == {"weights['b']": 0, "weights['w']": 1, "rate": None}
    expected = {"b": np.full(3, 0.5), "w": np.full((2, 3), 0.5)}
    assert_same(run(module, weights, weights, rate=np.float32(0.5)), expected)


def test_static_arguments_and_shapes_instead_of_arrays() -> None:
    @partial(jax.jit, static_argnums=1, static_argnames="flip")
    def power(x: Any, n: int, flip: bool = False) -> Any:
        return -(x**n) if flip else x**n

    module = import_jax(power, jax.ShapeDtypeStruct((2,), jnp.float32), 3, flip=True)
    assert_same(run(module, f32([1, 2])), f32([-1, -8]))


def test_registered_classes_keep_their_field_names() -> None:
    affine = Affine(np.float32(2), np.float32(1))
    module = import_jax(lambda a, x: Affine(a.scale * x, a.shift), affine, np.float32(3))
    assert module.signature is not None
    assert [a.path for a in module.signature.arguments] == ["a.scale", "a.shift", "x"]
    assert [r.path for r in module.signature.results] == ["output.scale", "output.shift"]
    assert_same(run(module, affine, np.float32(3)).scale, 6)


def test_a_training_step() -> None:
    def loss(params: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ params["w"] + params["b"])
        return jnp.mean((hidden.sum(1) - y) ** 2)

    @partial(jax.jit, donate_argnums=0)
    def step(params: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {"b": np.zeros(4, np.float32), "w": np.eye(3, 4, dtype=np.float32)}
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), f32([1, 2])
    module = import_jax(step, params, x, y)
    assert_same(run(module, params, x, y), step(jax.tree.map(jnp.array, params), x, y))


def test_blockers_name_the_line_and_the_remedy() -> None:
    def model(x: Any) -> Any:
        jax.debug.print("{}", x, ordered=True)
        shape = jax.ShapeDtypeStruct((3,), np.float32)
        y = jax.pure_callback(lambda a: a, shape, x)
        return jnp.cumsum(y)

    with pytest.raises(girih.ImportBlockers) as caught:
        import_jax(model, np.ones(3, np.float32))
    report = str(caught.value)
    assert "test_jax_import.py:" in report and "pure_callback" in report
    assert "ordered side effects" in report


def test_a_function_that_jax_cannot_trace() -> None:
    with pytest.raises(girih.UserError, match="could not trace 'bad'"):

        def bad(x: Any) -> Any:
            return x if x > 0 else -x

        import_jax(bad, np.float32(1))


def exported(platforms: list[str] | None = None) -> export.Exported:
    jitted = jax.jit(model, donate_argnums=1)
    return export.export(jitted, platforms=platforms or ["cpu"])(*INPUTS, scale=2.0)


export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")


@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "tpu"], ["tpu", "cuda", "cpu"]])
def test_an_export_and_its_file_give_the_same_program(platforms: list[str]) -> None:
    source = exported(platforms)
    from_object, from_file = import_jax(source), read_exported(bytes(source.serialize()))
    assert from_object.signature is not None and from_file.signature is not None
    assert from_object.signature.arguments == from_file.signature.arguments
    assert from_object.signature.results == from_file.signature.results
    expected = model(*INPUTS, scale=2.0)
    for module in (from_object, from_file):
        assert_same(run(module, *INPUTS, scale=np.float32(2)), expected)
        np.testing.assert_array_equal(module.weights["constant_0"].array, TABLE)
        assert not any(op.name == "case" for op in module.walk())


def test_the_committed_export() -> None:
    module = read_exported(SAMPLE, "sample")
    assert module.signature is not None
    assert [a.path for a in module.signature.arguments] == [
        "state.weights['dense']",
        "state.weights['unused']",
        "state.step",
        "image",
        "scale",
    ]
    assert module.signature.inputs.children[0].type_name == "samples.State"
    weights = {"dense": np.ones((32, 4), np.float32), "unused": np.ones(3, np.float32)}
    image = np.ones((2, 64), np.float32)
    found = run(module, (weights, np.int32(0)), image, scale=np.float32(2))
    hidden = np.tanh(image @ TABLE) @ weights["dense"]
    np.testing.assert_allclose(found[0]["logits"], 2 * hidden, rtol=1e-4, atol=1e-5)
    places = {origin.file for op in module.walk() for origin in op.origin}
    assert "make_samples.py" in places


def test_a_sharded_export_keeps_its_annotations() -> None:
    module = read_exported((DATA / "sharded.jax_export").read_bytes())
    assert {name: str(mesh) for name, mesh in module.meshes.items()} == {"mesh": '<["x"=2, "y"=2]>'}
    first, second = module.body.arguments
    assert str(first.tensor.sharding) == '<@mesh, [{"x"}, {}]>'
    assert str(second.tensor.sharding) == '<@mesh, [{}, {"y"}]>'
    assert not any("sharding" in key for facts in module.main.argument_attributes for key in facts)
    constraint, result = [op for op in module.walk() if op.name == "sharding_constraint"]
    assert constraint.operands[0].op and constraint.operands[0].op.name == "dot_general"
    assert str(constraint.type.sharding) == '<@mesh, [{"x"}, {"y"}]>'
    assert result.stated == "result" and str(result.type.sharding) == '<@mesh, [{"x"}, {}]>'
    assert any("4 devices" in note for note in module.notes)
    a, b = np.full((8, 4), 0.1, np.float32), np.ones((4, 8), np.float32)
    assert_same(run(module, a, b), np.tanh(a @ b))


def test_an_export_file_is_read_without_jax() -> None:
    code = f"""
import sys
for name in ("jax", "jaxlib", "torch", "llvmlite", "flatbuffers"):
    sys.modules[name] = None
from girih.frontends.jax.importing import read_exported
print(len(read_exported(open({str(DATA / "classifier.jax_export")!r}, "rb").read()).weights))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert result.stdout.strip() == "1", result.stderr


def polymorphic(x: Any, w: Any) -> Any:
    hidden = jnp.concatenate([x @ w, jnp.ones((x.shape[0], 1))], axis=1)
    loop = jax.lax.fori_loop(0, 3, lambda i, h: h * 2 + i, hidden)
    return jax.nn.softmax(loop).reshape(-1), jnp.arange(x.shape[0]), x[::2].sum(0)


def symbolic() -> export.Exported:
    (size,) = export.symbolic_shape("2*b")
    x = jax.ShapeDtypeStruct((size, 4), np.float32)
    return export.export(jax.jit(polymorphic))(x, jax.ShapeDtypeStruct((4, 3), np.float32))


def test_symbolic_shapes_stay_symbolic_without_examples() -> None:
    x, w = np.arange(24, dtype=np.float32).reshape(6, 4) / 10, np.ones((4, 3), np.float32)
    module = import_jax(symbolic())
    assert list(module.symbols) == ["b"]
    assert_same(run(module, x, w), polymorphic(x, w))
    with pytest.raises(
        girih.UserError, match=r"= 2\*b is 5, but the size b must be a whole number"
    ):
        run(module, x[:5], w)


def test_examples_fix_symbolic_shapes() -> None:
    x, w = np.arange(24, dtype=np.float32).reshape(6, 4) / 10, np.ones((4, 3), np.float32)
    source = symbolic()
    from_file = read_exported(bytes(source.serialize()), "", x, w)
    from_bytes = girih.import_model(bytes(source.serialize()), x, w)
    for module in (import_jax(source, x, w), from_file, from_bytes):
        assert_same(run(module, x, w), polymorphic(x, w))
        assert not any(op.name.startswith("dynamic_iota") for op in module.walk())
    with pytest.raises(girih.UserError, match=r"size|shape|divisible|5"):
        import_jax(source, x[:5], w)
    with pytest.raises(girih.UserError, match=r"example 1 has shape \[4, 2\], declared f32\[4,3\]"):
        import_jax(source, x, w[:, :2])


POLYMORPHIC = {
    "cumsum": lambda x: jnp.cumsum(x, 1),
    "scan": lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), jnp.zeros_like(x[0]), x)[1],
    "attention": lambda x: jnp.einsum(
        "bij,bjd->bid", jax.nn.softmax(jnp.einsum("bid,bjd->bij", x, x)), x
    ),
    "convolution": lambda x: jax.lax.conv(x[:, None], jnp.ones((2, 1, 3, 3)), (1, 1), "SAME"),
    "gather": lambda x: x[:, ::-1][:, jnp.array([0, 0, 1])],
    "while": lambda x: jax.lax.while_loop(
        lambda s: s[0] < x.shape[1], lambda s: (s[0] + 1, s[1] + x), (0, x)
    )[1],
    "pad": lambda x: jnp.pad(jnp.roll(x, 1, axis=1), ((0, 0), (1, 2), (0, 0))),
}


@pytest.mark.parametrize("name", POLYMORPHIC)
def test_polymorphic_functions(name: str) -> None:
    function = POLYMORPHIC[name]
    batch, length = export.symbolic_shape("b, t")
    shape = jax.ShapeDtypeStruct((batch, length, 4), np.float32)
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    module = import_jax(export.export(jax.jit(function))(shape), x)
    assert_same(run(module, x), function(x))


def test_examples_must_have_the_exports_structure() -> None:
    with pytest.raises(girih.UserError, match="do not fit the export"):
        import_jax(exported(), 1.0)


@pytest.mark.parametrize("size", [0, 4, 100, len(SAMPLE) // 2])
def test_a_truncated_export_is_refused(size: int) -> None:
    with pytest.raises(girih.UserError):
        read_exported(SAMPLE[:size])


RAGGED = {
    "free": (((1,), (1,)), ((), ()), (0,), (0,), (6, 3), (2, 3, 4), [2, 3]),
    "free in batches": (((2,), (2,)), ((0,), (1,)), (1,), (0,), (2, 6, 3), (3, 2, 3, 4),
                        [[2, 3, 0], [1, 2, 3]]),
    "contracting": (((0,), (0,)), ((), ()), (0,), (), (6, 3), (6, 4), [2, 3]),
    "contracting in batches": (((1,), (1,)), ((0,), (0,)), (1,), (), (2, 6, 3), (2, 6, 4),
                               [[2, 3, 0], [1, 2, 3]]),
    "batching": (((2,), (1,)), ((0,), (0,)), (0,), (), (6, 2, 3), (6, 3, 4), [2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_products_exported_for_gpus(name: str) -> None:
    """Exports for GPUs and TPUs have `chlo.ragged_dot`, those for CPUs its parts."""
    contract, batch, ragged, group, left, right, sizes = RAGGED[name]
    numbers = jax.lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)

    def product(x: Any, y: Any, sizes: Any) -> Any:
        return jax.lax.ragged_dot_general(x, y, sizes, numbers)

    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(dims, np.float32) for dims in (left, right))
    inputs = (x, y, np.array(sizes, np.int32))
    exported = export.export(jax.jit(product), platforms=["cuda"])(*inputs)
    assert "chlo.ragged_dot" in exported.mlir_module()
    assert_same(run(import_jax(exported), *inputs), jax.jit(product)(*inputs))


def test_ragged_products_take_nothing_from_other_groups() -> None:
    x, y = np.ones((4, 2), np.float32), np.ones((2, 2, 3), np.float32)
    y[1] = np.inf
    exported = export.export(jax.jit(jax.lax.ragged_dot), platforms=["cuda"])
    found = run(import_jax(exported(x, y, np.array([2, 1], np.int32))), x, y, np.array([2, 1], "i"))
    np.testing.assert_array_equal(found[:, 0], [2, 2, np.inf, 0])

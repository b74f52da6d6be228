"""Shardings that a user says by name of any source's arguments and weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import girih
from girih.annotate import annotated
from girih.hlo.build import build_module
from girih.hlo.graph import Module, Weight
from girih.hlo.interpret import interpret
from girih.hlo.sharding import Axis, Mesh, parse_sharding
from girih.hlo.signature import Argument, Signature
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import HLO, verify
from girih.optimizer.sharding.remesh import remeshed

KIND = TensorType((4, 4), F32)
MESH = {"data": 2, "model": 4}
X = np.arange(16, dtype=np.float32).reshape(4, 4)


def program() -> Module:
    """x @ layers.0.w1 @ layers.1.w1 @ params['w']"""

    def body(b, x, w):
        for name in ("layers.0.w1.weight", "layers.1.w1.weight"):
            x = b("add", x, b("weight", type=KIND, weight=name))
        return [b("add", x, w)]

    module = build_module([KIND, KIND], body)
    signature = Signature.plain([((4, 4), "f32")] * 2, [((4, 4), "f32")])
    named = [Argument("x", (4, 4), "f32"), Argument("params['w']", (4, 4), "f32")]
    weights = {
        f"layers.{n}.w1.weight": Weight(f"layers.{n}.w1.weight", X + n, None, [f"tied.{n}"])
        for n in range(2)
    }
    module = module.with_weights(weights)
    return replace(module, signature=replace(signature, arguments=tuple(named)))


def test_patterns_name_arguments_and_weights():
    module = program()
    said = {
        "layers.*.weight": (None, "model"),
        "x": ("data",),
        "params.w": [("data", "model"), None],
    }
    made = annotated(module, MESH, said)
    verify(made, HLO)
    assert made.meshes == {"mesh": Mesh((("data", 2), ("model", 4)))}
    first, second = made.body.arguments
    assert str(first.tensor.sharding) == '<@mesh, [{"data"}, {}]>'
    assert str(second.tensor.sharding) == '<@mesh, [{"data", "model"}, {}]>'
    behind = [op for op in made.body.ops if op.name == "sharding_constraint"]
    assert [op.operands[0].op and op.operands[0].op.name for op in behind] == ["weight"] * 2
    assert {str(op.type.sharding) for op in behind} == {'<@mesh, [{}, {"model"}]>'}
    inputs = [X, X]
    np.testing.assert_array_equal(interpret(made, inputs)[0], interpret(module, inputs)[0])
    assert not any(op.name == "sharding_constraint" for op in module.body.ops)


def test_a_tied_weight_has_each_of_its_names():
    made = annotated(program(), MESH, {"tied.1": ("model",)})
    (constraint,) = [op for op in made.body.ops if op.name == "sharding_constraint"]
    maker = constraint.operands[0].op
    assert maker is not None and maker.attributes["weight"] == "layers.1.w1.weight"
    with pytest.raises(girih.UserError, match=r"the names of weight 'layers\.1\.w1\.weight' dis"):
        annotated(program(), MESH, {"tied.1": ("model",), "layers.1.*": ("data",)})


def test_meshes_of_the_program_are_kept():
    kind = KIND.with_sharding(parse_sharding('<@mesh, [{"a"}, {}]>'))
    module = build_module([kind, KIND], lambda b, x, y: [b("add", x, y)])
    module = replace(module, meshes={"mesh": Mesh((("a", 2),))})
    made = annotated(module, MESH, {"input[1]": ("data",)})
    assert list(made.meshes) == ["mesh", "mesh_0"]
    again = annotated(module, {"a": 2}, {"input[1]": ("a",)})
    assert list(again.meshes) == ["mesh"]
    with pytest.raises(girih.UserError, match="'input\\[0\\]' has a sharding already"):
        annotated(module, MESH, {"input[0]": ("data",)})


def test_an_axis_may_have_no_size():
    made = annotated(program(), {"data": None}, {"x": ("data",)})
    sharding = made.body.arguments[0].tensor.sharding
    assert sharding is not None and sharding.dims[0].axes == (Axis("data"),)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"layers.*.w2.weight": ("data",)}, "is named 'layers.*.w2.weight'; nearest are layers"),
        ({"zzz": ("data",)}, "nothing is named 'zzz'; there are x, params['w']"),
        ({"x": ("dato",)}, "did you mean 'data'?"),
        ({"x": ("data", "data")}, "uses axis 'data' twice"),
        ({"x": (None, None, "data")}, "'x' has 3 dims, 'x' is f32[4,4]"),
        ({"x": (3,)}, "a dim is None, an axis or a tuple of axes, not 3"),
        ({"x": ("data",), "*": ("model",)}, "'x' and '*' both name 'x'"),
        ({}, "says nothing without shardings"),
    ],
)
def test_what_means_nothing_is_refused(said, message):
    with pytest.raises(girih.UserError) as caught:
        annotated(program(), MESH, said)
    assert message in str(caught.value)


def test_compile_checks_them_and_says_that_one_device_uses_none():
    for mesh in ({"data": 1, "model": 1}, {"data": None, "model": 2}):
        compiled = girih.compile(program(), mesh=mesh, shardings={"x": ("data",)})
        assert compiled.mesh is None and compiled.target == "cpu"
        assert any("not used on one device: 1 argument" in note for note in compiled.plan.notes)
    with pytest.raises(girih.UserError, match="nothing is named 'y'"):
        girih.compile(program(), mesh=MESH, shardings={"y": ("data",)})
    with pytest.raises(girih.UserError, match="says nothing without shardings"):
        girih.compile(program(), mesh=MESH)
    with pytest.raises(girih.UserError, match="shardings: need mesh="):
        girih.compile(program(), shardings={"x": ("data",)})


def test_a_bundle_keeps_what_was_said(tmp_path):
    """Its program can be moved to another mesh later, with weights under their own names."""
    module = program()
    said = {"layers.*.weight": (None, "model"), "x": ("data",)}
    girih.compile(module, mesh=MESH, shardings=said).save(tmp_path / "kept.girih")
    kept = girih.import_model(tmp_path / "kept.girih")
    assert kept.meshes == {"mesh": Mesh((("data", 2), ("model", 4)))}
    assert str(kept.body.arguments[0].tensor.sharding) == '<@mesh, [{"data"}, {}]>'
    constraints = [op for op in kept.walk() if op.name == "sharding_constraint"]
    assert [str(op.type.sharding) for op in constraints] == ['<@mesh, [{}, {"model"}]>'] * 2
    assert sorted(kept.weights) == sorted(module.weights)
    moved = remeshed(kept, {"data": 4, "model": 1})
    assert moved.meshes == {"mesh": Mesh((("data", 4),))}
    np.testing.assert_array_equal(girih.compile(moved)(X, X)[0], interpret(module, [X, X])[0])

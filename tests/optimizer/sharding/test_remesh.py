"""An annotated program on a mesh of other sizes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import girih
from girih.annotate import annotated
from girih.frontends.stablehlo import read_stablehlo
from girih.hlo.build import build_module, build_region, make_op
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import HLO, verify
from girih.optimizer.sharding.propagated import propagate
from girih.optimizer.sharding.remesh import remeshed

KIND = TensorType((8, 8), F32)
MESH = Mesh((("data", 2), ("model", 4)))


def program(said: str = '<@mesh, [{"data"}, {"model"}]>') -> Module:
    """tanh(x), constrained, times y, of which nothing is said"""

    def body(b, x, y):
        x = b("tanh", x)
        kind = KIND.with_sharding(parse_sharding(said))
        x = b.append(make_op("sharding_constraint", [x], {}, (), [kind])).result
        return [b("multiply", x, y)]

    first = KIND.with_sharding(parse_sharding('<@mesh, [{"data"}, {?}p1]>'))
    module = build_module([first, KIND], body)
    return replace(module, meshes={"mesh": MESH}, attributes={"mhlo.num_partitions": 8})


def stated(module: Module) -> list[str]:
    found = [str(module.body.arguments[0].tensor.sharding)]
    return found + [str(op.type.sharding) for op in module.walk() if op.type.sharding]


@pytest.mark.parametrize("sizes", [(8, 2), (4, 2), (2, 2), (3, 2)])
def test_annotations_move_along(sizes):
    module = program()
    moved = remeshed(module, dict(zip(("data", "model"), sizes, strict=True)))
    verify(moved, HLO)
    assert moved.meshes["mesh"].axes == (("data", sizes[0]), ("model", sizes[1]))
    assert stated(moved) == stated(module)
    assert "mhlo.num_partitions" not in moved.attributes  # it counted other devices
    result = moved.body.results[0]
    assert str(propagate(moved).shardings[result]) == '<@mesh, [{"data"}, {"model"}]>'
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(interpret(moved, [x, x])[0], interpret(module, [x, x])[0])


def test_an_axis_of_size_one_is_gone():
    moved = remeshed(program(), {"data": 1, "model": 8})
    assert moved.meshes == {"mesh": Mesh((("model", 8),))}
    assert stated(moved) == ["<@mesh, [{}, {?}p1]>", '<@mesh, [{}, {"model"}]>']
    verify(moved, HLO)
    alone = remeshed(program(), {"data": 1, "model": 1})
    assert alone.meshes == {"mesh": Mesh(())} and alone.meshes["mesh"].devices == 1
    verify(alone, HLO)


def test_equal_sizes_change_nothing():
    module = program()
    assert remeshed(module, {"data": 2, "model": 4}) is module


def test_open_sizes_get_sizes():
    module = replace(program(), meshes={"mesh": Mesh((("data", None), ("model", None)))})
    assert remeshed(module, {"data": 2, "model": 4}).meshes == {"mesh": MESH}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 2, "modl": 4}, "no axis 'modl'; did you mean 'model'"),
        ({"data": 2}, "axis 'model' of the program's mesh has no size; 1 leaves it out"),
        ({"data": 2, "model": 0}, "axis 'model' must have a size of at least 1, not 0"),
    ],
)
def test_sizes_are_for_the_axes_that_there_are(sizes, message):
    with pytest.raises(girih.UserError, match=message):
        remeshed(program(), sizes)
    with pytest.raises(girih.UserError, match="says nothing of shardings; annotate it"):
        remeshed(build_module([KIND], lambda b, x: [b("tanh", x)]), sizes)


def test_parts_of_axes_have_to_divide():
    module = program('<@mesh, [{}, {"model":(2)2}]>')
    assert stated(remeshed(module, {"data": 2, "model": 8})) == stated(module)
    with pytest.raises(girih.UnsupportedError, match=r'"model":\(2\)2, which is no part .* of 6'):
        remeshed(module, {"data": 2, "model": 6})
    with pytest.raises(girih.UnsupportedError, match="no part of an axis 'model' of 1"):
        remeshed(module, {"data": 8, "model": 1})


def test_a_mesh_with_an_order_of_devices_keeps_its_sizes():
    ordered = Mesh((("data", 2), ("model", 2)), (0, 2, 1, 3))
    module = replace(program(), meshes={"mesh": ordered})
    with pytest.raises(girih.UnsupportedError, match="orders its devices, along axis 'data' too"):
        remeshed(module, {"data": 4, "model": 2})


MANUAL = """
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>]
        out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%b: tensor<4x8xf32>) {
      %1 = stablehlo.add %b, %b : tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("attention.py":7:3)
    return %0 : tensor<8x8xf32>
  }
}
"""


def test_manual_computations_stay_where_they_are():
    module = read_stablehlo(MANUAL)
    assert remeshed(module, {"x": 2, "y": 2}) is module
    with pytest.raises(girih.UnsupportedError) as caught:
        remeshed(module, {"x": 4, "y": 2})
    message = str(caught.value)
    assert "'x' from 2 to 4" in message and "attention.py:7" in message
    assert "sdy.manual_computation: its body is written for the blocks" in message
    assert "axis 'x' is manual" in message


def test_a_manual_computation_keeps_its_axes_of_size_one():
    module = read_stablehlo(MANUAL.replace('"y"=2', '"y"=1'))
    assert remeshed(module, {"x": 2, "y": 1}) is module


def test_groups_of_devices_stay_what_they_are():
    def body(b, x):
        add = build_region([TensorType((), F32)] * 2, lambda b, p, q: [b("add", p, q)])
        facts = {"replica_groups": ((0, 1),), "channel_id": 1, "use_global_device_ids": True}
        return [b("all_reduce", x, regions=[add], **facts)]

    module = build_module([KIND], body)
    module = replace(module, attributes={"mhlo.num_partitions": 2})
    module = annotated(module, {"x": 2}, {"input[0]": ("x",)})
    with pytest.raises(
        girih.UnsupportedError, match="all_reduce: it numbers the devices along 'x'"
    ):
        remeshed(module, {"x": 4})


def test_a_bundle_is_moved_without_a_framework(tmp_path):
    said = {"input[0]": ("data",), "input[1]": (None, "model")}
    module = build_module([KIND, KIND], lambda b, x, y: [b("add", x, y)])
    compiled = girih.compile(module, target="null", mesh=dict(MESH.axes), shardings=said)
    compiled.save(tmp_path / "kept.girih")
    code = """
import sys, girih
from girih.optimizer.sharding.propagated import propagate
from girih.optimizer.sharding.remesh import remeshed
moved = remeshed(girih.import_model(sys.argv[1]), {"data": 8, "model": 1})
print(propagate(moved).shardings[moved.body.results[0]])
print([name for name in ("jax", "jaxlib", "torch", "llvmlite") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "kept.girih")], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ['<@mesh, [{"data"}, {}]>', "[]"], done.stderr

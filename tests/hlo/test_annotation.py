"""Meshes, shardings of types and the operations that annotate values: written, read, checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.errors import ExportBlockers, UserError, VerifyError
from girih.hlo.graph import Module, Origin
from girih.hlo.interpret import interpret
from girih.hlo.parse import parse_module
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.text import print_module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import HLO, INLINED, SHARDED, verify
from girih.hlo.wire import decode, encode, read_message
from girih.optimizer.passes.one_device import OneDevice
from girih.optimizer.pipeline import simplify_pipeline
from girih.options import Options

KIND = TensorType((4, 6), F32)
X = np.arange(24, dtype=np.float32).reshape(4, 6)
MESHES = {"mesh": Mesh((("x", 2), ("y", 4))), "open": Mesh((("x", None),), ())}


def cut(text: str, kind: TensorType = KIND) -> TensorType:
    return kind.with_sharding(parse_sharding(text))


def module_of(body, *kinds: TensorType) -> Module:
    return replace(build_module(kinds, body), meshes=MESHES)


def annotated() -> Module:
    """Two constraints on one value, a group of two, a barrier."""

    def body(b, x):
        y = b("tanh", x)
        first = b("sharding_constraint", y, type=cut('<@mesh, [{"x"}, {?}p2]>'))
        second = b("sharding_constraint", y, type=cut('<@mesh, [{}, {"y":(1)2}]>'))
        b.op("sharding_group", [first], {"group_id": 0})
        b.op("sharding_group", [second], {"group_id": 0})
        return [b("propagation_barrier", b("add", first, second), allowed_direction="FORWARD")]

    return module_of(body, cut('<@open, [{"x"}, {}]>'))


def names(module: Module) -> list[str]:
    return [op.name for op in module.body.ops]


def test_text_and_wire_give_the_same_module_back():
    module = annotated()
    verify(module, HLO)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    again = decode(encode(module))
    assert print_module(again) == text and again.meshes == MESHES
    assert again.body.arguments[0].type is module.body.arguments[0].type
    assert read_message(encode(module)).minimum_reader == "1.4"


def test_damaged_annotations_are_refused():
    text = print_module(annotated())
    with pytest.raises(UserError, match="line .*the sharding .* cannot be read"):
        parse_module(text.replace("{?}p2", "{?p2"))
    message = read_message(encode(annotated()))
    message.meshes[0].mesh = '<["x"=0]>'
    with pytest.raises(UserError, match="at least 1"):
        decode(message.SerializeToString())


def test_an_older_format_lists_what_it_lacks():
    with pytest.raises(ExportBlockers) as caught:
        encode(annotated(), "1.3")
    assert {b.operation for b in caught.value.blockers} >= {"sharding_constraint", "tanh"}
    assert "leave the annotation out" in str(caught.value)


def test_annotations_are_the_identity():
    np.testing.assert_array_equal(interpret(annotated(), [X])[0], np.tanh(X) * 2)


def test_one_device_removes_annotations_with_one_note():
    plain = build_module([KIND], lambda b, x: [b("add", *[b("tanh", x)] * 2)])
    module = annotated()
    bare = OneDevice()(module)
    verify(bare, INLINED)
    assert print_module(replace(bare, notes=())) == print_module(plain)
    assert bare.notes == (
        "shardings are not used on one device: 1 argument, 1 propagation barrier, "
        "2 sharding constraints, 2 sharding groups",
    )
    assert OneDevice()(bare) is bare


def test_a_sharded_argument_alone_is_noted():
    module = module_of(lambda b, x: [b("tanh", x)], cut('<@mesh, [{"x"}, {}]>'))
    program = girih.compile(module)
    assert [n for n in program.plan.notes if "not used on one device: 1 argument" in n]
    np.testing.assert_allclose(program(X)[0], np.tanh(X), atol=1e-5)


def in_a_branch(b, x):
    kind = cut('<@mesh, [{"x"}, {}]>')
    inner = build_region([], lambda b: [b("sharding_constraint", x, type=kind)])
    other = build_region([], lambda b: [b("negate", x)])
    return [b.op("if", [b.constant(True)], {}, (inner, other)).result]


def test_annotations_in_nested_regions():
    module = module_of(in_a_branch, KIND)
    verify(module, HLO)
    bare = OneDevice()(module)
    assert not any(op.name == "sharding_constraint" for op in bare.walk())
    np.testing.assert_array_equal(interpret(bare, [X])[0], X)


def test_no_pass_before_partitioning_removes_or_merges_annotations():
    """Constraints that are equal, or of a constant, or unused, stay; rules see annotated types."""

    def body(b, x, w):
        zero = b.constant(0.0, KIND)
        first = b("sharding_constraint", b("add", x, zero), type=cut('<@mesh, [{"x"}, {}]>'))
        again = b("sharding_constraint", b("add", x, zero), type=cut('<@mesh, [{"x"}, {}]>'))
        b("sharding_constraint", w, type=cut('<@mesh, [{}, {"y"}]>'))
        fixed = b("sharding_constraint", zero, type=cut('<@mesh, [{"y"}, {}]>'))
        back = b.reshape(b.reshape(first, (24,)), (4, 6))
        return [b("add", back, b("add", again, fixed))]

    module = module_of(body, cut('<@mesh, [{"x"}, {}]>'), KIND)
    after = module
    for step in simplify_pipeline(Options(numerics="assumes-finite")):
        if step.name != "one-device":
            after = step(after)
            verify(after, HLO)
    assert names(after).count("sharding_constraint") == 4
    assert "reshape" not in names(after) and names(after).count("add") == 2  # x + 0 is x
    inputs = [X, X]
    np.testing.assert_array_equal(interpret(after, inputs)[0], interpret(module, inputs)[0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (cut('<@other, [{}, {}]>'), "has no mesh @other; it has @mesh, @open"),
        (cut('<@mesh, [{"z"}, {}]>'), "names no axis of its mesh"),
        (cut('<@mesh, [{"x"}]>'), "has 1 dims, its tensor 2"),
        (cut('<@mesh, [{"y":(1)2}, {"y":(1)4}]>'), "uses axis 'y' twice"),
    ],
)  # fmt: skip
def test_shardings_are_checked_with_their_place(kind, message):
    with pytest.raises(VerifyError, match=message):
        verify(module_of(lambda b, x: [x], kind))

    def body(b, x):
        b.origin = (Origin("model.py", 7),)
        return [b("sharding_constraint", x, type=kind)]

    with pytest.raises(VerifyError, match=rf"model\.py:7: sharding_constraint.*{message}"):
        verify(module_of(body, KIND))


def test_before_propagation_only_annotations_have_shardings():
    kind = cut('<@mesh, [{"x"}, {}]>')
    module = module_of(lambda b, x: [b.op("tanh", [x], {}, (), [kind]).result], KIND)
    verify(module)
    with pytest.raises(VerifyError, match="at level HLO only arguments and sharding_constraint"):
        verify(module, HLO)


def test_sharded_means_every_tensor_without_open_dims():
    kind, is_open = cut('<@mesh, [{"x"}, {}]>'), cut('<@mesh, [{"x"}, {?}]>')

    def module(argument, result):
        return module_of(lambda b, x: [b.op("tanh", [x], {}, (), [result]).result], argument)

    verify(module(kind, kind), SHARDED)
    with pytest.raises(VerifyError, match="argument 0 .*needs a sharding"):
        verify(module(KIND, kind), SHARDED)
    with pytest.raises(VerifyError, match="tanh: result 0 .*needs a sharding"):
        verify(module(kind, KIND), SHARDED)
    with pytest.raises(VerifyError, match="no dim is open"):
        verify(module(kind, is_open), SHARDED)


def older_program() -> bytes:
    """As formats before 1.4 had it: attributes with text."""

    def body(b, x):
        b.origin = (Origin("model.py", 7),)
        y = b("tanh", x, **{"sdy.sharding": '#sdy.sharding<@mesh, [{}, {"y"}]>'})
        inner = build_region(
            [],
            lambda b: [b("negate", y, **{"sdy.sharding": '#sdy.sharding<@mesh, [{"x"}, {?}]>'})],
        )
        z = b.op("if", [b.constant(True)], {}, (inner, build_region([], lambda b: [y]))).result
        return [b("add", y, z), z]

    module = build_module([KIND], body)
    main = replace(
        module.main,
        argument_attributes=({"sdy.sharding": '#sdy.sharding<@mesh, [{"x"}, {}]>', "a": 1},),
        result_attributes=({}, {"sdy.sharding": '#sdy.sharding<@mesh, [{"y"}, {}]>'}),
    )
    mesh = {"sdy.mesh.mesh": '#sdy.mesh<["x"=2, "y"=4]>', "b": 2}
    return encode(replace(module, functions={"main": main}, attributes=mesh))


def test_shardings_that_older_formats_had_as_text_are_read():
    data = older_program()
    assert read_message(data).format_version == "1.0"
    module = decode(data)
    verify(module, HLO)
    assert module.meshes == {"mesh": MESHES["mesh"]} and module.attributes == {"b": 2}
    assert module.body.arguments[0].type is cut('<@mesh, [{"x"}, {}]>')
    assert module.main.argument_attributes == ({"a": 1},)
    found = [op for op in module.walk() if op.name == "sharding_constraint"]
    assert [(op.stated, str(op.type.sharding)) for op in found] == [
        ("operation", '<@mesh, [{}, {"y"}]>'),
        ("operation", '<@mesh, [{"x"}, {?}]>'),
        ("result", '<@mesh, [{"y"}, {}]>'),
    ]
    assert found[0].place.startswith("model.py:7")
    results = interpret(module, [X])
    np.testing.assert_array_equal(results[1], -np.tanh(X))
    np.testing.assert_array_equal(results[0], np.zeros_like(X))


def test_older_text_that_says_no_sharding_stays():
    message = read_message(older_program())
    place = list(message.strings).index('#sdy.mesh<["x"=2, "y"=4]>')
    message.strings[place] = "#sdy.mesh<nothing>"
    module = decode(message.SerializeToString())
    assert not module.meshes and "sdy.mesh.mesh" in module.attributes
    assert "sdy.sharding" in module.main.argument_attributes[0]

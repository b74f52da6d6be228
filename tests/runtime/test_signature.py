"""Trees, paths and what a call that does not fit is told."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.errors import UserError
from girih.hlo.signature import Argument, Result, Signature
from girih.hlo.sizes import Symbol, parse_constraint
from girih.hlo.trees import Node, StructureError, Tree
from girih.runtime.structure import Differs, flattener, unflattener

Pair = namedtuple("Pair", "left right")

values = st.recursive(
    st.just(0) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-3, 3), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Node, st.just("my.Class"), st.dictionaries(st.text(max_size=3), inner))
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(values)
def test_flatten_and_unflatten_are_inverse(value):
    tree = Tree.of(value)
    leaves = tree.flatten(value)
    assert len(leaves) == tree.leaf_count == len(tree.paths("x"))
    numbered = tree.unflatten(list(range(len(leaves))))
    assert Tree.of(numbered) == tree or "namedtuple" in repr(tree)  # made anew, in another module
    assert tree.flatten(numbered) == list(range(len(leaves)))


@settings(deadline=None)
@given(values)
def test_the_quick_way_is_the_same(value):
    tree = Tree.of(value)
    numbers = list(range(tree.leaf_count))
    leaves: list[object] = []
    try:
        flattener(tree)(value, leaves)
    except Differs:
        assert "custom" in repr(tree)
    else:
        assert leaves == tree.flatten(value)
    rebuilt = unflattener(tree)(iter(numbers))
    assert repr(rebuilt) == repr(tree.unflatten(numbers))


@given(values, values)
def test_the_quick_way_refuses_what_the_slow_one_refuses(one, other):
    tree = Tree.of(one)
    leaves: list[object] = []
    try:
        flattener(tree)(other, leaves)
    except Differs:
        return
    if not any(isinstance(leaf, (tuple, list, dict, type(None))) for leaf in leaves):
        assert tree.flatten(other) == leaves


@settings(deadline=None)
@given(values)
def test_json_keeps_the_tree(value):
    tree = Tree.of(value)
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_paths():
    value = {"w": [0, (0,)], 3: Pair(0, None), "own": Node("my.C", {"a": 0, "not a name": 0})}
    assert Tree.of(value).paths("params") == (
        "params['w'][0]",
        "params['w'][1][0]",
        "params[3].left",
        "params['own'].a",
        "params['own']['not a name']",
    )


SIGNATURE = Signature.build(
    inputs=Tree.of(({"w": [0, 0], "b": None}, 0)),
    argument_types=[((3,), "f32"), ((3,), "f32"), ((), "i32"), ((2, "n"), "bf16")],
    outputs=Tree.of({"loss": 0}),
    result_types=[((), "f32"), ((3,), "f32")],
    names=("params", "step"),
    keywords=Tree.of({"mask": 0}),
    state=("bn.mean",),
)


def test_derived_paths_and_json():
    assert [argument.path for argument in SIGNATURE.arguments] == [
        "params['w'][0]", "params['w'][1]", "step", "mask",
    ]  # fmt: skip
    assert [result.path for result in SIGNATURE.results] == ["output['loss']", "bn.mean"]
    changed = SIGNATURE.donating({0: 1})
    assert changed.arguments[0].donated and changed.arguments[0].aliases == 1
    for signature in (SIGNATURE, changed):
        assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_calls():
    params = {"w": [1, 2], "b": None}
    assert SIGNATURE.flatten((params, 3), {"mask": 4}) == [1, 2, 3, 4]
    assert SIGNATURE.flatten((params,), {"mask": 4, "step": 3}) == [1, 2, 3, 4]
    assert SIGNATURE.flatten((), {"mask": 4, "step": 3, "params": params}) == [1, 2, 3, 4]
    assert SIGNATURE.unflatten(["l", "m"]) == {"loss": "l"}
    assert SIGNATURE.states(["l", "m"]) == {"bn.mean": "m"}


@pytest.mark.parametrize(
    ("inputs", "keywords", "words"),
    [
        ((), {}, "params: this input is missing; the program takes 2 positional inputs"),
        (({"w": [1, 2], "b": None}, 3, 4), {}, "got 3"),
        (({"w": [1, 2], "b": None}, 3), {}, "mask: this keyword argument is missing"),
        (({"w": [1], "b": None}, 3), {}, "params['w']: expected a list of 2, got a list of 1"),
        (({"w": [1, 2]}, 3), {}, "params: expected a dict with keys 'w', 'b', got no 'b'"),
        (({"w": [1, 2], "b": 0}, 3), {}, "params['b']: expected None, got int"),
        (({"w": [1, 2], "b": None, "c": 0}, 3), {}, "an unknown 'c'"),
        ((5, 3), {}, "params: expected a dict with keys 'w', 'b', got int"),
        (({"w": [1, [2]], "b": None}, 3), {}, "params['w'][1]: expected an array, got a list of 1"),
        (({"w": [1, 2], "b": None}, 3), {"mask": 4, "maks": 1}, "maks: no such keyword argument"),
    ],
)
def test_calls_that_do_not_fit(inputs, keywords, words):
    with pytest.raises(StructureError) as caught:
        SIGNATURE.flatten(inputs, keywords)
    assert words in str(caught.value)


def test_a_default_may_be_left_out():
    signature = Signature(
        inputs=Tree("tuple"),
        arguments=(Argument("cache", (2,), "f32", default="cache.weight"),),
        outputs=Tree.leaf(),
        results=(Result("output", (2,), "f32"),),
        keywords=Tree.of({"cache": 0}),
    )
    assert signature.flatten(()) == [None]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"inputs": {"kind": "leaf"}},
        {"inputs": {"kind": "tuple", "children": [{"kind": "leaf"}]}, "outputs": {"kind": "none"}},
        {"inputs": {"kind": "tuple", "keys": ["a"]}, "outputs": {"kind": "none"}},
        {"inputs": {"kind": "oak"}, "outputs": {"kind": "none"}},
        {
            "inputs": {"kind": "tuple", "children": [{"kind": "leaf"}]},
            "outputs": {"kind": "none"},
            "arguments": [{"path": "x", "dims": [-1], "element": "f32"}],
        },
    ],
)
def test_malformed_signatures(data):
    with pytest.raises((ValueError, TypeError)):
        Signature.from_json(data)


def test_a_call_is_checked_against_what_is_said_of_sizes():
    arguments = [(("batch", "seq"), "i32"), (("2*seq", 4), "f32")]
    said = Symbol(1, 64, origin="model.py:3"), Symbol(16, 512, 16, 0)
    signature = replace(
        Signature.plain(arguments, [(("batch*seq", 4), "f32")], ["tokens", "table"]),
        symbols=(("batch", said[0]), ("seq", said[1])),
        constraints=(parse_constraint("batch*seq <= 4096", "model.py:9"),),
    )
    again = Signature.from_json(json.loads(json.dumps(signature.to_json())))
    assert again == signature and hash(again) == hash(signature)
    assert again.sizes.solve([(8, 32), (64, 4)]) == {"batch": 8, "seq": 32}
    for shapes, reason in (
        (
            [(65, 32), (64, 4)],
            r"tokens: dimension 0 is 65, but the size batch must be from 1 to",
        ),
        (
            [(8, 40), (80, 4)],
            "tokens: dimension 1 is 40, but .* seq must be .* in steps of 16",
        ),
        ([(8, 32), (66, 4)], r"table: dimension 0 = 2\*seq is 66, but must be 64"),
        ([(64, 128), (256, 4)], r"batch\*seq <= 4096 does not hold .* \(model.py:9\)"),
    ):
        with pytest.raises(UserError, match=reason):
            again.sizes.solve(shapes)


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": []}, {"symbols": {"n": 3}}, {"symbols": {"n": {"minimum": "1"}}},
        {"symbols": {"n": {"minimum": 4, "maximum": 3}}}, {"symbols": {"n": {"modulus": 0}}},
        {"constraints": [3]}, {"constraints": [{"text": "n"}]},
        {"arguments": [{"path": "x", "dims": ["n+"], "element": "f32"}]},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_sizes(change):
    plain = Signature.plain([(("n",), "f32")], []).to_json()
    with pytest.raises(ValueError, match=r"symbol|sizes|relation|constraint|minimum|dimension"):
        Signature.from_json({**plain, **change})

"""Results have the structure and the classes that the framework gives; inputs have to fit them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import pickle
import subprocess
import sys
from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import girih
from girih.hlo import classes
from girih.hlo.errors import UserError
from girih.hlo.trees import Node


def turns(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


class Several(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.topk(2), x.sort(), x.max(1), {"a": x, "n": 7}, "text", None, [x, 1.5]


def test_torch_results_have_torch_classes(tmp_path):
    x = turns(1, 3, 5)[0]
    program = girih.compile(Several(), x)
    values, indices = program(x)[0]
    np.testing.assert_array_equal(indices, x.topk(2).indices)
    found, expected = program(x), Several()(x)
    assert [type(child) for child in found] == [type(child) for child in expected]
    assert found[2].values.shape == (3,) and found[3]["n"] == 7 and found[4:6] == ("text", None)
    program.save(tmp_path / "x.girih", seal=False)
    script = f"""
import sys
import girih, numpy as np
found = girih.load({str(tmp_path / "x.girih")!r}, allow_native=True)(np.ones((3, 5), np.float32))
values, indices = found[0]
assert values.shape == (3, 2) and found[1].indices.shape == (3, 5), found
assert type(found[0]).__name__ == "topk" and found[3]["n"] == 7 and found[6][1] == 1.5
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_hugging_face_outputs():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16,
        vocab_size=32,
    )  # fmt: skip
    model, tokens = transformers.BertModel(config).eval(), torch.arange(6)[None]
    program = girih.compile(model, tokens)
    found, expected = program(tokens), model(tokens)
    assert type(found) is type(expected) and list(found.keys()) == list(expected.keys())
    for ours in (found.last_hidden_state, found["last_hidden_state"], found[0]):
        np.testing.assert_allclose(ours, expected[0].detach(), rtol=1e-4, atol=1e-5)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_jax_classes_come_back():
    from dataclasses import dataclass

    @jax.tree_util.register_dataclass
    @dataclass
    class Point:
        x: Any
        y: Any

    def function(point, pair):
        return Point(point.y, point.x), Pair(pair.second, [pair.first])

    given = Point(jnp.ones(2), jnp.zeros(3)), Pair(jnp.ones(()), jnp.arange(2))
    program = girih.compile(function, *given)
    point, pair = program(*given)
    assert type(point) is Point and type(pair) is Pair and isinstance(pair.second, list)
    assert point.y.tolist() == [1, 1] and pair.first.tolist() == [0, 1]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["order"])
@dataclasses.dataclass
class Expansion:
    x: Any
    order: Any


@pytest.mark.parametrize("orders", [(3, (5, "a")), (object(), object())])
def test_static_fields_are_those_of_each_program(orders, tmp_path, monkeypatch):
    given = [Expansion(jnp.ones(2), order) for order in orders]
    programs = [girih.compile(lambda e: Expansion(e.x + 1, e.order), one) for one in given]
    for program, one in zip(programs, given, strict=True):
        assert program(one).order == one.order
    programs[1].save(tmp_path / "x.girih")
    monkeypatch.setattr(classes, "_MET", {})  # as in another process
    found = girih.load(tmp_path / "x.girih")(given[1])
    assert found.x.tolist() == [2, 2]
    if isinstance(orders[1], tuple):
        assert type(found) is Expansion and found.order == orders[1]


@dataclasses.dataclass
class Bounds:
    low: Any
    high: Any
    middle: Any = None


def test_torch_classes_of_users_come_back(tmp_path, monkeypatch):
    torch.export.register_dataclass(Bounds, serialized_type_name="Bounds")

    class Widened(nn.Module):
        def forward(self, given: Bounds) -> Any:
            bounds = Bounds(given.low - 1, given.high + 1)
            return bounds, Pair(given.high, [given.low])

    given = Bounds(torch.zeros(2), torch.ones(2))
    program = girih.compile(Widened(), given)
    bounds, pair = program(given)
    assert type(bounds) is Bounds and type(pair) is Pair
    assert bounds.high.tolist() == [2, 2] and pair.second[0].tolist() == [0, 0]
    program.save(tmp_path / "x.girih")
    monkeypatch.setattr(classes, "_MET", {})  # as in another process
    bounds, pair = girih.load(tmp_path / "x.girih")(given)
    assert type(bounds) is Bounds and bounds.low.tolist() == [-1, -1] and bounds.middle is None
    assert pair._fields == ("first", "second")


def test_a_cache_goes_in_and_comes_out(tmp_path, monkeypatch):
    """One of two layers, too: what an export has met last is no other program's class."""
    pytest.importorskip("transformers")
    from transformers import DynamicCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()

    class Attends(nn.Module):
        def forward(self, x: torch.Tensor, cache: Any) -> Any:
            keys, values = cache.update(x, 2 * x, 0)
            return keys.sum() + values.sum(), cache

    def cache(layers: int) -> Any:
        made = DynamicCache()
        for layer in range(layers):
            made.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), layer)
        return made

    x = torch.full((1, 2, 1, 4), 3.0)
    programs = {layers: girih.compile(Attends(), x, cache(layers)) for layers in (1, 2)}
    programs[1].save(tmp_path / "x.girih")
    for layers, program in programs.items():
        total, after = program(x, cache(layers))
        expected, wanted = Attends()(x, cache(layers))
        assert total == expected and type(after) is DynamicCache
        assert len(after.layers) == layers
        for ours, theirs in zip(after.layers, wanted.layers, strict=True):
            for name in ("keys", "values"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name))
    monkeypatch.setattr(classes, "_MET", {})  # as in another process
    _, after = girih.load(tmp_path / "x.girih")(x, cache(1))
    assert type(after) is DynamicCache and after.get_seq_length() == 4


def test_a_class_that_is_not_at_hand():
    node = Node("models.Output", {"logits": 1, "hidden": (2, 3)})
    assert node.logits == node["logits"] == node[0] == 1 and node[-1] == (2, 3)
    assert list(node) == list(node.keys()) == ["logits", "hidden"] and len(node) == 2
    assert "logits" in node and dict(node.items())["hidden"] == (2, 3)
    assert node.to_tuple() == (1, (2, 3)) and node[:1] == (1,)
    assert repr(node) == "Output(logits=1, hidden=(2, 3))"
    assert pickle.loads(pickle.dumps(node)) == node == copy.deepcopy(node)
    with pytest.raises(AttributeError, match="has no child 'loss'"):
        node.loss  # noqa: B018
    with pytest.raises(AttributeError, match="cannot be changed"):
        node.logits = 2
    with pytest.raises(KeyError):
        node["loss"]


def test_only_registered_classes_are_made():
    """A bundle names classes; nothing that it names is called but a pytree's own class."""
    for name in ("os.system", "builtins.eval", "subprocess.Popen", "collections.namedtuple"):
        for kind in ("custom", "namedtuple"):
            assert classes.made(name, kind, ("a",), "[]", ["touch /tmp/never"]) is None
    strange = namedtuple("strange", "a")("x")
    assert classes.children_of(strange, "os.system", "") is None


_TOKENS = ["input_ids"], ["input_ids", "decoder_input_ids"]


def caches() -> Any:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 0}
    gpt = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=16, **small)
    t5 = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(gpt).eval(), transformers.T5Model(t5).eval()


@pytest.mark.parametrize("return_dict", [True, False])
def test_caches_of_hugging_face_come_out(return_dict):
    tokens = torch.arange(5)[None]
    for model, names in zip(caches(), _TOKENS, strict=True):
        given = {**dict.fromkeys(names, tokens), "return_dict": return_dict}
        found = girih.compile(model, **given)(**given)
        with torch.no_grad():
            expected = model(**given)
        assert type(found) is type(expected) and len(found) == len(expected)
        ours, theirs = (x.past_key_values if return_dict else x[1] for x in (found, expected))
        assert type(ours) is type(theirs) and ours.get_seq_length() == theirs.get_seq_length()
        if hasattr(theirs, "cross_attention_cache"):
            ours, theirs = ours.cross_attention_cache, theirs.cross_attention_cache
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            torch.testing.assert_close(one.keys, other.keys)
            torch.testing.assert_close(one.values, other.values)


Ordered, Default = collections.OrderedDict, collections.defaultdict


def differences(given: Any) -> Any:
    result = Default(list, b=given["a"] - given["b"])
    result["a"] = given["b"]
    return Ordered(b=result, a=given["a"])


class Differences(nn.Module):
    def forward(self, given: Any) -> Any:
        return differences(given)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_mappings_of_the_standard_library(framework, tmp_path):
    made, source = (jnp.full, differences) if framework == "jax" else (torch.full, Differences())
    given = Ordered(a=made((2,), 5.0), b=made((2,), 1.0))
    program = girih.compile(source, given)
    program.save(tmp_path / "x.girih")
    if isinstance(source, nn.Module):
        torch.export.save(torch.export.export(source, (given,)), tmp_path / "x.pt2")
    sources = [program, girih.load(tmp_path / "x.girih")]
    sources += [girih.compile(tmp_path / "x.pt2")] if framework == "torch" else []
    for each in sources:
        for order in (given, Ordered(b=given["b"], a=given["a"]), dict(given)):
            found = each(order)
            assert type(found) is Ordered and list(found) == ["b", "a"]
            inner = found["b"]
            assert type(inner) is Default and inner.default_factory is list
            assert inner["b"].tolist() == [4, 4] and inner["a"].tolist() == [1, 1]
        short = Default(lambda: np.zeros(2, np.float32), a=np.ones(2, np.float32))
        with pytest.raises(UserError, match="got no 'b'"):
            each(short)
        assert list(short) == ["a"]


@pytest.mark.parametrize(("fixed", "other"), [(3, 5), (jnp.add, jnp.subtract)])
def test_static_fields_of_inputs_are_those_of_the_export(fixed, other):
    program = girih.compile(lambda e: e.x + 1, Expansion(jnp.ones(2), fixed))
    assert program(Expansion(np.ones(2, np.float32), fixed)).tolist() == [2, 2]
    with pytest.raises(UserError, match=r"e: the export fixed its static fields to .*, got"):
        program(Expansion(np.ones(2, np.float32), other))


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_values_and_positions_of_one_group(target):
    """Tiles outside of a row hold the neutral integer, which no float can say."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.max(1), x.median(1)

    x = turns(1, 4, 5)[0]
    for ours, theirs in zip(girih.compile(Both(), x, target=target)(x), Both()(x), strict=True):
        assert type(ours) is type(theirs)
        np.testing.assert_array_equal(ours.values, theirs.values)
        np.testing.assert_array_equal(ours.indices, theirs.indices)

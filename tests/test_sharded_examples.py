"""The annotated programs in examples/sharded: a few annotations reach all of the program."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from girih.annotate import annotated
from girih.hlo.verify import SHARDED, verify
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.propagated import Propagated, propagate

FOLDER = Path(__file__).parents[1] / "examples" / "sharded"


def propagated(name: str) -> Propagated:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = propagate(annotated(Dce()(Inline()(example.module())), example.MESH))
    verify(found.sharded(), SHARDED)
    return found


def cuts(sharding: Any) -> list[list[str]]:
    return [[axis.name for axis in dim.axes] for dim in sharding.dims]


def test_a_training_step() -> None:
    pytest.importorskip("jax")
    found = propagated("training")
    signature = found.module.signature
    assert signature is not None
    body = found.module.body
    paths = [argument.path for argument in signature.arguments]
    lying = {p: cuts(found.shardings[v]) for p, v in zip(paths, body.arguments, strict=True)}
    assert lying == {
        "weights['down']": [["model"], []],
        "weights['up']": [[], ["model"]],
        "x": [["data"], []],
        "y": [["data"], []],
    }
    _, down, up = body.results
    assert cuts(found.shardings[down]) == [["model"], []]
    assert cuts(found.shardings[up]) == [[], ["model"]]


def test_a_llama() -> None:
    pytest.importorskip("torch")
    found = propagated("llama")
    weights = {
        op.attributes["weight"]: cuts(found.shardings[op.result])
        for op in found.module.body.ops
        if op.name == "weight"
    }
    for layer in ("layers.0", "layers.1"):
        for name in ("query", "key", "value", "gate", "up"):
            assert weights[f"{layer}.{name}.weight"] == [["model"], []]
        for name in ("out", "down"):
            assert weights[f"{layer}.{name}.weight"] == [[], ["model"]]

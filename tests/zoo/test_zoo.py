"""Every model of the zoo against its framework: full size, through save and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from engines import flat, numpy_inputs
from models import TOLERANCE, WIDER, ZOO, Model, model, relative_error

SMALL = ["lstm-jax", "jax-decode", "mlp-train"]
QUICK = ("dlrm", "gan-generator")  # of the other families: `benchmarks/zoo.py --wider --check`
CHOSEN = (*ZOO, *(entry for entry in WIDER if entry.name in QUICK))
ALL = pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: entry.name)


def agrees(results: Any, expected: list[np.ndarray]) -> None:
    found = flat(results)
    assert len(found) == len(expected)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        error = relative_error(ours, theirs)
        assert error <= TOLERANCE, f"result {index} is off by {error:.1e} of its largest value"


@ALL
def test_compiled(entry: Model, tmp_path: Path) -> None:
    built = entry.build()
    expected = built.reference()
    bundle = tmp_path / "model.girih"
    girih.compile(built.source, *built.inputs).save(bundle)
    agrees(girih.load(bundle)(*numpy_inputs(built)), expected)


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("name", ["gpt2-decode", "t5-small", "resnet50", *SMALL])
def test_one_layer(name: str) -> None:
    """With little to compute, at all levels of CPU features."""
    built = model(name).build(layers=1)
    program = girih.compile(built.source, *built.inputs)
    agrees(program(*numpy_inputs(built)), built.reference())


@pytest.mark.parametrize("name", SMALL)
def test_interpreted(name: str) -> None:
    """The meaning itself, apart from optimizer and backend (torch models: test_torch_models)."""
    built = model(name).build(layers=1)
    module = girih.import_model(built.source, *built.inputs)
    agrees(girih.interpret(module, built.flat_inputs()), built.reference())


@pytest.mark.parametrize("name", ["lstm-jax", "gpt2-decode"])
def test_two_compiles_give_equal_bytes(name: str, tmp_path: Path) -> None:
    bundles = []
    for number in range(2):
        built = model(name).build(layers=1)
        path = tmp_path / f"{number}.girih"
        girih.compile(built.source, *built.inputs).save(path)
        bundles.append(path.read_bytes())
    assert bundles[0] == bundles[1]


def test_structure_of_results_is_kept(tmp_path: Path) -> None:
    """Dictionaries, lists and tuples come back as the framework gave them."""
    built = model("lstm-jax").build(layers=1)
    path = tmp_path / "model.girih"
    girih.compile(built.source, *built.inputs).save(path)
    result = girih.load(path)(*built.inputs)
    assert set(result) == {"outputs", "states"}
    assert isinstance(result["states"], list)
    assert isinstance(result["states"][0], tuple)

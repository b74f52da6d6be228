"""What a bundle says of how a program lies on a mesh: written, read back, and malformed."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import girih
from girih.runtime.bundle import Bundle
from girih.runtime.distributed.launch import axes_in, devices_of, fitting, target_on
from girih.runtime.distributed.layout import MeshLayout
from girih.runtime.parts import copied_parts
from girih.runtime.program import Program

from .launch import needs_mpi
from .test_mesh import SAID, network


@pytest.fixture(scope="module")
def program() -> Program:
    return girih.compile(network(), mesh={"data": 2, "model": 2}, shardings=SAID)


def test_it_reads_back_equal(program, tmp_path):
    program.save(tmp_path / "p.girih")
    bundle = Bundle(tmp_path / "p.girih")
    (variant,) = bundle.variants.values()
    (own,) = program.parts.variants.values()
    assert variant.layout == own.layout and variant.layout is not None
    assert MeshLayout.from_json(variant.layout).to_json() == variant.layout
    assert "variants.layout" in [one["name"] for one in bundle.manifest["features"]]


def mutants(data: Any) -> list[Any]:
    """Each value that a document holds left out or replaced, one at a time."""
    found = []

    def walk(path: tuple[Any, ...], value: Any) -> None:
        for other in (None, 7, "", "<[]>", [], {}):
            made = copy.deepcopy(data)
            place = made
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = other
            found.append(made)
        if isinstance(value, dict):
            for key in value:
                walk((*path, key), value[key])
        elif isinstance(value, list):
            for number, item in enumerate(value):
                walk((*path, number), item)

    for key in data:
        walk((key,), data[key])
        found.append({k: v for k, v in data.items() if k != key})
    return found


def test_what_is_malformed_is_one_clear_error(program):
    (name,) = program.parts.variants
    variant = program.parts.variants[name]
    known = json.loads(json.dumps(variant.layout))
    known["weights"] = [{"name": "w", "weight": "bias", "sharding": '<@mesh, [{"model"}]>'}]
    for layout in mutants(known):
        changed = type(variant)(**{**vars(variant), "layout": layout})
        try:
            Program(copied_parts(program.parts, variants={name: changed}), name)
        except girih.UserError:
            continue
        different = {key for key in known if layout.get(key) != known[key]}
        assert different <= {"weights"}, layout  # the plan needs none of these


def test_names_of_code_on_a_mesh():
    axes = (("data", 2), ("one", 1), ("model", 4))
    assert target_on("cpu:avx2", axes) == "cpu:avx2@data=2,model=4"
    assert target_on("cpu", (("data", 1),)) == "cpu"
    assert axes_in("cpu:avx2@data=2,model=4") == {"data": 2, "model": 4}
    assert devices_of("cpu@data=2,model=4") == 8 and devices_of("cpu") == 1
    with pytest.raises(girih.UserError, match="named like 'cpu@data=2,model=4'"):
        axes_in("cpu@data=two")


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_the_number_of_processes_chooses(variable, monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE"):
        monkeypatch.delenv(name, raising=False)
    variants: dict[str, None] = dict.fromkeys(
        ("cpu", "cpu@a=2,b=2", "cpu:avx2@a=2,b=2", "cpu@a=4", "cpu@a=2")
    )
    assert fitting(variants, None, None, "x") == ("cpu",)
    monkeypatch.setenv(variable, "4")
    assert fitting(variants, None, None, "x") == ("cpu@a=2,b=2", "cpu:avx2@a=2,b=2")
    assert fitting(variants, None, {"a": 4, "b": 1}, "x") == ("cpu@a=4",)
    assert fitting(variants, "cpu@a=2", None, "x") == ("cpu@a=2",)
    with pytest.raises(girih.UserError, match="it has no code for the mesh a=8, only for one dev"):
        fitting(variants, None, {"a": 8}, "x")
    monkeypatch.setenv(variable, "3")
    with pytest.raises(girih.UserError, match="3 processes run it; start it as without a launch"):
        fitting(variants, None, None, "x")
    assert fitting({"cpu": None}, None, None, "x") == ("cpu",)  # each process for itself


@needs_mpi
def test_a_process_that_is_alone_is_told_how_to_start_it(program):
    with pytest.raises(girih.UserError, match="for 4 processes, and 1 runs it; start it as: mpiex"):
        program(np.zeros((50, 256), np.float32))

"""Propagation gives every value the sharding that the Shardy dialect's passes give it."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from girih.hlo.parse import parse_module
from girih.hlo.verify import SHARDED, verify
from girih.optimizer.sharding.propagated import Hop, propagate
from girih.optimizer.sharding.propagation import PropagationOrder

from .gold import differences, ours, programs, values

NAMES = list(programs())
MODELS = [name for name in NAMES if not name.startswith("random")]


@pytest.mark.parametrize("name", MODELS)
def test_models_are_sharded_as_by_the_oracle(name: str) -> None:
    program = programs()[name]
    assert differences(program, ours(program)) == []


@pytest.mark.parametrize("name", MODELS)
def test_models_are_sharded_so_by_the_rooms_own_factors(name: str) -> None:
    program = programs()[name]
    assert differences(program, propagate(parse_module(program.text))) == []


def test_random_programs_are_sharded_so_by_the_rooms_own_factors() -> None:
    """Where no dim has size 1: such dims hold a factor for the oracle, and none for us."""
    compared = 0
    for program in programs().values():
        found = propagate(parse_module(program.text))
        if not any(1 in value.dims for value in values(found)):
            compared += len(values(found))
            assert differences(program, found) == [], program.name
    assert compared > 2000


@pytest.mark.parametrize("part", range(10))
def test_random_programs_are_sharded_as_by_the_oracle(part: int) -> None:
    names = [name for name in NAMES if name.startswith("random")][part::10]
    wrong = {name: differences(programs()[name], ours(programs()[name])) for name in names}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_the_gold_is_large_and_says_something() -> None:
    assert len(NAMES) >= 230
    said = [s for program in programs().values() for s in program.shardings if s is not None]
    assert len(said) > 7000
    assert sum(any(dim.axes for dim in sharding.dims) for sharding in said) > 2000


def test_three_annotations_give_the_fully_annotated_layer() -> None:
    few, full = (ours(programs()[f"layer, {name}"]) for name in ("x wq w1", "all annotated"))
    assert len(values(few)) == len(values(full)) > 80
    for one, other in zip(values(few), values(full), strict=True):
        assert few.shardings[one] == full.shardings[other], (one, other)


def test_fewer_annotations_give_less() -> None:
    full = programs()["layer, all annotated"].shardings
    assert programs()["layer, x w1"].shardings != full


@pytest.mark.parametrize(
    ("annotated", "mebibytes"), [("all annotated", 5), ("x wq w1", 5), ("x w1", 8), ("x wq", 11)]
)
def test_a_device_holds_its_part_of_the_arguments(annotated: str, mebibytes: int) -> None:
    found = ours(programs()[f"layer, {annotated}"])
    held = sum(
        4 * math.prod(found.shardings[value].local_dims(found.module.meshes["mesh"], value.dims))
        for value in found.module.body.arguments
        if value.rank > 1  # gains of norms are small, and whole
    )
    assert held == mebibytes << 20


def test_priorities_are_reached_one_after_another() -> None:
    """Before the last priority all is as if its dims were closed and its axes barred from them."""
    program = programs()["layer training, priorities"]
    early = ours(program, PropagationOrder(last=1))
    assert differences(programs()["layer training, before the last priority"], early) == []
    late = ours(program)
    count = 0
    for one, other in zip(values(early), values(late), strict=True):
        before, after = early.shardings[one], late.shardings[other]
        for had, has in zip(before.dims, after.dims, strict=True):
            assert has.axes[: len(had.axes)] == had.axes, (one, before, after)
            count += has.axes != had.axes
    assert count > 0  # the last priority adds something


def test_every_axis_has_a_way_back_to_an_annotation() -> None:
    for name in (*MODELS, *NAMES[-40:]):
        found = ours(programs()[name])
        for value, sharding in found.shardings.items():
            for number, dim in enumerate(sharding.dims):
                for axis in dim.axes:
                    hops = found.chain(value, number, axis)
                    assert hops, (name, value, number, axis)
                    assert hops[0].value.dims == value.dims
                    assert len(set(hops)) == len(hops)
                    end = hops[-1]
                    assert end.axis.name == axis.name
                    assert _states(end), (name, hops)


def _states(hop: Hop) -> bool:
    """Whether the program says there that the axis cuts the value."""
    sources = {"sharding_constraint", "sdy.manual_computation"}
    if hop.op is not None:
        return hop.op.name in sources
    said, computed = hop.value.tensor.sharding, hop.value.op
    if said is not None:
        return hop.axis.name in {axis.name for axis in said.dims[hop.dim].axes}
    return computed is None or computed.name in sources


def test_a_propagated_program_is_at_level_sharded() -> None:
    for name in ("layer, x wq w1", "scan", "experts, constrained", "random 3"):
        verify(ours(programs()[name]).sharded(), SHARDED)


def test_shardings_do_not_depend_on_hash_seeds() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.optimizer.sharding.gold import ours, programs, values\n"
        "for name in ('layer training, x wq w1', 'random 7'):\n"
        "    found = ours(programs()[name])\n"
        "    print([str(found.shardings[value]) for value in values(found)])\n"
    )
    import girih

    root = os.path.dirname(girih.__file__ or "")
    texts = set()
    for seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", script, root],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        texts.add(made.stdout)
    assert len(texts) == 1 and len(texts.pop()) > 1000

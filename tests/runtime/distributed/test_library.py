"""Collectives of the processes' library in plans: where they are taken, and what they give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import girih
from girih import UserError
from girih.backends.cpu import machines
from girih.cli.network import collective
from girih.optimizer.library import COLLECTIVES
from girih.optimizer.machine import CommunicationCost, Machine, to_json
from girih.runtime.distributed.library import Collective
from girih.specs.generated import plan_pb2

from .launch import launched, needs_mpi

FASTER, SLOWER = (1e-6, 1e-12), (1e-3, 1e-8)
SIZE = 480


def machine_file(
    folder: Path,
    ours: tuple[float, float],
    its: tuple[float, float],
    machine: Machine | None = None,
) -> str:
    """A machine on which all collectives of each engine cost so much."""
    rows = tuple(
        CommunicationCost(kind, 4, engine, *cost)
        for kind in COLLECTIVES
        for engine, cost in (("girih", ours), ("library", its))
    )
    path = folder / "machine.json"
    machine = machine or machines.typical("baseline")
    path.write_text(to_json(replace(machine, network=rows)))
    return str(path)


def actions(source: str, **options) -> list[str | None]:
    program = girih.compile(source, options=girih.Options(**options))
    return [step.WhichOneof("action") for step in program.plan.steps]


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_the_faster_one_is_taken(tmp_path, kind):
    source = collective(kind, SIZE, 4)
    faster, slower = machine_file(tmp_path, SLOWER, FASTER), tmp_path / "other"
    slower.mkdir()
    assert actions(source, machine=faster) == ["collective"]
    assert "collective" not in actions(source, machine=machine_file(slower, FASTER, SLOWER))
    assert "collective" not in actions(source)  # typical machines know of no library


def test_which_is_faster_depends_on_the_bytes(tmp_path):
    machine = machine_file(tmp_path, (1e-3, 1e-9), (1e-6, 1e-8))  # equal at 111 kB
    assert actions(collective("all_gather", 1 << 16, 4), machine=machine) == ["collective"]
    assert actions(collective("all_gather", 1 << 20, 4), machine=machine) == ["exchange"]


def test_sums_in_the_librarys_order_need_a_licence(tmp_path):
    machine = machine_file(tmp_path, SLOWER, FASTER)
    for kind in ("all_reduce", "reduce_scatter"):
        source = collective(kind, SIZE, 4)
        assert "collective" not in actions(source, machine=machine, numerics="bitwise")
        whole = source.replace("f32", "i32")
        assert actions(whole, machine=machine, numerics="bitwise") == ["collective"]
    moved = collective("all_gather", SIZE, 4)
    assert actions(moved, machine=machine, numerics="bitwise") == ["collective"]


@pytest.mark.parametrize(
    "change",
    [("stablehlo.add", "stablehlo.maximum"), ("f32", "bf16"), ("%x, %y :", "%x, %x :")],
    ids=["maximum", "bf16", "one_side"],
)
def test_sums_that_libraries_lack_are_ours(tmp_path, change):
    source = collective("all_reduce", SIZE, 4).replace(*change)
    assert "collective" not in actions(source, machine=machine_file(tmp_path, SLOWER, FASTER))


def test_a_note_says_so(tmp_path):
    options = girih.Options(machine=machine_file(tmp_path, SLOWER, FASTER))
    program = girih.compile(collective("all_reduce", SIZE, 4), options=options)
    (note,) = [note for note in program.plan.notes if "library" in note]
    assert "all_reduce: by the library, which is faster for 720 bytes here; it adds in" in note


def planned(**facts) -> tuple[plan_pb2.Plan, plan_pb2.Collective]:
    plan = plan_pb2.Plan(processes=4)
    for _ in range(2):
        plan.buffers.add(bytes=64)
    step = plan_pb2.Collective(kind="all_reduce", element_type="f32", elements=16)
    step.result.buffer = 1
    for group in ([0, 1], [2, 3]):
        step.groups.add().processes.extend(group)
    for name, value in facts.items():
        setattr(step, name, value)
    return plan, step


def test_bytes_are_those_of_exchanges():
    assert Collective(*planned(), 1).bytes == 64
    plan, step = planned(kind="reduce_scatter")
    assert Collective(plan, step, 1).bytes == 32


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "broadcast"}, "no library has a collective 'broadcast'"),
        ({"elements": 17}, "lies outside its buffer"),
        ({"kind": "all_gather"}, "lies outside its buffer"),
        ({"kind": "all_to_all", "elements": 15, "element_type": "i8"}, "differ in size"),
    ],
)
def test_malformed_steps_are_refused(facts, message):
    plan, step = planned(**facts)
    with pytest.raises(UserError, match=message):
        Collective(plan, step, 1)


def test_groups_hold_every_process_once():
    plan, step = planned()
    step.groups[0].processes.append(2)
    with pytest.raises(UserError, match="are not all processes, each once"):
        Collective(plan, step, 1)


RANK = """
import sys
import numpy as np
import girih
program = girih.load(sys.argv[1])
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
data = np.load(sys.argv[2])
for _ in range(2):
    (result,) = program(data[f"i{rank}"])
    np.testing.assert_allclose(result, data[f"o{rank}"], rtol=1e-6, atol=1e-6)
assert dict(program.received) == {sys.argv[3]: 2 * float(data[f"b{rank}"])}, program.received
print("equal", flush=True)
"""


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("groups", ["", "[[2, 0], [1, 3]]"], ids=["all", "two"])
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_results_and_bytes_are_the_interpreters(tmp_path, kind, groups):
    source = collective(kind, SIZE, 2 if groups else 4)
    if groups:
        source = source.replace(
            "dense<[[0, 1]]> : tensor<1x2xi64>", f"dense<{groups}> : tensor<2x2xi64>"
        )
        source = source.replace("num_partitions = 2", "num_partitions = 4")
    machine = machine_file(tmp_path, SLOWER, FASTER)
    program = girih.compile(source, options=girih.Options(machine=machine))
    assert [step.WhichOneof("action") for step in program.plan.steps] == ["collective"]
    program.save(tmp_path / "p.girih")
    module = girih.import_model(source)
    generator = np.random.default_rng(0)
    (dims,) = [value.tensor.dims for value in module.body.arguments]
    inputs = [generator.standard_normal(dims, np.float32) for _ in range(4)]
    found = girih.interpret_parallel(module, [[x] for x in inputs])
    arrays = {f"i{rank}": x for rank, x in enumerate(inputs)}
    arrays |= {f"o{rank}": row[0] for rank, row in enumerate(found.results)}
    arrays |= {f"b{rank}": np.array(row[kind]) for rank, row in enumerate(found.received)}
    np.savez(tmp_path / "data.npz", **arrays)  # pyright: ignore[reportArgumentType]
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    done = launched(4, script, tmp_path / "p.girih", tmp_path / "data.npz", kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 4

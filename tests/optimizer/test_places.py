"""Where edges lie is what plans and kernels say, and what is further away costs more."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from girih.backends import find
from girih.cli.dumping import Wanted, dump_source
from girih.imports import import_model
from girih.optimizer.machine import Machine
from girih.optimizer.places import Edge, EdgePlace, runner_up, seconds
from girih.options import Options
from girih.stages import Stages

CPU, GPU = "cpu:avx512", "nvidia:sm_90a"
REG, SCRATCH, LAUNCH = EdgePlace.REG, EdgePlace.SCRATCH, EdgePlace.LAUNCH


def recurrent(x, state, weights):
    def turn(i, carried):
        state, rows = carried
        state = jnp.tanh(x[i] + state @ weights)
        return state, rows.at[i].set(state)

    return jax.lax.fori_loop(0, 50, turn, (state, jnp.zeros_like(x)))


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def type_of(*dims: int):
    return jax.ShapeDtypeStruct(dims, np.float32)


PROGRAMS = {
    recurrent: (type_of(50, 256), type_of(256), type_of(256, 256)),
    attention: (type_of(4096, 64),) * 3,
}


@functools.cache
def placed(program, target: str, schedule: str = "auto") -> tuple[list[Edge], Machine]:
    options = Options(cache="off", schedule=schedule)
    module = import_model(jax.export.export(jax.jit(program))(*PROGRAMS[program]))
    return Stages(find(target, options), options).edges(module)


def one_kind(edges: list[Edge], kind: str, between: bool) -> list[Edge]:
    """Of that kind, between the steps of a plan or within kernels."""
    return [edge for edge in edges if edge.kind == kind and (":" not in edge.source) == between]


def test_scalars_of_a_loop_are_each_workers_own_and_others_are_counted() -> None:
    edges, _ = placed(recurrent, CPU)
    assert [one.place for one in one_kind(edges, "predicate", True)] == [REG]
    turns = one_kind(edges, "turn", True)
    assert {one.place for one in turns if one.bytes == 4} <= {REG, EdgePlace.COUNTER}
    assert {one.place for one in turns if one.bytes > 4} == {EdgePlace.COUNTER}


@pytest.mark.parametrize(
    ("schedule", "place", "between"),
    [
        ("auto", EdgePlace.HOST, LAUNCH),
        ("graph", LAUNCH, LAUNCH),
        ("persistent", EdgePlace.BARRIER, EdgePlace.BARRIER),
    ],
)
def test_a_schedule_says_who_reads_predicates_of_a_gpu(schedule, place, between) -> None:
    edges, machine = placed(recurrent, GPU, schedule)
    (predicate,) = one_kind(edges, "predicate", True)
    assert predicate.place == place
    assert {one.place for one in one_kind(edges, "data", True)} == {between}
    assert EdgePlace.BARRIER in (predicate.place, runner_up(predicate, machine))


def test_what_a_product_reads_is_a_tile_and_what_elements_read_a_register() -> None:
    edges, _ = placed(attention, CPU)
    inner = {(one.source.split(": ")[1], one.target): one for one in edges if ":" in one.source}
    assert inner["exponential", "dot_general"].place == SCRATCH
    assert inner["subtract", "exponential"].place == REG
    passed = inner["exponential", "dot_general"]
    assert passed.bytes == 4 * 4096 * 4096
    assert 0 < passed.tile < passed.bytes
    carried = one_kind(edges, "turn", False)
    assert sum(one.count for one in carried) == 3  # maximum, sum and result of the online softmax


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nearer_places_cost_less(program, target) -> None:
    edges, machine = placed(program, target)
    assert edges
    for edge in edges:
        possible = sorted({edge.place, *edge.others})
        costs = [seconds(edge, place, machine) for place in possible]
        assert costs == sorted(costs), edge


def test_the_command_prints_all_of_them(tmp_path, capsys) -> None:
    exported = tmp_path / "x.jaxexp"
    exported.write_bytes(jax.export.export(jax.jit(recurrent))(*PROGRAMS[recurrent]).serialize())
    dump_source(str(exported), Wanted(places=True), None, CPU, ["cache=off"], True)
    told = json.loads(capsys.readouterr().out)
    edges, machine = placed(recurrent, CPU)
    assert told["machine"] == machine.name
    assert len(told["edges"]) == len(edges)
    assert {row["place"] for row in told["edges"]} == {edge.place.name for edge in edges}
    costs = [row["seconds"] for row in told["edges"]]
    assert costs == sorted(costs, reverse=True)

"""Machine files: what is written is read again, and every mistake is one clear sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from girih import UserError
from girih.backends.cpu import machines
from girih.optimizer.machine import (
    Bandwidth,
    CommunicationCost,
    Machine,
    from_json,
    read_machine,
    to_json,
)
from girih.optimizer.sharding.interconnect import USUAL, interconnect_of, seconds


@pytest.fixture
def machine() -> Machine:
    return machines.typical("avx512")


@pytest.mark.parametrize("level", machines.TYPICAL)
def test_shipped_files_are_read_and_written_alike(level):
    machine = machines.typical(level)
    again = from_json(to_json(machine))
    assert again == machine and hash(again) == hash(machine)
    assert to_json(again) == to_json(machine)
    assert machine.name == level
    assert all(0 < row.fraction <= 1 for unit in machine.units for row in unit.efficiency)


def test_machines_differ_by_any_field(machine):
    other = replace(machine, overlap=0.9)
    assert other != machine and len({machine, other, replace(machine)}) == 2


def test_rates_lie_between_the_measured_ones(machine):
    level = replace(machine.levels[0], bandwidth=(Bandwidth(1, 10, 8, 9), Bandwidth(3, 24, 24, 24)))
    assert [level.rate(count) for count in (1, 2, 3)] == [10, 8.5, 8]
    assert level.rate(6) == 8, "a level of one executor each grows with them"
    assert replace(level, shared=True).rate(6) == 4, "a shared one is full"
    assert level.rate(1, "write") == 8


def test_unknown_names(machine):
    with pytest.raises(UserError, match="'avx512' has no level 'l9'; it has l1, l2, l3, memory"):
        machine.level("l9")
    with pytest.raises(UserError, match="has no unit for c64"):
        machine.unit("c64")
    assert machine.unit("bf16").name == "fma.f32"


def set_at(body, path, value):
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["schema"], "other", 'no machine file: it must be an object with "schema"'),
        (["version"], 2, "version 2 of machine files is unknown; this girih reads version 1"),
        (["executors"], 0, "executors: must be a positive whole number, not 0"),
        (["executors"], True, "executors: must be a positive whole number, not True"),
        (["levels"], [], "levels: must be a list that is not empty"),
        (["levels", 1, "line"], "64", r"levels\[1\].line: must be a positive whole number"),
        (["levels", 1, "shared"], 1, r"levels\[1\].shared: must be true or false"),
        (["levels", 0, "bandwidth", 0, "read"], -1.0, r"bandwidth\[0\].read: must be a positive"),
        (["levels", 0, "bandwidth", 0, "executors"], 9, "executors must grow from row to row"),
        (["levels", 0, "capacity"], 1 << 50, "ordered from the smallest capacity"),
        (["levels", 1, "name"], "l1", "two levels have one name"),
        (["units", 0, "flops"], "fast", r"units\[0\].flops: must be a positive number"),
        (["units", 0, "efficiency", 0], [1, 2], "must be \\[rows, vectors, fraction\\]"),
        (["units", 0, "speed"], 3, r"units\[0\]: has unknown speed"),
        (["sync"], {"step": 1e-7, "wake": 1e-6}, "sync: lacks dispatch"),
        (["math"], 3, "math: must be an object, not int"),
        (["overlap"], 1.5, "overlap must be between 0 and 1"),
        (["overlap"], float("nan"), "overlap: must be a number"),
        (["name"], "", "name: must be a name"),
    ],
)
def test_mistakes_say_where_and_why(machine, path, value, message):
    body = json.loads(to_json(machine))
    set_at(body, path, value)
    with pytest.raises(UserError, match=f"^mine.json: .*{message}"):
        from_json(json.dumps(body), "mine.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000])
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match="not JSON|no machine file"):
        from_json(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="nowhere.json' cannot be read"):
        read_machine(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        read_machine(tmp_path / "binary")


ROWS = (
    CommunicationCost("exchange", 4, "girih", 2e-6, 1e-9),
    CommunicationCost("all_to_all", 4, "girih", 6e-6, 1e-9),
    CommunicationCost("all_reduce", 2, "girih", 3e-6, 2e-9),
    CommunicationCost("all_reduce", 8, "girih", 9e-6, 2e-9),
    CommunicationCost("all_reduce", 8, "library", 0.0, 4e-9),
)


def test_what_communication_costs_is_kept(machine):
    measured = replace(machine, network=ROWS)
    assert from_json(to_json(measured)) == measured
    assert "network" not in json.loads(to_json(machine))
    assert from_json(to_json(machine)).network == ()


def test_the_nearest_number_of_processes_answers(machine):
    measured = replace(machine, network=ROWS)
    found = [measured.communication("all_reduce", n, "girih") for n in (1, 2, 5, 6, 64)]
    assert [row and row.processes for row in found] == [2, 2, 2, 8, 8]
    assert measured.communication("all_reduce", 2, "library") == ROWS[4]
    assert measured.communication("all_gather", 2, "girih") is None
    assert ROWS[0].seconds(1000) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "broadcast"}, "network[0].kind: must be one of exchange, all_reduce"),
        ({"engine": "nccl"}, "network[0].engine: must be one of girih, library, not 'nccl'"),
        ({"processes": 0}, "network[0].processes: must be a positive whole number"),
        ({"call": -1}, "network[0].call: must be a number"),
        ({"processes": 8, "kind": "all_reduce"}, "network: has two rows of one kind"),
    ],
)
def test_wrong_rows_of_communication_are_named(machine, change, message):
    body = json.loads(to_json(replace(machine, network=ROWS)))
    body["network"][0].update(change)
    with pytest.raises(UserError, match=re.escape(message)):
        from_json(json.dumps(body))


def test_an_interconnect_is_made_of_what_was_measured(machine):
    assert interconnect_of(None, 4) is USUAL and interconnect_of(machine, 4) is USUAL
    link = interconnect_of(replace(machine, network=ROWS), 4).usual
    assert seconds(link, 1, 1000) == pytest.approx(ROWS[0].seconds(1000))
    assert seconds(link, 3, 1000) == pytest.approx(ROWS[1].seconds(1000))

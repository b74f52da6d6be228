"""Every byte that is explained is counted and sent, and every row leads to a line and to an
annotation."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from girih import partition
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Module, Op, Origin, Value
from girih.hlo.parse import parse_module
from girih.hlo.placement import cut
from girih.hlo.regions import rewritten
from girih.hlo.types import TensorType
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.communications import MANUAL, walk_turns
from girih.optimizer.sharding.explanation import Explanation, ExplanationRow
from girih.optimizer.sharding.partition.program import WEIGHT, WHOLE
from girih.partitioning import Partitioned
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

from .gold import programs

EXAMPLES = {**NETWORKS, **OPERATIONS}

USUAL = [name for name in EXAMPLES if name != "b24"]
QUICK = ("e3", "g1", "g6", "g10", "g11", "i3", "h4", "h10", "h12", "h13")
"""Those that the interpreter runs within a few seconds."""
RANDOM = [name for name in programs() if name.startswith("random")][:50]


@functools.cache
def parts_of(name: str) -> Partitioned:
    return partition(EXAMPLES[name].module())


def counted(local: Module, devices: int) -> float:
    """Bytes that a device receives by the formulas of the local program's collectives."""
    ops = walk_turns(Inline()(local).body)
    return sum((times or 0) * op.definition.traffic(op, devices) for op, times in ops)


def simulated(parts: Partitioned) -> float:
    """Bytes that a device gets when the interpreter runs all, the mean."""
    facts = parts.local.main.argument_attributes
    assert all(WEIGHT not in one for one in facts)
    generator = np.random.default_rng(0)
    columns = []
    for kind in (one[WHOLE] for one in facts):
        assert isinstance(kind, TensorType) and kind.sharding is not None
        given = generator.integers(0, 2, kind.dims).astype(kind.dtype)
        columns.append(cut(given, kind.sharding, parts.mesh))
    rows = [[column[n] for column in columns] for n in range(parts.mesh.devices)]
    found = interpret_parallel(parts.local, rows)
    return sum(sum(counts.values()) for counts in found.received) / parts.mesh.devices


def check_row(told: Explanation, row: ExplanationRow, lineless: bool = False) -> None:
    """lineless: a program without operations, which returns what it is given, has no lines."""
    assert row.place == "" if lineless else re.search(r"\.py:\d+$", row.place), row
    assert row.annotations and set(row.annotations) <= set(told.annotations)
    assert row.needs
    sent = row.communication
    for reason in (*row.before, *row.after):
        assert reason.annotation is not None and reason.steps, reason
        if sent.kind != MANUAL:
            last, name = reason.steps[-1], reason.axis.split(":")[0]
            assert last.dim == reason.dim and last.axis.split(":")[0] == name
            assert name in reason.annotation.sharding
    assert row.before or row.after


@pytest.mark.parametrize("name", USUAL)
def test_rows_of_annotated_programs_lead_to_annotations(name: str) -> None:
    parts = parts_of(name)
    told = parts.explain()
    explained, sizes = told.bytes, (parts.bytes, counted(parts.local, parts.mesh.devices))
    assert sizes == (explained, explained)
    assert [row.communication.number for row in told.rows] == list(range(len(told.rows)))
    lineless = all(op.name == "sharding_constraint" for op in parts.propagated.module.body.ops)
    assert lineless == (name in ("g1", "g6", "g10", "g11"))
    for row in told.rows:
        check_row(told, row, lineless)


@pytest.mark.parametrize("name", QUICK)
def test_explained_is_simulated(name: str) -> None:
    parts = parts_of(name)
    explained, sent = parts.explain().bytes, simulated(parts)
    assert explained == sent


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in USUAL if name not in QUICK])
def test_explained_is_simulated_in_large_programs(name: str) -> None:
    test_explained_is_simulated(name)


def placed(module: Module) -> Module:
    """The program, in which each operation stands on a line of its own."""
    count = 0

    def change(b: Any, op: Op, mapping: dict[Value, Value]) -> bool:
        nonlocal count
        count += 1
        bodies = [rewritten(body, mapping, change) for body in op.regions]
        operands = [mapping.get(value, value) for value in op.operands]
        origin = (Origin("random.py", count),)
        new = Op(op.definition, operands, op.attributes, bodies, op.result_types, origin)
        mapping.update(zip(op.results, b.append(new).results, strict=True))
        return True

    return module.with_main(rewritten(module.body, {}, change, module.body.arguments))


@pytest.mark.parametrize("name", RANDOM)
def test_explained_is_counted_is_simulated_in_random_programs(name: str) -> None:
    parts = partition(placed(parse_module(programs()[name].text)))
    told = parts.explain()
    if all(row.communication.times is not None for row in told.rows):
        explained, sizes = told.bytes, (simulated(parts), counted(parts.local, parts.mesh.devices))
        assert sizes == pytest.approx((explained, explained), abs=1e-6)
    for row in told.rows:
        check_row(told, row)

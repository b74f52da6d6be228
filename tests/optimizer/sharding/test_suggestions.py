"""Suggested annotations: applied, they remove the row and send what was said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("jax")

from girih import partition
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.communications import CommunicationSite
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

EXAMPLES = {**NETWORKS, **OPERATIONS}


def what(row: CommunicationSite) -> tuple[str, str, str, str]:
    return row.kind, row.made, row.source, row.target


@pytest.mark.parametrize("name", ["e1", "d4", "i1"])
def test_applied_it_removes_the_row(name: str) -> None:
    parts = partition(EXAMPLES[name].module())
    rows, found = parts.communications, parts.suggest()
    assert found
    for number, suggestion in found.items():
        assert number in suggestion.removes and str(suggestion)
        applied = partition(suggestion.module)
        assert applied.bytes == pytest.approx(parts.bytes + suggestion.bytes, abs=1e-6)
        row = what(rows[number])  # equal layers on one line have equal rows
        left = Counter(map(what, applied.communications))
        assert left[row] < Counter(map(what, rows))[row]


def test_it_saves_bytes_without_more_memory_where_that_is_possible() -> None:
    """With few tokens a step moves activations, and x cut along its features as the weights are
    along their rows needs no exchange at the start."""
    parts = partition(EXAMPLES["d4"].module())
    best = min(parts.suggest().values(), key=lambda one: one.bytes if not one.held else 0.0)
    assert best.bytes < 0 and best.held == 0 and best.price < 0
    assert best.spec == "-,data" and best.option.startswith("--shard ")


def test_where_nothing_is_sent_there_is_none() -> None:
    kind = TensorType((8, 8), F32)

    def body(b: Any, x: Any) -> Any:
        return [b("tanh", x)]

    module = build_module([kind.with_sharding(parse_sharding('<@m, [{"x"}, {}]>'))], body)
    module = Module(dict(module.functions), meshes={"m": Mesh((("x", 4),))})
    assert partition(module).suggest() == {}

"""What the Shardy dialect's passes made of programs of ours (`benchmarks/sharding_gold.py`)."""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from girih.hlo.factor_text import parse_factors
from girih.hlo.factors import Factors
from girih.hlo.graph import Op, Region, Value
from girih.hlo.parse import parse_module
from girih.hlo.sharding import Sharding, parse_sharding
from girih.optimizer.sharding.program import has_edges
from girih.optimizer.sharding.propagated import Propagated, propagate
from girih.optimizer.sharding.propagation import EVERYTHING, PropagationOrder


class Program(NamedTuple):
    """`rules`: name and rule of each operation; `shardings`: of arguments, then of results; None
    for those that the oracle has removed. In the program's order, constants once for each use."""

    name: str
    text: str
    rules: tuple[tuple[str, Factors | None], ...]
    shardings: tuple[Sharding | None, ...]


@functools.cache
def programs() -> dict[str, Program]:
    """All of the gold, by name."""
    data = (Path(__file__).parent / "gold.json.xz").read_bytes()
    record: dict[str, Any] = json.loads(lzma.decompress(data))
    rules = [*map(parse_factors, record["rules"]), None]
    shardings = [*map(parse_sharding, record["shardings"]), None]
    found = [
        Program(
            program["name"],
            program["text"],
            tuple((name, rules[number]) for name, number in program["rules"]),
            tuple(shardings[number] for number in program["shardings"]),
        )
        for program in record["programs"]
    ]
    return {program.name: program for program in found}


def ours(program: Program, order: PropagationOrder = EVERYTHING) -> Propagated:
    """What we make of it, with the oracle's rules."""
    asked = iter(program.rules)

    def rule(op: Op) -> Factors | None:
        return next(found for name, found in asked if name == op.name)

    return propagate(parse_module(program.text), rule, order)


def values(found: Propagated) -> list[Value]:
    """In the order of the gold."""
    body = found.module.body
    return [*body.arguments, *(value for op in _ops(body, body) for value in op.results)]


def _ops(region: Region, body: Region) -> Iterator[Op]:
    for op in region.ops:
        if op.name == "sharding_constraint" and op.stated == "result" and op in body.ops:
            continue  # the oracle says it at the function's result
        yield op
        for inner in op.regions if has_edges(op.definition) else ():
            yield from _ops(inner, body)


def differences(program: Program, found: Propagated) -> list[str]:
    """What is not as the gold says."""
    wrong: list[str] = []
    for value, wanted in zip(values(found), program.shardings, strict=True):
        got = found.shardings[value]
        if wanted is not None and replace(got, mesh="") != replace(wanted, mesh=""):
            wrong.append(f"{value}: wanted {wanted}, got {got}")
    return wrong

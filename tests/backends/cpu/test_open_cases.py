"""A case of every room with all of its sizes open, against the interpreter at several sizes; the
sweep over all of them is `open_sizes`. What has no code is refused by name, and stands here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_region
from girih.hlo.cases import example
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Function, Module
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS
from girih.hlo.room import OpDefinition
from girih.hlo.sizes import Symbol
from girih.hlo.specialize import specialized
from girih.hlo.symbols import SymbolicDim, symbols_of
from girih.hlo.types import F32, TensorType

from .open_sizes import OPTIONS, Opened, check, opened

REFUSED = {
    "foreign_call",  # code that was written elsewhere knows its sizes
    "set_dimension_size",
}
# Of rooms that differ in one formula, these stand for all.
FORMULAS = {"add", "compare", "convert", "exponential", "clamp", "select", "map"}


@functools.cache
def representative(definition: OpDefinition) -> Opened | None:
    """The first case that can be opened, as widely as it can be."""
    for case in definition.cases():
        found = list(opened(example(definition, case)))
        if found:
            return found[-1]
    return None


def rooms() -> Iterator[Any]:
    for definition in DEFINITIONS:
        alike = definition.pattern == "elementwise" and definition.name not in FORMULAS
        if not alike and definition.name != "fusion" and any(definition.cases()):
            yield pytest.param(definition, id=definition.name)


@pytest.mark.parametrize("definition", list(rooms()))
def test_room(definition: OpDefinition) -> None:
    made = representative(definition)
    if made is None:
        return  # no case of it has sizes that may be others
    if definition.name not in REFUSED:
        assert check(made) == ""
        return
    with pytest.raises(UnsupportedError, match="no code for it yet where calls decide") as refused:
        girih.compile(made.module, options=OPTIONS)
    said = str(refused.value)
    assert any(name in said for name in made.sizes) and "--size" in said
    assert getattr(made.example.op, "kernel", definition.name) in said


def test_refused_rooms_have_cases() -> None:
    opened_rooms = {d.name for d in DEFINITIONS if d.name in REFUSED and representative(d)}
    assert opened_rooms == REFUSED


@pytest.mark.parametrize(
    "row, sizes",
    [(8, [(1, 8), (7, 8), (40, 8)]), (SymbolicDim("m"), [(1, 8), (7, 8), (3, 40), (5, 1)])],
    ids=str,
)
def test_loops_over_rows_of_open_stacks(row: Any, sizes: list[tuple[int, int]]) -> None:
    """A kernel on rows of a stack, and the kernel of the row, know the call's sizes."""
    kept = TensorType((row,), F32)

    def step(b: Builder, x: Any, total: Any) -> list[Any]:
        return [b("tanh", b("add", x, total))] * 2

    b = Builder()
    x, start = b.arguments([TensorType((SymbolicDim("n"), row), F32), kept])
    body = build_region([kept, kept], step)
    made = b.op("chlo.scan", [x, start], {"dimension": 0, "is_reverse": True}, (body,))
    symbols = {name: Symbol(1, 40) for dim in x.dims for name in symbols_of(dim)}
    module = Module({"main": Function("main", b.region(made.results))}, symbols=symbols)
    program = girih.compile(module, options=OPTIONS)
    for n, m in sizes:
        inputs = [np.linspace(-1, 1, n * m, dtype=np.float32).reshape(n, m), np.ones(m, np.float32)]
        wanted = interpret(specialized(module, {"n": n, "m": m}), inputs)
        for got, right in zip(program.call_flat(inputs), wanted, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-5)

"""Which sizes of calls are one symbol of a program, and how large they may become."""

from __future__ import annotations

from typing import Any

import pytest

from girih import call_sizes
from girih.call_sizes import Chosen, bounded, fixed, opened
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, TensorType

ANY, SOME = Symbol(1), Symbol(2)


def module_of(*dims: Any) -> Module:
    """An addition of a tensor of these sizes."""
    builder = Builder()
    (x,) = builder.arguments([TensorType(dims, F32)])
    body = builder.region([builder("add", x, x)])
    symbols = {name: Symbol(1) for dim in dims if not isinstance(dim, int) for name in dim.symbols}
    return Module({"main": Function("main", body)}, symbols=symbols)


def test_equal_sizes_are_one_symbol_until_a_call_tells_them_apart() -> None:
    first = opened([SOME, ANY, None, ANY], (7, 7, 4, 9), [])
    assert list(map(str, first.dims)) == ["n0", "n0", "4", "n1"]
    assert first.ranges == {"n0": SOME, "n1": ANY}
    assert first.admits((5, 5, 4, 5)) and first.values((5, 5, 4, 6)) == {"n0": 5, "n1": 6}
    assert not first.admits((5, 6, 4, 9)) and not first.admits((5, 5, 3, 9))
    assert not first.admits((1, 1, 4, 9))
    second = opened([SOME, ANY, None, ANY], (7, 7, 4, 7), [first, fixed((3, 4, 4, 4))])
    assert list(map(str, second.dims)) == ["n0", "n1", "4", "n2"]


def test_names_are_symbols_of_their_own() -> None:
    chosen = opened([ANY, SOME, ANY], (3, 3, 3), [], {0: "batch", 2: "batch"})
    assert list(map(str, chosen.dims)) == ["batch", "n1", "batch"]


def test_a_call_of_less_than_was_said_widens_the_range() -> None:
    assert opened([SOME], (0,), []).ranges["n0"].minimum == 0


def test_a_range_without_an_end_gets_one() -> None:
    module = module_of(SymbolicDim("n0"), SymbolicDim("n1"))
    chosen = opened([ANY, Symbol(1, 64)], (9, 5), [])
    module, planned = bounded(module, chosen, (9, 5), [])
    assert planned.ranges["n0"].last == 512 and module.symbols["n0"].last == 512
    assert planned.ranges["n1"].last == 64
    assert str(planned) == "n0 from 1 to 512, n1 from 1 to 64"
    _, more = bounded(module, opened([ANY, Symbol(1, 64)], (600, 5), []), (600, 5), [planned])
    assert more.ranges["n0"].last == 4096
    _, kept = bounded(module, opened([ANY, Symbol(1, 64)], (3, 5), [more]), (3, 5), [more])
    assert kept.ranges["n0"].last == 4096  # no smaller than what calls were served with


def test_memory_of_the_machine_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_sizes, "_most_bytes", lambda: 1 << 20)
    n = SymbolicDim("n0")
    chosen = Chosen((n,), {"n0": ANY})
    _, planned = bounded(module_of(n, n), chosen, (100,), [])
    assert planned.ranges["n0"].last == 512
    _, planned = bounded(module_of(n, n, n), chosen, (100,), [])
    assert planned.ranges["n0"].last == 128  # what the call has, at least

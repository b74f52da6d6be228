"""Tile functions whose extents a call decides: boxes and expressions of sizes, attention as one
kernel, both forms, the interpreter at fixed sizes."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends import find
from girih.hlo.access import reshaped
from girih.hlo.assumptions import Assumptions
from girih.hlo.deciding import at_hint, decided_by, deciding, once
from girih.hlo.graph import Module, Op
from girih.hlo.interpret import interpret
from girih.hlo.offsets import Offsets
from girih.hlo.parse import parse_module
from girih.hlo.sizes import Symbol
from girih.hlo.specialize import specialized
from girih.hlo.symbols import SymbolicDim
from girih.hlo.text import print_module
from girih.hlo.verify import verify
from girih.hlo.wire import decode, encode
from girih.optimizer.licence import Ledger
from girih.optimizer.pipeline import pipeline_for
from girih.optimizer.tiles.access import whole_span
from girih.optimizer.tiles.build import tile_count
from girih.optimizer.tiles.expressions import (
    AtSizes,
    evaluate,
    expression,
    never_above,
    sizes_in,
    variable,
)
from girih.options import Options

from .open_programs import HEADS, ROWS, SIZES, attention, expected, inputs_at, lowered

N, M = SymbolicDim("n"), SymbolicDim("m")
FACTS = Assumptions({"n": Symbol(1, 512), "m": Symbol(16, 512, 16)})


def test_sizes_are_expressions_with_the_ranges_that_are_known() -> None:
    with deciding(FACTS, {"n": 100, "m": 64}):
        size = expression(2 * N * M + N // 3 - 1)
        assert size is expression(2 * N * M + N // 3 - 1)
        assert size.range.low == 31
        values = AtSizes({"t0": 7}, {"n": 10, "m": 32})
        (found,) = evaluate([size + variable("t0", 0, 9)], values)
        assert found == 2 * 10 * 32 + 3 - 1 + 7
        assert sizes_in(size)
        assert not sizes_in(variable("s0", 1, 9))


def test_what_is_proven_of_sizes_is_proven_of_expressions() -> None:
    with deciding(FACTS, {"n": 100, "m": 64}) as decisions:
        assert never_above((N - 1) // 64 * 64, N - 1)
        assert never_above(expression(N), N * M)
        assert not never_above(64, N)
        assert whole_span(N).last is expression(N - 1)
        assert not decisions.guards


def test_what_depends_on_no_likely_call_is_found_once() -> None:
    memo: dict = {}
    made: list[str] = []

    def fixed() -> int:
        made.append("fixed")
        return 1

    for rows in (100, 7):
        with deciding(FACTS, {"n": rows, "m": 64}) as decisions:
            assert once(memo, "fixed", fixed) == 1 and not decisions.asked
            assert once(memo, "hint", lambda: at_hint(N)) == rows and decisions.asked
            assert once(memo, "guard", lambda: N <= 50) == (rows <= 50) and decisions.guards
    assert made == ["fixed"]
    with deciding(Assumptions({"n": Symbol(1, 8)}), {"n": 4}):  # other facts
        once(memo, "fixed", fixed)
    assert made == ["fixed"] * 2


def test_a_dim_that_fits_one_tile_has_one() -> None:
    with deciding(FACTS, {"n": 100, "m": 64}):
        assert tile_count(N, 512) == 1
        assert tile_count(N, 64) is -(-N // 64)
        assert tile_count(100, 64) == 2


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        ((N, M, 64), (N, M, 4, 16), {"n": 3, "m": 16}),
        ((N * M, 8), (N, M, 8), {"n": 3, "m": 16}),
        ((4 * N, M), (N, 4, M), {"n": 3, "m": 16}),
        ((N, 1, M), (N, M), {"n": 3, "m": 16}),
        ((N, 4, M), (4 * N, M), {"n": 3, "m": 16}),
        ((N, M), (N * M,), {"n": 3, "m": 16}),
    ],
)
def test_reshapes_of_open_sizes(source: tuple, target: tuple, values: dict[str, int]) -> None:
    """The formulas, at fixed sizes, give the element at the same place."""

    def fixed(size: object) -> int:
        return size if isinstance(size, int) else size.bind(values)  # type: ignore[attr-defined]

    with deciding(FACTS, values) as decisions:
        indices = reshaped(source, target)
    assert not decisions.guards
    before, after = tuple(map(fixed, source)), tuple(map(fixed, target))
    for number, place in enumerate(np.ndindex(*after)):
        found = []
        for index in indices:
            total = index.offset + sum(
                fixed(t.coefficient) * (place[t.dim] // fixed(t.divisor)) for t in index.terms
            )
            total //= fixed(index.divisor)
            found.append(total % fixed(index.modulus) if fixed(index.modulus) else total)
        assert tuple(found) == np.unravel_index(number, before)


def kernels(module: Module) -> list[Op]:
    return [op for op in module.body.ops if op.name == "kernel_call"]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_tile_function(causal: bool) -> None:
    module = attention(ROWS if causal else SymbolicDim("keys"), causal=causal)
    fused, decisions = lowered(module)
    (kernel,) = kernels(fused)
    assert not decisions.guards
    assert len(fused.body.ops) == 1
    assert any(isinstance(count, SymbolicDim) for count in kernel.grid)
    assert any(op.name == "tile_for" for op in kernel.regions[0].walk())
    assert any(op.name == "tile_bound" for op in kernel.regions[0].walk())
    verify(fused)
    for form in (parse_module(print_module(fused)), decode(encode(fused))):
        assert print_module(form) == print_module(fused)
    for batch, rows, keys in SIZES[:4]:
        given = inputs_at(batch, rows, rows if causal else keys)
        (got,) = interpret(fused, given)
        np.testing.assert_allclose(got, expected(*given, causal=causal), 2e-5, 2e-5)


def test_causal_loops_end_where_nothing_is_seen() -> None:
    fused, decisions = lowered(attention(ROWS, causal=True), "assumes-finite")
    (kernel,) = kernels(fused)
    (loop,) = (op for op in kernel.regions[0].walk() if op.name == "tile_for")
    with decided_by(decisions):
        assert Offsets(kernel).of(loop.operands[1]).terms  # not the same for all tiles
    for batch, rows, _ in SIZES:
        given = inputs_at(batch, rows, rows)
        (got,) = interpret(fused, given)
        np.testing.assert_allclose(got, expected(*given, causal=True), 2e-5, 2e-5)


def test_windows_of_open_memories_are_not_known_to_lie_inside() -> None:
    fused, decisions = lowered(attention())
    (kernel,) = kernels(fused)
    assert HEADS in kernel.grid
    loads = [op for op in kernel.regions[0].walk() if op.name == "tile_load"]
    assert len(loads) == 3
    with decided_by(decisions):
        offsets = Offsets(kernel)
        for op in loads:
            for value, size, dim in zip(op.offsets, op.sizes, op.operands[0].dims, strict=True):
                offset = offsets.of(value)
                assert offsets.inside(offset, 1, dim)  # it begins inside
                assert offsets.inside(offset, size, dim) == (isinstance(dim, int) or size == 1)


def test_fixed_sizes_leave_no_bounds() -> None:
    module = specialized(attention(), {"batch": 2, "rows": 131, "keys": 300})
    options = Options(cache="off")
    passes = pipeline_for(find("cpu", options, None), options, Ledger())
    fused = passes.run(module)[1]
    ops = [op for kernel in kernels(fused) for op in kernel.regions[0].walk()]
    assert ops
    assert not any(op.name == "tile_bound" for op in ops)

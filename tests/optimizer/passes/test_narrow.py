"""narrow: boxes that nobody reads are not computed, and nothing is computed twice."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import Dim, SymbolicDim
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.narrow import Narrow

MATRIX = TensorType((32, 16), F32)
SQUARE = TensorType((16, 16), F32)


def results(module: Module, *inputs: np.ndarray) -> list[np.ndarray]:
    return girih.interpret(module, inputs)


def rows(b, x, first: int, last: int):
    limits = (last, *x.dims[1:])
    start = (first, *(0,) * (x.rank - 1))
    return b("slice", x, start_indices=start, limit_indices=limits, strides=(1,) * x.rank)


def drawn(*dims: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-4, 5, dims).astype(np.float32)


def layer(b, x, w):
    """A product, a mean over rows, a residual."""
    zero = b.constant(0.0, TensorType((), F32))
    y = b("dot_general", x, w, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
    total = b.broadcast(b.reduce("add", y, zero, (1,)), y.dims, (0,))
    return b("add", x, b("subtract", y, total))


def test_one_row_of_two_layers() -> None:
    module = build_module(
        [MATRIX, SQUARE], lambda b, x, w: [rows(b, layer(b, layer(b, x, w), w), 3, 4)]
    )
    after = Narrow(least=0)(module)
    verify(after, INLINED)
    assert all(op.type.dims[0] in (1, 16) for op in after.body.ops if op.type.rank == 2)
    inputs = drawn(32, 16), drawn(16, 16)
    assert np.array_equal(results(module, *inputs)[0], results(after, *inputs)[0])


def test_what_is_read_whole_stays_whole() -> None:
    def body(b, x, w):
        y = layer(b, x, w)
        return [y, rows(b, y, 3, 4)]

    module = build_module([MATRIX, SQUARE], body)
    assert Narrow(least=0)(module) is module


def test_slices_that_cover_a_product_leave_it_alone() -> None:
    def body(b, x, w):
        y = layer(b, x, w)
        return [b("negate", rows(b, y, 0, 16)), b("exponential", rows(b, y, 16, 32))]

    module = build_module([MATRIX, SQUARE], body)
    assert Narrow(least=0)(module) is module


def test_a_saving_must_be_worth_it() -> None:
    module = build_module([MATRIX, SQUARE], lambda b, x, w: [rows(b, layer(b, x, w), 3, 4)])
    assert Narrow()(module) is module


N = SymbolicDim("n")


def opened(module: Module) -> Module:
    return replace(module, symbols={"n": Symbol(2, 64)})


def test_the_last_row_of_two_layers_whose_number_a_call_decides() -> None:
    def body(b, x, w):
        y = layer(b, layer(b, x, w), w)
        return [b("slice", y, start_indices=(N - 1, 0), limit_indices=(N, 16), strides=(1, 1))]

    module = opened(build_module([TensorType((N, 16), F32), SQUARE], body))
    after = Narrow(least=0)(module)
    verify(after, INLINED)
    assert all(op.type.dims[0] in (1, 16) for op in after.body.ops if op.type.rank == 2)
    for size in (2, 7, 64):
        inputs = drawn(size, 16), drawn(16, 16)
        assert np.array_equal(results(module, *inputs)[0], results(after, *inputs)[0])


@pytest.mark.parametrize("rows_", [32, N], ids=str)
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_chains(rows_: Dim, chance: random.Random) -> None:
    def place(size: Dim) -> int:
        return chance.randrange(size if isinstance(size, int) else 2)

    def body(b, x, w):
        values = [x]
        for _ in range(chance.randint(1, 10)):
            v = chance.choice(values[-3:])
            choice = chance.randrange(9)
            if choice == 0:
                v = b("negate", v)
            elif choice == 1:
                v = b("add", v, chance.choice([u for u in values if u.type is v.type]))
            elif choice == 2 and v.rank:
                start = list(map(place, v.dims))
                limit = [
                    chance.randint(s + 1, d) if isinstance(d, int)
                    else chance.choice((d, s + 1, d - 1 if s == 0 else d))
                    for s, d in zip(start, v.dims, strict=True)
                ]  # fmt: skip
                if chance.randrange(2):  # the last ones
                    ends = [
                        (start[d], limit[d]) if isinstance(size, int) else (size - 1, size)
                        for d, size in enumerate(v.dims)
                    ]
                    start, limit = map(list, zip(*ends, strict=True))
                steps = tuple(chance.choice((1, 1, 3)) for _ in v.dims)
                v = b("slice", v, start_indices=tuple(start), limit_indices=tuple(limit),
                      strides=steps)  # fmt: skip
            elif choice == 3:
                order = list(range(v.rank))
                chance.shuffle(order)
                v = b.transpose(v, order)
            elif choice == 4 and v.rank < 4:
                at = chance.randint(0, v.rank)
                v = b.reshape(v, (*v.dims[:at], 1, *v.dims[at:]))
            elif choice == 5:
                v = b.reshape(v, (v.tensor.size,))
            elif choice == 6 and v.rank > 1:
                zero = b.constant(0.0, TensorType((), F32))
                v = b.reduce("add", v, zero, (chance.randrange(v.rank),))
            elif choice == 7 and v.rank < 4:
                at = chance.randint(0, v.rank)
                mapped = [d + (d >= at) for d in range(v.rank)]
                v = b.broadcast(v, (*v.dims[:at], 3, *v.dims[at:]), mapped)
            elif choice == 8 and v.rank and 16 in v.dims:
                d = v.dims.index(16)
                v = b("dot_general", v, w, lhs_contracting_dimensions=(d,),
                      rhs_contracting_dimensions=(1,))  # fmt: skip
            elif v.rank:
                v = b("concatenate", v, v, dimension=chance.randrange(v.rank))
            if not isinstance(v.tensor.size, int) or v.tensor.size <= 1 << 14:
                values.append(v)
        return values[-2:]

    module = build_module([TensorType((rows_, 16), F32), SQUARE], body)
    module = module if isinstance(rows_, int) else opened(module)
    after = Narrow(least=0)(module)
    verify(after, INLINED)
    for size in (rows_,) if isinstance(rows_, int) else (2, 5, 33):
        inputs = drawn(size, 16), drawn(16, 16)
        for one, other in zip(results(module, *inputs), results(after, *inputs), strict=True):
            assert np.array_equal(one, other)

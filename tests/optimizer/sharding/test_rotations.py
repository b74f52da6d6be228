"""Slices that are joined again along a cut dim: pads, which move each element once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from girih import partition
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sharding import Mesh, parse_sharding
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.sharding.propagated import propagate
from girih.optimizer.sharding.rotations import pads_for_slices


def part(b: Any, x: Any, low: int, high: int, step: int = 1) -> Any:
    return b("slice", x, start_indices=(low, 0), limit_indices=(high, x.dims[1]), strides=(step, 1))


def program(body: Any, *kinds: TensorType, text: str = '[{"x"}, {}]', size: int = 4) -> Module:
    said = parse_sharding(f"<@mesh, {text}>")
    module = build_module([kind.with_sharding(said) for kind in kinds], body)
    return replace(module, meshes={"mesh": Mesh((("x", size),))})


def rotated(b: Any, x: Any) -> Any:
    half = x.dims[0] // 2
    back = b("negate", part(b, x, half, x.dims[0]))
    return [b("concatenate", back, part(b, x, 0, half), dimension=0)]


def test_halves_change_places_once() -> None:
    parts = partition(program(rotated, TensorType((16, 3), F32)))
    assert parts.bytes == 4 * 3 * 4  # each device's block comes from one other
    assert [row.op.name for row in parts.communications] == ["pad", "pad"]
    x = np.arange(48, dtype=np.float32).reshape(16, 3)
    x[3] = np.nan, -0.0, np.inf
    found = parts.interpret([x])[0]
    wanted = np.concatenate([-x[8:], x[:8]])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("seed", range(30))
def test_pieces_in_any_order(seed: int) -> None:
    r = random.Random(seed)
    rows, kind = r.choice((7, 12, 16)), r.choice((F32, I32))
    pieces = [sorted(r.sample(range(rows + 1), 2)) for _ in range(r.randint(1, 4))]

    def body(b: Any, x: Any, y: Any) -> Any:
        found = []
        for low, high in pieces:
            value = part(b, r.choice((x, y)), low, high)
            found.append(r.choice((value, b("negate", value), b("abs", b("negate", value)))))
        if r.random() < 0.5:
            found.insert(r.randrange(len(found) + 1), r.choice((x, y)))
        return [b("concatenate", *found, dimension=0)]

    kinds = (TensorType((rows, 3), kind),) * 2
    module = program(body, *kinds, size=r.choice((2, 3, 4)))
    inputs = [np.arange(n, n + 3 * rows).reshape(rows, 3).astype(kind.dtype) for n in (-9, 5)]
    for found, wanted in zip(
        partition(module).interpret(inputs), interpret(module, inputs), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_where_nothing_is_gained_the_program_stays() -> None:
    kind = TensorType((16, 3), F32)

    def strided(b: Any, x: Any) -> Any:
        return [b("concatenate", part(b, x, 1, 16, 2), part(b, x, 0, 16, 2), dimension=0)]

    def joined(b: Any, x: Any) -> Any:
        return [b("concatenate", x, x, dimension=0)]

    for body, text in ((rotated, '[{}, {"x"}]'), (strided, '[{"x"}, {}]'), (joined, '[{"x"}, {}]')):
        found = propagate(program(body, kind, text=text, size=2))
        assert pads_for_slices(found) is found
    found = propagate(program(rotated, kind))
    assert pads_for_slices(found) is not found

"""Random tile functions on the CPU against their interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from girih.hlo.build import build_region
from girih.hlo.ops.tile import INDEX

from ..harness import check
from .test_tile import call, spread, tensor

pytestmark = pytest.mark.usefixtures("each_level")
UNARY = ("negate", "abs", "tanh", "floor")
BINARY = ("add", "subtract", "multiply", "maximum")


class Maker:
    """Grows a body: `tiles` are values of dims (rows, columns), drawn from and added to."""

    def __init__(self, draw: Any, b: Any, rows: int, columns: int) -> None:
        self.draw, self.b, self.rows, self.columns = draw, b, rows, columns

    def pick(self, tiles: list[Any]) -> Any:
        return tiles[self.draw(st.integers(0, len(tiles) - 1))]

    def offset(self, scalars: list[Any], size: int) -> Any:
        """factor * scalar + constant."""
        b, constant = self.b, self.b.constant
        scalar = self.pick(scalars)
        factor = constant(self.draw(st.sampled_from((0, 1, size))), INDEX)
        start = constant(self.draw(st.integers(-2, 2)), INDEX)
        return b("add", b("multiply", scalar, factor), start)

    def step(self, memory: list[Any], scalars: list[Any], tiles: list[Any]) -> Any:
        b, dims = self.b, (self.rows, self.columns)
        kind = self.draw(st.integers(0, 7))
        if kind == 0 or not tiles:
            places = [self.offset(scalars, size) for size in dims]
            fill = float(self.draw(st.integers(-1, 1)))
            return b("tile_load", self.pick(memory), *places, sizes=dims, fill=fill)
        tile = self.pick(tiles)
        if kind == 1:
            return b(self.draw(st.sampled_from(UNARY)), tile)
        if kind == 2:
            return b(self.draw(st.sampled_from(BINARY)), tile, self.pick(tiles))
        if kind in (3, 4):
            name = self.draw(st.sampled_from(("add", "maximum")))
            start = b.constant(0 if name == "add" else -4, tensor())
            total = b.reduce(name, tile, start, (kind - 3,))
            return b("subtract", tile, spread(b, total, dims, (4 - kind,)))
        if kind == 5:
            scale = spread(b, b.convert(self.pick(scalars), tile.element), dims)
            return b("multiply", b("logistic", tile), scale)
        other = self.pick(tiles)
        side = kind - 6  # a b^T c: a product of its own size
        inner = (self.rows, self.rows) if side else (self.columns, self.columns)
        left, right = (tile, other) if side else (other, tile)
        product = self.dot(left, right, inner, (side, side))
        product = b("tanh", product)
        return (
            self.dot(product, tile, dims, (1, 0)) if side else self.dot(tile, product, dims, (1, 0))
        )

    def dot(self, left: Any, right: Any, dims: tuple[int, int], sides: tuple[int, int]) -> Any:
        return self.b(
            "dot_general", left, right, type=tensor(*dims), lhs_batching_dimensions=(),
            rhs_batching_dimensions=(), lhs_contracting_dimensions=sides[:1],
            rhs_contracting_dimensions=sides[1:], precision_config=(),
        )  # fmt: skip


@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(st.data())
def test_random_tile_functions(data: Any) -> None:
    draw = data.draw
    rows, columns = draw(st.sampled_from((1, 3, 8, 16))), draw(st.sampled_from((1, 5, 16, 33)))
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 70))
    grid = (-(-height // rows), -(-width // columns))

    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        ids = [b("tile_id", axis=0), b("tile_id", axis=1)]
        at = [
            b("multiply", one, b.constant(size, INDEX))
            for one, size in zip(ids, (rows, columns), strict=True)
        ]
        maker = Maker(draw, b, rows, columns)
        tiles: list[Any] = []
        for _ in range(draw(st.integers(1, 4))):
            tiles.append(maker.step([x, y], ids, tiles))
        count = draw(st.integers(1, 2))
        start = [maker.pick(tiles) for _ in range(count)]

        def loop_body(b: Any, i: Any, *carried: Any) -> list[Any]:
            inner = Maker(draw, b, rows, columns)
            values = [*carried]
            for _ in range(draw(st.integers(1, 4))):
                values.append(inner.step([x, y], [*ids, i], [*values, tiles[0]]))
            return [b("tanh", inner.pick(values)) if draw(st.booleans()) else inner.pick(values)
                    for _ in carried]  # fmt: skip

        region = build_region([INDEX, *(value.type for value in start)], loop_body)
        bounds = [b.constant(draw(st.integers(0, 1)), INDEX), b.constant(3, INDEX)]
        loop = b.op("tile_for", [*bounds, *start], {"step": draw(st.integers(1, 2))}, (region,))
        tiles += loop.results
        for _ in range(draw(st.integers(0, 3))):
            tiles.append(maker.step([x, y], ids, tiles))
        b.op("tile_store", [out, tiles[-1], *at])

    rng = np.random.default_rng(draw(st.integers(0, 99)))
    inputs = [rng.standard_normal((height, width)).astype(np.float32) / 4 for _ in range(2)]
    check(call(body, inputs, [tensor(height, width)], grid), inputs, tolerance=2e-4)

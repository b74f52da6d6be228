"""Construct: Pareto variants of all legal configurations, the same every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from girih.backends.cpu import machines
from girih.optimizer.cost.construct import ranked, score
from girih.optimizer.cost.model import Features, Traffic
from girih.optimizer.cuts import product_prices, products
from girih.optimizer.cuts.products import ProductShape

MACHINE = machines.typical("avx512")
FIELDS = np.dtype([("size", np.int64)])


@dataclass(frozen=True)
class Squares:
    """Square tiles of a plane: small ones move more, large ones are few and need scratch."""

    extent: int

    @property
    def configurations(self):
        sizes = [size for size in range(8, self.extent + 1, 8) if self.extent % size == 0]
        return np.array([(size,) for size in sizes], FIELDS)

    def footprint(self, configurations):
        return 4 * configurations["size"] ** 2

    def features(self, configurations, machine, executors):
        size = configurations["size"]
        moved = 8.0 * self.extent**3 / size
        tasks = (self.extent // size) ** 2
        return Features(2.0 * self.extent**3, 1e11, (Traffic(moved, 2),), 1e-7 * tasks, tasks)


def shape(rows: int, columns: int, depth: int, **options: Any) -> ProductShape:
    known: dict[str, Any] = {
        "outer": 1, "rows": rows, "columns": columns, "depth": depth, "element_bytes": 4,
        "lanes": 16, "registers": 32, "left_row_stride": depth, "left_depth_stride": 1,
        "left_must_pack": False, "left_may_pack": True, "right_depth_stride": columns,
        "right_block": 0, "right_must_pack": False, "right_by_vector": True, "even_depth": True,
        "plain_result": True,
    }  # fmt: skip
    return ProductShape(**{**known, **options})


SHAPES = [
    shape(512, 512, 512),
    shape(1, 1000, 64),
    shape(37, 5, 999),
    shape(128, 3072, 768, right_block=32, right_depth_stride=32),
    shape(64, 64, 64, outer=12, element_bytes=8, lanes=8, plain_result=False),
    shape(100, 48, 27, left_must_pack=True, left_may_pack=False, even_depth=False),
    shape(3136, 64, 576, registers=16, lanes=8),
]


def test_ranking_is_by_predicted_time():
    order, times = ranked(Squares(512), MACHINE, 2)
    assert (np.diff(times) >= -1e-12).all()
    assert sorted(order["size"]) == sorted(Squares(512).configurations["size"])


@pytest.mark.parametrize("product", SHAPES)
def test_every_candidate_is_legal_and_fits(product):
    every = products.candidates(product)
    assert len(every) == len(np.unique(every)) > 0
    for row in every[:: max(1, len(every) // 300)]:
        cut = products.blocking_of(row)
        assert products.problem(product, cut) is None, cut
    problem = product_prices.ProductProblem(product)
    scores = score(problem, every, MACHINE)
    assert np.isfinite(scores.time).all() and (scores.time > 0).all()
    assert (scores.area >= scores.time / MACHINE.executors * (1 - 1e-9)).any()
    # No prediction is faster than the machine.
    limit = 2.0 * product.outer * product.rows * product.columns * product.depth
    assert scores.area.min() >= limit / product_prices.unit_of(product, MACHINE).flops


@pytest.mark.parametrize("product", SHAPES)
@pytest.mark.parametrize("level", ["avx512", "neon"])
def test_the_choice_is_legal_and_always_the_same(product, level):
    machine = machines.typical(level)
    chosen = product_prices.choose(product, machine)
    assert products.problem(product, chosen) is None
    product_prices.choose.cache_clear()
    assert product_prices.choose(product, machine) == chosen


def test_a_machine_with_small_caches_gets_smaller_blocks():
    problem = product_prices.ProductProblem(shape(1024, 1024, 1024))

    def block(level):
        best = ranked(problem, machines.typical(level), 1)[0][0]
        return best["panels"] * best["rows"] * best["depth"]

    large, small = block("avx512"), block("baseline")
    assert small < large


def test_empty_products_have_a_blocking():
    product = shape(4, 8, 0)
    assert product_prices.choose(product, MACHINE) == products.default(product)

"""Generated programs with loops and branches whose values need little of each other."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, I32, TensorType

SHAPE = TensorType((8, 16), F32)
COUNT = TensorType((), I32)
VALUES = 3
DEEPEST = 2


class Program:
    """A program of three f32[8,16] and a number of turns, by a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def module(self) -> Module:
        self.drawn = random.Random(self.seed)

        def body(b: Any, n: Value, *values: Value) -> list[Value]:
            return self.items(b, n, list(values), 0)

        return build_module([COUNT, *[SHAPE] * VALUES], body)

    def arguments(self, seed: int) -> list[np.ndarray]:
        drawn = np.random.default_rng(seed)
        given = [drawn.standard_normal(SHAPE.dims).astype(np.float32) for _ in range(VALUES)]
        return [np.array(seed % 4, np.int32), *given]

    def items(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        kinds = ["element", "sort", "rows", "while", "if", "case"]
        for _ in range(self.drawn.randrange(2, 5)):
            kind = self.drawn.choice(kinds if depth < DEEPEST else kinds[:3])
            values = getattr(self, f"_{kind}")(b, n, values, depth)
        return values

    def _element(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        """New values, each of two of the old ones."""
        new = list(values)
        for at in self.drawn.sample(range(VALUES), 2):
            other = self.drawn.choice(values)
            new[at] = b("tanh", b(self.drawn.choice(["add", "subtract"]), values[at], other))
        return new

    def _sort(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        """A kernel of its own for one value; the others need nothing of it."""
        scalar = TensorType((), F32)
        compare = build_region([scalar] * 2, lambda b, x, y: [b.compare("LT", x, y)])
        at = self.drawn.randrange(VALUES)
        attributes = {"dimension": 1, "is_stable": True}
        (found,) = b.op("sort", [values[at]], attributes, [compare], [SHAPE]).results
        return [*values[:at], found, *values[at + 1 :]]

    def _rows(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        """Each row of one value by its largest element."""
        at, scalar = self.drawn.randrange(VALUES), TensorType((), F32)
        largest = build_region([scalar] * 2, lambda b, x, y: [b("maximum", x, y)])
        rows, low = TensorType((8,), F32), b.constant(-100.0, scalar)
        (found,) = b.op(
            "reduce", [values[at], low], {"dimensions": (1,)}, [largest], [rows]
        ).results
        wide = b("broadcast_in_dim", found, broadcast_dimensions=(0,), type=SHAPE)
        return [*values[:at], b("subtract", values[at], wide), *values[at + 1 :]]

    def _while(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        """So many turns as the number says, which change values, and perhaps places."""
        types = [COUNT, *[SHAPE] * VALUES]

        def body(b: Any, i: Value, *values: Value) -> list[Value]:
            new = self.items(b, i, list(values), depth + 1)
            if self.drawn.random() < 0.3:
                new = [*new[1:], new[0]]
            return [b("add", i, b.constant(1, COUNT)), *new]

        regions = (
            build_region(types, lambda b, i, *_: [b.compare("LT", i, n)]),
            build_region(types, body),
        )
        return b.op("while", [b.constant(0, COUNT), *values], {}, regions, types).results[1:]

    def _arms(
        self, b: Any, name: str, index: Value, n: Value, values: Any, depth: int, count: int
    ) -> Any:
        def arm(b: Any) -> list[Value]:
            return self.items(b, n, list(values), depth + 1)

        regions = [build_region([], arm) for _ in range(count)]
        return list(b.op(name, [index], {}, regions, [SHAPE] * VALUES).results)

    def _if(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        asked = b.compare(self.drawn.choice(["LT", "GT"]), n, b.constant(1, COUNT))
        return self._arms(b, "if", asked, n, values, depth, 2)

    def _case(self, b: Any, n: Value, values: list[Value], depth: int) -> list[Value]:
        index = b("subtract", n, b.constant(1, COUNT))
        return self._arms(b, "case", index, n, values, depth, self.drawn.randrange(2, 4))

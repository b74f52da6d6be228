"""What is known of integers while a program is imported is what the program computes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.known_integers import KnownIntegers
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Value
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim, bound
from girih.hlo.types import F32, I1, I32, TensorType

SCALAR = TensorType((), I32)
BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum")
SYMBOLS = {"n": Symbol(1, 24), "m": Symbol(0, 9)}


class Arithmetic:
    """Writes random arithmetic on sizes, and notes what is known of each value."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.known = chance, KnownIntegers(SYMBOLS)
        self.b = Builder()
        (x,) = self.b.arguments([TensorType((SymbolicDim("n"), SymbolicDim("m")), F32)])
        self.numbers = [self.add("get_dimension_size", x, dimension=d) for d in (0, 1)]
        self.flags: list[Value] = []

    def add(self, name: str, *operands: Value, **facts: Any) -> Value:
        made = self.b.op(name, operands, facts, types=facts.pop("types", None))
        self.known.learn(made)
        return made.result

    def number(self) -> Value:
        if self.chance.random() < 0.35:
            return self.b.constant(self.chance.choice((1, 2, 3, 4, 7, -1, -3)), SCALAR)
        return self.chance.choice(self.numbers[-6:] + self.numbers[:2])

    def step(self) -> None:
        kind, x, y = self.chance.random(), self.number(), self.number()
        if kind < 0.5:
            self.numbers.append(self.add(self.chance.choice(BINARY), x, y))
        elif kind < 0.6:
            self.numbers.append(self.add(self.chance.choice(("negate", "abs", "sign")), x))
        elif kind < 0.7:
            self.floor_divided(x, y)
        elif kind < 0.85 or len(self.flags) < 2:
            direction = self.chance.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
            self.flags.append(self.compare(direction, x, y))
        elif kind < 0.93:
            name = self.chance.choice(("and", "or", "xor"))
            self.flags.append(self.add(name, *self.chance.sample(self.flags, 2)))
        else:
            self.numbers.append(self.add("select", self.chance.choice(self.flags), x, y))

    def compare(self, direction: str, x: Value, y: Value) -> Value:
        types = [TensorType((), I1)]
        return self.add("compare", x, y, comparison_direction=direction, types=types)

    def floor_divided(self, x: Value, y: Value) -> None:
        """Python's quotient and remainder, as JAX spells them."""
        zero, one = (self.b.constant(n, SCALAR) for n in (0, 1))
        quotient, rest = self.add("divide", x, y), self.add("remainder", x, y)
        apart = self.compare("NE", self.add("sign", x), self.add("sign", y))
        lower = self.add("and", apart, self.compare("NE", rest, zero))
        less = self.add("subtract", quotient, one)
        self.numbers.append(self.add("select", lower, less, quotient))
        signs = [self.compare("LT", rest, zero), self.compare("LT", y, zero)]
        more = self.add("and", self.compare("NE", *signs), self.compare("NE", rest, zero))
        self.numbers.append(self.add("select", more, self.add("add", rest, y), rest))


@pytest.mark.parametrize("seed", range(40))
def test_known_integers_are_those_of_the_program(seed: int) -> None:
    found = Arithmetic(random.Random(seed))
    for _ in range(14):
        found.step()
    values = [v for v in (*found.numbers, *found.flags) if found.known.array(v) is not None]
    body = found.b.region(values)
    module = Module({"main": Function("main", body)}, symbols=SYMBOLS)
    for n, m in ((1, 0), (1, 9), (2, 1), (7, 3), (12, 8), (24, 5), (23, 0)):
        sizes = {"n": n, "m": m}
        with np.errstate(all="ignore"):
            results = girih.interpret(module, [np.zeros((n, m), np.float32)])
        for value, wanted in zip(values, results, strict=True):
            known = found.known.array(value)
            assert known is not None
            item = known.item()
            if item is None or type(item).__name__ == "_Sign":
                continue
            if isinstance(item, tuple):
                assert all(claim.holds(sizes) for claim in item) == bool(wanted)
            elif isinstance(item, bool):
                assert item == bool(wanted)
            else:
                assert bound(item, sizes) == int(wanted), (str(item), sizes)


def test_floor_division_of_both_signs_is_known() -> None:
    known = Arithmetic(random.Random(0))
    n, b = SymbolicDim("n"), known.b
    for sign, divisor in ((1, 4), (-1, 7), (1, 1)):
        x = known.add("multiply", known.numbers[0], b.constant(sign, SCALAR))
        known.floor_divided(x, b.constant(divisor, SCALAR))
        quotient, rest = known.numbers[-2:]
        assert known.known.numbers(quotient) is (sign * n) // divisor
        assert known.known.numbers(rest) is (sign * n) % divisor

"""Random programs: the optimizer preserves what they compute, ends, and leaves nothing to do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module, Value
from girih.hlo.types import BF16, F32, F64, I1, I8, I32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.licence import BITWISE, Ledger
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.rewrite import Engine
from girih.optimizer.rules import RULES
from girih.optimizer.rules.check import DYADIC, difference
from girih.options import Options

SIZES = (1, 1, 2, 3, 4, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 0)
ELEMENTS = (F32, F32, F32, I32, I32, I8, F64, BF16)
UNARY = ("negate", "abs")
FLOATING = ("exponential", "tanh", "floor", "sqrt", "rsqrt", "log", "logistic")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")


class Programmer:
    """Writes a program one random operation after another; every value stays usable."""

    def __init__(self, chance: random.Random, sums: bool) -> None:
        self.chance = chance
        self.sums = sums  # also float sums and products, whose order is free
        self.b = Builder()
        dims = [self.dims(chance.randint(0, 3)) for _ in range(3)]
        types = [TensorType(d, chance.choice(ELEMENTS)) for d in dims]
        self.values = list(self.b.arguments(types))

    def dims(self, rank: int) -> tuple[int, ...]:
        return tuple(self.chance.choice(SIZES) for _ in range(rank))

    def any(self, **wanted: Any) -> Any:
        fits = [
            value for value in self.values
            if all(
                (kind in want if isinstance(want, tuple) else kind == want)
                for want, kind in (
                    (want, getattr(value.element if key == "kind" else value, key))
                    for key, want in wanted.items()
                )
            )
        ]  # fmt: skip
        return self.chance.choice(fits[-8:]) if fits else None

    def mate(self, value: Value) -> Value:
        """A value of the same type: an older one, a constant or a broadcast."""
        same = [other for other in self.values if other.type is value.type and other is not value]
        if same and self.chance.random() < 0.5:
            return self.chance.choice(same)
        kind = value.tensor
        if self.chance.random() < 0.4 and value.rank:
            d = self.chance.randrange(value.rank)
            line = self.constant(TensorType((kind.dims[d],), kind.element))
            return self.b.broadcast(line, kind.dims, (d,))
        return self.constant(kind)

    def constant(self, kind: TensorType) -> Value:
        if kind.element.is_bool:
            numbers: Any = [True, False]
        elif kind.element.is_float:
            numbers = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, float("inf")]
        else:
            numbers = [0, 1, -1, 2, 5]
        if self.chance.random() < 0.6:
            return self.b.constant(self.chance.choice(numbers), kind)
        picked = [self.chance.choice(numbers) for _ in range(kind.size)]
        return self.b.constant(np.array(picked).reshape(kind.dims), kind)

    def step(self) -> None:
        made = getattr(self, self.chance.choice(STEPS))()
        if made is not None and made.tensor.size <= 400:
            self.values.append(made)

    # One method per family.

    def unary(self) -> Value | None:
        x = self.any(kind=("float", "int"))
        if x is None:
            return None
        names = UNARY + (FLOATING if x.element.is_float else ())
        return self.b(self.chance.choice(names), x)

    def binary(self) -> Value | None:
        x = self.any(kind=("float", "int"))
        if x is None:
            return None
        operands = [x, self.mate(x)]
        self.chance.shuffle(operands)
        names = (*BINARY, "divide") if x.element.is_float else BINARY
        return self.b(self.chance.choice(names), *operands)

    def compare(self) -> Value | None:
        x = self.any()
        directions = ("EQ", "NE", "LT", "GE", "GT", "LE")
        return self.b.compare(self.chance.choice(directions), x, self.mate(x))

    def select(self) -> Value | None:
        p = self.any(kind="bool")
        if p is None:
            return None
        x = self.any(dims=p.dims)
        return None if x is None else self.b("select", p, x, self.mate(x))

    def logic(self) -> Value | None:
        x = self.any(kind=("bool", "int"))
        if x is None:
            return None
        if self.chance.random() < 0.3:
            return self.b("not", x)
        return self.b(self.chance.choice(("and", "or", "xor")), x, self.mate(x))

    def convert(self) -> Value | None:
        x = self.any()
        targets = (F32, F64, I32) if not x.element.is_float else (F32, F64, BF16)
        return self.b.convert(x, self.chance.choice(targets))

    def reshape(self) -> Value | None:
        x = self.any()
        dims = list(x.dims)
        choice = self.chance.random()
        if choice < 0.4 or x.tensor.size == 0:
            dims.insert(self.chance.randint(0, len(dims)), 1)
        elif choice < 0.7 and 1 in dims:
            dims.remove(1)
        else:
            dims = [x.tensor.size] if choice < 0.85 else [1, x.tensor.size]
        return self.b.reshape(x, dims[:5] if len(dims) <= 5 else [x.tensor.size])

    def transpose(self) -> Value | None:
        x = self.any()
        order = list(range(x.rank))
        self.chance.shuffle(order)
        return self.b.transpose(x, order)

    def broadcast(self) -> Value | None:
        x = self.any()
        if x.rank > 3:
            return None
        dims = [self.chance.choice(SIZES[1:]) if d == 1 else d for d in x.dims]
        mapped = list(range(x.rank))
        at = self.chance.randint(0, x.rank)
        dims.insert(at, self.chance.choice(SIZES[1:]))
        return self.b.broadcast(x, dims, [d + (d >= at) for d in mapped])

    def slice(self) -> Value | None:
        x = self.any()
        start = [self.chance.randint(0, max(d - 1, 0)) for d in x.dims]
        limit = [self.chance.randint(min(s + 1, d), d) for s, d in zip(start, x.dims, strict=True)]
        steps = tuple(self.chance.choice((1, 1, 2)) for _ in x.dims)
        return self.b(
            "slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=steps
        )

    def concatenate(self) -> Value | None:
        x = self.any()
        if x.rank == 0:
            return None
        return self.b("concatenate", x, self.mate(x), dimension=self.chance.randrange(x.rank))

    def pad(self) -> Value | None:
        x = self.any()
        low, high = ([self.chance.choice((0, 0, 1)) for _ in x.dims] for _ in range(2))
        inner = [self.chance.choice((0, 0, 0, 1)) for _ in x.dims]
        value = self.constant(TensorType((), x.element))
        return self.b(
            "pad", x, value, edge_padding_low=tuple(low), edge_padding_high=tuple(high),
            interior_padding=tuple(inner),
        )  # fmt: skip

    def reverse(self) -> Value | None:
        x = self.any()
        turned = tuple(d for d in range(x.rank) if self.chance.random() < 0.5)
        return self.b("reverse", x, dimensions=turned)

    def dynamic(self) -> Value | None:
        x = self.any()
        starts = [self.b.constant(self.chance.randint(-1, 4), TensorType((), I32)) for _ in x.dims]
        sizes = tuple(self.chance.randint(min(1, d), d) for d in x.dims)
        if x.rank == 0:
            return None
        return self.b("dynamic_slice", x, *starts, slice_sizes=sizes)

    def reduce(self) -> Value | None:
        x = self.any(kind=("float", "int"))
        if x is None:
            return None
        monoids = ("maximum", "minimum", "add") if x.element.is_integer or self.sums else (
            "maximum", "minimum")  # fmt: skip
        name = self.chance.choice(monoids)
        neutral = {"add": 0, "maximum": -np.inf, "minimum": np.inf}[name]
        if x.element.is_integer and name != "add":
            limits = np.iinfo(x.element.dtype)
            neutral = limits.min if name == "maximum" else limits.max
        dims = tuple(d for d in range(x.rank) if self.chance.random() < 0.5)
        return self.b.reduce(name, x, self.b.constant(neutral, TensorType((), x.element)), dims)

    def dot(self) -> Value | None:
        x = self.any(kind=("float", "int") if self.sums else ("int",))
        if x is None or x.rank == 0:
            return None
        d = self.chance.randrange(x.rank)
        y = self.constant(TensorType((x.dims[d], self.chance.choice(SIZES)), x.element))
        return self.b(
            "dot_general", x, y, lhs_contracting_dimensions=(d,), rhs_contracting_dimensions=(0,)
        )

    def branch(self) -> Value | None:
        x = self.any(kind=("float", "int"))
        if x is None:
            return None
        pred = self.any(dims=(), kind="bool")
        if pred is None and self.chance.random() < 0.9:
            return None
        pred = pred or self.constant(TensorType((), I1))
        other = self.mate(x)
        yes = build_region([], lambda c: [c("add", x, other)])
        no = build_region([], lambda c: [c("negate", x)])
        return self.b("if", pred, regions=(yes, no))


STEPS = tuple(
    name for name, value in vars(Programmer).items()
    if callable(value) and not name.startswith("_")
    and name not in ("dims", "any", "mate", "constant", "step")
)  # fmt: skip


def program(chance: random.Random, sums: bool) -> tuple[Module, list[np.ndarray[Any, Any]]]:
    """A random program and inputs for it."""
    writer = Programmer(chance, sums)
    for _ in range(chance.randint(1, 25)):
        writer.step()
    results = [chance.choice(writer.values[-6:]) for _ in range(2)]
    region = writer.b.region(results)
    inputs = []
    for argument in region.arguments:
        numbers = DYADIC if argument.element.is_float else (0, 1, -1, 2, -3, 7)
        if argument.element.is_float and not sums:
            numbers = (*numbers, np.inf, -np.inf, np.nan, 1e30, 0.1)
        picked = np.array([chance.choice(numbers) for _ in range(argument.tensor.size)])
        inputs.append(picked.astype(argument.tensor.dtype).reshape(argument.dims))
    return Module({"main": Function("main", region)}), inputs


def results_of(module: Module, inputs: list[np.ndarray[Any, Any]]) -> list[Any]:
    with np.errstate(all="ignore"):
        return girih.interpret(module, inputs)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_bitwise_pipeline_preserves_every_bit(chance: random.Random) -> None:
    module, inputs = program(chance, sums=False)
    verify(module)
    ledger = Ledger()
    after = run_pipeline(module, simplify_pipeline(Options(numerics="bitwise"), ledger), check=True)
    assert ledger.licences == BITWISE and not ledger.exhausted
    for before, now in zip(results_of(module, inputs), results_of(after, inputs), strict=True):
        assert difference(before, now, BITWISE) == ""


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_default_pipeline_stays_close_and_is_idempotent(chance: random.Random) -> None:
    module, inputs = program(chance, sums=True)
    ledger = Ledger()
    after = run_pipeline(module, simplify_pipeline(Options(), ledger), check=True)
    assert not ledger.exhausted
    assert Simplify()(after) is after
    for before, now in zip(results_of(module, inputs), results_of(after, inputs), strict=True):
        exact = before.dtype.kind in "biu" or np.isfinite(before.astype(np.float64)).all()
        if before.dtype.kind in "biu":
            continue  # a comparison may tip over by a rounding before it
        if exact and before.size:
            scale = float(np.abs(before.astype(np.float64)).max())
            apart = np.abs(before.astype(np.float64) - now.astype(np.float64)).max()
            loose = 0.1 if before.dtype.itemsize < 4 else 1e-3
            assert not np.isfinite(apart) or apart <= loose * max(scale, 1e-3) or _steep(module)


def _steep(module: Module) -> bool:
    """Whether a rounding may become large: floor, comparisons, poles."""
    steep = {"floor", "compare", "log", "rsqrt", "divide", "exponential", "sqrt"}
    return any(op.name in steep for op in module.walk())


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_rules_hardly_matters(chance: random.Random) -> None:
    module, _ = program(chance, sums=True)
    counts = []
    for number in range(4):
        rules = list(RULES)
        random.Random(number).shuffle(rules)
        engine = Engine(module, rules, fold_bytes=1 << 16)
        counts.append(sum(1 for _ in engine.simplify(module.body).walk()))
        assert not engine.ledger.exhausted
    assert max(counts) <= 1.25 * min(counts) + 3

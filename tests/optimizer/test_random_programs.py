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

    def counted(self) -> Value | None:
        x = self.any()
        if x.rank == 0:
            return None
        d = self.chance.randrange(x.rank)
        return self.b("iota", type=TensorType(x.dims, I32), iota_dimension=d)

    def bounded(self) -> Value | None:
        x = self.any(kind="int")
        if x is None:
            return None
        low, high = sorted(self.chance.randint(-3, 8) for _ in range(2))
        bounds = [self.b.constant(n, x.tensor) for n in (low, high, self.chance.choice((2, 4, 5)))]
        name = self.chance.choice(("clamp", "maximum", "divide", "remainder"))
        if name == "clamp":
            return self.b("clamp", bounds[0], x, bounds[1])
        return self.b(name, x, bounds[0] if name == "maximum" else bounds[2])

    def update(self) -> Value | None:
        x = self.any()
        if x.rank == 0:
            return None
        sizes = [self.chance.randint(min(1, d), d) for d in x.dims]
        part = self.constant(x.tensor.with_dims(sizes))
        known = self.any(dims=(), kind="int") if self.chance.random() < 0.5 else None
        starts = [
            known if known is not None and known.element is I32
            else self.b.constant(self.chance.randint(-1, 4), TensorType((), I32))
            for _ in x.dims
        ]  # fmt: skip
        base = x if self.chance.random() < 0.5 else self.b.constant(0, x.tensor)
        changed = self.b("dynamic_update_slice", base, part, *starts)
        flag = self.any(dims=(), kind="bool")
        if flag is not None and base is x:
            return self.b("select", flag, changed, x)
        return self.b("add", changed, x) if base is not x and x.element is not I1 else changed

    def by_row(self) -> Value | None:
        """One element per row of a matrix: taken, or scattered into a matrix."""
        labels = self.any(kind="int", rank=1)
        if labels is None or labels.tensor.size == 0 or labels.element is not I32:
            return None
        count, columns = labels.dims[0], self.chance.choice((1, 3, 8))
        rows = self.b.reshape(self.b("iota", type=labels.tensor, iota_dimension=0), (count, 1))
        index = self.b("concatenate", rows, self.b.reshape(labels, (count, 1)), dimension=1)
        table = self.constant(TensorType((count, columns), F32))
        if self.chance.random() < 0.5:
            return self.b(
                "gather", table, index, offset_dims=(), collapsed_slice_dims=(0, 1),
                start_index_map=(0, 1), index_vector_dim=1, slice_sizes=(1, 1),
            )  # fmt: skip
        scalar = TensorType((), F32)
        add = build_region([scalar, scalar], lambda c, old, new: [c("add", old, new)])
        return self.b(
            "scatter", self.b.constant(0.0, table.tensor), index,
            self.constant(TensorType((count,), F32)), regions=(add,), update_window_dims=(),
            inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1), index_vector_dim=1,
        )  # fmt: skip

    def one_hot(self) -> Value | None:
        labels = self.any(kind="int", rank=1)
        if labels is None:
            return None
        dims = (labels.dims[0], self.chance.choice((1, 3, 8)))
        line = self.b("iota", type=TensorType(dims, labels.element), iota_dimension=1)
        mask = self.b.compare("EQ", line, self.b.broadcast(labels, dims, (0,)))
        kind = TensorType(dims, F32)
        chosen = self.b.broadcast(self.constant(TensorType((labels.dims[0],), F32)), dims, (0,))
        return self.b("select", mask, chosen, self.b.constant(0.0, kind))

    def product_of_broadcasts(self) -> Value | None:
        x = self.any(kind=("float", "int") if self.sums else ("int",), rank=2)
        if x is None:
            return None
        dims = (*x.dims, self.chance.choice((2, 4)))
        y = self.b.broadcast(self.constant(x.tensor.with_dims(dims[1:])), dims, (1, 2))
        terms = self.b("multiply", self.b.broadcast(x, dims, (0, 1)), y)
        return self.b.reduce("add", terms, self.b.constant(0, TensorType((), x.element)), (1,))

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


def apart(module: Module, after: Module, inputs: list[np.ndarray[Any, Any]], exact: bool) -> str:
    """How results differ before and after simplifying: in any bit, or by more than roundings."""
    for before, now in zip(results_of(module, inputs), results_of(after, inputs), strict=True):
        if exact:
            found = difference(before, now, BITWISE)
            if found:
                return found
        elif before.dtype.kind not in "biu" and before.size:  # comparisons tip over by roundings
            if not np.isfinite(before.astype(np.float64)).all() or _steep(module):
                continue
            scale = float(np.abs(before.astype(np.float64)).max())
            distance = np.abs(before.astype(np.float64) - now.astype(np.float64)).max()
            loose = 0.1 if before.dtype.itemsize < 4 else 1e-3
            if np.isfinite(distance) and distance > loose * max(scale, 1e-3):
                return f"apart by {distance} of {scale}"
    return ""


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_bitwise_pipeline_preserves_every_bit(chance: random.Random) -> None:
    module, inputs = program(chance, sums=False)
    verify(module)
    ledger = Ledger()
    after = run_pipeline(module, simplify_pipeline(Options(numerics="bitwise"), ledger), check=True)
    assert ledger.licences == BITWISE and not ledger.exhausted
    assert apart(module, after, inputs, exact=True) == ""


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_default_pipeline_stays_close_and_is_idempotent(chance: random.Random) -> None:
    module, inputs = program(chance, sums=True)
    ledger = Ledger()
    after = run_pipeline(module, simplify_pipeline(Options(), ledger), check=True)
    assert not ledger.exhausted
    assert Simplify()(after) is after
    assert apart(module, after, inputs, exact=False) == ""


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

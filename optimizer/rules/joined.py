"""Rules for reductions of what is padded or concatenated: each part is reduced on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import F32, TensorType
from ..licence import IGNORES_ZERO_SIGN, REASSOCIATES
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by, without
from .reductions import neutral, plain, rebuilt, reduced
from .slices import padded

A = TensorType((2, 3, 4), F32)
SCALAR = TensorType((), F32)
MOST_PARTS = 4  # parts that are reduced one by one


def _pad_examples() -> Iterator[Example]:
    def body(name: str, dims: Any, number: float, inner: Any = None, low: int = 1) -> Any:
        def build(b: Any, x: Value) -> Value:
            edges = (low, 0, 2), (0, 2, 1)
            wide = padded(b, x, b.constant(number, SCALAR), *edges, inner)
            return reduced(b, name, wide, dims)

        return build

    for dims in ((0,), (1, 2), (0, 1, 2)):
        yield example(f"sum {dims}", [A], body("add", dims, 0.0))
        yield example(f"greatest {dims}", [A], body("maximum", dims, float("-inf")))
        yield example(f"spread {dims}", [A], body("add", dims, 0.0, (1, 2, 1)))
        yield example(f"ones {dims}", [A], body("add", dims, 1.0), fires=False)
        yield example(f"greatest and zero {dims}", [A], body("maximum", dims, 0.0), fires=False)
        yield example(f"cut {dims}", [A], body("add", dims, 0.0, low=-1), fires=False)

    def elsewhere(b: Any, x: Value) -> Value:
        wide = padded(b, x, b.constant(0.0, SCALAR), (1, 0, 0), (0, 0, 0))
        return reduced(b, "add", wide, (1,))

    yield example("other dims", [A], elsewhere, fires=False)


@structural("reduce-of-pad", "reduce", licence=IGNORES_ZERO_SIGN, examples=_pad_examples,
            lowers="computed elements", sums=True, makers=("pad",))  # fmt: skip
def reduce_of_pad(op: Op, b: Rewriter) -> Value | None:
    """reduce(pad(x, neutral)) -> reduce x, padded in the dims that stay"""
    inner = made_by(op.operands[0], "pad")
    name = plain(op, b)
    if inner is None or name is None or not inner.type.is_static:
        return None
    x, low, high = inner.operands[0], inner.edge_padding_low, inner.edge_padding_high
    filled, spread = b.scalar(inner.operands[1]), inner.interior_padding
    if filled is None or filled != neutral(name, x.element) or min((*low, *high)) < 0:
        return None
    if not any(low[d] or high[d] or spread[d] for d in op.dimensions):
        return None
    small = rebuilt(op, x, op.dimensions, b)
    edges = [without(sizes, op.dimensions) for sizes in (low, high, spread)]
    if not any(size for sizes in edges for size in sizes):
        return small
    return padded(b, small, inner.operands[1], *edges)


def _concat_examples() -> Iterator[Example]:
    other = TensorType((2, 5, 4), F32)

    def body(name: str, dims: Any, *more: int) -> Any:
        def build(b: Any, x: Value, y: Value) -> Value:
            return reduced(b, name, b("concatenate", x, y, *[x for _ in more], dimension=1), dims)

        return build

    for name in ("add", "maximum"):
        for dims in ((1,), (0, 1), (0,), (0, 2)):
            yield example(f"{name} {dims}", [A, other], body(name, dims))
    yield example("four parts", [A, other], body("add", (1,), 1, 2))
    yield example("five parts", [A, other], body("add", (1,), 1, 2, 3), fires=False)
    yield example("from two", [A, other], lambda b, x, y: reduced(
        b, "add", b("concatenate", x, y, dimension=1), (1,), 2.0), fires=False)  # fmt: skip


@structural("reduce-of-concatenate", "reduce", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_concat_examples, lowers="concatenated elements", sums=True,
            makers=("concatenate",), single=True)  # fmt: skip
def reduce_of_concatenate(op: Op, b: Rewriter) -> Value | None:
    """reduce(concatenate(x, y)) -> f(reduce x, reduce y), or concatenate(reduce x, reduce y)"""
    inner = made_by(op.operands[0], "concatenate")
    name = plain(op, b)
    if inner is None or name is None or not b.single_use(op.operands[0]):
        return None
    if len(inner.operands) > MOST_PARTS:
        return None
    first, *others = (rebuilt(op, part, op.dimensions, b) for part in inner.operands)
    if inner.dimension in op.dimensions:
        for other in others:
            first = b(name, first, other)
        return first
    d = sum(axis not in op.dimensions for axis in range(inner.dimension))
    return b("concatenate", first, *others, dimension=d)


RULES: tuple[Rule, ...] = (reduce_of_pad, reduce_of_concatenate)

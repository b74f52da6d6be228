"""Rules that carry factors known at build time into the weights of contractions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.types import I32, TensorType
from ..licence import IGNORES_ZERO_SIGN, REASSOCIATES
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import DotSides, convolution, dot, f32


def _scale_examples() -> Iterator[Example]:
    def weights(b: Any, *dims: int) -> Value:
        kernels = [[[[1.0, 2.0], [3.0, 4.0]]], [[[0.5, -1.0], [0.0, 2.0]]]]
        matrix = [[1.0, 2.0, 0.5], [3.0, -1.0, 4.0]]
        return b.constant(kernels if len(dims) == 4 else matrix, f32(*dims))

    yield example(
        "of integers",
        [TensorType((4, 2), I32)],
        lambda b, x: b(
            "multiply",
            dot(b, x, b.constant(3, TensorType((2, 3), I32)), ((1,), (0,))),
            b.constant(2, TensorType((4, 3), I32)),
        ),
        fires=False,
    )
    yield example(
        "infinite",
        [f32(4, 2)],
        lambda b, x: b(
            "multiply", dot(b, x, weights(b, 2, 3), ((1,), (0,))), b.constant(np.inf, f32(4, 3))
        ),
        fires=False,
    )
    yield example(
        "splat",
        [f32(4, 2)],
        lambda b, x: b(
            "multiply", dot(b, x, weights(b, 2, 3), ((1,), (0,))), b.constant(0.5, f32(4, 3))
        ),
    )
    yield example(
        "columns",
        [f32(4, 2)],
        lambda b, x: b(
            "multiply",
            dot(b, x, weights(b, 2, 3), ((1,), (0,))),
            b.broadcast(b.constant([1.0, 2.0, -4.0], f32(3)), (4, 3), (1,)),
        ),
    )
    yield example(
        "rows",
        [f32(4, 2)],
        lambda b, x: b(
            "multiply",
            dot(b, x, weights(b, 2, 3), ((1,), (0,))),
            b.broadcast(b.constant([1.0, 2.0, -4.0, 8.0], f32(4)), (4, 3), (0,)),
        ),
        fires=False,
    )
    yield example(
        "both arguments",
        [f32(4, 2), f32(2, 3)],
        lambda b, x, y: b("multiply", dot(b, x, y, ((1,), (0,))), b.constant(0.5, f32(4, 3))),
        fires=False,
    )
    yield example(
        "channels",
        [f32(1, 1, 3, 3)],
        lambda b, x: b(
            "multiply",
            convolution(b, x, weights(b, 2, 1, 2, 2)),
            b.broadcast(b.constant([1.0, 2.0], f32(2)), (1, 2, 2, 2), (1,)),
        ),
    )


def scale_of(value: Value, target: Value, along: Sequence[int], b: Rewriter) -> Any:
    """How to have a static factor in another tensor's dims; None if that cannot be.

    `along[d]` is the dim of `target` that dim d of the value's type is, or -1 for none.
    """
    if not b.is_static(value):
        return None
    number = b.scalar(value)
    if number is not None:
        if not np.isfinite(number):
            return None  # a zero among the weights would make it NaN
        return lambda: b.splat(number, target.tensor.with_dims(target.dims))
    inner = made_by(value, "broadcast_in_dim")
    if inner is None:
        return None
    source = inner.operands[0]
    mapped = []
    for i, d in enumerate(inner.broadcast_dimensions):
        if along[d] < 0:
            return None
        if source.dims[i] != inner.type.dims[d]:
            return None
        mapped.append(along[d])
    known = b.constant_of(source)
    if known is not None and not np.isfinite(known.array).all():
        return None
    return lambda: b.broadcast(source, target.dims, mapped)


def _only_use(value: Value, b: Rewriter) -> bool:
    """Whether the weights behind a static value are needed for nothing else.

    Else the scaled weight would have to be stored beside the plain one, or made at every call.
    """
    waiting = [value]
    while waiting:
        last = waiting.pop()
        if last.op is None or last.op.name == "constant":
            continue
        if b.uses(last) > 1:
            return False
        waiting.extend(last.op.operands)
    return True


def static_side(inner: Op, b: Rewriter) -> tuple[int, list[int]] | None:
    """A contraction's static operand that nothing else uses, and where result dims are in it."""
    rank = inner.type.rank
    if inner.name == "convolution":
        if not b.is_static(inner.operands[1]) or not _only_use(inner.operands[1], b):
            return None
        along = [-1] * rank
        along[inner.output_feature_dimension] = inner.kernel_output_feature_dimension
        return 1, along
    sides = DotSides(inner)
    for side in (1, 0):
        value = inner.operands[side]
        other = inner.operands[1 - side]
        if b.is_static(value) and not b.is_static(other) and _only_use(value, b):
            along = [-1] * rank
            first = len(sides.batch[0]) + (len(sides.free(0)) if side else 0)
            for i, d in enumerate(sides.batch[side]):
                along[i] = d
            for i, d in enumerate(sides.free(side)):
                along[first + i] = d
            return side, along
    return None


LOOSE = REASSOCIATES | IGNORES_ZERO_SIGN


@structural("scale-into-weight", "multiply", licence=LOOSE, examples=_scale_examples,
            lowers="multiplications", sums=True, ulps=2, single=True)  # fmt: skip
def scale_into_weight(op: Op, b: Rewriter) -> Value | None:
    """dot(x, w) * s -> dot(x, w * s), conv alike [w and s are known when the bundle is built]"""
    for value, factor in (op.operands, op.operands[::-1]):
        inner = made_by(value, "dot_general", "convolution")
        if inner is None or not b.single_use(value) or not op.type.is_static:
            continue
        if not op.type.element.is_float or inner.operands[1].element is not op.type.element:
            continue
        found = static_side(inner, b)
        if found is None:
            continue
        side, along = found
        make = scale_of(factor, inner.operands[side], along, b)
        if make is None:
            continue
        operands = list(inner.operands)
        operands[side] = b("multiply", operands[side], make())
        return b.like(inner, *operands, type=inner.type)
    return None


def _biased_examples() -> Iterator[Example]:
    def body(b: Any, x: Value, sign: str = "add") -> Value:
        weights = b.constant([[1.0, 2.0, 0.5], [3.0, -1.0, 4.0]], f32(2, 3))
        bias = b.broadcast(b.constant([1.0, 0.5, -2.0], f32(3)), (4, 3), (1,))
        scale = b.broadcast(b.constant([2.0, 0.25, -1.0], f32(3)), (4, 3), (1,))
        biased = b(sign, dot(b, x, weights, ((1,), (0,))), bias)
        return b("multiply", biased, scale)

    yield example("columns", [f32(4, 2)], body)
    yield example("subtracted", [f32(4, 2)], lambda b, x: body(b, x, "subtract"))

    def of(b: Any, x: Value, bias: Value | None = None, used: bool = False) -> list[Value]:
        result = x.tensor.with_dims((x.dims[0], 3))
        weights = b.constant(2, x.tensor.with_dims((x.dims[1], 3)))
        product = dot(b, x, weights, ((1,), (0,)))
        biased = b("add", product, b.constant(3, result) if bias is None else bias)
        scaled = b("multiply", biased, b.constant(2, result))
        return [scaled, product] if used else [scaled]

    yield example("numbers", [f32(4, 2)], of)
    yield example("of integers", [TensorType((4, 2), I32)], of, fires=False)
    yield example("another bias each time", [f32(4, 2), f32(4, 3)], of, fires=False)
    yield example("needed as it is", [f32(4, 2)], lambda b, x: of(b, x, used=True), fires=False)
    yield example(
        "no contraction",
        [f32(4)],
        lambda b, x: b(
            "multiply",
            b("add", x, b.constant([1.0, 2.0, 3.0, 4.0], f32(4))),
            b.constant(2.0, f32(4)),
        ),
        fires=False,
    )


@structural("scale-of-biased-contraction", "multiply", licence=LOOSE,
            examples=_biased_examples, lowers="distance of scales", sums=True, ulps=2,
            single=True)  # fmt: skip
def scale_of_biased_contraction(op: Op, b: Rewriter) -> Value | None:
    """(dot(x, w) +- k1) * k2 -> dot(x, w) * k2 +- k1 * k2 [known when the bundle is built]"""
    for value, factor in (op.operands, op.operands[::-1]):
        added = made_by(value, "add", "subtract")
        if added is None or not b.single_use(value) or not b.is_static(factor):
            continue
        turns = 2 if added.name == "add" else 1
        for product, bias in (added.operands, added.operands[::-1])[:turns]:
            inner = made_by(product, "dot_general", "convolution")
            if inner is None or not b.is_static(bias) or not b.single_use(product):
                continue
            found = static_side(inner, b)
            if found is None or not op.type.element.is_float:
                continue
            if scale_of(factor, inner.operands[found[0]], found[1], b) is None:
                continue
            return b(added.name, b("multiply", product, factor), b("multiply", bias, factor))
    return None


RULES: tuple[Rule, ...] = (scale_into_weight, scale_of_biased_contraction)

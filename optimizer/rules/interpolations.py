"""Rules for images that are mixed by feature after they were enlarged: the other way round is less.

An interpolation is a sum of pixels, each by a factor that is the same for all features; a 1 x 1
convolution is a sum of features, the same for all pixels. Either may come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...hlo.graph import Op, Value, constant_of
from ...hlo.types import BF16, F32, TensorType, tensor_of
from ..licence import IGNORES_ZERO_SIGN, REASSOCIATES
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import convolution

_LEAST_SAVED = 0.75  # pixels of the image, of those that the convolution has now


class _GatherTerm(NamedTuple):
    """gather(x), times a factor that is none of features' unless it is None."""

    gather: Op
    factor: Value | None


def _examples() -> Iterator[Example]:
    indices = np.array([0, 0, 1, 1, 2, 2])
    after = np.array([0, 1, 1, 2, 2, 2])

    def enlarged(
        b: Any, x: Value, y: Value | None = None, along: int = 3, dims: tuple[int, ...] = (3,),
        first: float = 0.5,
    ) -> Value:  # fmt: skip
        size = 6 if along == 3 else x.dims[along]
        kind = x.tensor.with_dims((*x.dims[:along], size, *x.dims[along + 1 :]))
        total = None
        for places, source, part in ((indices, x, 0.75), (after, x if y is None else y, 0.25)):
            found = b(
                "gather", source, b.constant(places, tensor_of(places)),
                offset_dims=tuple(d for d in range(4) if d != along),
                collapsed_slice_dims=(along,), start_index_map=(along,), index_vector_dim=1,
                slice_sizes=tuple(1 if d == along else n for d, n in enumerate(x.dims)),
            )  # fmt: skip
            shares = (part + 0.25 * np.arange(kind.dims[dims[0]])).astype(x.element.dtype)
            shares[0] = first
            factor = b.broadcast(b.constant(shares, tensor_of(shares)), found.dims, dims)
            found = b("multiply", found, factor)
            total = found if total is None else b("add", total, found)
        assert total is not None
        return total

    image, kernel = TensorType((1, 4, 5, 3), F32), TensorType((2, 4, 1, 1), F32)
    types = [image, kernel]
    yield example("linear", types, lambda b, x, k: convolution(b, enlarged(b, x), k))
    yield example("two images", [image, image, kernel],
                  lambda b, x, y, k: convolution(b, enlarged(b, x, y), k), fires=False)  # fmt: skip
    yield example("infinite factors", types,
                  lambda b, x, k: convolution(b, enlarged(b, x, first=np.inf), k),
                  fires=False)  # fmt: skip
    yield example("factors of features", types,
                  lambda b, x, k: convolution(b, enlarged(b, x, dims=(1,)), k),
                  fires=False)  # fmt: skip
    yield example("wide window", [image, TensorType((2, 4, 3, 3), F32)],
                  lambda b, x, k: convolution(b, enlarged(b, x), k), fires=False)  # fmt: skip
    yield example("strided", types,
                  lambda b, x, k: convolution(b, enlarged(b, x), k, window_strides=(1, 2)),
                  fires=False)  # fmt: skip
    yield example("padded", types,
                  lambda b, x, k: convolution(b, enlarged(b, x), k, padding=((0, 0), (1, 0))),
                  fires=False)  # fmt: skip
    yield example("groups", [image, TensorType((2, 2, 1, 1), F32)],
                  lambda b, x, k: convolution(b, enlarged(b, x), k, feature_group_count=2),
                  fires=False)  # fmt: skip
    yield example("more features than before", [image, TensorType((9, 4, 1, 1), F32)],
                  lambda b, x, k: convolution(b, enlarged(b, x), k), fires=False)  # fmt: skip
    yield example("little larger", [TensorType((1, 4, 5, 5), F32), kernel],
                  lambda b, x, k: convolution(b, enlarged(b, x), k), fires=False)  # fmt: skip
    narrow = [TensorType(kind.dims, BF16) for kind in types]
    yield example("narrow numbers", narrow,
                  lambda b, x, k: convolution(b, enlarged(b, x), k), fires=False)  # fmt: skip

    def kept(b: Any, x: Value, k: Value) -> list[Value]:
        large = enlarged(b, x)
        return [large, convolution(b, large, k)]

    yield example("needed as it is", types, kept, fires=False)


@structural("mix-before-interpolation", "convolution", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_examples, lowers="multiplied elements", sums=True, makers=("add",),
            single=True)  # fmt: skip
def mix_before_interpolation(op: Op, b: Rewriter) -> Value | None:
    """conv(sum of c * gather(x), w) -> sum of c * gather(conv(x, w)) [1 x 1, x has fewer pixels]"""
    large, feature = op.operands[0], op.input_feature_dimension
    if not _is_plain(op) or op.type.element.bits < 32 or not op.type.is_static:
        return None
    terms = _terms(large, feature, b)
    if not terms:
        return None
    x, features = terms[0].gather.operands[0], op.type.dims[feature]
    if any(term.gather.operands[0] is not x for term in terms):
        return None
    if x.element is not op.type.element or features > 2 * large.dims[feature]:
        return None
    if x.tensor.size > _LEAST_SAVED * large.tensor.size:
        return None
    kind = x.tensor.with_dims(_replaced(x.dims, feature, features))
    small = b.build("convolution", (x, op.operands[1]), op.attributes, (), (kind,))[0]
    total = None
    for term in terms:
        found = _gathered(b, term.gather, small, feature, features)
        if term.factor is not None:
            factor = made_by(term.factor, "broadcast_in_dim")
            assert factor is not None
            mapped = factor.broadcast_dimensions
            found = b("multiply", found, b.broadcast(factor.operands[0], found.dims, mapped))
        total = found if total is None else b("add", total, found)
    return total


def _is_plain(op: Op) -> bool:
    """Whether a convolution mixes features pixel by pixel, and leaves dims where they are."""
    sides = ("batch_dimension", "feature_dimension", "spatial_dimensions")
    if any(getattr(op, f"input_{side}") != getattr(op, f"output_{side}") for side in sides):
        return False
    ones = (*op.window_strides, *op.lhs_dilation)
    ones += tuple(op.rhs.dims[d] for d in op.kernel_spatial_dimensions)
    if any(one != 1 for one in ones) or any(edge for pair in op.padding for edge in pair):
        return False
    return op.feature_group_count == op.batch_group_count == 1


def _terms(value: Value, feature: int, b: Rewriter) -> list[_GatherTerm]:
    """The terms of a sum, which nothing else needs; none where one of them is of another kind."""
    if not b.single_use(value):
        return []
    if (added := made_by(value, "add")) is not None:
        sides = [_terms(side, feature, b) for side in added.operands]
        return [*sides[0], *sides[1]] if all(sides) else []
    factor = None
    if (scaled := made_by(value, "multiply")) is not None:
        value, factor = scaled.operands
        if made_by(value, "broadcast_in_dim") is not None:
            value, factor = factor, value
        spread = made_by(factor, "broadcast_in_dim")
        if spread is None or feature in spread.broadcast_dimensions:
            return []
        dense = constant_of(spread.operands[0])
        if dense is None or not np.isfinite(dense.array).all():
            return []  # an infinite factor of features of either sign
        if not b.single_use(value):
            return []
    gather = made_by(value, "gather")
    if gather is None or not _whole(gather, feature):
        return []
    return [_GatherTerm(gather, factor)]


def _whole(gather: Op, dim: int) -> bool:
    """Whether every slice of a gather has the whole of a dim, which stays where it is."""
    x = gather.operands[0]
    gone = {*gather.collapsed_slice_dims, *gather.operand_batching_dims}
    left = [d for d in range(x.rank) if d not in gone]
    if x.rank != gather.type.rank or dim not in left or dim in gather.start_index_map:
        return False
    return gather.offset_dims[left.index(dim)] == dim and gather.slice_sizes[dim] == x.dims[dim]


def _gathered(b: Rewriter, gather: Op, x: Value, dim: int, size: int) -> Value:
    """The same slices of another array, whose size along `dim` is another."""
    sizes = _replaced(gather.slice_sizes, dim, size)
    kind = gather.type.with_dims(_replaced(gather.type.dims, dim, size))
    attributes = {**gather.attributes, "slice_sizes": sizes}
    return b.build("gather", (x, gather.operands[1]), attributes, (), (kind,))[0]


def _replaced(dims: Sequence[Any], dim: int, size: Any) -> tuple[Any, ...]:
    return (*dims[:dim], size, *dims[dim + 1 :])


RULES: tuple[Rule, ...] = (mix_before_interpolation,)

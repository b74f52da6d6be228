"""Rules for convolutions that are products, and for those of concatenated features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import BF16, F32, TensorType
from ..licence import REASSOCIATES
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import convolution
from .labels import Label, Line, result_of
from .slices import cut

LEAST_FEATURES = 16  # of a part whose convolution is worth a kernel of its own

LAST: dict[str, Any] = {
    "input_batch_dimension": 0, "input_feature_dimension": 3, "input_spatial_dimensions": (1, 2),
    "kernel_output_feature_dimension": 3, "kernel_input_feature_dimension": 2,
    "kernel_spatial_dimensions": (0, 1), "output_batch_dimension": 0,
    "output_feature_dimension": 3, "output_spatial_dimensions": (1, 2),
}  # fmt: skip


def f32(*dims: int) -> TensorType:
    return TensorType(dims, F32)


def _product_examples() -> Iterator[Example]:
    def of(**numbers: Any) -> Any:
        return lambda b, x, kernel: convolution(b, x, kernel, **{**LAST, **numbers})

    dot_types = [f32(2, 4, 5, 3), f32(1, 1, 3, 4)]
    yield example("one by one", dot_types, of())
    yield example("strided", dot_types, of(window_strides=(2, 1)), fires=False)
    ones = {"window_strides": (1, 1), "lhs_dilation": (1, 1), "padding": ((0, 0), (0, 0)),
            "rhs_dilation": (2, 3), "window_reversal": (True, True)}  # fmt: skip
    yield example("one by one, all said", dot_types, of(**ones))
    yield example("padded", dot_types, of(padding=((0, 1), (0, 0))), fires=False)
    yield example("spread", dot_types, of(lhs_dilation=(2, 1)), fires=False)
    grouped = [f32(2, 4, 5, 6), f32(1, 1, 3, 4)]
    yield example("groups", grouped, of(feature_group_count=2), fires=False)
    batches = [f32(2, 4, 5, 3), f32(1, 1, 3, 4)]
    yield example("groups of the batch", batches, of(batch_group_count=2), fires=False)
    yield example("features first", [f32(2, 3, 4, 5), f32(4, 3, 1, 1)],
                  lambda b, x, kernel: convolution(b, x, kernel), fires=False)  # fmt: skip
    yield example("whole image", [f32(2, 4, 5, 3), f32(4, 5, 3, 6)], of())
    yield example("whole image, strided", [f32(2, 4, 5, 3), f32(4, 5, 3, 6)],
                  of(window_strides=(2, 2)))  # fmt: skip
    yield example("whole image, features first", [f32(2, 3, 4, 5), f32(6, 3, 4, 5)],
                  lambda b, x, kernel: convolution(b, x, kernel))  # fmt: skip
    yield example("reversed", [f32(2, 4, 5, 3), f32(4, 5, 3, 6)],
                  of(window_reversal=(True, False)), fires=False)  # fmt: skip
    yield example("most of the image", [f32(2, 4, 5, 3), f32(3, 5, 3, 6)], of(), fires=False)


@structural("convolution-is-product", "convolution", licence=REASSOCIATES,
            examples=_product_examples, lowers="convolutions", sums=True)  # fmt: skip
def convolution_is_product(op: Op, b: Rewriter) -> Value | None:
    """convolution(x, w) -> dot(x, w) [1 x 1 with stride 1, or w as large as the image]"""
    x, kernel = op.operands
    if op.feature_group_count != 1 or op.batch_group_count != 1 or not op.type.is_static:
        return None
    if any(low or high for low, high in op.padding) or any(d != 1 for d in op.lhs_dilation):
        return None
    image = [x.dims[d] for d in op.input_spatial_dimensions]
    area = [kernel.dims[d] for d in op.kernel_spatial_dimensions]
    reversed_window = any(op.window_reversal) and max(area, default=1) > 1
    whole = image == area and all(area) and not reversed_window
    if not whole and (any(n != 1 for n in area) or any(step != 1 for step in op.window_strides)):
        return None
    # Labels: 0 batch, 1 features, 2 features of the result, 3... spatial dims.
    left = [0] * x.rank
    left[op.input_feature_dimension] = 1
    right = [1] * kernel.rank
    right[op.kernel_output_feature_dimension] = 2
    result: list[Label] = [0] * op.type.rank
    result[op.output_feature_dimension] = 2
    for i, d in enumerate(op.input_spatial_dimensions):
        left[d] = 3 + i
        right[op.kernel_spatial_dimensions[i]] = 3 + i
        result[op.output_spatial_dimensions[i]] = 3 + i
    spatial = [d for d in op.kernel_spatial_dimensions if not whole]
    line: Line = tuple(label for d, label in enumerate(right) if d not in spatial)
    kept: Line = tuple(label for label in result if label < 3 or not whole)
    if result_of(tuple(left), line, kept) != kept:
        return None  # it would have to be transposed; convolutions choose the order of their dims
    weights = b.reshape(kernel, [n for d, n in enumerate(kernel.dims) if d not in spatial])
    summed = [label for label in left if label in line and label not in kept]
    type = op.type.with_dims([n for n, label in zip(op.type.dims, result, strict=True)
                              if label in kept])  # fmt: skip
    found = b(
        "dot_general", x, weights, type=type,
        lhs_contracting_dimensions=tuple(left.index(label) for label in summed),
        rhs_contracting_dimensions=tuple(line.index(label) for label in summed),
        lhs_batching_dimensions=(), rhs_batching_dimensions=(),
        precision_config=op.precision_config,
    )  # fmt: skip
    return b.reshape(found, op.type.dims)


def _concat_examples() -> Iterator[Example]:
    def joined(
        dim: int = 1, features: int = 4, parts: int = 1, again: bool = False, **numbers: Any
    ) -> Any:
        def build(b: Any, x: Value, y: Value) -> Value:
            values = b("concatenate", x, y, *[x] * again, dimension=dim)
            inputs = values.dims[1] // parts
            kind = TensorType((features * inputs * 9,), x.element)
            kernel = b.reshape(b("iota", type=kind, iota_dimension=0), (features, inputs, 3, 3))
            return convolution(b, values, b("subtract", kernel, b.constant(64.0, kernel.tensor)),
                               **numbers)  # fmt: skip

        return build

    image = f32(1, 16, 5, 5)
    yield example("two", [image, f32(1, 17, 5, 5)], joined())
    yield example("padded", [image, image], joined(padding=((1, 1), (0, 2))))
    yield example("three", [image, f32(1, 16, 5, 5)], joined(again=True))
    yield example("three with more results", [image, f32(1, 16, 5, 5)],
                  joined(again=True, features=20, padding=((1, 1), (1, 1))))  # fmt: skip
    yield example("three with many results", [image, f32(1, 16, 5, 5)],
                  joined(again=True, features=25, padding=((1, 1), (1, 1))),
                  fires=False)  # fmt: skip

    def kept(b: Any, x: Value, kernel: Value) -> list[Value]:
        values = b("concatenate", x, x, dimension=1)
        return [values, convolution(b, values, kernel)]

    yield example("needed as it is", [image, f32(4, 32, 3, 3)], kept, fires=False)
    halves = TensorType((1, 16, 5, 5), BF16)
    yield example("narrow numbers", [halves, halves], joined(), fires=False)
    yield example("groups", [image, image], joined(parts=2, feature_group_count=2), fires=False)
    yield example("thin part", [image, f32(1, 15, 5, 5)], joined(), fires=False)
    yield example("batch", [image, image], joined(dim=0), fires=False)
    yield example("many results", [image, image], joined(features=99, padding=((1, 1), (1, 1))),
                  fires=False)  # fmt: skip
    yield example("groups of the batch", [f32(2, 16, 5, 5)] * 2, joined(batch_group_count=2),
                  fires=False)  # fmt: skip


@structural("convolution-of-concatenate", "convolution", licence=REASSOCIATES,
            examples=_concat_examples, lowers="concatenated elements", sums=True,
            makers=("concatenate",), single=True)  # fmt: skip
def convolution_of_concatenate(op: Op, b: Rewriter) -> Value | None:
    """conv(concatenate(x, y), w) -> conv(x, w1) + conv(y, w2) [results are smaller than x and y]"""
    joined = made_by(op.operands[0], "concatenate")
    d = op.input_feature_dimension
    if joined is None or joined.dimension != d or not b.single_use(op.operands[0]):
        return None
    if op.feature_group_count != 1 or op.batch_group_count != 1 or not op.type.is_static:
        return None
    if op.type.element.bits < 32:
        return None  # sums of parts are rounded once more each
    if min(part.dims[d] for part in joined.operands) < LEAST_FEATURES:
        return None
    if joined.type.size < (len(joined.operands) - 1) * op.type.size:
        return None  # reading and writing sums takes more than joining the parts
    kernel, axis = op.operands[1], op.kernel_input_feature_dimension
    total, first = None, 0
    for part in joined.operands:
        start, limit = [0] * kernel.rank, list(kernel.dims)
        start[axis], limit[axis] = first, first + part.dims[d]
        first += part.dims[d]
        own = b.build("convolution", (part, cut(b, kernel, start, limit)), op.attributes, (),
                      op.result_types)[0]  # fmt: skip
        total = own if total is None else b("add", total, own)
    return total


RULES: tuple[Rule, ...] = (convolution_is_product, convolution_of_concatenate)

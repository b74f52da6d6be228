"""Rules for convolution and pooling windows: padding and dilation go into the window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...hlo.build import build_region
from ...hlo.graph import Op, Value
from ...hlo.types import F32, TensorType
from ..licence import IGNORES_ZERO_SIGN
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import convolution
from .reductions import plain
from .reductions import window as reduced_window
from .slices import padded

IMAGE = TensorType((1, 2, 4, 4), F32)
KERNEL = TensorType((3, 2, 2, 2), F32)
SCALAR = TensorType((), F32)


def _pad_examples() -> Iterator[Example]:
    def body(low: Any, high: Any, interior: Any = None, number: float = 0.0, **numbers: Any) -> Any:
        def build(b: Any, x: Value, kernel: Value) -> Value:
            wide = padded(b, x, b.constant(number, SCALAR), low, high, interior)
            return convolution(b, wide, kernel, **numbers)

        return build

    types = [IMAGE, KERNEL]
    yield example("edges", types, body((0, 0, 1, 2), (0, 0, 1, 0)))
    yield example("more", types, body((0, 0, 1, 1), (0, 0, 1, 1), padding=((1, 0), (0, 2))))
    yield example("interior", types, body((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 2)))
    yield example("strided", types, body((0, 0, 1, 1), (0, 0, 1, 1), window_strides=(2, 1)))
    yield example("ones", types, body((0, 0, 1, 1), (0, 0, 1, 1), number=1.0), fires=False)
    wide = [IMAGE, TensorType((3, 4, 2, 2), F32)]
    yield example("channels", wide, body((0, 1, 1, 1), (0, 1, 1, 1)), fires=False)


@structural("convolution-of-pad", "convolution", examples=_pad_examples, sums=True)
def convolution_of_pad(op: Op, b: Rewriter) -> Value | None:
    """convolution(pad(x, 0), w) -> convolution(x, w), padded and dilated itself"""
    inner = made_by(op.operands[0], "pad")
    if inner is None or b.scalar(inner.operands[1]) != 0:
        return None
    spatial = op.input_spatial_dimensions
    others = (op.input_batch_dimension, op.input_feature_dimension)
    low, high, interior = inner.edge_padding_low, inner.edge_padding_high, inner.interior_padding
    if any(low[d] or high[d] or interior[d] for d in others):
        return None
    count = len(spatial)
    before = op.padding or ((0, 0),) * count
    dilation = op.lhs_dilation or (1,) * count
    if any(step != 1 and (low[d] or high[d]) for step, d in zip(dilation, spatial, strict=True)):
        return None
    padding = tuple(
        (first + low[d], last + high[d]) for (first, last), d in zip(before, spatial, strict=True)
    )
    spread = tuple(step * (interior[d] + 1) for step, d in zip(dilation, spatial, strict=True))
    attributes = {**op.attributes, "padding": padding, "lhs_dilation": spread}
    operands = [inner.operands[0], op.operands[1]]
    return b.build("convolution", operands, attributes, (), op.result_types)[0]


def _window_pad_examples() -> Iterator[Example]:
    def body(name: str, number: float) -> Any:
        def build(b: Any, x: Value) -> Value:
            wide = padded(b, x, b.constant(number, SCALAR), (0, 0, 1, 1), (0, 0, 1, 0))
            return reduced_window(b, name, wide, window_dimensions=(1, 1, 2, 2))

        return build

    def differing(b: Any, x: Value) -> Value:
        wide = padded(b, x, b.constant(0.0, SCALAR), (0, 0, 1, 1), (0, 0, 1, 0))
        region = build_region([SCALAR] * 2, lambda c, p, q: [c("subtract", p, q)])
        zero = b.constant(0.0, SCALAR)
        return b("reduce_window", wide, zero, regions=(region,), window_dimensions=(1, 1, 2, 2))

    yield example("maximum", [IMAGE], body("maximum", float("-inf")))
    yield example("sum", [IMAGE], body("add", 0.0))
    yield example("another number", [IMAGE], body("maximum", 0.0), fires=False)
    yield example("no monoid", [IMAGE], differing, fires=False)

    def cropped(b: Any, x: Value) -> Value:
        part = padded(b, x, b.constant(0.0, SCALAR), (0, 0, -1, 0), (0, 0, 0, 0))
        return reduced_window(b, "add", part, window_dimensions=(1, 1, 2, 2))

    yield example("less, not more", [IMAGE], cropped, fires=False)


@structural("window-of-pad", "reduce_window", licence=IGNORES_ZERO_SIGN,
            examples=_window_pad_examples, sums=True)  # fmt: skip
def window_of_pad(op: Op, b: Rewriter) -> Value | None:
    """reduce_window(pad(x, init)) -> reduce_window(x), padded itself"""
    inner = made_by(op.operands[0], "pad")
    if inner is None or any(inner.interior_padding) or plain(op, b) is None:
        return None
    start, filled = b.scalar(op.operands[1]), b.scalar(inner.operands[1])
    if filled is None or start != filled or any(d != 1 for d in op.base_dilations):
        return None
    rank = op.type.rank
    before = op.padding or ((0, 0),) * rank
    padding = tuple(
        (first + low, last + high)
        for (first, last), low, high in zip(
            before, inner.edge_padding_low, inner.edge_padding_high, strict=True
        )
    )
    if min(edge for pair in padding for edge in pair) < 0:
        return None
    attributes = {**op.attributes, "padding": padding}
    operands = [inner.operands[0], op.operands[1]]
    return b.build("reduce_window", operands, attributes, op.regions, op.result_types)[0]


def _moved(op: Op, side: str, permutation: Any) -> dict[str, Any]:
    """The attributes that name dimensions of `input`, `kernel` or `output`, permuted."""
    changed = {}
    for name, value in op.attributes.items():
        if name.startswith(side) and "dimension" in name:
            single = isinstance(value, int)
            changed[name] = permutation[value] if single else tuple(permutation[d] for d in value)
    return {**op.attributes, **changed}


LAST: dict[str, Any] = {
    "output_batch_dimension": 0,
    "output_feature_dimension": 3,
    "output_spatial_dimensions": (1, 2),
}
CHANNELS_LAST = TensorType((1, 4, 4, 2), F32)


def _one_layout(attributes: Mapping[str, Any]) -> bool:
    """Whether input and output have their dimensions in one order: kernels are made for that."""
    kinds = ("batch_dimension", "feature_dimension", "spatial_dimensions")
    return all(attributes[f"input_{kind}"] == attributes[f"output_{kind}"] for kind in kinds)


def _transpose_examples() -> Iterator[Example]:
    yield example(
        "input",
        [CHANNELS_LAST, KERNEL],
        lambda b, x, k: convolution(b, b.transpose(x, (0, 3, 1, 2)), k, **LAST),
    )
    yield example(
        "two layouts",
        [CHANNELS_LAST, KERNEL],
        lambda b, x, k: convolution(b, b.transpose(x, (0, 3, 1, 2)), k),
        fires=False,
    )
    yield example(
        "kernel",
        [IMAGE, TensorType((2, 2, 2, 3), F32)],
        lambda b, x, k: convolution(b, x, b.transpose(k, (3, 2, 0, 1))),
    )
    yield example("plain", [IMAGE, KERNEL], convolution, fires=False)


@structural("convolution-of-transpose", "convolution", examples=_transpose_examples,
            lowers="transposes", sums=True)  # fmt: skip
def convolution_of_transpose(op: Op, b: Rewriter) -> Value | None:
    """convolution(transpose x, w) -> convolution(x, w) with other dimension numbers"""
    for number, side in enumerate(("input", "kernel")):
        inner = made_by(op.operands[number], "transpose")
        if inner is None or b.is_static(op.operands[number]):
            continue  # what is static is transposed when the bundle is built
        attributes = _moved(op, side, inner.permutation)
        if side == "input" and not _one_layout(attributes):
            continue
        operands = list(op.operands)
        operands[number] = inner.operands[0]
        return b.build("convolution", operands, attributes, (), op.result_types)[0]
    return None


def _output_examples() -> Iterator[Example]:
    first = {
        "input_batch_dimension": 0,
        "input_feature_dimension": 3,
        "input_spatial_dimensions": (1, 2),
    }
    yield example(
        "last",
        [CHANNELS_LAST, KERNEL],
        lambda b, x, k: b.transpose(convolution(b, x, k, **first), (0, 2, 3, 1)),
    )
    yield example(
        "two layouts",
        [IMAGE, KERNEL],
        lambda b, x, k: b.transpose(convolution(b, x, k), (0, 2, 3, 1)),
        fires=False,
    )


@structural("transpose-of-convolution", "transpose", examples=_output_examples,
            lowers="transposes", sums=True, single=True)  # fmt: skip
def transpose_of_convolution(op: Op, b: Rewriter) -> Value | None:
    """transpose(convolution) -> convolution with other output dimension numbers"""
    inner = made_by(op.operands[0], "convolution")
    if inner is None or not b.single_use(op.operands[0]):
        return None
    place = {d: i for i, d in enumerate(op.permutation)}
    attributes = _moved(inner, "output", place)
    if not _one_layout(attributes):
        return None
    return b.build("convolution", inner.operands, attributes, (), op.result_types)[0]


def _reverse_examples() -> Iterator[Example]:
    yield example(
        "spatial",
        [IMAGE, KERNEL],
        lambda b, x, k: convolution(b, x, b("reverse", k, dimensions=(2, 3))),
    )
    yield example(
        "channels",
        [IMAGE, KERNEL],
        lambda b, x, k: convolution(b, x, b("reverse", k, dimensions=(1, 2))),
        fires=False,
    )


@structural("convolution-of-reverse", "convolution", examples=_reverse_examples, sums=True)
def convolution_of_reverse(op: Op, b: Rewriter) -> Value | None:
    """convolution(x, reverse w) -> convolution(x, w), its window reversed"""
    inner = made_by(op.operands[1], "reverse")
    spatial = op.kernel_spatial_dimensions
    if inner is None or not set(inner.dimensions) <= set(spatial):
        return None
    before = op.window_reversal or (False,) * len(spatial)
    reversal = tuple(was != (d in inner.dimensions) for was, d in zip(before, spatial, strict=True))
    attributes = {**op.attributes, "window_reversal": reversal}
    operands = [op.operands[0], inner.operands[0]]
    return b.build("convolution", operands, attributes, (), op.result_types)[0]


RULES: tuple[Rule, ...] = (
    convolution_of_pad,
    window_of_pad,
    convolution_of_transpose,
    transpose_of_convolution,
    convolution_of_reverse,
)

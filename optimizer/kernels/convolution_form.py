"""Convolutions whose operands do not lie as copies take them, rewritten on operands that do.

`prepared` gives the region of a fusion with its convolution on images whose features are innermost,
in pixels of whole chunks, and kernels that have input or output features innermost:

- other orders are transposed;
- a few features (colours) become those of the pixels that the window sees along the last dims;
- a dilated image (a transposed convolution) becomes a convolution of the plain image for each
  phase of the dilation, whose results are put side by side.

What is computed so is a kernel of its own before the convolution, or behind it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.ops.convolution import numbers, window_attributes
from ...hlo.regions import rewritten
from ...hlo.types import I32, TensorType
from ..cost.assumed import CONVOLVED_PER_LAUNCH
from ..passes.encode import Packing
from ..tiles.implicit import refusal
from .operand_layout import stored

_CHUNK = 16  # bytes that one copy brings
_LEAST = 32  # bytes of features that a matrix instruction multiplies
_MOST_PHASES = 64


def prepared(region: Region) -> tuple[Region, tuple[Value, ...]] | None:
    """The region with its one convolution in a better form, and what has to be computed before;
    None where it has that already, or is no product over its taps."""
    found = [op for op in region.ops if op.name == "convolution"]
    if len(found) != 1 or found[0].definition.flops(found[0]) < CONVOLVED_PER_LAUNCH:
        return None
    (main,) = found
    parts = window_attributes(main)
    if refusal(_undilated(main)) or not all(
        value.tensor.size for value in (*main.operands, main.result)
    ):
        return None
    window = _WindowAttributes(*(tuple(part) for part in parts))
    if any(d != 1 for d in window.base):
        if main.feature_group_count != 1 or any(s != 1 for s in window.strides):
            return None
        if math.prod(window.base) > _MOST_PHASES:
            return None
    elif _lies_well(main, 0) and _lies_well(main, 1) and not _few(main):
        return None

    first: list[Value] = []

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op is not main:
            return False
        with b.at(op.origin):
            x, w = (mapping.get(value, value) for value in op.operands)
            form = _ConvolutionForm(b, main, window)
            mapping[op.result] = form.build(x, w)
            first.extend(form.first)
        return True

    return rewritten(region, {}, change), tuple(first)


def sums_one_feature(region: Region) -> bool:
    """Whether a region is a convolution in which a result sums over one input feature, with what is
    computed element by element behind it: its windows are slid over, and it has no matrices."""
    found = [op for op in region.ops if op.definition.pattern == "contract"]
    if len(found) != 1 or found[0].name != "convolution" or found[0].batch_group_count != 1:
        return False
    (main,) = found
    behind = set(main.results)
    for op in region.ops:
        if not behind.isdisjoint(op.operands):
            if op.definition.pattern != "elementwise" or op.result.dims != main.result.dims:
                return False
            behind.update(op.results)
    one = main.operands[1].dims[main.kernel_input_feature_dimension] == 1
    return one and all(root.dims == main.result.dims for root in region.results)


@dataclass(frozen=True)
class _WindowAttributes:
    """Of each spatial dim, as `window_attributes` gives them."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base: tuple[int, ...]
    dilations: tuple[int, ...]
    reversal: tuple[bool, ...]


def _image_order(op: Op) -> tuple[int, ...]:
    return (op.input_batch_dimension, *op.input_spatial_dimensions, op.input_feature_dimension)


def _kernel_order(op: Op) -> tuple[int, ...]:
    """Output features, taps, input features."""
    taps = op.kernel_spatial_dimensions
    return (op.kernel_output_feature_dimension, *taps, op.kernel_input_feature_dimension)


def _few(op: Op) -> bool:
    """Whether pixels are no whole chunks, or fill no instruction though windows have more."""
    value = op.operands[0]
    size = value.element.itemsize
    features = value.dims[op.input_feature_dimension]
    taps = math.prod(op.operands[1].dims[d] for d in op.kernel_spatial_dimensions)
    return op.feature_group_count == 1 and (
        features * size % _CHUNK != 0 or features * size < _LEAST and taps > 1
    )


def _lies_well(op: Op, side: int) -> bool:
    """Whether copies take an operand as it lies in memory."""
    value = op.operands[side]
    lies = stored(value)[1]
    order = tuple(sorted(range(value.rank), key=lies.__getitem__))  # as memory has its dims
    size = value.element.itemsize
    if side == 0:
        return order == _image_order(op)
    taps, last = set(op.kernel_spatial_dimensions), order[-1]
    deep = last == op.kernel_input_feature_dimension
    return last not in taps and (deep or size == 2) and value.dims[last] * size % _CHUNK == 0


class _ConvolutionForm:
    """Builds a convolution in its better form."""

    def __init__(self, b: Builder, main: Op, window: _WindowAttributes) -> None:
        self.b, self.main, self.window = b, main, window
        self.first: dict[Value, None] = {}  # what kernels before compute
        self.count = len(window.strides)
        self.lies = (
            main.output_batch_dimension, *main.output_spatial_dimensions,
            main.output_feature_dimension,
        )  # fmt: skip

    def build(self, x: Value, w: Value) -> Value:
        """The convolution's result, in its own order of dims."""
        main = self.main
        window = self.window
        image, kernel = self.laid(x, _image_order(main)), self.laid(w, _kernel_order(main))
        if any(d != 1 for d in window.base):
            back = [self.lies.index(d) for d in range(len(self.lies))]
            return self.b.transpose(self.phases(image, kernel), back)
        if _few(main):
            image, kernel, window = self.gathered(image, kernel)
        return self.convolution(image, kernel, window, main.type, self.lies)

    def laid(self, value: Value, order: Sequence[int]) -> Value:
        """transpose(value, order), of what lies in memory."""
        source, dims = stored(value)
        return self.b.transpose(source, [dims[d] for d in order])

    def convolution(
        self,
        image: Value,
        kernel: Value,
        window: _WindowAttributes,
        type: TensorType,
        lies: Sequence[int],
    ) -> Value:
        """Of an image [n, spatial, features] and a kernel [out, taps, in]; `lies`: which dims of
        the result are batch, spatial dims and features."""
        for value in (image, kernel):
            # The taps of a phase are read where they lie.
            while value.op is not None and value.op.name == "slice":
                value = value.op.operands[0]
            if value.op is not None:
                self.first[value] = None
        spatial = tuple(range(1, 1 + self.count))
        facts: dict[str, Any] = {
            **self.main.attributes,
            **numbers(self.count),
            "kernel_output_feature_dimension": 0,
            "kernel_spatial_dimensions": spatial,
            "kernel_input_feature_dimension": self.count + 1,
            "output_batch_dimension": lies[0],
            "output_spatial_dimensions": tuple(lies[1:-1]),
            "output_feature_dimension": lies[-1],
            "window_strides": window.strides,
            "padding": window.padding,
            "lhs_dilation": (),
            "rhs_dilation": window.dilations,
            "window_reversal": window.reversal,
        }
        return self.b("convolution", image, kernel, type=type, **facts)

    # Few features.

    def gathered(self, image: Value, kernel: Value) -> tuple[Value, Value, _WindowAttributes]:
        """The window's pixels along the last dims as features, until they fill an instruction."""
        b, window = self.b, self.window
        fields = {name: list(getattr(window, name)) for name in _FIELDS}
        for number in reversed(range(self.count)):
            features, taps = image.dims[-1], kernel.dims[1 + number]
            if self._fills(features) or taps == 1:
                continue
            image = self._unfolded(image, number, taps)
            # [out, ..., taps, ..., in] becomes [out, ..., 1, ..., taps * in].
            order = [d for d in range(kernel.rank - 1) if d != 1 + number]
            moved = b.transpose(kernel, [*order, 1 + number, kernel.rank - 1])
            dims = list(kernel.dims)
            dims[1 + number], dims[-1] = 1, taps * features
            kernel = b.reshape(moved, dims)
            for name, value in zip(_FIELDS, (1, (0, 0), 1, False), strict=True):
                fields[name][number] = value
        whole = self._whole(image.dims[-1])
        image, kernel = self.widened(image, whole), self.widened(kernel, whole)
        made = {name: tuple(values) for name, values in fields.items()}
        return image, kernel, _WindowAttributes(base=window.base, **made)

    def _unfolded(self, image: Value, number: int, taps: int) -> Value:
        """What the window sees along one spatial dim as features, tap after tap."""
        b, window, d = self.b, self.window, 1 + number
        stride, dilation = window.strides[number], window.dilations[number]
        padding = [(0, 0)] * image.rank
        padding[d] = window.padding[number]
        image = self.padded(image, padding)
        size = (image.dims[d] - (taps - 1) * dilation - 1) // stride + 1
        features, last = image.dims[-1], self._fills(taps * image.dims[-1]) or not number
        # Taps that are none fill the last chunk: one store of whole chunks is better than two.
        whole = self._whole(taps * features)
        count = whole // features if last and whole % features == 0 else taps
        # The pixel of each place of the window and each tap.
        kind = TensorType((size, count, 1), I32)
        place = b("iota", type=kind, iota_dimension=0)
        tap = b("iota", type=kind, iota_dimension=1)
        if window.reversal[number]:
            tap = b("subtract", b.constant(taps - 1, kind), tap)
        place = b("multiply", place, b.constant(stride, kind))
        tap = b("multiply", tap, b.constant(dilation, kind))
        # [.., size, taps, .., features], its taps next to the features then.
        dims = [*image.dims[:d], size, count, *image.dims[d + 1 :]]
        offsets = tuple(n for n in range(len(dims)) if n not in (d, d + 1))
        sizes = tuple(1 if n == d else size for n, size in enumerate(image.dims))
        found = b(
            "gather", image, b("add", place, tap), type=image.tensor.with_dims(dims),
            offset_dims=offsets, collapsed_slice_dims=(d,), start_index_map=(d,),
            index_vector_dim=2, slice_sizes=sizes,
        )  # fmt: skip
        if count != taps:
            kind = found.tensor.with_element(I32)
            real = b.compare("LT", b("iota", type=kind, iota_dimension=d + 1),
                             b.constant(taps, kind))  # fmt: skip
            found = b("select", real, found, b.constant(0, found.tensor))
        order = [n for n in range(len(dims)) if n != d + 1]
        order.insert(len(order) - 1, d + 1)
        if order != sorted(order):
            found = b.transpose(found, order)
        return b.reshape(found, (*image.dims[:d], size, *image.dims[d + 1 : -1], count * features))

    def _fills(self, features: int) -> bool:
        """Whether so many features fill an instruction."""
        return features * self.main.operands[0].element.itemsize >= _LEAST

    def _whole(self, features: int) -> int:
        """Features in whole chunks."""
        size = self.main.operands[0].element.itemsize
        return -(-features * size // _CHUNK) * _CHUNK // size

    def widened(self, value: Value, features: int) -> Value:
        """Zeros as features behind those that there are."""
        padding = [(0, 0)] * value.rank
        padding[-1] = (0, features - value.dims[-1])
        return self.padded(value, padding)

    def padded(self, value: Value, padding: Sequence[tuple[int, int]]) -> Value:
        if not any(map(any, padding)):
            return value
        dims = [n + low + high for n, (low, high) in zip(value.dims, padding, strict=True)]
        zero = self.b.constant(0, TensorType((), value.element))
        low, high = zip(*padding, strict=True)
        return self.b(
            "pad", value, zero, type=value.tensor.with_dims(dims), edge_padding_low=low,
            edge_padding_high=high, interior_padding=(0,) * value.rank,
        )  # fmt: skip

    def sliced(self, value: Value, d: int, first: int, limit: int, stride: int = 1) -> Value:
        if (first, limit, stride) == (0, value.dims[d], 1):
            return value
        starts, limits, strides = [0] * value.rank, list(value.dims), [1] * value.rank
        starts[d], limits[d], strides[d] = first, limit, stride
        dims = [-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True)]
        return self.b(
            "slice", value, type=value.tensor.with_dims(dims), start_indices=tuple(starts),
            limit_indices=tuple(limits), strides=tuple(strides),
        )  # fmt: skip

    # Dilated images.

    def phases(self, image: Value, kernel: Value) -> Value:
        """The result [n, spatial, features] of a dilated image: every `base`-th pixel along each
        dim, from a phase on, sees the same taps."""
        b, main, base = self.b, self.main, self.window.base
        sizes = [main.result.dims[d] for d in main.output_spatial_dimensions]
        reversed_dims = [1 + n for n, flipped in enumerate(self.window.reversal) if flipped]
        if reversed_dims:
            kernel = b("reverse", kernel, type=kernel.type, dimensions=tuple(reversed_dims))
        whole = [-(-n // step) for n, step in zip(sizes, base, strict=True)]
        batch, features = image.dims[0], kernel.dims[0]
        kind = main.type.with_dims((batch, *whole, features))
        found: dict[tuple[int, ...], Value] = {}
        places = list(itertools.product(*map(range, base)))
        geometry = {place: self._phase(place) for place in places}
        for same in dict.fromkeys(geometry.values()):
            group = [place for place in places if geometry[place] == same]
            if same is None:
                for place in group:
                    found[place] = b.constant(0, kind)
                continue
            # Phases that see the same pixels are one convolution with as many features.
            kernels = [self._taps(kernel, place) for place in group]
            dims = (features * len(group), *kernels[0].dims[1:])
            joined = kernels[0]
            if len(kernels) > 1:
                joined = b("concatenate", *kernels, type=kernel.tensor.with_dims(dims), dimension=0)
            padding = tuple(
                (low, n - m - low + (taps - 1) * step)
                for (low, taps, step), n, m in zip(same, whole, image.dims[1:-1], strict=True)
            )
            ones = (1,) * self.count
            window = _WindowAttributes(
                ones, padding, ones, tuple(step for _, _, step in same), (False,) * self.count
            )
            type = main.type.with_dims((batch, *whole, dims[0]))
            lies = tuple(range(self.count + 2))
            result = self.convolution(image, joined, window, type, lies)
            last = result.rank - 1
            for number, place in enumerate(group):
                first = number * features
                found[place] = self.sliced(result, last, first, first + features)
        return self._interleaved([found[place] for place in places], whole, sizes)

    def _phase(self, place: Sequence[int]) -> tuple[tuple[int, int, int], ...] | None:
        """For each spatial dim (low padding, taps, dilation) of a phase's convolution; None where
        it sees no pixel."""
        found = []
        for number, phase in enumerate(place):
            first, count, step = self._own(number, phase)
            if not count:
                return None
            low, dilation = self.window.padding[number][0], self.window.dilations[number]
            base = self.window.base[number]
            found.append((-((phase + first * dilation - low) // base), count, step))
        return tuple(found)

    def _own(self, number: int, phase: int) -> tuple[int, int, int]:
        """(first tap, number of taps, dilation) that a phase sees along a spatial dim."""
        window = self.window
        base, dilation = window.base[number], window.dilations[number]
        taps = self.main.operands[1].dims[self.main.kernel_spatial_dimensions[number]]
        low = window.padding[number][0]
        own = [k for k in range(taps) if (phase + k * dilation - low) % base == 0]
        every = base // math.gcd(base, dilation)  # taps from one to the next
        return (own[0] if own else 0), len(own), every * dilation // base

    def _taps(self, kernel: Value, place: Sequence[int]) -> Value:
        """The kernel's taps that a phase sees."""
        for number, phase in enumerate(place):
            first, count, _ = self._own(number, phase)
            base, dilation = self.window.base[number], self.window.dilations[number]
            every = base // math.gcd(base, dilation)
            limit = first + (count - 1) * every + 1
            kernel = self.sliced(kernel, 1 + number, first, limit, every)
        return kernel

    def _interleaved(
        self, parts: Sequence[Value], whole: Sequence[int], sizes: Sequence[int]
    ) -> Value:
        """The phases' results side by side, cut to the result's sizes."""
        b, base = self.b, self.window.base
        batch, features = parts[0].dims[0], parts[0].dims[-1]
        flat = (batch, *whole, 1, features)
        stacked = [b.reshape(part, flat) for part in parts]
        kind = parts[0].tensor.with_dims((*flat[:-2], len(parts), features))
        value = stacked[0]
        if len(stacked) > 1:
            value = b("concatenate", *stacked, type=kind, dimension=len(flat) - 2)
        value = b.reshape(value, (batch, *whole, *base, features))
        order = [0]
        for number in range(self.count):
            order += [1 + number, 1 + self.count + number]
        value = b.transpose(value, [*order, value.rank - 1])
        dims = [n * step for n, step in zip(whole, base, strict=True)]
        value = b.reshape(value, (batch, *dims, features))
        for number, size in enumerate(sizes):
            value = self.sliced(value, 1 + number, 0, size)
        return value


_FIELDS = ("strides", "padding", "dilations", "reversal")


def packing(op: Op) -> Packing | None:
    """How the weight of a fusion's convolution should lie: out features, taps, in features."""
    body: Sequence[Op] = op.regions[0].ops if op.name == "fusion" else ()
    found = [inner for inner in body if inner.name == "convolution"]
    if len(found) != 1 or refusal(_undilated(found[0])) or _lies_well(found[0], 1):
        return None
    order = _kernel_order(found[0])
    weight = found[0].operands[1]
    if weight.dims[order[-1]] * weight.element.itemsize % _CHUNK:
        return None  # it is padded where it is used
    back = tuple(order.index(d) for d in range(len(order)))
    name = "taps" + "".join(map(str, order))

    def move(permutation: Sequence[int]) -> Any:
        return lambda b, value: b.transpose(value, permutation)

    return Packing(1, name, move(order), move(back))


def _undilated(main: Op) -> Op:
    """The convolution of a plain image; its result has another size."""
    facts = {**main.attributes, "lhs_dilation": ()}
    return Op(main.definition, main.operands, facts, (), main.result_types, main.origin)

"""What is done with the elements under a window: reduce_window, convolutions of one feature, and
the choice of select_and_scatter. One step is one element of `width` windows side by side."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Op
from ... import llvm
from ...capabilities import vector_width
from ...llvm import elements
from ...llvm.arithmetic import select
from ...llvm.elements import Register
from ...llvm.elementwise import Inside, Mask, scalar_region
from ...llvm.index import ZERO, Affine, linear
from ...plain.monoid import Reduction, spread
from ...plain.opaque.window import per_dim, slides_of
from ...plain.sliding import Sliding
from ..atoms import ACCESS_BYTES
from ..plain.products import ConvolutionWindow, Sum, convolution_slides
from .threads import ThreadEmitter

UNROLLED = 32  # elements of a window as straight code; outer dims of larger ones are loops
WEIGHTS = 80  # 32-bit words of a convolution's kernel that a thread holds


class Fold(ABC):
    """What is done with the elements under a window. `op` is the operation, `slides` its window,
    dim by dim of the result."""

    slides: list[Sliding]
    sums = 32  # 32-bit words of results that a thread holds

    def __init__(self, op: Op) -> None:
        self.op = op

    @property
    @abstractmethod
    def words(self) -> int:
        """32-bit words of what a lane accumulates."""

    @abstractmethod
    def widest(self, others: Sequence[Any]) -> int:
        """Lanes of the widest vectors that are worth it, with element types of other results."""

    def straight(self, width: int) -> int:
        """The first dim of windows that is straight code, with those after it."""
        taps = 1
        for d in reversed(range(len(self.slides))):
            taps *= self.slides[d].size
            if taps > self.most(width):
                return d + 1
        return 0

    def most(self, width: int) -> int:
        """Elements of a window in straight code."""
        del width
        return UNROLLED

    @abstractmethod
    def begin(self, emitter: ThreadEmitter, width: int) -> list[Register]:
        """What a window's result starts from."""

    @abstractmethod
    def step(
        self, index: tuple[Affine, ...], place: Sequence[Affine], values: list[Register]
    ) -> list[Register]:
        """One element more, at a place of the window."""

    @abstractmethod
    def finished(self, f: llvm.Function, values: list[Register]) -> list[Register]:
        """The results."""


class Reduced(Fold):
    """reduce_window."""

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.reduction = Reduction(op)
        self.slides = slides_of(op)

    @property
    def words(self) -> int:
        return sum(words_of(element) for element in self.reduction.elements)

    def widest(self, others: Sequence[Any]) -> int:
        if not self.slides or not self.slides[-1].still:
            return 1
        values = (*self.reduction.inputs, *self.op.results)
        return widest_of([*others, *(value.element for value in values)])

    def begin(self, emitter: ThreadEmitter, width: int) -> list[Register]:
        self.emitter, self.width = emitter, width
        registers = [emitter.value(value, ()) for value in self.reduction.initial]
        f = emitter.function
        self.start = spread(f, self.reduction.read(f, registers), width)
        return self.start

    def step(
        self, index: tuple[Affine, ...], place: Sequence[Affine], values: list[Register]
    ) -> list[Register]:
        emitter, f, width = self.emitter, self.emitter.function, self.width
        inside: Inside = None
        found: list[Affine] = []
        for slide, window, element in zip(self.slides, index, place, strict=True):
            valid, position = slide.place(emitter, window, element, width)
            if valid is False:
                return self.reduction.combine(f, values, self.start, width)
            inside = emitter.both(inside, valid)
            found.append(position)
        read = self.read(found, inside)
        return self.reduction.combine(f, values, read, width)

    def read(self, place: Sequence[Affine], inside: Mask | None) -> list[Register]:
        """The elements at a place, the initial values where it is padding."""
        emitter, f = self.emitter, self.emitter.function

        def made() -> list[Register]:
            inputs = self.reduction.inputs
            registers = [emitter.value(value, place, self.width, inside) for value in inputs]
            read = self.reduction.read(f, registers)
            return blended(f, inside, read, self.start)

        return once(emitter, place, inside, made)

    def finished(self, f: llvm.Function, values: list[Register]) -> list[Register]:
        return self.reduction.finished(f, values)


class Convolved(Fold):
    """A convolution in which a result sums over one input feature."""

    sums = 64  # its weights are read once for so many more products

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        image, kernel = op.operands
        last = len(op.result.dims) - 1
        self.multiplier = kernel.dims[op.kernel_output_feature_dimension] // op.feature_group_count
        self.beside = (op.output_feature_dimension, op.input_feature_dimension) == (
            last,
            image.rank - 1,
        ) and op.kernel_output_feature_dimension == kernel.rank - 1
        self.slides = [Sliding(n, 1) for n in op.result.dims]
        for slide, d in zip(convolution_slides(op), op.output_spatial_dimensions, strict=True):
            self.slides[d] = slide

    @property
    def words(self) -> int:
        return words_of(self.op.result.element)

    def widest(self, others: Sequence[Any]) -> int:
        if not self.beside:
            return 1
        values = (*self.op.operands, self.op.result)
        width = widest_of([*others, *(value.element for value in values)])
        return width if self.multiplier == 1 else math.gcd(width, self.multiplier)

    def most(self, width: int) -> int:
        return min(UNROLLED, WEIGHTS // (width * self.words))

    def begin(self, emitter: ThreadEmitter, width: int) -> list[Register]:
        self.emitter, self.width = emitter, width
        self.sum = Sum(emitter.function, self.op, width)
        self.window = ConvolutionWindow(emitter, self.op, width)
        self.order = list(self.op.output_spatial_dimensions)
        return [self.sum.zero]

    def step(
        self, index: tuple[Affine, ...], place: Sequence[Affine], values: list[Register]
    ) -> list[Register]:
        emitter, f, width = self.emitter, self.emitter.function, self.width
        inner = [*(place[d] for d in self.order), ZERO]
        left, right, inside = self.window.indices(index, inner)
        if inside is False:
            return values

        def made() -> list[Register]:
            image = self.op.operands[0]
            read = emitter.value(image, left, width, inside)
            zero = elements.register_constant(image.element, image.element.dtype.type(0), width)
            return blended(f, inside, [read], [zero])

        (image,) = once(emitter, left, inside, made)
        kernel = emitter.value(self.op.operands[1], right, width)
        return [self.sum.add(values[0], [image, kernel])]

    def finished(self, f: llvm.Function, values: list[Register]) -> list[Register]:
        return [self.sum.finished(values[0])]


class Selected(Fold):
    """The choice of select_and_scatter: the position of the element that each window selects, as an
    i32; -1 where all is padding."""

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.source, rank = op.operands[0], op.operands[0].rank
        columns = zip(
            self.source.dims, per_dim(op.window_dimensions, rank, 1),
            per_dim(op.window_strides, rank, 1),
            (low for low, _ in per_dim(op.padding, rank, (0, 0))), strict=True,
        )  # fmt: skip
        self.slides = [Sliding(*column) for column in columns]

    @property
    def words(self) -> int:
        return words_of(self.source.element) + 1

    def widest(self, others: Sequence[Any]) -> int:
        if not self.slides or not self.slides[-1].still:
            return 1
        return widest_of([*others, self.source.element])

    def begin(self, emitter: ThreadEmitter, width: int) -> list[Register]:
        self.emitter, self.width = emitter, width
        element = self.source.element
        nothing = elements.register_constant(element, element.dtype.type(0), width)
        return [nothing, llvm.constant(llvm.vector(width, "i32"), -1)]

    def step(
        self, index: tuple[Affine, ...], place: Sequence[Affine], values: list[Register]
    ) -> list[Register]:
        emitter, f, width = self.emitter, self.emitter.function, self.width
        inside: Inside = None
        at: list[Affine] = []
        for slide, window, element in zip(self.slides, index, place, strict=True):
            valid, position = slide.place(emitter, window, element, width)
            if valid is False:
                return values
            inside = emitter.both(inside, valid)
            at.append(position)
        chosen, found = values
        candidate = emitter.value(self.source, at, width, inside)
        (keep,) = scalar_region(f, self.op.regions[0], [chosen, candidate], width)
        assert isinstance(keep, llvm.Value) and isinstance(found, llvm.Value)
        better = f.lnot(f.land(keep, f.compare("sge", found, 0)))
        if inside is not None:
            better = f.land(better, inside.value)
        here = positions(emitter, linear(at, self.source.dims), width)
        return [select(f, better, candidate, chosen), f.select(better, here, found)]

    def finished(self, f: llvm.Function, values: list[Register]) -> list[Register]:
        return values[1:]


def positions(emitter: ThreadEmitter, place: Affine, width: int) -> llvm.Value:
    """A position in each lane, i32."""
    if width == 1:
        return emitter.indexer.narrow(place)
    return emitter.indexer.vector(place, width)


def once(
    emitter: ThreadEmitter, place: Sequence[Affine], inside: Mask | None, made: Callable[[], Any]
) -> Any:
    """What is read at a place, by whichever windows cover it."""
    scopes = emitter.scopes
    key = "window", inside.value.name if inside else "", *(at.key for at in place)
    found = scopes.known(scopes.depth).get(key)
    if found is None:
        found = made()
        scopes.known(scopes.depth)[key] = found
    return found


def blended(
    f: llvm.Function, inside: Mask | None, new: Sequence[Register], old: Sequence[Register]
) -> list[Register]:
    if inside is None:
        return list(new)
    return [select(f, inside.value, a, b) for a, b in zip(new, old, strict=True)]


def words_of(element: Any) -> int:
    return max(1, llvm.bits_of(elements.register_type(element)) // 32) << element.is_complex


def widest_of(kinds: Sequence[Any]) -> int:
    return vector_width(ACCESS_BYTES, [kind.itemsize for kind in kinds])

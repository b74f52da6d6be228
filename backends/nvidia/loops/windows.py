"""Windows that slide over an array: pooling, reduce_window, depthwise convolutions.

Lanes run along the last dim where windows leave it alone (channels), 16 bytes each. A thread has a
patch of windows that are neighbours along the other dims: what several of them cover is read once
and stays in registers, as do a convolution's weights. Threads that follow each other have the
vectors of one place, then its neighbours', so that what patches share is still in the L1 cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ....hlo.build import build_region
from ....hlo.graph import Op, Region
from ....hlo.types import I32
from ... import llvm
from ...llvm.arithmetic import select
from ...llvm.elements import Register
from ...llvm.elementwise import Inside, Mask, Override, scalar_region, splat
from ...llvm.index import ZERO, Affine, LoopAxis, delinear, linear, of_axis
from ...plain.monoid import flat, unflat
from ...plain.opaque.window import slides_of
from ...plain.single import as_region
from ...plain.sliding import Sliding
from ..frame import Parameter, blocks
from ..launch import KernelCode
from ..target import NvidiaTarget
from . import reduce, scan
from .folds import UNROLLED, Convolved, Fold, Reduced, Selected, positions
from .head import FusionEntry, FusionKernel, nothing
from .rows import BUSY
from .threads import ThreadEmitter, lanes_axis

SIDES = (1, 2, 4)  # windows of a patch along a dim
OVERLAPS = 64  # windows that an element may be in
SMALL = 1 << 16  # threads, below which blocks are small


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a reduce_window: a running total, a reduction, or windows."""
    if not scan.refusal(op, target):
        return scan.emit(op, target)
    region, flops = as_region(op), op.definition.flops(op)
    whole = reduced(region.ops[0])
    if whole is not None and not reduce.refusal(whole):
        return reduce.emit(whole, target, flops)
    return _emit(region, region.ops[0], target, flops)


def reduced(op: Op) -> Region | None:
    """The reduction that a reduce_window of one large window over whole dims is; None for others.
    Its results have the same elements, without those dims."""
    slides, dims = slides_of(op), op.results[0].dims
    over = tuple(d for d, slide in enumerate(slides) if slide.size > 1)
    covered = all(slides[d].covers and dims[d] == 1 for d in over)
    rest = all(slide.still for d, slide in enumerate(slides) if d not in over)
    if not covered or not rest or math.prod(slides[d].size for d in over) <= UNROLLED:
        return None
    types = [value.type for value in op.operands]
    return build_region(
        types, lambda b, *x: b.op("reduce", [*x], {"dimensions": over}, op.regions).results
    )


def depthwise(region: Region, target: NvidiaTarget, flops: float) -> KernelCode:
    """The kernel of a convolution in which a result sums over one input feature, with what is
    computed element by element around it."""
    (op,) = (op for op in region.ops if op.name == "convolution")
    return _emit(region, op, target, flops)


def _emit(region: Region, op: Op, target: NvidiaTarget, flops: float) -> KernelCode:
    dims = op.results[0].dims
    if not op.results[0].tensor.size:
        return nothing(region, target, flops)
    fold: Fold = Convolved(op) if op.name == "convolution" else Reduced(op)
    widest = fold.widest([root.element for root in region.results])
    kernel = FusionKernel(region, target)
    WindowFold(kernel, fold, dims, widest).emit("windows", store(region, op))
    return kernel.finish(flops)


class Patch(NamedTuple):
    """`width` results along the last dim, `sides[d]` windows along each dim before it."""

    width: int
    sides: tuple[int, ...]

    @property
    def windows(self) -> int:
        return math.prod(self.sides)


def choose(
    fold: Fold, dims: Sequence[int], widest: int, straight: int, target: NvidiaTarget
) -> Patch:
    """The patch that reads least again, with threads left for the whole machine. `straight`: the
    first dim of windows that is no loop."""
    slides, words = fold.slides, fold.words
    size, busy = math.prod(dims), target.architecture.multiprocessors * BUSY
    width = math.gcd(widest, dims[-1]) if dims else 1
    while width > 1 and size < width * busy:
        width //= 2
    # Windows of a patch share what one turn of the innermost loop reads.
    free = [d for d in range(straight, len(dims) - 1) if slides[d].size > slides[d].stride][-2:]
    best = Patch(width, (1,) * len(dims))
    least = math.inf
    for chosen in itertools.product(SIDES, repeat=len(free)):
        sides = [1] * len(dims)
        for d, side in zip(free, chosen, strict=True):
            sides[d] = side
        patch = Patch(width, tuple(sides))
        large = patch.windows * width * words > fold.sums or size < patch.windows * width * busy
        if patch.windows > 1 and large:
            continue
        again = math.prod(_again(slides[d], dims[d], sides[d]) for d in free)
        if again < least:
            best, least = patch, again
    return best


def _again(slide: Sliding, extent: int, side: int) -> float:
    """How often an element is read along a dim, by windows taken `side` at a time."""
    covered = (side - 1) * slide.stride + slide.size
    return covered * -(-extent // side) / (extent * slide.stride)


class WindowFold:
    """Code of one launch: folds the windows of each thread's patch, and hands them to `sink`."""

    def __init__(self, kernel: FusionKernel, fold: Fold, dims: Sequence[int], widest: int) -> None:
        self.kernel, self.fold, self.dims = kernel, fold, tuple(dims)
        self.straight = fold.straight(widest)
        self.patch = choose(fold, dims, widest, self.straight, kernel.target)
        # Patches: how many there are along each dim.
        last = len(self.dims) - 1
        self.grid = [
            -(-size // side) // (self.patch.width if d == last else 1)
            for d, (size, side) in enumerate(zip(self.dims, self.patch.sides, strict=True))
        ]

    def emit(self, symbol: str, sink: Sink, extra: Sequence[Parameter] = ()) -> None:
        count = math.prod(self.grid)
        threads = 128 if count <= SMALL else 256
        self.part = self.kernel.entry(symbol, threads, extra, minimum_blocks=1)
        self.emitter = self.part.emitter()
        self.f, self.scopes = self.part.function, self.part.scopes
        with each(self.part, count) as place:
            self.patched(place, sink)
        self.part.finish(blocks(count, threads))

    def patched(self, place: Affine, sink: Sink) -> None:
        """All windows of a thread: folded together, then finished and stored one by one."""
        width = self.patch.width
        at = list(vectors(self.emitter, place, self.grid, self.dims, width))
        shifts = itertools.product(*map(range, self.patch.sides))
        indices = [
            tuple(
                one * side + step
                for one, side, step in zip(at, self.patch.sides, shift, strict=True)
            )
            for shift in shifts
        ]
        start = self.fold.begin(self.emitter, width)
        totals = self.folded(indices, (), [list(start) for _ in indices])
        for index, values in zip(indices, totals, strict=True):
            results = self.fold.finished(self.f, values)
            inside: Inside = None
            for one, size in zip(index, self.dims, strict=True):
                held = self.emitter.in_range(one, 0, size, 1) if one.high >= size else None
                if held is False or inside is False:
                    inside = False
                    break
                inside = self.emitter.both(inside, held)
            if inside is False:
                continue
            if inside is None:
                sink(self, index, results)
                continue
            whole = zip(index, self.dims, strict=True)
            index = tuple(one.within(0, size - 1) for one, size in whole)
            with self.scopes.branch(inside.value):
                self.emitter.base = self.scopes.depth  # what lies outside is not read
                sink(self, index, results)
            self.emitter.base = 0

    def folded(
        self,
        indices: Sequence[tuple[Affine, ...]],
        place: tuple[Affine, ...],
        totals: list[list[Register]],
    ) -> list[list[Register]]:
        """All windows over the elements whose first indices are `place`."""
        left = [slide.size for slide in self.fold.slides[len(place) :]]
        if len(place) >= self.straight:
            for rest in itertools.product(*map(range, left)):
                whole = (*place, *(Affine((), n) for n in rest))
                totals = [
                    self.fold.step(index, whole, values)
                    for index, values in zip(indices, totals, strict=True)
                ]
            return totals
        if left[0] == 1:
            return self.folded(indices, (*place, ZERO), totals)
        like = [register for values in totals for register in values]
        with self.scopes.loop(0, left[0], 1, flat(like), extent=left[0]) as (at, loop):
            carried = iter(unflat(loop.carried, like))
            inner = [[next(carried) for _ in values] for values in totals]
            found = self.folded(indices, (*place, at), inner)
            loop.carry(*flat([register for values in found for register in values]))
        found = iter(unflat(loop.results, like))
        return [[next(found) for _ in values] for values in totals]


Sink = Callable[[WindowFold, tuple[Affine, ...], Sequence[Register]], None]


@contextmanager
def each(part: FusionEntry, count: int) -> Iterator[Affine]:
    """The number of this thread in the grid, below count."""
    f, scopes, threads = part.function, part.scopes, part.threads
    kind = "i32" if count + threads < 2**31 else "i64"
    block, thread = (f.cast("zext", one, kind) for one in (part.block, part.thread))
    number = f.add(f.mul(block, threads), thread)
    with ExitStack() as stack:
        if count % threads:
            stack.enter_context(scopes.branch(f.compare("ult", number, count)))
        yield of_axis(LoopAxis(number, count, depth=scopes.depth))


def vectors(
    emitter: ThreadEmitter, place: Affine, grid: Sequence[int], dims: Sequence[int], width: int
) -> list[Affine]:
    """The place in a grid, whose last dim counts vectors of `width` elements."""
    at = list(delinear(emitter.indexer, place, grid, 1))
    if width > 1:
        first = emitter.indexer.narrow(at[-1] * width)
        at[-1] = lanes_axis(first, dims[-1], width, emitter.scopes.depth, width)
    return at


def store(region: Region, op: Op) -> Sink:
    """Stores the roots of a region, of what the windows of its operation gave."""

    def sink(w: WindowFold, index: tuple[Affine, ...], results: Sequence[Register]) -> None:
        emitter, width = w.emitter, w.patch.width
        for value, register in zip(op.results, results, strict=True):
            emitter.overrides[value] = given(w, index, register)
        for number, root in enumerate(region.results):
            register = emitter.value(root, index, width)
            pointer, offset = w.part.outputs[number], linear(index, root.dims)
            emitter.store(pointer, register, root.element, offset, width)

    return sink


def given(w: WindowFold, index: tuple[Affine, ...], register: Register) -> Override:
    """The register stands for a value, at one index."""
    keys = [at.key for at in index]

    def override(asked: Sequence[Affine], width: int, mask: Mask | None) -> Register:
        del mask
        assert [at.key for at in asked] == keys
        return register if width == w.patch.width else splat(w.f, register, width)

    return override


def selecting_refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a select_and_scatter has no kernel here, "" if it has one."""
    source, values, _ = op.operands
    if not source.tensor.size:
        return ""
    if source.tensor.size >= 2**31 or not values.tensor.size:
        return "more elements than 32 bits count, or no windows"
    if math.prod(len(slide.before) for slide in Selected(as_region(op).ops[0]).slides) > OVERLAPS:
        return f"an element in more than {OVERLAPS} windows"
    return ""


def select_and_scatter(op: Op, target: NvidiaTarget) -> KernelCode:
    """One launch chooses the element that each window selects; in a second one every element
    collects what its windows give it, in their order."""
    region = as_region(op)
    op = region.ops[0]
    source, values, initial = op.operands
    if not source.tensor.size:
        return nothing(region, target, 0.0)
    kernel, fold = FusionKernel(region, target), Selected(op)
    widest = fold.widest([I32, values.element, op.result.element])
    room = kernel.scratch_memory(4 * values.tensor.size)

    def keep(w: WindowFold, index: tuple[Affine, ...], results: Sequence[Register]) -> None:
        width, offset = w.patch.width, linear(index, values.dims)
        w.emitter.store(w.part.extra[0], results[0], I32, offset, width)

    WindowFold(kernel, fold, values.dims, widest).emit("choose", keep, [room])

    # Windows over an element: all that may cover it are asked, and most say that it is theirs.
    dims = source.dims
    busy = target.architecture.multiprocessors * BUSY
    width = math.gcd(widest, dims[-1]) if dims else 1
    while width > 1 and source.tensor.size < width * busy:
        width //= 2
    grid = [*dims[:-1], dims[-1] // width] if dims else []
    count = math.prod(grid)
    part = kernel.entry("collect", 128 if count <= SMALL else 256, [room])
    emitter, f = part.emitter(), part.function
    with each(part, count) as place:
        at = vectors(emitter, place, grid, dims, width)
        own = positions(emitter, linear(at, dims), width)
        total = emitter.value(initial, (), width)
        for over in itertools.product(*(slide.before for slide in fold.slides)):
            index: list[Affine] = []
            inside: Inside = None
            for one, slide, back, size in zip(at, fold.slides, over, values.dims, strict=True):
                window = slide.last(emitter, one, width) + -back
                held = emitter.in_range(window, 0, size, width)
                if held is False or inside is False:
                    inside = False
                    break
                inside = emitter.both(inside, held)
                index.append(window.within(0, size - 1))
            if inside is False:
                continue
            offset = linear(index, values.dims)
            chosen = emitter.load(part.extra[0], I32, offset, width, inside)
            assert isinstance(chosen, llvm.Value)
            hit = f.compare("eq", chosen, own)
            if inside is not None:
                hit = f.land(hit, inside.value)
            new = emitter.value(values, index, width, inside)
            (joined,) = scalar_region(f, op.regions[1], [total, new], width)
            total = select(f, hit, joined, total)
        emitter.store(part.outputs[0], total, op.result.element, linear(at, dims), width)
    part.finish(blocks(count, part.threads))
    return kernel.finish(op.definition.flops(op))

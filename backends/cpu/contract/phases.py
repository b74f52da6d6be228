"""Convolutions in parts whose results see the same taps, each a plain convolution.

A transposed convolution is one for each phase of its results. Phases that see as many taps and have
as many results are one loop of one kernel, others are kernels of their own.

Where an image is dilated by `base`, a result `base * u + v` sees taps `r + base * j` alone, with
r = (low - v) mod base, and stored pixels `u + j - (low - v - r) / base`: the others meet the zeros
between pixels. So the results of one phase `v` are a convolution of the image as it is stored,
by every `base`-th tap, written `base` apart. The kernel's tiles are those of all phases.

Where an image is as it is stored, results near its edges see fewer taps than those inside: planes
that meet padding alone are products with zeros, which a part for each edge leaves out. Of small
images, some taps meet padding alone at every result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hlo.symbols import SymbolicDim
from ... import llvm
from .geometry import Geometry
from .operands import Phases
from .window import Spatial

_MOST_PHASES = 16  # each is code of its own
_LEAST_SAVED = 1 / 16  # of the products of a convolution, for which edges are parts of their own
_LEAST_ROWS = 128  # of a part
_MOST_PARTS = 3


def of_image(geometry: Geometry) -> Geometry:
    """The convolution by those taps alone that meet the image at some result."""
    found = [_seen(spatial) for spatial in geometry.spatial]
    if all(taps == (0, s.kernel) for taps, s in zip(found, geometry.spatial, strict=True)):
        return geometry
    pairs = zip(geometry.spatial, found, strict=True)
    return _joined(geometry, [_between(s, 0, s.outputs, *taps) for s, taps in pairs])


def _seen(spatial: Spatial) -> tuple[int, int]:
    """The taps [first, end) outside of which none meets the image; one where none does."""
    every = 0, spatial.kernel
    if spatial.base != 1 or _is_open(spatial) or not (spatial.kernel and spatial.outputs):
        return every
    reach = (spatial.outputs - 1) * spatial.stride - spatial.low
    first = max(0, -(reach // spatial.dilation))
    end = min(spatial.kernel, (spatial.size - 1 + spatial.low) // spatial.dilation + 1)
    return (first, end) if first < end else (0, 1)


def of(geometry: Geometry) -> list[Geometry]:
    """The phases of a convolution of a dilated image; the convolution alone where strides, dilated
    windows, or windows smaller than a step of the image leave it to masks."""
    if any(_is_open(spatial) for spatial in geometry.spatial):
        return [geometry]
    spatials = [_spread(spatial) for spatial in geometry.spatial]
    if all(spatial.base == 1 for spatial in spatials):
        return [geometry]
    for spatial in spatials:
        plain = spatial.base == 1 or (spatial.stride, spatial.dilation) == (1, 1)
        if not plain or min(spatial.kernel, spatial.outputs) < spatial.base:
            return [geometry]
    # Vectors of features unroll their taps by place.
    separate = geometry.inputs == 1
    choices = [
        [_phase(spatial, v) for v in range(spatial.base)] if separate or _uneven(spatial)
        else [_shared(spatial)]
        for spatial in spatials
    ]  # fmt: skip
    if math.prod(map(len, choices)) > _MOST_PHASES:
        return [geometry]
    return [_joined(geometry, phases) for phases in itertools.product(*choices)]


@dataclass(frozen=True)
class _Phase:
    spatial: Spatial
    kernel_offset: int
    result_offset: int


def _phase(spatial: Spatial, v: int) -> _Phase:
    base, step = spatial.base, spatial.kernel_step
    if base == 1:
        return _Phase(spatial, 0, 0)
    first = (spatial.low - v) % base
    plain = replace(
        spatial, outputs=-(-(spatial.outputs - v) // base),
        kernel=-(-(spatial.kernel - first) // base), low=(spatial.low - v - first) // base,
        base=1, kernel_step=step * base, output_step=spatial.output_step * base, reversed=False,
    )  # fmt: skip
    start = -step * (spatial.kernel - 1) if spatial.reversed else 0
    return _Phase(plain, start + first * step, v * spatial.output_step)


def _is_open(spatial: Spatial) -> bool:
    sizes = spatial.outputs, spatial.kernel, spatial.low, spatial.size
    return any(isinstance(size, SymbolicDim) for size in sizes)


def _spread(spatial: Spatial) -> Spatial:
    """The dimension; of a single pixel, which may be taken for one that is dilated by any step, as
    one whose phases see one tap each."""
    single = (spatial.size, spatial.stride, spatial.dilation) == (1, 1, 1)
    even = spatial.kernel > 0 and spatial.outputs % spatial.kernel == 0
    return replace(spatial, base=spatial.kernel) if single and even else spatial


def _uneven(spatial: Spatial) -> bool:
    """Whether phases differ in their taps or results; of an image as it is stored there is one."""
    return bool(
        spatial.base == 1 or spatial.kernel % spatial.base or spatial.outputs % spatial.base
    )


def _shared(spatial: Spatial) -> _Phase:
    """All phases."""
    base, step = spatial.base, spatial.kernel_step
    found = Phases(base, spatial.low, step)
    plain = replace(
        spatial, outputs=spatial.outputs // base, kernel=spatial.kernel // base,
        low=found.lows[1], base=1, kernel_step=step * base,
        output_step=spatial.output_step * base, reversed=False, phases=found,
    )  # fmt: skip
    return _Phase(plain, -step * (spatial.kernel - 1) if spatial.reversed else 0, 0)


def edges(geometry: Geometry) -> list[Geometry]:
    """The parts of a convolution between the edges of one dim of its image; the convolution alone
    where that saves little, or leaves few rows."""
    best, parts = _LEAST_SAVED, [geometry]
    for number, spatial in enumerate(geometry.spatial):
        rows = math.prod(inner.outputs for inner in geometry.spatial[number + 1 :])
        if spatial.base != 1 or _is_open(spatial) or isinstance(rows, SymbolicDim):
            continue
        if _near_edges(spatial) <= best * spatial.outputs:
            continue
        runs = _runs(spatial)
        few = min(count for _, count, _, _ in runs) * rows < _LEAST_ROWS
        needed = sum(count * (end - first) for _, count, first, end in runs)
        saved = 1 - needed / (spatial.outputs * spatial.kernel)
        if saved <= best or few or len(runs) > _MOST_PARTS:
            continue
        others = [_Phase(other, 0, 0) for other in geometry.spatial]
        best = saved
        parts = []
        for run in runs:
            spatials = [*others[:number], _between(spatial, *run), *others[number + 1 :]]
            share = run[1] / spatial.outputs
            parts.append(replace(_joined(geometry, spatials), share=share))
    return parts


def _near_edges(spatial: Spatial) -> int:
    """Results that do not see all taps, at most."""
    last = (spatial.outputs - 1) * spatial.stride + (spatial.kernel - 1) * spatial.dilation
    beyond = max(0, spatial.low) + max(0, last - spatial.low - spatial.size + 1)
    return -(-beyond // spatial.stride) + 1


def _runs(spatial: Spatial) -> list[tuple[int, int, int, int]]:
    """Neighbouring results that see the same taps: (first result, results, first tap, end of taps).
    What sees none has one."""
    runs: list[tuple[int, int, int, int]] = []
    for at in range(spatial.outputs):
        start = at * spatial.stride - spatial.low
        first = max(0, -(start // spatial.dilation))
        end = min(spatial.kernel, (spatial.size - 1 - start) // spatial.dilation + 1)
        if end <= first:
            first, end = 0, 1
        if runs and runs[-1][2:] == (first, end):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, first, end)
        else:
            runs.append((at, 1, first, end))
    return runs


def _between(spatial: Spatial, at: int, count: int, first: int, end: int) -> _Phase:
    """The results from `at` on, which see the taps [first, end)."""
    step = spatial.kernel_step
    low = spatial.low - at * spatial.stride - first * spatial.dilation
    part = replace(spatial, outputs=count, kernel=end - first, low=low, reversed=False)
    start = -step * (spatial.kernel - 1) if spatial.reversed else 0
    return _Phase(part, start + first * step, at * spatial.output_step)


def _joined(geometry: Geometry, phases: Sequence[_Phase]) -> Geometry:
    kernel = geometry.kernel
    offset = kernel.offset + sum(phase.kernel_offset for phase in phases)
    return replace(
        geometry, kernel=replace(kernel, offset=offset),
        spatial=tuple(phase.spatial for phase in phases),
        result_offset=sum(phase.result_offset for phase in phases),
    )  # fmt: skip


def emit_all(module: llvm.Module, name: str, parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Defines the kernel of parts that are kernels `name`_partN of the given tiles and scratch
    bytes; its own tiles and scratch bytes."""
    f = module.kernel(name)
    args, begin, end, scratch = f.arguments
    before = 0
    for number, (tiles, _) in enumerate(parts):
        first = f.sub(f.max(begin, before), before)
        last = f.sub(f.min(end, before + tiles), before)
        with f.if_then(f.compare("slt", first, last)):
            f.call(f"{name}_part{number}", "void", args, first, last, scratch)
        before += tiles
    f.ret()
    return before, max(scratch for _, scratch in parts)

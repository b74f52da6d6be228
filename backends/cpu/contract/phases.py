"""Transposed convolutions as one plain convolution for each phase of their results.

Where an image is dilated by `base`, a result `base * u + v` sees taps `r + base * j` alone, with
r = (low - v) mod base, and stored pixels `u + j - (low - v - r) / base`: the others meet the zeros
between pixels. So the results of one phase `v` are a convolution of the image as it is stored,
by every `base`-th tap, written `base` apart. The kernel's tiles are those of all phases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....hlo.symbols import SymbolicDim
from ... import llvm
from .window import Spatial

if TYPE_CHECKING:
    from .convolution import Geometry

_MOST_PHASES = 16  # each is code of its own


def of(geometry: Geometry) -> list[Geometry]:
    """The phases of a convolution; the convolution alone where its image is not dilated, or where
    strides, dilated windows, or windows smaller than a step of the image leave it to masks."""
    bases = [spatial.base for spatial in geometry.spatial]
    if math.prod(bases) == 1 or math.prod(bases) > _MOST_PHASES:
        return [geometry]
    for spatial in geometry.spatial:
        sizes = spatial.outputs, spatial.kernel, spatial.low, spatial.size
        if any(isinstance(size, SymbolicDim) for size in sizes):
            return [geometry]
        plain = spatial.base == 1 or (spatial.stride, spatial.dilation) == (1, 1)
        if not plain or min(spatial.kernel, spatial.outputs) < spatial.base:
            return [geometry]
    choices = [[_phase(spatial, v) for v in range(spatial.base)] for spatial in geometry.spatial]
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


def _joined(geometry: Geometry, phases: Sequence[_Phase]) -> Geometry:
    kernel = geometry.kernel
    offset = kernel.offset + sum(phase.kernel_offset for phase in phases)
    return replace(
        geometry, kernel=replace(kernel, offset=offset),
        spatial=tuple(phase.spatial for phase in phases),
        result_offset=sum(phase.result_offset for phase in phases),
    )  # fmt: skip


def emit_all(module: llvm.Module, name: str, parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Defines the kernel of phases that are kernels `name`_phaseN of the given tiles and scratch
    bytes; its own tiles and scratch bytes."""
    f = module.kernel(name)
    args, begin, end, scratch = f.arguments
    before = 0
    for number, (tiles, _) in enumerate(parts):
        first = f.sub(f.max(begin, before), before)
        last = f.sub(f.min(end, before + tiles), before)
        with f.if_then(f.compare("slt", first, last)):
            f.call(f"{name}_phase{number}", "void", args, first, last, scratch)
        before += tiles
    f.ret()
    return before, max(scratch for _, scratch in parts)

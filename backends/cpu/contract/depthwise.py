"""Convolutions in which every output feature sees one input feature: plain loops over pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....hlo.graph import Region
from .. import llvm
from ..codegen import Target

if TYPE_CHECKING:
    from .convolution import Geometry


def emit_depthwise(
    module: llvm.Module,
    name: str,
    geometry: Geometry,
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> tuple[int, int] | None:
    """Defines the kernel; None where the convolution is not of this kind."""
    return None

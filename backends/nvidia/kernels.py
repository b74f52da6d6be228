"""Every kernel of the GPU: `emit(op, target)` for fusions and single operations."""

from __future__ import annotations

from dataclasses import replace

from ...hlo.errors import UnsupportedError
from ...hlo.graph import NOTE, Op
from ...optimizer.machine import Limitation
from ..plain.single import check
from .fits import fits
from .launch import KernelCode
from .target import NvidiaTarget


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The kernel of a fusion or of a single operation; UnsupportedError if there is none."""
    check(op, "nvidia")
    found = fits(op, target)
    if isinstance(found, Limitation):
        raise UnsupportedError(found.reason)
    code = found.emit()
    said = (op.attributes[NOTE],) if NOTE in op.attributes else ()
    return replace(code, notes=(*said, *found.notes, *code.notes))

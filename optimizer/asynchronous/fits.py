"""Whether a tile function is one for units that multiply while windows come: the one question,
asked before anything is emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hlo.graph import Op
from ..machine import Limitation
from .analysis import analyse
from .configuration import PipelineConfiguration, configure

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


def fits(kernel: Op, able: Capabilities) -> PipelineConfiguration | Limitation:
    """How a kernel_call runs on a target's asynchronous units, or why it does not."""
    work = analyse(kernel, able)
    found = work if isinstance(work, str) else configure(work, able)
    if isinstance(found, str):
        return Limitation(able.target, multiplied(kernel), found)
    return found


def multiplied(kernel: Op) -> str:
    """The element type of what a kernel multiplies first; "" where it multiplies nothing."""
    inner = (op for region in kernel.regions for op in region.walk())
    dots = (op.operands[0].element.name for op in inner if op.definition.pattern == "contract")
    return next(dots, "")

"""The plain way: every operation that any target has, one thread per element or tile.

In: any region. Elementwise values are computed where they are read, each other operation becomes a
launch of its own, and what launches hand on lies in scratch memory. Out: these launches. Emitters
for more than one thread at a time stand before it (`fits.py`). Imported by `backends/nvidia`.
"""

from __future__ import annotations

from ....hlo.graph import Op
from ....optimizer.expansions import has_blocks
from ...plain.opaque import EMITTERS
from .region import emit, fits

__all__ = ["emit", "expands", "fits"]


def expands(op: Op) -> bool:
    """Whether an operation on whole matrices is wanted as plain HLO: those without a kernel, and
    those whose kernel would keep one thread at a large matrix."""
    return op.name not in EMITTERS or has_blocks(op)

"""1.0 to 1.1: kernels, and the operations on tiles that stand in their bodies.

Nothing of 1.0 changed. Downwards, a kernel that brings its reference becomes the reference.
"""

from __future__ import annotations

from typing import Any

from .inline import Inliner

VERSION = "1.1"
OPERATIONS = frozenset(
    {
        "kernel_call",
        "tile_for",
        "tile_gather",
        "tile_id",
        "tile_load",
        "tile_scatter",
        "tile_store",
    }
)
TYPES: frozenset[str] = frozenset()
ATTRIBUTES: frozenset[str] = frozenset()
REMEDIES = {
    "kernel_call": "give the kernel a reference (girih.kernel(reference=...)), which older formats "
    "can hold in its place"
}

_REFERENCE = 1  # its region; 0 is the body


def upgrade(message: Any) -> None:
    """Nothing to do."""


def downgrade(message: Any) -> None:
    """Put the references of kernels in their place."""

    def reference(name: str, regions: int) -> int | None:
        return _REFERENCE if name == "kernel_call" and regions > _REFERENCE else None

    Inliner(message, reference).run()

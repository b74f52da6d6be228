"""1.2 to 1.3: kernels that were written elsewhere.

Nothing of 1.2 changed. Downwards, such a kernel becomes its reference.
"""

from __future__ import annotations

from typing import Any

from .inline import Inliner

VERSION = "1.3"
OPERATIONS = frozenset({"foreign_call"})
TYPES: frozenset[str] = frozenset()
ATTRIBUTES: frozenset[str] = frozenset()
REMEDIES = {
    "foreign_call": "give the kernel a reference (girih.foreign_kernel(reference=...)), which "
    "older formats can hold in its place"
}

_REFERENCE = 0


def upgrade(message: Any) -> None:
    """Nothing to do."""


def downgrade(message: Any) -> None:
    """Put the references of kernels in their place."""

    def reference(name: str, regions: int) -> int | None:
        return _REFERENCE if name == "foreign_call" and regions > _REFERENCE else None

    Inliner(message, reference).run()

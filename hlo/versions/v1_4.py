"""1.3 to 1.4: the exchange, and calls with weights.

Nothing of 1.3 changed. What these say older formats cannot.
"""

from __future__ import annotations

from typing import Any

VERSION = "1.4"
OPERATIONS = frozenset({"call_with_weights", "exchange"})
TYPES: frozenset[str] = frozenset()
ATTRIBUTES: frozenset[str] = frozenset()
REMEDIES = {
    "call_with_weights": "unroll the program",
    "exchange": "keep the program as it is before it is partitioned",
}


def upgrade(message: Any) -> None:
    """Nothing to do."""


def downgrade(message: Any) -> None:
    """Nothing that can be done."""

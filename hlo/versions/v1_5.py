"""1.4 to 1.5: sizes that are any integer expression, also as attributes; congruences of symbols,
what relates several, and who demands it.

1.4 had sums of multiples of symbols, and ranges. Those are written as they were. Downwards, only
the texts that say who demands something are left out.
"""

from __future__ import annotations

from typing import Any

VERSION = "1.5"
OPERATIONS: frozenset[str] = frozenset()
TYPES = frozenset({"size-attribute", "size-expression", "size-facts"})
ATTRIBUTES: frozenset[str] = frozenset()
REMEDIES = dict.fromkeys(sorted(TYPES), "fix the sizes of the program (sizes={...}, --size)")


def upgrade(message: Any) -> None:
    """Nothing to do."""


def downgrade(message: Any) -> None:
    """Leave the origins of symbols out."""
    for symbol in message.symbols:
        symbol.ClearField("origin")

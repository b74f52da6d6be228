"""Deciding about sizes (placeholder until symbols land)."""
from .types import (
    SymbolicDim, at_hint, larger, most, surely_at_most, surely_below,
)
__all__ = ["SymbolicDim", "at_hint", "larger", "most", "surely_at_most", "surely_below"]

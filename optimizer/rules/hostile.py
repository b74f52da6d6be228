"""Programs that rules meet by chance: empty tensors, odd windows, operations alone."""

from __future__ import annotations

from collections.abc import Iterator

from ...hlo.types import F32, TensorType
from ..rule import Example, example


def programs() -> Iterator[Example]:
    """Small programs without a claim about which rules fire on them."""
    a = TensorType((2, 3), F32)
    yield example("negate alone", [a], lambda b, x: b("negate", x), fires=None)

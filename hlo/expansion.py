"""What a room's `decompose` builds, as a region: interpreted here, compiled there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .build import Builder
from .dense import Dense
from .graph import Op, Region
from .room import OpDefinition
from .types import Type, unsharded


def expansion(o: Op) -> Region | None:
    """The region that computes o's results from its operands with simpler operations."""
    facts = tuple(
        (name, value if isinstance(value, Dense) else repr(value))
        for name, value in sorted(o.attributes.items())
    )
    types = tuple(unsharded(v.type) for v in o.operands)
    return _cached(o.definition, types, o.result_types, (facts, o.regions), _Keep(o))


class _Keep:
    """Hands an operation through a cache without being part of the key."""

    def __init__(self, o: Op) -> None:
        self.o = o

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keep)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=256)
def _cached(
    definition: OpDefinition,
    operands: tuple[Type, ...],
    results: tuple[Type, ...],
    attributes: Any,
    keep: _Keep,
) -> Region | None:
    builder = Builder()
    values = builder.arguments(operands)
    found = definition.decompose(builder, keep.o, *values)
    return None if found is None else builder.region(found)

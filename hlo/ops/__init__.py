"""The rooms of all operations, in one explicit table.

In: an operation's operands and attributes. Out: its types, constraints, arithmetic, cost and
examples, by its `OpDefinition`. Imported by `backends`, `frontends`, `girih`, `hlo`, `optimizer`,
`specs`.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..room import OpDefinition
from . import (
    annotation,
    canonical_forms,
    collectives,
    communication,
    composed,
    contraction,
    control,
    conversion,
    convolution,
    dynamic,
    einsum,
    elementwise,
    exchange,
    factorizations,
    foreign,
    functions,
    indexing,
    linear_algebra,
    manual,
    normalization,
    position,
    random,
    reduction,
    rooted,
    scattering,
    selection,
    shape,
    sorting,
    special,
    structure,
    tile,
    windows,
)

DEFINITIONS: tuple[OpDefinition, ...] = (
    *elementwise.ROOMS,
    *selection.ROOMS,
    *conversion.ROOMS,
    *shape.ROOMS,
    *position.ROOMS,
    *indexing.ROOMS,
    *scattering.ROOMS,
    *reduction.ROOMS,
    *windows.ROOMS,
    *sorting.ROOMS,
    *contraction.ROOMS,
    *einsum.ROOMS,
    *convolution.ROOMS,
    *dynamic.ROOMS,
    *structure.ROOMS,
    *control.ROOMS,
    *collectives.ROOMS,
    *rooted.ROOMS,
    *exchange.ROOMS,
    *communication.ROOMS,
    *manual.ROOMS,
    *annotation.ROOMS,
    *linear_algebra.ROOMS,
    *factorizations.ROOMS,
    *canonical_forms.ROOMS,
    *normalization.ROOMS,
    *random.ROOMS,
    *functions.ROOMS,
    *special.ROOMS,
    *composed.ROOMS,
    *tile.ROOMS,
    *foreign.ROOMS,
)

_BY_NAME = {definition.name: definition for definition in DEFINITIONS}


def find(name: str) -> OpDefinition:
    """The definition of that name; UnsupportedError if there is none."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedError(f"the operation '{name}' is not part of this version") from None


def known(name: str) -> bool:
    """Whether an operation of that name exists."""
    return name in _BY_NAME

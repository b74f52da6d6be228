"""How each operator of PyTorch is said in HLO: one room per family, one table of all."""

from __future__ import annotations

from ..context import Lowering
from . import (
    activations,
    attention,
    comparisons,
    control,
    convolution,
    creation,
    indexing,
    kernels,
    matmul,
    normalization,
    pointwise,
    pooling,
    recurrent,
    reductions,
    resize,
    sampling,
    sorting,
    synonyms,
    views,
)  # fmt: skip

_ROOMS = (
    pointwise, activations, comparisons, reductions, views, indexing, matmul, convolution, pooling,
    normalization, attention, creation, sorting, sampling, recurrent, resize, control,
    kernels,
)  # fmt: skip

LOWERINGS: dict[str, Lowering] = {
    target: lowering for room in _ROOMS for target, lowering in room.TABLE.items()
}
LOWERINGS.update(synonyms.synonyms(LOWERINGS))

_RANDOM = "a compiled program is a pure function: draw the random numbers outside, pass them in"
_DATA = "the size of the result depends on values: use a mask with torch.where, or a fixed size"

REMEDIES: dict[str, str] = {
    "aten.rand": _RANDOM,
    "aten.normal": _RANDOM,
    "aten.bernoulli": _RANDOM,
    "aten.multinomial": _RANDOM,
    "aten.uniform": _RANDOM,
    "aten.nonzero": _DATA,
    "aten.masked_select": _DATA,
    "aten.unique": _DATA,
    "aten._unique": _DATA,
    "transformers.grouped_mm": "load the model with experts_implementation='batched_mm'",
    "aten.item": "keep the value a tensor: .item() makes the program depend on it",
    "aten._local_scalar_dense": "keep the value a tensor: .item() makes the program depend on it",
}
"""What a user can do about operators that have no lowering, by the start of their name."""

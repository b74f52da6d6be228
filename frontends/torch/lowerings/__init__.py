"""How each operator of PyTorch is said in HLO: one room per family, one table of all."""

from __future__ import annotations

from ..context import Lowering
from . import (
    activations,
    attention,
    bags,
    collectives,
    comparisons,
    control,
    convolution,
    creation,
    data_parts,
    data_sizes,
    diagonals,
    flexible,
    fourier,
    gradients,
    indexing,
    kernels,
    linear_algebra,
    matmul,
    normalization,
    padding,
    pointwise,
    pooling,
    quantized,
    recurrent,
    reductions,
    resize,
    running,
    sampling,
    scatters,
    shardings,
    sorting,
    stacking,
    statistics,
    strided,
    synonyms,
    views,
)  # fmt: skip

_ROOMS = (
    pointwise, activations, comparisons, reductions, running, views, strided, diagonals,
    padding, stacking, indexing, scatters,
    matmul, convolution, pooling, normalization, attention, creation, sorting, statistics, sampling,
    recurrent, resize, control, kernels, bags, flexible, linear_algebra, fourier, gradients,
    quantized, collectives, shardings, data_sizes, data_parts,
)  # fmt: skip

LOWERINGS: dict[str, Lowering] = {
    target: lowering for room in _ROOMS for target, lowering in room.TABLE.items()
}
LOWERINGS.update(synonyms.synonyms(LOWERINGS))

_RANDOM = "a compiled program is a pure function: draw the random numbers outside, pass them in"
DATA = "the size of the result depends on values: use a mask with torch.where, or a fixed size"

_FAST = "call torch.backends.mha.set_fastpath_enabled(False) first"

REMEDIES: dict[str, str] = {
    "aten._native_multi_head_attention": _FAST,
    "aten._transformer_encoder_layer_fwd": _FAST,
    "aten.rand": _RANDOM,
    "aten.normal": _RANDOM,
    "aten.bernoulli": _RANDOM,
    "aten.multinomial": _RANDOM,
    "aten.uniform": _RANDOM,
}
"""What a user can do about operators that have no lowering, by the start of their name."""

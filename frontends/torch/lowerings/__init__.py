"""How each operator of PyTorch is said in HLO: one room per family, one table of all.

In: a node's operands and constants. Out: operations at the builder's end. Imported by
`frontends/torch`.
"""

from __future__ import annotations

from ..context import Lowering
from . import (
    activations,
    attention,
    bags,
    bessel,
    class_losses,
    collectives,
    comparisons,
    control,
    convolution,
    creation,
    data_parts,
    data_sizes,
    diagonals,
    flexible,
    floats,
    fourier,
    gradients,
    grids,
    incomplete_gamma,
    indefinite,
    indexing,
    integers,
    integrals,
    kernels,
    linear_algebra,
    linear_systems,
    losses,
    matmul,
    matrix_functions,
    matrix_norms,
    normalization,
    padding,
    pointwise,
    polynomials,
    pooling,
    quantized,
    random,
    random_counts,
    recurrent,
    reductions,
    resize,
    running,
    sampling,
    scatters,
    shardings,
    sorting,
    special,
    spectrograms,
    stacking,
    statistics,
    strided,
    synonyms,
    views,
    window_gradients,
)  # fmt: skip

_ROOMS = (
    pointwise, activations, comparisons, reductions, running, views, strided, diagonals,
    padding, stacking, indexing, scatters, matmul, convolution, pooling, normalization, attention,
    creation, sorting, statistics, sampling, recurrent, resize, control, kernels, bags, flexible,
    linear_algebra, linear_systems, matrix_functions, matrix_norms, fourier, spectrograms,
    gradients, quantized, collectives, shardings, data_sizes, data_parts, random, random_counts,
    grids, window_gradients, floats, integers, special, bessel, incomplete_gamma, polynomials,
    losses, class_losses, integrals, indefinite,
)  # fmt: skip

LOWERINGS: dict[str, Lowering] = {
    target: lowering for room in _ROOMS for target, lowering in room.TABLE.items()
}
LOWERINGS.update(synonyms.synonyms(LOWERINGS))

DATA = "the size of the result depends on values: use a mask with torch.where, or a fixed size"

_FAST = "call torch.backends.mha.set_fastpath_enabled(False) first"

DENSE = (
    "programs have dense tensors alone: give .to_dense(), or positions and values to "
    "torch.index_select and scatter_add"
)

REMEDIES: dict[str, str] = {
    **dict.fromkeys(
        ("aten._sparse", "aten._to_sparse", "aten._to_dense", "aten.sparse_", "aten.to_sparse",
         "aten._coalesce", "aten.coalesce"), DENSE,
    ),
    "aten._native_multi_head_attention": _FAST,
    "aten._transformer_encoder_layer_fwd": _FAST,
}  # fmt: skip
"""What a user can do about operators that have no lowering, by the start of their name."""

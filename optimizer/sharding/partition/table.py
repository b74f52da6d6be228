"""Who lowers which operation; those that are not named are the same on blocks (`lower_local`)."""

from __future__ import annotations

from . import (
    along,
    control,
    local,
    positions,
    reductions,
    scattering,
    selecting,
    sorting,
    sources,
    windows,
)
from .partitioner import Lowering

LOWERINGS: dict[str, Lowering] = {
    "constant": sources.lower_constant,
    "weight": sources.lower_weight,
    "iota": sources.lower_iota,
    "dynamic_iota": sources.lower_iota,
    "rng": sources.lower_random,
    "rng_bit_generator": sources.lower_random,
    "broadcast": local.lower_broadcast,
    "slice": windows.lower_slice,
    "pad": windows.lower_pad,
    "reverse": windows.lower_reverse,
    "concatenate": windows.lower_concatenate,
    "reduce_window": along.lower_reduce_window,
    "chlo.top_k": along.lower_top_k,
    "sort": sorting.lower_sort,
    "select_and_scatter": selecting.lower_selection,
    "convolution": windows.lower_convolution,
    "reshape": local.lower_reshape,
    "dot_general": local.lower_product,
    "dot": local.lower_product,
    "einsum": local.lower_product,
    "unary_einsum": local.lower_product,
    "dynamic_slice": positions.lower_dynamic_slice,
    "dynamic_update_slice": positions.lower_dynamic_update_slice,
    "scatter": scattering.lower_scatter,
    "gather": positions.lower_gather,
    "dynamic_broadcast_in_dim": local.lower_dynamic_broadcast,
    "reduce": reductions.lower_reduce,
    "while": control.lower_control,
    "if": control.lower_control,
    "case": control.lower_control,
    "sdy.manual_computation": control.lower_manual,
    "sharding_constraint": control.lower_constraint,
    "sharding_group": control.lower_identity,
    "propagation_barrier": control.lower_identity,
}

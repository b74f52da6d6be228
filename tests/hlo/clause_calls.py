"""Calls that break clauses, of operations on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from girih.hlo.build import build_region
from girih.hlo.graph import Region
from girih.hlo.ops import DEFINITIONS
from girih.hlo.ops.elementwise import Binary, Unary
from girih.hlo.ops.functions import Broadcasting, IsInfinite, RealFunction
from girih.hlo.types import (
    C64,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    TOKEN,
    UI64,
    ElementType,
    QuantizedType,
    TensorType,
    TupleType,
)


class Call(NamedTuple):
    """A call that breaks a clause."""

    types: Sequence[Any]
    attributes: dict[str, Any] = {}  # noqa: RUF012
    results: Sequence[Any] | None = None
    regions: Callable[[], Sequence[Region]] = tuple


def t(*dims: Any, e: Any = F32) -> TensorType:
    return TensorType(dims, e)


S = t()
QUANTIZED = QuantizedType(I8, F32, None, (0.5,), (0,), -128, 127)


def body(*elements: ElementType, gives: int = 1) -> Callable[[], Sequence[Region]]:
    """A region over scalars that returns its first `gives` arguments."""
    types = [TensorType((), element) for element in elements]
    return lambda: (build_region(types, lambda b, *values: values[:gives]),)


ADD = body(F32, F32)


def predicate(count: int = 2) -> Region:
    types = [S] * count
    return build_region(types, lambda b, *v: [b.compare("GT", v[0], v[1])])


def constant_branch(*types: TensorType, takes: Sequence[TensorType] = ()) -> Region:
    return build_region(takes, lambda b, *values: [b.constant(0, kind) for kind in types])


def elementwise_rows() -> Iterator[tuple[str, Call]]:
    """The rows that share a room."""
    kinds = {"bool": I1, "int": I32, "float": F32, "complex": C64}
    for room in DEFINITIONS:
        if isinstance(room, (Unary, Binary)):
            illegal = next((e for kind, e in kinds.items() if kind not in room.kinds), TOKEN)
            operand = illegal if illegal is TOKEN else t(2, e=illegal)
            legal = next(e for kind, e in kinds.items() if kind in room.kinds)
            count = len(room.operands)
            yield f"{room.name}.C0", Call([operand] * count)
            if count == 2:
                yield f"{room.name}.C1", Call([t(2, e=legal), t(3, e=legal)])
        elif isinstance(room, (RealFunction, IsInfinite)):
            yield f"{room.name}.C0", Call([t(2, e=I32)])
        elif isinstance(room, Broadcasting):
            facts = {"comparison_direction": "LT"} if room.base == "compare" else {}
            yield f"{room.name}.C1", Call([t(2), t(3)], facts)


LT = {"comparison_direction": "LT"}
ROWS = {
    "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
    "index_vector_dim": 1, "slice_sizes": (1, 3),
}  # fmt: skip
GATHERED = [t(5, 3), t(2, 1, e=I32)]
DYNAMIC_ROWS = {key: value for key, value in ROWS.items() if key != "slice_sizes"}
SCATTER = {
    "update_window_dims": (1,), "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
}  # fmt: skip
SCATTERED = [t(5, 3), t(2, 1, e=I32), t(2, 3)]
DOT = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
CONV = {
    "input_batch_dimension": 0, "input_feature_dimension": 2, "input_spatial_dimensions": (1,),
    "kernel_input_feature_dimension": 1, "kernel_output_feature_dimension": 2,
    "kernel_spatial_dimensions": (0,), "output_batch_dimension": 0, "output_feature_dimension": 2,
    "output_spatial_dimensions": (1,),
}  # fmt: skip
IMAGE, KERNEL = t(2, 8, 4), t(3, 4, 6)
SOLVE = {"left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "TRANSPOSE"}
WINDOW = {"window_dimensions": (2, 2)}
NORM = {"epsilon": 0.5, "feature_index": 1}
RAGGED = {
    "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
    "lhs_ragged_dimensions": (0,), "rhs_group_dimensions": (0,),
}  # fmt: skip
PICK = {"window_dimensions": (2,), "window_strides": (2,)}


def select_and_scatter() -> Sequence[Region]:
    return (predicate(), *ADD())


CALLS: dict[str, Call] = {
    **dict(elementwise_rows()),
    # selection, conversion
    "compare.C1": Call([t(2), t(2, e=I32)], LT),
    "compare.C2": Call([t(2), t(3)], LT),
    "compare.C3": Call([t(2), t(2)], {**LT, "compare_type": "SIGNED"}),
    "compare.C4": Call([t(2), t(2)], {"comparison_direction": "LESS"}),
    "select.C0": Call([t(2), t(2), t(2)]),
    "select.C1": Call([t(3, e=I1), t(2), t(2)]),
    "select.C2": Call([t(2, e=I1), t(2), t(2, e=I32)]),
    "clamp.C1": Call([t(3), t(2), S]),
    "clamp.C2": Call([S, t(2), t(3)]),
    "clamp.C3": Call([S, t(2), t(e=I32)]),
    "convert.C1": Call([t(2)], {}, [t(3)]),
    "bitcast_convert.C1": Call([t(2)], {}, [t(2, e=I64)]),
    "bitcast_convert.C2": Call([t(2, e=C64)], {}, [t(2, e=F64)]),
    "reduce_precision.C2": Call([t(2)], {"exponent_bits": 0, "mantissa_bits": 3}),
    "reduce_precision.C3": Call([t(2)], {"exponent_bits": 3, "mantissa_bits": -1}),
    "reduce_precision.C4": Call([t(2, e=I32)], {"exponent_bits": 3, "mantissa_bits": 3}),
    "complex.C1": Call([t(2), t(2, e=F64)]),
    "complex.C2": Call([t(2, e=I32), t(2, e=I32)]),
    "real.C0": Call([t(2, e=I32)]),
    "imag.C0": Call([t(2, e=I32)]),
    "abs.C0": Call([t(2, e=I1)]),
    "uniform_quantize.C1": Call([t(2)], {}, [t(3, e=QUANTIZED)]),
    "uniform_quantize.C2": Call([t(2)], {}, [t(2)]),
    "uniform_dequantize.C1": Call([t(2)]),
    # shape
    "reshape.C1": Call([t(2)], {}, [t(2, e=I32)]),
    "reshape.C2": Call([t(2)], {}, [t(3)]),
    "transpose.C2": Call([t(2, 3)], {"permutation": (0, 0)}),
    "broadcast_in_dim.C1": Call([t(2)], {"broadcast_dimensions": (0,)}, [t(2, e=I32)]),
    "broadcast_in_dim.C2": Call([t(2)], {"broadcast_dimensions": ()}, [t(2)]),
    "broadcast_in_dim.C3": Call([t(2)], {"broadcast_dimensions": (1,)}, [t(2)]),
    "broadcast_in_dim.C4": Call([t(2, 2)], {"broadcast_dimensions": (0, 0)}, [t(2, 2)]),
    "broadcast_in_dim.C5": Call([t(2)], {"broadcast_dimensions": (0,)}, [t(3)]),
    "broadcast.C1": Call([t(2)], {"broadcast_sizes": (-1,)}),
    "concatenate.C1": Call([t(2), t(2, e=I32)], {"dimension": 0}),
    "concatenate.C2": Call([t(2, 3), t(2, 4)], {"dimension": 0}),
    "concatenate.C3": Call([], {"dimension": 0}),
    "concatenate.C4": Call([t(2)], {"dimension": 1}),
    "reverse.C2": Call([t(2)], {"dimensions": (0, 0)}),
    "reverse.C3": Call([t(2)], {"dimensions": (1,)}),
    "slice.C2": Call([t(2)], {"start_indices": (), "limit_indices": (1,), "strides": (1,)}),
    "slice.C3": Call([t(2)], {"start_indices": (0,), "limit_indices": (3,), "strides": (1,)}),
    "slice.C4": Call([t(2)], {"start_indices": (0,), "limit_indices": (2,), "strides": (0,)}),
    "pad.C1": Call([t(2), t(1)], dict.fromkeys(("edge_padding_low", "edge_padding_high",
                                                "interior_padding"), (0,))),
    "pad.C2": Call([t(2), S], {"edge_padding_low": (0,), "edge_padding_high": (0,),
                               "interior_padding": ()}),
    "pad.C3": Call([t(2), S], {"edge_padding_low": (0,), "edge_padding_high": (0,),
                               "interior_padding": (-1,)}),
    "pad.C4": Call([t(2), S], {"edge_padding_low": (-3,), "edge_padding_high": (0,),
                               "interior_padding": (0,)}),
    "iota.C1": Call([], {"iota_dimension": 1}, [t(2)]),
    "dynamic_slice.C2": Call([t(2), t(e=I32)], {"slice_sizes": (1, 1)}),
    "dynamic_slice.C3": Call([t(2), S], {"slice_sizes": (1,)}),
    "dynamic_slice.C4": Call([t(2), t(e=I32)], {"slice_sizes": (3,)}),
    "dynamic_update_slice.C2": Call([t(2), t(1, e=I32), t(e=I32)]),
    "dynamic_update_slice.C3": Call([t(2), t(1, 1), t(e=I32)]),
    "dynamic_update_slice.C4": Call([t(2), t(1)]),
    "dynamic_update_slice.C5": Call([t(2), t(1), S]),
    "dynamic_update_slice.C6": Call([t(2), t(3), t(e=I32)]),
    "get_dimension_size.C1": Call([t(2)], {"dimension": 1}),
    "set_dimension_size.C1": Call([t(2), t(e=I32)], {"dimension": 1}),
    "set_dimension_size.C2": Call([t(2), t(e=I64)], {"dimension": 0}),
    # gather, scatter
    "gather.C1": Call(GATHERED, {**ROWS, "offset_dims": (1, 2)}),
    "gather.C2": Call(GATHERED, {**ROWS, "index_vector_dim": 3}),
    "gather.C3": Call(GATHERED, {**ROWS, "start_index_map": (0, 1)}),
    "gather.C4": Call([t(5, 3, 2), t(2, 1, e=I32)],
                      {**ROWS, "offset_dims": (2, 1), "slice_sizes": (1, 3, 2)}),
    "gather.C6": Call([t(5, 3, 2), t(2, 1, e=I32)],
                      {**ROWS, "collapsed_slice_dims": (0, 0), "slice_sizes": (1, 3, 2)}),
    "gather.C7": Call([t(5, 3, 2), t(2, 1, e=I32)],
                      {**ROWS, "collapsed_slice_dims": (1, 0), "slice_sizes": (1, 1, 2)}),
    "gather.C8": Call(GATHERED, {**ROWS, "collapsed_slice_dims": (2,)}),
    "gather.C9": Call(GATHERED, {**ROWS, "slice_sizes": (2, 3)}),
    "gather.C15": Call([t(5, 3), t(4, 1, e=I32)], {
        **ROWS, "offset_dims": (1,), "collapsed_slice_dims": (), "start_index_map": (1,),
        "operand_batching_dims": (0,), "start_indices_batching_dims": (0,), "slice_sizes": (1, 3)}),
    "gather.C16": Call(GATHERED, {**ROWS, "start_index_map": (2,)}),
    "gather.C18": Call([t(5, 3), t(5, 1, e=I32)], {
        **ROWS, "collapsed_slice_dims": (), "operand_batching_dims": (0,)}),
    "gather.C19": Call([t(5, 3), t(5, 1, e=I32)], {
        **ROWS, "collapsed_slice_dims": (), "operand_batching_dims": (0,),
        "start_indices_batching_dims": (0,)}),
    "gather.C20": Call(GATHERED, {**ROWS, "slice_sizes": (1,)}),
    "gather.C21": Call(GATHERED, {**ROWS, "slice_sizes": (1, 4)}),
    "gather.C24": Call([t(5, 3), t(2, 1)], ROWS),
    "scatter.C0": Call([t(5, 3), t(2, 1, e=I32)], SCATTER, None, ADD),
    "scatter.C1": Call([t(5, 3), t(4, 3), t(2, 1, e=I32), t(2, 3), t(2, 3)], SCATTER, None,
                       body(F32, F32, F32, F32, gives=2)),
    "scatter.C2": Call(SCATTERED, {**SCATTER, "inserted_window_dims": ()}, None, ADD),
    "scatter.C3": Call([t(5, 3), t(5, 3), t(2, 1, e=I32), t(2, 3), t(1, 3)], SCATTER, None,
                       body(F32, F32, F32, F32, gives=2)),
    "scatter.C4": Call([t(5, 3), t(2, 1, e=I32), t(4, 3)], SCATTER, None, ADD),
    "scatter.C6": Call([t(5, 3), t(2, 1, e=I32), t(2, 3, e=I32)], SCATTER, None, ADD),
    "scatter.C7": Call([t(5, 3, 2), t(2, 1, e=I32), t(2, 3, 2)],
                       {**SCATTER, "update_window_dims": (2, 1)}, None, ADD),
    "scatter.C9": Call([t(5, 3, 2), t(2, 1, e=I32), t(2, 3)],
                       {**SCATTER, "inserted_window_dims": (0, 0)}, None, ADD),
    "scatter.C11": Call(SCATTERED, {**SCATTER, "inserted_window_dims": (2,)}, None, ADD),
    "scatter.C15": Call([t(5, 3), t(4, 3, 1, e=I32), t(4, 3)], {
        "update_window_dims": (), "inserted_window_dims": (1,), "input_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,),
        "index_vector_dim": 2}, None, ADD),
    "scatter.C16": Call(SCATTERED, {**SCATTER, "scatter_dims_to_operand_dims": (2,)}, None, ADD),
    "scatter.C19": Call(SCATTERED, {**SCATTER, "scatter_dims_to_operand_dims": ()}, None, ADD),
    "scatter.C22": Call(SCATTERED, {**SCATTER, "index_vector_dim": 3,
                                    "scatter_dims_to_operand_dims": (0,)}, None, ADD),
    "scatter.C23": Call(SCATTERED, SCATTER, None, body(F32)),
    "scatter.C24": Call([t(5, 3), t(2, 1), t(2, 3)], SCATTER, None, ADD),
    "torch_index_select.C1": Call([t(2), t(1, e=I32)], {"dim": 1}),
    "torch_index_select.C2": Call([t(2), t(1, e=I32)], {"dim": 0, "batch_dims": 1}),
    "torch_index_select.C3": Call([t(2), t(1)], {"dim": 0}),
    # bodies
    "reduce.C0": Call([t(2)], {"dimensions": (0,)}, None, ADD),
    "reduce.C1": Call([t(2), t(3), S, S], {"dimensions": (0,)}, None,
                      body(F32, F32, F32, F32, gives=2)),
    "reduce.C2": Call([t(2), t(e=I32)], {"dimensions": (0,)}, None, ADD),
    "reduce.C4": Call([t(2), S], {"dimensions": (1,)}, None, ADD),
    "reduce.C5": Call([t(2), S], {"dimensions": (0, 0)}, None, ADD),
    "reduce.C6": Call([t(2), S], {"dimensions": (0,)}, None, body(F32)),
    "reduce_window.C0": Call([t(2, 2)], WINDOW, None, ADD),
    "reduce_window.C2": Call([t(2, 2), t(2, 3), S, S], WINDOW, None,
                             body(F32, F32, F32, F32, gives=2)),
    "reduce_window.C3": Call([t(2, 2), t(1)], WINDOW, None, ADD),
    "reduce_window.C4": Call([t(2, 2), S], {"window_dimensions": (2,)}, None, ADD),
    "reduce_window.C5": Call([t(2, 2), S], {"window_dimensions": (2, 0)}, None, ADD),
    "reduce_window.C6": Call([t(2, 2), S], {**WINDOW, "window_strides": (1,)}, None, ADD),
    "reduce_window.C7": Call([t(2, 2), S], {**WINDOW, "window_strides": (1, 0)}, None, ADD),
    "reduce_window.C9": Call([t(2, 2), S], {**WINDOW, "base_dilations": (1, 0)}, None, ADD),
    "reduce_window.C11": Call([t(2, 2), S], {**WINDOW, "window_dilations": (1, 0)}, None, ADD),
    "reduce_window.C13": Call([t(2, 2), S], WINDOW, None, body(F32)),
    "select_and_scatter.C1": Call([t(4), t(2, e=I32), S], PICK, None, select_and_scatter),
    "select_and_scatter.C2": Call([t(4), t(3), S], PICK, None, select_and_scatter),
    "select_and_scatter.C3": Call([t(4), t(2), t(1)], PICK, None, select_and_scatter),
    "select_and_scatter.C4": Call([t(4), t(4), S], {"window_dimensions": (1, 1)}, None,
                                  select_and_scatter),
    "select_and_scatter.C5": Call([t(4), t(5), S], {"window_dimensions": (0,)}, None,
                                  select_and_scatter),
    "select_and_scatter.C9": Call([t(4), t(2), S], PICK, None, lambda: (*ADD(), *ADD())),
    "select_and_scatter.C10": Call(
        [t(4), t(2), S], PICK, None, lambda: (predicate(), *body(F32)())),
    "select_and_scatter.C7": Call([t(4), t(2), S], {**PICK, "window_strides": (-3,)}, None,
                                  select_and_scatter),
    "map.C1": Call([t(2), t(3)], {"dimensions": (0,)}, None, ADD),
    "map.C2": Call([], {"dimensions": ()}, None, ADD),
    "map.C3": Call([t(2)], {"dimensions": ()}, None, body(F32)),
    "map.C4": Call([t(2)], {"dimensions": (0,)}, None, ADD),
    "sort.C1": Call([], {}, None, lambda: (predicate(),)),
    "sort.C3": Call([t(2), t(3)], {}, None, lambda: (predicate(4),)),
    "sort.C4": Call([t(2)], {"dimension": 1}, None, lambda: (predicate(),)),
    "sort.C5": Call([t(2)], {"dimension": 0}, None, ADD),
    # contractions
    "dot_general.C1": Call([t(2, 3), t(3, 4)], {**DOT, "lhs_batching_dimensions": (0,)}),
    "dot_general.C2": Call([t(2, 3), t(3, 4)], {"lhs_contracting_dimensions": (1,)}),
    "dot_general.C3": Call([t(3, 3), t(3, 3)], {
        "lhs_contracting_dimensions": (1, 1), "rhs_contracting_dimensions": (0, 1)}),
    "dot_general.C4": Call([t(3, 3), t(3, 3)], {
        "lhs_contracting_dimensions": (0, 1), "rhs_contracting_dimensions": (0, 0)}),
    "dot_general.C5": Call([t(2, 3), t(3, 4)], {**DOT, "lhs_contracting_dimensions": (2,)}),
    "dot_general.C7": Call([t(2, 3), t(3, 4)], {**DOT, "rhs_contracting_dimensions": (2,)}),
    "dot_general.C9": Call([t(2, 3), t(4, 3)], {
        "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,)}),
    "dot_general.C10": Call([t(2, 3), t(4, 3)], DOT),
    "dot_general.C11": Call([t(2, 3), t(3, 4)], {**DOT, "precision_config": ("HIGH",)}),
    "dot.C1": Call([t(2, 3, 4), t(4)]),
    "dot.C2": Call([t(2, 3), t(4)]),
    "dot.C3": Call([t(2, 3), t(3)], {}, [t(2, e=I32)]),
    "convolution.C1": Call([IMAGE, t(3, 4)], CONV),
    "convolution.C2": Call([IMAGE, KERNEL], {**CONV, "window_strides": (1, 1)}),
    "convolution.C3": Call([IMAGE, KERNEL], {**CONV, "window_strides": (0,)}),
    "convolution.C6": Call([IMAGE, KERNEL], {**CONV, "lhs_dilation": (0,)}),
    "convolution.C8": Call([IMAGE, KERNEL], {**CONV, "rhs_dilation": (0,)}),
    "convolution.C10": Call([t(3, 8, 4), KERNEL], {**CONV, "batch_group_count": 2}),
    "convolution.C11": Call([IMAGE, KERNEL], {**CONV, "feature_group_count": 3}),
    "convolution.C13": Call([IMAGE, KERNEL], {**CONV, "input_feature_dimension": 1}),
    "convolution.C14": Call([IMAGE, t(3, 3, 6)], CONV),
    "convolution.C15": Call([IMAGE, t(3, 4, 5)], {**CONV, "batch_group_count": 2}),
    "convolution.C16": Call([IMAGE, t(3, 2, 5)], {**CONV, "feature_group_count": 2}),
    "convolution.C18": Call([IMAGE, KERNEL], {**CONV, "kernel_spatial_dimensions": (1,)}),
    "convolution.C20": Call([IMAGE, KERNEL], {**CONV, "output_batch_dimension": 1}),
    "convolution.C21": Call([t(2, 8, 0), t(3, 4, 6)], {**CONV, "feature_group_count": 0}),
    "convolution.C22": Call([IMAGE, KERNEL], {**CONV, "batch_group_count": 0}),
    "convolution.C23": Call([IMAGE, t(3, 2, 6)], {
        **CONV, "batch_group_count": 2, "feature_group_count": 2}),
    "convolution.C24": Call([IMAGE, KERNEL], {**CONV, "precision_config": ("HIGH",)}),
    # dynamic shapes
    "dynamic_reshape.C1": Call([t(2), t(1, e=I32)], {}, [t(2, e=I32)]),
    "dynamic_reshape.C3": Call([t(2), t(1)], {}, [t(2)]),
    "dynamic_reshape.C4": Call([t(2), t(2, e=I32)], {}, [t(2)]),
    "dynamic_broadcast_in_dim.C2": Call(
        [t(2), t(1, e=I32)], {"broadcast_dimensions": ()}, [t(2)]),
    "dynamic_broadcast_in_dim.C3": Call(
        [t(2), t(1, e=I32)], {"broadcast_dimensions": (1,)}, [t(2)]),
    "dynamic_broadcast_in_dim.C4": Call(
        [t(2, 2), t(2, e=I32)], {"broadcast_dimensions": (0, 0)}, [t(2, 2)]),
    "dynamic_broadcast_in_dim.C6": Call(
        [t(2), t(2, e=I32)], {"broadcast_dimensions": (0,)}, [t(2)]),
    "dynamic_broadcast_in_dim.C7": Call(
        [t(2), t(1, e=I32)],
        {"broadcast_dimensions": (0,), "known_expanding_dimensions": (0,),
         "known_nonexpanding_dimensions": (0,)}, [t(2)]),
    "dynamic_iota.C1": Call([t(1, e=I32)], {"iota_dimension": 1}, [t(2)]),
    "dynamic_iota.C2": Call([t(1)], {"iota_dimension": 0}, [t(2)]),
    "dynamic_pad.C1": Call([t(2), t(1), *[t(1, e=I32)] * 3], {}, [t(2)]),
    "dynamic_pad.C2": Call([t(2), S, *[t(2, e=I32)] * 3], {}, [t(2)]),
    "real_dynamic_slice.C2": Call([t(2), *[t(2, e=I32)] * 3], {}, [t(2)]),
    "dynamic_gather.C2": Call([*GATHERED, t(2, e=I32)], {**DYNAMIC_ROWS, "index_vector_dim": 3},
                              [t(2, 3)]),
    "dynamic_gather.C8": Call([*GATHERED, t(3, e=I32)], DYNAMIC_ROWS, [t(2, 3)]),
    "dynamic_conv.C1": Call([IMAGE, t(3, 4), t(1, 2, e=I32)], CONV, [t(2, 6, 6)]),
    "dynamic_conv.C2": Call([IMAGE, KERNEL, t(2, 2, e=I32)], CONV, [t(2, 6, 6)]),
    # control
    "fusion.C1": Call([t(2)], {"kind": "loop"}, None, body(F32)),
    "while.C1": Call([S], {}, None, lambda: (*ADD(), *ADD())),
    "while.C2": Call([S, S], {}, None, lambda: (predicate(), *ADD())),
    "if.C0": Call([S], {}, None, lambda: (constant_branch(S), constant_branch(S))),
    "if.C1": Call([t(e=I1)], {}, None, lambda: (constant_branch(S, takes=[S]), constant_branch(S))),
    "if.C2": Call([t(e=I1)], {}, None, lambda: (constant_branch(S), constant_branch(t(2)))),
    "case.C0": Call([S], {}, None, lambda: (constant_branch(S),)),
    "case.C1": Call([t(e=I32)]),
    "case.C2": Call([t(e=I32)], {}, None, lambda: (constant_branch(S, takes=[S]),)),
    "case.C3": Call([t(e=I32)], {}, None, lambda: (constant_branch(S), constant_branch(t(2)))),
    "composite.C1": Call([S], {"name": "", "decomposition": "f"}, [S]),
    "composite.C2": Call([S], {"name": "n", "decomposition": ""}, [S]),
    "get_tuple_element.C1": Call([TupleType([S])], {"index": 1}),
    "after_all.C1": Call([S]),
    "create_token.C1": Call([S]),
    # matrices, normalisation, random numbers
    "cholesky.C2": Call([t(2)], {}),
    "cholesky.C3": Call([t(2, 3)], {}),
    "cholesky.C4": Call([t(2, 2, e=I32)], {}),
    "triangular_solve.C1": Call([t(2, 2), t(2, 2, e=F64)], SOLVE),
    "triangular_solve.C2": Call([t(2, 2), t(1, 2, 2)], SOLVE),
    "triangular_solve.C3": Call([t(2, 2), t(3, 2)], SOLVE),
    "triangular_solve.C4": Call([t(2, 2), t(2, 2)], {**SOLVE, "transpose_a": "INVALID"}),
    "fft.C1": Call([t(4, e=C64)], {"fft_type": "FFT", "fft_length": (4, 4)}),
    "fft.C2": Call([t(4)], {"fft_type": "FFT", "fft_length": (4,)}),
    "fft.C3": Call([t(4, e=C64)], {"fft_type": "FFT", "fft_length": ()}),
    "fft.C5": Call([t(4, e=C64)], {"fft_type": "FFT", "fft_length": (3,)}),
    **{f"linalg.{name}.C1": Call([t(2, 2, e=I32)], facts) for name, facts in {
        "lu": {}, "qr": {}, "eigh": {}, "svd": {}, "eig": {}, "schur": {}, "tridiagonal": {},
        "hessenberg": {"low": 1, "high": 2},
    }.items()},
    **{f"linalg.{name}.C2": Call([t(2, 3)], {})
       for name in ("eigh", "eig", "schur", "tridiagonal")},
    "linalg.svd.C2": Call([t(2, 3)], {"algorithm": "jacobi"}),
    "linalg.hessenberg.C2": Call([t(2, 3)], {"low": 1, "high": 2}),
    "linalg.hessenberg.C3": Call([t(2, 2)], {"low": 1, "high": 3}),
    "linalg.qr_pivoted.C1": Call([t(2), t(2, e=I32)], {}),
    "linalg.qr_pivoted.C2": Call([t(2, 3), t(2, e=I32)], {}),
    "linalg.householder_product.C1": Call([t(3), t(2)], {}),
    "linalg.householder_product.C2": Call([t(2, 3), t(2)], {}),
    "linalg.householder_product.C3": Call([t(3, 2), t(2, e=F64)], {}),
    "linalg.householder_multiply.C1": Call([t(3), t(2), t(3, 3)], {}),
    "linalg.householder_multiply.C2": Call([t(3, 2), t(2), t(3, 3, e=F64)], {}),
    "linalg.householder_multiply.C3": Call([t(3, 2), t(2), t(2, 3)], {}),
    "linalg.tridiagonal_solve.C1": Call([t(3), t(2), t(3), t(3, 1)], {}),
    "linalg.tridiagonal_solve.C2": Call([t(3), t(3), t(3), t(2, 1)], {}),
    "linalg.pivots_to_permutation.C1": Call([t(3, e=I32)], {"size": 2}),
    "einsum.C1": Call([t(2, 3), t(2, 3)], {"einsum_config": "ab,bc->ac"}),
    "einsum.C2": Call([t(2, 3), t(3, 2, e=F64)], {"einsum_config": "ab,bc->ac"}),
    "unary_einsum.C1": Call([t(2, 3)], {"einsum_config": "aa->a"}),
    "chlo.broadcast_select.C1": Call([t(2, e=I1), t(2), t(2, e=F64)], {}),
    "chlo.broadcast_select.C2": Call([t(2, e=I1), t(2), t(3)], {}),
    "batch_norm_inference.C1": Call([t(2, 3), *[t(3)] * 4], {**NORM, "feature_index": 2}),
    "batch_norm_inference.C3": Call([t(2, 3), *[t(2)] * 4], NORM),
    "batch_norm_training.C1": Call([t(2, 3), *[t(3)] * 2], {**NORM, "feature_index": 2}),
    "batch_norm_training.C3": Call([t(2, 3), *[t(2)] * 2], NORM),
    "batch_norm_grad.C1": Call([t(2, 3), *[t(3)] * 3, t(2, 3)], {**NORM, "feature_index": 2}),
    "batch_norm_grad.C3": Call([t(2, 3), *[t(3)] * 3, t(3, 3)], NORM),
    "batch_norm_grad.C4": Call([t(2, 3), *[t(2)] * 3, t(2, 3)], NORM),
    "rng_bit_generator.C1": Call([t(2, e=UI64)], {"rng_algorithm": "X"}, [t(2, e=UI64), t(2)]),
    "rng_bit_generator.C2": Call([t(4, e=UI64)], {"rng_algorithm": "PHILOX"},
                                 [t(4, e=UI64), t(2)]),
    "rng_bit_generator.C3": Call([t(2, e=UI64)], {"rng_algorithm": "THREE_FRY"}, [t(2, e=UI64)]),
    "rng.C1": Call([S, t(e=I32), t(1, e=I64)], {"rng_distribution": "UNIFORM"}, [t(2)]),
    "rng.C2": Call([t(e=I32), t(e=I32), t(1, e=I64)], {"rng_distribution": "NORMAL"},
                   [t(2, e=I32)]),
    "rng.C3": Call([S, S, t(1, e=I64)], {"rng_distribution": "X"}, [t(2)]),
    "rng.C4": Call([S, S, t(2, e=I64)], {"rng_distribution": "UNIFORM"}, [t(2)]),
    # chlo
    "chlo.square.C0": Call([t(2, e=I32)]),
    "chlo.conj.C0": Call([t(2, e=I32)]),
    "chlo.next_after.C1": Call([t(2), t(2, e=F64)]),
    "chlo.mulhi.C1": Call([t(2), t(2)]),
    "chlo.zeta.C1": Call([t(2), t(3)]),
    "chlo.polygamma.C1": Call([t(2), t(3)]),
    "chlo.scan.C1": Call([t(4), S], {"dimension": 0}, None, body(F32)),
    "chlo.scan.C2": Call([t(4), S], {"dimension": 1}, None, body(F32, F32, gives=2)),
    "chlo.ragged_dot.C1": Call([t(4, 3), t(2, 3, 5), t(2, e=I32)], {
        **RAGGED, "lhs_ragged_dimensions": ()}),
    "chlo.ragged_dot.C2": Call([t(4, 3), t(2, 3, 5), t(2, e=I32)], {
        **RAGGED, "rhs_group_dimensions": ()}),
    "chlo.ragged_dot.C3": Call([t(4, 3), t(2, 3, 5), t(3, e=I32)], RAGGED),
    "chlo.top_k.C1": Call([S], {"k": 0}),
    "chlo.top_k.C2": Call([t(2)], {"k": 3}),
}  # fmt: skip

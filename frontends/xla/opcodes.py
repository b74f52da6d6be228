"""What each HLO opcode is in StableHLO: handlers that append the ops and return the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import tree
from .calls import CALLS
from .collectives import COLLECTIVES
from .contractions import CONTRACTIONS
from .lowering import Handler, XlaLowering
from .memory import MEMORY
from .program import Instruction, Shape, WindowDimension, XlaProgram, check_sizes

_SAME_NAME = (
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "complex", "convert", "cosine",
    "count-leading-zeros", "divide", "exponential", "exponential-minus-one", "floor", "imag",
    "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate",
    "not", "or", "popcnt", "power", "real", "remainder", "round-nearest-afz",
    "round-nearest-even", "rsqrt", "select", "shift-left", "shift-right-arithmetic",
    "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
    "bitcast-convert", "reshape", "after-all", "partition-id", "replica-id",
)  # fmt: skip
_CHLO = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "mulhi", "sinh")

SIMPLE = {
    **{opcode: "stablehlo." + opcode.replace("-", "_") for opcode in _SAME_NAME},
    **{opcode: f"chlo.{opcode}" for opcode in _CHLO},
    "opt-barrier": "stablehlo.optimization_barrier",
}
"""Opcodes that are one op of the same operands, without attributes."""


def _named(
    name: str, attributes: Callable[[Instruction], dict[str, Any]], bodies: int = 0
) -> Handler:
    """One op of the same operands, with attributes and regions."""

    def handler(
        lowering: XlaLowering, instruction: Instruction, operands: list[Any]
    ) -> tree.TreeValue:
        regions = [lowering.region(instruction, number) for number in range(bodies)]
        kind = lowering.type(instruction.shape)
        return lowering.op(name, operands, kind, attributes(instruction), regions)

    return handler


def _dimensions(instruction: Instruction) -> tuple[int, ...]:
    return tuple(instruction.attributes.get("dimensions", ()))


def _first_dimension(key: str) -> Callable[[Instruction], dict[str, Any]]:
    def attributes(instruction: Instruction) -> dict[str, Any]:
        dims = _dimensions(instruction)
        return {key: dims[0] if dims else 0}

    return attributes


def _all_dimensions(key: str) -> Callable[[Instruction], dict[str, Any]]:
    return lambda instruction: {key: _dimensions(instruction)}


def _compare(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    facts = instruction.attributes
    attributes = {"comparison_direction": facts.get("direction", "")}
    if facts.get("type") == "TOTALORDER":
        attributes["compare_type"] = "TOTALORDER"
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.compare", operands, kind, attributes)


def _constant(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    literal = instruction.attributes.get("literal")
    if literal is None:
        return lowering.refuse(instruction, "has no value", "dump the module with its constants")
    return _literal(lowering, instruction, literal, instruction.shape)


def _literal(
    lowering: XlaLowering, instruction: Instruction, literal: Any, shape: Shape
) -> tree.TreeValue:
    if shape.is_tuple:
        if not isinstance(literal, tuple) or len(literal) != len(shape.members):
            raise lowering.fail(instruction, f"its value is no {shape}")
        pairs = zip(literal, shape.members, strict=True)
        members = [_literal(lowering, instruction, *pair) for pair in pairs]
        return lowering.op("stablehlo.tuple", members, lowering.type(shape))
    if isinstance(literal, tuple) or literal.shape != shape.dims:
        raise lowering.fail(instruction, f"its value is no {shape}")
    return lowering.constant(literal, shape)


def _element(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    source, index = instruction.operands[0].shape, instruction.attributes.get("index", 0)
    if not 0 <= index < len(source.members) or not source.members[index].same(instruction.shape):
        raise lowering.fail(instruction, f"element {index} of {source} is no {instruction.shape}")
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.get_tuple_element", operands, kind, {"index": index})


def _tuple(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    members = instruction.shape.members
    shapes = [operand.shape for operand in instruction.operands]
    if len(shapes) != len(members) or not all(map(Shape.same, shapes, members)):
        raise lowering.fail(instruction, f"its members make no {instruction.shape}")
    return lowering.op("stablehlo.tuple", operands, lowering.type(instruction.shape))


def _iota(instruction: Instruction) -> dict[str, Any]:
    dims = _dimensions(instruction)
    return {"iota_dimension": dims[0] if dims else 0}


def _slice(instruction: Instruction) -> dict[str, Any]:
    ranges = instruction.attributes.get("slice", ())
    return {
        "start_indices": tuple(start for start, _, _ in ranges),
        "limit_indices": tuple(limit for _, limit, _ in ranges),
        "strides": tuple(stride for _, _, stride in ranges),
    }


def _pad(instruction: Instruction) -> dict[str, Any]:
    padding = instruction.attributes.get("padding", ())
    return {
        "edge_padding_low": tuple(low for low, _, _ in padding),
        "edge_padding_high": tuple(high for _, high, _ in padding),
        "interior_padding": tuple(interior for _, _, interior in padding),
    }


def starts(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any], first: int
) -> list[tree.TreeValue]:
    """Start indices from operand `first` on, as scalars; older files have one vector of them."""
    shapes = [operand.shape for operand in instruction.operands[first:]]
    if len(shapes) != 1 or len(shapes[0].dims) != 1:
        return operands[first:]
    element = lowering.element(shapes[0])
    if element is None:
        return operands[first:]
    found: list[tree.TreeValue] = []
    for number in range(shapes[0].dims[0]):
        facts = {"start_indices": (number,), "limit_indices": (number + 1,), "strides": (1,)}
        part = tree.Tensor((1,), element)
        one = lowering.op("stablehlo.slice", operands[first:], part, facts)
        found.append(lowering.op("stablehlo.reshape", [one], tree.Tensor((), element)))
    return found


def _dynamic_slice(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    indices = starts(lowering, instruction, operands, 1)
    facts = {"slice_sizes": instruction.attributes.get("dynamic_slice_sizes", ())}
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.dynamic_slice", [operands[0], *indices], kind, facts)


def _dynamic_update(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    indices = starts(lowering, instruction, operands, 2)
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.dynamic_update_slice", [*operands[:2], *indices], kind)


def _gather(instruction: Instruction) -> dict[str, Any]:
    keys = (
        "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
        "start_indices_batching_dims", "slice_sizes",
    )  # fmt: skip
    return _picked(instruction, keys)


def _scatter(instruction: Instruction) -> dict[str, Any]:
    keys = (
        "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims",
        "input_batching_dims", "scatter_indices_batching_dims",
    )  # fmt: skip
    unique = instruction.attributes.get("unique_indices", False)
    return {**_picked(instruction, keys), "unique_indices": unique}


def _picked(instruction: Instruction, keys: Sequence[str]) -> dict[str, Any]:
    facts = instruction.attributes
    return {
        **{key: tuple(facts.get(key, ())) for key in keys},
        "index_vector_dim": facts.get("index_vector_dim", 0),
        "indices_are_sorted": facts.get("indices_are_sorted", False),
    }


def window_attributes(window: Sequence[WindowDimension]) -> dict[str, Any]:
    """The attributes of windows that reduce_window and select_and_scatter share."""
    return {
        "window_dimensions": tuple(dim.size for dim in window),
        "window_strides": tuple(dim.stride for dim in window),
        "padding": tuple((dim.low, dim.high) for dim in window),
    }


def _reduce_window(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    window = instruction.attributes.get("window", ())
    if any(dim.reversal for dim in window):
        return lowering.refuse(instruction, "its window is reversed")
    facts = {
        **window_attributes(window),
        "base_dilations": tuple(dim.base_dilation for dim in window),
        "window_dilations": tuple(dim.window_dilation for dim in window),
    }
    kind = lowering.type(instruction.shape)
    body = lowering.region(instruction, 0)
    return lowering.op("stablehlo.reduce_window", operands, kind, facts, [body])


def _select_and_scatter(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    window = instruction.attributes.get("window", ())
    if any(dim.reversal or dim.base_dilation > 1 or dim.window_dilation > 1 for dim in window):
        return lowering.refuse(instruction, "its window is reversed or dilated")
    regions = [lowering.region(instruction, number) for number in range(2)]
    kind = lowering.type(instruction.shape)
    facts = window_attributes(window)
    return lowering.op("stablehlo.select_and_scatter", operands, kind, facts, regions)


def _sort(instruction: Instruction) -> dict[str, Any]:
    dims = _dimensions(instruction)
    stable = instruction.attributes.get("is_stable", False)
    return {"dimension": dims[0] if dims else 0, "is_stable": stable}


def _map(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    dims = _dimensions(instruction) or tuple(range(len(instruction.shape.dims)))
    kind = lowering.type(instruction.shape)
    body = lowering.region(instruction, 0)
    return lowering.op("stablehlo.map", operands, kind, {"dimensions": dims}, [body])


def _scan(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    facts = instruction.attributes
    carries = facts.get("num_carries", 0)
    body = lowering.called(instruction, 0)
    ranks = [len(operand.shape.dims) for operand in instruction.operands]
    taken = [len(parameter.shape.dims) for parameter in body.parameters]
    inputs = len(ranks) - carries
    wanted = [rank - 1 for rank in ranks[:inputs]] + ranks[inputs:]
    if taken != wanted or carries < 1 or inputs < 1:
        return lowering.refuse(instruction, "its operands are not slices, then carries")
    attributes = {
        "dimension": (_dimensions(instruction) or (0,))[0],
        "is_reverse": facts.get("is_reverse", False),
        "is_associative": facts.get("is_associative", False),
    }
    kind = lowering.type(instruction.shape)
    region = lowering.region(instruction, 0)
    return lowering.op("chlo.scan", operands, kind, attributes, [region])


def _top_k(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    """chlo.top_k; the k smallest are the front of a sorted row."""
    facts, kind = instruction.attributes, lowering.type(instruction.shape)
    if facts.get("largest", False):
        return lowering.op("chlo.top_k", operands, kind, {"k": facts.get("k", 0)})
    shape = instruction.operands[0].shape
    element = lowering.element(shape)
    members = kind.types if isinstance(kind, tree.Tuple) else ()
    if not shape.dims or element is None or len(members) != 2:
        raise lowering.fail(instruction, f"has no smallest elements of {shape}")
    last = len(shape.dims) - 1
    whole, numbers = tree.Tensor(shape.dims, element), tree.Tensor(shape.dims, "i32")
    iota = lowering.op("stablehlo.iota", (), numbers, {"iota_dimension": last})
    scalars = [tree.Tensor((), name) for name in (element, element, "i32", "i32")]
    body = tree.Region([tree.TreeValue(scalar) for scalar in scalars])
    compared = {"comparison_direction": "LT"}
    if shape.element.startswith(("f", "bf")):
        compared["compare_type"] = "TOTALORDER"
    less = tree.TreeValue(tree.Tensor((), "i1"))
    body.operations = [
        tree.Operation("stablehlo.compare", body.arguments[:2], [less], dict(compared)),
        tree.Operation("stablehlo.return", [less]),
    ]
    rows = lowering.op(
        "stablehlo.sort",
        [*operands, iota],
        tree.Tuple((whole, numbers)),
        {"dimension": last, "is_stable": True},
        [body],
    )
    parts: list[tree.TreeValue] = []
    cut = {
        "start_indices": (0,) * len(shape.dims),
        "limit_indices": (*shape.dims[:-1], facts.get("k", 0)),
        "strides": (1,) * len(shape.dims),
    }
    for index, (full, member) in enumerate(zip((whole, numbers), members, strict=True)):
        row = lowering.op("stablehlo.get_tuple_element", [rows], full, {"index": index})
        parts.append(lowering.op("stablehlo.slice", [row], member, cut))
    return lowering.op("stablehlo.tuple", parts, kind)


def _random(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    dims = instruction.shape.dims
    shape = lowering.constant(np.array(dims, np.int64), Shape("s64", (len(dims),)))
    name = instruction.attributes.get("distribution", "")
    facts = {"rng_distribution": name.removeprefix("rng_").upper()}
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.rng", [*operands, shape], kind, facts)


def _random_bits(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    if len(instruction.shape.members) != 2:
        return lowering.refuse(instruction, "it does not give the new state")
    name = instruction.attributes.get("algorithm", "rng_default")
    facts = {"rng_algorithm": name.removeprefix("rng_").upper()}
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.rng_bit_generator", operands, kind, facts)


def _state(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    return lowering.refuse(
        instruction,
        "it reads a state outside the program",
        "pass keys to the random functions, or dump the module before optimization",
    )


def _batch_norm(instruction: Instruction) -> dict[str, Any]:
    facts = instruction.attributes
    return {
        "epsilon": facts.get("epsilon", 0.0),
        "feature_index": facts.get("feature_index", 0),
    }


def _precision_bits(instruction: Instruction) -> dict[str, Any]:
    facts = instruction.attributes
    return {key: facts.get(key, 0) for key in ("exponent_bits", "mantissa_bits")}


def _triangular(instruction: Instruction) -> dict[str, Any]:
    facts = instruction.attributes
    flags = {key: facts.get(key, False) for key in ("left_side", "lower", "unit_diagonal")}
    return {**flags, "transpose_a": facts.get("transpose_a", "")}


def _fft(instruction: Instruction) -> dict[str, Any]:
    facts = instruction.attributes
    return {
        "fft_type": facts.get("fft_type", "FFT"),
        "fft_length": tuple(facts.get("fft_length", ())),
    }


def _dynamic_reshape(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    if instruction.shape.dynamic:
        return lowering.refuse(
            instruction, "its sizes are only known at run time", "compile it for fixed sizes"
        )
    return lowering.op("stablehlo.reshape", operands[:1], lowering.type(instruction.shape))


HANDLERS: dict[str, Handler] = {
    **CALLS,
    **COLLECTIVES,
    **CONTRACTIONS,
    **MEMORY,
    "compare": _compare,
    "constant": _constant,
    "get-tuple-element": _element,
    "broadcast": _named("stablehlo.broadcast_in_dim", _all_dimensions("broadcast_dimensions")),
    "transpose": _named("stablehlo.transpose", _all_dimensions("permutation")),
    "reverse": _named("stablehlo.reverse", _all_dimensions("dimensions")),
    "concatenate": _named("stablehlo.concatenate", _first_dimension("dimension")),
    "iota": _named("stablehlo.iota", _iota),
    "slice": _named("stablehlo.slice", _slice),
    "pad": _named("stablehlo.pad", _pad),
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update,
    "dynamic-reshape": _dynamic_reshape,
    "gather": _named("stablehlo.gather", _gather),
    "scatter": _named("stablehlo.scatter", _scatter, 1),
    "reduce": _named("stablehlo.reduce", _all_dimensions("dimensions"), 1),
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "sort": _named("stablehlo.sort", _sort, 1),
    "map": _map,
    "scan": _scan,
    "topk": _top_k,
    "rng": _random,
    "rng-bit-generator": _random_bits,
    "rng-get-and-update-state": _state,
    "batch-norm-training": _named("stablehlo.batch_norm_training", _batch_norm),
    "batch-norm-inference": _named("stablehlo.batch_norm_inference", _batch_norm),
    "batch-norm-grad": _named("stablehlo.batch_norm_grad", _batch_norm),
    "reduce-precision": _named("stablehlo.reduce_precision", _precision_bits),
    "triangular-solve": _named("stablehlo.triangular_solve", _triangular),
    "cholesky": _named("stablehlo.cholesky", lambda i: {"lower": i.attributes.get("lower", False)}),
    "fft": _named("stablehlo.fft", _fft),
    "get-dimension-size": _named("stablehlo.get_dimension_size", _first_dimension("dimension")),
    "set-dimension-size": _named("stablehlo.set_dimension_size", _first_dimension("dimension")),
    "tuple": _tuple,
}


def lower(program: XlaProgram) -> tree.Document:
    """The op tree of the program; UserError where its parts do not fit each other."""
    check_sizes(program)
    return XlaLowering(program, SIMPLE, HANDLERS).document()

"""Products: dot, ragged-dot, scaled-dot, convolution."""

from __future__ import annotations

from typing import Any

from .. import tree
from .lowering import Handler, XlaLowering
from .program import Instruction, Shape

# The part of a dot algorithm's name that says what the operands are -> their type in StableHLO.
_ALGORITHM_TYPES = {"f8": "f8E5M2", "f16": "f16", "bf16": "bf16", "tf32": "tf32", "f32": "f32"}
_ALGORITHM_TYPES["f64"] = "f64"


def algorithm_attributes(name: str) -> dict[str, Any]:
    """StableHLO's seven attributes for `dot_bf16_bf16_f32_x3` and the like; {} for none."""
    words = [word for word in name.removeprefix("dot_").split("_") if word != "any"]
    if words == ["unset"] or not name:
        return {}
    imprecise = words[-2:] == ["fast", "accum"]
    if imprecise:
        words = words[:-2]
    passes = 1
    if words[-1][:1] == "x" and words[-1][1:].isdecimal():
        passes = int(words.pop()[1:])
    if len(words) != 3 or not all(word in _ALGORITHM_TYPES for word in words):
        raise ValueError(f"the algorithm {name} is not known")
    left, right, sums = (_ALGORITHM_TYPES[word] for word in words)
    return {
        "lhs_precision_type": left,
        "rhs_precision_type": right,
        "accumulation_type": sums,
        "lhs_component_count": 1,
        "rhs_component_count": 1,
        "num_primitive_operations": passes,
        "allow_imprecise_accumulation": imprecise,
    }


def _dot_attributes(instruction: Instruction) -> dict[str, Any]:
    facts = instruction.attributes
    attributes: dict[str, Any] = {
        "lhs_batching_dimensions": tuple(facts.get("lhs_batch_dims", ())),
        "rhs_batching_dimensions": tuple(facts.get("rhs_batch_dims", ())),
        "lhs_contracting_dimensions": tuple(facts.get("lhs_contracting_dims", ())),
        "rhs_contracting_dimensions": tuple(facts.get("rhs_contracting_dims", ())),
    }
    precision = facts.get("operand_precision", ())
    if precision:
        attributes["precision_config"] = tuple(word.upper() for word in precision)[:2]
    return attributes


def _dot(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    attributes = _dot_attributes(instruction)
    try:
        attributes |= algorithm_attributes(instruction.attributes.get("algorithm", ""))
    except ValueError as error:
        return lowering.refuse(instruction, str(error))
    if len(operands) != 2:
        return lowering.refuse(instruction, "sparse operands are not supported")
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.dot_general", operands, kind, attributes)


def _ragged_dot(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    facts = instruction.attributes
    attributes = {
        **_dot_attributes(instruction),
        "lhs_ragged_dimensions": tuple(facts.get("lhs_ragged_dims", ())),
        "rhs_group_dimensions": tuple(facts.get("rhs_group_dims", ())),
    }
    kind = lowering.type(instruction.shape)
    return lowering.op("chlo.ragged_dot", operands, kind, attributes)


def _scaled_dot(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """dot(lhs * scale, rhs * scale), a scale spread over blocks of its operand."""
    if len(operands) != 4:
        raise lowering.fail(instruction, "needs two operands and their scales")
    sides: list[tree.TreeValue] = []
    for number in range(2):
        shape = instruction.operands[number].shape
        scale = instruction.operands[number + 2].shape
        if not scale.dims:  # a side without scales has a scalar in their place
            sides.append(operands[number])
            continue
        target = _common_type(shape.element, scale.element)
        if len(scale.dims) != len(shape.dims) or any(
            part < 1 or size % part for size, part in zip(shape.dims, scale.dims, strict=True)
        ):
            raise lowering.fail(instruction, f"a scale {scale} does not divide {shape}")
        kind = lowering.type(Shape(target, shape.dims))
        value = lowering.op("stablehlo.convert", [operands[number]], kind)
        small = lowering.type(Shape(target, scale.dims))
        factor = lowering.op("stablehlo.convert", [operands[number + 2]], small)
        dims: list[int] = []
        places: list[int] = []
        for size, part in zip(shape.dims, scale.dims, strict=True):
            places.append(len(dims))
            dims += [part] if part == size else [part, size // part]
        wide = lowering.type(Shape(target, tuple(dims)))
        mapped = {"broadcast_dimensions": tuple(places)}
        factor = lowering.op("stablehlo.broadcast_in_dim", [factor], wide, mapped)
        factor = lowering.op("stablehlo.reshape", [factor], kind)
        sides.append(lowering.op("stablehlo.multiply", [value, factor], kind))
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.dot_general", sides, kind, _dot_attributes(instruction))


_WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def _common_type(first: str, second: str) -> str:
    """The type of an operand times its scale: bf16 at least, else the wider one."""
    one, other = _WIDTHS.get(first, 8), _WIDTHS.get(second, 8)
    if max(one, other) < 16:
        return "bf16"
    if one == other:
        return first if first == second else "f32"
    return first if one > other else second


def _convolution(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    facts = instruction.attributes
    labels = facts.get("dim_labels")
    if labels is None:
        raise lowering.fail(instruction, "its dimensions are not named")
    window = facts.get("window", ())
    attributes: dict[str, Any] = {
        "input_batch_dimension": labels.input[0],
        "input_feature_dimension": labels.input[1],
        "input_spatial_dimensions": labels.input[2:],
        "kernel_input_feature_dimension": labels.kernel[0],
        "kernel_output_feature_dimension": labels.kernel[1],
        "kernel_spatial_dimensions": labels.kernel[2:],
        "output_batch_dimension": labels.output[0],
        "output_feature_dimension": labels.output[1],
        "output_spatial_dimensions": labels.output[2:],
        "window_strides": tuple(dim.stride for dim in window),
        "padding": tuple((dim.low, dim.high) for dim in window),
        "lhs_dilation": tuple(dim.base_dilation for dim in window),
        "rhs_dilation": tuple(dim.window_dilation for dim in window),
        "window_reversal": tuple(dim.reversal for dim in window),
        "feature_group_count": facts.get("feature_group_count", 1) or 1,
        "batch_group_count": facts.get("batch_group_count", 1) or 1,
    }
    kernel = instruction.operands[1].shape if len(operands) == 2 else Shape("tuple")
    spatial = [kernel.dims[dim] for dim in labels.kernel[2:] if 0 <= dim < len(kernel.dims)]
    if [dim.size for dim in window] != spatial:
        raise lowering.fail(instruction, "its window is not as large as its kernel")
    precision = facts.get("operand_precision", ())
    if precision:
        attributes["precision_config"] = tuple(word.upper() for word in precision)
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.convolution", operands, kind, attributes)


CONTRACTIONS: dict[str, Handler] = {
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "scaled-dot": _scaled_dot,
    "convolution": _convolution,
}

"""Opcodes that run other computations, or code outside the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...hlo.errors import UserError
from .. import tree
from ..stablehlo.text import parse_attribute
from .lowering import Handler, XlaLowering
from .messages import API_VERSIONS
from .program import Computation, Instruction, Shape

_MOVES = ("MoveToHost", "MoveToDevice")
"""Custom calls that say in which memory a value lies."""

_TYPED = API_VERSIONS.index("API_VERSION_TYPED_FFI")


def _shapes(instruction: Instruction) -> list[Shape]:
    return [operand.shape for operand in instruction.operands]


def _call(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    computation = _checked(lowering, instruction, instruction.shape)
    if instruction.attributes.get("is_composite"):
        return _composite(lowering, instruction, operands, computation)
    facts = {"callee": lowering.function(computation)}
    return lowering.op("func.call", operands, lowering.type(instruction.shape), facts)


def _checked(lowering: XlaLowering, instruction: Instruction, shape: Shape) -> Computation:
    computation = lowering.called(instruction, 0)
    lowering.check_parameters(instruction, computation, _shapes(instruction))
    lowering.check_result(instruction, computation, shape)
    return computation


def _composite(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any], computation: Computation
) -> tree.TreeValue:
    """An operation with a name, and a computation that does the same."""
    told: dict[str, str] = instruction.attributes.get("frontend_attributes", {})
    version = told.get("composite.version", "0")
    facts: dict[str, Any] = {
        "name": told.get("composite.name", ""),
        "version": int(version) if version.isdecimal() and len(version) < 10 else 0,
        "decomposition": lowering.function(computation),
        "composite_attributes": _dictionary(told.get("composite.attributes", "{}")),
    }
    return lowering.op("stablehlo.composite", operands, lowering.type(instruction.shape), facts)


def _dictionary(text: str) -> Any:
    """The attributes behind MLIR's `{key = value}`; a string where they are not written so."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return parse_attribute(text)
    except UserError:
        return text


def _fusion(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    """What is fused, written out: how it is fused is the backend's affair."""
    return lowering.inline(_checked(lowering, instruction, instruction.shape), operands)


def _while(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    shape = instruction.shape
    if _shapes(instruction) != [shape] and not all(map(shape.same, _shapes(instruction))):
        raise lowering.fail(instruction, f"its operand is no {shape}")
    lowering.check_result(instruction, lowering.called(instruction, 0), shape)
    body = lowering.region(instruction, 0, [shape])
    condition = lowering.region(instruction, 1, [shape])
    kind = lowering.type(shape)
    return lowering.op("stablehlo.while", operands, kind, {}, [condition, body])


def _conditional(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The operand behind the index is what the branch of that number takes."""
    if not operands or len(operands) != len(instruction.calls) + 1:
        raise lowering.fail(instruction, "needs an index and one operand per branch")
    index = instruction.operands[0].shape
    regions: list[tree.Region] = []
    for number, computation in enumerate(instruction.calls):
        taken = instruction.operands[number + 1].shape
        lowering.check_parameters(instruction, computation, [taken])
        lowering.check_result(instruction, computation, instruction.shape)
        regions.append(lowering.branch(instruction, number, [operands[number + 1]]))
    name = "stablehlo.if" if index.element == "pred" else "stablehlo.case"
    if name == "stablehlo.if" and len(regions) != 2:
        raise lowering.fail(instruction, "needs two branches")
    return lowering.op(name, operands[:1], lowering.type(instruction.shape), {}, regions)


def _async_start(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The result already: nothing runs at the same time."""
    members = instruction.shape.members
    if len(members) < 2:
        raise lowering.fail(instruction, "gives no operands and results")
    computation = _checked(lowering, instruction, members[1])
    return lowering.inline(computation, operands)


def _async_next(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """async-update and async-done: the result of the operation that was started."""
    started = instruction
    while started.opcode in ("async-update", "async-done") and started.operands:
        started = started.operands[0]
    if started.opcode != "async-start":
        raise lowering.fail(instruction, "its operand is no asynchronous operation")
    done = instruction.opcode == "async-done"
    if done and not started.shape.members[1].same(instruction.shape):
        raise lowering.fail(instruction, f"gives {instruction.shape}, not what was started")
    return operands[0]


def _custom_call(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    facts = instruction.attributes
    target = facts.get("custom_call_target", "")
    if "literal" in facts:
        return lowering.refuse(instruction, "a constant inside a custom call is not supported")
    if target in _MOVES and len(operands) == 1:
        return operands[0]
    if target == "TopK" and _takes_largest(instruction):
        k = instruction.shape.members[0].dims[-1]
        return lowering.op("chlo.top_k", operands, lowering.type(instruction.shape), {"k": k})
    version = facts.get("api_version", API_VERSIONS[1])
    number = API_VERSIONS.index(version) if version in API_VERSIONS else 0
    config: Any = facts.get("backend_config", "")
    if number == _TYPED:
        config = _dictionary(config or "{}")
    attributes: dict[str, Any] = {
        "call_target_name": target,
        "api_version": number,
        "has_side_effect": facts.get("custom_call_has_side_effect", False),
        "backend_config": config,
    }
    if instruction.calls:
        attributes["called_computations"] = tuple(map(lowering.function, instruction.calls))
    if "operand_layout_constraints" in facts:
        attributes["operand_layouts"] = tuple(
            leaf.layout or () for shape in facts["operand_layout_constraints"]
            for _, leaf in shape.leaves()
        )  # fmt: skip
        attributes["result_layouts"] = tuple(
            leaf.layout or () for _, leaf in instruction.shape.leaves()
        )
    if "output_to_operand_aliasing" in facts:
        keys = ("output_tuple_indices", "operand_index", "operand_tuple_indices")
        attributes["output_operand_aliases"] = tuple(
            tree.Structured("output_operand_alias", dict(zip(keys, alias, strict=True)))
            for alias in facts["output_to_operand_aliasing"]
        )
    kind = lowering.type(instruction.shape)
    return lowering.op("stablehlo.custom_call", operands, kind, attributes)


def _takes_largest(instruction: Instruction) -> bool:
    """Whether a call of TopK, which optimized modules have, compares by "greater"."""
    members = instruction.shape.members
    if len(members) != 2 or len(instruction.operands) != 1 or len(instruction.calls) != 1:
        return False
    root = instruction.calls[0].root
    facts: Mapping[str, Any] = root.attributes
    return (
        root.opcode == "compare"
        and facts.get("direction") == "GT"
        and bool(members[0].dims)
        and members[0].dims == members[1].dims
        and members[1].element == "s32"
    )


CALLS: dict[str, Handler] = {
    "call": _call,
    "fusion": _fusion,
    "while": _while,
    "conditional": _conditional,
    "custom-call": _custom_call,
    "async-start": _async_start,
    "async-update": _async_next,
    "async-done": _async_next,
}

"""Opcodes about several devices and the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import tree
from .lowering import Handler, XlaLowering
from .program import Instruction, Shape


def _common(instruction: Instruction) -> dict[str, Any]:
    """Groups, channel and the meaning of the numbers in the groups."""
    facts = instruction.attributes
    attributes: dict[str, Any] = {}
    groups = facts.get("replica_groups", ())
    width = max(map(len, groups), default=0)
    attributes["replica_groups"] = tuple(
        (*group, *(-1,) * (width - len(group))) for group in groups
    )
    if facts.get("channel_id", 0) > 0:
        attributes["channel_id"] = facts["channel_id"]
    if facts.get("use_global_device_ids"):
        attributes["use_global_device_ids"] = True
    return attributes


def _collective(
    name: str, attributes: Callable[[Instruction], dict[str, Any]], bodies: int = 0
) -> Handler:
    """The op; what "-start" gives, besides what only the wait is for, is the result already."""

    def handler(
        lowering: XlaLowering, instruction: Instruction, operands: list[Any]
    ) -> tree.TreeValue:
        shape = result_of(instruction)
        if shape is None:
            raise lowering.fail(instruction, "gives no operands and results")
        facts = {**_common(instruction), **attributes(instruction)}
        regions = [lowering.region(instruction, number) for number in range(bodies)]
        return lowering.op(name, operands, lowering.type(shape), facts, regions)

    return handler


def result_of(instruction: Instruction) -> Shape | None:
    """The shape of what a collective gives once it is done."""
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        members = instruction.shape.members
        return members[1] if len(members) > 1 else None
    return instruction.shape


def _done(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    started = instruction.operands[0] if instruction.operands else instruction
    if started.opcode != instruction.opcode.removesuffix("done") + "start":
        raise lowering.fail(instruction, "its operand is no started collective")
    shape = result_of(started)
    if shape is None or not shape.same(instruction.shape):
        raise lowering.fail(instruction, f"gives {instruction.shape}, not what was started")
    return operands[0]


def _dimension(key: str) -> Callable[[Instruction], dict[str, Any]]:
    def attributes(instruction: Instruction) -> dict[str, Any]:
        dims = instruction.attributes.get("dimensions", ())
        return {key: dims[0] if dims else 0}

    return attributes


def _all_to_all(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """An array whose parts are exchanged; or an operand per process, which gives a tuple."""
    dims = instruction.attributes.get("dimensions", ())
    groups = instruction.attributes.get("replica_groups", ())
    count = len(groups[0]) if groups else len(operands)
    kind = lowering.type(instruction.shape)
    facts = {
        **_common(instruction),
        "split_dimension": dims[0] if dims else 0,
        "concat_dimension": dims[0] if dims else 0,
        "split_count": count,
    }
    if len(dims) == 1 and len(operands) == 1 and groups:
        return lowering.op("stablehlo.all_to_all", operands, kind, facts)
    part = instruction.operands[0].shape if operands else instruction.shape
    members = instruction.shape.members
    if dims or len(operands) != count or len(members) != count or part.is_tuple or part.dynamic:
        return lowering.refuse(instruction, "its operands are not one per process of a group")
    row = lowering.type(Shape(part.element, (1, *part.dims)))
    stack = lowering.type(Shape(part.element, (count, *part.dims)))
    rows = [lowering.op("stablehlo.reshape", [operand], row) for operand in operands]
    value = lowering.op("stablehlo.concatenate", rows, stack, {"dimension": 0})
    value = lowering.op("stablehlo.all_to_all", [value], stack, facts)
    parts: list[tree.TreeValue] = []
    for number, member in enumerate(members):
        cut = {
            "start_indices": (number, *(0 for _ in part.dims)),
            "limit_indices": (number + 1, *part.dims),
            "strides": (1,) * (len(part.dims) + 1),
        }
        one = lowering.op("stablehlo.slice", [value], row, cut)
        parts.append(lowering.op("stablehlo.reshape", [one], lowering.type(member)))
    return lowering.op("stablehlo.tuple", parts, kind)


def _permute(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    shape = result_of(instruction)
    if shape is None:
        raise lowering.fail(instruction, "gives no operands and results")
    if {"slice_sizes", "dynamic_slice_sizes"} & set(instruction.attributes):
        return lowering.refuse(instruction, "it writes into a part of another array")
    facts = _common(instruction)
    del facts["replica_groups"]
    facts["source_target_pairs"] = instruction.attributes.get("source_target_pairs", ())
    name, kind = "stablehlo.collective_permute", lowering.type(shape)
    if not shape.is_tuple:
        return lowering.op(name, operands, kind, facts)
    if len(shape.members) != len(operands):
        raise lowering.fail(instruction, f"its operands make no {shape}")
    pairs = zip(operands, shape.members, strict=True)
    moved = [lowering.op(name, [value], lowering.type(member), facts) for value, member in pairs]
    return lowering.op("stablehlo.tuple", moved, kind)


def _ragged_all_to_all(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    return lowering.refuse(instruction, "parts of different sizes cannot be exchanged")


# The host, and other programs


def _channel(instruction: Instruction, to_device: int, to_host: int) -> dict[str, Any]:
    facts = instruction.attributes
    host = facts.get("is_host_transfer", False)
    return {
        "channel_id": facts.get("channel_id", 0),
        "channel_type": to_host if host else to_device,
        "is_host_transfer": host,
    }


def _send(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    """The token that send-done gives."""
    return lowering.op("stablehlo.send", operands, "token", _channel(instruction, 1, 2))


def _receive(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The data and the token that recv-done gives."""
    members = instruction.shape.members
    if len(members) != 3:
        raise lowering.fail(instruction, "gives no data, context and token")
    kind = lowering.type(Shape("tuple", members=(members[0], members[2])))
    return lowering.op("stablehlo.recv", operands, kind, _channel(instruction, 1, 3))


def _transferred(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    started = instruction.operands[0] if instruction.operands else instruction
    if started.opcode != instruction.opcode.removesuffix("-done"):
        raise lowering.fail(instruction, "its operand is no started transfer")
    if operands[0].type != lowering.type(instruction.shape):
        raise lowering.fail(instruction, f"gives {instruction.shape}, not what was started")
    return operands[0]


def _infeed(lowering: XlaLowering, instruction: Instruction, operands: list[Any]) -> tree.TreeValue:
    facts = {"infeed_config": instruction.attributes.get("infeed_config", "")}
    return lowering.op("stablehlo.infeed", operands, lowering.type(instruction.shape), facts)


def _outfeed(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    facts = {"outfeed_config": instruction.attributes.get("outfeed_config", "")}
    return lowering.op("stablehlo.outfeed", operands, lowering.type(instruction.shape), facts)


COLLECTIVES: dict[str, Handler] = {
    "all-reduce": _collective("stablehlo.all_reduce", lambda _: {}, 1),
    "all-reduce-start": _collective("stablehlo.all_reduce", lambda _: {}, 1),
    "all-gather": _collective("stablehlo.all_gather", _dimension("all_gather_dim")),
    "all-gather-start": _collective("stablehlo.all_gather", _dimension("all_gather_dim")),
    "reduce-scatter": _collective("stablehlo.reduce_scatter", _dimension("scatter_dimension"), 1),
    "collective-broadcast": _collective("stablehlo.collective_broadcast", lambda _: {}),
    "collective-permute": _permute,
    "collective-permute-start": _permute,
    "all-to-all": _all_to_all,
    "ragged-all-to-all": _ragged_all_to_all,
    "all-reduce-done": _done,
    "all-gather-done": _done,
    "collective-permute-done": _done,
    "send": _send,
    "send-done": _transferred,
    "recv": _receive,
    "recv-done": _transferred,
    "infeed": _infeed,
    "outfeed": _outfeed,
}

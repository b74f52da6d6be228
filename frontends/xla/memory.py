"""Opcodes about where data lies: copies, bitcasts, orders of effects, stochastic rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import tree
from .lowering import Handler, XlaLowering
from .program import Instruction, Shape


def _identity(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The first operand itself: layouts, domains and orders change no value."""
    if not operands or not instruction.operands[0].shape.same(instruction.shape):
        raise lowering.fail(instruction, "its operand has another shape")
    return operands[0]


def _copy_start(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The value that copy-done gives."""
    if len(operands) != 1:
        raise lowering.fail(instruction, "needs one operand")
    return operands[0]


def _copy_done(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """What the operand of copy-start is."""
    started = instruction.operands[0] if instruction.operands else instruction
    if started.opcode != "copy-start" or len(started.operands) != 1:
        raise lowering.fail(instruction, "its operand is no copy-start")
    if not started.operands[0].shape.same(instruction.shape):
        raise lowering.fail(instruction, "what is copied has another shape")
    return operands[0]


_WIDTHS = {
    "pred": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32,
    "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
    "f8e3m4": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e4m3fnuz": 8, "f8e5m2": 8,
    "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
}  # fmt: skip
"""Bits that an element takes in memory."""


def _bitcast(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """The operand's bytes, in the order in which its layout puts them, read in the result's."""
    (operand,) = operands[:1] or [None]
    if operand is None:
        raise lowering.fail(instruction, "needs one operand")
    source, target = instruction.operands[0].shape, instruction.shape
    if source.same(target) and (source.layout == target.layout or len(source.dims) < 2):
        return operand
    for shape in (source, target):
        if shape.tiled or shape.dynamic or shape.is_tuple or shape.element not in _WIDTHS:
            if source.element == target.element and not (shape.dynamic or shape.is_tuple):
                if shape.tiled and _packed_only(shape):
                    continue
                if not shape.tiled:
                    continue
            return lowering.refuse(instruction, f"the layout of {shape} is not supported")
    value = _transposed(lowering, operand, source, source.major_to_minor)
    dims = tuple(source.dims[dim] for dim in source.major_to_minor)
    order = target.major_to_minor
    stored = tuple(target.dims[dim] for dim in order)
    if source.element != target.element:
        bits = math.prod(dims) * _WIDTHS[source.element]
        if bits != math.prod(stored) * _WIDTHS[target.element]:
            raise lowering.fail(instruction, f"{source} and {target} have different sizes")
        value, dims = _reinterpreted(lowering, value, Shape(source.element, dims), target.element)
    if math.prod(dims) != math.prod(stored):
        raise lowering.fail(instruction, f"{source} and {target} have different sizes")
    if dims != stored:
        kind = lowering.type(Shape(target.element, stored))
        value = lowering.op("stablehlo.reshape", [value], kind)
    back = tuple(order.index(dim) for dim in range(len(order)))
    return _transposed(lowering, value, Shape(target.element, stored), back)


def _packed_only(shape: Shape) -> bool:
    """Whether the layout says no more than that elements of four bits or less are packed."""
    return shape.element in ("s2", "s4", "u2", "u4", "f4e2m1fn") and shape.tiled


def _transposed(
    lowering: XlaLowering, value: tree.TreeValue, shape: Shape, order: tuple[int, ...]
) -> tree.TreeValue:
    if order == tuple(range(len(order))):
        return value
    kind = lowering.type(Shape(shape.element, tuple(shape.dims[dim] for dim in order)))
    return lowering.op("stablehlo.transpose", [value], kind, {"permutation": order})


def _reinterpreted(
    lowering: XlaLowering, value: tree.TreeValue, shape: Shape, element: str
) -> tuple[tree.TreeValue, tuple[int, ...]]:
    """Row-major elements read as another type; the value and its dimensions."""
    if shape.element == "pred":
        value = lowering.op(
            "stablehlo.convert", [value], lowering.type(shape._replace(element="u8"))
        )
        shape = shape._replace(element="u8")
    wanted = "u8" if element == "pred" else element
    old, new = _WIDTHS[shape.element], _WIDTHS[wanted]
    dims = shape.dims
    if old < new:
        dims = (math.prod(dims) * old // new, new // old)
        kind = lowering.type(Shape(shape.element, dims))
        value = lowering.op("stablehlo.reshape", [value], kind)
        dims = dims[:1]
    elif old > new:
        dims = (*dims, old // new)
    if wanted != shape.element:
        kind = lowering.type(Shape(wanted, dims))
        value = lowering.op("stablehlo.bitcast_convert", [value], kind)
    if element == "pred":
        value = lowering.op("stablehlo.convert", [value], lowering.type(Shape("pred", dims)))
    return value, dims


def _stochastic(
    lowering: XlaLowering, instruction: Instruction, operands: list[Any]
) -> tree.TreeValue:
    """Rounds up in magnitude where random < fraction * 2**bits; the ends of the range stay."""
    target = instruction.shape
    if len(operands) != 2:
        raise lowering.fail(instruction, "needs a value and random bits")
    source, random = (operand.shape for operand in instruction.operands)
    if target.element not in ("s8", "s16", "s32", "s64") or random.element[:1] != "u":
        return lowering.refuse(instruction, f"rounding to {target} at random is not supported")
    real, integer = lowering.type(source), lowering.type(target)
    wide = source._replace(element="f32") if source.element in ("f16", "bf16") else source
    truth = lowering.type(source._replace(element="pred", layout=None))

    def spread(number: float, shape: Shape) -> tree.TreeValue:
        dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(shape.element)
        if dtype is None:
            dtype = np.dtype(f"i{int(shape.element[1:]) // 8}") if shape.element[0] == "s" else None
        if dtype is None:  # bfloat16 holds the powers of two that are needed here
            one = lowering.constant(np.array(number, np.float32), Shape("f32"))
            scalar = lowering.type(Shape(shape.element))
            one = lowering.op("stablehlo.convert", [one], scalar)
        else:
            one = lowering.constant(np.array(number, dtype), Shape(shape.element))
        facts: dict[str, Any] = {"broadcast_dimensions": ()}
        return lowering.op("stablehlo.broadcast_in_dim", [one], lowering.type(shape), facts)

    def compare(direction: str, left: tree.TreeValue, right: tree.TreeValue) -> tree.TreeValue:
        facts = {"comparison_direction": direction}
        return lowering.op("stablehlo.compare", [left, right], truth, facts)

    value, bits = operands
    size = lowering.op("stablehlo.abs", [value], real)
    whole = lowering.op("stablehlo.floor", [size], real)
    rest = lowering.op("stablehlo.subtract", [size, whole], real)
    rest = lowering.op("stablehlo.convert", [rest], lowering.type(wide))
    scale = spread(2.0 ** int(random.element[1:]), wide)
    rest = lowering.op("stablehlo.multiply", [rest, scale], lowering.type(wide))
    rest = lowering.op("stablehlo.convert", [rest], lowering.type(random))
    up = compare("LT", bits, rest)
    number = lowering.op("stablehlo.convert", [whole], integer)
    larger = lowering.op("stablehlo.add", [number, spread(1, target)], integer)
    number = lowering.op("stablehlo.select", [up, larger, number], integer)
    negative = compare("LT", value, spread(0, source))
    minus = lowering.op("stablehlo.negate", [number], integer)
    number = lowering.op("stablehlo.select", [negative, minus, number], integer)
    half = 1 << (int(target.element[1:]) - 1)
    for direction, end in (("LE", -half), ("GE", half - 1)):
        beyond = compare(direction, value, spread(end, source))
        number = lowering.op("stablehlo.select", [beyond, spread(end, target), number], integer)
    return number


MEMORY: dict[str, Handler] = {
    "copy": _identity,
    "domain": _identity,
    "add-dependency": _identity,
    "copy-start": _copy_start,
    "copy-done": _copy_done,
    "bitcast": _bitcast,
    "stochastic-convert": _stochastic,
}

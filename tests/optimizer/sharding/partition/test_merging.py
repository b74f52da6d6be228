"""Reshapes of dims that no axis divides: intervals are fetched, nothing is gathered."""

from __future__ import annotations

import itertools

import pytest

from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.sharding import Axis, Mesh
from girih.hlo.types import F32, TensorType

from .test_windows import Axes, check

FOUR = Mesh((("x", 4),))


def reshape(before: tuple[int, ...], after: tuple[int, ...]) -> Module:
    return build_module([TensorType(before, F32)], lambda b, x: [b.reshape(x, after)])


def cut(module: Module, side: str, dim: int, axes: Axes) -> list[Axes]:
    """The major factor of a dim of the operand, or of the result."""
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    held = {"operand": factors.operands, "result": factors.results}[side][0][dim]
    return [axes if n == held[0] else () for n in range(len(factors.factors))]


def lacking(size: int, own: int, wanted: int, parts: int) -> float:
    """Elements that a part wants of a line and has not, the mean of all."""
    found = 0
    for part in range(parts):
        has = set(range(part * own, min((part + 1) * own, size)))
        found += len(set(range(part * wanted, min((part + 1) * wanted, size))) - has)
    return found / parts


@pytest.mark.parametrize(
    "before, after", [((8, 384), (8, 6, 64)), ((8, 6, 64), (8, 384)), ((8, 6, 64, 3), (8, 1152))]
)
def test_six_heads_in_four_parts(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Two heads each, and none for the last: 128 of 384 columns, or 96 of them."""
    module = reshape(before, after)
    own, wanted = (128 if dims[1] == 6 else 96 for dims in (before, after))
    moved = check(module, cut(module, "operand", 1, (Axis("x"),)), FOUR)
    minor = 3 if len(before) == 4 else 1
    assert moved == lacking(384, own, wanted, 4) * 8 * minor * 4


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_axes_that_divide_send_nothing(parts: int) -> None:
    module = reshape((8, 6, 64), (8, 384))
    mesh = Mesh((("x", parts),))
    assert check(module, cut(module, "result", 1, (Axis("x"),)), mesh) == 0


@pytest.mark.parametrize(
    "dims, parts", list(itertools.product([(5, 7), (3, 2, 4), (7, 1, 3), (2, 9)], [2, 3, 4, 8]))
)
def test_merged_and_split(dims: tuple[int, ...], parts: int) -> None:
    """Several parts have nothing, or need what several others have."""
    size = 1
    for n in dims:
        size *= n
    mesh, axes = Mesh((("x", parts),)), (Axis("x"),)
    for module in (reshape(dims, (size,)), reshape((size,), dims)):
        check(module, cut(module, "operand", 0, axes), mesh)

"""Products under every kind of blocking, against numpy in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.cpu import codegen, contract
from girih.hlo.build import Builder, make_op
from girih.hlo.errors import CompilerBug
from girih.hlo.graph import Op
from girih.hlo.types import F32, TensorType
from girih.optimizer.cuts import products
from girih.optimizer.cuts.products import Blocking

from ...levels import levels
from .harness import Kernel

pytestmark = pytest.mark.usefixtures("each_level")
SIZES = st.sampled_from([1, 2, 3, 7, 13, 14, 16, 31, 33, 40, 64, 129])


def numbers(left: int, right: int, batch: int) -> dict[str, Any]:
    return {
        "lhs_contracting_dimensions": (left + batch,),
        "rhs_contracting_dimensions": (right + batch,),
        "lhs_batching_dimensions": tuple(range(batch)),
        "rhs_batching_dimensions": tuple(range(batch)),
    }


def product(
    rows: int, depth: int, columns: int, *, turned: tuple[bool, bool] = (False, False),
    batch: tuple[int, ...] = (), strided: bool = False, residual: bool = False,
) -> Op:  # fmt: skip
    """A fusion: a product of operands as they are, transposed, or every other element of larger
    ones; with a residual added."""
    step = 2 if strided else 1
    left = (depth, rows) if turned[0] else (rows, depth)
    right = (columns, depth) if turned[1] else (depth, columns)
    kinds = [TensorType((*batch, *(n * step for n in dims)), F32) for dims in (left, right)]
    b = Builder()
    operands = b.arguments([*kinds, TensorType((*batch, rows, columns), F32)][: 2 + residual])

    def part(value: Any, dims: tuple[int, ...]) -> Any:
        if not strided:
            return value
        rank = value.rank
        return b(
            "slice", value, start_indices=(0,) * rank, limit_indices=value.dims,
            strides=(*[1] * len(batch), *[step] * len(dims)),
        )  # fmt: skip

    sides = part(operands[0], left), part(operands[1], right)
    sums = b("dot_general", *sides, **numbers(0 if turned[0] else 1, turned[1], len(batch)))
    result = b("add", sums, operands[2]) if residual else sums
    return make_op("fusion", operands, {"kind": "contract"}, [b.region([result])])


def reference(op: Op, inputs: list[np.ndarray], turned: tuple[bool, bool]) -> np.ndarray:
    """The same in float64; `inputs` as the kernel gets them."""
    left, right = (array.astype(np.float64) for array in inputs[:2])
    if any(inner.name == "slice" for inner in op.regions[0].ops):
        left, right = left[..., ::2, ::2], right[..., ::2, ::2]
    left = left.swapaxes(-1, -2) if turned[0] else left
    right = right.swapaxes(-1, -2) if turned[1] else right
    return left @ right + (inputs[2] if len(inputs) > 2 else 0)


def check(
    op: Op, cut: Blocking | None, turned: tuple[bool, bool] = (False, False), target: Any = None
) -> None:
    """The kernel is right, and its tiles may be split anywhere."""
    target = target or codegen.host_target()
    random = np.random.default_rng(1)
    inputs = [random.standard_normal(v.tensor.dims).astype(np.float32) for v in op.operands]
    kernel = Kernel(op, target, contract.emit(op, target, cut))
    (result,) = kernel(*inputs)
    expected = reference(op, inputs, turned)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * scale)
    (again,) = kernel(*inputs, splits=3)
    np.testing.assert_array_equal(result, again)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES), turned=st.tuples(st.booleans(), st.booleans()),
    batch=st.sampled_from([(), (2,)]), strided=st.booleans(), residual=st.booleans(),
    place=st.floats(0, 1, exclude_max=True),
    level=st.sampled_from(levels()),
)  # fmt: skip
def test_every_eligible_blocking(
    sizes: tuple[int, int, int], turned: tuple[bool, bool], batch: tuple[int, ...], strided: bool,
    residual: bool, place: float, level: str,
) -> None:  # fmt: skip
    target = codegen.host_target(level)
    rows, depth, columns = sizes
    op = product(
        rows, depth, columns, turned=turned, batch=batch, strided=strided, residual=residual
    )
    shape = contract.shape_of(op, target)
    if shape is None:  # inner products are not cut
        check(op, None, turned, target)
        return
    cuts = products.candidates(shape)
    cut = products.blocking_of(cuts[int(place * len(cuts))])
    assert products.problem(shape, cut) is None
    check(op, cut, turned, target)


# Deep enough to be cut, and larger than one of everything.
@pytest.mark.parametrize("depth", [16, 32, 128])
@pytest.mark.parametrize("pack_left", [False, True])
@pytest.mark.parametrize("pack_right", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_depth_blocks(depth: int, pack_left: bool, pack_right: bool, residual: bool) -> None:
    op = product(61, 300, 170, residual=residual)
    rows = products.largest_rows(codegen.host_target().vector_registers, 2)
    check(op, Blocking(rows, 2, depth, 2, 2, 3, pack_left, pack_right))


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("rows", [1, 4, 16, 77])
def test_default_and_chosen(rows: int, turned: tuple[bool, bool]) -> None:
    """Right sides large enough to stream, and rows few and many."""
    op = product(rows, 530, 515, turned=turned)
    shape = contract.shape_of(op, codegen.host_target())
    check(op, None, turned)
    if shape is not None:
        check(op, products.default(shape), turned)


def test_candidates_hold_what_is_chosen() -> None:
    shape = contract.shape_of(product(128, 768, 512), codegen.host_target())
    assert shape is not None
    cuts = products.candidates(shape)
    assert len(cuts) == len(np.unique(cuts)) > 100
    assert all(products.problem(shape, products.blocking_of(cut)) is None for cut in cuts)
    sizes = products.scratch_bytes(shape, cuts)
    for cut, size in list(zip(cuts, sizes, strict=True))[::97]:
        assert sum(products.scratch_parts(shape, products.blocking_of(cut))) <= size + 3 * 64


def test_rows_that_share_the_sets_of_a_cache() -> None:
    """In place no more of them than a set has lines; a copy lies apart."""
    target = codegen.level_target("avx512")
    for depth, together in ((1024, True), (1000, False)):
        shape = contract.shape_of(product(512, depth, 512), target)
        assert shape is not None
        assert products.crowded(shape) is together
        cuts = products.candidates(shape)
        in_place = cuts["rows"][~cuts["pack_left"]].max()
        assert in_place <= 8 or not together
        assert products.default(shape).rows <= in_place
        copied = cuts["rows"][cuts["pack_left"]]
        assert not len(copied) or copied.max() >= in_place


@pytest.mark.parametrize(
    "change",
    [{"rows": 99}, {"panels": 0}, {"groups": 99}, {"depth": 0}, {"depth": 65}],
)
def test_a_blocking_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    op = product(40, 64, 80)
    shape = contract.shape_of(op, codegen.host_target())
    assert shape is not None
    vectors = min(2, shape.registers // 8)
    rows = products.largest_rows(shape.registers, vectors)
    cut = Blocking(rows, vectors, 64, 1, 1, 1, False, False)
    contract.emit(op, codegen.host_target(), cut)
    with pytest.raises(CompilerBug, match="is no blocking of"):
        contract.emit(op, codegen.host_target(), dataclasses.replace(cut, **change))

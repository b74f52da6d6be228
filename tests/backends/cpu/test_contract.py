"""Contraction kernels against the interpreter's evaluate: shapes, layouts, types, epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from girih.backends.cpu import codegen, contract, executor, kernels
from girih.backends.cpu.image import link
from girih.hlo.build import Builder, make_op
from girih.hlo.graph import Op
from girih.hlo.types import F32, tensor_of

from ...levels import levels
from .kernels import run_kernel

pytestmark = pytest.mark.usefixtures("each_level")
RANDOM = np.random.default_rng(5)


def random(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    """Small numbers; integers and narrow floats hold them well."""
    values = RANDOM.standard_normal(dims) * 3
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RANDOM.standard_normal(dims)
    return (values > 0 if dtype is bool else values).astype(dtype)


def check(op: Op, inputs: Sequence[np.ndarray], threads: int = 2) -> None:
    """The kernel of a single op gives what its room's evaluate gives."""
    code = kernels.emit(op, codegen.host_target())
    out = np.full(op.type.dims, 99, op.type.dtype)
    run_kernel(code, inputs, [out], threads)
    expected = np.asarray(op.definition.evaluate(op, *inputs))
    close(out, expected)


def close(out: np.ndarray, expected: np.ndarray) -> None:
    if out.dtype.kind in "iub":
        np.testing.assert_array_equal(out, expected)
        return
    if out.dtype.kind == "c":
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)
        return
    tolerance = {2: 1e-2, 1: 0.2}.get(out.dtype.itemsize, 1e-5)
    known = expected.astype(np.float64)[np.isfinite(expected.astype(np.float64))]
    scale = max(1.0, float(np.abs(known).max(initial=0)))
    np.testing.assert_allclose(
        out.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * scale
    )


def dot(lhs: np.ndarray, rhs: np.ndarray, **dims: tuple[int, ...]) -> Op:
    b = Builder()
    x, y = b.arguments([tensor_of(lhs), tensor_of(rhs)])
    return b.op("dot_general", [x, y], dims)


def dims(
    left: Sequence[int], right: Sequence[int], batch: Sequence[Sequence[int]] = ((), ())
) -> dict[str, Any]:
    return {
        "lhs_contracting_dimensions": tuple(left), "rhs_contracting_dimensions": tuple(right),
        "lhs_batching_dimensions": tuple(batch[0]), "rhs_batching_dimensions": tuple(batch[1]),
    }  # fmt: skip


SIZES = [
    (1, 1, 1), (1, 64, 200), (2, 17, 33), (3, 5, 300), (4, 100, 64), (5, 1, 7), (6, 40, 129),
    (7, 64, 32), (14, 3, 16), (15, 31, 47), (37, 51, 45), (128, 96, 64), (129, 70, 1), (5, 0, 4),
    (0, 3, 4), (300, 700, 90),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transposed", ["", "left", "right", "both"])
def test_matrix_products(size: tuple[int, int, int], transposed: str) -> None:
    rows, depth, columns = size
    left_turned, right_turned = transposed in ("left", "both"), transposed in ("right", "both")
    lhs = random(*((depth, rows) if left_turned else (rows, depth)))
    rhs = random(*((columns, depth) if right_turned else (depth, columns)))
    check(dot(lhs, rhs, **dims([0 if left_turned else 1], [1 if right_turned else 0])), [lhs, rhs])


@pytest.mark.parametrize(
    "left, right, numbers",
    [
        ((7,), (7,), dims([0], [0])),
        ((4,), (5,), dims([], [])),
        ((2, 7, 3, 20), (2, 9, 3, 20), dims([3], [3], ([0, 2], [0, 2]))),
        ((2, 3, 9, 20), (2, 20, 3, 33), dims([3], [1], ([0, 1], [0, 2]))),
        ((2, 3, 20), (2, 20, 3), dims([2], [1], ([0], [0]))),
        ((2, 3, 5, 4), (4, 3, 2, 6), dims([1, 3], [1, 0], ([0], [2]))),
        ((6, 4, 5), (5, 7, 4, 3), dims([1, 2], [2, 0])),
        ((20, 3, 8), (8, 3, 40), dims([2], [0], ([1], [1]))),
        ((3, 4, 5, 6), (6, 2, 3, 16), dims([3], [0])),
        ((8, 16), (2, 3, 16, 5), dims([1], [2])),
    ],
)
def test_dimension_numbers(
    left: tuple[int, ...], right: tuple[int, ...], numbers: dict[str, tuple[int, ...]]
) -> None:
    lhs, rhs = random(*left), random(*right)
    check(dot(lhs, rhs, **numbers), [lhs, rhs])


@pytest.mark.parametrize(
    "dtype",
    [
        np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.uint8,
        np.int16, np.int32, np.int64, bool, np.complex64, np.complex128,
    ],
)  # fmt: skip
def test_element_types(dtype: Any) -> None:
    for right, numbers in (((33, 20), dims([1], [0])), ((20, 33), dims([1], [1]))):
        lhs, rhs = random(17, 33, dtype=dtype), random(*right, dtype=dtype)
        check(dot(lhs, rhs, **numbers), [lhs, rhs])


def test_threads_give_the_same_bits() -> None:
    lhs, rhs = random(61, 300), random(300, 170)
    code = contract.emit(dot(lhs, rhs, **dims([1], [0])), codegen.host_target())
    results = []
    for threads in (1, 2, 3):
        out = np.empty((61, 170), np.float32)
        run_kernel(code, [lhs, rhs], [out], threads)
        results.append(out.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("level", levels())
def test_levels(level: str) -> None:
    target = codegen.host_target(level)
    lhs, rhs = random(23, 40), random(50, 40)
    out = np.empty((23, 50), np.float32)
    run_kernel(
        contract.emit(dot(lhs, rhs, **dims([1], [1])), target), [lhs, rhs], [out], target=target
    )
    close(out, lhs @ rhs.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_other_architectures_need_nothing_from_outside(dtype: Any) -> None:
    target = codegen.make_target("aarch64-unknown-linux-gnu", {"neon"})
    lhs, rhs = random(23, 40, dtype=dtype), random(50, 40, dtype=dtype)
    code = contract.emit(dot(lhs, rhs, **dims([1], [1])), target)
    support = codegen.compile_object(executor.emit(target), target)
    assert code.symbol in link([support, codegen.compile_object(code.ir_text, target)]).symbols


@pytest.mark.parametrize("size", [(128, 64, 96), (37, 40, 45), (1, 64, 200), (50, 20, 1)], ids=str)
def test_epilogue(size: tuple[int, int, int]) -> None:
    """bias, activation, residual; and a second result from the middle."""
    rows, depth, columns = size
    inputs = [random(rows, depth), random(depth, columns), random(columns), random(rows, columns)]
    b = Builder()
    x, y, bias, residual = b.arguments([tensor_of(array) for array in inputs])
    product = b("dot_general", x, y, **dims([1], [0]))
    shifted = b("add", product, b.broadcast(bias, product.dims, (1,)))
    result = b("add", b("tanh", shifted), residual)
    op = make_op(
        "fusion", [x, y, bias, residual], {"kind": "contract"}, [b.region([result, shifted])]
    )
    outputs = [np.empty((rows, columns), np.float32) for _ in range(2)]
    run_kernel(contract.emit(op, codegen.host_target()), inputs, outputs)
    expected = inputs[0].astype(np.float64) @ inputs[1] + inputs[2]
    close(outputs[1], expected)
    # Roundings of a sum, which tanh does not enlarge: by the size of all that is added.
    rounding = np.finfo(np.float32).eps * (np.abs(inputs[0]) @ np.abs(inputs[1])).max()
    np.testing.assert_allclose(outputs[0], np.tanh(expected) + inputs[3], rtol=0, atol=rounding)


@pytest.mark.parametrize("size", [(1, 300, 128), (9, 300, 100), (40, 65, 1000)], ids=str)
@pytest.mark.parametrize("contracted", [0, 1])
def test_packed_weights(size: tuple[int, int, int], contracted: int) -> None:
    """Encoded weights are read through the inverse of their packing."""
    rows, depth, columns = size
    x = random(rows, depth)
    weight = random(*((depth, columns) if contracted == 0 else (columns, depth)))
    plain = dot(x, weight, **dims([1], [contracted]))
    packing = contract.packing_for(plain, codegen.host_target())
    if packing is None:
        assert rows == 1 and contracted == 1
        return
    b = Builder()
    (w,) = b.arguments([tensor_of(weight)])
    region = b.region([packing.forward(b, w)])
    packed = evaluate(region, [weight])[0]
    b = Builder()
    left, stored = b.arguments([tensor_of(x), tensor_of(packed)])
    result = b("dot_general", left, packing.inverse(b, stored), **dims([1], [contracted]))
    op = make_op("fusion", [left, stored], {"kind": "contract"}, [b.region([result])])
    out = np.empty((rows, columns), np.float32)
    run_kernel(contract.emit(op, codegen.host_target()), [x, packed], [out])
    close(out, x @ (weight if contracted == 0 else weight.T))


def evaluate(region: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    known: dict[Any, Any] = dict(zip(region.arguments, inputs, strict=True))
    for op in region.ops:
        known[op.result] = op.definition.evaluate(op, *(known[value] for value in op.operands))
    return [np.ascontiguousarray(known[value]) for value in region.results]


def test_every_view_of_an_operand() -> None:
    """Slices, reversals, broadcasts and widenings are read in place as well."""
    x, y = random(9, 14), random(7, dtype=np.float16)
    b = Builder()
    left, right = b.arguments([tensor_of(x), tensor_of(y)])
    part = b("slice", left, start_indices=(1, 0), limit_indices=(9, 14), strides=(3, 2))  # 3 x 7
    turned = b("reverse", part, dimensions=(0, 1))
    wide = b.broadcast(b.convert(right, F32), (7, 5), (0,))
    result = b("dot_general", turned, wide, **dims([1], [0]))
    op = make_op("fusion", [left, right], {"kind": "contract"}, [b.region([result])])
    out = np.empty((3, 5), np.float32)
    run_kernel(contract.emit(op, codegen.host_target()), [x, y], [out])
    expected = x[1:9:3, ::2][::-1, ::-1] @ np.broadcast_to(y.astype(np.float32)[:, None], (7, 5))
    close(out, expected)


def test_operands_that_lie_unevenly_are_stored_first() -> None:
    x, weight = random(4, 3, 2, 5), random(6, 10)
    b = Builder()
    left, right = b.arguments([tensor_of(x), tensor_of(weight)])
    turned = b.reshape(b.transpose(left, (1, 0, 2, 3)), (12, 10))
    uneven = b.reshape(b.transpose(turned, (1, 0)), (2, 60))
    other = b.reshape(right, (60,))
    result = b("dot_general", uneven, other, **dims([1], [0]))
    op = make_op("fusion", [left, right], {"kind": "contract"}, [b.region([result])])
    out = np.empty((2,), np.float32)
    run_kernel(contract.emit(op, codegen.host_target()), [x, weight], [out])
    expected = x.transpose(1, 0, 2, 3).reshape(12, 10).T.reshape(2, 60) @ weight.reshape(60)
    close(out, expected)


def test_operands_seen_through_views() -> None:
    """Transposes and reshapes of attention heads cost no copies."""
    query, key = random(10, 3 * 8), random(12, 3 * 8)
    b = Builder()
    x, y = b.arguments([tensor_of(query), tensor_of(key)])
    heads = b.transpose(b.reshape(x, (10, 3, 8)), (1, 0, 2))
    others = b.transpose(b.reshape(y, (12, 3, 8)), (1, 2, 0))
    op = b.op("dot_general", [heads, others], dims([2], [1], ([0], [0])))
    fusion = make_op("fusion", [x, y], {"kind": "contract"}, [b.region([op.result])])
    out = np.empty((3, 10, 12), np.float32)
    run_kernel(contract.emit(fusion, codegen.host_target()), [query, key], [out])
    left = query.reshape(10, 3, 8).transpose(1, 0, 2)
    close(out, left @ key.reshape(12, 3, 8).transpose(1, 2, 0))

"""Single operations beyond the rooms' cases, and results that share memory with operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.backends.cpu import codegen
from girih.hlo.build import build_region, make_op
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Op, arguments
from girih.hlo.types import F32, I32, I64, TensorType, tensor_of

from . import harness
from .test_loops_elementwise import LEVELS

pytestmark = pytest.mark.usefixtures("each_level")
F = TensorType((), F32)
GENERATOR = np.random.default_rng(3)


def single(name: str, inputs: list[Any], attributes: dict[str, Any], *regions: Any) -> Op:
    operands = arguments([tensor_of(np.asarray(x)) for x in inputs])
    return make_op(name, operands, attributes, regions)


def combine(name: str) -> Any:
    return build_region([F, F], lambda b, x, y: [b(name, x, y)])


def floats(*dims: int) -> np.ndarray:
    return GENERATOR.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 33, 1000])
def test_sort_keeps_the_order_of_equals(length: int, dimension: int) -> None:
    keys = GENERATOR.integers(0, 9, (length, 3)).astype(np.int32)
    places = np.arange(keys.size, dtype=np.int64).reshape(keys.shape)
    if dimension:
        keys, places = keys.T.copy(), places.T.copy()
    scalars = [TensorType((), element) for element in (I32, I32, I64, I64)]
    body = build_region(scalars, lambda b, x, y, i, j: [b.compare("LT", x, y)])
    op = single("sort", [keys, places], {"dimension": dimension}, body)
    got, order = harness.check(op, [keys, places])
    np.testing.assert_array_equal(got, np.sort(keys, dimension))
    wanted = np.argsort(keys, dimension, kind="stable")
    np.testing.assert_array_equal(order, np.take_along_axis(places, wanted, dimension))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "dims, window, strides, padding",
    [
        ((1, 6, 20, 20), (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1))),
        ((2, 15, 15, 40), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 0), (0, 1), (0, 0))),
        ((3, 50), (1, 7), (1, 1), ((0, 0), (3, 3))),
        ((40, 50), (5, 7), (3, 2), ((0, 2), (1, 0))),
    ],
)
def test_pooling(dims: Any, window: Any, strides: Any, padding: Any, level: str | None) -> None:
    x, low, zero = floats(*dims), np.array(-np.inf, np.float32), np.zeros((), np.float32)
    attributes = {"window_dimensions": window, "window_strides": strides, "padding": padding}
    op = single("reduce_window", [x, low], attributes, combine("maximum"))
    harness.check(op, [x, low], target=codegen.host_target(level))
    op = single("reduce_window", [x, zero], attributes, combine("add"))
    harness.check(op, [x, zero], tolerance=1e-5, target=codegen.host_target(level))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_sums(axis: int, backward: bool) -> None:
    x, zero = floats(5, 37, 40), np.zeros((), np.float32)
    window, padding = [1, 1, 1], [(0, 0)] * 3
    window[axis] = x.shape[axis]
    padding[axis] = (0, x.shape[axis] - 1) if backward else (x.shape[axis] - 1, 0)
    attributes = {"window_dimensions": tuple(window), "padding": tuple(padding)}
    op = single("reduce_window", [x, zero], attributes, combine("add"))
    (got,) = harness.Kernel(op)(x, zero)
    flipped = np.flip(x, axis) if backward else x
    wanted = np.cumsum(flipped, axis, dtype=np.float64)
    wanted = np.flip(wanted, axis) if backward else wanted
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_dynamic_update_slice_in_place() -> None:
    """Where operand and result are one buffer, only the window is written."""
    x, update = floats(30, 50), floats(4, 50)
    starts = [np.array(28, np.int32), np.array(0, np.int32)]
    op = single("dynamic_update_slice", [x, update, *starts], {})
    harness.check(op, [x, update, *starts])
    kernel = harness.Kernel(op)
    buffer = x.copy()
    kernel.call([buffer, update, *starts], [buffer])
    wanted = x.copy()
    wanted[26:30] = update  # the start is clamped
    np.testing.assert_array_equal(buffer, wanted)


@pytest.mark.parametrize(
    "dims, window, at",
    [
        ((300, 701), (5, 701), (120, 0)),
        ((3, 97, 800), (2, 40, 3), (1, 50, 790)),
        ((2, 2, 61, 1025), (2, 1, 61, 1000), (0, 1, 0, 9)),
        ((250001,), (77,), (249990,)),
    ],
)
def test_dynamic_update_slice_in_tiles(dims: Any, window: Any, at: Any) -> None:
    """Each tile copies its rows and writes what of the window falls into them."""
    x, update = floats(*dims), floats(*window)
    starts = [np.array(n, np.int32) for n in at]
    op = single("dynamic_update_slice", [x, update, *starts], {})
    harness.check(op, [x, update, *starts])
    assert (harness.Kernel(op).code.tiles > 1) == (len(dims) > 1)
    kernel = harness.Kernel(op)
    (wanted,) = harness.expected(op, [x, update, *starts])
    kernel.call([x, update, *starts], [x], splits=2)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["add", "maximum"])
def test_scatter_of_rows(name: str, level: str | None) -> None:
    table, updates = floats(20, 35), floats(50, 35)
    rows = GENERATOR.integers(-3, 25, (50, 1)).astype(np.int64)
    attributes = {
        "update_window_dims": (1,), "inserted_window_dims": (0,),
        "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
    }  # fmt: skip
    op = single("scatter", [table, rows, updates], attributes, combine(name))
    target = codegen.host_target(level)
    harness.check(op, [table, rows, updates], tolerance=1e-6, target=target)


def test_scatter_of_windows_that_stick_out() -> None:
    """Each element of a window is tested by itself, also along the lanes."""
    table, updates = floats(9, 40), floats(3, 2, 33)
    starts = np.array([[0, 0], [8, 3], [2, 20]], np.int32)
    attributes = {
        "update_window_dims": (1, 2), "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": (0, 1), "index_vector_dim": 1,
    }  # fmt: skip
    op = single("scatter", [table, starts, updates], attributes, combine("add"))
    harness.check(op, [table, starts, updates], tolerance=1e-6)


@pytest.mark.parametrize("kind, lengths", [("FFT", (30,)), ("FFT", (4, 9)), ("IFFT", (16,))])
def test_fft(kind: str, lengths: tuple[int, ...]) -> None:
    x = (floats(3, *lengths) + 1j * floats(3, *lengths)).astype(np.complex64)
    op = single("fft", [x], {"fft_type": kind, "fft_length": lengths})
    harness.check(op, [x], tolerance=1e-5)


def test_solve_and_cholesky() -> None:
    a = floats(4, 20, 20)
    a = a @ a.transpose(0, 2, 1) + 20 * np.eye(20, dtype=np.float32)
    harness.check(single("cholesky", [a], {"lower": True}), [a], tolerance=1e-4)
    b = floats(4, 20, 7)
    attributes = {
        "left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "NO_TRANSPOSE",
    }  # fmt: skip
    harness.check(single("triangular_solve", [a, b], attributes), [a, b], tolerance=1e-4)


def test_an_operation_without_a_kernel_is_named() -> None:
    inputs = [np.zeros((2, 3), np.float32), np.array(2, np.int32)]
    operands = arguments([tensor_of(np.asarray(x)) for x in inputs])
    op = make_op("set_dimension_size", operands, {"dimension": 0}, (), (tensor_of(inputs[0]),))
    with pytest.raises(UnsupportedError, match="set_dimension_size"):
        harness.Kernel(op)

"""Copies in C order: equal elements, whatever order they lay in."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.contiguous import contiguous
from girih.hlo.types import BF16


@pytest.mark.parametrize("dtype", [np.float32, BF16.dtype, np.int8, np.complex64, np.bool_])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 32, 2048), (0, 2, 1)),  # rows that are moved apart
        ((2, 32, 2000), (0, 2, 1)),
        ((3, 4, 16, 2048), (1, 0, 3, 2)),
        ((16, 2048, 2), (2, 1, 0)),
        ((4, 2048), (1, 0)),
        ((32, 1), (1, 0)),
        ((0, 8, 2048), (0, 2, 1)),
    ],
)
def test_equal_elements(dtype, shape, order):
    numbers = np.arange(np.prod(shape, dtype=int)) % 251
    turned = numbers.astype(dtype).reshape(shape).transpose(order)
    found = contiguous(turned)
    assert found.flags.c_contiguous and found.dtype == turned.dtype
    np.testing.assert_array_equal(found, turned)


def test_parts_repetitions_and_reversals():
    numbers = np.arange(64 * 4096, dtype=np.float32).reshape(64, 4096)
    for view in (numbers.T, numbers[::-1].T, numbers[:, ::2].T, numbers[8:40, 1:].T):
        np.testing.assert_array_equal(contiguous(view), view.copy())
    repeated = np.broadcast_to(numbers[:1], (32, 4096)).T
    np.testing.assert_array_equal(contiguous(repeated), repeated.copy())


def test_an_array_in_order_is_no_copy():
    array = np.zeros((2, 3))
    assert contiguous(array) is array

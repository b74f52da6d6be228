"""Weights that follow from other weights: computed on demand, once, by the interpreter."""

from __future__ import annotations

import numpy as np

from girih.hlo.build import build_region
from girih.hlo.derivation import constant_weight, derived
from girih.hlo.graph import Dense, Weight
from girih.hlo.types import BF16, F32, TensorType

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


def source(loaded: list[str]) -> Weight:
    def load() -> np.ndarray:
        loaded.append("w")
        return DATA

    return Weight("w", load, TensorType((2, 3), F32))


def test_nothing_is_computed_before_it_is_asked_for():
    loaded: list[str] = []
    w = source(loaded)
    region = build_region([w.type], lambda b, x: [b.convert(b.transpose(x, (1, 0)), BF16)])
    narrow = derived("narrow", [w], region, ["other"])
    assert narrow.type is TensorType((3, 2), BF16) and narrow.aliases == ("other",)
    assert narrow.derivation is not None and narrow.derivation.sources == (w,) and not loaded
    np.testing.assert_array_equal(narrow.array.astype(np.float32), DATA.T)
    assert narrow.array is narrow.array and loaded == ["w"]


def test_a_view_is_no_copy_and_the_data_is_contiguous():
    w = source([])
    turned = derived("t", [w], build_region([w.type], lambda b, x: [b.transpose(x, (1, 0))]))
    assert np.shares_memory(turned.view, DATA) and turned.view.shape == (3, 2)
    assert turned.array.flags.c_contiguous and not np.shares_memory(turned.array, DATA)
    np.testing.assert_array_equal(turned.array, DATA.T)
    doubled = derived("d", [w], build_region([w.type], lambda b, x: [b("add", x, x)]))
    assert not np.shares_memory(doubled.view, DATA)
    np.testing.assert_array_equal(doubled.view, 2 * DATA)


def test_derived_weights_of_several_and_of_derived_ones():
    w = source([])
    sums = build_region([w.type, w.type], lambda b, x, y: [b("add", x, y)])
    twice = derived("twice", [w, w], sums)
    np.testing.assert_array_equal(derived("thrice", [twice, w], sums).array, 3 * DATA)


def test_overflow_is_silent_as_in_kernels():
    huge = Weight("h", np.full((2,), 3e38, np.float32))
    region = build_region([huge.type], lambda b, x: [b("add", x, x)])
    with np.errstate(all="raise"):
        assert np.isinf(derived("inf", [huge], region).array).all()


def test_constants_keep_their_shape():
    for data in (np.float32(3), DATA, np.broadcast_to(np.float32(2), (4,))):
        dense = Dense.of(np.asarray(data))
        found = constant_weight("c", dense)
        assert found.array.shape == np.shape(data) and found.array.flags.c_contiguous
        np.testing.assert_array_equal(found.array, data)
        assert found.derivation is not None and not found.derivation.sources

"""Weights in another order: same meaning, each tensor stored once, reported where it is not."""

import numpy as np

from girih.hlo.build import build_module
from girih.hlo.graph import Weight
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, HLO, verify
from girih.hlo.wire import decode, encode
from girih.optimizer.passes.encode import Encode, Packing, stored_module, stored_weights
from girih.optimizer.passes.fuse import Fuse

from ..transformer import dot

X, W = TensorType((3, 6), F32), TensorType((10, 6), F32)


def panels(op):
    """[10, 6] -> panels of 4 rows, transposed: [3, 6, 4], the last padded."""

    def forward(b, w):
        zero = b.constant(0.0, TensorType((), F32))
        padded = b(
            "pad",
            w,
            zero,
            edge_padding_low=(0, 0),
            edge_padding_high=(2, 0),
            interior_padding=(0, 0),
        )
        return b.transpose(b.reshape(padded, (3, 4, 6)), (0, 2, 1))

    def inverse(b, packed):
        whole = b.reshape(b.transpose(packed, (0, 2, 1)), (12, 6))
        return b("slice", whole, start_indices=(0, 0), limit_indices=(10, 6), strides=(1, 1))

    return Packing(1, "panels(4)", forward, inverse)


def model(use_plain=False):
    rng = np.random.default_rng(0)
    w = Weight("w", rng.standard_normal(W.dims).astype(np.float32))

    def body(b, x):
        value = b("weight", type=W, weight="w")
        results = [b("tanh", dot(b, x, value, 0, 1, 1))]
        return [*results, b("negate", value)] if use_plain else results

    return build_module([X], body).with_weights({"w": w})


def run(module, x):
    return interpret(module, [x])


def test_the_meaning_stays_and_the_plain_weight_goes():
    module = model()
    fused = Fuse()(module)
    encoded = Encode(panels)(fused)
    verify(encoded, FUSED)
    assert list(encoded.weights) == ["w|panels(4)"]
    x = np.random.default_rng(1).standard_normal(X.dims).astype(np.float32)
    np.testing.assert_array_equal(run(module, x)[0], run(encoded, x)[0])
    stored = stored_module(module.with_weights(stored_weights(module, encoded)))
    verify(stored, HLO)
    assert list(stored.weights) == ["w|panels(4)"]
    again = decode(encode(stored), lambda name, _: stored.weights[name].array)
    np.testing.assert_array_equal(run(module, x)[0], run(again, x)[0])


def test_a_weight_that_is_also_read_plainly_stays_and_is_reported():
    module = model(use_plain=True)
    encoded = Encode(panels)(Fuse()(module))
    assert set(encoded.weights) == {"w", "w|panels(4)"}
    assert "stored twice" in encoded.notes[0]
    stored = module.with_weights(stored_weights(module, encoded))
    assert list(stored.weights) == ["w"]
    assert stored_module(stored) is stored


def test_nothing_to_encode_is_unchanged():
    fused = Fuse()(model())
    assert Encode(lambda op: None)(fused) is fused

"""Weights in another order: same meaning, each tensor stored once, reported where it is not."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import girih
from girih.backends.cpu.contract.packing import _Panels
from girih.compilation import compile_lowered
from girih.hlo.build import build_module
from girih.hlo.graph import Weight
from girih.hlo.interpret import interpret
from girih.hlo.parse import parse_module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, HLO, verify
from girih.hlo.wire import decode, encode
from girih.lowering import EntryLowering, Lowered
from girih.optimizer.licence import Ledger
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


# A product of heads: each program reads a window of 8 rows of the weight, in two turns of 16 steps.
HEADS = """girih 1.0 module "" entry @main {
  weight "w" : f32[%d,32]
  function @main(%%0: f32[4,32]) {
    %%1 = weight() {weight = "w"} : f32[%d,32]
    %%2 = kernel_call(%%0, %%1) {grid = (3), kernel = "group"} : f32[4,24] [
      region(%%3: f32[4,32], %%4: f32[%d,32], %%5: f32[4,24]) {
        %%6 = tile_id() {axis = 0} : i32[]
        %%7 = constant() {value = splat i32[] 8} : i32[]
        %%8 = multiply(%%6, %%7) : i32[]
        %%9 = constant() {value = splat i32[] %d} : i32[]
        %%10 = add(%%8, %%9) : i32[]
        %%11 = constant() {value = splat i32[] 0} : i32[]
        %%12 = constant() {value = splat i32[] 2} : i32[]
        %%13 = constant() {value = splat f32[4,8] 0.0} : f32[4,8]
        %%14 = tile_for(%%11, %%12, %%13) : f32[4,8] [
          region(%%15: i32[], %%16: f32[4,8]) {
            %%17 = constant() {value = splat i32[] 16} : i32[]
            %%18 = multiply(%%15, %%17) : i32[]
            %%19 = tile_load(%%3, %%11, %%18) {fill = 0.0, sizes = (4, 16)} : f32[4,16]
            %%20 = tile_load(%%4, %%10, %%18) {fill = 0.0, sizes = (8, 16)} : f32[8,16]
            %%21 = dot_general(%%19, %%20) {%s} : f32[4,8]
            %%22 = add(%%16, %%21) : f32[4,8]
            yield %%22
          }
        ]
        tile_store(%%5, %%14, %%11, %%8)
        yield
      }
    ]
    return %%2
  }
}
"""


LAST = ", ".join(
    f"{side}_{which}_dimensions = {dims}"
    for side in ("lhs", "rhs")
    for which, dims in (("batching", "()"), ("contracting", "(1,)"))
)


def heads(rows, first):
    data = np.random.default_rng(1).standard_normal((rows, 32)).astype(np.float32)
    module = parse_module(HEADS % (rows, rows, rows, first, LAST), lambda name, _: data)
    verify(module, FUSED)
    return module


@pytest.mark.parametrize(
    ("rows", "first", "is_packed"),
    [(24, 0, True), (40, 16, True), (22, 0, True), (40, 2, False)],
    ids=["all", "part", "the last window reaches outside", "between panels"],
)  # fmt: skip
def test_windows_of_weights_are_read_packed(rows, first, is_packed):
    module = heads(rows, first)
    encoded = Encode(lambda op: _Panels((1,), (0,), 4, op.rhs.dims).packing)(module)
    assert list(encoded.weights) == (["w|panels4:(1,):(0,)"] if is_packed else ["w"])
    verify(encoded, FUSED)
    x = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_array_equal(run(module, x)[0], run(encoded, x)[0])
    program = compile_lowered(encoded, "cpu", girih.Options(cache="off"))
    np.testing.assert_allclose(program(x)[0], run(module, x)[0], rtol=1e-5, atol=1e-5)


def test_plans_of_a_program_agree_on_how_weights_lie():
    fused = Fuse()(model())
    packed = Encode(panels)(fused)
    backend = cast(Any, SimpleNamespace(shared_packing=panels))
    lowering = EntryLowering(backend, girih.Options(), print, Ledger(), cast(Any, None))
    plans = Lowered(fused, fused, others=(Lowered(fused, packed),))
    found = lowering.agreed({"main": plans})["main"]
    assert list(found.fused.weights) == ["w|panels(4)"]
    assert found.others[0].fused is packed
    x = np.random.default_rng(0).standard_normal(X.dims).astype(np.float32)
    np.testing.assert_array_equal(run(fused, x)[0], run(found.fused, x)[0])


def test_nothing_to_encode_is_unchanged():
    fused = Fuse()(model())
    assert Encode(lambda op: None)(fused) is fused

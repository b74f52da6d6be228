"""Weights are transformed when the bundle is built, where that does not make it larger."""

from __future__ import annotations

import numpy as np

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.types import F32, I8, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.fold_weights import FoldWeights
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline

from .modules import f32, names, same, weighted

W = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_transposed_weights_are_made_when_the_bundle_is_built() -> None:
    def body(b, x, w):
        return [b("dot_general", x, b("exponential", b.transpose(w, (1, 0))),
                  lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))]  # fmt: skip

    module, loaded = weighted(body, w=W)
    after = FoldWeights()(module)
    verify(after, INLINED)
    assert names(after) == ["weight", "dot_general"] and not loaded
    (name,) = after.weights
    assert name.startswith("w#transpose(1,0)#exponential")
    assert "1 weight is stored transformed (1 exponential)" in after.notes[0]
    assert same(module, after, np.ones((3, 4), np.float32))
    again, _ = weighted(body, w=W)
    assert list(FoldWeights()(again).weights) == [name]
    assert FoldWeights()(after) is after


def test_a_weight_with_another_use_is_not_stored_twice() -> None:
    def body(b, x, w):
        return [b("exponential", b.transpose(w, (1, 0))), b("add", x, w)]

    large = np.ones((3, 4), np.float32)
    module, _ = weighted(body, w=large)
    assert FoldWeights(growth=0)(module) is module
    assert len(FoldWeights(growth=48)(module).weights) == 2


def test_a_wider_form_of_a_weight_is_not_stored() -> None:
    b, kind = Builder(), TensorType((256, 300), I8)
    (x,) = b.arguments([kind.with_element(F32)])
    wide = b.convert(b("weight", type=kind, weight="w"), F32)
    module = Module({"main": Function("main", b.region([b("add", x, wide)]))})
    module = module.with_weights({"w": Weight("w", np.ones(kind.dims, np.int8))})
    assert FoldWeights(growth=1 << 20)(module) is module


def test_broadcasts_of_weights_are_not_stored() -> None:
    def body(b, x, w, v):
        total = b("add", w, v)
        return [b("add", x, b.broadcast(total, (3, 4), (1,)))]

    module, _ = weighted(body, w=f32([1, 2, 3, 4]), v=f32([1, 0, 0, 1]))
    after = FoldWeights(growth=0)(module)
    assert names(after) == ["weight", "broadcast_in_dim", "add"]
    assert after.body.ops[0].result.dims == (4,)
    assert same(module, after, np.ones((3, 4), np.float32))


def test_rows_of_a_weight_are_scaled_when_the_bundle_is_built() -> None:
    def body(b, x, w, v):
        return [b("add", x, b("multiply", w, b.broadcast(v, (3, 4), (1,))))]

    arrays = {"w": np.ones((3, 4), np.float32), "v": f32([1, 2, 0, 4])}
    module, _ = weighted(body, **arrays)
    after = FoldWeights(growth=0)(module)
    assert names(after) == ["weight", "add"]
    assert same(module, after, np.ones((3, 4), np.float32))


def test_batch_normalisation_goes_into_the_convolution() -> None:
    image, kernel = TensorType((1, 2, 5, 5), F32), TensorType((3, 2, 3, 3), F32)
    generator = np.random.default_rng(0)
    arrays = {
        "kernel": generator.normal(size=kernel.dims).astype(np.float32),
        **{
            name: generator.uniform(0.5, 1.5, 3).astype(np.float32)
            for name in ("scale", "offset", "mean", "variance")
        },
    }
    b = Builder()
    (x,) = b.arguments([image])
    given = {
        name: b("weight", type=TensorType(array.shape, F32), weight=name)
        for name, array in arrays.items()
    }
    y = b(
        "convolution", x, given["kernel"], input_batch_dimension=0, input_feature_dimension=1,
        input_spatial_dimensions=(2, 3), kernel_output_feature_dimension=0,
        kernel_input_feature_dimension=1, kernel_spatial_dimensions=(2, 3),
        output_batch_dimension=0, output_feature_dimension=1, output_spatial_dimensions=(2, 3),
    )  # fmt: skip

    def channels(value):
        return b.broadcast(value, y.dims, (1,))

    deviation = b("rsqrt", b("add", given["variance"], b.constant(1e-5, TensorType((3,), F32))))
    centred = b("subtract", y, channels(given["mean"]))
    scaled = b("multiply", centred, channels(b("multiply", given["scale"], deviation)))
    region = b.region([b("add", scaled, channels(given["offset"]))])
    weights = {name: Weight(name, array) for name, array in arrays.items()}
    module = Module({"main": Function("main", region)}, weights=weights)
    after = run_pipeline(module, simplify_pipeline(), check=True)
    left = [name for name in names(after) if name not in ("weight", "constant")]
    assert left == ["convolution", "broadcast_in_dim", "add"]
    picture = generator.normal(size=image.dims).astype(np.float32)
    before, now = girih.interpret(module, [picture])[0], girih.interpret(after, [picture])[0]
    assert np.abs(before - now).max() <= 1e-5 * np.abs(before).max()

"""Convolutions by matrix instructions, on sm_90a and sm_80, beside the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia import fits
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.launch import KernelTensorMap
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.build import build_region
from girih.hlo.graph import Op, Region
from girih.hlo.ops.convolution import numbers
from girih.hlo.precision import OPERANDS, TF32
from girih.hlo.types import BF16, F16, F32, I8, I32, ElementType, TensorType
from girih.optimizer.asynchronous.configuration import PipelineConfiguration
from girih.optimizer.kernels import convolution_form

from . import harness

RNG = np.random.default_rng(12)
SM_90A, SM_80 = target("sm_90a"), target("sm_80")
# Few multiprocessors: several waves of tiles, and clusters, already in small problems.
FEW = NvidiaTarget(
    replace(SM_90A.architecture, multiprocessors=4), replace(SM_90A.machine, executors=4)
)
HOPPER, AMPERE = "wgmma.mma_async", "mma.sync"


def ohwi(spatial: int) -> dict[str, Any]:
    """Images with features last, kernels [out, taps, in]."""
    return numbers(spatial) | {
        "kernel_output_feature_dimension": 0,
        "kernel_spatial_dimensions": tuple(range(1, spatial + 1)),
        "kernel_input_feature_dimension": spatial + 1,
    }


def convolution(
    image: Sequence[int],
    features: int,
    taps: Sequence[int],
    element: ElementType = BF16,
    groups: int = 1,
    **facts: Any,
) -> Region:
    """relu(conv(x, w) + bias + residual); `taps` in the order of the image's spatial dims."""
    w = features, *taps, image[-1] // groups
    facts = ohwi(len(taps)) | facts
    if groups > 1:
        facts["feature_group_count"] = groups
    kinds = [TensorType(image, element), TensorType(w, element)]
    alone = build_region(kinds, lambda b, x, w: [b("convolution", x, w, **facts)])
    result = alone.results[0].tensor

    def body(b: Any, x: Any, w: Any, bias: Any, residual: Any) -> list[Any]:
        y = b("convolution", x, w, **facts)
        y = b("add", y, b.broadcast(bias, y.dims, (y.rank - 1,)))
        return [b("maximum", b("add", y, residual), b.constant(0, y.tensor))]

    return build_region([*kinds, TensorType((features,), element), result], body)


def fusion(region: Region) -> Op:
    return harness.fusion("contract", region)


def values(op: Op) -> list[np.ndarray]:
    """Small whole numbers: their sums are exact in f32."""
    return [RNG.integers(-3, 4, v.dims).astype(v.tensor.dtype) for v in op.operands]


def ptx_of(op: Op, on: NvidiaTarget) -> str:
    return harness.emitted(op, on).compiled(on).text


def check(region: Region, on: NvidiaTarget, instruction: str, tolerance: float = 0.01) -> None:
    """By that instruction, without faults, in both modes of the simulator."""
    op = fusion(region)
    code, inputs = harness.emitted(op, on).compiled(on), values(op)
    assert instruction in code.text
    for mode, seed in (("eager", 1), ("lazy", 2)):
        reports: list[Any] = []
        harness.check(
            op, inputs, tolerance=tolerance, emitter=lambda: code, on=on, reports=reports,
            mode=mode, seed=seed,
        )  # fmt: skip
        assert not any(report.faults for report in reports)


WINDOWS = {
    "plain": ((1, 9, 17, 32), 24, (3, 3), {"padding": ((1, 1), (1, 1))}),
    "stride 2, odd sizes": ((3, 11, 9, 48), 32, (3, 3), {
        "padding": ((1, 0), (2, -1)), "window_strides": (2, 2),
    }),
    "stride 3, dilated, reversed": ((2, 15, 12, 16), 16, (3, 2), {
        "padding": ((2, 1), (0, 1)), "window_strides": (3, 1), "rhs_dilation": (1, 2),
        "window_reversal": (True, False),
    }),
    "one tap": ((2, 5, 13, 80), 40, (1, 1), {}),
    "one tap, stride 2": ((2, 9, 8, 32), 64, (1, 1), {"window_strides": (2, 2)}),
    "groups": ((1, 9, 8, 64), 64, (3, 3), {"padding": ((1, 1), (1, 1)), "groups": 2}),
    "a line": ((2, 45, 32), 16, (3,), {"padding": ((1, 1),), "window_strides": (2,)}),
    "a volume": ((1, 5, 6, 7, 16), 16, (3, 2, 3), {"padding": ((1, 1), (0, 1), (1, 1))}),
}  # fmt: skip


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, on, instruction):
    image, features, taps, facts = WINDOWS[name]
    check(convolution(image, features, taps, **facts), on, instruction)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
@pytest.mark.parametrize("element", [F16, F32])
def test_element_types(element, on, instruction):
    facts: dict[str, Any] = {"padding": ((1, 1), (1, 1))}
    if element is F32:
        facts[OPERANDS] = TF32
    check(convolution((1, 6, 9, 32), 24, (3, 3), element, **facts), on, instruction)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_bytes(on, instruction):
    kinds = [TensorType((1, 6, 9, 32), I8), TensorType((16, 3, 3, 32), I8)]
    result = TensorType((1, 4, 7, 16), I32)
    region = build_region(kinds, lambda b, x, w: [b("convolution", x, w, type=result, **ohwi(2))])
    check(region, on, instruction, tolerance=0.0)


def test_f32_stays_f32():
    op = fusion(convolution((1, 6, 9, 32), 24, (3, 3), F32, padding=((1, 1), (1, 1))))
    inputs = [RNG.standard_normal(v.dims).astype(np.float32) for v in op.operands]
    code = harness.emitted(op, SM_90A).compiled(SM_90A)
    harness.check(op, inputs, tolerance=2e-6, emitter=lambda: code)
    assert "mma" not in code.text


def test_blocks_of_a_cluster_share_windows():
    region = convolution((8, 16, 16, 32), 64, (2, 2), padding=((1, 0), (1, 0)))
    plan = fits.pipelined(harness.with_tilings(fusion(region), FEW), FEW)
    assert isinstance(plan, PipelineConfiguration) and plan.cluster == 2
    check(region, FEW, HOPPER)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_what_follows_may_depend_on_the_place(on, instruction):
    """A number for each image and feature, one for each row of pixels, and a mask of columns."""

    def body(b: Any, x: Any, w: Any, per_image: Any, per_row: Any) -> list[Any]:
        y = b("convolution", x, w, **ohwi(2), padding=((1, 1), (1, 1)))
        y = b("add", y, b.broadcast(per_image, y.dims, (0, 3)))
        y = b("multiply", y, b.broadcast(per_row, y.dims, (1,)))
        column = b("iota", type=y.tensor, iota_dimension=2)
        early = b.compare("LT", column, b.constant(5, y.tensor))
        return [b("select", early, y, b.constant(0, y.tensor))]

    dims = [(3, 6, 7, 16), (32, 3, 3, 16), (3, 32), (6,)]
    check(build_region([TensorType(d, BF16) for d in dims], body), on, instruction)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_results_in_planes(on, instruction):
    def body(b: Any, x: Any, w: Any) -> list[Any]:
        y = b("convolution", x, w, **ohwi(2))
        return [b.transpose(b.convert(y, F32), (0, 3, 1, 2))]

    dims = [(2, 6, 7, 32), (16, 3, 3, 32)]
    check(build_region([TensorType(d, BF16) for d in dims], body), on, instruction)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_few_features(monkeypatch, on, instruction):
    monkeypatch.setattr(convolution_form, "CONVOLVED_PER_LAUNCH", 0)
    facts = {"padding": ((3, 3), (3, 3)), "window_strides": (2, 2)}
    region = convolution((1, 19, 17, 3), 16, (7, 7), **facts)
    check(region, on, instruction)
    assert any("laid anew" in note for note in harness.emitted(fusion(region), on).notes)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_transposed_convolutions(monkeypatch, on, instruction):
    monkeypatch.setattr(convolution_form, "CONVOLVED_PER_LAUNCH", 0)
    facts = {"lhs_dilation": (2, 2), "padding": ((1, 2), (1, 2))}
    check(convolution((1, 5, 6, 32), 16, (3, 3), **facts), on, instruction)


@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
def test_deep_convolutions_of_few_pixels_are_summed_in_parts(on, instruction):
    region = convolution((1, 7, 7, 512), 512, (3, 3), padding=((1, 1), (1, 1)))
    assert any("in 4 parts" in note for note in harness.emitted(fusion(region), on).notes)
    region = convolution((1, 3, 3, 1024), 16, (2, 2))
    assert any("parts" in note for note in harness.emitted(fusion(region), on).notes)
    check(region, on, instruction)


def test_strides_are_the_copy_engines():
    region = convolution((2, 16, 16, 64), 64, (3, 3), padding=((1, 1), (1, 1)),
                         window_strides=(2, 2))  # fmt: skip
    (launch,) = harness.emitted(fusion(region), SM_90A).launches
    maps = [one for one in launch.arguments if isinstance(one, KernelTensorMap)]
    assert [one.steps for one in maps if one.steps] == [(1, 2, 2, 1)]


LAYERS = {
    "56 x 56, 64 to 64": ((32, 56, 56, 64), 64, (3, 3), 1),
    "56 x 56, 128 to 128, stride 2": ((32, 56, 56, 128), 128, (3, 3), 2),
    "14 x 14, 256 to 1024": ((32, 14, 14, 256), 1024, (1, 1), 1),
    "7 x 7, 512 to 512": ((256, 7, 7, 512), 512, (3, 3), 1),
}


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(("on", "instruction"), [(SM_90A, HOPPER), (SM_80, AMPERE)])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_assemble(name, on, instruction):
    image, features, taps, stride = LAYERS[name]
    padding = tuple((n // 2, n // 2) for n in taps)
    op = fusion(convolution(image, features, taps, padding=padding, window_strides=(stride,) * 2))
    code = harness.emitted(op, on).compiled(on)
    assert instruction in code.text
    for one in code.codes.values():
        found = assemble(one.text, on.architecture)
        assert not found.remarks
        for usage in found.usages.values():
            assert not usage.spill_store_bytes and not usage.stack_bytes


@pytest.mark.requires_ptxas
@pytest.mark.parametrize("on", [SM_80, SM_90A], ids=["sm_80", "sm_90a"])
def test_a_window_of_many_places_leaves_registers_free(on: NvidiaTarget) -> None:
    """Groups of few features are summed by multiply-adds, in a loop that stays a loop."""
    op = fusion(convolution((2, 9, 10, 6), 6, (4, 5), F32, groups=2))
    made = assemble(ptx_of(op, on), on.architecture)
    assert made.faults() == []
    assert max(usage.registers for usage in made.usages.values()) <= 80

"""Convolutions with features innermost: depthwise kernels, copied runs, packed weights, levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.backends.cpu import codegen, contract
from girih.backends.cpu.contract import inner, phases, winograd
from girih.backends.cpu.contract.geometry import geometry_of
from girih.backends.cpu.contract.packing import packing_for
from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module, Op
from girih.hlo.interpret import interpret
from girih.optimizer.passes.encode import Packing

from ...levels import levels
from .kernels import run_kernel
from .test_contract import close, random, tensor_of

pytestmark = pytest.mark.usefixtures("each_level")
IMAGES = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 3, 1, 2)}
VOLUME_IMAGES = {"NDHWC": (0, 4, 1, 2, 3)}
KERNELS = {"OIHW": (0, 1, 2, 3), "HWIO": (3, 2, 0, 1)}
VOLUME_KERNELS = {"OIDHW": (0, 1, 2, 3, 4), "DHWIO": (4, 3, 0, 1, 2)}
LEVELS = [level for level in ("avx512", "avx2", "baseline", "neon") if level in levels()]

DEPTHWISE: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    ((2, 40), (9, 11), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 70), (15, 30), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 96), (14, 33), (7, 7), {"padding": ((3, 3), (3, 3))}),
    ((2, 33), (13, 16), (3, 3), {"padding": ((0, 1), (0, 1)), "window_strides": (2, 2)}),
    ((1, 16), (40, 41), (5, 5), {"padding": ((2, 2), (2, 2)), "window_strides": (2, 3)}),
    ((1, 24), (12, 12), (3, 3), {"padding": ((2, 2), (2, 2)), "rhs_dilation": (2, 2)}),
    ((1, 20), (3, 2), (3, 3), {"padding": ((3, 3), (4, 4))}),
    ((1, 20), (6, 7), (2, 3), {"padding": ((-1, 0), (0, -2))}),
    ((1, 20), (6, 27), (3, 3), {"padding": ((1, 1), (1, 1)), "window_reversal": (True, True)}),
    ((1, 20), (6, 7), (4, 4), {"padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2)}),
]


def convolution(
    image: str, kernel: str, sizes: tuple[int, ...], window: tuple[int, ...], **options: Any
) -> tuple[Op, list[np.ndarray]]:
    """A convolution that gives NHWC, or NDHWC; sizes are (batch, inputs, outputs, height, width),
    those of planes before the height."""
    batch, inputs, outputs, *spatial = sizes
    groups = options.get("feature_group_count", 1)
    order = {**IMAGES, **VOLUME_IMAGES}[image]
    weights = {**KERNELS, **VOLUME_KERNELS}[kernel]
    last = len(order) - 1
    lhs = random(*_placed(order, (batch, inputs, *spatial)), dtype=np.float32)
    rhs = random(*_placed(weights, (outputs, inputs // groups, *window)), dtype=np.float32)
    b = Builder()
    x, y = b.arguments([tensor_of(lhs), tensor_of(rhs)])
    op = b.op(
        "convolution", [x, y],
        {
            "input_batch_dimension": order[0], "input_feature_dimension": order[1],
            "input_spatial_dimensions": order[2:],
            "kernel_output_feature_dimension": weights[0],
            "kernel_input_feature_dimension": weights[1],
            "kernel_spatial_dimensions": weights[2:],
            "output_batch_dimension": 0, "output_feature_dimension": last,
            "output_spatial_dimensions": tuple(range(1, last)), **options,
        },
    )  # fmt: skip
    return op, [lhs, rhs]


def _placed(order: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    dims = [0] * len(order)
    for dim, size in zip(order, sizes, strict=True):
        dims[dim] = size
    return dims


def check(
    op: Op, inputs: list[np.ndarray], target: codegen.Target, packing: Packing | None = None
) -> None:
    """The kernel gives what evaluate gives: with the weight as it is, and as it is packed."""
    expected = np.asarray(op.definition.evaluate(op, *inputs))
    out = np.full(op.type.dims, 99, op.type.dtype)
    run_kernel(contract.emit(op, target), inputs, [out], 2, target)
    close(out, expected)
    packing = packing or packing_for(op, target)
    if packing is None:
        return
    forward = build_region([op.rhs.type], lambda b, w: [packing.forward(b, w)])
    packed = np.ascontiguousarray(
        interpret(Module({"main": Function("main", forward)}), [inputs[1]])[0]
    )

    def body(b: Builder, x: Any, w: Any) -> list[Any]:
        return [b.op("convolution", [x, packing.inverse(b, w)], op.attributes).result]

    region = build_region([op.lhs.type, tensor_of(packed)], body)
    close(interpret(Module({"main": Function("main", region)}), [inputs[0], packed])[0], expected)
    b = Builder()
    x, w = b.arguments([op.lhs.type, tensor_of(packed)])
    fusion = b.op("fusion", [x, w], {"kind": "contract"}, (region,), [op.type])
    out[...] = 99
    run_kernel(contract.emit(fusion, target), [inputs[0], packed], [out], 2, target, times=2)
    close(out, expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", range(len(DEPTHWISE)))
def test_depthwise(case: int, kernel: str, level: str) -> None:
    (batch, features), spatial, window, options = DEPTHWISE[case]
    sizes = (batch, features, features, *spatial)
    op, inputs = convolution("NHWC", kernel, sizes, window, feature_group_count=features, **options)
    target = codegen.host_target(level)
    # Where features are not innermost in the weight, it is packed so that they are.
    assert (packing_for(op, target) is not None) == (kernel == "OIHW")
    check(op, inputs, target)


STEMS: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((1, 3, 64, 30, 31), (7, 7), {"padding": ((3, 3), (3, 3)), "window_strides": (2, 2)}),
    ((2, 3, 40, 17, 16), (3, 3), {"padding": ((1, 1), (1, 1)), "window_strides": (2, 2)}),
    ((1, 4, 24, 16, 16), (4, 4), {"window_strides": (4, 4)}),
    ((1, 3, 33, 12, 12), (3, 11), {"padding": ((1, 0), (5, 5))}),
    ((1, 3, 33, 12, 20), (11, 3), {"padding": ((5, 5), (1, 1))}),
    ((1, 3, 33, 12, 20), (3, 17), {"padding": ((1, 1), (8, 8))}),
    ((1, 2, 33, 12, 20), (3, 3), {"rhs_dilation": (2, 2)}),
    ((1, 2, 33, 12, 20), (3, 3), {"rhs_dilation": (2, 1), "padding": ((2, 2), (1, 1))}),
    ((1, 2, 33, 6, 9), (3, 3), {"lhs_dilation": (2, 1), "padding": ((1, 1), (1, 1))}),
    ((2, 5, 16, 9, 9), (1, 1), {"window_strides": (2, 2)}),
    ((1, 20, 48, 9, 9), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 8, 16, 1, 50), (1, 5), {"padding": ((0, 0), (2, 2))}),
    # Groups: several panels of each, one of odd width, less than a vector, two segments of memory.
    ((1, 12, 96, 9, 10), (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 3}),
    ((2, 16, 48, 8, 9), (3, 3), {"window_strides": (2, 2), "feature_group_count": 2}),
    ((1, 9, 15, 8, 9), (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 3}),
    ((1, 8, 16, 6, 7), (3, 2), {"window_reversal": (True, False), "feature_group_count": 2}),
    # Phases: of one tap each, of lines that are short, wide, cropped, reversed, of groups.
    ((1, 8, 16, 5, 6), (2, 2), {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))}),
    ((2, 5, 24, 4, 7), (4, 3), {"lhs_dilation": (2, 2), "padding": ((2, 2), (1, 2)),
                                "window_reversal": (True, True)}),
    ((1, 4, 16, 3, 70), (3, 4), {"lhs_dilation": (2, 2), "padding": ((-1, 1), (3, -2))}),
    ((1, 6, 32, 5, 6), (5, 4), {"lhs_dilation": (3, 2), "padding": ((4, 4), (2, 2)),
                                "feature_group_count": 2}),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("case", range(len(STEMS)))
def test_features_as_columns(case: int, image: str, level: str) -> None:
    sizes, window, options = STEMS[case]
    check(*convolution(image, "OIHW", sizes, window, **options), codegen.host_target(level))


def test_phases_of_a_transposed_convolution() -> None:
    """Each result is in one phase; together they have as many products as the image has pixels that
    are not zeros between others."""
    options = {"lhs_dilation": (2, 3), "padding": ((2, 2), (1, 4))}
    op, _ = convolution("NHWC", "OIHW", (1, 4, 8, 6, 7), (4, 5), **options)
    parts = phases.of(geometry_of(op))
    sizes = [[(s.outputs, s.kernel) for s in part.spatial] for part in parts]
    # The two phases along the first dim see as many taps, so they are one loop.
    assert sum(2 * y * x for (y, _), (x, _) in sizes) == op.type.dims[1] * op.type.dims[2]
    assert {tuple(taps for _, taps in size) for size in sizes} == {(2, 2), (2, 1)}
    assert len(parts) == 3
    strided, _ = convolution(
        "NHWC", "OIHW", (1, 4, 8, 6, 7), (4, 5), window_strides=(2, 1), **options
    )
    assert len(phases.of(geometry_of(strided))) == 1


SHARED: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((2, 24, 40, 5, 7), (4, 4), {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))}),
    ((1, 20, 24, 4, 3), (4, 10), {"lhs_dilation": (2, 5), "padding": ((3, 1), (7, 6)),
                                  "window_reversal": (True, True)}),
    ((1, 12, 40, 6, 5), (3, 2), {"lhs_dilation": (3, 2), "padding": ((2, 2), (1, 1)),
                                 "window_reversal": (False, True)}),
    ((1, 12, 40, 6, 5), (2, 2), {"lhs_dilation": (2, 2), "padding": ((-1, 1), (-2, 2))}),
    ((2, 24, 32, 6, 30), (4, 4), {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 2)),
                                  "feature_group_count": 2}),
    ((3, 24, 40, 1, 1), (4, 3), {"padding": ((3, 3), (2, 2)), "window_reversal": (True, True)}),
    ((2, 24, 3, 1, 9), (4, 4), {"padding": ((3, 3), (2, 2)), "lhs_dilation": (1, 2)}),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("case", range(len(SHARED)))
def test_phases_that_are_one_loop(case: int, image: str, level: str) -> None:
    """Of dilated images, and of images of one pixel, of which each result sees one tap."""
    sizes, window, options = SHARED[case]
    op, inputs = convolution(image, "OIHW", sizes, window, **options)
    (part,) = phases.of(geometry_of(op))
    assert any(spatial.phases is not None for spatial in part.spatial)
    check(op, inputs, codegen.host_target(level))


FEW: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((2, 64, 1, 9, 13), (1, 1), {}),
    ((2, 40, 2, 9, 13), (1, 1), {"window_strides": (2, 3)}),
    ((1, 64, 1, 6, 32), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 40, 2, 7, 33), (3, 5), {"padding": ((1, 1), (2, 2)), "window_reversal": (True, True)}),
    ((1, 33, 2, 12, 20), (2, 3), {"padding": ((0, 1), (1, 0)), "window_strides": (2, 2)}),
    ((2, 32, 3, 16, 24), (4, 4), {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))}),
    ((1, 256, 4, 9, 16), (3, 3), {"padding": ((2, 2), (2, 2)), "rhs_dilation": (2, 2)}),
    ((1, 1024, 2, 4, 16), (3, 3), {"padding": ((1, 1), (1, 1))}),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("case", range(len(FEW)))
def test_few_features_are_inner_products(
    case: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, window, options = FEW[case]
    used: list[int] = []
    emit = inner.emit_inner_products
    monkeypatch.setattr(
        "girih.backends.cpu.contract.convolution.emit_inner_products",
        lambda *a: used.append(1) or emit(*a),
    )
    op, inputs = convolution("NHWC", "OIHW", sizes, window, **options)
    check(op, inputs, codegen.host_target(level))
    assert used or sizes[2] * 2 > codegen.host_target(level).lanes("float")


def test_many_rows_and_groups_of_columns() -> None:
    """Row blocks and column groups that end unevenly."""
    target = codegen.host_target()
    for sizes in ((3, 16, 200, 23, 21), (1, 300, 72, 13, 9)):
        check(*convolution("NHWC", "OIHW", sizes, (1, 1)), target)
        same = convolution("NHWC", "OIHW", sizes, (3, 3), padding=((1, 1), (1, 1)))
        check(*same, target)


WINOGRAD: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 64, 64, 14, 14), {"padding": ((1, 1), (1, 1))}),
    ((2, 32, 96, 13, 17), {"padding": ((1, 1), (1, 1))}),
    ((1, 32, 48, 40, 31), {}),
    ((3, 48, 32, 9, 9), {"padding": ((0, 2), (2, 0))}),
    ((1, 32, 32, 1, 200), {"padding": ((1, 1), (1, 1))}),
    ((1, 32, 32, 30, 8), {"padding": ((-1, 1), (4, -2))}),
    ((1, 256, 32, 17, 14), {"padding": ((1, 1), (1, 1))}),  # blocks of other sizes
    ((1, 544, 64, 7, 7), {"padding": ((1, 1), (1, 1))}),  # features in parts
    ((2, 192, 192, 12, 9), {"padding": ((1, 1), (1, 1)), "feature_group_count": 3}),
    ((1, 64, 96, 14, 10), {"feature_group_count": 2}),
    ((1, 160, 256, 8, 11), {"padding": ((1, 1), (1, 1)), "feature_group_count": 2}),
]


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("case", range(len(WINOGRAD)))
def test_winograd(case: int, level: str) -> None:
    sizes, options = WINOGRAD[case]
    target = codegen.host_target(level)
    op, inputs = convolution("NHWC", "OIHW", sizes, (3, 3), **options)
    packing = packing_for(op, target, True)
    assert packing is not None and packing.name.startswith("winograd")
    check(op, inputs, target, packing)


ONE = (1, 1), (1, 1), (1, 1)
VOLUMES: list[tuple[tuple[int, ...], int, dict[str, Any]]] = [
    ((1, 32, 48, 5, 9, 11), 3, {"padding": ONE}),
    ((2, 48, 96, 3, 13, 11), 3, {"padding": ((0, 2), (2, 0), (1, 1))}),
    ((2, 64, 32, 4, 9, 8), 3, {}),
    ((1, 32, 32, 3, 9, 8), 1, {"padding": ((0, 0), (1, 1), (1, 1))}),
    ((1, 64, 32, 7, 8, 9), 3, {"padding": ONE, "window_strides": (2, 1, 1)}),
    ((1, 32, 64, 6, 9, 8), 3, {"padding": ((2, 2), *ONE[1:]), "rhs_dilation": (2, 1, 1)}),
    ((1, 32, 32, 9, 8, 8), 5, {
        "padding": ((5, 4), *ONE[1:]), "window_strides": (3, 1, 1), "rhs_dilation": (2, 1, 1),
    }),
    ((1, 32, 32, 7, 8, 8), 3, {"padding": ((-1, -2), (3, -2), (0, 1))}),
    ((1, 32, 32, 1, 9, 9), 3, {"padding": ONE}),  # one tap alone meets the image
    ((1, 32, 64, 2, 8, 9), 2, {"padding": ((3, 4), *ONE[1:])}),  # results of padding alone
    ((1, 192, 96, 3, 10, 9), 2, {"padding": ((1, 0), *ONE[1:]), "feature_group_count": 2}),
    ((1, 96, 256, 2, 17, 14), 3, {"padding": ONE}),  # blocks of other sizes
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("case", range(len(VOLUMES)))
def test_winograd_of_planes(case: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, taps, options = VOLUMES[case]
    kernel = sorted(VOLUME_KERNELS)[case % 2]
    target = codegen.host_target(level)
    made: list[object] = []
    form = winograd.of_tiles
    monkeypatch.setattr(winograd, "of_tiles", lambda *a: made.append(form(*a)) or made[-1])
    op, inputs = convolution("NDHWC", kernel, sizes, (taps, 3, 3), **options)
    packing = packing_for(op, target, True)
    assert packing is not None and packing.name.startswith("winograd")
    check(op, inputs, target, packing)
    assert any(made)


def test_winograd_stores_each_weight_once() -> None:
    op, (_, weight) = convolution("NHWC", "OIHW", WINOGRAD[0][0], (3, 3))
    packing = packing_for(op, codegen.host_target(LEVELS[0]), True)
    assert packing is not None and packing.name.startswith("winograd")
    stored = build_region([op.rhs.tensor], lambda b, x: [packing.forward(b, x)])
    assert stored.results[0].tensor.size == weight.size


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("where", ["input", "weight", "overflow"])
@pytest.mark.parametrize("groups", [1, 2])
def test_winograd_keeps_what_is_not_finite(groups: int, where: str, level: str) -> None:
    """An infinity or a NaN reaches the results that see it and no others; no sum overflows that is
    no result."""
    sizes = (2, 32 * groups, 48 * groups, 20, 23)
    options = {"padding": ((1, 1), (1, 1)), "feature_group_count": groups}
    op, inputs = convolution("NHWC", "OIHW", sizes, (3, 3), **options)
    _check_not_finite(op, inputs, inputs[0], inputs[1], where, level)


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("where", ["input", "weight", "overflow"])
def test_winograd_of_planes_keeps_what_is_not_finite(where: str, level: str) -> None:
    """The same in one plane, or at all of its taps: planes of padding have no products."""
    padding = ((0, 0) if where == "weight" else (1, 2), (1, 1), (1, 1))
    sizes = (2, 32, 48, 4, 20, 23)
    op, inputs = convolution("NDHWC", "OIDHW", sizes, (3, 3, 3), padding=padding)
    image, weight = inputs
    _check_not_finite(op, inputs, image[:, 2], weight, where, level)


def _check_not_finite(
    op: Op, inputs: list[np.ndarray], image: np.ndarray, weight: np.ndarray, where: str, level: str
) -> None:
    """With large values in some places of an image and its weights, parts of the inputs."""
    target = codegen.host_target(level)
    if where == "input":
        image[0, 3, 5, 7], image[0, 11, 22, 0], image[1, 19, 0, 31] = np.inf, np.nan, -np.inf
    elif where == "weight":
        weight[5, 7, ..., 1, 2], weight[40, 0, ..., 0, 0] = np.inf, np.nan
    else:
        image[0, 8, 8:11, 3] = 3e38, -3e38, 3e38
        weight[:, 3] = 0.25
    packing = packing_for(op, target, True)
    assert packing is not None and packing.name.startswith("winograd")
    with np.errstate(all="ignore"):
        expected = op.definition.evaluate(op, *inputs)
        assert np.isfinite(expected).sum() > 0
        assert (where == "overflow") == bool(np.isfinite(expected).all())
        check(op, inputs, target, packing)

"""Convolution kernels against the interpreter's evaluate, in several layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from girih.backends.cpu.contract import phases
from girih.backends.cpu.contract.lines import WindowLines
from girih.hlo.build import Builder

from .test_contract import check, random, tensor_of

pytestmark = pytest.mark.usefixtures("each_level")
# (batch, feature, spatial...) of input and result; (output, input, spatial...) of the kernel.
LAYOUTS = {
    "NCHW": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    "NHWC": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    "weight_gradient": ((1, 0, 2, 3), (1, 0, 2, 3), (1, 0, 2, 3)),
    "mixed": ((2, 3, 0, 1), (0, 1, 2, 3), (3, 0, 2, 1)),
    "NHWC_to_NCHW": ((0, 3, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3)),
    "batch_minor": ((3, 1, 0, 2), (0, 2, 1, 3), (3, 1, 0, 2)),
}

CASES: list[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 8), (9, 11), (3, 3), {}),
    ((2, 16, 40), (14, 14), (1, 1), {}),
    ((2, 16, 40), (14, 14), (1, 1), {"window_strides": (2, 2)}),
    ((1, 5, 70), (20, 18), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 5, 7), (20, 18), (3, 3), {"padding": ((1, 2), (0, 3)), "window_strides": (2, 1)}),
    ((1, 3, 7), (20, 18), (7, 7), {"padding": ((3, 3), (3, 3)), "window_strides": (2, 2)}),
    ((2, 8, 12), (7, 7), (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 4}),
    ((4, 8, 12), (7, 7), (3, 3), {"padding": ((1, 1), (1, 1)), "batch_group_count": 2}),
    ((1, 4, 6), (7, 7), (3, 3), {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 3)}),
    ((1, 4, 6), (7, 7), (3, 3), {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 1)}),
    ((1, 4, 6), (12, 13), (3, 2), {"rhs_dilation": (2, 3), "window_reversal": (True, False)}),
    ((1, 4, 6), (12, 13), (3, 2), {"padding": ((-1, 1), (1, -2)), "rhs_dilation": (2, 3)}),
    ((1, 4, 6), (12, 13), (1, 1), {"padding": ((-1, 0), (0, -2))}),
    ((2, 6, 6), (12, 33), (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 6}),
    ((2, 6, 6), (12, 33), (3, 3),
     {"padding": ((1, 0), (0, 1)), "feature_group_count": 6, "window_strides": (2, 2)}),
    ((1, 48, 48), (7, 9), (7, 5), {"padding": ((3, 3), (2, 2)), "feature_group_count": 48}),
    ((2, 6, 12), (12, 17), (5, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 6}),
    ((1, 4, 6), (0, 3), (3, 2), {"padding": ((2, 1), (0, 2))}),
    # Phases that are one loop.
    ((2, 4, 6), (7, 7), (4, 3), {"padding": ((2, 2), (3, 1)), "lhs_dilation": (2, 3)}),
    ((1, 4, 6), (6, 6), (4, 4),
     {"padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2), "window_reversal": (True, False)}),
]  # fmt: skip


def run(
    layout: Sequence[Sequence[int]],
    sizes: tuple[int, int, int],
    spatial: Sequence[int],
    window: Sequence[int],
    options: dict[str, Any],
    dtype: Any = np.float32,
) -> None:
    batch, inputs, outputs = sizes
    image, kernel, result = layout
    lhs = random(*_placed(image, (batch, inputs, *spatial)), dtype=dtype)
    group = inputs // options.get("feature_group_count", 1)
    rhs = random(*_placed(kernel, (outputs, group, *window)), dtype=dtype)
    b = Builder()
    x, y = b.arguments([tensor_of(lhs), tensor_of(rhs)])
    attributes = {
        "input_batch_dimension": image[0], "input_feature_dimension": image[1],
        "input_spatial_dimensions": tuple(image[2:]),
        "kernel_output_feature_dimension": kernel[0], "kernel_input_feature_dimension": kernel[1],
        "kernel_spatial_dimensions": tuple(kernel[2:]),
        "output_batch_dimension": result[0], "output_feature_dimension": result[1],
        "output_spatial_dimensions": tuple(result[2:]), **options,
    }  # fmt: skip
    check(b.op("convolution", [x, y], attributes), [lhs, rhs])


def _placed(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    dims = [0] * len(order)
    for dim, size in zip(order, sizes, strict=True):
        dims[dim] = size
    return dims


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_dimensions(layout: str, case: int) -> None:
    run(LAYOUTS[layout], *CASES[case])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_element_types(layout: str, dtype: Any) -> None:
    run(LAYOUTS[layout], (1, 4, 6), (12, 13), (3, 2), {"padding": ((1, 0), (0, 2))}, dtype)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_other_ranks(rank: int) -> None:
    first = tuple(range(rank + 2))
    last = (0, rank + 1, *range(1, rank + 1))
    options = {"padding": ((1, 1),) * rank} if rank else {}
    for layout in ((first,) * 3, (last, (rank + 1, rank, *range(rank)), last)):
        run(layout, (2, 5, 9), (6, 5, 7)[:rank], (3, 2, 3)[:rank], options)


@pytest.mark.parametrize("rank", [1, 3])
def test_dilated_images_of_other_ranks(rank: int) -> None:
    last = (0, rank + 1, *range(1, rank + 1))
    layout = (last, (rank + 1, rank, *range(rank)), last)
    options = {"padding": ((2, 1),) * rank, "lhs_dilation": (3, 1, 2)[:rank]}
    run(layout, (2, 5, 9), (6, 5, 7)[:rank], (5, 2, 3)[:rank], options)


LINES: list[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 32), (3, 4, 84), (3, 3, 3), {"padding": ((1, 1),) * 3}),
    ((2, 16, 40), (5, 84), (3, 3), {"padding": ((2, 0), (1, 1))}),
    ((1, 16, 32), (9, 168), (3, 3), {"padding": ((1, 1), (1, 0)), "window_strides": (2, 2)}),
    ((1, 16, 32), (24, 84), (3, 3), {"padding": ((8, 8), (4, 4)), "rhs_dilation": (8, 4)}),
    ((1, 16, 32), (24, 84), (3, 3),
     {"padding": ((8, 8), (1, 1)), "rhs_dilation": (8, 1), "window_reversal": (True, True)}),
    ((1, 24, 32), (168,), (5,), {"padding": ((2, 2),)}),
    # Whole lines, which the windows of several share.
    ((2, 16, 40), (9, 42), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 16, 32), (23, 84), (5, 3), {"padding": ((3, 1), (1, 1)), "window_strides": (2, 2)}),
    ((1, 16, 32), (3, 7, 42), (3, 3, 3), {"padding": ((1, 1),) * 3}),
    # Lines that panels do not divide.
    ((2, 16, 40), (3, 149), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 16, 32), (457,), (5,), {"padding": ((2, 1),), "window_strides": (2,)}),
    # Few features, whose weights are brought in order for each tile.
    ((1, 3, 32), (6, 84), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 2, 24), (6, 168), (5, 5), {"padding": ((2, 2), (2, 1)), "window_strides": (1, 2)}),
]  # fmt: skip
"""Lines of a length that panels of 14, 12, 7 and 6 rows divide, those of all CPU levels, or none
do."""


@pytest.mark.parametrize("case", range(len(LINES)))
def test_lines_that_neighbours_share(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, spatial, window, options = LINES[case]
    rank, packed = len(spatial), []
    pack = WindowLines.pack
    monkeypatch.setattr(WindowLines, "pack", lambda *a: packed.append(a) or pack(*a))
    last = (0, rank + 1, *range(1, rank + 1))
    run((last, (rank + 1, rank, *range(rank)), last), sizes, spatial, window, options)
    assert packed
    # Images whose features are planes.
    packed.clear()
    first = tuple(range(rank + 2))
    run((first, (rank + 1, rank, *range(rank)), last), sizes, spatial, window, options)
    assert packed or options.get("rhs_dilation", (1,))[-1] != 1


@pytest.mark.parametrize(
    ("spatial", "window", "options", "parts"),
    [
        ((3, 12, 28), (3, 3, 3), {"padding": ((1, 1),) * 3}, 3),
        ((2, 12, 28), (3, 3, 3), {"padding": ((1, 1),) * 3}, 2),
        ((24, 28), (3, 3), {"padding": ((8, 8), (4, 4)), "rhs_dilation": (8, 4)}, 3),
        ((24, 28), (3, 3), {"padding": ((1, 1), (1, 1))}, 1),  # little is saved
        ((2, 4, 4), (3, 3, 3), {"padding": ((1, 1),) * 3}, 1),  # few rows are left
    ],
)
def test_planes_of_padding_are_left_out(
    spatial: tuple[int, ...],
    window: tuple[int, ...],
    options: dict[str, Any],
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank, found = len(spatial), []
    edges = phases.edges
    monkeypatch.setattr(phases, "edges", lambda g: found.append(edges(g)) or found[-1])
    last = (0, rank + 1, *range(1, rank + 1))
    run((last, (rank + 1, rank, *range(rank)), last), (1, 8, 32), spatial, window, options)
    assert [len(some) for some in found] == [parts]


@pytest.mark.parametrize(
    ("spatial", "window", "options", "taps"),
    [
        ((1, 1), (3, 3), {"padding": ((1, 1), (1, 1))}, (1, 1)),
        ((2, 1), (3, 3), {"padding": ((1, 1),) * 2, "window_reversal": (True, True)}, (3, 1)),
        ((1, 5), (5, 3), {"padding": ((4, 2), (1, 1)), "window_reversal": (True, False)}, (3, 3)),
        ((3, 3), (3, 3), {"padding": ((3, 3),) * 2, "rhs_dilation": (3, 3)}, (1, 1)),
        ((2, 2), (3, 3), {"padding": ((1, 0), (0, 1)), "window_strides": (2, 2)}, (2, 2)),
        ((1, 1), (3, 3), {"padding": ((1, 1),) * 2, "feature_group_count": 16}, (1, 1)),
        ((1, 1), (2, 3), {"padding": ((3, 1), (1, 1))}, (2, 1)),
        ((1, 1), (2, 2), {"padding": ((4, -1), (0, 1))}, (1, 1)),  # nothing meets the image
    ],
)
def test_taps_that_meet_padding_alone_are_left_out(
    spatial: tuple[int, ...],
    window: tuple[int, ...],
    options: dict[str, Any],
    taps: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, of_image = [], phases.of_image
    monkeypatch.setattr(phases, "of_image", lambda g: found.append(of_image(g)) or found[-1])
    for layout in ("NCHW", "NHWC"):
        run(LAYOUTS[layout], (2, 16, 16), spatial, window, options)
        assert tuple(s.kernel for s in found[-1].spatial) == taps

"""Calls of PyTorch's operators: grids, resizing, pools, padding, bags, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .torch_layer_cases import CASES as CASES
from .torch_op_cases import case, normal, whole

aten = torch.ops.aten
IMAGE, SOLID = normal(2, 3, 5, 6), normal(1, 2, 3, 4, 5)
POINTS, PLACES = normal(2, 4, 3, 2), normal(1, 2, 3, 4, 3)
PADDINGS = ("zeros", "border", "reflection")

# Grids


def grids(mode: str) -> Any:
    def body(x: Any, points: Any) -> Any:
        return [F.grid_sample(x, points, mode, p, c) for p in PADDINGS for c in (False, True)]

    return body


def grid_gradients(backward: Any, mode: int) -> Any:
    def body(grad: Any, x: Any, points: Any) -> Any:
        return [
            backward(grad, x, points, mode, padding, corners, [True, True])
            for padding in (0, 1, 2)
            for corners in (False, True)
        ]

    return body


for number, mode in enumerate(("bilinear", "nearest", "bicubic")):
    case(f"grid-{mode}", grids(mode), IMAGE, POINTS, tolerance=2e-5)
    case(
        f"grid-{mode}-gradient", grid_gradients(aten.grid_sampler_2d_backward, number),
        normal(2, 3, 4, 3), IMAGE, POINTS, tolerance=5e-5,
    )  # fmt: skip
case("grid-3d", grids("bilinear"), SOLID, PLACES, tolerance=2e-5)
case(
    "grid-3d-gradient", grid_gradients(aten.grid_sampler_3d_backward, 0), normal(1, 2, 2, 3, 4),
    SOLID, PLACES, tolerance=5e-5,
)  # fmt: skip

# Resizing


def resized(x: Any) -> Any:
    def at(mode: str, **options: Any) -> Any:
        return F.interpolate(x, size=(7, 4), mode=mode, **options)

    return [
        *(at(mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")),
        *(at(mode, antialias=True) for mode in ("bilinear", "bicubic")),
        at("bilinear", align_corners=True),
        F.interpolate(x, scale_factor=(1.7, 0.6), mode="bicubic"),
    ]


def resize_gradients(grad: Any) -> Any:
    sizes = [7, 4], [2, 3, 5, 6]
    return [
        aten.upsample_nearest2d_backward(grad, *sizes),
        aten._upsample_nearest_exact2d_backward(grad, *sizes),
        *(
            operator(grad, *sizes, False)
            for operator in (
                aten.upsample_bilinear2d_backward, aten.upsample_bicubic2d_backward,
                aten._upsample_bilinear2d_aa_backward,
            )
        ),
    ]  # fmt: skip


BYTES = whole(0, 256, 2, 3, 5, 6, dtype=torch.uint8)
case("resize-every-mode", resized, IMAGE, tolerance=1e-5)
case("resize-gradients", resize_gradients, normal(2, 3, 7, 4), tolerance=1e-5)
case(
    "resize-bytes",
    lambda x: [F.interpolate(x, size=(7, 4), mode=mode) for mode in ("nearest", "bilinear")],
    BYTES,
)

# Pools

LOW, HIGH = F.max_pool2d(IMAGE, 2, 2, return_indices=True)
case(
    "adaptive-max-places",
    lambda x, y: [
        F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        F.adaptive_max_pool2d(x, 1, return_indices=True),
        F.adaptive_max_pool3d(y, (2, 3, 5), return_indices=True),
        F.max_pool2d(x, 2, 3, return_indices=True),  # whose windows leave a border out
    ],
    IMAGE, SOLID,
)  # fmt: skip
case(
    "max-unpool", lambda x, at: F.max_unpool2d(x, at, [2, 2], [2, 2], output_size=(5, 6)), LOW, HIGH
)
case(
    "fractional-max-pool",
    lambda x, y, s, t: [
        aten.fractional_max_pool2d(x, [2, 3], [3, 4], s),
        aten.fractional_max_pool3d(y, [2, 2, 2], [1, 2, 3], t),
    ],
    IMAGE, SOLID, normal(2, 3, 2).sigmoid(), normal(1, 2, 3).sigmoid(),
)  # fmt: skip
case(
    "pool-gradients",
    lambda g, h, x, at, y: [
        aten.avg_pool2d_backward(g, x, [3, 2], [2, 2], [1, 1], True, False, None),
        aten.avg_pool3d_backward(h, y, [2, 2, 2], [1, 2, 2], [0, 1, 0], False, True, None),
        aten.max_pool2d_with_indices_backward(
            g[:, :, :2, :3], x, [2, 2], [2, 2], [0, 0], [1, 1], False, at
        ),
        aten._adaptive_avg_pool2d_backward(g, x),
    ],
    normal(2, 3, 3, 4), normal(1, 2, 2, 3, 2), IMAGE, HIGH, SOLID, tolerance=1e-5,
)  # fmt: skip

# Padding, norms, products

case(
    "pad-negative",
    lambda x: [F.pad(x, (2, -4, -3, 1), mode) for mode in ("reflect", "replicate", "circular")],
    normal(1, 2, 5, 6),
)
case("normalize-complex", F.normalize, torch.complex(normal(3, 4), normal(3, 4)), tolerance=1e-5)
case(
    "instance-norm-statistics",
    lambda x, mean, variance: (
        F.instance_norm(x, m := mean.clone(), v := variance.clone(), use_input_stats=True), m, v
    ),
    IMAGE, normal(3), normal(3).exp(), tolerance=1e-5,
)  # fmt: skip
case(
    "bilinear-layer", F.bilinear, normal(2, 5, 3), normal(2, 5, 4), normal(6, 3, 4), tolerance=1e-5
)

# Attention, embeddings, distances

QUERY, KEY, VALUE = normal(2, 4, 5, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 8)
OUT, SUMS = aten._scaled_dot_product_flash_attention_for_cpu(QUERY, KEY, VALUE, 0.0, True)
case(
    "attention-gradient",
    lambda g, q, k, v, out, sums: [
        aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True),
        aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, out, sums, 0.0, True
        ),
    ],
    normal(2, 4, 5, 8), QUERY, KEY, VALUE, OUT, SUMS, tolerance=1e-5,
)  # fmt: skip
ROWS, BAGS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4])
TABLE = normal(10, 3)


def bag_gradients(grad: Any, table: Any, rows: Any, bags: Any) -> Any:
    results = []
    for mode in (1, 2):
        _, bag, size, places = aten._embedding_bag(
            table, rows, bags, False, mode, False, None, False, 4
        )
        results += [bag, size, places]
        results.append(
            aten._embedding_bag_dense_backward(
                grad, rows, bag, size, places, 10, False, mode, None, 4
            )
        )
    return results


case("bag-gradients", bag_gradients, normal(3, 3), TABLE, ROWS, BAGS, tolerance=1e-5)
case(
    "distance-gradients",
    lambda g, x, y, d: [
        aten._cdist_backward(g, x, y, 2.0, d), aten._cdist_backward(g, x, y, 1.0, d),
    ],
    normal(4, 5), normal(4, 3), normal(5, 3), torch.cdist(normal(4, 3), normal(5, 3)),
    tolerance=1e-5,
)  # fmt: skip
case(
    "signal-windows",
    lambda x: [
        x * getattr(torch, f"{name}_window")(9)
        for name in ("hann", "hamming", "bartlett", "blackman", "kaiser")
    ],
    normal(9),
)
case(
    "sample-frequencies",
    lambda x: [x * torch.fft.fftfreq(n, 0.25)[:3] + torch.fft.rfftfreq(n)[:3] for n in (5, 8)],
    normal(3),
)
case(
    "convolution-gradients",
    lambda g, x, w: aten.convolution_backward(
        g, x, w, [6], [2, 1], [1, 0], [1, 2], False, [0, 0], 2, [True, True, True]
    ),
    normal(2, 6, 4, 5), normal(2, 4, 7, 7), normal(6, 2, 3, 2), tolerance=2e-5,
)  # fmt: skip

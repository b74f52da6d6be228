"""Calls of PyTorch's operators: layers, sampling, sorting, resizing, writes in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from .torch_op_cases import CASES, CUBE, GENERATOR, HOSTILE, ROW, X, Y, case, normal, truth, whole

__all__ = ["CASES"]  # with those of torch_op_cases

# Convolution and pooling

case(
    "conv1d",
    lambda x, w, b: F.conv1d(x, w, b, padding=1),
    normal(2, 3, 8),
    normal(4, 3, 3),
    normal(4),
    tolerance=5e-6,
)
case(
    "conv2d",
    lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0)),
    normal(1, 3, 7, 8),
    normal(4, 3, 3, 2),
    tolerance=5e-6,
)
case(
    "conv2d-groups",
    lambda x, w, b: F.conv2d(x, w, b, groups=2, dilation=2),
    normal(1, 4, 7, 7),
    normal(6, 2, 2, 2),
    normal(6),
    tolerance=5e-6,
)
case(
    "conv2d-depthwise",
    lambda x, w: F.conv2d(x, w, padding="same", groups=4),
    normal(1, 4, 5, 5),
    normal(4, 1, 4, 3),
    tolerance=5e-6,
)
case(
    "conv2d-unbatched",
    lambda x, w: F.conv2d(x, w),
    normal(3, 5, 5),
    normal(2, 3, 2, 2),
    tolerance=5e-6,
)
case(
    "conv3d",
    lambda x, w: F.conv3d(x, w),
    normal(1, 2, 4, 4, 4),
    normal(3, 2, 2, 2, 2),
    tolerance=5e-6,
)
case(
    "conv-transpose1d",
    lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1),
    normal(1, 3, 5),
    normal(3, 2, 3),
    tolerance=5e-6,
)
case(
    "conv-transpose2d",
    lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(2, 3), dilation=2),
    normal(1, 4, 3, 4),
    normal(4, 2, 3, 2),
    normal(2),
    tolerance=5e-6,
)
case(
    "conv-transpose2d-groups",
    lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2),
    normal(1, 4, 3, 4),
    normal(4, 3, 2, 2),
    tolerance=5e-6,
)
case("max-pool1d", lambda x: F.max_pool1d(x, 3, 2), normal(1, 2, 9))
case("max-pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), normal(1, 2, 8, 7))
case("max-pool2d-ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), normal(1, 2, 8, 8))
case("max-pool2d-dilated", lambda x: F.max_pool2d(x, 2, 1, dilation=2), normal(1, 2, 6, 6))
case(
    "max-pool2d-indices",
    lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    whole(0, 4, 1, 2, 8, 7).float(),
)
case("avg-pool1d", lambda x: F.avg_pool1d(x, 2), normal(1, 2, 9))
case("avg-pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), normal(1, 2, 8, 7))
case("avg-pool2d-ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), normal(1, 2, 8, 8))
case(
    "avg-pool2d-valid",
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    normal(1, 2, 8, 7),
)
case("avg-pool2d-divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), normal(1, 2, 4, 4))
case("avg-pool3d", lambda x: F.avg_pool3d(x, 2), normal(1, 2, 4, 4, 4))
for size in (1, 2, 3, (2, 5), (2, 0)):
    case(
        f"adaptive-avg-pool2d-{size}",
        lambda x, s=size: F.adaptive_avg_pool2d(x, s),
        normal(1, 2, 4, 7),
    )
    case(
        f"adaptive-max-pool2d-{size}",
        lambda x, s=size: F.adaptive_max_pool2d(x, s),
        normal(1, 2, 4, 7),
    )
case("adaptive-avg-pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), normal(1, 2, 8))

# Normalisation and attention

case(
    "layer-norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), CUBE, ROW, normal(4), tolerance=5e-6
)
case("layer-norm-two", lambda x: F.layer_norm(x, (3, 4)), CUBE, tolerance=5e-6)
case("rms-norm", lambda x, w: F.rms_norm(x, (4,), w), CUBE, ROW, tolerance=5e-6)
case(
    "group-norm",
    lambda x, w, b: F.group_norm(x, 2, w, b),
    normal(2, 6, 3, 3),
    normal(6),
    normal(6),
    tolerance=5e-6,
)
case(
    "batch-norm",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
    normal(2, 3, 4),
    normal(3),
    normal(3).abs(),
    normal(3),
    normal(3),
    tolerance=5e-6,
)
case(
    "batch-norm-plain",
    lambda x, m, v: F.batch_norm(x, m, v),
    normal(2, 3),
    normal(3),
    normal(3).abs(),
    tolerance=5e-6,
)
case(
    "instance-norm",
    lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    normal(2, 3, 5),
    normal(3),
    normal(3),
    tolerance=5e-6,
)
Q, K, V = normal(2, 4, 5, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 3)
case("attention", F.scaled_dot_product_attention, Q, K, V)
case("attention-scale", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), Q, K, V)
case(
    "attention-causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    Q,
    K,
    V,
)
case("attention-mask", F.scaled_dot_product_attention, Q, K, V, torch.ones(5, 6).tril().bool())
case("attention-bias", F.scaled_dot_product_attention, Q, K, V, normal(1, 4, 5, 6))
case(
    "attention-all-masked",
    F.scaled_dot_product_attention,
    Q,
    K,
    V,
    (torch.arange(5) > 1)[:, None].expand(5, 6),
)
case(
    "attention-grouped",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    Q,
    K[:, :2],
    V[:, :2],
)
case(
    "attention-grouped-mask",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
    Q,
    K[:, :2],
    V[:, :2],
    normal(2, 4, 5, 6),
)
case("attention-flat", F.scaled_dot_product_attention, normal(5, 8), normal(6, 8), normal(6, 8))

# Sampling and counting

PICTURE, POINTS = normal(1, 2, 5, 6), torch.rand(1, 3, 4, 2, generator=GENERATOR) * 2.6 - 1.3
for mode in ("bilinear", "nearest"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (False, True):
            case(
                f"grid-sample-{mode}-{padding}-{corners}",
                lambda x, g, m=mode, p=padding, a=corners: F.grid_sample(x, g, m, p, a),
                PICTURE, POINTS, tolerance=5e-6,
            )  # fmt: skip
EDGES = torch.tensor([-1.0, 0.0, 0.5, 1.0])
case("histc", lambda x: torch.histc(x, 5, -1, 1), normal(40))
case("histc-end", lambda x: torch.histc(x, 4, 0, 3), torch.tensor([0.0, 1, 2, 3, 3, 4, -1]))
case("bucketize", lambda x, e: torch.bucketize(x, e), X, EDGES)
case(
    "bucketize-right", lambda x, e: torch.bucketize(x, e, right=True, out_int32=True), EDGES, EDGES
)
case("searchsorted-between", lambda e: torch.searchsorted(e, 2.5), torch.tensor([0, 2, 3, 5]))
case("searchsorted", lambda e, x: torch.searchsorted(e, x, side="right"), EDGES, X)
case("im2col", lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=(1, 2)), PICTURE)
case(
    "weight-norm",
    lambda v, g: torch.ops.aten._weight_norm(v, g, 1),
    normal(3, 4, 2),
    normal(1, 4, 1),
)
for order in (1.0, 2.0, math.inf):
    case(
        f"cdist-{order}",
        lambda x, y, p=order: torch.cdist(x, y, p),
        normal(2, 3, 4),
        normal(5, 4),
        tolerance=1e-5,
    )
case(
    "addbmm",
    lambda b, x, y: torch.addbmm(b, x, y, beta=2, alpha=0.5),
    normal(3, 5),
    normal(2, 3, 4),
    normal(2, 4, 5),
)
case(
    "broadcast",
    lambda x, y: (torch.broadcast_to(x, (2, 3, 4)), *torch.broadcast_tensors(x, y)),
    X,
    ROW,
)
case(
    "synonyms",
    lambda x, y: (
        torch.multiply(x, y) + torch.subtract(x, y, alpha=2) + torch.arctan(x) + torch.absolute(y)
    ),
    X,
    Y,
)

# Creation, sorting, resizing

case(
    "zeros-ones",
    lambda x: torch.zeros(2, 3) + torch.ones_like(x) * torch.full((2, 3), 2.5),
    normal(2, 3),
)
case("arange", lambda x: x + torch.arange(4), X)
case("arange-step", lambda x: x + torch.arange(1, 9, 2), X)
case("arange-float", lambda x: x + torch.arange(0.0, 1.0, 0.25), X)
case("linspace", lambda x: x + torch.linspace(-1, 1, 4), X)
case("eye", lambda x: x @ torch.eye(4), X)
case("scalar-tensor", lambda x: x * torch.tensor(2.0), X)
case("new-full", lambda x: x + x.new_full((4,), 3), X)
case("triangle-indices", lambda x: x + torch.tril_indices(3, 3, -1).sum(), X)
case("sort", lambda x: tuple(torch.sort(x, 1)), X)
case(
    "sort-descending",
    lambda x: tuple(torch.sort(x, stable=True, dim=0, descending=True)),
    whole(0, 4, 6, 2),
)
case("sort-nan", lambda x: torch.sort(x)[0], HOSTILE)
case("argsort", lambda x: torch.argsort(x, -1), X)
case("topk", lambda x: tuple(torch.topk(x, 2, 1)), X)
case("topk-smallest", lambda x: tuple(torch.topk(x, 3, 0, largest=False)), X)
case("kthvalue", lambda x: tuple(torch.kthvalue(x, 2, 1)), X)
case("median", lambda x: (x.median(), *x.median(1), *x.median(0, keepdim=True)), X)
case("nanmedian", lambda x: (x.nanmedian(), *x.nanmedian(1)), X.where(X > -1, math.nan))
case("median-nan", lambda x: (x.median(), x.median(0).values), X.where(X > -1, math.nan))
case("median-integer", lambda x: (x.median(), *x.median(0)), torch.tensor([[3, 1], [9, 4], [2, 6]]))
for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
    case(
        f"interpolate-{mode}",
        lambda x, m=mode: F.interpolate(x, (7, 10), mode=m),
        normal(1, 2, 4, 5),
        tolerance=5e-6,
    )
    case(
        f"interpolate-{mode}-scale",
        lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m),
        normal(1, 2, 4, 5),
        tolerance=5e-6,
    )
case(
    "interpolate-corners",
    lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True),
    normal(1, 2, 4, 5),
    tolerance=5e-6,
)
case(
    "interpolate-linear",
    lambda x: F.interpolate(x, 9, mode="linear"),
    normal(1, 2, 5),
    tolerance=5e-6,
)
case(
    "interpolate-smaller",
    lambda x: F.interpolate(x, scale_factor=0.6, mode="nearest"),
    normal(1, 2, 9, 8),
)

# Writes in place


def _writes(x: Any) -> Any:
    y = x * 1
    row = y[1]
    y.add_(1)
    row.mul_(2)
    y[:, ::2] = 5
    part = y.view(-1)[3:6]
    part.copy_(torch.arange(3.0))
    first, second = y.split(2, 1)
    second.neg_()
    y.t()[0].zero_()
    return y, row, first


case("in-place-views", _writes, normal(3, 4))
case("in-place-mask", lambda x, m: (x * 1).masked_fill_(m, 0.0).relu_(), X, truth(3, 4))
case(
    "in-place-index",
    lambda x, i: (x * 1).index_add_(0, i, x[:2]).clamp_(-1, 1),
    X,
    torch.tensor([1, 1]),
)

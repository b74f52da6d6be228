"""Calls of PyTorch's composite operators, which a saved export keeps as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F


class CompositeCase(NamedTuple):
    name: str
    target: str  # of the operator that the file holds, without "aten."
    body: Callable[..., Any]
    inputs: tuple[Any, ...]


CASES: list[CompositeCase] = []


def case(target: str, body: Callable[..., Any], *inputs: Any) -> None:
    same = sum(entry.target == target for entry in CASES)
    CASES.append(CompositeCase(f"{target}-{same}", target, body, inputs))


GENERATOR = torch.Generator().manual_seed(0)


def normal(*dims: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*dims, generator=GENERATOR).to(dtype)


def whole(low: int, high: int, *dims: int) -> Any:
    return torch.randint(low, high, dims, generator=GENERATOR)


def wave(*dims: int) -> Any:
    return torch.complex(normal(*dims), normal(*dims))


X, Y, Z = normal(4, 5), normal(4, 5), normal(4, 5)
SHARE = torch.softmax(normal(4, 5), 1)
SIGN = torch.tensor([1, -1, 1, -1])
SQUARE = normal(4, 4) + 4 * torch.eye(4)
LINE = normal(40)

# Losses

for reduction in ("none", "mean", "sum"):
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div):
        case(f"{loss.__name__}.default", lambda x, y, f=loss, r=reduction: f(x, y, reduction=r),
             X, SHARE)  # fmt: skip
    case("nll_loss_nd.default",
         lambda x, t, w, r=reduction: F.nll_loss(x, t, w, ignore_index=1, reduction=r),
         normal(3, 4, 2), torch.tensor([[0, 1], [3, 3], [1, 2]]), SHARE[0, :4])  # fmt: skip
    for smoothing in (0.0, 0.3):

        def entropy(x: Any, t: Any, w: Any, r: str = reduction, s: float = smoothing) -> Any:
            return F.cross_entropy(x, t, w, ignore_index=-100 if t.is_floating_point() else 2,
                                   reduction=r, label_smoothing=s)  # fmt: skip

        case("cross_entropy_loss.default", entropy, X, torch.tensor([2, 0, 4, 2]), SHARE[0])
        case("cross_entropy_loss.default", entropy, X, SHARE, SHARE[0])
    case("multi_margin_loss.default",
         lambda x, t, w, r=reduction: F.multi_margin_loss(x, t, 2, 0.5, w, reduction=r),
         X, whole(0, 5, 4), SHARE[0])  # fmt: skip
    case("multilabel_margin_loss.default",
         lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r),
         X, torch.tensor([[3, 0, -1, 1, 1], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [2, 2, -1, 0, 0]]),
         )  # fmt: skip
case("l1_loss.default", F.l1_loss, wave(3, 2), wave(3, 2))
case(
    "l1_loss.default", lambda x, y: F.l1_loss(x, y, reduction="sum"), whole(0, 9, 4), whole(0, 9, 4)
)
case("smooth_l1_loss.default", lambda x, y: F.smooth_l1_loss(x, y, beta=0.3), X, Y)
case("kl_div.default", lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), X, Y)
case("kl_div.default", lambda x: F.kl_div(x, torch.tensor([0.0, -1.0, math.nan]), reduction="none"),
     normal(3))  # fmt: skip
case("mse_loss.default", F.mse_loss, X, Y.half())
case("mse_loss.default", F.mse_loss, X[:0], Y[:0])
case("nll_loss_nd.default", F.nll_loss, normal(5), torch.tensor(3))
case("cross_entropy_loss.default", F.cross_entropy, normal(2, 3, 4, 2), whole(0, 3, 2, 4, 2))
case("cross_entropy_loss.default", lambda x, t: F.cross_entropy(x, t, ignore_index=1),
     X, torch.ones(4, dtype=torch.int64))  # fmt: skip
case("binary_cross_entropy.default", lambda x, y, w: F.binary_cross_entropy(x, y, w),
     SHARE.round(decimals=1), SHARE, SHARE)  # fmt: skip
case("binary_cross_entropy_with_logits.default",
     lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p),
     X, SHARE, SHARE, SHARE[0])  # fmt: skip
case("poisson_nll_loss.default", lambda x, y: F.poisson_nll_loss(x, y, full=True), X, 4 * SHARE)
case("poisson_nll_loss.default", lambda x, y: F.poisson_nll_loss(x, y, False), SHARE, Y)
case("hinge_embedding_loss.default", lambda x, y: F.hinge_embedding_loss(x, y, 0.7), X[:, 0], SIGN)
case("margin_ranking_loss.default", F.margin_ranking_loss, X[:, 0], X[:, 1], SIGN)
case("cosine_embedding_loss.default", lambda x, y, t: F.cosine_embedding_loss(x, y, t, 0.2),
     X, Y, SIGN)  # fmt: skip
case(
    "triplet_margin_loss.default",
    lambda x, y, z: F.triplet_margin_loss(x, y, z, p=1, swap=True, reduction="none"),
    X,
    Y,
    Z,
)
case("cosine_similarity.default", lambda x, y: F.cosine_similarity(x, y, 0), X, Y[:1])
case("pairwise_distance.default", lambda x, y: F.pairwise_distance(x, y, 3, keepdim=True), X, Y[0])

# Fourier transforms

for norm in ("backward", "ortho", "forward"):
    for transform in (torch.fft.fft, torch.fft.ifft, torch.fft.hfft, torch.fft.irfft):
        case(f"{transform.__name__}.default", lambda x, f=transform, n=norm: f(x, 7, 0, n),
             wave(6, 3))  # fmt: skip
    for transform in (torch.fft.rfft, torch.fft.ihfft, torch.fft.ifft):
        case(f"{transform.__name__}.default", lambda x, f=transform, n=norm: f(x, norm=n),
             normal(3, 5))  # fmt: skip
for transform in (torch.fft.fft2, torch.fft.ifft2, torch.fft.hfft2, torch.fft.irfft2):
    case(f"{transform.__name__}.default", transform, wave(2, 4, 3))
for transform in (torch.fft.fftn, torch.fft.ifftn, torch.fft.hfftn, torch.fft.irfftn):
    case(f"{transform.__name__}.default", lambda x, f=transform: f(x, (3, 4)), wave(2, 4, 3))
for transform in (torch.fft.rfft2, torch.fft.ihfft2):
    case(f"{transform.__name__}.default", transform, normal(2, 4, 3))
for transform in (torch.fft.rfftn, torch.fft.ihfftn):
    case(f"{transform.__name__}.default", lambda x, f=transform: f(x, dim=(2, 0)),
         whole(-9, 9, 3, 2, 4))  # fmt: skip
case("fft_fftshift.default", torch.fft.fftshift, normal(3, 4))
case("fft_ifftshift.default", lambda x: torch.fft.ifftshift(x, 0), normal(3, 4))
case("stft.default", lambda x: torch.stft(x, 8, 3, 6, torch.hann_window(6), return_complex=True),
     LINE)  # fmt: skip
case("stft.default", lambda x: torch.stft(x, 8, center=False, normalized=True, onesided=False,
     window=torch.ones(8), return_complex=True), LINE.reshape(2, 20))  # fmt: skip
for length in (None, 30, 50):

    def back(x: Any, length: int | None = length) -> Any:
        window = torch.hann_window(8)
        return torch.istft(torch.stft(x, 8, 3, window=window, return_complex=True), 8, 3,
                           window=window, length=length)  # fmt: skip

    case("istft.default", back, LINE)

# Linear algebra

case("det.default", torch.det, SQUARE)
case("logdet.default", torch.logdet, SQUARE)
case("slogdet.default", lambda x: tuple(torch.slogdet(x)), SQUARE)
for order in (1, -1, 2, -2, math.inf, "fro", "nuc"):
    kind = "str_ord" if isinstance(order, str) else "default"
    case(
        f"linalg_matrix_norm.{kind}",
        lambda x, o=order: torch.linalg.matrix_norm(x, o, (0, -1), True),
        normal(3, 2, 4),
    )
    case(f"linalg_cond.{'p_str' if isinstance(order, str) else 'default'}",
         lambda x, o=order: torch.linalg.cond(x, o), torch.stack([SQUARE, SQUARE.T]))  # fmt: skip
case("linalg_norm.default", torch.linalg.norm, normal(2, 3, 4))
case("linalg_norm.default", lambda x: torch.linalg.norm(x, 1), normal(3, 4))
case("linalg_norm.default", lambda x: torch.linalg.norm(x, -math.inf, 1), normal(3, 4))
case("linalg_norm.ord_str", lambda x: torch.linalg.norm(x, "nuc", (2, 0)), normal(3, 2, 4))
case("norm_except_dim.default", lambda x: torch.norm_except_dim(x, 2, 1), normal(3, 2, 4))
case("frobenius_norm.dim", lambda x: torch.frobenius_norm(x, (0, 1)), normal(3, 4))
case("nuclear_norm.default", torch.nuclear_norm, normal(3, 4))
case("linalg_matrix_rank.atol_rtol_tensor", torch.linalg.matrix_rank, normal(4, 2) @ normal(2, 4))
for n in (-3, 0, 1, 5):
    case("linalg_matrix_power.default", lambda x, n=n: torch.linalg.matrix_power(x, n), SQUARE)
case("linalg_multi_dot.default", lambda *m: torch.linalg.multi_dot(m),
     normal(3), normal(3, 5), normal(5, 2), normal(2))  # fmt: skip
case("chain_matmul.default", torch.chain_matmul, normal(3, 5), normal(5, 2), normal(2, 4))
case("chain_matmul.default", torch.chain_matmul, normal(3, 5))
case("linalg_tensorinv.default", lambda x: torch.linalg.tensorinv(x.reshape(2, 2, 4)), SQUARE)
case("linalg_tensorsolve.default", lambda a, b: torch.linalg.tensorsolve(a, b, (0,)),
     normal(2, 6, 3), normal(6))  # fmt: skip
case("linalg_vander.default", lambda x: torch.linalg.vander(x, N=3), whole(-3, 3, 2, 4))
case("vander.default", torch.vander, normal(4))
case("matrix_H.default", lambda x: x.H, wave(2, 3))

# Integrals, slopes, statistics

PLACES = torch.tensor([0.0, 0.5, 2.0, 2.5, 4.0])
BYTES = torch.tensor([[200, 100, 3, 250, 7]], dtype=torch.uint8)
for name in ("trapezoid", "cumulative_trapezoid"):
    body: Any = getattr(torch, name)
    for y in (X, BYTES):
        case(f"{name}.dx", lambda y, f=body: f(y, dx=0.3), y)
        case(f"{name}.x", body, y, PLACES)
for order in (1, 2):
    case("gradient.scalarint", lambda x, o=order: torch.gradient(x, spacing=2.0, edge_order=o), X)
    case(
        "gradient.tensorarray",
        lambda x, p, o=order: torch.gradient(x, spacing=(p,), dim=(1,), edge_order=o),
        X,
        PLACES,
    )
case("gradient.scalarrayint", lambda x: torch.gradient(x, spacing=(1.0, 0.5)), whole(-9, 9, 3, 4))
case("histogramdd.default", lambda x: (lambda h: (h[0], *h[1]))(torch.histogramdd(x, [3, 2])),
     normal(20, 2))  # fmt: skip
case("histogramdd.int_bins", lambda x: torch.histogramdd(x, 3, density=True)[0], normal(20, 2))

# Elementwise

SPECIAL = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
case("float_power.Tensor_Scalar", lambda x: torch.float_power(x, 2), whole(-3, 3, 4))
case("heaviside.default", torch.heaviside, SPECIAL, normal(7))
case("logaddexp2.default", torch.logaddexp2, SPECIAL, SPECIAL.flip(0))
case("logaddexp2.default", torch.logaddexp2, SPECIAL, SPECIAL)
case("special_xlogy.default", torch.special.xlogy, SPECIAL, SPECIAL.flip(0))
case("special_round.default", lambda x: torch.special.round(x, decimals=1), X)
case("special_log_softmax.default", lambda x: torch.special.log_softmax(x, 0), X)
case("linspace.default", lambda x: x + torch.linspace(-2.7, 4.9, 5, dtype=torch.int64), X)
case("diff.default", lambda x, y: torch.diff(x, 0, prepend=y), X, Y)

# Moves, windows, bags

case("atleast_3d.Sequence", lambda x, y: torch.atleast_3d(x, y), X, LINE)
case(
    "pad_sequence.default",
    lambda x, y: torch.nn.utils.rnn.pad_sequence([x, y], True, 2.0, "left"),
    X,
    Y[:2],
)
case(
    "unflatten_dense_tensors.default",
    lambda x, y: torch.ops.aten.unflatten_dense_tensors(x, [y, y[0]]),
    LINE[:25],
    X,
)
case("combinations.default", lambda x: torch.combinations(x, 1), LINE)
case("narrow.Tensor", lambda x: x.narrow(1, torch.tensor(-3), 2), X)
case("to_dense.default", lambda x: x.to_dense(), X)
case(
    "affine_grid_generator.default",
    lambda t: F.affine_grid(t, [2, 1, 3, 4], False),
    normal(2, 2, 3),
)
case("affine_grid_generator.default", lambda t: F.affine_grid(t, [1, 1, 2, 1, 3], True),
     normal(1, 3, 4))  # fmt: skip
case("conv_tbc.default", torch.conv_tbc, normal(6, 2, 3), normal(3, 3, 4), normal(4))
case("embedding_bag.padding_idx",
     lambda i, w, o: F.embedding_bag(i, w, o, mode="mean", padding_idx=-1),
     torch.tensor([0, 3, 3, 1, 2]), normal(4, 3), torch.tensor([0, 2, 2]))  # fmt: skip
case("linalg_diagonal.default", lambda x: torch.linalg.diagonal(x, offset=1), normal(2, 3, 4))

# In place


def written(change: Callable[..., Any]) -> Callable[..., Any]:
    def body(x: Any, *rest: Any) -> Any:
        x = x.clone()
        change(x, *rest)
        return x

    return body


def _and_or(x: Any, y: Any) -> None:
    x &= y
    x |= y >> 1
    x ^= 5
    x <<= 2
    x >>= 1


case("__iand__.Tensor", written(_and_or), whole(0, 99, 6), whole(0, 99, 6))
case("linalg_diagonal.default", written(lambda x: torch.linalg.diagonal(x).mul_(2)), SQUARE)
case("transpose_.default", written(lambda x: x.transpose_(0, 1).mul_(X.T)), X)
case("fill_diagonal_.default", written(lambda x: x.fill_diagonal_(7.0, wrap=True)), normal(8, 3))
case("fill_diagonal_.default", written(lambda x: x.fill_diagonal_(7.0)), normal(3, 3, 3))
case("floor_divide_.Tensor", written(lambda x, y: x.floor_divide_(y)), X, Y)
case("float_power_.Scalar", written(lambda x: x.float_power_(3.0)), normal(4, dtype=torch.float64))
case("heaviside_.default", written(lambda x, y: x.heaviside_(y)), SPECIAL, SPECIAL.flip(0))
case("ldexp_.default", written(lambda x, y: x.ldexp_(y)), X, whole(-3, 3, 5))
case("pow_.Tensor", written(lambda x, y: x.pow_(y)), SHARE, X)

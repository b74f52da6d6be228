"""Calls of PyTorch's operators: order statistics, counts, scatters, memory, diagonals, padding."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch.nn import functional as F

from .torch_layer_cases import CASES
from .torch_op_cases import CUBE, HOSTILE, ROW, SMALL, N, X, Y, case, normal, whole

__all__ = ["CASES"]  # with those of torch_layer_cases

# Reductions and running ones

TIES = whole(0, 3, 4, 9)
case("running-extremes", lambda x: (*x.cummax(1), *x.cummin(0)), HOSTILE.view(2, 5))
case("running-extremes-ties", lambda x: (*x.cummax(1), *x.cummin(1)), TIES)
case("running-of-a-number", lambda x: (*x.cummax(0), x.cumsum(0)), torch.tensor(2.0))
case("cumsum-bf16", lambda x: x.cumsum(0), normal(9, dtype=torch.bfloat16), tolerance=8e-3)
case("logcumsumexp", lambda x: (x.logcumsumexp(0), (x * 100).logcumsumexp(1)), X, tolerance=5e-6)
case("logcumsumexp-hostile", lambda x: x.logcumsumexp(0), HOSTILE.sort()[0])
NANS = torch.tensor([[1.0, math.nan, 2.0], [math.nan, math.nan, 3.0]])
case("nansum", lambda x: (x.nansum(), x.nansum(0)), NANS)
case("aminmax", lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1, keepdim=True)), N)
case(
    "norms",
    lambda x: (
        tuple(torch.norm(x, p, 1) for p in (-math.inf, -1, 0, 0.5, 2))
        + (torch.norm(x, 3, dtype=torch.float64), torch.dist(x, -x, 1), torch.renorm(x, 2, 0, 1.0))
    ),
    X,
    tolerance=5e-6,
)
case(
    "complex-spread",
    lambda x: (*torch.var_mean(torch.view_as_complex(x).abs(), 0), torch.view_as_complex(x).var(0),
               torch.linalg.vector_norm(torch.view_as_complex(x), 3)),
    normal(3, 4, 2),
    tolerance=5e-6,
)  # fmt: skip
case("mode", lambda x: (*torch.mode(x, 1), *torch.mode(x, 0, keepdim=True)), TIES)
case("order-of-a-number", lambda x: (*x.kthvalue(1), *x.mode()), torch.tensor(2.0))
case("close", lambda x, y: (torch.isclose(x, y, 0.0, 1.0), torch.isclose(y, x, 0.5)), N, N + 1)
case("infinities", lambda x: (torch.isposinf(x), torch.isneginf(x), torch.isreal(x)), HOSTILE)
case("sum-to-size", lambda x: x.sum_to_size(3, 1), CUBE)

# Counts and places between edges

EDGES = torch.tensor([[-1.0, 0.0, 1.0], [-0.5, 0.5, 2.0]])
case(
    "searchsorted-rows",
    lambda e, x, o: (torch.searchsorted(e, x), torch.searchsorted(e, x, side="right"),
                     torch.searchsorted(e.flip(1), x, sorter=o), torch.searchsorted(e[0], 0.5),
                     torch.bucketize(0, e[1])),
    EDGES, HOSTILE.view(2, 5), torch.tensor([[2, 1, 0], [2, 1, 0]]),
)  # fmt: skip
case("histc-of-the-range", lambda x: torch.histc(x, 5), normal(20))
case(
    "histogram",
    lambda x, w: (*torch.histogram(x, 4, weight=w, density=True),
                  *torch.histogram(x, 3, range=(-1.0, 1.0)), torch.histogram(x, EDGES[0])[0]),
    normal(20), torch.linspace(0, 1, 20),
)  # fmt: skip
LENGTHS = torch.tensor([2, 0, 3])
case(
    "segments",
    lambda x, n: tuple(
        torch.segment_reduce(x, kind, lengths=n, unsafe=True)
        for kind in ("sum", "mean", "max", "min", "prod")
    )
    + (torch.segment_reduce(x, "mean", offsets=torch.tensor([0, 1, 5]), initial=1.0),),
    normal(5, 2), LENGTHS,
)  # fmt: skip

# Writing at places

AT, MODES = torch.tensor([[0, 1, 1], [3, 0, 0], [2, 2, 2]]), ("sum", "prod", "mean", "amax", "amin")
case(
    "scatter-reduce-alone",
    lambda x, i, v: tuple(x.scatter_reduce(1, i, v, kind, include_self=False) for kind in MODES)
    + (x.scatter_reduce(1, i, v, "mean"),),
    X, AT, Y[:, :3],
)  # fmt: skip
case(
    "scatter-reduce-whole-numbers",
    lambda x, i, v: tuple(x.scatter_reduce(1, i, v, kind, include_self=False) for kind in MODES)
    + (x.scatter_reduce(1, i, v, "mean"),),
    N, AT, whole(-9, 9, 3, 3),
)  # fmt: skip
case(
    "index-reduce",
    lambda x, i, v: tuple(
        x.index_reduce(1, i, v, kind, include_self=own)
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    X, torch.tensor([1, 3, 1]), Y[:, :3],
)  # fmt: skip
case(
    "index-writes-of-a-number",
    lambda x, i: (x.index_add(0, i, x), x.index_copy(0, i, -x), x.index_fill(0, i, 3.0)),
    torch.tensor(2.0), torch.tensor([0]),
)  # fmt: skip
case("put", lambda x, i, v: (x.put(i, v), x.put(i, v, accumulate=True)), X,
     torch.tensor([0, -1, 5]), ROW[:3])  # fmt: skip
MASK = torch.tensor([True, False, True])
case(
    "index-put-masks",
    lambda x, m, v: (x.index_put((m,), v), x.index_put((m,), v[0], True),
                     x.index_put((m, torch.tensor([1, 2])), v[:, 0]),
                     x.index_put((m, torch.tensor(-1)), torch.tensor(9.0), True)),
    X, MASK, Y[:2],
)  # fmt: skip


def behind(x: Any, m: Any, v: Any) -> Any:
    x, y = x.clone(), x.clone()
    x[:, m] = v
    y[:, m] += 1
    return x, y


case("index-put-mask-behind", behind, CUBE, MASK, normal(2, 2, 4))
case("gather-of-a-number", lambda x, i: x.gather(0, i), torch.tensor(2.0), torch.tensor([0, 0]))

# Side by side, parts

for name in ("hstack", "vstack", "dstack", "column_stack"):
    case(name, lambda x, y, n=name: (getattr(torch, n)([x, y]), getattr(torch, n)([x[0], y[0]])),
         X, N)  # fmt: skip
case(
    "splits",
    lambda x: (*x.hsplit(3), *x.vsplit([1]), *x.dsplit([1, -1]), *x[0, 0].hsplit(2),
               *x.tensor_split([2, 1], 2)),
    CUBE,
)  # fmt: skip
case("diag", lambda x: (torch.diag(x, 1), torch.diag(x[0], -1), torch.diagflat(x, 2)), X)
case("flips", lambda x: (x.flipud(), x.fliplr(), torch.cartesian_prod(x[0], x[1])), X)
case("kron", lambda x, y: (torch.kron(x, y), torch.kron(x[0], y)), X, N)
case("cross", lambda x, y: (torch.cross(x, y, dim=1), torch.cross(x, y[:1], dim=1)), CUBE, CUBE + 1)
for kind in ("linear", "lower", "higher", "nearest", "midpoint"):
    case(
        f"quantile-{kind}",
        lambda x, q, n=kind: (x.quantile(q, 1, interpolation=n),
                              x.nanquantile(0.4, interpolation=n),
                              x.nanquantile(q, 0, keepdim=True, interpolation=n)),
        torch.tensor([[3.0, 1.0, 2.0], [math.nan, 5.0, 7.0]]), torch.tensor([0.0, 0.3, 1.0]),
    )  # fmt: skip
case("nanmean", lambda x: (x.nanmean(), x.nanmean(0, True), *torch.std_mean(x[:, 1:])), NANS)

# Memory, diagonals


def written_views(x: Any) -> Any:
    """What lies in memory changes through views of it."""
    x = x.clone()
    x.diagonal().add_(1)
    x.hsplit(2)[1].mul_(2)
    x.tensor_split((3, 1))[2].neg_()
    return x


def turned(x: Any) -> Any:
    """A tensor that becomes a view of itself, and is written then."""
    y = x.clone()
    z = y[0]
    y.t_().unsqueeze_(0)
    y[0, 1].add_(1)
    return y, z, x.clone().t_().squeeze_(0) * 2


case("turned-in-place", turned, X)
case("as-strided", lambda x: (x.as_strided((3, 2, 2), (4, 2, 1)), x.as_strided((2, 3), (1, 1), 3),
                              x.t().as_strided((5,), (2,), 1)), X)  # fmt: skip
case("as-strided-in-place", lambda x: x.clone().as_strided_((2, 3), (1, 2), 1).add(1), X)
case("as-strided-scatter", lambda x, v: x.as_strided_scatter(v, (2, 2), (5, 1), 2), X, Y[:2, :2])
case("views-that-are-written", written_views, normal(4, 4))
case(
    "view-as-other-types",
    lambda x, b: (x.view(torch.float64), x.view(torch.int16), x.view(torch.complex64).imag,
                  b.view(torch.uint8), x.view(torch.uint8), torch.view_as_complex(
                      x.view(3, 2, 2)).view(torch.int32)),
    X, MASK,
)  # fmt: skip
case("unfold-of-a-number", lambda x: x.unfold(0, 1, 1), torch.tensor(2.0))
case("diagonal-scatter", lambda x, v: x.diagonal_scatter(v, 1, 0, 2), CUBE, normal(3, 2))
case("diag-embed", lambda x: (torch.diag_embed(x), torch.diag_embed(x, -1, 0, 2),
                              torch.diag_embed(x, 2, 1, 0)), X)  # fmt: skip
case("rot90", lambda x: tuple(torch.rot90(x, k, (0, 2)) for k in (1, 2, 3, 4)), CUBE)
case("block-diagonal", lambda x, y: (torch.block_diag(x, y, y[0]), torch.trace(x)), X, Y)
case(
    "meshgrid-of-numbers", lambda x, y: torch.meshgrid(x, y, indexing="xy"), torch.tensor(2.0), ROW
)
case("meshgrid-of-one", lambda x: torch.meshgrid(x, indexing="xy"), ROW)
case("pad-cuts-and-repeats", lambda x: (F.pad(x, (-4, 2), mode="replicate"),
                                        F.pad(x, (-1, 2), mode="reflect"),
                                        F.pad(x, (2, -1), mode="circular")), CUBE)  # fmt: skip
case("inner-of-numbers", lambda x, y: (torch.inner(x, y), torch.inner(x, x)), X, torch.tensor(2.0))
case("lines", lambda x: (torch.linspace(-3, 4, 6, dtype=torch.int64), torch.linspace(x[0], 2, 5),
                         torch.logspace(0, 2, 5), torch.arange(0.5, 7.5, 2.5, dtype=torch.int32)),
     ROW)  # fmt: skip
case("copies", lambda x: (torch.narrow_copy(x, 0, 1, 2), *cast(Any, torch.unbind_copy)(x),
                          torch.t_copy(x), *torch.unsafe_split(x, 2)),
     SMALL.t().contiguous())  # fmt: skip

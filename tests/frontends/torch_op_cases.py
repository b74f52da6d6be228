"""Calls of PyTorch's operators: elementwise, reductions, shapes, indexing, products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F


class OpCase(NamedTuple):
    name: str
    body: Callable[..., Any]
    inputs: tuple[Any, ...]
    tolerance: float


CASES: list[OpCase] = []


def case(name: str, body: Callable[..., Any], *inputs: Any, tolerance: float = 2e-6) -> None:
    CASES.append(OpCase(name, body, inputs, tolerance))


GENERATOR = torch.Generator().manual_seed(0)


def normal(*dims: int, dtype: Any = torch.float32, scale: float = 1.0) -> Any:
    return (torch.randn(*dims, generator=GENERATOR) * scale).to(dtype)


def whole(low: int, high: int, *dims: int, dtype: Any = torch.int64) -> Any:
    return torch.randint(low, high, dims, generator=GENERATOR).to(dtype)


def truth(*dims: int) -> Any:
    return torch.rand(*dims, generator=GENERATOR) > 0.5


HOSTILE = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan])
UNIT = torch.linspace(-0.95, 0.95, 12)
POSITIVE = torch.linspace(0.1, 5, 12)
X, Y = normal(3, 4), normal(3, 4)
ROW = normal(4)
N, M = whole(-9, 10, 3, 4), whole(1, 5, 3, 4)
SMALL = torch.tensor([[7, -7, 5], [-5, 6, -6]], dtype=torch.int32)

# Elementwise

for name in ("exp", "expm1", "sin", "cos", "tan", "tanh", "sigmoid", "neg", "abs", "erf", "atan",
             "sinh", "cosh", "asinh", "exp2", "square", "relu", "floor", "ceil", "trunc", "frac",
             "erfc", "sign", "deg2rad"):  # fmt: skip
    case(name, getattr(torch, name), normal(3, 4, scale=2.0))
for name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"):
    case(name, getattr(torch, name), POSITIVE, tolerance=5e-6)
for name in ("asin", "acos", "atanh", "erfinv"):
    case(name, getattr(torch, name), UNIT, tolerance=5e-6)
case("acosh", torch.acosh, POSITIVE + 1)
for name in ("floor", "ceil", "trunc", "round", "sign", "isnan", "isinf", "isfinite", "signbit",
             "nan_to_num", "relu", "abs", "sigmoid", "sgn"):  # fmt: skip
    case(f"{name}-hostile", getattr(torch, name), HOSTILE)
case("round-decimals", lambda x: torch.round(x, decimals=2), normal(5))
case("round-tens", lambda x: torch.round(x, decimals=-1), normal(5, scale=100.0))
case("abs-int", torch.abs, N)
case("exp-of-int", torch.exp, whole(-3, 4, 5))
case("neg-int", torch.neg, SMALL)
case("logit-eps", lambda x: torch.logit(x, 0.1), torch.rand(6, generator=GENERATOR))
case("nan-to-num-values", lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0), HOSTILE)

for name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "remainder", "fmod",
             "floor_divide", "fmax", "fmin", "hypot", "logaddexp", "copysign"):  # fmt: skip
    case(name, getattr(torch, name), X, Y, tolerance=4e-6)
    case(f"{name}-rows", getattr(torch, name), X, ROW, tolerance=4e-6)
case("pow", torch.pow, X.abs(), Y, tolerance=4e-6)
for name in ("add", "sub", "mul", "div", "remainder", "fmod", "floor_divide", "maximum"):
    case(f"{name}-int", getattr(torch, name), N, M)
    case(f"{name}-int-negative", getattr(torch, name), SMALL, -SMALL.flip(1))
case("add-alpha", lambda x, y: torch.add(x, y, alpha=0.5), X, Y)
case("sub-alpha", lambda x, y: torch.sub(x, y, alpha=2), X, Y)
case("rsub", lambda x: torch.rsub(x, 2.5, alpha=3), X)
case("scalar-minus", lambda x: 1.5 - x, X)
case("scalar-over", lambda x: 1.5 / x, X)
case("int-times-float", lambda x: x * 0.5, N)
case("int-plus-float-tensor", torch.add, N, X)
case("int32-plus-int64", torch.add, SMALL, SMALL.to(torch.int64))
case("bool-plus-int", torch.add, truth(3, 4), N)
case("bool-plus-bool", torch.add, truth(8), truth(8))
case("bool-times-bool", torch.mul, truth(8), truth(8))
case("float-plus-rank0-double", torch.add, X, torch.tensor(1.5, dtype=torch.float64))
case("div-floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), X * 5, Y)
case("div-trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), X * 5, Y)
case("div-floor-int", lambda x: torch.div(x, -3, rounding_mode="floor"), N)
case("div-trunc-int", lambda x: torch.div(x, -3, rounding_mode="trunc"), N)
case("div-floor-hostile", lambda x: torch.div(x, 0.5, rounding_mode="floor"), HOSTILE)
case("div-by-zero", lambda x: torch.div(x, 0.0, rounding_mode="floor"), HOSTILE)
case("remainder-scalar", lambda x: x % 3, N)
case("remainder-float-scalar", lambda x: x % -0.75, X)
case("remainder-of-scalar", lambda x: torch.remainder(7, x), M)
for exponent in (2, 3, 0.5, -0.5, -1, -2, 0, 1, 2.5, 4):
    case(f"pow-{exponent}", lambda x, e=exponent: x**e, POSITIVE, tolerance=4e-6)
case("pow-int", lambda x: x**3, N)
case("pow-scalar-base", lambda x: 2.0**x, X, tolerance=4e-6)
case("clamp", lambda x: x.clamp(-0.5, 0.5), X)
case("clamp-min-only", lambda x: x.clamp(min=0.1), X)
case("clamp-hostile", lambda x: x.clamp(-1, 1), HOSTILE)
case("clamp-tensor", torch.clamp, X, -ROW.abs(), ROW.abs())
case("clamp-int", lambda x: x.clamp(-2, 3), N)
case("bitwise", lambda x, y: (x & y) | (x ^ 5) & ~y, N, M)
case("shifts", lambda x, y: (x << y) + (x >> 1), N, M)
case("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, Y)
case("lerp-tensor", torch.lerp, X, Y, torch.rand(3, 4, generator=GENERATOR))
case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), X, Y, ROW)
case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), X, Y, ROW.abs() + 1)
case(
    "xlogy",
    torch.xlogy,
    torch.tensor([0.0, 1.0, 2.0, 0.0]),
    torch.tensor([0.0, 2.0, 3.0, math.nan]),
)
case("bf16-add-scalar", lambda x: x + 0.1, normal(64, dtype=torch.bfloat16))
case("bf16-times-scalar", lambda x: x * 0.1, normal(64, dtype=torch.bfloat16))
case("bf16-over-scalar", lambda x: x / 3.3, normal(64, dtype=torch.bfloat16))
case("bf16-scalar-minus", lambda x: 1.1 - x, normal(64, dtype=torch.bfloat16))
case("bf16-compare", lambda x: x > 0.1, torch.tensor([0.1, 0.2]).to(torch.bfloat16))
case("bf16-gelu", lambda x: F.gelu(x), normal(64, dtype=torch.bfloat16), tolerance=8e-3)
case("bf16-softmax", lambda x: x.softmax(-1), normal(4, 16, dtype=torch.bfloat16), tolerance=8e-3)
case(
    "bf16-linear",
    F.linear,
    normal(4, 16, dtype=torch.bfloat16),
    normal(8, 16, dtype=torch.bfloat16),
    tolerance=8e-3,
)
case("f16-mean", lambda x: x.mean(-1), normal(4, 64, dtype=torch.float16), tolerance=1e-3)

# Comparisons

for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(name, getattr(torch, name), N, M)
    case(f"{name}-scalar", lambda x, n=name: getattr(torch, n)(x, 0.5), HOSTILE)
case("lt-int-float", lambda x: x < 2.5, N)
case("eq-mixed", torch.eq, N, X)
case("logical", lambda x, y: torch.logical_and(x, y) | torch.logical_xor(x, y), N, truth(3, 4))
case("logical-not", torch.logical_not, N)
case("where", torch.where, truth(3, 4), X, ROW)
case("where-scalars", lambda m, x: torch.where(m, x, 1.0), truth(3, 4), X)
case("where-promotes", torch.where, truth(3, 4), N, X)
case("masked-fill", lambda x, m: x.masked_fill(m, -math.inf), X, truth(3, 4))
case("masked-fill-tensor", lambda x, m, v: x.masked_fill(m, v), X, truth(4), torch.tensor(2.0))
case("isclose", torch.isclose, X, X + 1e-6)

# Activations

WIDE = torch.linspace(-8, 8, 33)
for name in ("gelu", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "elu", "selu", "celu",
             "leaky_relu", "softplus", "logsigmoid", "softsign", "tanhshrink", "hardshrink",
             "softshrink", "hardtanh"):  # fmt: skip
    case(name, getattr(F, name), WIDE, tolerance=4e-6)
case("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), WIDE, tolerance=4e-6)
case("softplus-beta", lambda x: F.softplus(x, 2.0, 5.0), WIDE)
case("threshold", lambda x: F.threshold(x, 0.5, -1.0), WIDE)
case("prelu", F.prelu, normal(2, 3, 4), torch.tensor([0.1, 0.2, 0.3]))
case("glu", lambda x: F.glu(x, 1), normal(2, 6))
case("softmax", lambda x: x.softmax(1), normal(2, 5, 3))
case("softmax-dtype", lambda x: x.softmax(-1, dtype=torch.float64), normal(2, 5))
case("log-softmax", lambda x: x.log_softmax(-1), normal(2, 5))
case("dropout-eval", lambda x: F.dropout(x, 0.5, training=False), X)

# Reductions

CUBE = normal(2, 3, 4)
for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp"):
    case(f"{name}-last", lambda x, n=name: getattr(torch, n)(x, -1), CUBE)
    case(f"{name}-keep", lambda x, n=name: getattr(torch, n)(x, (0, 2), keepdim=True), CUBE)
for name in ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "any", "all"):
    case(f"{name}-all", getattr(torch, name), CUBE)
case("sum-int", lambda x: x.sum(0), SMALL)
case("sum-bool", torch.sum, truth(9))
case("sum-dtype", lambda x: x.sum(0, dtype=torch.float64), X)
case("prod-axis", lambda x: x.prod(1), X)
case("var-biased", lambda x: x.var(-1, correction=0), X)
case("var-mean", lambda x: torch.var_mean(x, 1), X)
case("max-dim", lambda x: tuple(torch.max(x, 1)), CUBE)
case("min-dim-keep", lambda x: tuple(torch.min(x, 0, keepdim=True)), CUBE)
case("max-dim-nan", lambda x: tuple(torch.max(x, 0)), HOSTILE)
case("max-values-only", lambda x: torch.max(x, 1)[0], CUBE)
case("argmax-ties", lambda x: x.argmax(1), whole(0, 3, 4, 9))
case("argmin-keep", lambda x: x.argmin(-1, keepdim=True), CUBE)
case("any-dim", lambda x: x.any(1), truth(3, 4))
case("all-dims", lambda x: torch.all(x, dim=0), N)
case("count-nonzero", torch.count_nonzero, N)
for order in (1, 2, 3, math.inf, 0):
    case(f"norm-{order}", lambda x, p=order: torch.linalg.vector_norm(x, p, dim=1), X)
case("norm-frobenius", torch.norm, X)
for size in (1, 5, 16, 33):
    case(f"cumsum-{size}", lambda x: x.cumsum(1), normal(2, size))
case("cumsum-int", lambda x: x.cumsum(0), N)
case("cumsum-bool", lambda x: x.cumsum(0), truth(7))
case("cumprod", lambda x: x.cumprod(-1), UNIT + 1)
case("cummax-values", lambda x: torch.cummax(x, 1)[0], X)
case("diff", lambda x: torch.diff(x), N)
case("diff-prepend", lambda x, y: torch.diff(x, 2, 0, prepend=y), N, M)

# Shapes

case("view", lambda x: x.view(4, -1), CUBE)
case("reshape-permuted", lambda x: x.permute(2, 0, 1).reshape(-1), CUBE)
case("flatten", lambda x: x.flatten(1), CUBE)
case("unflatten", lambda x: x.unflatten(2, (2, 2)), CUBE)
case("squeeze", lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1), CUBE)
case("transpose", lambda x: x.transpose(0, 2), CUBE)
case("t", lambda x: x.t(), X)
case("movedim", lambda x: x.movedim(0, 2), CUBE)
case("expand", lambda x: x.expand(5, -1, 4), normal(3, 1))
case("slice", lambda x: x[:, 1:, ::2], CUBE)
case("slice-negative", lambda x: x[-2:, :-1], CUBE)
case("select", lambda x: x[:, -1], CUBE)
case("narrow", lambda x: x.narrow(1, 1, 2), CUBE)
case("split", lambda x: x.split(2, 1), normal(2, 5))
case("split-sizes", lambda x: x.split([1, 4], 1), normal(2, 5))
case("chunk", lambda x: x.chunk(3, 1), normal(2, 7))
case("tensor-split", lambda x: torch.tensor_split(x, 3, 1), normal(2, 7))
case("unbind", lambda x: x.unbind(1), CUBE)
case("cat", lambda x, y: torch.cat([x, y, x], 1), X, Y)
case("cat-promotes", lambda x, y: torch.cat([x, y]), X, N)
case("cat-empty", lambda x, y: torch.cat([x, y]), torch.zeros(0), X)
case("stack", lambda x, y: torch.stack([x, y], 1), X, Y)
case("flip", lambda x: x.flip(0, 2), CUBE)
case("roll", lambda x: x.roll((1, -2), (0, 2)), CUBE)
case("roll-flat", lambda x: x.roll(5), CUBE)
case("repeat", lambda x: x.repeat(2, 1, 3), X)
case("tile", lambda x: x.tile(2), X)
case("repeat-interleave", lambda x: x.repeat_interleave(3, 1), X)
case("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), X)
case("pad-crops", lambda x: F.pad(x, (-1, 2)), X)
for mode in ("reflect", "replicate", "circular"):
    case(f"pad-{mode}", lambda x, m=mode: F.pad(x, (2, 1, 1, 1), mode=m), normal(1, 2, 4, 5))
case("tril", lambda x: x.tril(1), CUBE)
case("triu", lambda x: x.triu(-1), normal(4, 3))
case("diagonal", lambda x: x.diagonal(1, 1, 2), CUBE)
case("diagonal-below", lambda x: x.diagonal(-1), normal(4, 3))
case("unfold", lambda x: x.unfold(1, 3, 2), normal(2, 8))
case("pixel-shuffle", lambda x: F.pixel_shuffle(x, 2), normal(1, 8, 2, 3))
case("pixel-unshuffle", lambda x: F.pixel_unshuffle(x, 2), normal(1, 2, 4, 6))
case(
    "channel-shuffle",
    lambda x: (F.channel_shuffle(x, 2), torch.native_channel_shuffle(x, 3)),
    normal(1, 6, 2, 2),
)
case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="xy"), ROW, normal(3))
case("to-int", lambda x: x.to(torch.int32), normal(9, scale=5.0))
case("to-byte", lambda x: x.byte(), normal(9, scale=50.0))
case("to-bool", lambda x: x.bool(), HOSTILE)
case("to-double", lambda x: x.double(), X)
case("type-as", lambda x, y: x.type_as(y), N, X)
case(
    "complex",
    lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.polar(x[..., 0], x[..., 1])),
    normal(3, 2),
)

# Indexing

PLACES, COLUMNS = torch.tensor([[0, -1], [2, 1]]), torch.tensor([1, 3])
case("index", lambda x, i: x[i], normal(3, 4), PLACES)
case("index-second", lambda x, i: x[:, i], normal(2, 3, 4), PLACES)
case("index-pair", lambda x, i, j: x[i, j], normal(3, 4), PLACES, COLUMNS)
case("index-apart", lambda x, i, j: x[i, :, j], normal(3, 2, 4), PLACES, COLUMNS)
case("index-adjacent", lambda x, i, j: x[:, i, j], normal(2, 3, 4), PLACES, COLUMNS)
case("index-select", lambda x, i: x.index_select(1, i), X, COLUMNS)
case("gather", lambda x, i: x.gather(1, i), X, whole(0, 4, 3, 2))
case("gather-shorter", lambda x, i: x.gather(0, i), X, whole(0, 3, 2, 2))
case("take", lambda x, i: x.take(i), X, PLACES)
case("take-along", lambda x, i: torch.take_along_dim(x, i, 1), X, whole(0, 4, 3, 2))
case("embedding", lambda i, w: F.embedding(i, w), whole(0, 7, 2, 3), normal(7, 5))
case("one-hot", lambda i: F.one_hot(i, 5), whole(0, 5, 3))
case("index-put", lambda x, i, v: x.index_put((i,), v), X, torch.tensor([0, 2]), normal(2, 4))
case(
    "index-put-add",
    lambda x, i, v: x.index_put((i,), v, True),
    X,
    torch.tensor([1, 1]),
    normal(2, 4),
)
case(
    "index-put-pair",
    lambda x, i, j: x.index_put((i, j), torch.tensor(9.0)),
    X,
    torch.tensor([0, 2]),
    COLUMNS,
)
case("index-put-mask", lambda x, m: x.index_put((m,), torch.tensor(9.0)), X, truth(3, 4))
case(
    "scatter",
    lambda x, i, v: x.scatter(1, i, v),
    X,
    torch.tensor([[0, 1], [2, 3], [1, 0]]),
    normal(3, 2),
)
case(
    "scatter-fewer-rows",
    lambda x, i, v: x.scatter(1, i, v),
    X,
    torch.tensor([[0, 1], [2, 3]]),
    normal(3, 4),
)
case("scatter-value", lambda x, i: x.scatter(0, i, 5.0), X, whole(0, 3, 1, 4))
case("scatter-add", lambda x, i, v: x.scatter_add(1, i, v), X, whole(0, 4, 3, 4), Y)
for kind in ("sum", "prod", "amax", "amin"):
    case(
        f"scatter-reduce-{kind}",
        lambda x, i, v, k=kind: x.scatter_reduce(1, i, v, k),
        X,
        whole(0, 4, 3, 4),
        Y,
    )
case(
    "index-add",
    lambda x, i, v: x.index_add(1, i, v, alpha=2),
    X,
    torch.tensor([1, 1]),
    normal(3, 2),
)
case("index-copy", lambda x, i, v: x.index_copy(0, i, v), X, torch.tensor([2, 0]), normal(2, 4))
case("index-fill", lambda x, i: x.index_fill(1, i, 7.0), X, COLUMNS)
case("slice-scatter", lambda x, v: x.slice_scatter(v, 1, 1, 3), X, normal(3, 2))
case("slice-scatter-step", lambda x, v: x.slice_scatter(v, 1, 0, 4, 2), X, normal(3, 2))
case("select-scatter", lambda x, v: x.select_scatter(v, 0, -1), X, ROW)

# Products

case("mm", torch.mm, normal(3, 4), normal(4, 5))
case("mm-transposed", lambda x, y: x.t() @ y.t(), normal(4, 3), normal(5, 4))
case(
    "addmm",
    lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
    normal(5),
    normal(3, 4),
    normal(4, 5),
)
case("bmm", torch.bmm, normal(2, 3, 4), normal(2, 4, 5))
case(
    "baddbmm",
    lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.5),
    normal(2, 3, 5),
    normal(2, 3, 4),
    normal(2, 4, 5),
)
case("linear", F.linear, normal(2, 3, 4), normal(5, 4), normal(5))
case("mv", torch.mv, normal(3, 4), ROW)
case("addmv", torch.addmv, normal(3), normal(3, 4), ROW)
case("dot", torch.dot, ROW, normal(4))
case("outer", torch.outer, ROW, normal(3))
for left, right in (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)),
                    ((4,), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))):  # fmt: skip
    case(f"matmul-{len(left)}-{len(right)}-{left[0]}", torch.matmul, normal(*left), normal(*right))
for equation, shapes in (
    ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
    ("ij,jk", ((3, 4), (4, 5))),
    ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
    ("ij->j", ((3, 4),)),
    ("i,j->ji", ((3,), (4,))),
    ("abc,cd,d->ba", ((2, 3, 4), (4, 5), (5,))),
    ("ij,ij->ij", ((3, 4), (3, 4))),
    ("bhid,bhjd->bhij", ((1, 2, 3, 4), (1, 2, 5, 4))),
):
    case(
        f"einsum-{equation}",
        lambda *xs, e=equation: torch.einsum(e, *xs),
        *(normal(*s) for s in shapes),
    )

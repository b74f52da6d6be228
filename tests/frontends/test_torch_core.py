"""Every operator that PyTorch counts as core ATen, called by its own name, against PyTorch.

A row has an operator's arguments; rows are run some at a time, in one export. The meta-test fails
where PyTorch has a core operator without a row or a stated reason.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import girih
from girih.frontends.torch.exported import array_of

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)
F, I64, BOOL = torch.float32, torch.int64, torch.bool


def normal(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=GENERATOR)


def whole(low: int, high: int, *dims: int) -> torch.Tensor:
    return torch.randint(low, high, dims, generator=GENERATOR)


X, Y, P = normal(3, 4), normal(3, 4), normal(3, 4).abs() + 0.2
U, G = torch.linspace(-0.9, 0.9, 12).reshape(3, 4), normal(3, 4).abs() + 1.1
N, M = whole(-9, 10, 3, 4), whole(1, 5, 3, 4)
A, B = normal(3, 4) > 0, normal(3, 4) > 0
S, V = normal(2, 3, 8), normal(2, 3, 6, 6)
W = normal(2, 2, 4, 4, 4)
ROWS = torch.tensor([2, 0, 2, 1])
PLACES = whole(0, 3, 2, 4)
COMPLEX = torch.complex(normal(4, 6), normal(4, 6))
POOLED, WHERE = aten.max_pool2d_with_indices(V, [2, 2], [2, 2], [1, 1])
NORM = aten.native_layer_norm(X, [4], normal(4), None, 1e-5)
GROUPS = aten.native_group_norm(V, normal(3), None, 2, 3, 36, 3, 1e-5)

UNARY = {
    **dict.fromkeys(("acos", "asin", "atanh"), U), "acosh": G,
    **dict.fromkeys(("log", "log10", "log1p", "log2", "rsqrt", "sqrt", "reciprocal"), P),
    **dict.fromkeys((
        "abs", "alias", "asinh", "atan", "ceil", "clone", "cos", "cosh", "erf", "exp", "expm1",
        "floor", "gelu", "hardtanh", "isinf", "isnan", "leaky_relu", "logical_not", "mean", "neg",
        "elu", "relu", "round", "sigmoid", "sign", "sin", "sinh", "tan", "tanh", "trunc", "any",
    ), X),
    "bitwise_not": N, "prod": U,
}  # fmt: skip
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

ROW: dict[str, tuple[Any, ...]] = {
    **{f"{name}.default": (x,) for name, x in UNARY.items()},
    **{f"{name}.Tensor": (X, Y) for name in ("add", "sub", "mul", "div", "fmod", "remainder")},
    **{f"{name}.Scalar": (X, 0.75) for name in ("add", "sub", "mul", "div", "fmod", "remainder")},
    **{f"{name}.Tensor": (N, M) for name in COMPARISONS},
    **{f"{name}.Scalar": (N, 3) for name in COMPARISONS},
    **{f"bitwise_{name}.Tensor": (N, M) for name in ("and", "or", "xor")},
    **{f"bitwise_{name}.Scalar": (N, 6) for name in ("and", "or", "xor")},
    **{f"logical_{name}.default": (A, B) for name in ("and", "or", "xor")},
    **{f"{name}.default": (X, Y) for name in ("atan2", "maximum", "minimum")},
    **{f"{name}.default": (X, [0], True) for name in ("amax", "amin")},
    **{f"{name}.default": (X, 1) for name in ("argmax", "argmin", "cumsum")},
    **{f"{name}.dim": (X, 1, True) for name in ("max", "min")},
    **{f"reflection_pad{n}d.default": (x, [1] * 2 * n) for n, x in ((1, S), (2, V), (3, W))},
    **{f"replication_pad{n}d.default": (x, [1, 2] * n) for n, x in ((2, V), (3, W))},
    "_adaptive_avg_pool2d.default": (V, [4, 3]),
    "_adaptive_avg_pool2d_backward.default": (normal(2, 3, 4, 5), V),
    "_adaptive_avg_pool3d.default": (W, [2, 3, 2]),
    "_cdist_forward.default": (X, normal(5, 4), 2.0, None),
    "_embedding_bag.default": (X, ROWS, torch.tensor([0, 1])),
    "_fft_c2r.default": (COMPLEX, [0, 1], 2, 10),
    "_fft_r2c.default": (normal(4, 6), [0, 1], 1, True),
    "_log_softmax.default": (X, 1, False),
    "_native_batch_norm_legit.no_stats": (V, normal(3), normal(3), True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training.default": (
        V, normal(3), normal(3), normal(3), normal(3).abs(), 0.1, 1e-5,
    ),
    "_pdist_forward.default": (X, 2.0),
    "_softmax.default": (X, 0, False),
    "_to_copy.default": (X,),
    "adaptive_avg_pool1d.default": (S, [3]),
    "addmm.default": (Y[:, :3], X, normal(4, 3)),
    "any.dim": (A, 1), "any.dims": (A, [0, 1]),
    "arange.start_step": (1, 9, 2),
    "as_strided.default": (X, [2, 6], [6, 1]),
    "avg_pool1d.default": (S, [3], [2], [1]),
    "avg_pool2d.default": (V, [3, 2], [2, 1], [1, 1], True, False),
    "avg_pool2d_backward.default": (
        normal(2, 3, 4, 7), V, [3, 2], [2, 1], [1, 1], True, False, None,
    ),
    "avg_pool3d.default": (W, [2, 2, 2]),
    "bmm.default": (S, normal(2, 8, 5)),
    "cat.default": ([X, Y], 1),
    "clamp.default": (X, -0.5, 0.5), "clamp.Tensor": (X, -P, P),
    "col2im.default": (normal(2, 12, 9), [6, 7], [3, 2], [1, 2], [1, 0], [2, 2]),
    "constant_pad_nd.default": (X, [1, -1, 0, 2], 0.5),
    "convolution.default": (
        V, normal(4, 3, 3, 2), normal(4), [2, 1], [1, 0], [1, 2], False, [0, 0], 1,
    ),
    "convolution_backward.default": (
        normal(2, 6, 3, 5), V, normal(6, 1, 3, 2), [6], [2, 1], [1, 0], [1, 1], False, [0, 0], 3,
        [True, True, True],
    ),
    "copy.default": (X, Y),
    "diagonal.default": (V, 1, 2, 3),
    "div.Scalar_mode": (X, 0.3), "div.Tensor_mode": (N, M),
    "embedding.default": (X, ROWS),
    "embedding_dense_backward.default": (normal(2, 4, 5), PLACES, 3, 1, False),
    "expand.default": (normal(3, 1), [2, 3, 4]),
    "fill.Scalar": (X, 2.0),
    "flip.default": (X, [0, 1]),
    "full.default": ([2, 3], 1.5), "full_like.default": (X, 2.5),
    "gather.default": (X, 0, PLACES),
    "grid_sampler_2d.default": (V, normal(2, 3, 3, 2).tanh(), 0, 0, True),
    "index.Tensor": (X, [None, ROWS]),
    "index_put.default": (X, [torch.tensor([0, 2])], normal(2, 4), True),
    "index_select.default": (X, 1, ROWS),
    "masked_scatter.default": (X, A, normal(12)),
    "nonzero.default": (whole(0, 2, 3, 4),),
    "max_pool2d_with_indices.default": (V, [3, 3], [2, 2], [1, 1]),
    "max_pool2d_with_indices_backward.default": (
        torch.ones_like(POOLED), V, [2, 2], [2, 2], [1, 1], [1, 1], False, WHERE,
    ),
    "max_pool3d_with_indices.default": (W, [2, 2, 2]),
    "mean.dim": (X, [0], True),
    "mm.default": (X, normal(4, 5)),
    "native_dropout.default": (X, 0.5, False),
    "native_group_norm.default": (V, normal(3), normal(3), 2, 3, 36, 3, 1e-5),
    "native_group_norm_backward.default": (
        normal(2, 3, 6, 6), V, GROUPS[1], GROUPS[2], normal(3), 2, 3, 36, 3, [True, True, True],
    ),
    "native_layer_norm.default": (X, [4], normal(4), normal(4), 1e-5),
    "native_layer_norm_backward.default": (
        Y, X, [4], NORM[1], NORM[2], normal(4), normal(4), [True, True, True],
    ),
    "permute.default": (V, [2, 0, 3, 1]),
    "pow.Scalar": (2.0, X), "pow.Tensor_Scalar": (P, 2.5), "pow.Tensor_Tensor": (P, Y),
    "prod.dim_int": (X, 1),
    "repeat.default": (X, [2, 1, 3]),
    "scalar_tensor.default": (1.5,),
    "scatter.src": (X, 0, PLACES, normal(2, 4)), "scatter.value": (X, 0, PLACES, 1.5),
    "scatter_add.default": (X, 0, PLACES, normal(2, 4)),
    "scatter_reduce.two": (X, 0, PLACES, normal(2, 4), "amax"),
    "select.int": (X, 0, -1),
    "select_scatter.default": (X, normal(4), 0, 1),
    "slice.Tensor": (X, 1, 1, 4, 2),
    "slice_scatter.default": (X, normal(3, 2), 1, 0, 4, 2),
    "sort.default": (X, 1, True),
    "split_with_sizes.default": (X, [1, 3], 1),
    "squeeze.dim": (normal(3, 1, 2), 1), "squeeze.dims": (normal(1, 3, 1), [0, 2]),
    "sum.dim_IntList": (X, [0]),
    "topk.default": (X, 2, 1),
    "unsqueeze.default": (X, 1),
    "upsample_bilinear2d.vec": (V, [8, 9], False, None),
    "upsample_nearest2d.vec": (V, [9, 4], None),
    "var.correction": (X, [1]), "var.dim": (X, [1], True),
    "view.default": (X, [2, 6]),
    "where.self": (A, X, Y),
}  # fmt: skip

KEYWORDS: dict[str, dict[str, Any]] = {
    "_to_copy.default": {"dtype": torch.float16},
    "div.Scalar_mode": {"rounding_mode": "floor"},
    "div.Tensor_mode": {"rounding_mode": "trunc"},
    "var.correction": {"correction": 0},
}

RANDOM = "draws random numbers: test_torch_random"
ABSENT: dict[str, str] = {
    "rand.default": RANDOM, "randn.default": RANDOM, "randperm.default": RANDOM,
    "_local_scalar_dense.default": "gives a number, see test_a_number_read_from_a_tensor",
    "_native_batch_norm_legit.default": "writes its statistics: functional in an export",
    "atan2.out": "writes into an argument: functional in an export",
    "resize_.default": "no part of a functional graph",
    "empty.memory_format": "has no values to compare",
    "empty_strided.default": "has no values to compare",
    **dict.fromkeys(
        ("sym_is_contiguous.default", "sym_numel.default", "sym_size.int", "sym_stride.int",
         "sym_storage_offset.default"), "arithmetic on sizes",
    ),
}  # fmt: skip

FIRST_ONLY = {"_embedding_bag.default": 1, "native_dropout.default": 1}
NAMES = sorted(ROW)
GROUPS_OF = 24


def core() -> set[str]:
    found = set()
    for name in dir(aten):
        packet = getattr(aten, name)
        for kind in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, kind).tags:
                found.add(f"{name}.{kind}")
    return found


def test_every_core_operator_has_a_row_or_a_reason() -> None:
    assert core() - set(ROW) - set(ABSENT) == set()
    assert not set(ROW) & set(ABSENT)


class Rows(torch.nn.Module):
    """Calls some operators; tensors are inputs, all else is part of the program."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.leaves, self.spec = _pytree.tree_flatten(
            [(ROW[n], KEYWORDS.get(n, {})) for n in names]
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.clone() for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        results = []
        calls = _pytree.tree_unflatten(leaves, self.spec)
        for name, (args, kwargs) in zip(self.names, calls, strict=True):
            packet, kind = name.split(".")
            made = getattr(getattr(aten, packet), kind)(*args, **kwargs)
            several = list(made) if isinstance(made, (tuple, list)) else [made]
            results.append(several[: FIRST_ONLY.get(name, len(several))])
        return results


@pytest.mark.parametrize("at", range(0, len(NAMES), GROUPS_OF), ids=lambda at: NAMES[at])
def test_core_operators(at: int) -> None:
    module = Rows(NAMES[at : at + GROUPS_OF]).eval()
    inputs = module.tensors()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = module(*module.tensors())
        exported = torch.export.export(module, inputs, strict=False)
    imported = girih.import_model(exported)
    flat = [array_of(x) for x in inputs]
    results = {
        "interpreter": girih.interpret(imported, flat),
        "cpu": _pytree.tree_leaves(girih.compile(imported)(*flat)),
    }
    for engine, found in results.items():
        arrays = iter(found)
        for name, values in zip(module.names, expected, strict=True):
            for value in values:
                agrees(f"{name} on {engine}", np.asarray(next(arrays)), array_of(value))
        assert next(arrays, None) is None


def agrees(place: str, actual: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype), place
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, wanted, place)
        return
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    tolerance = 2e-3 if wanted.dtype.itemsize == 2 else 2e-5
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * scale, err_msg=place)


def test_a_number_read_from_a_tensor() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            scale = y.item()
            torch._check(scale < 100)
            return x * scale + (x > scale)

    inputs = normal(3, 4), torch.tensor(1.5)
    exported = torch.export.export(Scaled(), inputs, strict=False)
    (result,) = girih.interpret(girih.import_model(exported), [array_of(x) for x in inputs])
    np.testing.assert_allclose(result, Scaled()(*inputs).numpy(), rtol=1e-6)

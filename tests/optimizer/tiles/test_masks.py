"""Masks that loads make needless, and products over the dims that a reshape merges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.graph import Function, Module, Op, Region, arguments
from girih.hlo.interpret import evaluated, interpret
from girih.imports import import_model
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.tiles.build import build_kernel, make_group
from girih.optimizer.tiles.depths import with_split_depths
from girih.optimizer.tiles.masks import without_masks

from .programs import attention, f32


def simplified(function: Any, *inputs: Any) -> Module:
    return run_pipeline(import_model(function, *inputs), simplify_pipeline(girih.Options()))


def heads(q: Any, k: Any, v: Any) -> Any:
    """Attention on tensors whose heads lie side by side."""
    q, k, v = (x.reshape(1, x.shape[1], 2, 8).transpose(0, 2, 1, 3) for x in (q, k, v))
    return attention(q, k, v)


def walked(function: Any, inputs: list[np.ndarray], sizes: tuple[int, ...], step: int) -> Op:
    body = simplified(function, *inputs).body
    group = make_group(body.ops, body.arguments, body.results)
    own = arguments(body.argument_types)
    return build_kernel(group, own, sizes, "k", group.streams()[0], step)


def selects(op: Op) -> int:
    return [inner.name for inner in op.regions[0].walk()].count("select")


def test_windows_are_not_masked_again() -> None:
    inputs = [f32(1, 50, 16, seed=n) for n in range(3)]
    op = walked(heads, inputs, (1, 1, 32, 8), 16)
    bare = without_masks(op)
    assert selects(bare) == selects(op) - 1, "that of the values; scores are computed"
    assert without_masks(bare) is bare
    before, after = (evaluated(one, inputs)[0] for one in (op, bare))
    np.testing.assert_array_equal(before, after)


def cut(q: Any, k: Any, v: Any) -> Any:
    return heads(q, k[:, :50], v[:, :50])


def test_parts_of_memory_keep_their_masks() -> None:
    """Behind a slice's end stands something else."""
    inputs = [f32(1, 60, 16, seed=n) for n in range(3)]
    op = walked(cut, inputs, (1, 1, 32, 8), 16)
    assert without_masks(op) is op


def project(x: Any, w: Any, bias: Any) -> Any:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[2], -1) @ w + bias


@pytest.mark.parametrize("turned", (False, True))
def test_products_over_merged_dims(turned: bool) -> None:
    function = (lambda x, w, b: project(x, w.T, b)) if turned else project
    inputs = [f32(1, 3, 10, 4), f32(*((6, 12) if turned else (12, 6))), f32(6)]
    module = simplified(function, *inputs)
    split = with_split_depths(module.body)
    (dot,) = (op for op in split.ops if op.name == "dot_general")
    assert sorted(dot.operands[0].dims[d] for d in dot.lhs_contracting_dimensions) in (
        [3, 4], [1, 3, 4]
    )  # fmt: skip
    assert not any(op.name == "reshape" and op.result.tensor.size > 60 for op in split.ops)
    assert with_split_depths(split) is split
    inner = [x.reshape(a.dims) for x, a in zip(inputs, split.arguments, strict=True)]
    (wanted,), (found,) = interpret(module, inputs), interpret(with_body(module, split), inner)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def with_body(module: Module, body: Region) -> Module:
    return Module({"main": Function("main", body)}, entry="main")


def test_other_products_stay() -> None:
    def twice(x: Any, w: Any) -> Any:
        return project(x, w, 0.0), w + 1

    inputs = f32(1, 3, 10, 4), f32(12, 6)
    body = simplified(twice, *inputs).body
    assert with_split_depths(body) is body, "others read the argument as it is"
    body = simplified(lambda x, w: x @ w, f32(10, 12), inputs[1]).body
    assert with_split_depths(body) is body
    body = simplified(lambda x, w: x.reshape(5, 12) @ w, f32(10, 6), inputs[1]).body
    assert with_split_depths(body) is body, "the summed dim has a part of the rows"

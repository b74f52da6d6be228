"""Complex products become real ones that mean the same, and no weight is stored twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module, Weight
from girih.hlo.types import tensor_of
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.split_complex import SplitComplex

PLAIN = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
BATCHED = {
    "lhs_batching_dimensions": (2,),
    "rhs_batching_dimensions": (0,),
    "lhs_contracting_dimensions": (1, 3),
    "rhs_contracting_dimensions": (3, 1),
}


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng([seed, *dims])
    parts = generator.standard_normal((2, *dims))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def product(left: np.ndarray, right: np.ndarray, facts: dict[str, Any]) -> Module:
    types = [tensor_of(left), tensor_of(right)]
    return build_module(types, lambda b, x, y: [b("dot_general", x, y, **facts)])


@pytest.mark.parametrize(
    ("left", "right", "facts"),
    [
        (normal(3, 5), normal(5, 4), PLAIN),
        (normal(3, 0), normal(0, 4), PLAIN),
        (normal(3, 2, 4, 5), normal(4, 5, 6, 2), BATCHED),
        (normal(2, 3), normal(4, 5), {}),
    ],
    ids=["plain", "empty", "batched", "outer"],
)
def test_products_of_parts(left: np.ndarray, right: np.ndarray, facts: dict[str, Any]) -> None:
    module = product(left, right, facts)
    changed = SplitComplex()(module)
    verify(changed, INLINED)
    dots = [op for op in changed.walk() if op.name == "dot_general"]
    assert [op.type.element.name for op in dots] == ["f32"]
    wanted, found = (girih.interpret(m, [left, right]) for m in (module, changed))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(girih.compile(module)(left, right), wanted, rtol=1e-5, atol=1e-5)


def test_a_vector_times_what_is_no_weight_stays() -> None:
    module = product(normal(8, 5), normal(5, 1), PLAIN)
    assert SplitComplex()(module) is module


def test_real_products_stay() -> None:
    real = np.ones((3, 3), np.float32)
    module = product(real, real, PLAIN)
    assert SplitComplex()(module) is module


def with_weight(weight: np.ndarray, argument: np.ndarray, facts: dict[str, Any]) -> Module:
    kind = tensor_of(weight)
    module = build_module(
        [tensor_of(argument)],
        lambda b, x: [b("dot_general", x, b("weight", type=kind, weight="w"), **facts)],
    )
    return module.with_weights({"w": Weight("w", weight)})


@pytest.mark.parametrize(
    ("weight", "argument", "facts"),
    [
        (normal(160, 128), normal(6, 160), PLAIN),
        (normal(160, 128), normal(1, 160), PLAIN),
        (
            normal(32, 24, 20),  # its innermost dim is one of the batch
            normal(20, 1, 32),
            {
                "lhs_batching_dimensions": (0,),
                "rhs_batching_dimensions": (2,),
                "lhs_contracting_dimensions": (2,),
                "rhs_contracting_dimensions": (0,),
            },
        ),
    ],
    ids=["rows", "row", "batch"],
)
def test_a_weight_is_stored_once(
    weight: np.ndarray, argument: np.ndarray, facts: dict[str, Any]
) -> None:
    module = with_weight(weight, argument, facts)
    program = girih.compile(module)
    wanted = girih.interpret(module, [argument])
    np.testing.assert_allclose(program(argument), wanted, rtol=1e-4, atol=1e-4)
    assert sum(w.type.bytes for w in program.module.weights.values()) == weight.nbytes
    np.testing.assert_allclose(
        girih.interpret(program.module, [argument]), wanted, rtol=1e-4, atol=1e-4
    )

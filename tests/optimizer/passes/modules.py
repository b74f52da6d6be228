"""Small modules for tests of passes."""

from __future__ import annotations

import numpy as np

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.types import F32, I1, I32, TensorType

LINE = TensorType((4,), F32)
MATRIX = TensorType((3, 4), F32)
FLAG = TensorType((), I1)
COUNT = TensorType((), I32)


def f32(numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


def names(module: Module) -> list[str]:
    return [op.name for op in module.walk()]


def same(left: Module, right: Module, *inputs: np.ndarray) -> bool:
    pairs = zip(girih.interpret(left, inputs), girih.interpret(right, inputs), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def with_functions(body, **functions) -> Module:
    module = build_module([FLAG, LINE], body)
    return module.with_functions({**module.functions, **functions})


def weighted(body, **arrays: np.ndarray) -> tuple[Module, list[str]]:
    """A module of one matrix and weights; the second result lists weights that were loaded."""
    loaded: list[str] = []

    def source(name: str):
        def load() -> np.ndarray:
            loaded.append(name)
            return arrays[name]

        return load

    weights = {
        name: Weight(name, source(name), TensorType(array.shape, F32))
        for name, array in arrays.items()
    }
    b = Builder()
    (x,) = b.arguments([MATRIX])
    values = {name: b("weight", type=weight.type, weight=name) for name, weight in weights.items()}
    region = b.region(body(b, x, **values))
    return Module({"main": Function("main", region)}, weights=weights), loaded

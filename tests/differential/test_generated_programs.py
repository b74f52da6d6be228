"""Random StableHLO programs: XLA:CPU, the interpreter and the cpu backend agree.

`python tests/differential/run_generated.py` runs thousands of them. Those that once disagreed are
kept here, as programs of a few operations.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module
from girih.hlo.types import F32, I32, UI64, TensorType, tensor_of

pytest.importorskip("jax")

from . import against_xla, generator  # noqa: E402 - the check above comes first


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_engines_agree(chance: random.Random) -> None:
    module, inputs = generator.program(chance)
    assert against_xla.check(module, inputs) == []


def agree(b: Builder, results: Any, *inputs: Any) -> None:
    module = Module({"main": Function("main", b.region(results))})
    assert against_xla.check(module, list(inputs)) == []


def test_sort_along_an_empty_dim() -> None:
    x = np.zeros((2, 0), np.float32)
    b = Builder()
    (value,) = b.arguments([tensor_of(x)])
    agree(b, b.op("chlo.top_k", [value], {"k": 0}).results, x)


def test_scatter_into_a_transposed_value() -> None:
    """The operand's memory is in another order than its dimensions."""
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    b = Builder()
    (value,) = b.arguments([tensor_of(x)])
    scalar = TensorType((), I32)
    replace = build_region([scalar, scalar], lambda b, old, new: [new])
    rows = b.constant(np.array([[2], [0]], np.int32))
    updates = b.constant(np.array([[9, 8], [7, 6]], np.int32))
    result = b(
        "scatter", b.transpose(value, (1, 0)), rows, updates, regions=(replace,),
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
    )  # fmt: skip
    agree(b, [result], x)


def test_several_results_of_which_one_starts_a_reduction() -> None:
    x = np.array([3.0, 1.0, 2.0], np.float32)
    b = Builder()
    (value,) = b.arguments([tensor_of(x)])
    state = b.constant(np.array([1, 2], np.uint64))
    drawn = b.op(
        "rng_bit_generator", [state], {"rng_algorithm": "PHILOX"}, (),
        [TensorType((2,), UI64), TensorType((3,), UI64)],
    ).results[1]  # fmt: skip
    top, places = b.op("chlo.top_k", [value], {"k": 1}).results
    first = b.reshape(places, ())
    whole = b.constant(np.arange(6, dtype=np.int32).reshape(2, 3))
    result = b.reduce("add", whole, first, (1,))
    agree(b, [top, result, drawn], x)


def test_windows_of_one_element_are_written() -> None:
    """select_and_scatter's windows stand in the text whatever they are."""
    x = np.array([1.0, 3.0], np.float32)
    b = Builder()
    (value,) = b.arguments([tensor_of(x)])
    scalar = TensorType((), F32)
    larger = build_region([scalar, scalar], lambda b, p, q: [b.compare("GE", p, q)])
    add = build_region([scalar, scalar], lambda b, p, q: [b("add", p, q)])
    result = b(
        "select_and_scatter", value, value, b.constant(0, scalar), regions=(larger, add),
        window_dimensions=(1,), window_strides=(1,), padding=((0, 0),),
    )  # fmt: skip
    agree(b, [result], x)

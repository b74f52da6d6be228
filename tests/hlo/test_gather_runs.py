"""A gather is recognised as a slice where its places follow each other, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.room import Case
from girih.hlo.types import F32, I64, TensorType
from girih.optimizer.passes.simplify import Simplify

from .indexing_cases import gathers


def program(case: Case) -> Module:
    """The gather with its indices as a constant."""
    x, index = case.inputs

    def body(b: Builder, value: Value) -> Sequence[Value]:
        known = b.constant(index, TensorType(index.shape, I64))
        return [b("gather", value, known, **case.attributes)]

    return build_module([TensorType(x.shape, F32)], body)


def one_by_one(case: Case) -> Case:
    """The same gather with slices that begin where those before them end, along one dim."""
    vector = case.attributes["index_vector_dim"]
    index = np.zeros(case.inputs[1].shape, np.int64)
    components = np.moveaxis(index, vector, -1)
    if components.shape[-1]:
        batch = components.shape[:-1]
        size = case.attributes["slice_sizes"][case.attributes["start_index_map"][0]]
        components[..., 0] = np.arange(math.prod(batch)).reshape(batch) * size
    return case._replace(inputs=(case.inputs[0], index))


@settings(max_examples=100, deadline=None)
@given(gathers(), st.booleans())
def test_gathers_of_neighbours_are_those_whose_places_count_up(case: Case, follow: bool) -> None:
    case = one_by_one(case) if follow else case
    x, index = case.inputs
    assume(np.unique(index).size > 1)  # one index has a rule of its own
    numbers = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    module = program(case)
    (places,) = interpret(module, [numbers])
    simple = Simplify(only=frozenset({"gather-of-neighbours"}))(module)
    assert np.array_equal(interpret(simple, [numbers])[0], places)
    run = bool((np.diff(places.reshape(-1)) == 1).all())
    assert run == all(op.name != "gather" for op in simple.walk())

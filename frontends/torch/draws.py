"""Where the random draws of a program take their bits from: a key, of which each draw has its own.

A program that draws has a state, `GENERATOR`: ui64[2], a seed and how many calls there have been.
The key of a call follows from both, that of a draw from the call's key and the draw's number in the
program, and inside of a loop from the turn. Keys are numbers of Threefry, so that the same state
gives the same bits on every target, whatever runs before or beside.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Value, Weight
from ...hlo.signature import GENERATOR
from ...hlo.trees import Tree
from ...hlo.types import UI64, TensorType
from .program import Input, TorchProgram

_ALGORITHM = "THREE_FRY"


class KeyStream:
    """Hands out a key for each draw; counts them."""

    def __init__(self, key: Value | None = None) -> None:
        """key: ui64, from which those of the draws follow; None: zero, for a first look."""
        self.key, self.count = key, 0

    def next(self, b: Builder) -> Value:
        """The key of the next draw, a ui64 of rank 0."""
        self.count += 1
        number = b.constant(self.count, TensorType((), UI64))
        return keyed(b, self.key if self.key is not None else number, number)


def keyed(b: Builder, key: Value, number: Value) -> Value:
    """The key of that number under `key`; all are ui64 of rank 0."""
    parts = [b.reshape(part, (1,)) for part in (key, number)]
    return bits(b, b("concatenate", *parts, dimension=0), TensorType((), UI64))


def bits(b: Builder, state: Value, type: TensorType) -> Value:
    """Random bits of a state ui64[2], a key and where its numbers begin."""
    types = (state.type, type)
    op = b.op("rng_bit_generator", [state], {"rng_algorithm": _ALGORITHM}, (), types)
    return op.results[1]


def drawn(b: Builder, key: Value, type: TensorType) -> Value:
    """Random bits of a draw."""
    zero = b.constant(0, TensorType((1,), UI64))
    return bits(b, b("concatenate", b.reshape(key, (1,)), zero, dimension=0), type)


def key_of_call(b: Builder, state: Value) -> tuple[Value, Value]:
    """The key of a call, and the state of the next one."""
    one = b.constant(np.array([0, 1], np.uint64))
    return bits(b, state, TensorType((), UI64)), b("add", state, one)


def with_generator(program: TorchProgram, kept: bool) -> tuple[TorchProgram, str]:
    """The program with the generator's state as a tensor of its own, or, where a caller looks after
    it, as its last argument; and its name."""
    name = GENERATOR
    while name in program.tensors or name in program.graph.inputs or name in program.graph.types:
        name += "_"
    state = np.zeros(2, np.uint64)
    graph = replace(
        program.graph,
        inputs=(*program.graph.inputs, name),
        types={**program.graph.types, name: TensorType((2,), UI64)},
    )
    if kept:
        bound = Input("constant", name, name)
        tensors = {**program.tensors, name: Weight(name, state)}
        return replace(program, graph=graph, inputs=(*program.inputs, bound), tensors=tensors), name
    positional, keywords = program.input_tree.children
    tree = Tree.tuple_of(Tree.tuple_of(*positional.children, Tree.leaf()), keywords)
    inputs = (*program.inputs, Input("user", name))
    return replace(program, graph=graph, inputs=inputs, input_tree=tree), name

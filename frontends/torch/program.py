"""What an export of PyTorch says, in plain values: the one representation that every reader fills.

A reader (`exported` from memory, `archive` from a file) knows the source's format and nothing of
HLO's operations; the lowering (`lower`) knows operations and nothing of formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...hlo.graph import Origin, Weight
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim
from ...hlo.trees import Tree
from ...hlo.types import TensorType


class Ref(NamedTuple):
    """A value of the graph by name: a tensor, or a number that depends on symbolic dims."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """One call: `target` is "aten.add.Tensor", "cond", "sym.mul", ...

    Arguments are Ref, Graph, ElementType (a dtype), Python's scalars and strings, None, and tuples
    of these. `outputs` names each result, `used` tells which of them something reads.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[str, ...]
    used: tuple[bool, ...] = ()
    origin: tuple[Origin, ...] = ()


_READ_MEMORY = (
    "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "resize", "resize_as",
)  # fmt: skip


def reads_memory(target: str) -> bool:
    """Whether an operator reads its first argument as it lies in memory: the readers of exports
    tell it as the keyword `memory` how many elements lie between neighbours along each dim, None
    where the tensor does not begin where its memory does."""
    return target.startswith(tuple(f"aten.{name}." for name in _READ_MEMORY))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which values are defined before use.

    `types` has the type of every tensor, `sizes` the formulas of numbers that are sizes; `outputs`
    holds Ref, None and Python's scalars.
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    types: Mapping[str, TensorType]
    sizes: Mapping[str, Dim] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """Every node, those of nested graphs too."""
        for node in self.nodes:
            yield node
            for argument in node.args:
                if isinstance(argument, Graph):
                    yield from argument.walk()


class Input(NamedTuple):
    """How a graph input is filled: from a "weight" (parameter or buffer `target`), a "constant"
    (tensor `target`), the "user", "fixed" (a Python value, `value`, that the export baked in), a
    "size" (a number, `value`, that its caller looks after), or a "token", which orders effects and
    has no value.
    """

    kind: str
    name: str
    target: str = ""
    value: Any = None


class Output(NamedTuple):
    """What a graph output is for: the "user", the new value of the buffer or input `target`, or the
    gradient of the parameter or input `target` (of joint graphs of forward and backward).
    """

    kind: str  # user, buffer, input, gradient, token
    target: str = ""


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """An export: graph, how its inputs and outputs are bound, and the tensors that it carries."""

    graph: Graph
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    tensors: Mapping[str, Weight]  # by name; tied names share one object
    input_tree: Tree  # of (args, kwargs): a tuple of a tuple and a dict
    output_tree: Tree
    names: tuple[str, ...] = ()  # of the positional inputs
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    constraints: tuple[SizeConstraint, ...] = ()  # that the export says itself
    branches: tuple[SizeConstraint, ...] = ()  # that decided which way the trace of the model took
    notes: tuple[str, ...] = ()  # of what the trace has fixed
    name: str = ""
    composite: bool = False  # run_decompositions() could still split operators into simpler ones

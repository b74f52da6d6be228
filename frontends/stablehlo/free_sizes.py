"""Sizes that are symbols become values of the program, for operations that StableHLO has in two
forms: with a shape that is part of their type, and with one that is an operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import SymbolicDim, TensorType
from .. import tree
from .normal import integers

TWINS = {
    "broadcast_in_dim": "dynamic_broadcast_in_dim",
    "iota": "dynamic_iota",
    "reshape": "dynamic_reshape",
}
"""Operation whose result has to have a fixed shape -> the one that takes it as an operand."""

_ONE = tree.Tensor((1,), "i64")


def needs_twin(op: Op) -> bool:
    """Whether the op's result has free sizes although StableHLO wants fixed ones."""
    kind = op.results[0].type if op.results else None
    return op.name in TWINS and isinstance(kind, TensorType) and not kind.is_static


class Sizes:
    """The sizes of one function: computed at its start from those of its arguments."""

    def __init__(self, arguments: Sequence[Value], values: Sequence[tree.Value]) -> None:
        self.operations: list[tree.Operation] = []
        self._arguments = list(zip(arguments, values, strict=True))
        self._known: dict[Any, tree.Value] = {}

    def shape(self, dims: Sequence[Any]) -> tree.Value | None:
        """An i64 vector of the sizes; None where a symbol is not found in an argument's type."""
        key = ("shape", tuple(dims))
        if key not in self._known:
            parts = [self._size(dim) for dim in dims]
            found = [part for part in parts if part is not None]
            if len(found) < len(parts):
                return None
            kind = tree.Tensor((len(dims),), "i64")
            facts = {"dimension": tree.Integer(0, "i64")}
            self._known[key] = self._add("concatenate", found, kind, facts)
        return self._known[key]

    def _size(self, dim: Any) -> tree.Value | None:
        """One size, as a vector of one."""
        if not isinstance(dim, SymbolicDim):
            return self._constant(dim)
        total: tree.Value | None = None
        for name, factor in dim.terms:
            term = self._symbol(name)
            if term is None:
                return None
            if factor != 1:
                term = self._add("multiply", [term, self._constant(factor)], _ONE)
            total = term if total is None else self._add("add", [total, term], _ONE)
        if dim.offset and total is not None:
            total = self._add("add", [total, self._constant(dim.offset)], _ONE)
        return total

    def _symbol(self, name: str) -> tree.Value | None:
        """A symbol's value, from an argument's dimension that is `factor * symbol + offset`."""
        key = ("symbol", name)
        if key in self._known:
            return self._known[key]
        for argument, value in self._arguments:
            if not isinstance(argument.type, TensorType):
                continue
            for place, dim in enumerate(argument.type.dims):
                if isinstance(dim, SymbolicDim) and [term[0] for term in dim.terms] == [name]:
                    self._known[key] = self._solved(value, place, dim)
                    return self._known[key]
        return None

    def _solved(self, value: tree.Value, place: int, dim: SymbolicDim) -> tree.Value:
        facts = {"dimension": tree.Integer(place, "i64")}
        size = self._add("get_dimension_size", [value], tree.Tensor((), "i32"), facts)
        size = self._add("convert", [size], tree.Tensor((), "i64"))
        size = self._add("reshape", [size], _ONE)
        if dim.offset:
            size = self._add("subtract", [size, self._constant(dim.offset)], _ONE)
        factor = dim.terms[0][1]
        return size if factor == 1 else self._add("divide", [size, self._constant(factor)], _ONE)

    def _constant(self, number: int) -> tree.Value:
        key = ("number", number)
        if key not in self._known:
            facts = {"value": integers([number])}
            self._known[key] = self._add("constant", [], _ONE, facts)
        return self._known[key]

    def _add(
        self, name: str, operands: list[tree.Value], kind: tree.Type, facts: Any = None
    ) -> tree.Value:
        result = tree.Value(kind)
        made = tree.Operation(f"stablehlo.{name}", operands, [result], dict(facts or {}))
        self.operations.append(made)
        return result

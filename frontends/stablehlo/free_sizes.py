"""Sizes that are symbols become values of the program, for operations that StableHLO has in two
forms: with a shape that is part of their type, and with one that is an operand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.symbols import Atom, Dim, SymbolicDim, terms_of
from ...hlo.types import TensorType
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

    def __init__(self, arguments: Sequence[Value], values: Sequence[tree.TreeValue]) -> None:
        self.operations: list[tree.Operation] = []
        self._arguments = list(zip(arguments, values, strict=True))
        self._known: dict[Any, tree.TreeValue] = {}

    def shape(self, dims: Sequence[Any]) -> tree.TreeValue | None:
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

    def _size(self, dim: Dim) -> tree.TreeValue | None:
        """One size, as a vector of one."""
        total: tree.TreeValue | None = None
        for monomial, coefficient in terms_of(dim):
            term = None if coefficient == 1 and monomial else self._constant(coefficient)
            for atom in monomial:
                factor = self._atom(atom)
                if factor is None:
                    return None
                term = factor if term is None else self._add("multiply", [term, factor], _ONE)
            assert term is not None
            total = term if total is None else self._add("add", [total, term], _ONE)
        return self._constant(0) if total is None else total

    def _atom(self, atom: Atom) -> tree.TreeValue | None:
        if not atom.function:
            return self._symbol(atom.text)
        parts = [part for operand in atom.operands if (part := self._size(operand)) is not None]
        if len(parts) < len(atom.operands):
            return None
        if atom.function == "//":
            return self._floor_divided(*parts)
        name = {"max": "maximum", "min": "minimum"}[atom.function]
        return functools.reduce(lambda x, y: self._add(name, [x, y], _ONE), parts)

    def _floor_divided(self, x: tree.TreeValue, divisor: tree.TreeValue) -> tree.TreeValue:
        """x // divisor; StableHLO's `divide` cuts towards zero, its remainder has x's sign."""
        rest = self._add("remainder", [x, divisor], _ONE)
        rest = self._add("add", [rest, divisor], _ONE)
        rest = self._add("remainder", [rest, divisor], _ONE)
        return self._add("divide", [self._add("subtract", [x, rest], _ONE), divisor], _ONE)

    def _symbol(self, name: str) -> tree.TreeValue | None:
        """A symbol's value, from an argument's dimension that is `factor * symbol + offset`."""
        key = ("symbol", name)
        if key in self._known:
            return self._known[key]
        for argument, value in self._arguments:
            if not isinstance(argument.type, TensorType):
                continue
            for place, dim in enumerate(argument.type.dims):
                factors = dim.affine if isinstance(dim, SymbolicDim) else None
                if factors is not None and list(factors) == [name]:
                    self._known[key] = self._solved(value, place, factors[name], dim.constant)
                    return self._known[key]
        return None

    def _solved(
        self, value: tree.TreeValue, place: int, factor: int, offset: int
    ) -> tree.TreeValue:
        """The symbol of a dimension that is factor * symbol + offset."""
        facts = {"dimension": tree.Integer(place, "i64")}
        size = self._add("get_dimension_size", [value], tree.Tensor((), "i32"), facts)
        size = self._add("convert", [size], tree.Tensor((), "i64"))
        size = self._add("reshape", [size], _ONE)
        if offset:
            size = self._add("subtract", [size, self._constant(offset)], _ONE)
        return size if factor == 1 else self._add("divide", [size, self._constant(factor)], _ONE)

    def _constant(self, number: int) -> tree.TreeValue:
        key = ("number", number)
        if key not in self._known:
            facts = {"value": integers([number])}
            self._known[key] = self._add("constant", [], _ONE, facts)
        return self._known[key]

    def _add(
        self, name: str, operands: list[tree.TreeValue], kind: tree.Type, facts: Any = None
    ) -> tree.TreeValue:
        result = tree.TreeValue(kind)
        made = tree.Operation(f"stablehlo.{name}", operands, [result], dict(facts or {}))
        self.operations.append(made)
        return result

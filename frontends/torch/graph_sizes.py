"""Sizes in the graphs of TorchDynamo: who tells a symbol, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim
from .sizes import parse_size


class SymbolSource(NamedTuple):
    """A symbol of a graph, and the argument that tells it: an integer, or a tensor's dimension."""

    symbol: str
    argument: int
    axis: int | None  # None: the argument itself
    said: Symbol

    def of_call(self, args: Sequence[Any]) -> int:
        """What it stands for."""
        value = args[self.argument]
        return int(value if self.axis is None else value.shape[self.axis])


def places_of(placeholders: Sequence[Any]) -> list[SymbolSource]:
    """The symbols of a graph's inputs, each with the argument that tells it."""
    import torch

    found: dict[str, SymbolSource] = {}
    for number, node in enumerate(placeholders):
        value = node.meta.get("val")
        sizes: list[tuple[int | None, Any]] = []
        if isinstance(value, torch.SymInt):
            sizes = [(None, value)]
        elif isinstance(value, torch.Tensor):
            sizes = list(enumerate(value.shape))
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                name = str(size.node.expr)
                known = found.get(name)
                if known is None or (axis is None and known.axis is not None):
                    limits = size.node.shape_env.var_to_range.get(size.node.expr)
                    said = Symbol() if limits is None else _symbol(limits)
                    found[name] = SymbolSource(name, number, axis, said)
    return list(found.values())


def _symbol(limits: Any) -> Symbol:
    """What PyTorch's range of a size says: its infinities are no ends."""
    return Symbol(max(_end(limits.lower) or 0, 0), _end(limits.upper))


def _end(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.removeprefix("-").isdigit() and abs(int(text)) < 2**62 else None


def dims_of(sizes: Sequence[Any], values: Mapping[str, Dim]) -> tuple[Dim, ...]:
    """PyTorch's sizes (or strides) as a program has them; ValueError for one that it cannot say."""
    import sympy

    return tuple(
        size if type(size) is int else parse_size(sympy.srepr(size.node.expr), values)
        for size in sizes
    )


def guards_of(graph: Any, values: Mapping[str, Dim]) -> list[SizeConstraint]:
    """What TorchDynamo checks of the symbols `values` before it calls the graph, as far as a
    program can say it."""
    import sympy

    found: dict[SizeConstraint, None] = {}
    environment = _environment(graph)
    for guard in () if environment is None else environment.guards:
        relation = _RELATIONS.get(type(guard.expr).__name__)
        known = {str(symbol) for symbol in guard.expr.free_symbols}
        if relation is None or not known or not known <= values.keys():
            continue
        try:
            left, right = (parse_size(sympy.srepr(side), values) for side in guard.expr.args)
        except ValueError:
            continue
        found[relation(left, right)] = None
    return [one for one in found if one.symbols]


def _environment(graph: Any) -> Any:
    """What PyTorch knows of the sizes of a graph; None where all are fixed."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", (value,)):
            if hasattr(size, "node") and hasattr(size.node, "shape_env"):
                return size.node.shape_env
    return None


_ORIGIN = "a guard of TorchDynamo"
_RELATIONS = {
    "Equality": lambda x, y: SizeConstraint(x, "==", y, _ORIGIN),
    "Unequality": lambda x, y: SizeConstraint(x, "!=", y, _ORIGIN),
    "LessThan": lambda x, y: SizeConstraint(x, "<=", y, _ORIGIN),
    "StrictLessThan": lambda x, y: SizeConstraint(x + 1, "<=", y, _ORIGIN),
    "GreaterThan": lambda x, y: SizeConstraint(y, "<=", x, _ORIGIN),
    "StrictGreaterThan": lambda x, y: SizeConstraint(y + 1, "<=", x, _ORIGIN),
}

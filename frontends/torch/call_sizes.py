"""Sizes that the calls of a TorchDynamo graph decide: which are one, and what they may be.

A program is compiled for a call's sizes and for others like them. Symbols that are equal in the
call are one symbol of the program (lengths of keys and values, say, which TorchDynamo keeps apart),
until a call tells them apart. Where a range has no end, the program is planned for some multiple of
the call's size; a call of a larger one gets a program of a larger range.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.symbols import Dim, SymbolicDim, bound
from .sizes import parse_size

ROOM = 4  # times what a call has, a size without an end may become before another compilation
LEAST = 512  # what it may become in any case
_PART = 4  # of the machine's memory, that one tensor of the largest sizes may take


class Place(NamedTuple):
    """A symbol of a graph, and the argument that tells it: an integer, or a tensor's dimension."""

    symbol: str
    argument: int
    axis: int | None  # None: the argument itself
    said: Symbol
    expression: Any  # sympy's


@dataclass(frozen=True)
class Chosen:
    """What a program makes of a graph's symbols.

    dims: of each symbol, in the order of the graph's, its number or the program's own symbol;
    ranges: of the program's symbols. Equal symbols have equal dims.
    """

    symbols: tuple[str, ...]
    dims: tuple[Dim, ...]
    ranges: Mapping[str, Symbol]

    @property
    def by_name(self) -> dict[str, Dim]:
        """The size of each symbol of the graph."""
        return dict(zip(self.symbols, self.dims, strict=True))

    def values(self, sizes: Sequence[int]) -> dict[str, int]:
        """What the program's symbols stand for in a call that it admits."""
        return {repr(d): n for d, n in zip(self.dims, sizes, strict=True) if not isinstance(d, int)}

    def admits(self, sizes: Sequence[int]) -> bool:
        """Whether the program is for a call of these sizes of the graph's symbols."""
        values = self.values(sizes)
        return all(
            (dim if isinstance(dim, int) else values[repr(dim)]) == size
            for dim, size in zip(self.dims, sizes, strict=True)
        ) and all(said.admits(values[name]) for name, said in self.ranges.items())


def places_of(placeholders: Sequence[Any]) -> list[Place]:
    """The symbols of a graph's inputs, each with the argument that tells it."""
    import torch

    found: dict[str, Place] = {}
    for number, node in enumerate(placeholders):
        value = node.meta.get("val")
        sizes: list[tuple[int | None, Any]] = []
        if isinstance(value, torch.SymInt):
            sizes = [(None, value)]
        elif isinstance(value, torch.Tensor):
            sizes = list(enumerate(value.shape))
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                expression = size.node.expr
                known = found.get(str(expression))
                if known is None or (axis is None and known.axis is not None):
                    limits = size.node.shape_env.var_to_range.get(expression)
                    said = Symbol() if limits is None else symbol_of_limits(limits)
                    name = str(expression)
                    found[name] = Place(name, number, axis, said, expression)
    return list(found.values())


def symbol_of_limits(limits: Any) -> Symbol:
    """What PyTorch's range of a size says: its infinities are no ends."""
    return Symbol(_end(limits.lower) or 0, _end(limits.upper))


def _end(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.removeprefix("-").isdigit() and abs(int(text)) < 2**62 else None


def fixed(places: Sequence[Place], sizes: Sequence[int]) -> Chosen:
    """A program for calls of these sizes alone."""
    return Chosen(tuple(one.symbol for one in places), tuple(sizes), {})


def opened(
    places: Sequence[Place], sizes: Sequence[int], before: Sequence[Chosen], graph: Any
) -> Chosen:
    """A program for calls like this one, and like those that earlier programs of the graph are
    for. Ranges without an end get one, which is as small as the memory of the graph's tensors at
    the largest sizes demands."""
    keys = [(size, *(one.dims[n] for one in before)) for n, size in enumerate(sizes)]
    classes = {key: SymbolicDim(f"n{number}") for number, key in enumerate(dict.fromkeys(keys))}
    dims = tuple(classes[key] for key in keys)
    ranges: dict[str, Symbol] = {}
    least: dict[str, int] = {}
    for number, (place, dim, size) in enumerate(zip(places, dims, sizes, strict=True)):
        said, name = place.said, repr(dim)
        if size < said.minimum:  # torch lets calls in that its range leaves out
            said = said._replace(minimum=size)
        ranges[name] = ranges[name].meet(said) if name in ranges else said
        earlier = [size, *(_last(one, number) for one in before)]
        least[name] = max(least.get(name, 0), *earlier)
    chosen = Chosen(tuple(one.symbol for one in places), dims, ranges)
    endless = [name for name, said in ranges.items() if said.maximum is None]
    room = {name: max(LEAST, ROOM * least[name]) for name in endless}
    tensors = _tensors(graph, chosen)
    while True:
        limits = {
            name: said._replace(maximum=_power(room[name])) if name in room else said
            for name, said in ranges.items()
        }
        largest = {name: said.last or 0 for name, said in limits.items()}
        if max((bound(one, largest) for one in tensors), default=0) <= _most_bytes():
            break
        smaller = {name: max(size // 2, 2 * least[name]) for name, size in room.items()}
        if smaller == room:
            break
        room = smaller
    return Chosen(chosen.symbols, dims, limits)


def _last(chosen: Chosen, number: int) -> int:
    dim = chosen.dims[number]
    return dim if isinstance(dim, int) else chosen.ranges[repr(dim)].last or 0


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def _most_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PART


def _tensors(graph: Any, chosen: Chosen) -> list[Dim]:
    """The bytes of the graph's tensors."""
    found: dict[Dim, None] = {}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            try:
                dims = dims_of(value.shape, chosen.by_name)
            except ValueError:
                continue
            found[math.prod(dims) * value.dtype.itemsize] = None
    return [size for size in found if not isinstance(size, int)]


def dims_of(sizes: Sequence[Any], values: Mapping[str, Dim]) -> tuple[Dim, ...]:
    """PyTorch's sizes (or strides) as the program has them; ValueError for one that it cannot
    say."""
    import sympy

    return tuple(
        size if type(size) is int else parse_size(sympy.srepr(size.node.expr), values)
        for size in sizes
    )


def guards_of(chosen: Chosen, graph: Any) -> list[SizeConstraint]:
    """What TorchDynamo checks of sizes before it calls the graph, as far as the program can say
    it."""
    import sympy

    environment = _environment(graph)
    found: dict[SizeConstraint, None] = {}
    names = set(chosen.symbols)
    for guard in () if environment is None else environment.guards:
        relation = _RELATIONS.get(type(guard.expr).__name__)
        if relation is None or not {str(one) for one in guard.expr.free_symbols} <= names:
            continue
        try:
            left, right = (
                parse_size(sympy.srepr(side), chosen.by_name) for side in guard.expr.args
            )
        except ValueError:
            continue
        if made := relation(left, right):
            found[made] = None
    return [one for one in found if one.symbols]


def _environment(graph: Any) -> Any:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", (value,)):
            if hasattr(size, "node") and hasattr(size.node, "shape_env"):
                return size.node.shape_env
    return None


_ORIGIN = "TorchDynamo's guard"
_RELATIONS = {
    "Equality": lambda x, y: SizeConstraint(x, "==", y, _ORIGIN),
    "Unequality": lambda x, y: SizeConstraint(x, "!=", y, _ORIGIN),
    "LessThan": lambda x, y: SizeConstraint(x, "<=", y, _ORIGIN),
    "StrictLessThan": lambda x, y: SizeConstraint(x + 1, "<=", y, _ORIGIN),
    "GreaterThan": lambda x, y: SizeConstraint(y, "<=", x, _ORIGIN),
    "StrictGreaterThan": lambda x, y: SizeConstraint(y + 1, "<=", x, _ORIGIN),
}

"""Sizes that data decide, PyTorch's unbacked `u0`, and assertions about data.

Lowerings build with such sizes as with those that a call decides: they stand in types. `explicit`
then makes each operation that only its type tells a size of read it from the scalar that the size
is, so that the program computes its sizes as StableHLO's dynamic operations do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.sizes import Symbol
from ...hlo.symbols import Dim, SymbolicDim, largest, maximum, name_of, symbols_of
from ...hlo.types import I32, I64, TensorType

SCALAR = TensorType((), I64)
Place = tuple[Value, int, int, int]  # an argument, a dimension of it, k and r: it is k * size + r


class DataSizes:
    """What is known of them in one import."""

    def __init__(self, symbols: Mapping[str, Symbol]) -> None:
        """symbols: what the export says that sizes may be."""
        self.said = symbols
        self.values: dict[str, Value] = {}  # an i64 scalar each
        self.bounds: dict[str, Dim] = {}  # what they never exceed, where that is known
        self.checks: list[tuple[Value, str]] = []  # of the whole program's data
        self.given: frozenset[str] = frozenset()  # symbols of arguments
        self.places: Mapping[str, Place] = {}  # where a call tells them

    def bind(self, name: str, value: Value, bound: Dim | None = None) -> None:
        """The size is that i64 scalar."""
        self.values[name] = value
        last = self.said.get(name, Symbol()).last
        if last is not None and not (isinstance(bound, int) and bound < last):
            bound = last
        if bound is not None:
            self.bounds[name] = bound

    def decides(self, dim: Any) -> bool:
        """Whether data decide that size."""
        return isinstance(dim, SymbolicDim) and any(n in self.values for n in dim.symbols)

    def of_number(self, number: Any) -> Any:
        """The size that a scalar of the program is; what is none stays."""
        found = (n for n, value in self.values.items() if value is number)
        name = next(found, None) if isinstance(number, Value) else None
        return number if name is None else SymbolicDim(name)

    def lacks(self, dim: Dim) -> bool:
        """Whether nothing tells a symbol of that size yet."""
        return any(n not in self.values and n not in self.given for n in symbols_of(dim))

    def tell(self, b: Builder, value: Value, limits: Sequence[Dim | None]) -> None:
        """Sizes of a value that nothing else tells are its own; limits: what they never exceed."""
        for axis, dim in enumerate(value.dims):
            if self.lacks(dim) and (name := name_of(dim)):
                size = b("get_dimension_size", value, dimension=axis)
                self.bind(name, b.convert(size, I64), limits[axis])

    def number(
        self, b: Builder, dim: Dim, changed: Mapping[Value, Value] | None = None
    ) -> Value | None:
        """The size as an i64 scalar; None where nothing tells a symbol of it. changed: what values
        have become."""
        if not all(n in self.values or n in self.places for n in symbols_of(dim)):
            return None

        def symbol(name: str) -> Value:
            if name in self.values:
                value = self.values[name]
                return value if changed is None else changed.get(value, value)
            argument, axis, factor, rest = self.places[name]
            size = b.convert(b("get_dimension_size", argument, dimension=axis), I64)
            if rest:
                size = b("subtract", size, b.constant(rest, SCALAR))
            return size if factor == 1 else b("divide", size, b.constant(factor, SCALAR))

        return b.size(dim, symbol, SCALAR)

    def largest(self, dim: Dim) -> Dim | None:
        """A number, or a size that calls decide, which `dim` does not exceed; None if unknown."""
        if any(n in self.values and n not in self.bounds for n in symbols_of(dim)):
            return None
        try:
            return largest(dim, self.bounds)
        except ValueError:
            return None

    def most(self, *dims: Dim) -> Dim | None:
        """What none of these sizes exceeds; None if unknown."""
        found = [self.largest(dim) for dim in dims]
        return None if None in found else maximum(*found)

    def symbols(self) -> dict[str, Symbol]:
        """What the sizes may be."""
        found = {}
        for name in self.values:
            said, bound = self.said.get(name, Symbol()), self.bounds.get(name)
            low = max(said.first, 0)
            found[name] = Symbol(low, bound if isinstance(bound, int) else said.last)
        return found

    def explicit(self, region: Region) -> Region:
        """The region in which each operation is told the sizes of its result."""
        if not self.values:
            return region
        return self._region(region, {})

    def _region(self, region: Region, outer: Mapping[Value, Value]) -> Region:
        changed = dict(outer)
        b = Builder(check=False)
        for op in region.ops:
            operands = [changed.get(value, value) for value in op.operands]
            regions = [self._region(inner, changed) for inner in op.regions]
            with b.at(op.origin):
                made = self._told(b, op, operands, changed)
            if made is None:
                same = operands == list(op.operands) and regions == list(op.regions)
                made = b.append(op if same else op.with_operands(operands, regions))
            changed.update(
                (old, new) for old, new in zip(op.results, made.results, strict=True)
                if old is not new
            )  # fmt: skip
        ops = tuple(b.ops)
        if not outer and ops == tuple(region.ops):
            return region
        return Region(region.arguments, ops, [changed.get(v, v) for v in region.results])

    def _told(
        self, b: Builder, op: Op, operands: Sequence[Value], changed: Mapping[Value, Value]
    ) -> Op | None:
        """The operation that takes its sizes as operands; None where its operands tell them."""
        twin = _TWINS.get(op.name)
        if twin is None or not any(map(self.decides, _sizes(op))):
            return None
        name, lists = twin
        facts = {key: value for key, value in op.attributes.items() if key not in lists}
        shapes = [op.attributes[key] for key in lists] or [op.type.dims]
        vectors = [self._vector(b, sizes, changed) for sizes in shapes]
        return b.op(name, [*operands, *vectors], facts, (), op.result_types)

    def _vector(self, b: Builder, sizes: Sequence[Dim], changed: Mapping[Value, Value]) -> Value:
        """Sizes as a vector of i64."""
        parts = []
        for size in sizes:
            if isinstance(size, int):
                parts.append(b.constant(np.asarray([size], np.int64)))
            else:
                number = self.number(b, size, changed)
                assert number is not None
                parts.append(b.reshape(number, (1,)))
        return parts[0] if len(parts) == 1 else b("concatenate", *parts, dimension=0)


# The twin that takes sizes as operands, and the attributes that these replace; none: the result's
# dims are the operand.
_TWINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "broadcast_in_dim": ("dynamic_broadcast_in_dim", ()),
    "gather": ("dynamic_gather", ("slice_sizes",)),
    "iota": ("dynamic_iota", ()),
    "reshape": ("dynamic_reshape", ()),
    "slice": ("real_dynamic_slice", ("start_indices", "limit_indices", "strides")),
}


def _sizes(op: Op) -> Sequence[Any]:
    """The sizes of which only its type or its attributes tell."""
    lists = _TWINS[op.name][1]
    if lists:
        return [size for key in lists for size in op.attributes[key]]
    return op.type.dims


def set_size(b: Builder, whole: Value, axis: int, count: Value, kind: TensorType) -> Value:
    """The first `count` elements along an axis, as a tensor of a type with that size."""
    return b("set_dimension_size", whole, b.convert(count, I32), type=kind, dimension=axis)

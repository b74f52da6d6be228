"""What is known of values whose sizes data decide: a tensor of the largest sizes, and true ones.

A true size is an expression of symbols (`u0`, `2*u0`, `u0+s`); the i32 scalar of each symbol is a
value of the program, and its bound an expression of sizes that no data decide. The whole tensor of
a value always has the dims `largest(true dims)`, so that equal true dims have equal whole ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...hlo.build import Builder
from ...hlo.graph import Module, Op, Region, Value, constant_of
from ...hlo.signature import Measured
from ...hlo.symbols import Dim, SymbolicDim, largest, minimum, name_of, substituted, symbols_of
from ...hlo.types import I32, TensorType
from .ranges import interval, is_at_most

SCALAR = TensorType((), I32)
LARGEST = (1 << 31) - 1  # of a size that data decide: they are counted in i32


class Whole(NamedTuple):
    """A tensor of the largest sizes, and its true dims."""

    value: Value
    dims: tuple[Dim, ...]


class Unmasked(Exception):
    """An operation has no mask here; the text says why."""


Rule = Callable[["MaskScope", Builder, Op, list[Whole]], "Whole | list[Whole]"]


class MaskScope:
    """The state of one run of the pass."""

    def __init__(self, module: Module, ops: Callable[[MaskScope, Builder, Region], None]) -> None:
        """ops: appends what the operations of a region become."""
        self.module, self._ops = module, ops
        self.wholes: dict[Value, Whole] = {}  # of values with a size that data decide
        self.mapping: dict[Value, Value] = {}  # of others that have changed
        self.values: dict[str, Value] = {}  # the scalar of each symbol
        self.bounds: dict[str, Dim] = {}
        self.aliases: dict[str, Dim] = {}  # what symbols of declared types stand for
        self.numbers: dict[Value, Dim] = {}  # scalars of the source that are known as sizes
        self.checks: list[tuple[Value, str]] = []  # made outside of nested regions
        self.depth = 0
        self.inputs: dict[str, tuple[Value, int]] = {}  # a dim of an argument, by its symbol
        self.given: set[str] = set()  # symbols that calls decide
        for argument in module.body.arguments:
            if isinstance(argument.type, TensorType):
                for axis, dim in enumerate(argument.dims):
                    self.given.update(symbols_of(dim))
                    if name := name_of(dim):
                        self.inputs.setdefault(name, (argument, axis))

    # Values.

    def is_free(self, value: Value) -> bool:
        """Whether data decide a size of a value of the source."""
        kind = value.type
        return isinstance(kind, TensorType) and any(
            name not in self.given for dim in kind.dims for name in symbols_of(dim)
        )

    def find(self, value: Value) -> Whole:
        """What a value of the source has become."""
        known = self.wholes.get(value)
        if known is not None:
            return known
        value = self.mapping.get(value, value)
        return Whole(value, value.dims if isinstance(value.type, TensorType) else ())

    def has_changed(self, value: Value) -> bool:
        """Whether a value of the source has become another one."""
        return value in self.wholes or self.mapping.get(value, value) is not value

    def is_whole(self, dims: Sequence[Dim]) -> bool:
        """Whether no data decide these sizes."""
        return all(self.bounds.keys().isdisjoint(symbols_of(dim)) for dim in dims)

    def bind(self, op: Op, made: Sequence[Whole]) -> None:
        """The results of an operation of the source."""
        for value, whole in zip(op.results, made, strict=True):
            self.take(value, whole)

    def take(self, value: Value, whole: Whole) -> None:
        """A value of the source has become `whole`."""
        if isinstance(value.type, TensorType):
            for declared, dim in zip(value.dims, whole.dims, strict=True):
                name = name_of(declared)
                if name and name not in self.given and name not in self.values:
                    self.aliases.setdefault(name, dim)
        if self.is_whole(whole.dims):
            self.wholes.pop(value, None)
            self.mapping[value] = whole.value
        else:
            self.wholes[value] = whole

    def body(self, b: Builder, region: Region, given: Sequence[Whole]) -> list[Whole]:
        """What a region computes of these arguments, its operations appended to b."""
        for argument, whole in zip(region.arguments, given, strict=True):
            self.take(argument, whole)
        self._ops(self, b, region)
        return [self.find(value) for value in region.results]

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Inside, what becomes known is forgotten at the end: it stands in a nested region."""
        names = ("wholes", "mapping", "values", "bounds", "aliases", "numbers")
        before = {name: dict(getattr(self, name)) for name in names}
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            for name, known in before.items():
                setattr(self, name, known)

    # Sizes.

    def largest(self, dim: Dim) -> Dim:
        """The whole size."""
        try:
            return largest(dim, self.bounds)
        except ValueError as error:
            raise Unmasked(str(error)) from None

    def whole(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(map(self.largest, dims))

    def kind(self, dims: Sequence[Dim], element: Any) -> TensorType:
        """The type of the whole tensor."""
        return TensorType(self.whole(dims), element)

    def declared(self, dim: Dim) -> Dim | None:
        """What a size of the source's types means; None where a symbol is not known yet."""
        found = substituted(dim, self.aliases)
        if all(name in self.values or name in self.given for name in symbols_of(found)):
            return found
        return None

    def size(self, b: Builder, dim: Dim) -> Value:
        """A true size as an i32 scalar."""

        def symbol(name: str) -> Value:
            if name in self.values:
                return self.values[name]
            if name not in self.inputs:
                raise Unmasked(f"no value of the program tells the size {name}")
            argument, axis = self.inputs[name]
            return b("get_dimension_size", argument, dimension=axis)

        return b.size(dim, symbol, SCALAR)

    def number(self, value: Value) -> Dim | None:
        """The size that a scalar of the source is, by what it is computed from; None where it is
        data of its own."""
        value = _stripped(value)
        if value in self.numbers:
            return self.numbers[value]
        dense, op = constant_of(value), value.op
        if dense is not None and dense.type.size == 1:
            return int(dense.array.reshape(()))
        if op is None:
            return None
        if op.name == "get_dimension_size":
            return self.find(op.operands[0]).dims[op.dimension]
        if op.name in _ARITHMETIC and len(op.operands) == 2:
            left, right = map(self.number, op.operands)
            if left is not None and right is not None:
                return _ARITHMETIC[op.name](left, right)
        return None

    def sized(
        self, b: Builder, op: Op, declared: Dim, scalar: Value | None, limit: Dim | None = None
    ) -> Dim:
        """The true size that an operation gives a dim of its result: what its type says, or what
        `scalar`, a value of the source, is; a symbol of its own where that is new.

        limit: what it never exceeds, where the operation knows.
        """
        known = self.declared(declared)
        if known is None and scalar is not None:
            known = self.number(scalar)
        if known is not None:
            return known
        if scalar is None:
            raise Unmasked(f"nothing tells the size {declared} of its result")
        name = self.named(declared)
        said = self.module.symbols.get(name)
        low, high = interval(scalar, self)
        bound = limit
        if said is not None and said.last is not None:
            bound = said.last
            if limit is not None:
                bound = self.module.assumptions.simplify(minimum(limit, said.last))
        if bound is None:
            bound = high
        if bound is None:
            raise Unmasked(
                f"the size {name} has no bound; say what it may be, sizes={{'{name}': (0, 100)}}"
            )
        if isinstance(bound, int) and bound > LARGEST:
            raise Unmasked(f"the size {name} may be {bound}, which is beyond i32; narrow it")
        value = self.find(scalar).value
        if value.rank:
            value = b.reshape(value, ())
        proven = low >= 0 and high is not None and is_at_most(high, bound)
        self.bounds[name] = bound
        if not proven:
            whole = self.size(b, bound)
            kind = value.tensor
            last = b.convert(whole, kind.element)
            within = b("clamp", b.constant(0, kind), value, last)
            if not self.depth:
                text = f"{op.place}{op.name}: the size {name} that data decide is not in 0..{bound}"
                self.checks.append((b.compare("EQ", within, value), text))
            value = within
        self.values[name] = b.convert(value, I32)
        size = SymbolicDim(name)
        self.numbers[_stripped(scalar)] = size
        return size

    def named(self, declared: Dim) -> str:
        """A name for a new size: the declared one, if it is a name that is not taken."""
        name, used = name_of(declared), {*self.values, *self.given, *self.aliases}
        if name and name not in used:
            return name
        taken = {*used, *self.module.symbols}
        return next(f"n{k}" for k in range(len(taken) + 1) if f"n{k}" not in taken)

    def new(self) -> SymbolicDim:
        """A size of its own."""
        return SymbolicDim(self.named(0))

    # Checks.

    def check(self, b: Builder, op: Op, holds: Callable[[], Value], what: str) -> None:
        """A call whose data do not make this hold is an error."""
        if self.depth:
            raise Unmasked(f"whether {what} is checked only outside of loops and branches")
        self.checks.append((holds(), f"{op.place}{op.name}: {what} does not hold for these data"))

    def same(self, b: Builder, op: Op, left: Dim, right: Dim) -> None:
        """Both sizes are equal, or the call is an error."""
        if left is right or left == right:
            return
        if isinstance(left, int) and isinstance(right, int):
            raise Unmasked(f"sizes {left} and {right} are not equal")

        def holds() -> Value:
            return b.compare("EQ", self.size(b, left), self.size(b, right))

        self.check(b, op, holds, f"{left} == {right}")

    def at_most(self, b: Builder, op: Op, left: Dim, right: Dim) -> None:
        """The one size is not beyond the other, or the call is an error."""
        if is_at_most(left, right):
            return

        def holds() -> Value:
            return b.compare("LE", self.size(b, left), self.size(b, right))

        self.check(b, op, holds, f"{left} <= {right}")

    def measured(self, dims: Sequence[Dim]) -> Iterator[tuple[Measured, Value]]:
        """What has to be computed beside results of these dims."""
        names = {name for dim in dims for name in symbols_of(dim) if name in self.bounds}
        for name in self.values:
            if name in names:
                bound = self.bounds[name]
                stated = bound if isinstance(bound, int) else str(bound)
                yield Measured(name, stated), self.values[name]
        for holds, message in self.checks:
            yield Measured(message=message), holds

    # Tensors.

    def inside(self, b: Builder, x: Whole, dims: Sequence[int]) -> Value | None:
        """Where all of the dims are within their true sizes; None if they are all in use."""
        mask: Value | None = None
        shape = x.value.dims
        for d in dims:
            if not self.is_whole((x.dims[d],)):
                kind = TensorType((shape[d],), I32)
                places = b("iota", type=kind, iota_dimension=0)
                size = self.size(b, x.dims[d])
                line = b.compare("LT", places, b.broadcast(size, kind.dims, ()))
                spread = b.broadcast(line, shape, (d,))
                mask = spread if mask is None else b("and", mask, spread)
        return mask

    def masked(self, b: Builder, x: Whole, dims: Sequence[int], other: Value) -> Value:
        """x with the scalar `other` behind the true sizes of the dims."""
        mask = self.inside(b, x, dims)
        if mask is None:
            return x.value
        return b("select", mask, x.value, b.broadcast(other, x.value.dims, ()))

    def fit(self, b: Builder, value: Value, dims: Sequence[Dim]) -> Value:
        """A whole tensor of other whole dims: what is behind a size is cut or added."""
        for axis, wanted in enumerate(dims):
            have = value.dims[axis]
            if have == wanted:
                continue
            if not is_at_most(wanted, have):  # where a call decides, enough of both
                missing = wanted - have if is_at_most(have, wanted) else wanted
                high = tuple(missing * (d == axis) for d in range(value.rank))
                nothing = (0,) * value.rank
                zero = b.constant(0, TensorType((), value.element))
                value = b(
                    "pad", value, zero, edge_padding_low=nothing, edge_padding_high=high,
                    interior_padding=nothing,
                )  # fmt: skip
            if value.dims[axis] != wanted:
                value = sliced(b, value, axis, 0, wanted)
        return value


def sliced(b: Builder, value: Value, axis: int, start: int, limit: Dim, stride: int = 1) -> Value:
    """Part of a tensor along one axis."""
    starts, limits, strides = [0] * value.rank, list(value.dims), [1] * value.rank
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return b(
        "slice", value, start_indices=tuple(starts), limit_indices=tuple(limits),
        strides=tuple(strides),
    )  # fmt: skip


def line(b: Builder, count: Dim) -> Value:
    """0, 1, 2, ... as i32."""
    return b("iota", type=TensorType((count,), I32), iota_dimension=0)


def spread(b: Builder, scalar: Value, like: Value) -> Value:
    """The scalar in every element of a tensor of `like`'s dims."""
    return b.broadcast(scalar, like.dims, ())


def taken(b: Builder, value: Value, axis: int, positions: Value) -> Value:
    """The elements at positions, an i32 vector, along one axis; they are clamped into it."""
    dims = list(value.dims)
    dims[axis] = positions.dims[0]
    if value.dims[axis] == 0:
        return b.constant(0, value.tensor.with_dims(dims))
    sizes = tuple(1 if d == axis else size for d, size in enumerate(value.dims))
    others = tuple(d for d in range(value.rank) if d != axis)
    return b(
        "gather", value, positions, offset_dims=others, collapsed_slice_dims=(axis,),
        start_index_map=(axis,), index_vector_dim=1, slice_sizes=sizes,
    )  # fmt: skip


def pieces(vector: Value) -> list[Value] | None:
    """The scalars (or vectors of one element) that a shape operand is made of; None where it is
    computed as a whole."""
    vector = _through_converts(vector)
    op = vector.op
    if vector.rank == 1 and vector.dims[0] == 1:
        return [vector]
    if op is None or op.name != "concatenate":
        return None
    found = [_through_converts(operand) for operand in op.operands]
    return found if all(operand.dims == (1,) for operand in found) else None


def scalars(vector: Value) -> list[int | Value] | None:
    """The entries of a shape operand: numbers, or values of the source with one element."""
    dense = constant_of(_through_converts(vector))
    if dense is not None:
        return [int(entry) for entry in dense.array.reshape(-1)]
    found = pieces(vector)
    if found is None:
        return None
    entries: list[int | Value] = []
    for piece in found:
        dense = constant_of(_stripped(piece))
        entries.append(piece if dense is None else int(dense.array.reshape(-1)[0]))
    return entries


def entries_of(s: MaskScope, b: Builder, vector: Value) -> list[int | Value] | None:
    """`scalars` of a shape operand, or where it is computed as a whole of such vectors, what each
    element is computed from."""
    found = scalars(vector)
    op = _through_converts(vector).op
    if found is not None or op is None or op.name not in _NUMBERS:
        return found
    sides = [entries_of(s, b, operand) for operand in op.operands]
    left, right = sides
    if left is None or right is None:
        return None
    kind = TensorType((1,), op.type.element)

    def value(entry: int | Value) -> Value:
        if isinstance(entry, int):
            return b.constant(entry, kind)
        return b.convert(b.reshape(s.find(entry).value, (1,)), kind.element)

    entries: list[int | Value] = []
    for one, other in zip(left, right, strict=True):
        if isinstance(one, int) and isinstance(other, int):
            entries.append(_NUMBERS[op.name](one, other))
        elif op.name == "add" and 0 in (one, other):
            entries.append(one if other == 0 else other)
        else:
            entries.append(b(op.name, value(one), value(other)))
    return entries


_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "multiply": operator.mul, "subtract": operator.sub,
}  # fmt: skip


def _through_converts(value: Value) -> Value:
    while value.op is not None and value.op.name == "convert" and value.element.is_integer:
        value = value.op.operands[0]
    return value


def _stripped(value: Value) -> Value:
    """The scalar behind conversions between integers and reshapes of one element."""
    while value.op is not None and value.op.name in ("convert", "reshape"):
        inner = value.op.operands[0]
        if not (inner.element.is_integer and value.element.is_integer) or inner.tensor.size != 1:
            break
        value = inner
    return value


def _floor(left: Dim, right: Dim) -> Dim | None:
    return left // right if isinstance(right, int) and right > 0 else None


def _extreme(name: str) -> Callable[[Dim, Dim], Dim | None]:
    def choose(left: Dim, right: Dim) -> Dim | None:
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right) if name == "max" else min(left, right)
        return None

    return choose


_ARITHMETIC: Mapping[str, Callable[[Dim, Dim], Dim | None]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "divide": _floor,
    "maximum": _extreme("max"),
    "minimum": _extreme("min"),
}

"""Builds operations: types inferred, constraints checked, in the order they are asked for.

b = Builder()
x, y = b.arguments([f32_4, f32_4])
total = b("add", x, y)
wide = b("broadcast_in_dim", total, type=TensorType((2, 4), F32), broadcast_dimensions=(1,))
region = b.region([wide])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .graph import Dense, Function, Module, Op, Origin, Region, Value, arguments
from .ops import find
from .symbols import Atom, Dim, terms_of
from .types import I1, TensorType, Type


def make_op(
    name: str,
    operands: Sequence[Value],
    attributes: Mapping[str, Any] | None = None,
    regions: Sequence[Region] = (),
    result_types: Sequence[Type] | None = None,
    origin: tuple[Origin, ...] = (),
    check: bool = True,
) -> Op:
    """One operation; VerifyError if it breaks a clause, UnsupportedError if no room has it."""
    return find(name).make(operands, attributes, regions, result_types, origin, check)


class Builder:
    """Collects operations for one region. `origin` marks what is built from now on."""

    def __init__(self, origin: tuple[Origin, ...] = (), check: bool = True) -> None:
        self.ops: list[Op] = []
        self.origin = origin
        self.check = check
        self._arguments: tuple[Value, ...] = ()

    def arguments(self, types: Sequence[Type]) -> tuple[Value, ...]:
        """The region's arguments; to be called once."""
        self._arguments = arguments(types)
        return self._arguments

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[Region] = (),
        types: Sequence[Type] | None = None,
    ) -> Op:
        """Append an operation and return it."""
        op = make_op(name, operands, attributes, regions, types, self.origin, self.check)
        self.ops.append(op)
        return op

    def append(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def __call__(
        self,
        name: str,
        *operands: Value,
        type: Type | None = None,
        regions: Sequence[Region] = (),
        **attributes: Any,
    ) -> Value:
        """Append an operation with one result and return that value."""
        types = None if type is None else (type,)
        return self.op(name, operands, attributes, regions, types).result

    def constant(self, value: Any, type: TensorType | None = None) -> Value:
        """A constant: from an array, or a scalar spread over `type`."""
        if isinstance(value, Dense):
            dense = value
        elif type is not None and np.ndim(value) == 0 and not type.is_static:
            return self.broadcast(self.constant(value, type.with_dims(())), type.dims, ())
        elif type is not None and np.ndim(value) == 0:
            dense = Dense.splat(value, type)
        else:
            array = np.asarray(value) if type is None else np.asarray(value).astype(type.dtype)
            dense = Dense.of(array.reshape(type.dims) if type is not None else array)
        return self("constant", type=dense.type, value=dense)

    def count(self, value: Value, over: Sequence[int], type: TensorType) -> Value:
        """How many elements `value` has along these dims, in every element of `type`."""
        fixed = math.prod(d for n, d in enumerate(value.dims) if n in over and isinstance(d, int))
        total = self.constant(fixed, type)
        for dimension in over:
            if not isinstance(value.dims[dimension], int):
                size = self("get_dimension_size", value, dimension=dimension)
                spread = self.broadcast(self.convert(size, type.element), type.dims, ())
                total = self("multiply", total, spread)
        return total

    def size(self, dim: Dim, symbol: Callable[[str], Value], type: TensorType) -> Value:
        """A size as a scalar of an integer type; `symbol` gives that of a symbol."""
        total: Value | None = None
        for monomial, coefficient in terms_of(dim):
            factors = [self._factor(atom, symbol, type) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.constant(coefficient, type))
            part = factors[0]
            for factor in factors[1:]:
                part = self("multiply", part, factor)
            total = part if total is None else self("add", total, part)
        return self.constant(0, type) if total is None else total

    def _factor(self, atom: Atom, symbol: Callable[[str], Value], type: TensorType) -> Value:
        if not atom.function:
            return symbol(atom.text)
        first, *others = (self.size(operand, symbol, type) for operand in atom.operands)
        if atom.function != "//":
            for other in others:
                first = self("maximum" if atom.function == "max" else "minimum", first, other)
            return first
        quotient = self("divide", first, others[0])  # rounded to 0, not down
        rest = self("subtract", first, self("multiply", quotient, others[0]))
        below = self.compare("LT", rest, self.constant(0, type))
        return self("subtract", quotient, self.convert(below, type.element))

    def reshape(self, value: Value, dims: Sequence[Any]) -> Value:
        """`value` with other dimensions; itself if they are the same."""
        if tuple(dims) == value.dims:
            return value
        return self("reshape", value, type=value.tensor.with_dims(dims))

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Dimensions reordered, result dim i is operand dim permutation[i]; itself if unchanged."""
        if tuple(permutation) == tuple(range(value.rank)):
            return value
        return self("transpose", value, permutation=tuple(permutation))

    def broadcast(self, value: Value, dims: Sequence[Any], mapped: Sequence[int]) -> Value:
        """broadcast_in_dim: operand dim i becomes result dim mapped[i]; itself if unchanged."""
        if tuple(dims) == value.dims and tuple(mapped) == tuple(range(value.rank)):
            return value
        wanted = value.tensor.with_dims(dims)
        return self("broadcast_in_dim", value, type=wanted, broadcast_dimensions=tuple(mapped))

    def convert(self, value: Value, element: Any) -> Value:
        """Another element type; itself if it is the same."""
        if value.element is element:
            return value
        return self("convert", value, type=value.tensor.with_element(element))

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        """Elementwise EQ, NE, GE, GT, LE or LT."""
        return self(
            "compare", left, right, type=left.tensor.with_element(I1),
            comparison_direction=direction,
        )  # fmt: skip

    def reduce(self, body: str, value: Value, initial: Value, dimensions: Sequence[int]) -> Value:
        """Reduction with the named two-operand operation (`add`, `maximum`, ...)."""
        scalar = TensorType((), value.element)
        region = build_region([scalar, scalar], lambda b, x, y: [b(body, x, y)])
        return self(
            "reduce", value, initial, regions=(region,), dimensions=tuple(sorted(dimensions))
        )

    def nested(self, types: Sequence[Type], body: Callable[..., Sequence[Value]]) -> Region:
        """A region for an operation that is built next, see `build_region`."""
        return build_region(types, body)

    def region(self, results: Sequence[Value]) -> Region:
        """The finished region."""
        return Region(self._arguments, self.ops, results)

    @contextmanager
    def at(self, origin: tuple[Origin, ...]) -> Iterator[None]:
        """Mark what is built inside with another origin."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before


def build_region(types: Sequence[Type], body: Callable[..., Sequence[Value]]) -> Region:
    """A region from a function of (builder, *arguments) that returns the results."""
    builder = Builder()
    values = builder.arguments(types)
    return builder.region(body(builder, *values))


def build_module(
    types: Sequence[Type], body: Callable[..., Sequence[Value]], name: str = "main"
) -> Module:
    """A module with one function, from a function of (builder, *arguments) like `build_region`."""
    return Module({"main": Function("main", build_region(types, body))}, name=name)

"""What a lowering works with: the builder, the node's declared results, and PyTorch's conventions
for scalars, broadcasting and element types.

A lowering is a function `(c: Context, *arguments of the operator) -> Value or tuple of Values`; its
own signature carries the operator's defaults, which a `.pt2` file does not store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from ...hlo.assumptions import Assumptions
from ...hlo.build import Builder, build_region
from ...hlo.errors import UserError
from ...hlo.graph import Region, Value
from ...hlo.needed_sizes import is_known, reduced
from ...hlo.ops.clauses import same_dim, simplified
from ...hlo.sharding import Mesh
from ...hlo.sizes import Relation, SizeConstraint
from ...hlo.symbols import Dim, SymbolicDim, maximum, minimum
from ...hlo.types import F32, I1, I64, UI8, UI64, ElementType, TensorType, real_type, unsharded
from .data_sizes import DataSizes
from .draws import KeyStream, keyed
from .program import Graph, Node, Ref
from .promotion import result_element

Number = bool | int | float | complex | SymbolicDim
"""A Python scalar; one that is a size of the call as its formula."""
Operand = Value | Number
Lowering = Callable[..., Any]


class Blocked(Exception):
    """This node cannot be imported; `remedy` is what the user can do about it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_low(element: ElementType) -> bool:
    """Whether PyTorch computes in f32 inside an operation on this type and rounds once."""
    return element.is_float and element.bits <= 16


Inline = Callable[[Graph, Sequence[Any]], tuple[list[Any], dict[int, Value]]]


class Context:
    """The place where one node is lowered. `c("add", x, y)` appends an operation.

    `types` are the node's declared results (None where nothing uses one), `used` tells which are
    used; `inline(graph, values)` lowers a nested graph in place. What a user may not want to happen
    silently goes into `notes`. `data`: sizes that data decide. `ranks`: how many processes run the
    program together. `meshes`: those that constraints name. `facts`: what is known of symbols,
    `required`: what nodes need of them besides. `stream`: where random draws come from.
    """

    def __init__(self, inline: Inline) -> None:
        """`inline`: see `inline_writing`."""
        self.builder = Builder()
        self._inline = inline
        self._nested = 0  # regions around what is built
        self._writes: list[tuple[Ref, Value]] = []
        self.node = Node("", (), {}, ())
        self.types: tuple[TensorType | None, ...] = ()
        self.used: tuple[bool, ...] = ()
        self.notes: list[str] = []
        self.data = DataSizes({})
        self.ranks = 0  # that run the program together, 0 while nothing says so
        self.meshes: dict[str, Mesh] = {}
        self.facts = Assumptions()
        self.required: list[SizeConstraint] = []
        self.stream = KeyStream()

    def inline(self, graph: Graph, values: Sequence[Any]) -> list[Any]:
        """The outputs of a nested graph, which changes none of the values."""
        results, written = self._inline(graph, values)
        if written:
            raise Blocked(
                "changes a tensor of the enclosing graph in place",
                "give its new value as a result, and write that outside",
            )
        return results

    def inline_writing(
        self, graph: Graph, values: Sequence[Any]
    ) -> tuple[list[Any], dict[int, Value]]:
        """The outputs of a nested graph, and new values of those that it changes, by number."""
        return self._inline(graph, values)

    def write(self, argument: Any, value: Value) -> None:
        """The node changes this argument of its `args` to `value`."""
        if not isinstance(argument, Ref):
            raise Blocked("changes something in place that is not one tensor")
        self._writes.append((argument, value))

    def check(self, holds: Value, message: str) -> None:
        """What the data of a call have to satisfy; else it is an error with that message."""
        if self._nested:
            self.notes.append(f"inside of a branch or loop this is not checked: {message}")
        else:
            place = f"{self.node.origin[0]}: " if self.node.origin else ""
            self.data.checks.append((holds, f"{place}{message}"))

    def sized(self, count: int) -> list[TensorType] | None:
        """The declared types of the first results, where an operation on regions decides a size of
        one; None where all follow from its operands."""
        types = [self.type_of(n) for n in range(count)]
        return types if any(self.data.lacks(dim) for t in types for dim in t.dims) else None

    def taken_writes(self) -> list[tuple[str, Value]]:
        """What the node changes, by name; asked for once."""
        found, self._writes = self._writes, []
        return [(argument.name, value) for argument, value in found]

    @contextmanager
    def entered(self, node: Node, types: tuple[TensorType | None, ...]) -> Iterator[None]:
        """Inside, what is built belongs to that node; nodes of nested graphs nest."""
        before = self.node, self.types, self.used, self.builder.origin
        self.node, self.types = node, types
        self.used = node.used
        self.builder.origin = node.origin
        try:
            yield
        finally:
            self.node, self.types, self.used, self.builder.origin = before

    def __call__(self, name: str, *operands: Value, **attributes: Any) -> Value:
        return self.builder(name, *operands, **attributes)

    # The declared results.

    def type_of(self, index: int) -> TensorType:
        """The declared type of that result."""
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise Blocked(f"the export does not tell the type of its result {index}")
        return found

    @property
    def type(self) -> TensorType:
        return self.type_of(0)

    @property
    def dims(self) -> tuple[Any, ...]:
        return self.type.dims

    @property
    def element(self) -> ElementType:
        return self.type.element

    # Sizes.

    def at_most(self, left: Dim, right: Dim) -> bool:
        """Whether left <= right at all sizes; False where that is not proven."""
        return self.facts.at_most(left, right) is True

    def smaller(self, left: Dim, right: Dim) -> Dim:
        """The smaller of two sizes: one of them where that is known."""
        return simplified(minimum(left, right))

    def larger(self, left: Dim, right: Dim) -> Dim:
        """The larger of two sizes: one of them where that is known."""
        return simplified(maximum(left, right))

    def is_equal(self, left: Dim, right: Dim) -> bool:
        """Whether two sizes are equal at all sizes; False where that is not proven."""
        return self.facts.is_equal(left, right) is True

    def require(self, left: Dim, relation: Relation, right: Dim) -> None:
        """The node has a meaning only where `left relation right`; Blocked where that never is."""
        fact = SizeConstraint(left, relation, right)
        if not fact.symbols:
            if not fact.holds({}):
                raise Blocked(f"needs {fact}")
            return
        fact = reduced(fact, self.facts)
        if is_known(fact, self.facts):
            return
        origin = str(self.node.origin[0]) if self.node.origin else ""
        try:
            facts = Assumptions(
                self.facts.symbols, [*self.facts.constraints, fact._replace(origin=origin)]
            )
        except UserError:
            raise Blocked(f"needs {fact}, which never holds") from None
        self.required.append(fact._replace(origin=origin))
        self.facts = facts

    def size(self, size: Dim, element: ElementType = I64) -> Value:
        """A size of the call as a number of rank 0, computed in i64."""
        number = self.data.number(self.builder, size)
        if number is None:
            raise Blocked(f"computes with the size {size}, of which no input tells a symbol")
        return self.convert(number, element)

    def floor_divide(self, left: Value, right: Value) -> Value:
        """left / right of integers, rounded down."""
        quotient, rest = self("divide", left, right), self("remainder", left, right)
        zero = self.full(0, left.dims, left.element)
        inexact = self.builder.compare("NE", rest, zero)
        signs = self("xor", self.builder.compare("LT", rest, zero),
                     self.builder.compare("LT", right, zero))  # fmt: skip
        lower = self("subtract", quotient, self.full(1, left.dims, left.element))
        return self("select", self("and", inexact, signs), lower, quotient)

    # Values.

    def full(self, value: Number, dims: Sequence[Dim], element: ElementType) -> Value:
        """A constant with every element the same."""
        if isinstance(value, SymbolicDim):
            return self.spread(self.size(value, element), dims)
        if isinstance(value, int) and not isinstance(value, bool) and element.is_integer:
            value = wrap(value, element)
        with np.errstate(over="ignore"):
            if all(isinstance(size, int) for size in dims):
                return self.builder.constant(value, TensorType(dims, element))
            return self.spread(self.builder.constant(value, TensorType((), element)), dims)

    def scalar(self, value: Number, element: ElementType) -> Value:
        """A constant of rank 0."""
        return self.full(value, (), element)

    def array(self, array: Any, element: ElementType | None = None) -> Value:
        """A constant from an array."""
        array = np.asarray(array)
        return self.builder.constant(array.astype(element.dtype) if element else array)

    def convert(self, value: Operand, element: ElementType) -> Value:
        """`value` as that element type: truncating to integers, "is not zero" to booleans; from
        real numbers to ui8 by i64, as PyTorch does, so that negative ones wrap."""
        if not isinstance(value, Value):
            return self.scalar(value, element)
        if element is UI8 and value.element.is_float:
            value = self.builder.convert(value, I64)
        if element is I1 and value.element is not I1:
            return self.builder.compare("NE", value, self.full(0, value.dims, value.element))
        return self.builder.convert(value, element)

    def spread(self, value: Value, dims: Sequence[Dim]) -> Value:
        """`value` broadcast to `dims` by PyTorch's rule: aligned at the end, size 1 repeats."""
        dims = tuple(dims)
        first = len(dims) - value.rank
        return self.builder.broadcast(value, dims, range(first, len(dims)))

    def fill(self, value: Operand, type: TensorType) -> Value:
        """`value` converted and broadcast to a type; a scalar becomes one constant."""
        if not isinstance(value, Value):
            return self.full(value, type.dims, type.element)
        return self.spread(self.convert(value, type.element), type.dims)

    def together(
        self, *operands: Operand, element: ElementType | None = None, dims: Any = None
    ) -> list[Value]:
        """The operands as one type: promoted (unless `element` is given) and broadcast."""
        element = element or result_element(*operands)
        if dims is None:
            dims = broadcast_dims(*[v.dims for v in operands if isinstance(v, Value)])
        wanted = TensorType(dims, element)
        return [self.fill(operand, wanted) for operand in operands]

    def work_element(self, *operands: Operand) -> ElementType:
        """The type to compute an elementwise result in: the result's own, or f32 where a bf16 or
        f16 operation meets a scalar that its own type cannot hold.
        """
        element = self.element
        if is_low(element):
            for operand in operands:
                if isinstance(operand, SymbolicDim):
                    return F32
                if not isinstance(operand, (Value, complex)) and not _holds(element, operand):
                    return F32
        return element

    def wide(self, value: Value) -> Value:
        """`value` in the type that PyTorch computes in inside one operation: f32 for bf16, f16."""
        return self.builder.convert(value, F32) if is_low(value.element) else value

    def narrow(self, value: Value, index: int = 0) -> Value:
        """`value` in the declared element type of a result."""
        return self.convert(value, self.type_of(index).element)

    # Small formulas that many operators share.

    def compare(self, direction: str, left: Operand, right: Operand) -> Value:
        """Elementwise comparison in the promoted type."""
        first, second = self.together(left, right)
        return self.builder.compare(direction, first, second)

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """Elementwise choice; all three have the condition's dims or are scalars."""
        like = yes if isinstance(yes, Value) else no
        assert isinstance(like, Value)
        wanted = TensorType(condition.dims, like.element)
        return self("select", condition, self.fill(yes, wanted), self.fill(no, wanted))

    def binary(self, name: str, left: Operand, right: Operand) -> Value:
        """An operation on two operands, of which one may be a scalar of the other's type."""
        like = left if isinstance(left, Value) else right
        assert isinstance(like, Value)
        return self(name, self.fill(left, like.tensor), self.fill(right, like.tensor))

    def add(self, left: Operand, right: Operand) -> Value:
        return self.binary("add", left, right)

    def subtract(self, left: Operand, right: Operand) -> Value:
        return self.binary("subtract", left, right)

    def multiply(self, left: Operand, right: Operand) -> Value:
        return self.binary("multiply", left, right)

    def divide(self, left: Operand, right: Operand) -> Value:
        return self.binary("divide", left, right)

    def part(self, name: str, value: Value) -> Value:
        """The real or imag part of complex numbers; of real ones the numbers themselves."""
        if not value.element.is_complex:
            return value
        return self(name, value, type=TensorType(value.dims, real_type(value.element)))

    def is_nan(self, value: Value) -> Value:
        return self.builder.compare("NE", value, value)

    def iota(self, dims: Sequence[Dim], dimension: int, element: ElementType = I64) -> Value:
        """The position along one dimension."""
        return self("iota", type=TensorType(dims, element), iota_dimension=dimension)

    def reduce(self, body: str, value: Value, axes: Sequence[int]) -> Value:
        """Reduction by `body` over `axes`, which vanish; the identity is the neutral element."""
        if not axes:
            return value
        start = self.scalar(identity(body, value.element), value.element)
        return self.builder.reduce(body, value, start, axes)

    def along(self, reduced: Value, dims: Sequence[Dim], axes: Sequence[int]) -> Value:
        """A reduced value repeated over the axes that it lost."""
        kept = [axis for axis in range(len(dims)) if axis not in set(axes)]
        return self.builder.broadcast(reduced, dims, kept)

    def most(self, size: Dim) -> Dim:
        """A size that `size` never exceeds, and that no data decide; blocked if unknown."""
        found = self.data.largest(size) if self.data.decides(size) else size
        if found is None:
            raise Blocked(
                f"needs a limit of the size {size}, which data decide",
                "say one where it is read: torch._check(n <= 1000)",
            )
        return found

    def count(self, dims: Sequence[Dim], axes: Sequence[int]) -> Dim:
        """Number of elements in `axes`."""
        return math.prod(dims[axis] for axis in axes)

    def mean(self, total: Value, of: Value, axes: Sequence[int]) -> Value:
        """A sum of `of` over axes, divided by how many elements that were."""
        return self.divide(total, self.count(of.dims, axes))

    def slice(self, value: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
        """Part of `value` along one axis; itself if it is all of it."""
        if start == 0 and step == 1 and stop == value.dims[axis]:
            return value
        starts, limits, strides = [0] * value.rank, list(value.dims), [1] * value.rank
        starts[axis], limits[axis], strides[axis] = start, stop, step
        return self(
            "slice", value, start_indices=tuple(map(sized, starts)), strides=tuple(strides),
            limit_indices=tuple(map(sized, limits)),
        )  # fmt: skip

    def pad(self, value: Value, with_: Number, pads: Sequence[tuple[int, int, int]]) -> Value:
        """`value` with (low, high, interior) padding per dimension; negative ones cut."""
        if not any(any(pad) for pad in pads):
            return value
        low, high, interior = (tuple(part) for part in zip(*pads, strict=True))
        return self(
            "pad", value, self.scalar(with_, value.element), edge_padding_low=low,
            edge_padding_high=high, interior_padding=interior,
        )  # fmt: skip

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        if len(values) == 1:
            return values[0]
        return self("concatenate", *values, dimension=axis)

    def dot(
        self,
        left: Value,
        right: Value,
        contracting: tuple[Sequence[int], Sequence[int]],
        batching: tuple[Sequence[int], Sequence[int]] = ((), ()),
        element: ElementType | None = None,
    ) -> Value:
        """dot_general; a transposed operand is contracted in place, without the transpose.

        Result dims: batch, then the free dims of `left`, then those of `right`.
        """
        left, (left_contracting, left_batching) = _untransposed(left, contracting[0], batching[0])
        right, (right_contracting, right_batching) = _untransposed(
            right, contracting[1], batching[1]
        )
        dims = [left.dims[d] for d in left_batching]
        for value, gone in ((left, left_contracting + left_batching),
                            (right, right_contracting + right_batching)):  # fmt: skip
            dims.extend(size for d, size in enumerate(value.dims) if d not in gone)
        return self(
            "dot_general", left, right, type=TensorType(dims, element or left.element),
            lhs_batching_dimensions=left_batching, rhs_batching_dimensions=right_batching,
            lhs_contracting_dimensions=left_contracting,
            rhs_contracting_dimensions=right_contracting,
        )  # fmt: skip

    def region(self, graph: Graph, values: Sequence[Any]) -> Region:
        """A region without arguments that holds the nested graph of values from outside."""
        return self.nested((), lambda: self.inline(graph, values))

    def nested(self, types: Sequence[TensorType], body: Callable[..., Sequence[Value]]) -> Region:
        """A region whose operations `body(*arguments)` appends through this context."""
        with self.building() as builder:
            arguments = builder.arguments(list(map(unsharded, types)))
            return builder.region(body(*arguments))

    def iterate(
        self,
        carried: Sequence[Value],
        test: Callable[..., Value],
        step: Callable[..., Sequence[Value]],
    ) -> Sequence[Value]:
        """`carried` replaced by `step(*carried)` while the scalar `test(*carried)` holds. Where
        random numbers are drawn inside, the turn is carried too: each has draws of its own."""
        types = [value.tensor.with_sharding(None) for value in carried]
        with self.drawing(self.stream.key) as inner:
            regions = [self.nested(types, lambda *v: [test(*v)]), self.nested(types, step)]
        if not inner.count:
            return self.builder.op("while", list(carried), {}, regions, types).results
        key = self.stream.next(self.builder)

        def tested(turn: Value, *values: Value) -> list[Value]:
            with self.drawing(key, self.multiply(turn, 2)):
                return [test(*values)]

        def stepped(turn: Value, *values: Value) -> list[Value]:
            with self.drawing(key, self.add(self.multiply(turn, 2), 1)):
                return [self.add(turn, 1), *step(*values)]

        counted = [self.scalar(0, UI64), *carried]
        types = [value.tensor.with_sharding(None) for value in counted]
        regions = [self.nested(types, tested), self.nested(types, stepped)]
        return self.builder.op("while", counted, {}, regions, types).results[1:]

    @contextmanager
    def drawing(self, key: Value | None, number: Value | None = None) -> Iterator[KeyStream]:
        """Inside, random numbers are drawn from this key, or from that of this number of it."""
        outer = self.stream
        key = key if number is None or key is None else keyed(self.builder, key, number)
        self.stream = KeyStream(key)
        try:
            yield self.stream
        finally:
            self.stream = outer

    @contextmanager
    def building(self) -> Iterator[Builder]:
        """Inside, operations are appended to a builder of their own, for a region."""
        outer = self.builder
        self.builder = Builder(outer.origin, outer.check)
        self._nested += 1
        try:
            yield self.builder
        finally:
            self.builder = outer
            self._nested -= 1


def _untransposed(
    value: Value, contracting: Sequence[int], batching: Sequence[int]
) -> tuple[Value, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The operand of a transpose, with dimension numbers of its own; only where the free
    dimensions keep their order, so that the result is the same.
    """
    op = value.op
    dims = tuple(contracting), tuple(batching)
    if op is None or op.name != "transpose":
        return value, dims
    permutation = op.attributes["permutation"]
    free = [permutation[d] for d in range(value.rank) if d not in dims[0] and d not in dims[1]]
    if free != sorted(free):
        return value, dims
    first, second = (tuple(permutation[d] for d in part) for part in dims)
    return op.operands[0], (first, second)


def _holds(element: ElementType, value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(element.dtype)) == float(value) or value != value


def wrap(value: int, element: ElementType) -> int:
    """`value` modulo the range of an integer type, as a C cast does."""
    value &= (1 << element.bits) - 1
    if element.kind == "int" and value >> (element.bits - 1):
        value -= 1 << element.bits
    return value


def lowest(element: ElementType) -> Number:
    """The smallest value: minus infinity where there is one."""
    if element.is_float:
        return -math.inf
    if element.is_bool:
        return False
    return -(1 << (element.bits - 1)) if element.kind == "int" else 0


def highest(element: ElementType) -> Number:
    """The largest value: infinity where there is one."""
    if element.is_float:
        return math.inf
    if element.is_bool:
        return True
    return (1 << (element.bits - (element.kind == "int"))) - 1


def identity(body: str, element: ElementType) -> Number:
    """The neutral element of a reduction."""
    return {
        "add": 0, "multiply": 1, "or": False, "and": True,
        "maximum": lowest(element), "minimum": highest(element),
    }[body]  # fmt: skip


def finite_lowest(element: ElementType) -> float:
    """The smallest finite value of a float type."""
    return float(ml_dtypes.finfo(element.dtype).min)


def sized(size: Any) -> Dim:
    """A size: a number, or a formula of the sizes of a call; blocked if values decide it."""
    if isinstance(size, Value):
        raise Blocked(
            "needs a size at compile time that the program computes",
            "the size depends on values: use a mask with torch.where, or a fixed size",
        )
    return size


def static(size: Dim) -> int:
    """A size that must be a number; blocked if it is symbolic."""
    size = sized(size)
    if not isinstance(size, int):
        raise Blocked(
            f"needs the size '{size}' at compile time",
            "give example inputs that fix it, or export this dimension with a fixed size",
        )
    return size


def axis_of(axis: int, rank: int) -> int:
    """A dimension number counted from either end, as one from the front."""
    return axis + max(rank, 1) if axis < 0 else axis


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Dimension numbers, sorted; None or an empty list mean all."""
    if axes is None or (isinstance(axes, (tuple, list)) and not axes):
        return tuple(range(rank))
    if isinstance(axes, int):
        axes = (axes,)
    return tuple(sorted(axis_of(axis, rank) for axis in axes)) if rank else ()


def bounds(c: Context, size: Dim, start: Any, end: Any) -> tuple[Dim, Dim]:
    """A Python slice's ends, clipped to [0, size]."""

    def clipped(place: Any, otherwise: Dim) -> Dim:
        if place is None:
            return otherwise
        return c.larger(c.smaller(place_of(c, place, size), size), 0)

    first, last = clipped(start, 0), clipped(end, size)
    return first, c.larger(first, last)


def place_of(c: Context, place: Any, size: Dim) -> Dim:
    """A position that may be counted from the end, as one from the front."""
    place = sized(place)
    if isinstance(place, int):
        return place + size if place < 0 else place
    if c.at_most(place, -1):
        return place + size
    c.require(0, "<=", place)
    return place


def broadcast_dims(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common dims of shapes aligned at the end; blocked where two sizes clash."""
    result: list[Dim] = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        first = len(result) - len(shape)
        for position, size in enumerate(shape):
            known = result[first + position]
            if known == 1:
                result[first + position] = size
            elif size != 1 and not same_dim(size, known):
                raise Blocked(f"sizes {known} and {size} do not broadcast")
    return tuple(result)


def scalar_region(element: ElementType, body: Callable[..., Value], count: int = 2) -> Region:
    """A region over `count` scalars of one type with one result."""
    scalar = TensorType((), element)
    return build_region([scalar] * count, lambda b, *values: [body(b, *values)])

"""Batches of matrices under construction: `a @ b.adjoint - c` builds operations, as `Term` does.

Everything is a matrix: a vector has one column or one row, a scalar one of both, which elementwise
operations repeat. Rows and columns are numbers; sizes of the batch may be open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...hlo.build import Builder, build_region
from ...hlo.graph import Value
from ...hlo.ops.factorizations import real_element
from ...hlo.types import I1, I32, Element, TensorType

HIGHEST = ("HIGHEST", "HIGHEST")


class Matrix:
    """A value of rank 2 or more, and the builder that computes with it."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    @property
    def batch(self) -> tuple[Any, ...]:
        return self.value.dims[:-2]

    @property
    def rows(self) -> int:
        return self.value.dims[-2]

    @property
    def columns(self) -> int:
        return self.value.dims[-1]

    @property
    def element(self) -> Any:
        return self.value.element

    @property
    def is_complex(self) -> bool:
        return self.element.is_complex

    def on(self, b: Builder) -> Matrix:
        """The same value for what another builder builds: the body of a loop."""
        return Matrix(b, self.value)

    def type(self, rows: int, columns: int, element: Element | None = None) -> TensorType:
        return TensorType((*self.batch, rows, columns), element or self.element)

    def filled(self, number: Any, rows: int, columns: int, element: Any = None) -> Matrix:
        """A matrix of one number, beside this one in its batch."""
        return Matrix(self.b, self.b.constant(number, self.type(rows, columns, element)))

    def scalar(self, value: Value) -> Matrix:
        """A scalar of the program as a matrix of one row and column."""
        return Matrix(self.b, self.b.broadcast(value, (*self.batch, 1, 1), ()))

    # Elementwise.

    def _sized(self, rows: int, columns: int) -> Value:
        dims = (*self.batch, rows, columns)
        return self.b.broadcast(self.value, dims, range(self.value.rank))

    def _with(self, name: str, *others: Any, **facts: Any) -> Matrix:
        """An elementwise operation on this one and others; a real one beside complex ones becomes
        complex."""
        given = [self, *others]
        given = [x if isinstance(x, Matrix) else self.filled(x, 1, 1) for x in given]
        element = next((x.element for x in given if x.is_complex), None)
        rows, columns = max(x.rows for x in given), max(x.columns for x in given)
        values = [
            x._sized(rows, columns)
            if element is None or x.element is I1
            else self.b.convert(x._sized(rows, columns), element)
            for x in given
        ]
        return Matrix(self.b, self.b(name, *values, **facts))

    def __add__(self, other: Any) -> Matrix:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Matrix:
        return self._with("subtract", other)

    def __mul__(self, other: Any) -> Matrix:
        return self._with("multiply", other)

    def __truediv__(self, other: Any) -> Matrix:
        if self.is_complex and isinstance(other, Matrix) and not other.is_complex:
            # Parts by themselves: as complex numbers, tiny divisors would be squared.
            return (self.real / other)._with("complex", self.imaginary / other)
        return self._with("divide", other)

    def __and__(self, other: Matrix) -> Matrix:
        return self._with("and", other)

    def __or__(self, other: Matrix) -> Matrix:
        return self._with("or", other)

    def __neg__(self) -> Matrix:
        return self._with("negate")

    def __abs__(self) -> Matrix:
        return self._with("abs")

    def sqrt(self) -> Matrix:
        return self._with("sqrt")

    def maximum(self, other: Any) -> Matrix:
        return self._with("maximum", other)

    def compare(self, direction: str, other: Any) -> Matrix:
        other = other if isinstance(other, Matrix) else self.filled(other, 1, 1)
        rows, columns = max(self.rows, other.rows), max(self.columns, other.columns)
        sides = self._sized(rows, columns), other._sized(rows, columns)
        return Matrix(self.b, self.b.compare(direction, *sides))

    def equals(self, other: Any) -> Matrix:
        return self.compare("EQ", other)

    def differs(self, other: Any) -> Matrix:
        return self.compare("NE", other)

    def __lt__(self, other: Any) -> Matrix:
        return self.compare("LT", other)

    def __gt__(self, other: Any) -> Matrix:
        return self.compare("GT", other)

    def __ge__(self, other: Any) -> Matrix:
        return self.compare("GE", other)

    def where(self, yes: Any, no: Any) -> Matrix:
        """yes where this mask holds, else no; one of them must be a matrix."""
        like = yes if isinstance(yes, Matrix) else no
        yes, no = (x if isinstance(x, Matrix) else like.filled(x, 1, 1) for x in (yes, no))
        if yes.element is not no.element:
            wide = yes.element if yes.is_complex else no.element
            yes, no = yes.convert(wide), no.convert(wide)
        rows, columns = (max(getattr(x, n) for x in (self, yes, no)) for n in ("rows", "columns"))
        return Matrix(self.b, self.b("select", *(x._sized(rows, columns) for x in (self, yes, no))))

    def convert(self, element: Any) -> Matrix:
        return Matrix(self.b, self.b.convert(self.value, element))

    @property
    def real(self) -> Matrix:
        return self._with("real") if self.is_complex else self

    @property
    def imaginary(self) -> Matrix:
        """Of complex numbers."""
        return self._with("imag")

    @property
    def conjugate(self) -> Matrix:
        return self._with("chlo.conj") if self.is_complex else self

    @property
    def row_numbers(self) -> Matrix:
        return self._numbers(-2)

    @property
    def column_numbers(self) -> Matrix:
        return self._numbers(-1)

    def _numbers(self, side: int) -> Matrix:
        kind = self.type(self.rows, self.columns, I32)
        return Matrix(self.b, self.b("iota", type=kind, iota_dimension=kind.rank + side))

    def identity(self, rows: int, columns: int) -> Matrix:
        """Ones on the diagonal, beside this matrix in its batch."""
        zeros = self.filled(0, rows, columns)
        return zeros.row_numbers.equals(zeros.column_numbers).convert(self.element)

    # Whole matrices.

    @property
    def transposed(self) -> Matrix:
        if 1 in (self.rows, self.columns):
            return Matrix(
                self.b, self.b.reshape(self.value, (*self.batch, self.columns, self.rows))
            )
        last = self.value.rank - 1
        order = (*range(last - 1), last, last - 1)
        return Matrix(self.b, self.b.transpose(self.value, order))

    @property
    def adjoint(self) -> Matrix:
        return self.conjugate.transposed

    def __matmul__(self, other: Matrix) -> Matrix:
        batch, last = tuple(range(len(self.batch))), self.value.rank - 1
        return Matrix(
            self.b,
            self.b(
                "dot_general", self.value, other.value, lhs_batching_dimensions=batch,
                rhs_batching_dimensions=batch, lhs_contracting_dimensions=(last,),
                rhs_contracting_dimensions=(last - 1,), precision_config=HIGHEST,
            ),
        )  # fmt: skip

    def _folded(self, body: str, initial: Any, side: int) -> Matrix:
        """Folded over rows (-2) or columns (-1), which become one."""
        start = self.b.constant(initial, TensorType((), self.element))
        dims = list(self.value.dims)
        dims[side] = 1
        folded = self.b.reduce(body, self.value, start, (self.value.rank + side,))
        return Matrix(self.b, self.b.reshape(folded, dims))

    def sum_of_rows(self) -> Matrix:
        return self._folded("add", 0, -2)

    def sum_of_columns(self) -> Matrix:
        return self._folded("add", 0, -1)

    def total(self) -> Matrix:
        return self.sum_of_columns().sum_of_rows()

    def largest(self) -> Matrix:
        """The largest element, which must not be negative; NaN where there is one."""
        return self._folded("maximum", 0, -1)._folded("maximum", 0, -2)

    def largest_of_rows(self) -> Matrix:
        """The largest element of each column, none of which is below -1."""
        return self._folded("maximum", -1, -2)

    def smallest_of_rows(self) -> Matrix:
        """Of integers, in each column."""
        return self._folded("minimum", 2**31 - 1, -2)

    def diagonal(self) -> Matrix:
        """Of a square matrix, as a column."""
        return self.row_numbers.equals(self.column_numbers).where(self, 0).sum_of_columns()

    # Parts.

    def __getitem__(self, place: tuple[slice, slice]) -> Matrix:
        bounds = [s.indices(n)[:2] for s, n in zip(place, (self.rows, self.columns), strict=True)]
        (top, bottom), (left, right) = bounds
        if (top, bottom, left, right) == (0, self.rows, 0, self.columns):
            return self
        zeros = (0,) * len(self.batch)
        cut = self.b(
            "slice", self.value, start_indices=(*zeros, top, left),
            limit_indices=(*self.batch, bottom, right), strides=(1,) * self.value.rank,
        )  # fmt: skip
        return Matrix(self.b, cut)

    def beside(self, *others: Matrix) -> Matrix:
        return self._joined(others, self.value.rank - 1)

    def above(self, *others: Matrix) -> Matrix:
        return self._joined(others, self.value.rank - 2)

    def _joined(self, others: Sequence[Matrix], dimension: int) -> Matrix:
        values = [x.value for x in (self, *others) if x.value.dims[dimension]]
        if len(values) == 1:
            return Matrix(self.b, values[0])
        return Matrix(self.b, self.b("concatenate", *values, dimension=dimension))

    def _starts(self, side: int, at: Value) -> list[Value]:
        zero = self.b.constant(0, at.tensor)
        return [at if d == self.value.rank + side else zero for d in range(self.value.rank)]

    def row(self, at: Value) -> Matrix:
        return self._line(-2, at)

    def column(self, at: Value) -> Matrix:
        return self._line(-1, at)

    def _line(self, side: int, at: Value) -> Matrix:
        sizes = list(self.value.dims)
        sizes[side] = 1
        starts = self._starts(side, at)
        made = self.b("dynamic_slice", self.value, *starts, slice_sizes=tuple(sizes))
        return Matrix(self.b, made)

    def with_row(self, at: Value, row: Matrix) -> Matrix:
        starts = self._starts(-2, at)
        return Matrix(self.b, self.b("dynamic_update_slice", self.value, row.value, *starts))

    def rows_at(self, order: Matrix) -> Matrix:
        """Rows in the order of a column of numbers."""
        batch, last = tuple(range(len(self.batch))), self.value.rank - 1
        facts = {
            "offset_dims": (last,), "collapsed_slice_dims": (last - 1,),
            "operand_batching_dims": batch, "start_indices_batching_dims": batch,
            "start_index_map": (last - 1,), "index_vector_dim": last,
            "slice_sizes": (*(1,) * last, self.columns), "indices_are_sorted": False,
        }  # fmt: skip
        return Matrix(self.b, self.b.op("gather", [self.value, order.value], facts).result)


def magnitudes(a: Matrix) -> Matrix:
    """|x|^2 of each element."""
    return a.real * a.real + a.imaginary * a.imaginary if a.is_complex else a * a


def sizes(a: Matrix) -> Matrix:
    """|x|, or |real| + |imag|, by which LAPACK compares complex numbers."""
    return abs(a.real) + abs(a.imaginary) if a.is_complex else abs(a)


def epsilon(a: Matrix) -> float:
    """The distance from 1 to the next number of the elements' real type."""
    return 2.0**-23 if real_element(a.element).bits == 32 else 2.0**-52


State = Sequence[Matrix]
STEPS = 4


def repeat(
    count: int, state: State, step: Callable[[Builder, Value, list[Matrix]], State]
) -> list[Matrix]:
    """`state` after `count` steps, each with its number as a scalar; several in one turn of the
    loop where they come out even, since each turn of a GPU's loop waits for the one before."""
    b = state[0].b
    number = TensorType((), I32)
    together = STEPS if count % STEPS == 0 else 1

    def more(b: Builder, at: Value, *rest: Value) -> Sequence[Value]:
        return [b.compare("LT", at, b.constant(count, number))]

    def body(b: Builder, at: Value, *rest: Value) -> Sequence[Value]:
        state: State = [Matrix(b, v) for v in rest]
        for _ in range(together):
            state = step(b, at, list(state))
            at = b("add", at, b.constant(1, number))
        return [at, *(x.value for x in state)]

    return _while(b, [b.constant(0, number), *(x.value for x in state)], more, body)[1:]


def until(
    most: int,
    state: State,
    step: Callable[[Builder, list[Matrix]], State],
    left: Callable[[list[Matrix]], Matrix],
) -> list[Matrix]:
    """`state` after as many steps as `left` is true for some matrix, at most so many."""
    b = state[0].b
    number = TensorType((), I32)

    def more(b: Builder, at: Value, *rest: Value) -> Sequence[Value]:
        mask = left([Matrix(b, v) for v in rest]).value
        some = b.reduce("or", mask, b.constant(False, TensorType((), I1)), range(mask.rank))
        return [b("and", some, b.compare("LT", at, b.constant(most, number)))]

    def body(b: Builder, at: Value, *rest: Value) -> Sequence[Value]:
        following = b("add", at, b.constant(1, number))
        return [following, *(x.value for x in step(b, [Matrix(b, v) for v in rest]))]

    return _while(b, [b.constant(0, number), *(x.value for x in state)], more, body)[1:]


def _while(b: Builder, start: Sequence[Value], more: Any, body: Any) -> list[Matrix]:
    types = [value.type for value in start]
    made = b.op("while", start, {}, [build_region(types, more), build_region(types, body)])
    return [Matrix(b, value) for value in made.results]

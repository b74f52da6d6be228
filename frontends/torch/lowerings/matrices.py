"""What lowerings of linear algebra share: batches of matrices, triangles, rows, checks."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import ElementType, TensorType
from ..context import Context, broadcast_dims


def adjoint(c: Context, value: Value) -> Value:
    """The conjugate transpose of each matrix."""
    value = transposed(c, value)
    return c("chlo.conj", value) if value.element.is_complex else value


def transposed(c: Context, value: Value) -> Value:
    """The transpose of each matrix; a number is its own."""
    last = value.rank - 1
    if last < 1:
        return value
    return c.builder.transpose(value, [*range(last - 1), last, last - 1])


def product(c: Context, left: Value, right: Value) -> Value:
    """left @ right of one batch."""
    batch = tuple(range(left.rank - 2))
    return c.dot(left, right, ((left.rank - 1,), (right.rank - 2,)), (batch, batch))


def together(c: Context, *values: Value) -> list[Value]:
    """Matrices with the batches that they broadcast to."""
    batch = broadcast_dims(*(value.dims[:-2] for value in values))
    return [c.spread(value, (*batch, *value.dims[-2:])) for value in values]


def eye(c: Context, dims: Sequence[Dim], element: ElementType) -> Value:
    """Ones on the diagonals of matrices of these dims."""
    rows, columns = (c.iota(dims[-2:], axis) for axis in (0, 1))
    one = c.convert(c.builder.compare("EQ", rows, columns), element)
    return c.spread(one, dims)


def triangle(c: Context, value: Value, lower: bool, beside: int = 0) -> Value:
    """The triangle with its diagonal, zero elsewhere; `beside`: less of so many diagonals."""
    rows, columns = (c.iota(value.dims, axis) for axis in (value.rank - 2, value.rank - 1))
    if lower:
        rows, columns = columns, rows
    kept = c.builder.compare("LE", c.add(rows, beside), columns)
    return c("select", kept, value, c.fill(0, TensorType(value.dims, value.element)))


def diagonal(c: Context, value: Value) -> Value:
    """The diagonals of matrices that are square or not."""
    rows, columns = value.dims[-2:]
    rank, count = value.rank, c.smaller(rows, columns)
    value = c.slice(c.slice(value, rank - 2, 0, count), rank - 1, 0, count)
    one = c.builder.compare("EQ", *(c.iota(value.dims, axis) for axis in (rank - 2, rank - 1)))
    return c.reduce("add", c.select(one, value, c.full(0, value.dims, value.element)), [rank - 2])


def rows_at(c: Context, value: Value, places: Value) -> Value:
    """The rows in another order: result[..., i, :] = value[..., places[..., i], :]."""
    if 0 in value.dims:
        return value
    batch, rank = tuple(range(value.rank - 2)), value.rank
    return c(
        "gather", value, places, offset_dims=(rank - 1,), collapsed_slice_dims=(rank - 2,),
        operand_batching_dims=batch, start_indices_batching_dims=batch,
        start_index_map=(rank - 2,), index_vector_dim=places.rank,
        slice_sizes=(*(1,) * (rank - 1), value.dims[-1]), indices_are_sorted=False,
    )  # fmt: skip


def nothing(c: Context, index: int) -> Value | None:
    """The tensor of zeros, or the empty one, that PyTorch gives where a result is not computed."""
    return c.full(0, c.type_of(index).dims, c.type_of(index).element) if c.used[index] else None


_NOT_CONVERGED = (
    "the algorithm failed to converge because the input matrix is ill-conditioned, has too many "
    "repeated values, or is not finite"
)
_REASONS = {
    "cholesky": "the input is not positive-definite",
    "inv": "the input matrix is singular",
    "ldl_factor": "D has a zero on its diagonal",
    "lu_factor": "U has a zero on its diagonal",
    "solve": "the input matrix is singular",
}


def failure(name: str) -> str:
    """What a call is told where that function of PyTorch raises by its info."""
    name = name.rpartition(".")[2].removesuffix("_ex")
    return f"torch.linalg.{name}: {_REASONS.get(name, _NOT_CONVERGED)}"


def check_info(c: Context, info: Value, name: str) -> None:
    """A call in which that function's `info` is not all zero is an error."""
    fine = c.builder.compare("EQ", info, c.full(0, info.dims, info.element))
    c.check(c.reduce("and", fine, range(fine.rank)), failure(name))

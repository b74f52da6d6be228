"""Products of matrices: mm, addmm, bmm, matmul, linear, ... all as one dot_general."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32, I64
from ..context import Blocked, Context, Number, Operand, broadcast_dims, is_low


def mm(c: Context, self: Value, mat2: Value) -> Value:
    """[n, k] x [k, m], also of a batch [b, n, k] x [b, k, m]."""
    batch = tuple(range(self.rank - 2))
    return c.dot(self, mat2, ((self.rank - 1,), (self.rank - 2,)), (batch, batch))


def added(
    c: Context, self: Operand, mat1: Value, mat2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta * self + alpha * (mat1 @ mat2)."""
    wide = is_low(mat1.element) and (beta != 1 or alpha != 1)
    batch = tuple(range(mat1.rank - 2))
    last = 0 if mat2.rank == 1 else mat1.rank - 2
    result = c.dot(mat1, mat2, ((mat1.rank - 1,), (last,)), (batch, batch), F32 if wide else None)
    result = result if alpha == 1 else c.multiply(result, alpha)
    if beta == 0:
        return c.narrow(result)
    bias = c.fill(self, c.type.with_element(result.element))
    bias = bias if beta == 1 else c.multiply(bias, beta)
    return c.narrow(c("add", result, bias))


def batch_summed(
    c: Context, self: Operand, batch1: Value, batch2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta * self + alpha * (the sum over the batch of batch1 @ batch2): one longer contraction."""
    result = c.dot(batch1, batch2, ((0, 2), (0, 1)))
    result = result if alpha == 1 else c.multiply(result, alpha)
    bias = c.fill(self, result.tensor)
    return c("add", result, bias if beta == 1 else c.multiply(bias, beta))


def linear(c: Context, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weight^T + bias, contracted with the weight's last dimension in place."""
    last = weight.rank - 1
    result = c.dot(input, weight, ((input.rank - 1,), (last,)))
    return result if bias is None else c("add", result, c.spread(bias, result.dims))


def inner(c: Context, self: Value, other: Value) -> Value:
    """The sum of products along both last dimensions; of a scalar, each product."""
    if not self.rank or not other.rank:
        return c("multiply", *c.together(self, other))
    return linear(c, self, other)


def matmul(c: Context, self: Value, other: Value) -> Value:
    """numpy's matmul: vectors contract, leading dimensions are a broadcast batch."""
    if other.rank <= 2:
        return c.dot(self, other, ((self.rank - 1,), (max(other.rank - 2, 0),)))
    if self.rank == 1:
        batch = tuple(range(other.rank - 2))
        row = c.builder.reshape(self, (1, *self.dims))
        wide = c.spread(row, (*other.dims[:-2], *row.dims))
        result = c.dot(wide, other, ((wide.rank - 1,), (other.rank - 2,)), (batch, batch))
        return c.builder.reshape(result, c.dims)
    common = broadcast_dims(self.dims[:-2], other.dims[:-2])
    left = c.spread(self, (*common, *self.dims[-2:]))
    right = c.spread(other, (*common, *other.dims[-2:]))
    return mm(c, left, right)


def mv(c: Context, self: Value, vec: Value) -> Value:
    """A matrix times a vector, or two vectors."""
    return c.dot(self, vec, ((self.rank - 1,), (0,)))


def conjugate_dot(c: Context, self: Value, other: Value) -> Value:
    """The sum of conj(self) other."""
    return mv(c, c("chlo.conj", self) if self.element.is_complex else self, other)


def outer(c: Context, self: Value, vec2: Value) -> Value:
    """result[i, j] = self[i] * vec2[j]."""
    left = c.builder.broadcast(c.convert(self, c.element), c.dims, [0])
    return c("multiply", left, c.builder.broadcast(c.convert(vec2, c.element), c.dims, [1]))


def grouped(
    c: Context,
    self: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """Rows before offs[0] times mat2[0], rows from there to offs[1] times mat2[1], ...; of a matrix
    and a matrix, the products of each group of columns with its group of rows, [groups, m, n]."""
    if offs is None:
        return c.narrow(mm(c, self, mat2))
    if bias is not None or (self.rank, mat2.rank) not in ((2, 3), (2, 2), (3, 2)):
        raise Blocked("groups something else than rows or columns of its operands")
    if self.rank == 3:  # groups of columns of the second operand
        left, right = (_transposed(c, x) for x in (mat2, self))
        return c.narrow(_transposed(c, _ragged(c, left, right, offs)))
    return c.narrow(_ragged(c, self, mat2, offs))


def _ragged(c: Context, left: Value, right: Value, offs: Value) -> Value:
    """[s, k] x [g, k, n] -> [s, n] with groups of rows, or [m, s] x [s, n] -> [g, m, n]."""
    ends = c.convert(offs, I64)
    starts = c.concatenate([c.full(0, (1,), I64), c.slice(ends, 0, 0, offs.dims[0] - 1)], 0)
    c.notes.append(
        "a grouped product multiplies all rows with the matrices of all groups and masks"
    )
    of_rows = right.rank == 3
    return c(
        "chlo.ragged_dot", left, right, c("subtract", ends, starts),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(right.rank - 2,),
        lhs_ragged_dimensions=(0,) if of_rows else (1,),
        rhs_group_dimensions=(0,) if of_rows else (),
    )  # fmt: skip


def _transposed(c: Context, value: Value) -> Value:
    """The last two dimensions change places."""
    order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    return c.builder.transpose(value, order)


def grouped_fallback(c: Context, input: Value, weight: Value, offs: Value) -> Value:
    """The operator that transformers has where PyTorch lacks a grouped product."""
    return grouped(c, input, weight, offs)


def grouped_fallback_backward(
    c: Context, input: Value, weight: Value, offs: Value, grad_output: Value
) -> tuple[Value, Value]:
    """Gradients of its input and its weight."""
    return (
        c.narrow(_ragged(c, grad_output, _transposed(c, weight), offs), 0),
        c.narrow(_ragged(c, _transposed(c, input), grad_output, offs), 1),
    )


# Einstein sums.

Labelled = tuple[Value, str]  # one label per dimension


def einsum(c: Context, equation: str, tensors: Sequence[Value], path: Any = None) -> Value:
    """Any Einstein sum, contracted from left to right."""
    terms, output = _labels(equation, tensors)
    pending = [_summed(c, term, _needed(terms, at) | set(output)) for at, term in enumerate(terms)]
    result = pending[0]
    for at, term in enumerate(pending[1:], 1):
        result = _contracted(c, result, term, _needed(pending, *range(at + 1)) | set(output))
    value, labels = result
    value = c.builder.transpose(value, [labels.index(label) for label in output])
    return c.narrow(value)


def _labels(equation: str, tensors: Sequence[Value]) -> tuple[list[Labelled], str]:
    """The operands with their labels and the result's; "..." becomes digits, from the end."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = []
    widest = 0
    for labels, value in zip(left.split(","), tensors, strict=True):
        if "..." in labels:
            count = value.rank - len(labels) + 3
            widest = max(widest, count)
            labels = labels.replace("...", "".join(str(d) for d in range(10 - count, 10)))
        if len(labels) != value.rank or len(set(labels)) != value.rank:
            raise Blocked(f"takes a diagonal in '{equation}'", "use torch.diagonal first")
        terms.append((value, labels))
    every = "".join(str(d) for d in range(10 - widest, 10))
    if not arrow:
        once = {label for label in left if left.count(label) == 1 and label.isalpha()}
        output = every + "".join(sorted(once))
    return terms, output.replace("...", every)


def _needed(terms: Sequence[Labelled], *skipped: int) -> set[str]:
    """Labels of the operands other than the skipped ones."""
    return {label for at, (_, labels) in enumerate(terms) if at not in skipped for label in labels}


def _summed(c: Context, term: Labelled, needed: set[str]) -> Labelled:
    """An operand without the dimensions that nothing else has."""
    value, labels = term
    gone = [d for d, label in enumerate(labels) if label not in needed]
    kept = "".join(label for label in labels if label in needed)
    return c.reduce("add", value, gone), kept


def _contracted(c: Context, left: Labelled, right: Labelled, needed: set[str]) -> Labelled:
    """The product of two operands, summed over shared labels that nothing else needs."""
    first, second = left[1], right[1]
    sizes = {label: size for value, labels in (right, left)
             for label, size in zip(labels, value.dims, strict=True) if size != 1}  # fmt: skip
    wide = [
        c.spread(value, [sizes.get(label, 1) if label in first and label in second else size
                         for label, size in zip(labels, value.dims, strict=True)])
        for value, labels in (left, right)
    ]  # fmt: skip
    shared = [label for label in first if label in second]
    batch = [label for label in shared if label in needed]
    summed = [label for label in shared if label not in needed]
    free = [label for label in first if label not in second]
    rest = [label for label in second if label not in first]
    value = c.dot(
        wide[0], wide[1],
        (tuple(map(first.index, summed)), tuple(map(second.index, summed))),
        (tuple(map(first.index, batch)), tuple(map(second.index, batch))),
    )  # fmt: skip
    return value, "".join(batch + free + rest)


def bilinear(
    c: Context, input1: Value, input2: Value, weight: Value, bias: Value | None = None
) -> Value:
    """input1 [..., i] weight [o, i, j] input2 [..., j] + bias [o], summed over i and j."""
    batch = "abcdefghklmnpqrstuvwxyz"[: input1.rank - 1]
    terms = f"{batch}i,oij,{batch}j->{batch}o"
    result = einsum(c, terms, [input1, weight, input2])
    return c.narrow(result if bias is None else c.add(result, bias))


def trilinear(
    c: Context,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The product of three tensors, each of which lacks some dimensions, summed over `sumdim`."""
    labels = "abcdefghijklmnopqrstuvwxyz"[: i1.rank + len(expand1)]
    terms = [
        "".join(label for axis, label in enumerate(labels) if axis not in lacks)
        for lacks in (expand1, expand2, expand3)
    ]
    kept = "".join(label for axis, label in enumerate(labels) if axis not in sumdim)
    return c.builder.reshape(einsum(c, f"{','.join(terms)}->{kept}", [i1, i2, i3]), c.dims)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm.default": grouped,
    "aten._trilinear.default": trilinear,
    "aten.addbmm.default": batch_summed,
    "aten.addmm.default": added,
    "aten.addmv.default": added,
    "aten.baddbmm.default": added,
    "aten.bilinear.default": bilinear,
    "aten.bmm.default": mm,
    "aten.dot.default": mv,
    "aten.einsum.default": einsum,
    "aten.ger.default": outer,
    "aten.inner.default": inner,
    "aten.linear.default": linear,
    "aten.matmul.default": matmul,
    "aten.mm.default": mm,
    "aten.mv.default": mv,
    "aten.outer.default": outer,
    "aten.vdot.default": conjugate_dot,
    "transformers.grouped_mm_fallback.default": grouped_fallback,
    "transformers.grouped_mm_fallback_backward.default": grouped_fallback_backward,
}

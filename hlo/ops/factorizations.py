"""Matrix factorisations of batches of matrices, with LAPACK's results: lu, qr, eigh, svd, eig, ...

Operands and results have the batch's dimensions in front. `info` is 0 where a matrix was
factorised; elsewhere its other results say nothing. Matrices are meant mathematically: layout is no
part of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op, arguments
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..symbols import minimum
from ..types import C64, C128, F32, F64, I32, TensorType, tensor_of
from . import lapack
from .clauses import same_dim, same_dims
from .examples import f32

ELEMENTS = (F32, F64, C64, C128)
_REAL = {C64: F32, C128: F64}
_COMPLEX = {F32: C64, F64: C128}


def real_element(element: Any) -> Any:
    """The type of absolute values."""
    return _REAL.get(element, element)


def complex_element(element: Any) -> Any:
    """The type of eigenvalues."""
    return _COMPLEX.get(element, element)


class Factorization(OpDefinition):
    """A batch of matrices, each for itself."""

    pattern = "opaque"
    opaque = "every element of a result needs the whole matrix"
    since = "1.2"

    def infer(self, o: Op) -> Sequence[TensorType]:
        raise NotImplementedError

    def batch(self, o: Op) -> tuple[Any, ...]:
        return o.operands[0].dims[:-2]

    def typed(self, o: Op, *dims: Any, element: Any = None) -> TensorType:
        """The type of a result: the batch, then `dims`."""
        return TensorType((*self.batch(o), *dims), element or o.operands[0].element)

    def info(self, o: Op) -> TensorType:
        return self.typed(o, element=I32)

    def outputs(self, o: Op) -> list[tuple[Sequence[int], Any]]:
        """For `lapack.batched`."""
        return [(kind.dims, kind.dtype) for kind in self.infer(o)]

    def shard(self, o: Op) -> Factors | None:
        return self.batched(o).build()

    def batched(self, o: Op, shape: int = 0) -> FactorBuilder:
        """Matrices pass, each for itself and as a whole; the first result's have the dims of those
        of operand `shape`, unless they are vectors."""
        rule, batch = FactorBuilder(o).batch(len(self.batch(o))), len(self.batch(o))
        operand, result = o.operands[shape], o.results[0]
        if result.rank == batch + 2:
            for d in range(batch, result.rank):
                rule.add(Factor(operand.dims[d], FactorKind.REPLICATE), {shape: d}, {0: d})
        return rule

    def flops(self, o: Op) -> float:
        m, n = o.operands[0].dims[-2:]
        return float(math.prod(self.batch(o))) * m * n * min(m, n)


def is_matrix(o: Op) -> bool:
    """Clause `IS_MATRIX`."""
    return o.operands[0].rank >= 2 and o.operands[0].element in ELEMENTS


IS_MATRIX = "a's rank is 2 or more, its elements are f32, f64 or complex numbers of those"


def is_square(o: Op) -> bool:
    """Whether the matrices are square."""
    return same_dim(*o.operands[0].dims[-2:])


def examples(square: bool = False, symmetric: bool = False) -> Iterator[tuple[str, Any]]:
    """Named matrices of each element type: one, a batch, wide and tall ones."""
    generator = np.random.Generator(np.random.PCG64(7))
    shapes = ((4, 4), (2, 3, 3)) if square else ((4, 4), (2, 3, 5), (5, 3))
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        for shape in shapes:
            a = generator.standard_normal(shape)
            if np.dtype(dtype).kind == "c":
                a = a + 1j * generator.standard_normal(shape)
            if symmetric:
                a = a + np.conj(np.swapaxes(a, -1, -2))
            yield f"{np.dtype(dtype)}_{'x'.join(map(str, shape))}", a.astype(dtype)


class Lu(Factorization, name="linalg.lu"):
    """lu, pivots, info: P a = L U by partial pivoting; U and, below it, L without its ones.

    Row i was exchanged with row pivots[i], counted from 1, one after the other. info k > 0 says
    that U[k, k] is zero, counted from 1.
    """

    a = operand()
    C1 = constraint(IS_MATRIX, is_matrix)

    def infer(self, o: Op) -> Sequence[TensorType]:
        pivots = self.typed(o, minimum(*o.a.dims[-2:]), element=I32)
        return [o.a.tensor, pivots, self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        getrf = lapack.function("getrf", arrays[0].dtype)

        def factorise(a: Any) -> Sequence[Any]:
            lu, pivots, info = getrf(a)
            return lu, pivots + 1, info

        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def cases(self) -> Iterator[Case]:
        for name, a in examples():
            yield Case(f"lu_{name}", (a,))
        yield Case("lu_singular", (f32([[1, 2], [2, 4]]),))
        yield Case("lu_no_rows", (np.zeros((2, 0, 3), np.float32),))


class Qr(Factorization, name="linalg.qr"):
    """qr, taus: a = Q R; R and, below it, the vectors of the reflectors whose product is Q.

    Reflector i is 1 - taus[i] v v^H with v = 0 before i, 1 at i, and qr[i+1:, i] after it.
    """

    a = operand()
    C1 = constraint(IS_MATRIX, is_matrix)

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.a.tensor, self.typed(o, minimum(*o.a.dims[-2:]))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        geqrf = lapack.function("geqrf", arrays[0].dtype)
        return lapack.batched(lambda a: geqrf(a)[:2], [(arrays[0], 2)], self.outputs(o))

    def cases(self) -> Iterator[Case]:
        for name, a in examples():
            yield Case(f"qr_{name}", (a,))


class PivotedQr(Factorization, name="linalg.qr_pivoted"):
    """qr, pivots, taus: a P = Q R with columns of decreasing rest first; qr and taus as linalg.qr.

    Column j of the product is column pivots[j] of a, counted from 1. Columns whose operand pivot is
    not zero come first, in their order, unpivoted.
    """

    a = operand()
    pivots = second()
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint(
        "pivots has one i32 for each column of a",
        lambda o: (
            o.pivots.element is I32 and same_dims(o.pivots.dims, (*o.a.dims[:-2], o.a.dims[-1]))
        ),
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.a.tensor, o.pivots.tensor, self.typed(o, minimum(*o.a.dims[-2:]))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        geqp3 = lapack.function("geqp3", arrays[0].dtype)
        geqrf = lapack.function("geqrf", arrays[0].dtype)
        ormqr = lapack.function("ormqr", arrays[0].dtype)
        adjoint = "C" if arrays[0].dtype.kind == "c" else "T"

        def factorise(a: Any, given: Any) -> Sequence[Any]:
            first = np.flatnonzero(given)
            order = np.concatenate([first, np.flatnonzero(given == 0)])
            count, k = len(first), min(a.shape)
            a = np.asfortranarray(a[:, order])
            taus = np.zeros(k, a.dtype)
            if count:
                fixed, known = geqrf(a[:, :count])[:2]
                a[:, :count], taus[: len(known)] = fixed, known
                if count < a.shape[1]:
                    work = 64 * a.shape[1]
                    a[:, count:] = ormqr("L", adjoint, fixed, known, a[:, count:], work)[0]
            if count < k:
                rest, pivots, more = geqp3(a[count:, count:])[:3]
                columns = count + pivots - 1
                a[:count, count:] = a[:count, columns]
                a[count:, count:], taus[count:] = rest, more
                order[count:] = order[columns]
            return a, order + 1, taus

        inputs = [(arrays[0], 2), (arrays[1], 1)]
        return lapack.batched(factorise, inputs, self.outputs(o))

    def cases(self) -> Iterator[Case]:
        for name, a in examples():
            pivots = np.zeros((*a.shape[:-2], a.shape[-1]), np.int32)
            yield Case(f"qr_pivoted_{name}", (a, pivots))
            if a.ndim == 2:
                pivots[1] = 1
                yield Case(f"qr_partly_pivoted_{name}", (a, pivots))


class HouseholderProduct(Factorization, name="linalg.householder_product"):
    """result = the first columns of the product of the reflectors in a and taus, see linalg.qr."""

    a = operand()
    taus = second()
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint(
        "a has at least as many rows as columns, and at least as many columns as there are taus",
        lambda o: o.taus.rank >= 1 and o.a.dims[-2] >= o.a.dims[-1] >= o.taus.dims[-1],
    )
    C3 = constraint(
        "taus has a's batch dimensions and element type",
        lambda o: same_dims(o.taus.dims[:-1], o.a.dims[:-2]) and o.taus.element is o.a.element,
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.a.tensor]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if o.taus.dims[-1] == 0:
            return np.broadcast_to(np.eye(*o.a.dims[-2:], dtype=arrays[0].dtype), o.a.dims).copy()
        orgqr = lapack.function("orgqr", arrays[0].dtype)
        inputs = [(arrays[0], 2), (arrays[1], 1)]
        return lapack.batched(lambda a, t: orgqr(a, t)[:1], inputs, self.outputs(o))[0]

    def cases(self) -> Iterator[Case]:
        qr = Qr()
        for name, a in examples():
            if a.shape[-2] >= a.shape[-1]:
                yield Case(f"householder_product_{name}", _reflectors(qr, a))
        yield Case("householder_product_of_none", (f32([[1, 2], [3, 4]]), f32([])))


def _reflectors(definition: Qr, a: Any) -> tuple[Any, Any]:
    """Reflectors of a, without a library: the one vector that makes a row zero, over and over."""
    op = definition.make(arguments([tensor_of(a)]))
    packed, taus = definition.evaluate(op, a)
    return packed, taus


class HouseholderMultiply(Factorization, name="linalg.householder_multiply"):
    """result = Q c, Q^H c (transpose), c Q or c Q^H; Q is the product of reflectors, see linalg.qr.

    `left` says that Q is on the left.
    """

    a = operand()
    taus = second()
    c = second()
    left = attribute(bool, True)
    transpose = attribute(bool, False)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint(
        "batches and element types of a, taus and c are the same",
        lambda o: (
            o.taus.rank >= 1
            and o.c.rank >= 2
            and same_dims(o.taus.dims[:-1], o.a.dims[:-2])
            and same_dims(o.c.dims[:-2], o.a.dims[:-2])
            and o.taus.element is o.a.element is o.c.element
        ),
    )
    C3 = constraint(
        "a has as many rows as c rows (left) or columns, and at least as many as there are taus",
        lambda o: (
            o.a.dims[-2] == o.c.dims[-2 if o.left else -1]
            and o.a.dims[-2] >= o.taus.dims[-1]
            and o.a.dims[-1] >= o.taus.dims[-1]
        ),
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.c.tensor]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if o.taus.dims[-1] == 0:
            return arrays[2]
        ormqr = lapack.function("ormqr", arrays[0].dtype)
        adjoint = "C" if arrays[0].dtype.kind == "c" else "T"
        side, form = "L" if o.left else "R", adjoint if o.transpose else "N"
        count, work = o.taus.dims[-1], 64 * max(1, *o.c.dims[-2:])

        def multiply(a: Any, taus: Any, c: Any) -> Sequence[Any]:
            return ormqr(side, form, a[:, :count], taus, c, work)[:1]

        inputs = [(arrays[0], 2), (arrays[1], 1), (arrays[2], 2)]
        return lapack.batched(multiply, inputs, self.outputs(o))[0]

    def shard(self, o: Op) -> Factors | None:
        return self.batched(o, shape=2).build()

    def cases(self) -> Iterator[Case]:
        qr = Qr()
        for name, a in examples():
            packed, taus = _reflectors(qr, a)
            for left in (True, False):
                rows = a.shape[-2]
                shape = (rows, 2) if left else (2, rows)
                c = np.arange(2.0 * rows).reshape(shape).astype(a.dtype)
                c = np.broadcast_to(c, (*a.shape[:-2], *shape)).copy()
                facts = {"left": left, "transpose": left}
                yield Case(f"householder_multiply_{name}_{left:d}", (packed, taus, c), facts)
        a = f32([[1, 2], [3, 4]])
        yield Case("householder_multiply_of_none", (a[:, :0], f32([]), a))


class Eigh(Factorization, name="linalg.eigh"):
    """v, w, info: a v = v diag(w), a Hermitian and given by its lower (or upper) triangle.

    w rises, v's columns are orthonormal. Phases of v, and its columns for equal w, are free.
    """

    a = operand()
    lower = attribute(bool, True)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint("a's matrices are square", is_square)

    def infer(self, o: Op) -> Sequence[TensorType]:
        values = self.typed(o, o.a.dims[-1], element=real_element(o.a.element))
        return [o.a.tensor, values, self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        syevd = lapack.function("syevd", arrays[0].dtype)

        def factorise(a: Any) -> Sequence[Any]:
            w, v, info = syevd(a, compute_v=1, lower=int(o.lower))
            return v, w, info

        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def flops(self, o: Op) -> float:
        return 9.0 * super().flops(o)

    def shard(self, o: Op) -> Factors | None:
        rule, batch, size = FactorBuilder(o), len(self.batch(o)), o.a.dims[-1]
        rule.batch(batch).add(Factor(size, FactorKind.REPLICATE), {0: batch}, {0: batch})
        columns = Factor(size, FactorKind.REPLICATE)  # an eigenvector for each eigenvalue
        rule.add(columns, {0: batch + 1}, {0: batch + 1, 1: batch})
        return rule.build()

    def cases(self) -> Iterator[Case]:
        for name, a in examples(square=True, symmetric=True):
            yield Case(f"eigh_{name}", (a,), {"lower": a.ndim == 2}, tolerance=2e-5)


SVD_ALGORITHMS = ("gesdd", "gesvd")


class Svd(Factorization, name="linalg.svd"):
    """s, u, vt, info: a = u diag(s) vt, s falling and not negative.

    u and vt have as many columns and rows as a has rows and columns (full_matrices), or as many as
    s has entries. Without compute_uv they are zero. algorithm: gesdd divides and conquers, gesvd
    iterates by QR. Phases are free.
    """

    a = operand()
    full_matrices = attribute(bool, True)
    compute_uv = attribute(bool, True)
    algorithm = attribute(str, "gesdd")
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint("algorithm is gesdd or gesvd", lambda o: o.algorithm in SVD_ALGORITHMS)

    def infer(self, o: Op) -> Sequence[TensorType]:
        m, n = o.a.dims[-2:]
        k = minimum(m, n)
        columns, rows = (m, n) if o.full_matrices else (k, k)
        values = self.typed(o, k, element=real_element(o.a.element))
        return [values, self.typed(o, m, columns), self.typed(o, rows, n), self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        driver = lapack.function(o.algorithm, arrays[0].dtype)

        def factorise(a: Any) -> Sequence[Any]:
            wanted = {"compute_uv": int(o.compute_uv), "full_matrices": int(o.full_matrices)}
            u, s, vt, info = driver(a, **wanted)
            return (s, u, vt, info) if o.compute_uv else (s, 0, 0, info)

        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def flops(self, o: Op) -> float:
        return 12.0 * super().flops(o)

    def cases(self) -> Iterator[Case]:
        for name, a in examples():
            for algorithm in SVD_ALGORITHMS:
                facts = {"full_matrices": a.shape[-1] != 4, "algorithm": algorithm}
                yield Case(f"svd_{algorithm}_{name}", (a,), facts, tolerance=2e-5)
            yield Case(f"singular_values_{name}", (a,), {"compute_uv": False}, tolerance=2e-5)


class Eig(Factorization, name="linalg.eig"):
    """w, vl, vr, info: a vr = vr diag(w) and vl^H a = diag(w) vl^H, columns of length one.

    w, vl and vr are complex. Vectors that were not asked for are zero. info -4: not all of a is
    finite.
    """

    a = operand()
    left = attribute(bool, True)
    right = attribute(bool, True)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint("a's matrices are square", is_square)

    def infer(self, o: Op) -> Sequence[TensorType]:
        element, n = complex_element(o.a.element), o.a.dims[-1]
        vectors = self.typed(o, n, n, element=element)
        return [self.typed(o, n, element=element), vectors, vectors, self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        geev = lapack.function("geev", arrays[0].dtype)

        def factorise(a: Any) -> Sequence[Any]:
            if not np.isfinite(a).all():
                return 0, 0, 0, -4
            found = geev(a, compute_vl=int(o.left), compute_vr=int(o.right))
            if a.dtype.kind == "c":
                w, vl, vr, info = found
            else:
                real, imaginary, vl, vr, info = found
                w = real + 1j * imaginary
                vl, vr = (_unpacked(imaginary, v) for v in (vl, vr))
            return w, vl if o.left else 0, vr if o.right else 0, info

        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def flops(self, o: Op) -> float:
        return 25.0 * super().flops(o)

    def cases(self) -> Iterator[Case]:
        for name, a in examples(square=True):
            yield Case(f"eig_{name}", (a,), tolerance=5e-5)
        rotations = f32([[0, 1, 0], [-1, 0, 0], [0, 0, 2]])
        yield Case("eig_pairs", (rotations,), {"left": False})
        yield Case("eigenvalues", (rotations,), {"left": False, "right": False})
        yield Case("eig_infinite", (f32([[1, np.inf], [0, 1]]),))


def _unpacked(imaginary: Any, packed: Any) -> Any:
    """Complex vectors from LAPACK's real ones: a pair's share two columns, real and imaginary."""
    n = len(imaginary)
    if packed.shape != (n, n):
        return 0
    vectors = packed.astype(np.result_type(packed.dtype, np.complex64))
    for j in np.flatnonzero(imaginary > 0):
        vectors[:, j] = packed[:, j] + 1j * packed[:, j + 1]
        vectors[:, j + 1] = np.conj(vectors[:, j])
    return vectors


ROOMS = (
    Lu(), Qr(), PivotedQr(), HouseholderProduct(), HouseholderMultiply(), Eigh(), Svd(), Eig(),
)  # fmt: skip

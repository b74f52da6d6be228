"""Unitary reductions of batches of matrices, and systems of three diagonals, as in LAPACK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..factors import Factor, FactorBuilder, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..symbols import maximum
from ..types import I32, TensorType
from . import lapack
from .clauses import same_dims
from .examples import f32, i32
from .factorizations import (
    ELEMENTS,
    IS_MATRIX,
    Factorization,
    complex_element,
    examples,
    is_matrix,
    is_square,
    real_element,
)


class Schur(Factorization, name="linalg.schur"):
    """t, z, w, info: a = z t z^H, z unitary, t upper triangular with the eigenvalues w on it.

    Of real matrices, t has two by two blocks for pairs of eigenvalues. Without `vectors`, z is
    zero. info -4: not all of a is finite.
    """

    a = operand()
    vectors = attribute(bool, True)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint("a's matrices are square", is_square)

    def infer(self, o: Op) -> Sequence[TensorType]:
        values = self.typed(o, o.a.dims[-1], element=complex_element(o.a.element))
        return [o.a.tensor, o.a.tensor, values, self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        gees = lapack.function("gees", arrays[0].dtype)

        def factorise(a: Any) -> Sequence[Any]:
            if not np.isfinite(a).all():
                return 0, 0, 0, -4
            found = gees(lambda *_: 0, a, compute_v=int(o.vectors), sort_t=0)
            if a.dtype.kind == "c":
                t, _, w, z, _, info = found
            else:
                t, _, real, imaginary, z, _, info = found
                w = real + 1j * imaginary
            return t, z if o.vectors else 0, w, info

        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def flops(self, o: Op) -> float:
        return 25.0 * super().flops(o)

    def cases(self) -> Iterator[Case]:
        for name, a in examples(square=True):
            kind = "schur" if a.ndim == 2 else "schur_form"
            yield Case(f"{kind}_{name}", (a,), {"vectors": a.ndim == 2}, tolerance=5e-5)
        yield Case("schur_infinite", (f32([[1, np.nan], [0, 1]]),))


class Hessenberg(Factorization, name="linalg.hessenberg"):
    """h, taus, info: a = Q H Q^H, H zero below its first subdiagonal, where the vectors of the
    reflectors stand whose product is Q: linalg.qr's, one row lower.

    Rows and columns outside [low, high], counted from 1, are upper triangular already.
    """

    a = operand()
    low = attribute(int)
    high = attribute(int)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint("a's matrices are square", is_square)
    C3 = constraint(
        "1 <= low <= high <= size of a, or low = 1 and high = 0 for no rows",
        lambda o: (
            1 <= o.low <= o.high <= o.a.dims[-1]
            or (o.a.dims[-1] == 0 and (o.low, o.high) == (1, 0))
        ),
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.a.tensor, self.typed(o, maximum(0, o.a.dims[-1] - 1)), self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        gehrd = lapack.function("gehrd", arrays[0].dtype)
        factorise = lambda a: gehrd(a, lo=o.low - 1, hi=o.high - 1)  # noqa: E731
        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def cases(self) -> Iterator[Case]:
        for name, a in examples(square=True):
            n = a.shape[-1]
            yield Case(f"hessenberg_{name}", (a,), {"low": 1, "high": n})
        yield Case("hessenberg_part", (np.triu(a[0], -1),), {"low": 1, "high": 2})
        yield Case("hessenberg_single", (f32([[3]]),), {"low": 1, "high": 1})


class Tridiagonal(Factorization, name="linalg.tridiagonal"):
    """t, d, e, taus, info: a = Q T Q^H, a Hermitian and given by its lower (or upper) triangle.

    d is T's diagonal, e the one beside it. t holds T in that triangle and, beyond, the vectors of
    the reflectors whose product is Q; its other triangle is a's.
    """

    a = operand()
    lower = attribute(bool, True)
    C1 = constraint(IS_MATRIX, is_matrix)
    C2 = constraint(
        "a's matrices are square and have rows", lambda o: is_square(o) and o.a.dims[-1] > 0
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        n, real = o.a.dims[-1], real_element(o.a.element)
        diagonals = [self.typed(o, n, element=real), self.typed(o, n - 1, element=real)]
        return [o.a.tensor, *diagonals, self.typed(o, n - 1), self.info(o)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        sytrd = lapack.function("sytrd", arrays[0].dtype)
        factorise = lambda a: sytrd(a, lower=int(o.lower))  # noqa: E731
        return lapack.batched(factorise, [(arrays[0], 2)], self.outputs(o))

    def cases(self) -> Iterator[Case]:
        for name, a in examples(square=True, symmetric=True):
            yield Case(f"tridiagonal_{name}", (a,), {"lower": a.ndim == 2})


class TridiagonalSolve(OpDefinition, name="linalg.tridiagonal_solve"):
    """x, info: T x = b with T's diagonals dl (below), d and du (above), by partial pivoting.

    dl[0] and du[n-1] are no part of T. info k > 0 says that pivot k, counted from 1, is zero; x
    says nothing then.
    """

    pattern = "opaque"
    opaque = "every element of a result needs the whole system"
    since = "1.2"
    dl = operand()
    d = second()
    du = second()
    b = second()
    C1 = constraint(
        "dl, d and du have one type, of f32, f64 or complex numbers of those",
        lambda o: o.dl.type is o.d.type is o.du.type and o.d.element in ELEMENTS and o.d.rank >= 1,
    )
    C2 = constraint(
        "b is of that element type and has their dimensions, then the right sides",
        lambda o: o.b.element is o.d.element and same_dims(o.b.dims[:-1], o.d.dims),
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.b.tensor, TensorType(o.d.dims[:-1], I32)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        gtsv = lapack.function("gtsv", arrays[0].dtype)

        def solve(dl: Any, d: Any, du: Any, b: Any) -> Sequence[Any]:
            if len(d) == 1:  # scipy takes no empty diagonals
                return (b, 1) if d[0] == 0 else (b / d[0], 0)
            return gtsv(dl[1:], d, du[:-1], b)[3:]

        outputs = [(kind.dims, kind.dtype) for kind in self.infer(o)]
        inputs = [(array, 1) for array in arrays[:3]]
        return lapack.batched(solve, [*inputs, (arrays[3], 2)], outputs)

    def shard(self, o: Op) -> Factors | None:
        rule, system = FactorBuilder(o).batch(o.d.rank - 1), o.d.rank
        rule.add(Factor(o.b.dims[system]), {3: system}, {0: system})
        return rule.build()

    def flops(self, o: Op) -> float:
        return 8.0 * o.b.tensor.size

    def cases(self) -> Iterator[Case]:
        line = np.arange(1.0, 5.0)
        for dtype in (np.float32, np.float64, np.complex64, np.complex128):
            turn = 1 + 0.5j if np.dtype(dtype).kind == "c" else 1
            dl, d, du = ((line * f * turn).astype(dtype) for f in (1, -0.5, 2))
            b = (np.arange(8.0).reshape(4, 2) * turn).astype(dtype)
            yield Case(f"tridiagonal_solve_{b.dtype}", (dl, d, du, b))
            batch = tuple(np.stack([x, x[::-1]]) for x in (dl, d, du, b))
            yield Case(f"tridiagonal_solve_batch_{b.dtype}", batch)
        one = f32([0])
        yield Case("tridiagonal_solve_one", (one, f32([2]), one, f32([[6, 8]])))


class PivotsToPermutation(OpDefinition, name="linalg.pivots_to_permutation"):
    """permutation: what becomes of 0, 1, ..., size - 1 when entry i is exchanged with entry
    pivots[i] (counted from 0, none where there is no such entry), one after the other."""

    pattern = "opaque"
    opaque = "an entry depends on all pivots before it"
    since = "1.2"
    pivots = operand()
    size = attribute(int)
    C1 = constraint(
        "pivots is i32 with rank 1 or more, and no longer than size",
        lambda o: o.pivots.element is I32 and o.pivots.rank >= 1 and o.pivots.dims[-1] <= o.size,
    )

    def infer(self, o: Op) -> Sequence[TensorType]:
        return [o.pivots.tensor.with_dims((*o.pivots.dims[:-1], o.size))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        (pivots,) = arrays
        permutation = np.broadcast_to(np.arange(o.size, dtype=np.int32), o.result.dims).copy()
        for i in range(pivots.shape[-1]):
            given = pivots[..., i : i + 1]
            other = np.where((given >= 0) & (given < o.size), given, i)
            mine = permutation[..., i : i + 1].copy()
            permutation[..., i : i + 1] = np.take_along_axis(permutation, other, -1)
            np.put_along_axis(permutation, other, mine, -1)
        return permutation

    def shard(self, o: Op) -> Factors | None:
        return FactorBuilder(o).batch(o.pivots.rank - 1).build()

    def cases(self) -> Iterator[Case]:
        yield Case("permutation", (i32([[2, 2, 2], [1, 1, 3], [7, -1, 2]]),), {"size": 4})


ROOMS = (
    Schur(), Hessenberg(), Tridiagonal(), TridiagonalSolve(), PivotsToPermutation(),
)  # fmt: skip

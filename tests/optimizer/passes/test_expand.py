"""Operations on whole matrices become plain HLO that computes what LAPACK computes, about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends import find
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.types import tensor_of
from girih.hlo.verify import INLINED, verify
from girih.optimizer.expansions import EXPANSIONS, expands, triangular
from girih.optimizer.passes.expand import Expand
from girih.optimizer.pipeline import pipeline_for

DTYPES = ("float32", "float64", "complex64")


def program(name: str, *arrays: np.ndarray, **facts: Any) -> Module:
    types = [tensor_of(a) for a in arrays]
    return build_module(types, lambda b, *values: list(b.op(name, values, facts).results))


def expanded(name: str, *arrays: np.ndarray, **facts: Any) -> list[Any]:
    """What the expansion gives."""
    module = program(name, *arrays, **facts)
    after = Expand(lambda op: True)(module)
    verify(after, INLINED)
    assert not after.has(name) or name in ("cholesky", "triangular_solve")
    assert after.notes == (f"{name} is computed by products and loops",)
    return girih.interpret(after, list(arrays))


def lapack(name: str, *arrays: np.ndarray, **facts: Any) -> list[Any]:
    return girih.interpret(program(name, *arrays, **facts), list(arrays))


def normal(*dims: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng([seed, *dims])
    values: Any = generator.standard_normal(dims)
    if dtype.startswith("complex"):
        values = values + 1j * generator.standard_normal(dims)
    return values.astype(dtype)


def adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def near(found: Any, wanted: Any, times: float = 100) -> None:
    """Equal but for so many roundings of the largest element."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    scale = max(np.abs(wanted).max(initial=0.0), np.finfo(wanted.dtype).tiny)
    assert np.abs(found - wanted).max(initial=0.0) <= times * np.finfo(wanted.dtype).eps * scale


def each_near(found: Any, wanted: Any) -> None:
    """As `near`, with the largest element of each matrix."""
    for one, other in zip(found, wanted, strict=True):
        near(one, other)


def orthonormal(q: Any) -> None:
    near(
        adjoint(q) @ q,
        np.broadcast_to(np.eye(q.shape[-1], dtype=q.dtype), (*q.shape[:-2], *(q.shape[-1],) * 2)),
    )


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows, so that small matrices have several."""
    from girih.optimizer.expansions import householder, lu

    for module in (triangular, lu, householder):
        monkeypatch.setattr(module, "BLOCK", 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(dtype: str, lower: bool, small_blocks: None) -> None:
    a = normal(2, 7, 7, dtype=dtype)
    a = a @ adjoint(a) + np.eye(7, dtype=dtype)
    kept = np.tril(a) if lower else np.triu(a)
    (found,) = expanded("cholesky", kept, lower=lower)
    near(found @ adjoint(found) if lower else adjoint(found) @ found, a)
    assert not (np.triu(found, 1) if lower else np.tril(found, -1)).any()


def test_cholesky_of_what_has_none_is_nan_in_that_matrix(small_blocks: None) -> None:
    a = np.stack([np.eye(5), np.diag([1.0, 1, -1, 1, 1])])
    (found,) = expanded("cholesky", a, lower=True)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[0], np.eye(5))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
def test_triangular_solve(
    dtype: str, left: bool, lower: bool, transpose: str, small_blocks: None
) -> None:
    a = normal(2, 7, 7, dtype=dtype) / 7 + np.eye(7, dtype=dtype)
    c = normal(2, 7, 3, dtype=dtype) if left else normal(2, 3, 7, dtype=dtype)
    facts = {"left_side": left, "lower": lower, "transpose_a": transpose}
    for unit in (True, False):
        given: Any = {**facts, "unit_diagonal": unit}
        found = expanded("triangular_solve", a, c, **given)
        near(found[0], lapack("triangular_solve", a, c, **given)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(1, 1), (7, 7), (2, 8, 5), (2, 5, 8)])
def test_lu(dtype: str, dims: tuple[int, ...], small_blocks: None) -> None:
    a = normal(*dims, dtype=dtype)
    (packed, *rest), (wanted, *others) = expanded("linalg.lu", a), lapack("linalg.lu", a)
    near(packed, wanted)
    for found, other in zip(rest, others, strict=True):
        np.testing.assert_array_equal(found, other)


def test_lu_says_where_a_pivot_is_zero(small_blocks: None) -> None:
    a = np.stack([np.ones((5, 5)), np.zeros((5, 5)), np.diag([1.0, 1, 1, 0, 0])])
    for found, wanted in zip(expanded("linalg.lu", a), lapack("linalg.lu", a), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(1, 1), (7, 7), (2, 8, 5), (2, 5, 8)])
def test_reflectors(dtype: str, dims: tuple[int, ...], small_blocks: None) -> None:
    a = normal(*dims, dtype=dtype)
    packed, taus = expanded("linalg.qr", a)
    for found, wanted in zip((packed, taus), lapack("linalg.qr", a), strict=True):
        near(found, wanted)
    c = normal(*dims[:-2], dims[-2], 2, dtype=dtype)
    for left in (True, False):
        for transpose in (True, False):
            facts = {"left": left, "transpose": transpose}
            given = (packed, taus, c if left else np.ascontiguousarray(adjoint(c)))
            found = expanded("linalg.householder_multiply", *given, **facts)
            near(found[0], lapack("linalg.householder_multiply", *given, **facts)[0])
    if dims[-2] >= dims[-1]:
        (q,) = expanded("linalg.householder_product", packed, taus)
        orthonormal(q)
        near(q @ np.triu(packed[..., : dims[-1], :]), a)


def test_columns_that_are_done_need_no_reflector() -> None:
    a = np.stack([np.triu(normal(4, 4)), np.zeros((4, 4), np.float32), normal(4, 4) * 1e-30])
    for found, wanted in zip(expanded("linalg.qr", a), lapack("linalg.qr", a), strict=True):
        each_near(found, wanted)


def hard(rows: int, columns: int, dtype: str) -> np.ndarray:
    """Ordinary matrices, and those of which some columns, or all, are as good as zero."""
    a = normal(rows, columns, dtype=dtype)
    grades = np.logspace(0, -12, columns).astype(dtype)
    low = normal(rows, 2, dtype=dtype) @ normal(2, columns, dtype=dtype)
    kinds = [a, a * grades, low, a * 0, a * 0 + 1, a * a.dtype.type(1e30), a * a.dtype.type(1e-30)]
    return np.stack(kinds).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5])
def test_eigh(dtype: str, size: int) -> None:
    a = hard(size, size, dtype)
    a = a + adjoint(a)
    lower = size == 5 and dtype != "float64"
    given = np.tril(a) if lower else np.triu(a)
    vectors, values, info = expanded("linalg.eigh", given, lower=lower)
    assert not info.any() and (np.diff(values) >= 0).all()
    each_near(a @ vectors, vectors * values[:, None, :].astype(dtype))
    orthonormal(vectors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(4, 4), (5, 3), (3, 5), (2, 1)])
def test_svd(dtype: str, dims: tuple[int, int]) -> None:
    a, full = hard(*dims, dtype), dims != (5, 3) or dtype == "float32"
    values, u, vt, info = expanded("linalg.svd", a, full_matrices=full)
    wanted = lapack("linalg.svd", a, full_matrices=full)
    assert not info.any() and [x.shape for x in (u, vt)] == [x.shape for x in wanted[1:3]]
    count = values.shape[-1]
    each_near(values, wanted[0])
    each_near((u[..., :count] * values[:, None, :].astype(dtype)) @ vt[..., :count, :], a)
    orthonormal(u)
    orthonormal(adjoint(vt))


def test_numbers_that_are_not_finite_give_nan() -> None:
    a = np.stack([np.eye(3), np.full((3, 3), np.nan), np.full((3, 3), np.inf)])
    _, values, _ = expanded("linalg.eigh", a)
    singular = expanded("linalg.svd", a, compute_uv=False)[0]
    for found in (values, singular):
        np.testing.assert_array_equal(found[0], np.ones(3))
        assert np.isnan(found[1:]).all()


def test_every_expansion_is_of_known_operations_and_sizes() -> None:
    for name in EXPANSIONS:
        assert name in ("cholesky", "triangular_solve") or name.startswith("linalg.")
    empty = program("linalg.qr", np.zeros((2, 0, 3), np.float32))
    assert not any(map(expands, empty.walk())) and Expand(lambda op: True)(empty) is empty


def test_what_has_code_stays() -> None:
    module = program("linalg.qr", normal(3, 3))
    assert Expand(lambda op: False)(module) is module


def test_stored_programs_keep_the_operation() -> None:
    large, small = normal(40, 40), normal(20, 20)
    options = girih.Options(cache="off")
    for target in ("cpu:avx2", "ptx-sim"):
        passes = pipeline_for(find(target, options), options)
        stored, lowered = passes.run(
            program("cholesky", large, lower=True), stop_after="simplify:3"
        )
        assert [op.name for op in stored.walk()] == ["cholesky"]
        sizes = [op.operands[0].dims for op in lowered.walk() if op.name == "cholesky"]
        assert sizes == [(32, 32), (8, 8)] and lowered.has("dot_general")
        stored, lowered = passes.run(program("cholesky", small, lower=True))
        assert lowered.has("cholesky") and not lowered.has("dot_general")

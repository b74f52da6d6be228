"""JAX's exports with symbolic shapes: imported without examples, compiled once for all sizes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax import numpy as jnp

import girih
from girih.frontends.jax.exported import _size
from girih.frontends.jax.importing import read_exported
from girih.hlo.symbols import SymbolicDim
from girih.hlo.verify import require_proven_sizes

from .jax_open_programs import PROGRAMS, OpenProgram, leaves

OPTIONS = girih.Options(cache="off")


def assert_close(found: Any, wanted: Any, tolerance: float) -> None:
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=10 * tolerance)


@pytest.mark.parametrize("made", PROGRAMS, ids=lambda made: made.name)
def test_open_programs(made: OpenProgram) -> None:
    module = girih.import_model(made.exported())
    assert set(module.symbols) == set(made.calls[0]) and not module.notes
    require_proven_sizes(module)
    program = girih.compile(module, sizes=made.sizes(), options=OPTIONS)
    for seed, sizes in enumerate(made.calls):
        inputs = made.inputs(sizes, seed)
        wanted = jax.jit(made.function)(*inputs)
        assert_close(girih.interpret(module, inputs), wanted, made.tolerance)
        assert_close(program(*inputs), wanted, made.tolerance)


def constrained(*constraints: str) -> export.Exported:
    scope = export.SymbolicScope(constraints)
    a, b = export.symbolic_shape("a, b", scope=scope)
    x = jax.ShapeDtypeStruct((a, b, 2), np.float32)
    return export.export(jax.jit(lambda x: x.reshape(a // 8, 8, b, 2).sum(1)))(x)


def test_constraints_are_the_programs() -> None:
    module = girih.import_model(constrained("a >= 8", "mod(a, 8) == 0", "b <= 512"))
    a, b = SymbolicDim("a"), SymbolicDim("b")
    facts = module.assumptions
    assert facts.is_equal(a // 8 * 8, a) and facts.at_most(8, a) and facts.at_most(b, 512)
    assert facts.divides(4, a) and facts.divides(8, a * b) and facts.at_most(a * b, 512 * a)
    program = girih.compile(module, sizes={"a": (8, 64), "b": (1, 64)}, options=OPTIONS)
    x = np.random.default_rng(0).normal(size=(16, 3, 2)).astype(np.float32)
    np.testing.assert_allclose(program(x), x.reshape(2, 8, 3, 2).sum(1), rtol=1e-5, atol=1e-5)
    for shape, message in (
        ((12, 3, 2), r"a\) % 8 == 0 .*a = 12 .*symbolic shape constraint 8\*floordiv\(a, 8\)"),
        (
            (0, 3, 2),
            r"size a must be at least 8 \(Input shapes.*Expected 'a - 8' to be greater",
        ),
        ((8, 0, 2), r"size b must be from 1 to 512 \(Expected value >= 1 for dimension variable"),
    ):
        with pytest.raises(girih.UserError, match=message) as error:
            girih.interpret(module, [np.zeros(shape, np.float32)])
        assert "{0}" not in str(error.value) and "Please see" not in str(error.value)
    with pytest.raises(girih.UserError, match="sizes do not fit"):
        program(np.zeros((12, 3, 2), np.float32))


def test_dimensions_are_expressions_of_the_users_names() -> None:
    b = SymbolicDim("b")
    assert _size("2*b^2 + floordiv(b + 1, 2) - mod(b, 8)") == 2 * b * b + (b + 1) // 2 - b % 8
    assert _size("max(b, 4)*floordiv(b, 2)^2") == _size("floordiv(b, 2)*floordiv(b, 2)*max(4, b)")
    for text in ("b.c", "b +", "f(b)", "b if b else b", "b^b", "(" * 5000):
        with pytest.raises(ValueError, match="dimension"):
            _size(text)


SIZES = (
    "(n - 1) // 2 + 1", "(-n) // 7 + n", "-n % 7 + 1", "n * n // 3 + n % 5",
    "max(n, 4) - min(n, 2)", "(n + 3) // 4 % 3 + 1",
)  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_size_arithmetic(text: str) -> None:
    """JAX spells Python's quotients and remainders by those that cut towards zero."""
    from jax import core

    names = {"max": core.max_dim, "min": core.min_dim}
    (n,) = export.symbolic_shape("n")
    function = jax.jit(lambda x: jnp.zeros(eval(text, names, {"n": x.shape[0]})))  # noqa: S307
    module = girih.import_model(export.export(function)(jax.ShapeDtypeStruct((n,), np.float32)))
    (dim,) = module.body.result_types[0].dims  # type: ignore[union-attr]
    for value in range(1, 40):
        assert dim.bind({"n": value}) == eval(text, {"n": value})  # noqa: S307


def test_files_and_donations() -> None:
    made = next(made for made in PROGRAMS if made.name == "training")
    source = made.exported()
    module = girih.import_model(source)
    assert str(read_exported(bytes(source.serialize()))) == str(module)
    assert module.signature is not None
    assert [a.aliases for a in module.signature.arguments] == [0, 1, None, None]
    program = girih.compile(module, sizes={"b": (1, 9)}, options=OPTIONS)
    arrays = made.inputs({"b": 5})
    wanted = jax.jit(made.function)(*arrays)
    w, c, value = program(*arrays)
    assert_close((w, c, value), wanted, made.tolerance)


def test_a_size_needs_a_largest_value() -> None:
    with pytest.raises(girih.UserError, match="no largest value.*--size"):
        girih.compile(constrained("mod(a, 8) == 0"), options=OPTIONS)

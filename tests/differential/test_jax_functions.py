"""Functions of the catalogue, compiled by girih and by JAX: the same numbers, or a clear refusal.

Each case runs once, some of them with the "bitwise" licence. GIRIH_THOROUGH=1 runs all of them,
also the long ones, with both licences.
"""

from __future__ import annotations

import os
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest

import girih

from . import elementwise, indexing, products, programs, reductions  # noqa: F401 - fill CASES
from .catalogue import CASES, Case, case, difference, leaves, normal

THOROUGH = bool(os.environ.get("GIRIH_THOROUGH"))
# XLA's own passes over its code take most of the time, and change no number beyond a rounding.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def wide_types(entry: Case) -> AbstractContextManager[object]:
    return jax.enable_x64(True) if entry.wide else nullcontext()


def numerics_of(entry: Case) -> list[str]:
    if THOROUGH:
        return ["reassociates", "bitwise"]
    return ["bitwise" if zlib.crc32(entry.name.encode()) % 4 == 0 else "reassociates"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_same_numbers_as_jax(name: str, tmp_path: Path) -> None:
    entry = CASES[name]
    if entry.long and not THOROUGH:
        pytest.skip("long: runs with GIRIH_THOROUGH=1")
    with wide_types(entry):
        lowered = jax.jit(entry.function).lower(*entry.inputs)
        wanted = leaves(lowered.compile(FAST_COMPILE)(*entry.inputs))
        for numerics in numerics_of(entry):
            options = girih.Options(numerics=numerics, threads=2)
            program = girih.compile(entry.function, *entry.inputs, options=options)
            found = leaves(program(*entry.inputs))
            reports = [difference(w, f, entry.loose) for w, f in zip(wanted, found, strict=True)]
            assert not any(reports), "\n".join(f"{i}: {r}" for i, r in enumerate(reports) if r)
            program.save(tmp_path / "program.girih")
            loaded = girih.load(tmp_path / "program.girih", threads=1)
            again = leaves(loaded(*entry.inputs))
            assert [a.tobytes() for a in again] == [f.tobytes() for f in found]


def test_structure_of_results_is_that_of_jax() -> None:
    entry = CASES["trees"]
    program = girih.compile(entry.function, *entry.inputs)
    assert jax.tree.structure(program(*entry.inputs)) == jax.tree.structure(
        jax.jit(entry.function)(*entry.inputs)
    )


def test_donated_arguments_give_the_same_numbers_at_every_call() -> None:
    def step(state, x):
        w, m = state
        m = 0.9 * m + x.T @ (x @ w)
        return (w - 0.1 * m, m), (w * m).sum()

    state = (normal(4, 4), normal(4, 4, seed=1, scale=0.1))
    x = normal(3, 4, seed=2)
    program = girih.compile(jax.jit(step, donate_argnums=0), state, x)
    wanted, found = state, tuple(np.array(leaf) for leaf in state)
    for _ in range(4):
        wanted, expected = jax.jit(step)(wanted, x)
        found, result = program(found, x)
        for w, f in zip(leaves((wanted, expected)), leaves((found, result)), strict=True):
            assert not difference(w, f, 64)


def test_case_names_are_checked() -> None:
    with pytest.raises(AssertionError, match="two cases"):
        case(name="trees")(lambda: 0)

"""jax.random with all kinds of keys: the bits of JAX, on the interpreter and on the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import girih

KINDS = ("threefry2x32", "rbg", "unsafe_rbg")
STATE = np.array([123456789, 0x9ABCDEF0, 42, 7], np.uint32)

EXACT: dict[str, Callable[[Any], Any]] = {
    "bits": lambda k: (random.bits(k, (3, 5)), random.bits(k, (7,), np.uint8)),
    "bits_16": lambda k: random.bits(k, (5, 3), np.uint16),
    "split": lambda k: [random.bits(sub, (2,)) for sub in random.split(k, 3)],
    "fold_in": lambda k: random.bits(random.fold_in(k, 17), (4,)),
    "uniform": lambda k: random.uniform(k, (2, 3, 5)),
    "uniform_half": lambda k: random.uniform(k, (9,), jnp.float16),
    "uniform_bf16": lambda k: random.uniform(k, (9,), jnp.bfloat16),
    "randint": lambda k: random.randint(k, (11,), -5, 1000),
    "randint_small": lambda k: random.randint(k, (6,), -5, 100, np.int8),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (13,)),
    "rademacher": lambda k: random.rademacher(k, (8,)),
    "permutation": lambda k: random.permutation(k, 17),
    "choice": lambda k: random.choice(k, jnp.arange(9), (4,), replace=False),
    "vmapped": lambda k: jax.vmap(lambda s: random.bits(s, (3,)))(random.split(k, 4)),
}
CLOSE: dict[str, Callable[[Any], Any]] = {
    "uniform_between": lambda k: random.uniform(k, (2, 3, 5), minval=-2, maxval=3),
    "normal": lambda k: random.normal(k, (4, 5)),
    "truncated_normal": lambda k: random.truncated_normal(k, -1, 2, (9,)),
    "exponential": lambda k: random.exponential(k, (7,)),
    "gumbel": lambda k: random.gumbel(k, (7,)),
    "categorical": lambda k: random.categorical(k, jnp.log(jnp.arange(1.0, 6)), shape=(9,)),
    "gamma": lambda k: random.gamma(k, 2.5, (4,)),
    "poisson": lambda k: random.poisson(k, 4.0, (4,)) if random.key_data(k).size == 2 else 0,
    "orthogonal": lambda k: abs(jnp.linalg.det(random.orthogonal(k, 3))),
    "multivariate_normal": lambda k: random.multivariate_normal(
        k, jnp.zeros(2), jnp.array([[2.0, 0.5], [0.5, 1.0]]), (3,)
    ),
}


def compared(function: Any, kind: str, check: Callable[[Any, Any], None]) -> None:
    """`function` of a key through JAX, the interpreter and the cpu backend."""
    words = STATE[:2] if kind == "threefry2x32" else STATE

    def drawn(data: Any) -> Any:
        return function(random.wrap_key_data(data, impl=kind))

    jitted = jax.jit(drawn)
    wanted = jax.tree.leaves(jitted(words))
    module = girih.import_model(jitted, words)
    for found in (girih.interpret(module, [words]), jax.tree.leaves(girih.compile(module)(words))):
        for a, b in zip(found, wanted, strict=True):
            a, b = np.asarray(a), np.asarray(b)
            assert a.shape == b.shape and a.dtype == b.dtype
            check(a, b)


def equal(a: Any, b: Any) -> None:
    assert np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))


DRAWN = [
    (name, kind)
    for kind in KINDS
    for name in EXACT
    if kind == KINDS[0] or name in ("bits", "split", "fold_in", "vmapped", "randint")
]


@pytest.mark.parametrize("name, kind", DRAWN)
def test_bits_are_those_of_jax(name: str, kind: str) -> None:
    compared(EXACT[name], kind, equal)


@pytest.mark.parametrize("name", CLOSE)
def test_distributions_are_those_of_jax(name: str) -> None:
    kind = "rbg" if name in ("normal", "exponential") else "threefry2x32"
    compared(CLOSE[name], kind, lambda a, b: np.testing.assert_allclose(a, b, 3e-6, 3e-6))


WORDS = np.array([0xFFFFFFFFFFFFFFFE, 0x123456789ABCDEF0, 3], np.uint64)


@pytest.mark.parametrize("algorithm", ["default", "three_fry", "philox"])
def test_bit_generator_gives_the_bits_of_xla(algorithm: str) -> None:
    """All widths and shapes, and the following state; the counters carry."""
    chosen = {
        "default": lax.RandomAlgorithm.RNG_DEFAULT,
        "three_fry": lax.RandomAlgorithm.RNG_THREE_FRY,
        "philox": lax.RandomAlgorithm.RNG_PHILOX,
    }[algorithm]
    shapes = ((), (7,), (8,), (3, 5), (4, 3), (2, 1, 3), (0, 4))
    types: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32, np.uint64)

    def generate(*states: Any) -> Any:
        return [
            lax.rng_bit_generator(state, shape, dtype, chosen)
            for state in states
            for number, shape in enumerate(shapes)
            for place, dtype in enumerate(types)
            if (number + place) % 3 == 0
        ]

    with jax.enable_x64(True):
        states = [WORDS[:2], WORDS[::-1][:2].copy()]
        jitted = jax.jit(generate)
        wanted = jax.tree.leaves(jitted(*states))
        module = girih.import_model(jitted, *states)
        for found in (
            girih.interpret(module, states), jax.tree.leaves(girih.compile(module)(*states)),
        ):  # fmt: skip
            for a, b in zip(found, wanted, strict=True):
                equal(np.asarray(a), np.asarray(b))

"""girih.jit gives what jax.jit gives, and composes with JAX's transformations."""

from __future__ import annotations

import threading
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import girih
from girih.call_sizes import GirihWarning
from girih.hlo.errors import UserError

Pair = namedtuple("Pair", ["first", "second"])


@partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=["name"])
@dataclass
class Layer:
    scale: Any
    name: str


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype and a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def check(function: Any, *arguments: Any, **keywords: Any) -> Any:
    options = {k: keywords.pop(k) for k in list(keywords) if k.startswith(("static_", "donate_"))}
    jitted = girih.jit(function, **options)
    expected = jax.jit(function, **options)(*arguments, **keywords)
    assert_same(jitted(*arguments, **keywords), expected)
    assert_same(jitted(*arguments, **keywords), expected)
    assert "1 programs" in repr(jitted)
    return jitted


def nested(tree: Any, *, layer: Layer) -> Any:
    return Pair({"a": tree["x"] * layer.scale}, [None, tree["y"].sum()]), layer


def test_structures_are_the_functions_own():
    check(nested, {"x": X, "y": jnp.asarray(X)}, layer=Layer(jnp.float32(2), "a"))


def test_programs_are_forgotten_and_made_again():
    jitted = check(jnp.sin, X)
    jitted.clear_cache()
    assert "0 programs" in repr(jitted)
    assert_same(jitted(X), jnp.sin(X))


def test_scalars_follow_the_types_of_jax():
    for value in (2, 2.5, True, 1j, np.float64(3), np.int64(4), np.float16(0.5), jnp.float32(2)):
        check(lambda x, v: x * v, X, value)
        check(lambda x, v: (v, x.astype(jnp.bfloat16) + v), jnp.asarray(X), value)


def test_x64_is_a_program_of_its_own():
    jitted = girih.jit(lambda x: x / 3)
    assert jitted(np.float64(1)).dtype == np.float32
    with jax.enable_x64(True):
        assert jitted(np.float64(1)).dtype == np.float64
        np.testing.assert_allclose(jitted(np.float64(1)), 1 / 3, rtol=1e-15)
    assert jitted(np.float64(1)).dtype == np.float32


CONTROL = {
    "scan": lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c.sum()), jnp.zeros(4), x),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].add(1.0), x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda v: v + 1, lambda v: v * 2, x),
    "switch": lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.exp], x),
    "map": lambda x: lax.map(lambda r: jnp.sort(r) * r.sum(), x),
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "nested": lambda x: lax.scan(
        lambda c, r: (lax.cond(r.sum() > 0, lambda v: v + r, lambda v: v, c), r), jnp.zeros(4), x
    ),
    "linear solve": lambda x: lax.custom_linear_solve(
        lambda v: 2 * v, x, lambda _, b: b / 2, lambda _, b: b / 2
    ),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name):
    check(CONTROL[name], X)


def test_static_arguments_by_number_and_by_name():
    def power(x, n, flip=False):
        return -(x**n) if flip else x**n

    ways: list[dict[str, Any]] = [{"static_argnums": (1, 2)}, {"static_argnames": ("n", "flip")}]
    wanted = jax.jit(power, static_argnums=(1, 2))
    for static in ways:
        jitted = girih.jit(power, **static)
        wanted = jax.jit(power, **static)
        assert_same(jitted(X, 2), wanted(X, 2))
        assert_same(jitted(X, 2, flip=True), wanted(X, 2, flip=True))
        assert_same(jitted(X, n=3, flip=True), wanted(X, n=3, flip=True))
        assert_same(jitted(X, 2, True), wanted(X, 2, True))
        assert "4 programs" in repr(jitted)
    both = girih.jit(power, static_argnums=1, static_argnames="flip")
    assert_same(both(X, 2, flip=True), wanted(X, 2, flip=True))
    last = girih.jit(power, static_argnums=-1)
    assert_same(last(X, 2, True), wanted(X, 2, True))
    with pytest.raises(girih.UserError, match="hashable"):
        jitted(X, [1])


def test_donated_arrays_are_deleted_and_others_are_not_written():
    update = girih.jit(lambda cache, x: cache.at[0].set(x), donate_argnums=0)
    cache, row = jnp.asarray(X), jnp.ones(4)
    result = update(cache, row)
    assert cache.is_deleted() and not row.is_deleted()
    np.testing.assert_array_equal(result[0], row)
    kept = X.copy()
    update(kept, row)
    np.testing.assert_array_equal(kept, X)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys_go_in_and_come_out(implementation):
    def draw(key):
        first, second = jax.random.split(key)
        return first, jax.random.normal(second, (5,)), jax.random.randint(first, (3,), 0, 9)

    check(draw, jax.random.key(7, impl=implementation))


def test_old_keys():
    check(lambda key: jax.random.uniform(key, (4,)), jax.random.PRNGKey(3))


def test_jax_transforms_it_as_its_own_function():
    f = girih.jit(lambda x: jnp.sum(jnp.sin(x) ** 2))
    np.testing.assert_allclose(jax.grad(f)(X), 2 * np.sin(X) * np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(f)(X), (np.sin(X) ** 2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(f)(X), (np.sin(X) ** 2).sum(), rtol=1e-5)
    assert "0 programs" in repr(f)
    g = girih.jit(jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)))
    np.testing.assert_allclose(g(X), 2 * np.sin(X) * np.cos(X), rtol=1e-5)
    h = girih.jit(jax.vmap(f))
    np.testing.assert_allclose(h(X), (np.sin(X) ** 2).sum(1), rtol=1e-5)


def test_decorator_with_arguments_and_methods():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        @girih.jit(static_argnums=0, options=girih.Options(threads=1))
        def run(self, x):
            """Doc."""
            return x * self.factor

    assert_same(Model(3.0).run(X), jnp.asarray(X * 3))
    assert Model.run.__doc__ == "Doc."


def test_the_program_is_saved_as_a_bundle(tmp_path):
    jitted = girih.jit(nested)
    tree, layer = {"x": X, "y": X}, Layer(jax.ShapeDtypeStruct((), jnp.float32), "a")
    jitted.program(tree, layer=layer).save(tmp_path / "nested.girih")
    program = girih.load(tmp_path / "nested.girih")
    paths = [argument.path for argument in program.signature.arguments]
    assert paths == ["tree['x']", "tree['y']", "layer.scale"]
    assert program.call_flat([X, X, np.float32(2)])[0].tolist() == (X * 2).tolist()
    with pytest.raises(girih.UserError, match="takes 3 arguments, 1 are given"):
        program.call_flat([X])


def test_errors_name_the_users_line_and_nothing_falls_back():
    def branch(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(girih.UserError, match=rf"{__file__}:\d+: JAX could not trace 'branch'"):
        girih.jit(branch)(X)
    with pytest.raises(girih.UserError, match="no array; mark the argument static"):
        girih.jit(lambda x, mode: x)(X, "fast")
    with pytest.raises(girih.ImportBlockers, match="callback"):
        girih.jit(lambda x: jax.pure_callback(np.sin, x, x))(X)


def test_results_stay_when_others_are_computed():
    double = girih.jit(lambda x: x * 2)
    first = double(X)
    second = double(first)
    np.testing.assert_array_equal(first, X * 2)
    np.testing.assert_array_equal(second, X * 4)


def test_threads_share_one_program():
    jitted = girih.jit(lambda x: jnp.tanh(x) @ x.T)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(jitted(X))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and "1 programs" in repr(jitted)
    for result in results:
        np.testing.assert_allclose(result, np.tanh(X) @ X.T, rtol=1e-5)


# Arrays on a GPU, which nobody has here: what is compiled for it, and how it is called.


class Device:
    """JAX's view of a GPU."""

    platform, local_hardware_id = "gpu", 3

    def __init__(self, capability: str) -> None:
        self.compute_capability = capability

    def __str__(self) -> str:
        return "rocm:3" if self.compute_capability == "gfx90a" else "cuda:3"


class OnDevice:
    """A program whose results stay; it remembers what it is given."""

    def __init__(self, program) -> None:
        self.program, self.number, self.given = program, None, []

    def with_device(self, number):
        self.number = number
        return self

    def on_device_flat(self, arrays):
        self.given += arrays
        return self.program.call_flat([np.asarray(array) for array in arrays])


def test_arrays_on_a_gpu_stay_there(monkeypatch):
    import girih.compiler

    real, asked, programs = girih.compiler.compile, [], []

    def compile(module, target, options):
        asked.append(target)
        programs.append(OnDevice(real(module, options=options)))
        return programs[-1]

    monkeypatch.setattr("girih.jitted.compile_module", compile)
    x = jnp.arange(4.0)
    monkeypatch.setattr(type(x), "devices", lambda self: {Device("9.0")})
    found = girih.jit(lambda x, y: {"z": 2 * x + y})(x, np.float32(1))
    np.testing.assert_array_equal(np.asarray(found["z"]), [1, 3, 5, 7])
    assert asked == ["nvidia:sm_90a"] and programs[0].number == 3
    assert programs[0].given[0] is x  # as it is
    for target, capability in (("cpu", "9.0"), (None, "gfx90a")):
        monkeypatch.setattr(type(x), "devices", lambda self, c=capability: {Device(c)})
        with pytest.raises(UserError, match="an argument lies on (cuda|rocm):3; pass"):
            girih.jit(lambda x: x, target=target)(x)


# Sizes that calls decide.


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def scored(x: Any, weight: Any, *, power: int, names: Any) -> Any:
    hidden = jnp.tanh(x @ weight) ** power
    return {"shares": jax.nn.softmax(hidden, axis=0), "sum": names["bias"] + x.sum(0)}, x.T


def test_sizes_that_vary_are_one_program():
    jitted = girih.jit(scored, static_argnames="power", dynamic=True)
    plain = jax.jit(scored, static_argnames="power")
    weight, names = rows(4, 1), {"bias": jnp.float32(2)}
    for count, programs in ((3, 1), (5, 2), (1, 2), (300, 2), (700, 3), (9, 3)):
        found = jitted(rows(count), weight, power=3, names=names)
        assert_same(found, plain(rows(count), weight, power=3, names=names))
        assert f"{programs} programs" in repr(jitted)


def test_sizes_that_were_equal_may_differ():
    jitted = girih.jit(lambda x, y: x @ y.T, dynamic=True)
    for first, second, programs in ((3, 3, 1), (4, 4, 2), (5, 5, 2), (5, 6, 3), (9, 2, 3)):
        x, y = rows(first), rows(second, 1)
        assert_same(jitted(x, y), jnp.asarray(x @ y.T))
        assert f"{programs} programs" in repr(jitted)


def test_sizes_that_users_open():
    sizes = {"x.0": "batch", "y.0": "batch", "batch": range(2, 65, 2)}
    jitted = girih.jit(lambda x, y: x * y, sizes=sizes)
    for count in (4, 2, 64):
        assert_same(jitted(rows(count), rows(count, 1)), jnp.asarray(rows(count) * rows(count, 1)))
    assert "1 programs" in repr(jitted)
    with pytest.raises(UserError, match=r"x\.0 is 66, but sizes= says .* from 2 to 64 in steps"):
        jitted(rows(66), rows(66))
    with pytest.raises(UserError, match=r"x\.0 is 4 and y\.0 is 6, but sizes= calls both batch"):
        jitted(rows(4), rows(6))


def test_sizes_of_no_argument_are_errors():
    with pytest.raises(UserError, match=r"sizes= names 'z\.0', but a call has x\.0, x\.1"):
        girih.jit(lambda x: x + 1, sizes={"z.0": (1, 4)})(X)


def test_sizes_that_jax_has_to_know_are_told():
    def branching(x: Any) -> Any:
        return x + 1 if x.shape[0] > 4 else x - 1

    jitted = girih.jit(branching, dynamic=True)
    assert_same(jitted(rows(3)), jnp.asarray(rows(3) - 1))
    with pytest.warns(GirihWarning, match="each size of 'branching' is compiled on its own"):
        assert_same(jitted(rows(5)), jnp.asarray(rows(5) + 1))
    for count in (6, 2):
        assert_same(jitted(rows(count)), branching(jnp.asarray(rows(count))))
    assert "4 programs" in repr(jitted)
    strict = girih.jit(branching, dynamic=True, options=girih.Options(strict=True))
    strict(rows(3))
    with pytest.raises(UserError, match="JAX could not trace 'branching'"):
        strict(rows(5))

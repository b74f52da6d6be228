"""Writes twenty `shard_map` programs as StableHLO, with inputs and JAX's results on eight host
devices, to the file that it is given: a process must ask for the devices before it imports jax."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

DEVICES = np.array(jax.devices())
LINE = Mesh(DEVICES[:4], ("x",))
SQUARE = Mesh(DEVICES[:4].reshape(2, 2), ("x", "y"))
BACKWARDS = Mesh(DEVICES[:4][::-1].reshape(2, 2), ("x", "y"))
PAIR = Mesh(DEVICES[:2], ("x",))
WIDE = Mesh(DEVICES.reshape(4, 2), ("x", "y"))
CUBE = Mesh(DEVICES.reshape(2, 2, 2), ("x", "y", "z"))

A = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
PROGRAMS: dict[str, tuple[Any, list[Any]]] = {}


def shard_map(
    mesh: Mesh, inputs: Any, outputs: Any, *values: Any, **options: Any
) -> Callable[[Any], Any]:
    """Puts the function, under its name, into the list."""

    def add(f: Any) -> Any:
        mapped = jax.shard_map(
            f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False, **options
        )
        PROGRAMS[f.__name__] = jax.jit(mapped), list(values)
        return f

    return add


def ring(n: int, by: int = 1) -> list[tuple[int, int]]:
    return [(k, (k + by) % n) for k in range(n)]


@shard_map(PAIR, P("x"), P("x"), A)
def elementwise(x: Any) -> Any:
    return x * 2 - 1


@shard_map(LINE, P("x"), P(), A)
def psum(x: Any) -> Any:
    return lax.psum(x, "x")


@shard_map(SQUARE, P("x", "y"), (P("x"), P(None, "y"), P()), A)
def psum_of_each_axis(x: Any) -> Any:
    return lax.psum(x, "y"), lax.psum(x, "x"), lax.psum(x, ("x", "y"))


@shard_map(SQUARE, P("x", "y"), (P("x"), P(None, "y")), A)
def extremes(x: Any) -> Any:
    return lax.pmax(x, "y"), lax.pmin(x, "x")


@shard_map(LINE, P("x"), P(), A)
def pmean(x: Any) -> Any:
    return lax.pmean(x * x, "x")


@shard_map(LINE, P("x"), (P("x"), P("x")), A)
def ppermute(x: Any) -> Any:
    return lax.ppermute(x, "x", ring(4)), lax.ppermute(x, "x", [(0, 3), (2, 1)])


@shard_map(LINE, P("x"), P(None, "x"), A)
def all_to_all(x: Any) -> Any:
    return lax.all_to_all(x, "x", 1, 0, tiled=True)


@shard_map(LINE, P(None, "x"), P("x"), A)
def psum_scatter(x: Any) -> Any:
    return lax.psum_scatter(x, "x", scatter_dimension=0, tiled=True)


@shard_map(SQUARE, P("x", "y"), (P("x"), P(None, "y")), A)
def all_gather(x: Any) -> Any:
    return lax.all_gather(x, "y", axis=1, tiled=True), lax.all_gather(x, "x").reshape(8, 4)


@shard_map(BACKWARDS, P("x", "y"), P("x", "y"), A)
def axis_index(x: Any) -> Any:
    return x + 10 * lax.axis_index("x") + lax.axis_index("y")


@shard_map(LINE, P("x"), P("x"), A)
def loop_of_permutes(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: lax.ppermute(c, "x", ring(4)) + x * i, x)


@shard_map(SQUARE, P("x", "y"), P("x", "y"), A)
def while_of_sums(x: Any) -> Any:
    def more(state: Any) -> Any:
        return (state[0] < 3) & (lax.pmax(state[1].max(), ("x", "y")) < 1e4)

    def step(state: Any) -> Any:
        return state[0] + 1, lax.psum(state[1], "x") + 1

    return lax.while_loop(more, step, (jnp.int32(0), x))[1]


@shard_map(LINE, (P("x"), P()), P("x"), A, np.int32(1))
def branch(x: Any, which: Any) -> Any:
    return lax.switch(which, [lambda: x, lambda: lax.ppermute(x, "x", ring(4, 2))])


@shard_map(LINE, P("x"), P("x"), A)
def scan(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + lax.psum(row, "x"), c * row), x[0], x)[1]


@shard_map(SQUARE, P("x"), P("x"), A, axis_names={"x"})
def partial(x: Any) -> Any:
    return lax.psum(x, "x") + x


@shard_map(SQUARE, P("x"), P("x"), A, axis_names={"x"})
def nested(x: Any) -> Any:
    inner = jax.shard_map(
        lambda y: lax.psum(y, "y"), in_specs=P(None, "y"), out_specs=P(), axis_names={"y"}
    )
    return jnp.tile(inner(x), (1, 2)) + lax.axis_index("x")


@shard_map(SQUARE, (P("x", "y"), P("y", None)), P("x"), A, A)
def product(a: Any, b: Any) -> Any:
    return lax.psum(a @ b, "y")


@shard_map(WIDE, (P("x", "y"), P("y", None)), (P("x"), P(None), P(None, "x")), A, A)
def mixed(a: Any, b: Any) -> Any:
    total = lax.psum(a @ b, "y")
    gathered = lax.all_gather(total, "x").sum(0)
    return total, gathered, lax.psum_scatter(gathered, "x", scatter_dimension=1, tiled=True)


@shard_map(CUBE, P(("x", "z"), "y"), P("y", ("z", "x")), A)
def cube(x: Any) -> Any:
    return lax.all_to_all(lax.psum(x, "y"), ("z", "x"), 1, 0, tiled=True)[:4]


def loss(x: Any) -> Any:
    total = jax.shard_map(
        lambda y: lax.psum(jnp.sin(y).sum(), ("x", "y")),
        mesh=SQUARE,
        in_specs=P("x", "y"),
        out_specs=P(),
    )
    return total(x)


PROGRAMS["gradient"] = jax.jit(jax.grad(loss)), [A]


def main(path: str) -> None:
    found: dict[str, Any] = {}
    for name, (f, values) in PROGRAMS.items():
        found[f"{name}.text"] = f.lower(*values).as_text(debug_info=True)
        for number, value in enumerate(values):
            found[f"{name}.in{number}"] = value
        for number, value in enumerate(jax.tree.leaves(f(*values))):
            found[f"{name}.out{number}"] = np.asarray(value)
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])

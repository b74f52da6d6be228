"""Programs with every way in which JAX states shardings: run as a script, writes them to a file.

JAX runs on eight host devices, which a process must ask for before it imports jax.
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

devices = np.array(jax.devices())
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
other = Mesh(devices.reshape(2, 4), ("a", "b"))
backwards = Mesh(devices[::-1].reshape(2, 4), ("a", "b"))
explicit = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
w = np.arange(64, dtype=np.float32).reshape(8, 8)
keep = lax.with_sharding_constraint


def on(*axes: Any, mesh: Any = mesh) -> NamedSharding:
    return NamedSharding(mesh, P(*axes))


def placed(*axes: Any) -> Any:
    return jax.device_put(w, on(*axes, mesh=explicit))


@custom_partitioning
def partitioned(x: Any) -> Any:
    return jnp.sin(x)


partitioned.def_partition(
    infer_sharding_from_operands=lambda *a: None,
    partition=lambda *a: None,
    sharding_rule="i j -> i j",
)


def alike(a: Any, b: Any) -> Any:
    return shard_alike(a * 2, b + 1)


def shard_map(f: Any, *specs: Any, **options: Any) -> Any:
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs[0], out_specs=specs[1], **options))


unreduced = P(None, None, unreduced=frozenset({"x"}))
inner = jax.jit(lambda a: jnp.sin(a) @ a, in_shardings=on("x"), out_shardings=on(None, "y"))
in_out = jax.jit(
    lambda a, b: (a @ b, a),
    in_shardings=(on("x"), on(None, "y")),
    out_shardings=(on("x", "y"), on()),
)
constraints = jax.jit(lambda a: keep(keep(jnp.tanh(a), on("x")), on(None, ("x", "y"))) + a)
open_dims = jax.jit(lambda a: keep(a * 2, on(P.UNCONSTRAINED, "y")))
group = jax.jit(alike, in_shardings=(on("x"), None))
custom = jax.jit(lambda a: partitioned(a) + 1, in_shardings=on("x"))
whole = shard_map(lambda x: lax.psum(x, "y"), P("x", "y"), P("x"), check_vma=False)
partly = shard_map(lambda x: lax.psum(x, "x"), P("x"), P(), axis_names={"x"}, check_vma=False)


def loop(a: Any) -> Any:
    return lax.scan(lambda c, x: (keep(c @ c, on("x")), None), a, None, length=3)[0]


def main(path: str) -> None:
    found: dict[str, Any] = {}

    def add(name: str, f: Any, *inputs: Any) -> None:
        found[name] = f.lower(*inputs).as_text()
        if name != "custom":  # JAX cannot serialise its callback
            data = jax.export.export(f)(*inputs).serialize()
            found[f"{name}.export"] = np.frombuffer(data, np.uint8)

    add("in_out", in_out, w, w)
    add("constraints", constraints, w)
    add("of_argument", jax.jit(lambda a: keep(a, on("x")) + keep(a, on("y"))), w)
    add("open_dims", open_dims, w)
    add("group", group, w, w)
    add("whole", whole, w)
    add("partly", partly, w)
    add("custom", custom, w)
    add("two_meshes", jax.jit(lambda a: keep(keep(a, on("x")) + 1, on("a", mesh=other))), w)
    add("calls", jax.jit(lambda a: inner(a) + inner(a * 2)), w)
    add("loop", jax.jit(loop), w)
    add("donated", jax.jit(lambda a: a + 1, in_shardings=on("x"), donate_argnums=0), w)
    with jax.set_mesh(explicit):
        add(
            "explicit",
            jax.jit(lambda a, b: jax.sharding.reshard(jnp.sin(a @ b), P(None, "y")) + 1),
            placed("x", None), placed(None, "y"),
        )  # fmt: skip
        add(
            "unreduced",
            jax.jit(
                lambda a, b: jax.sharding.reshard(
                    jnp.einsum("ij,jk->ik", a, b, out_sharding=unreduced), P()
                )
            ),
            placed(None, "x"), placed("x", None),
        )  # fmt: skip
        sums = jax.shard_map(
            lambda x: jnp.sum(x, 0),
            in_specs=P("x", "y"),
            out_specs=P("y", unreduced=frozenset({"x"})),
        )
        add("unreduced_map", jax.jit(sums), placed("x", "y"))
    jax.config.update("jax_use_shardy_partitioner", False)
    reversed_order = jax.jit(lambda a: keep(a * 2, on(("b", "a"), mesh=backwards)))
    for name, f, inputs in (
        ("older_in_out", in_out, (w, w)),
        ("older_constraints", constraints, (w,)),
        ("older_open_dims", open_dims, (w,)),
        ("older_order", reversed_order, (w,)),
        ("older_group", group, (w, w)),
        ("older_whole", whole, (w,)),
        ("older_partly", partly, (w,)),
    ):
        found[name] = f.lower(*inputs).as_text()
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])

"""Writes the samples that need jax; run it only to add one, released samples never change."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax  # noqa: E402 - reads the flag above
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import export  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

HERE = Path(__file__).parent

State = namedtuple("State", ["weights", "step"])


def classifier(state, image, *, scale):
    """A tuple, a dict, a namedtuple, a keyword and an unused leaf; weights closed over."""
    hidden = jnp.tanh(image @ TABLE) @ state.weights["dense"]
    return {"logits": hidden * scale, "best": jnp.argmax(hidden, 1)}, State(hidden.sum(), 1)


TABLE = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)


def write_export() -> None:
    export.register_namedtuple_serialization(State, serialized_name="samples.State")
    weights = {"dense": np.ones((32, 4), np.float32), "unused": np.ones(3, np.float32)}
    exported = export.export(jax.jit(classifier, donate_argnums=1), platforms=["tpu", "cpu"])(
        State(weights, np.int32(0)), np.ones((2, 64), np.float32), scale=np.float32(2)
    )
    (HERE / "classifier.jax_export").write_bytes(exported.serialize())


def write_sharded() -> None:
    """An export for four devices: its artifact mixes the VHLO and sdy dialects."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def on(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def product(a, b):
        return jnp.tanh(jax.lax.with_sharding_constraint(a @ b, on("x", "y")))

    jitted = jax.jit(product, in_shardings=(on("x"), on(None, "y")), out_shardings=on("x"))
    exported = export.export(jitted)(np.ones((8, 4), np.float32), np.ones((4, 8), np.float32))
    (HERE / "sharded.jax_export").write_bytes(exported.serialize())


def write_generic() -> None:
    text = (HERE / "pretty.mlir").read_text()
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        generic = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    (HERE / "pretty_generic.mlir").write_text(str(generic))


if __name__ == "__main__":
    # The samples name files by their last part, not by where they lay on somebody's machine.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    write_generic()
    write_export()
    write_sharded()

"""Writes the samples that need jax; run it only to add one, released samples never change."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

HERE = Path(__file__).parent

State = namedtuple("State", ["weights", "step"])


def classifier(state, image, *, scale):
    """A tuple, a dict, a namedtuple, a keyword and an unused leaf; weights closed over."""
    hidden = jnp.tanh(image @ TABLE) @ state.weights["dense"]
    return {"logits": hidden * scale, "best": jnp.argmax(hidden, 1)}, State(hidden.sum(), 1)


TABLE = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)


def write_export() -> None:
    export.register_namedtuple_serialization(State, serialized_name="samples.State")
    # The sample names files by their last part, not by where they lay on somebody's machine.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    weights = {"dense": np.ones((32, 4), np.float32), "unused": np.ones(3, np.float32)}
    exported = export.export(jax.jit(classifier, donate_argnums=1), platforms=["tpu", "cpu"])(
        State(weights, np.int32(0)), np.ones((2, 64), np.float32), scale=np.float32(2)
    )
    (HERE / "classifier.jax_export").write_bytes(exported.serialize())


def write_generic() -> None:
    text = (HERE / "pretty.mlir").read_text()
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        generic = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    (HERE / "pretty_generic.mlir").write_text(generic)


if __name__ == "__main__":
    write_generic()
    write_export()

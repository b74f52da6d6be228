"""Training steps that give their state up: it is overwritten, or a note says why it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Origin, Value
from girih.hlo.signature import Signature
from girih.hlo.types import F32, TensorType

jax = pytest.importorskip("jax")
jnp = jax.numpy
HEADS = 2
MACHINE = str(Path(girih.__file__).parent / "backends" / "cpu" / "machines" / "avx2.json")


def layers(w: Any, x: Any, y: Any) -> Any:
    (first, offset), (second, last) = w
    return ((jax.nn.relu(x @ first + offset) @ second + last - y) ** 2).mean()


def images(w: Any, x: Any, y: Any) -> Any:
    seen = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
    return ((jax.nn.relu(seen).mean((2, 3)) - y) ** 2).mean()


def norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def transformer(w: Any, tokens: Any, wanted: Any) -> Any:
    x = w["table"][tokens] + w["places"]
    batch, length, width = x.shape
    for part in w["layers"]:
        h = norm(x, part["scale"])
        split = (batch, length, HEADS, width // HEADS)
        q, k, v = ((h @ part[name]).reshape(split).swapaxes(1, 2) for name in "qkv")
        scores = jnp.where(jnp.tri(length, dtype=bool), q @ k.swapaxes(2, 3), -1e9)
        x += (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ part["o"]
        x += jax.nn.gelu(norm(x, part["scale"]) @ part["up"]) @ part["down"]
    chosen = jax.nn.log_softmax(norm(x, w["scale"]) @ w["table"].T)
    return -jnp.take_along_axis(chosen, wanted[..., None], 2).mean()


def momentum(loss: Any) -> Any:
    def step(w: Any, state: Any, *batch: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(w, *batch)
        state = jax.tree.map(lambda old, slope: 0.9 * old + slope, state, slopes)
        return jax.tree.map(lambda old, by: old - 0.1 * by, w, state), state, value

    return jax.jit(step, donate_argnums=(0, 1))


def adam(loss: Any) -> Any:
    def step(w: Any, state: Any, *batch: Any) -> Any:
        means, squares, time = state
        value, slopes = jax.value_and_grad(loss)(w, *batch)
        means = jax.tree.map(lambda old, slope: 0.9 * old + 0.1 * slope, means, slopes)
        squares = jax.tree.map(lambda old, slope: 0.99 * old + 0.01 * slope**2, squares, slopes)
        time += 1

        def moved(old: Any, mean: Any, square: Any) -> Any:
            return old - 0.01 * mean / (1 - 0.9**time) / (jnp.sqrt(square) + 1e-6)

        return jax.tree.map(moved, w, means, squares), (means, squares, time), value

    return jax.jit(step, donate_argnums=(0, 1))


def drawn(*dims: int) -> np.ndarray:
    generator = np.random.default_rng(len(dims) + sum(dims))
    return generator.uniform(0.01, 0.2, dims).astype(np.float32)


def inputs(loss: Any) -> tuple[Any, ...]:
    """The parameters, then the batch."""
    if loss is layers:
        w = [(drawn(24, 40), drawn(40)), (drawn(40, 10), drawn(10))]
        return w, drawn(16, 24), drawn(16, 10)
    if loss is images:
        return drawn(8, 3, 3, 3), drawn(2, 3, 6, 6), drawn(2, 8)
    names = {"up": (16, 32), "down": (32, 16), "scale": (16,)} | dict.fromkeys("qkvo", (16, 16))
    part = {name: drawn(*dims) for name, dims in names.items()}
    w = {"table": drawn(20, 16), "places": drawn(6, 16), "scale": drawn(16), "layers": [part] * 2}
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
    return w, tokens, tokens + 1


def training(optimizer: Any, loss: Any) -> tuple[Any, tuple[Any, ...]]:
    """A step, and its arguments."""
    w, *batch = inputs(loss)
    zeros = jax.tree.map(np.zeros_like, w)
    state = zeros if optimizer is momentum else (zeros, zeros, np.int32(0))
    return optimizer(loss), (w, state, *batch)


def replaced(program: girih.Program) -> set[int]:
    """The arguments whose memory results may have."""
    outputs = [program.plan.buffers[index] for index in program.plan.outputs]
    return {buffer.replaces for buffer in outputs if buffer.HasField("replaces")}


STEPS = [(momentum, layers), (adam, layers), (adam, transformer)]


@pytest.mark.parametrize(("optimizer", "loss"), STEPS)
def test_all_of_the_state_is_overwritten(optimizer: Any, loss: Any) -> None:
    step, arguments = training(optimizer, loss)
    program = girih.compile(step, *arguments, options=girih.Options(machine=MACHINE))
    donated = [n for n, a in enumerate(program.signature.arguments) if a.donated]
    assert donated and {*donated} == replaced(program)
    kept = program(*arguments)
    given = jax.tree.map(lambda leaf: np.array(leaf), arguments)
    found = program.donate(*given)
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, other)
    wanted = jax.tree.leaves(step(*jax.tree.map(lambda leaf: jnp.array(leaf), arguments)))
    for one, other in zip(jax.tree.leaves(kept), wanted, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(("optimizer", "loss"), [*STEPS, (momentum, images)])
@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_what_is_not_overwritten_is_a_note(optimizer: Any, loss: Any, target: str) -> None:
    step, arguments = training(optimizer, loss)
    program = girih.compile(step, *arguments, target=target)
    leaves = jax.tree.leaves(arguments)
    for number, argument in enumerate(program.signature.arguments):
        nbytes = leaves[number].nbytes
        text = f"{argument.path} is donated, but its {nbytes:,} bytes are not overwritten: "
        said = [note for note in program.plan.notes if note.startswith(text)]
        lost = argument.donated and number not in replaced(program)
        assert len(said) == lost, argument.path


SQUARE = TensorType((8, 8), F32)


def product(b: Builder, x: Value, y: Value) -> Value:
    b.origin = (Origin("model.py", 5),)
    return b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))


def afterwards(b: Builder, x: Value, y: Value) -> list[Value]:
    """The second product needs the first one and what that would lie on."""
    first = product(b, y, y)
    b.origin = (Origin("model.py", 7),)
    return [first, product(b, first, x)]


REASONS: dict[str, tuple[Any, int | None]] = {
    "no result takes its place": (lambda b, x, y: [product(b, y, y)], None),
    "it is returned as it is": (lambda b, x, y: [product(b, y, y), x], 0),
    "model.py:5: what replaces it is returned twice": (
        lambda b, x, y: [product(b, x, y)] * 2, 0
    ),
    "model.py:5: what replaces it comes from fusion 'contract', which needs it until": (
        lambda b, x, y: [product(b, x, y)], 0
    ),
    "model.py:5: fusion 'contract' reads it, when what replaces it": (afterwards, 0),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_reasons(reason: str) -> None:
    body, result = REASONS[reason]
    module = build_module([SQUARE, SQUARE], body)
    given, gives = (
        [(value.tensor.dims, value.element.name) for value in values]
        for values in (module.body.arguments, module.body.results)
    )
    signature = Signature.plain(given, gives).donating({0: result})
    module = replace(module, signature=signature)
    (note,) = girih.compile(module, target="null").plan.notes
    path = signature.arguments[0].path
    assert note.startswith(f"{path} is donated, but its 256 bytes are not overwritten: {reason}")
    with pytest.raises(girih.UserError, match="strict: .* 256 bytes are not overwritten"):
        girih.compile(module, target="null", options=girih.Options(strict=True))

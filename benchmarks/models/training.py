"""Training steps in JAX: forward, gradient and a step of Adam; the state is donated.

Each function returns `(jitted step, (state, *batch))`; `checkpoint` computes the forward pass of
each layer or block a second time in the backward pass (`jax.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .jax_models import normal

Built = tuple[Any, tuple[Any, ...]]


def adam(loss_of: Callable[..., jax.Array], parameters: Any, *batch: np.ndarray) -> Built:
    """A donated training step of `loss_of(parameters, *batch)`, and inputs for it.

    The state is one in the middle of training: at the first step Adam divides noise by noise.
    """

    def step(state: dict[str, Any], *batch: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(state["parameters"], *batch)
        count = state["count"] + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradient)
        power = count.astype(jnp.float32)
        scale = 1e-3 * jnp.sqrt(1 - 0.999**power) / (1 - 0.9**power)
        updated = jax.tree.map(
            lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), state["parameters"], first, second
        )
        return {"parameters": updated, "first": first, "second": second, "count": count}, loss

    generator = np.random.default_rng(1)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    state = {
        "parameters": parameters,
        "first": jax.tree.map(lambda p: np.float32(0.1) * draw(p.shape), parameters),
        "second": jax.tree.map(
            lambda p: (np.float32(0.1) * draw(p.shape)) ** 2 + np.float32(1e-4), parameters
        ),
        "count": np.int32(10),
    }
    return jax.jit(step, donate_argnums=0), (state, *batch)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over all positions; logits [..., classes], labels [...] integers."""
    logs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logs, labels[..., None], -1).mean()


def mlp(layers: int = 8, width: int = 1024, batch: int = 1024) -> Built:
    generator = np.random.default_rng(0)
    parameters = [
        {"w": normal(generator, width, width), "b": np.zeros(width, np.float32)}
        for _ in range(layers)
    ]

    def loss_of(parameters: Any, values: jax.Array, labels: jax.Array) -> jax.Array:
        for layer in parameters[:-1]:
            values = jax.nn.gelu(values @ layer["w"] + layer["b"])
        return cross_entropy(values @ parameters[-1]["w"] + parameters[-1]["b"], labels)

    images = generator.standard_normal((batch, width)).astype(np.float32)
    return adam(loss_of, parameters, images, generator.integers(0, width, batch, np.int32))


def lstm(steps: int = 128, width: int = 512, batch: int = 32, classes: int = 256) -> Built:
    generator = np.random.default_rng(0)
    parameters = {
        "input": normal(generator, width, 4 * width),
        "hidden": normal(generator, width, 4 * width),
        "bias": np.zeros(4 * width, np.float32),
        "head": normal(generator, width, classes),
        "head_bias": np.zeros(classes, np.float32),
    }

    def loss_of(parameters: Any, sequence: jax.Array, labels: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], value: jax.Array) -> Any:
            hidden, cell = state
            gates = value @ parameters["input"] + hidden @ parameters["hidden"]
            gate_in, forget, candidate, out = jnp.split(gates + parameters["bias"], 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(gate_in) * jnp.tanh(candidate)
            return (jax.nn.sigmoid(out) * jnp.tanh(cell), cell), None

        zeros = jnp.zeros((sequence.shape[1], width), jnp.float32)
        (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), sequence)
        return cross_entropy(hidden @ parameters["head"] + parameters["head_bias"], labels)

    sequence = generator.standard_normal((steps, batch, width)).astype(np.float32)
    return adam(loss_of, parameters, sequence, generator.integers(0, classes, batch, np.int32))


def transformer(
    layers: int = 6,
    width: int = 512,
    length: int = 256,
    batch: int = 8,
    vocabulary: int = 8192,
    heads: int = 8,
    checkpoint: bool = False,
) -> Built:
    generator = np.random.default_rng(0)
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    parameters = {
        "embedding": normal(generator, vocabulary, width) * np.float32(np.sqrt(vocabulary)),
        "positions": normal(generator, length, width),
        "layers": [
            {
                "qkv": normal(generator, width, 3 * width),
                "out": normal(generator, width, width),
                "up": normal(generator, width, 4 * width),
                "up_bias": np.zeros(4 * width, np.float32),
                "down": normal(generator, 4 * width, width),
                "down_bias": zeros.copy(),
                "scale": [ones.copy(), ones.copy()],
                "shift": [zeros.copy(), zeros.copy()],
            }
            for _ in range(layers)
        ],
        "scale": ones.copy(),
        "shift": zeros.copy(),
        "head": normal(generator, width, vocabulary),
    }

    def norm(values: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        centred = values - values.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    def layer(values: jax.Array, own: Any) -> jax.Array:
        normed = norm(values, own["scale"][0], own["shift"][0])
        qkv = (normed @ own["qkv"]).reshape(batch, length, 3, heads, width // heads)
        q, k, v = (qkv[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads).astype(np.float32)
        mask = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        values = values + mixed @ own["out"]
        normed = norm(values, own["scale"][1], own["shift"][1])
        inner = jax.nn.gelu(normed @ own["up"] + own["up_bias"])
        return values + inner @ own["down"] + own["down_bias"]

    def loss_of(parameters: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        values = parameters["embedding"][tokens] + parameters["positions"]
        run = jax.checkpoint(layer) if checkpoint else layer
        for own in parameters["layers"]:
            values = run(values, own)
        values = norm(values, parameters["scale"], parameters["shift"])
        return cross_entropy(values @ parameters["head"], labels)

    tokens, labels = generator.integers(0, vocabulary, (2, batch, length), np.int32)
    return adam(loss_of, parameters, tokens, labels)


def resnet(
    stages: tuple[int, ...] = (2, 2, 2, 2),
    width: int = 64,
    size: int = 64,
    batch: int = 32,
    classes: int = 10,
    checkpoint: bool = False,
) -> Built:
    """Residual blocks of two 3 x 3 convolutions, batch norm by the batch's own statistics; NHWC."""
    generator = np.random.default_rng(0)

    def kernel(area: int, inputs: int, outputs: int) -> np.ndarray:
        values = normal(generator, area * area * inputs, outputs)
        return values.reshape(area, area, inputs, outputs)

    def block(inputs: int, outputs: int) -> dict[str, Any]:
        made: dict[str, Any] = {
            "first": kernel(3, inputs, outputs),
            "second": kernel(3, outputs, outputs),
            "scale": [np.ones(outputs, np.float32) for _ in range(2)],
            "shift": [np.zeros(outputs, np.float32) for _ in range(2)],
        }
        if inputs != outputs:
            made["short"] = kernel(1, inputs, outputs)
        return made

    blocks, channels = [], width
    for stage, count in enumerate(stages):
        for number in range(count):
            outputs = width << stage
            blocks.append((2 if stage and not number else 1, block(channels, outputs)))
            channels = outputs
    strides = [stride for stride, _ in blocks]
    parameters = {
        "stem": kernel(3, 3, width),
        "scale": np.ones(width, np.float32),
        "shift": np.zeros(width, np.float32),
        "blocks": [own for _, own in blocks],
        "head": normal(generator, channels, classes),
    }

    def convolve(values: jax.Array, weights: jax.Array, stride: int = 1) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            values, weights, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def norm(values: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        mean = values.mean((0, 1, 2))
        variance = ((values - mean) ** 2).mean((0, 1, 2))
        return (values - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    def residual(values: jax.Array, own: Any, stride: int) -> jax.Array:
        inner = convolve(values, own["first"], stride)
        inner = jax.nn.relu(norm(inner, own["scale"][0], own["shift"][0]))
        inner = norm(convolve(inner, own["second"]), own["scale"][1], own["shift"][1])
        short = convolve(values, own["short"], stride) if "short" in own else values
        return jax.nn.relu(inner + short)

    def loss_of(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        values = convolve(images, parameters["stem"])
        values = jax.nn.relu(norm(values, parameters["scale"], parameters["shift"]))
        run = jax.checkpoint(residual, static_argnums=2) if checkpoint else residual
        for own, stride in zip(parameters["blocks"], strides, strict=True):
            values = run(values, own, stride)
        return cross_entropy(values.mean((1, 2)) @ parameters["head"], labels)

    images = generator.standard_normal((batch, size, size, 3)).astype(np.float32)
    return adam(loss_of, parameters, images, generator.integers(0, classes, batch, np.int32))


TRAINING: dict[str, Callable[[], Built]] = {
    "mlp": mlp,
    "lstm": lstm,
    "transformer": transformer,
    "transformer-checkpoint": lambda: transformer(checkpoint=True),
    "resnet": resnet,
    "resnet-checkpoint": lambda: resnet(checkpoint=True),
}

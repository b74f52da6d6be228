"""The zoo's JAX models. Each function returns `(jitted function, inputs)`; weights are closed over,
except in the training step, where they are the donated state.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights of a layer with shape[0] inputs, as float32."""
    return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def lstm(layers: int = 2, steps: int = 64, width: int = 256) -> tuple[Any, tuple[Any, ...]]:
    generator = np.random.default_rng(0)
    weights = [
        {
            "input": normal(generator, width, 4 * width),
            "hidden": normal(generator, width, 4 * width),
            "bias": np.zeros(4 * width, np.float32),
        }
        for _ in range(layers)
    ]

    def layer(parameters: dict[str, Any], sequence: jax.Array) -> tuple[jax.Array, Any]:
        def step(state: tuple[jax.Array, jax.Array], projected: jax.Array) -> Any:
            hidden, cell = state
            gates = projected + hidden @ parameters["hidden"]
            gate_in, forget, candidate, out = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(gate_in) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        batch = sequence.shape[1]
        zeros = jnp.zeros((batch, width), jnp.float32)
        projected = sequence @ parameters["input"] + parameters["bias"]
        state, outputs = jax.lax.scan(step, (zeros, zeros), projected)
        return outputs, state

    def apply(sequence: jax.Array) -> Any:
        states = []
        for parameters in weights:
            sequence, state = layer(parameters, sequence)
            states.append(state)
        return {"outputs": sequence, "states": states}

    sequence = generator.standard_normal((steps, 1, width)).astype(np.float32)
    return jax.jit(apply), (sequence,)


def mlp_train(layers: int = 4, width: int = 512, batch: int = 64) -> tuple[Any, tuple[Any, ...]]:
    """state, images, labels -> (new state, loss): cross entropy, its gradient, a step of Adam."""
    generator = np.random.default_rng(0)
    sizes = [784] + [width] * (layers - 1) + [10]
    parameters = [
        {"w": normal(generator, n, m), "b": np.zeros(m, np.float32)}
        for n, m in itertools.pairwise(sizes)
    ]

    def loss_of(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        values = images
        for index, layer in enumerate(parameters):
            values = values @ layer["w"] + layer["b"]
            if index + 1 < len(parameters):
                values = jax.nn.gelu(values)
        chosen = jax.nn.log_softmax(values)[jnp.arange(labels.shape[0]), labels]
        return -chosen.mean()

    def train_step(state: dict[str, Any], images: jax.Array, labels: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(state["parameters"], images, labels)
        count = state["count"] + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradient)
        power = count.astype(jnp.float32)
        scale = 1e-3 * jnp.sqrt(1 - 0.999**power) / (1 - 0.9**power)
        updated = jax.tree.map(
            lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), state["parameters"], first, second
        )
        return {"parameters": updated, "first": first, "second": second, "count": count}, loss

    # a state in the middle of training: at the first step Adam divides noise by noise
    state = {
        "parameters": parameters,
        "first": jax.tree.map(lambda p: normal(generator, 100, *p.shape)[0], parameters),
        "second": jax.tree.map(
            lambda p: normal(generator, 100, *p.shape)[0] ** 2 + 1e-4, parameters
        ),
        "count": np.int32(10),
    }
    images = generator.standard_normal((batch, 784)).astype(np.float32)
    labels = generator.integers(0, 10, batch).astype(np.int32)
    return jax.jit(train_step, donate_argnums=0), (state, images, labels)


def transformer_decode(
    layers: int = 2, width: int = 128, heads: int = 4, vocabulary: int = 512, longest: int = 32
) -> tuple[Any, tuple[Any, ...]]:
    """prompt [16] -> (tokens [longest], logits of the last step): greedy decoding with a KV cache.

    The loop ends after `longest` tokens or when token 0 appears, so its trip count depends on data.
    """
    generator = np.random.default_rng(0)
    head_width = width // heads
    embedding = normal(generator, vocabulary, width) * np.float32(np.sqrt(vocabulary))
    positions = normal(generator, longest, width)
    blocks = [
        {
            "norm1": np.ones(width, np.float32),
            "qkv": normal(generator, width, 3 * width),
            "out": normal(generator, width, width),
            "norm2": np.ones(width, np.float32),
            "up": normal(generator, width, 4 * width),
            "down": normal(generator, 4 * width, width),
        }
        for _ in range(layers)
    ]

    def normalise(x: jax.Array, gain: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain

    def block(parameters: dict[str, Any], x: jax.Array, cache: jax.Array, at: jax.Array) -> Any:
        """x [width], cache [2, longest, heads, head_width] -> the same, position `at` filled."""
        qkv = normalise(x, parameters["norm1"]) @ parameters["qkv"]
        query, key, value = qkv.reshape(3, heads, head_width)
        cache = jax.lax.dynamic_update_slice(cache, jnp.stack([key, value])[:, None], (0, at, 0, 0))
        scores = jnp.einsum("hd,lhd->hl", query, cache[0]) / np.float32(np.sqrt(head_width))
        scores = jnp.where(jnp.arange(longest) <= at, scores, -jnp.inf)
        mixed = jnp.einsum("hl,lhd->hd", jax.nn.softmax(scores), cache[1]).reshape(width)
        x = x + mixed @ parameters["out"]
        hidden = jax.nn.gelu(normalise(x, parameters["norm2"]) @ parameters["up"])
        return x + hidden @ parameters["down"], cache

    def step(tokens: jax.Array, caches: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.asarray(embedding)[tokens[at]] + jnp.asarray(positions)[at]
        updated = []
        for index, parameters in enumerate(blocks):
            x, cache = block(parameters, x, caches[index], at)
            updated.append(cache)
        return x @ embedding.T, jnp.stack(updated)

    def decode(prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
        length = prompt.shape[0]
        tokens = jnp.zeros(longest, jnp.int32).at[:length].set(prompt)
        caches = jnp.zeros((layers, 2, longest, heads, head_width), jnp.float32)

        def unfinished(state: Any) -> jax.Array:
            at, tokens, _, _ = state
            ended = (tokens[jnp.maximum(at - 1, 0)] == 0) & (at >= length)
            return (at < longest - 1) & ~ended

        def advance(state: Any) -> Any:
            at, tokens, caches, _ = state
            logits, caches = step(tokens, caches, at)
            chosen = jnp.argmax(logits).astype(jnp.int32)
            following = jnp.where(at + 1 < length, tokens[at + 1], chosen)
            return at + 1, tokens.at[at + 1].set(following), caches, logits

        start = (jnp.int32(0), tokens, caches, jnp.zeros(vocabulary, jnp.float32))
        _, tokens, _, logits = jax.lax.while_loop(unfinished, advance, start)
        return tokens, logits

    prompt = generator.integers(1, vocabulary, 16).astype(np.int32)
    return jax.jit(decode), (prompt,)

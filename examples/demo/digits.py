"""A small JAX classifier of handwritten digits: trained, exported, and run from a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import girih


@dataclass(frozen=True)
class Outcome:
    """Test images with what is true, what JAX says and what the bundle says."""

    images: np.ndarray
    labels: np.ndarray
    jax_scores: np.ndarray
    girih_scores: np.ndarray
    bundle: Path

    def accuracy(self, scores: np.ndarray) -> float:
        return float((scores.argmax(1) == self.labels).mean())


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """train images, train labels, test images, test labels: 8 x 8 pictures from scikit-learn."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, np.float32) / 16
    train, test, train_labels, test_labels = map(
        np.asarray, train_test_split(images, labels, test_size=0.25, random_state=0)
    )
    return train, train_labels, test, test_labels


def train(images: np.ndarray, labels: np.ndarray, steps: int = 300) -> Any:
    """Parameters of a convolution, a hidden layer and a linear layer, by Adam on all images."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 3)
    parameters = {
        "filters": jax.random.normal(keys[0], (16, 1, 3, 3)) / 3,
        "hidden": jax.random.normal(keys[1], (256, 64)) / 16,
        "hidden_bias": jnp.zeros(64),
        "out": jax.random.normal(keys[2], (64, 10)) / 8,
        "out_bias": jnp.zeros(10),
    }

    def loss_of(parameters: Any) -> Any:
        scores = jax.nn.log_softmax(classify(parameters, images))
        return -scores[jnp.arange(len(labels)), labels].mean()

    @jax.jit
    def step(count: Any, parameters: Any, first: Any, second: Any) -> Any:
        gradient = jax.grad(loss_of)(parameters)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        rate = 0.01 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        moved = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, first, second
        )
        return moved, first, second

    first = second = jax.tree.map(jnp.zeros_like, parameters)
    for count in range(1, steps + 1):
        parameters, first, second = step(float(count), parameters, first, second)
    return jax.tree.map(np.asarray, parameters)


def classify(parameters: Any, images: Any) -> Any:
    """images [n, 64] -> scores [n, 10]."""
    import jax

    pictures = images.reshape(-1, 1, 8, 8)
    maps = jax.lax.conv(pictures, parameters["filters"], (2, 2), "SAME")
    flat = jax.nn.relu(maps).reshape(images.shape[0], -1)
    hidden = jax.nn.relu(flat @ parameters["hidden"] + parameters["hidden_bias"])
    return hidden @ parameters["out"] + parameters["out_bias"]


def run(folder: Path) -> Outcome:
    """Train, export to a file, compile the file, and classify the test images from the bundle."""
    import jax
    import jax.export

    train_images, train_labels, images, labels = data()
    parameters = train(train_images, train_labels)
    function = jax.jit(lambda pictures: classify(parameters, pictures))
    file = folder / "digits.jaxexport"
    file.write_bytes(jax.export.export(function)(images).serialize())
    bundle = folder / "digits.girih"
    girih.compile(file).save(bundle)
    scores = np.asarray(girih.load(bundle)(images))
    return Outcome(images, labels, np.asarray(function(images)), scores, bundle)


def drawing(image: np.ndarray) -> str:
    """An 8 x 8 picture as eight lines of text, darker where there is more ink."""
    shades = " ░▒▓█"
    rows = (np.clip(image, 0, 0.999) * len(shades)).astype(int).reshape(8, 8)
    return "\n".join("".join(shades[level] * 2 for level in row) for row in rows)

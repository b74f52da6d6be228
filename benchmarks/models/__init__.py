"""The zoo: real model structures with random weights, example inputs and the framework's answer.

`ZOO` lists the models in the order in which results are shown. Building one imports its framework
and nothing before that does, so a list of names costs nothing. Everything is fp32 and batch 1 (the
training step apart); seeds are fixed, so two builds of one model are equal bit for bit.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TOLERANCE = 1e-3
"""The zoo's gate: max |girih - framework| <= TOLERANCE x max |framework|, for each result."""
TOLERANCE_BF16 = 1e-1
"""The same where products read bfloat16, against the framework's float32."""


@dataclass(frozen=True)
class Built:
    """A model ready to run: `source(*inputs)` in its own framework.

    `source` is a `torch.nn.Module` in eval mode or a `jax.jit` function; `inputs` are the
    positional arguments, pytrees of torch tensors or numpy arrays.
    """

    source: Any
    inputs: tuple[Any, ...]
    framework: str

    def repeated(self, batch: int) -> Built:
        """The same model on `batch` copies of each input of batch 1, along its first dim."""
        if batch == 1:
            return self
        from torch.utils import _pytree as pytree

        def several(leaf: Any) -> Any:
            once = leaf.ndim == 0 or leaf.shape[0] != 1
            return leaf if once else leaf.repeat(batch, *[1] * (leaf.ndim - 1))

        return replace(self, inputs=pytree.tree_map(several, self.inputs))

    def reference(self) -> list[np.ndarray]:
        """The framework's answer as flat numpy arrays, in the order of its pytree."""
        if self.framework == "torch":
            import torch
            from torch.utils import _pytree as pytree

            with torch.no_grad():
                results = self.source(*self.inputs)
            return [leaf.detach().numpy() for leaf in pytree.tree_leaves(results)]
        import jax

        copies = jax.tree_util.tree_map(np.array, self.inputs)  # a donated input is not read again
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(self.source(*copies))]

    def flat_inputs(self) -> list[np.ndarray]:
        """The inputs as flat numpy arrays, in the order of the framework's pytree."""
        if self.framework == "torch":
            from torch.utils import _pytree as pytree

            return [leaf.detach().numpy() for leaf in pytree.tree_leaves(self.inputs)]
        import jax

        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(self.inputs)]


@dataclass(frozen=True)
class Model:
    """One entry of the zoo: `build()` gives the full model, `build(layers=n)` a shallower one."""

    name: str
    framework: str
    builder: str
    about: str

    def build(self, layers: int | None = None) -> Built:
        room = importlib.import_module(f"{__name__}.{self.framework}_models")
        make = getattr(room, self.builder)
        source, inputs = make() if layers is None else make(layers)
        return Built(source, inputs, self.framework)


ZOO = (
    Model("bert-base", "torch", "bert_base", "BERT-base, 128 tokens"),
    Model("gpt2", "torch", "gpt2", "GPT-2, 128 tokens"),
    Model("gpt2-decode", "torch", "gpt2_decode", "GPT-2, one token after 127 cached"),
    Model("llama", "torch", "llama", "Llama 12 x 768, 64 tokens"),
    Model("t5-small", "torch", "t5_small", "T5-small, 64 tokens in, 16 out"),
    Model("vit-b16", "torch", "vit_b16", "ViT-B/16, 224 x 224"),
    Model("resnet50", "torch", "resnet50", "ResNet-50, 224 x 224"),
    Model("mobilenet-v2", "torch", "mobilenet_v2", "MobileNetV2, 224 x 224"),
    Model("convnext-tiny", "torch", "convnext_tiny", "ConvNeXt-T, 224 x 224"),
    Model("whisper-encoder", "torch", "whisper_encoder", "Whisper-tiny's encoder, 30 s of sound"),
    Model("lstm-torch", "torch", "lstm", "torch.nn.LSTM, 2 x 256, 64 steps"),
    Model("lstm-jax", "jax", "lstm", "an LSTM as jax.lax.scan, 2 x 256, 64 steps"),
    Model("mlp-train", "jax", "mlp_train", "a training step: value_and_grad + Adam, donated"),
    Model(
        "jax-decode",
        "jax",
        "transformer_decode",
        "a transformer that decodes in jax.lax.while_loop",
    ),
)


def model(name: str) -> Model:
    """The zoo's model called `name`."""
    for entry in ZOO:
        if entry.name == name:
            return entry
    raise KeyError(f"the zoo has no model {name!r}; it has {', '.join(e.name for e in ZOO)}")


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """max |actual - expected| / max |expected|; inf for a nan, another shape or other integers."""
    if actual.shape != expected.shape:
        return float("inf")
    if expected.dtype.kind in "biu":
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    worst = float(difference.max(initial=0.0))
    if not np.isfinite(worst):
        return float("inf")
    return worst / max(float(np.abs(expected).max(initial=0.0)), float(np.finfo(np.float32).tiny))

"""The zoo: real model structures with random weights, example inputs and the framework's answer.

`ZOO` lists the models in the order in which results are shown; `WIDER` has those of other families,
smaller, to find what the zoo does not. Building one imports its framework and nothing before that
does, so a list of names costs nothing. Everything is fp32 and batch 1 (the training step and
recommendations apart); seeds are fixed, so two builds of one model are equal bit for bit.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TOLERANCE = 1e-3
"""The zoo's gate: max |girih - framework| <= TOLERANCE x max |framework|, for each result."""
TOLERANCE_BF16 = 1e-1
"""The same where products and activations are bfloat16, against the framework's float32."""


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
    kind: str = ""  # of the models of a framework that stand in one file

    def build(self, layers: int | None = None) -> Built:
        room = importlib.import_module(f"{__name__}.{self.framework}_{self.kind}models")
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


WIDER = (
    *(
        Model(name, "torch", name.replace("-", "_"), about, "vision_")
        for name, about in (
            ("regnet-y", "RegNetY-4GF, grouped convolutions, 224 x 224"),
            ("efficientnet-b0", "EfficientNet-B0, depthwise convolutions, 224 x 224"),
            ("segformer-b0", "SegFormer-B0, segmentation, 512 x 512"),
            ("video-c3d", "3-D convolutions, 8 pictures of 112 x 112"),
            ("unet", "U-Net with group norm and transposed convolutions, 192 x 192"),
            ("diffusion-unet", "a step of a diffusion U-Net with attention, 64 x 64 x 4"),
            ("detector-fpn", "ResNet-18 with a feature pyramid and shared heads, 256 x 256"),
            ("super-resolution", "EDSR with pixel shuffle, 96 x 96 to 192 x 192"),
            ("gan-generator", "DCGAN's generator, 64 x 64"),
            ("mlp-mixer", "MLP-Mixer S/16, 224 x 224"),
            ("pointnet", "PointNet, 2,048 points"),
        )
    ),
    *(
        Model(name, "torch", name.replace("-", "_"), about, "other_")
        for name, about in (
            ("dlrm", "DLRM, 16 embeddings and their pairwise products, batch 256"),
            ("dcn-two-tower", "DCN-v2 beside two towers, 24 embeddings, batch 256"),
            ("graph-attention", "GAT, 2,048 nodes and 16,384 edges"),
            ("tcn", "dilated 1-D convolutions, 64 features, 8,192 steps"),
            ("patch-tst", "PatchTST, 7 series of 512 steps"),
            ("fourier-operator", "a Fourier neural operator, 64 x 64"),
            ("audio-codec", "DAC's decoder, 40 frames"),
            ("speech-conformer", "Wav2Vec2-Conformer 6 x 256, 2 s of sound"),
            ("mamba", "Mamba 4 x 384, 64 tokens"),
        )
    ),
)


def model(name: str) -> Model:
    """The model called `name`, of the zoo or beside it."""
    for entry in (*ZOO, *WIDER):
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in (*ZOO, *WIDER))
    raise KeyError(f"the zoo has no model {name!r}; it has {known}")


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

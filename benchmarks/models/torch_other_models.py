"""More PyTorch models that see no pictures: tables, graphs, sounds, series, fields, state spaces.

Each function returns `(module, inputs)`, as those of torch_models do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .torch_models import Outputs, scattered, tokens

Made = tuple[nn.Module, tuple[Any, ...]]


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU behind each."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def table_of(batch: int, categories: int, rows: int) -> tuple[Tensor, Tensor]:
    """Numbers [batch, 13] and categories [batch, categories] of so many rows."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(batch, 13, generator=generator)
    return numbers, torch.randint(0, rows, (batch, categories), generator=generator)


class Dlrm(nn.Module):
    """Recommendation: embeddings, pairwise products of them, small MLPs before and behind."""

    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = perceptron(13, 512, 256, width)
        count = tables + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, -1))
        self.top = nn.Sequential(
            *perceptron(count * (count - 1) // 2 + width, 512, 256), nn.Linear(256, 1)
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        first = self.bottom(numbers)
        found = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        vectors = torch.stack([first, *found], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = self.pairs  # type: ignore[misc]
        flat = products[:, rows, columns]
        return torch.sigmoid(self.top(torch.cat([first, flat], dim=1)))


def dlrm() -> Made:
    torch.manual_seed(0)
    return scattered(Dlrm(16)), table_of(256, 16, 10_000)


class CrossTwoTower(nn.Module):
    """DCN-v2 over all features beside a user's tower and an item's, whose product is a score."""

    def __init__(self, tables: int = 24, rows: int = 5_000, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(tables * rows, width)
        self.register_buffer("starts", torch.arange(tables) * rows)
        everything = 13 + tables * width
        self.cross = nn.ModuleList(nn.Linear(everything, everything) for _ in range(3))
        self.deep = perceptron(everything, 512, 256)
        self.score = nn.Linear(everything + 256, 1)
        half = tables // 2 * width
        self.user, self.item = perceptron(half, 256, 64), perceptron(half, 256, 64)

    def forward(self, numbers: Tensor, categories: Tensor) -> tuple[Tensor, Tensor]:
        starts: Any = self.starts
        found = self.table(categories + starts)
        x = first = torch.cat([numbers, found.flatten(1)], dim=1)
        for layer in self.cross:
            x = first * layer(x) + x
        score = self.score(torch.cat([x, self.deep(first)], dim=1))
        users, items = (part.flatten(1) for part in found.chunk(2, dim=1))
        users = functional.normalize(self.user(users), dim=-1)
        items = functional.normalize(self.item(items), dim=-1)
        return torch.sigmoid(score), users @ items.T


def dcn_two_tower() -> Made:
    torch.manual_seed(0)
    return scattered(CrossTwoTower()), table_of(256, 24, 5_000)


class GraphAttention(nn.Module):
    """One layer of GAT over a list of edges: softmax over what arrives at each node."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, heads * outputs, bias=False)
        self.source = nn.Parameter(torch.randn(heads, outputs) * 0.1)
        self.target = nn.Parameter(torch.randn(heads, outputs) * 0.1)
        self.heads, self.outputs = heads, outputs

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes = x.shape[0]
        source, target = edges
        y = self.project(x).reshape(nodes, self.heads, self.outputs)
        scores = (y * self.source).sum(-1)[source] + (y * self.target).sum(-1)[target]
        scores = functional.leaky_relu(scores, 0.2)
        places = target[:, None].expand_as(scores)
        top = torch.full((nodes, self.heads), -1e30).scatter_reduce(0, places, scores, "amax")
        weights = torch.exp(scores - top[target])
        total = torch.zeros(nodes, self.heads).index_add(0, target, weights)
        weights = weights / (total[target] + 1e-9)
        messages = y[source] * weights[:, :, None]
        return torch.zeros_like(y).index_add(0, target, messages).flatten(1)


class GraphNetwork(nn.Module):
    """Two layers of attention over a graph's edges, then classes of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphAttention(128, 32, 4), GraphAttention(128, 32, 4)
        self.head = nn.Linear(128, 16)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = functional.elu(self.first(nodes, edges))
        return self.head(functional.elu(self.second(x, edges)))


def graph_attention() -> Made:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randn(2048, 128, generator=generator)
    edges = torch.randint(0, 2048, (2, 16384), generator=generator)
    return scattered(GraphNetwork()), (nodes, edges)


class Temporal(nn.Module):
    """A TCN: causal convolutions whose dilation doubles, with residuals."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 3, dilation=1 << n) for n in range(layers)
        )
        self.head = nn.Conv1d(width, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            (dilation,) = layer.dilation  # type: ignore[union-attr]
            x = x + functional.relu(layer(functional.pad(x, (2 * int(dilation), 0))))
        return self.head(x)


def tcn() -> Made:
    torch.manual_seed(0)
    series = torch.randn(1, 8, 8192, generator=torch.Generator().manual_seed(1))
    return scattered(Temporal()), (series,)


def patch_tst() -> Made:
    """PatchTST: a transformer over patches of each channel of a series."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    torch.manual_seed(0)
    config = PatchTSTConfig(
        num_input_channels=7, context_length=512, patch_length=16, patch_stride=8,
        prediction_length=96, d_model=128, num_attention_heads=8, ffn_dim=256,
        num_hidden_layers=3, random_mask_ratio=0.0, do_mask_input=False,
    )  # fmt: skip
    series = torch.randn(1, 512, 7, generator=torch.Generator().manual_seed(1))
    model = scattered(PatchTSTForPrediction(config))
    return Outputs(model, ("past_values",), ("prediction_outputs",)), (series,)


class SpectralConvolution(nn.Module):
    """A field's lowest frequencies times a complex matrix each (Fourier neural operator)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        shape = (2, width, width, modes, modes, 2)
        self.weights = nn.Parameter(torch.randn(shape) / width)
        self.modes = modes

    def forward(self, x: Tensor) -> Tensor:
        n, size = self.modes, x.shape[-2:]
        weights = torch.view_as_complex(self.weights)
        spectrum = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :n, :n], weights[0])
        high = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -n:, :n], weights[1])
        rest = spectrum.shape[-1] - n
        between = low.new_zeros(low.shape[0], low.shape[1], size[0] - 2 * n, n)
        kept = torch.cat([low, between, high], dim=2)
        return torch.fft.irfft2(functional.pad(kept, (0, rest)), s=size)


class FourierOperator(nn.Module):
    """A field -> the field later."""

    def __init__(self, width: int = 32, modes: int = 12, layers: int = 4) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(SpectralConvolution(width, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, field: Tensor) -> Tensor:
        x = self.lift(field)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = functional.gelu(spectral(x) + local(x))
        return self.project(x)


def fourier_operator() -> Made:
    torch.manual_seed(0)
    field = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return scattered(FourierOperator()), (field,)


class CodecDecoder(nn.Module):
    """Codes -> sound."""

    def __init__(self, codec: Any) -> None:
        super().__init__()
        self.quantizer, self.decoder = codec.quantizer, codec.decoder

    def forward(self, codes: Tensor) -> Tensor:
        return self.decoder(self.quantizer.from_codes(codes)[0])


def audio_codec() -> Made:
    """DAC's decoder: transposed 1-D convolutions, dilated ones, the snake activation."""
    from transformers import DacConfig, DacModel

    torch.manual_seed(0)
    config = DacConfig(encoder_hidden_size=16, decoder_hidden_size=384)
    model = CodecDecoder(scattered(DacModel(config)))
    generator = torch.Generator().manual_seed(1)
    return model, (torch.randint(0, 1024, (1, config.n_codebooks, 40), generator=generator),)


def speech_conformer() -> Made:
    """Wav2Vec2-Conformer: raw sound, strided 1-D convolutions, attention and depthwise ones."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    torch.manual_seed(0)
    config = Wav2Vec2ConformerConfig(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024,
        conv_dim=(128,) * 7, position_embeddings_type="relative", apply_spec_augment=False,
    )  # fmt: skip
    sound = torch.randn(1, 32000, generator=torch.Generator().manual_seed(1))
    model = scattered(Wav2Vec2ConformerModel(config))
    return Outputs(model, ("input_values",), ("last_hidden_state",)), (sound,)


def mamba(layers: int = 4) -> Made:
    """Mamba: depthwise 1-D convolutions and a scan over 64 tokens, step by step."""
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    config = MambaConfig(
        hidden_size=384, num_hidden_layers=layers, vocab_size=8192, use_cache=False
    )
    model = scattered(MambaModel(config))
    return Outputs(model, ("input_ids",), ("last_hidden_state",)), (tokens(64, 8192),)

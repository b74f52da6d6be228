"""Layers of a Llama in PyTorch, for which three annotations each are enough."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import girih

MESH = {"data": 2, "model": 2}


class Layer(nn.Module):
    """Attention and a gated network, each added to its input: [batch, tokens, width]."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = girih.shard(x, "data")
        normed = self.norms[0](x)
        query, key, value = (
            one(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        query = girih.shard(_turned(query, cos, sin), "data", "model")
        mixed = functional.scaled_dot_product_attention(
            query, _turned(key, cos, sin), value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        gated = functional.silu(self.gate(normed)) * self.up(normed)
        return x + self.down(girih.shard(gated, "data", None, "model"))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: pairs of the last dim's halves, turned by each token's angles."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class Llama(nn.Module):
    """Tokens [batch, tokens] -> scores of the next ones [batch, tokens, words]."""

    def __init__(
        self, words: int = 96, width: int = 32, heads: int = 4, hidden: int = 64, depth: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.size = width // heads

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rates = 10000.0 ** -torch.arange(0, 1, 2 / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), rates)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embedding.weight.T


def module() -> girih.Module:
    """The program for four sequences of 16 tokens, weights drawn from a fixed seed."""
    torch.manual_seed(0)
    return girih.import_model(Llama().eval(), torch.randint(96, (4, 16)))

"""A model of Llama's shape: rotary positions, grouped heads, gated layers, and a cache of a fixed
capacity in its buffers. Its weights are random; the three methods are what a server needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Config:
    """Sizes. `prompt`: the longest prompt of a prefill; `capacity`: of prompt and answer."""

    vocabulary: int = 512
    width: int = 256
    hidden: int = 704
    layers: int = 4
    heads: int = 8
    key_heads: int = 4
    prompt: int = 64
    capacity: int = 256

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.before, self.between = Norm(c.width), Norm(c.width)
        self.query = nn.Linear(c.width, c.width, bias=False)
        self.key = nn.Linear(c.width, c.key_heads * c.head, bias=False)
        self.value = nn.Linear(c.width, c.key_heads * c.head, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)
        empty = torch.zeros(1, c.key_heads, c.capacity, c.head)
        self.register_buffer("keys", empty.clone())
        self.register_buffer("values", empty.clone())

    def forward(
        self, x: torch.Tensor, place: torch.Tensor, turns: tuple[Any, Any], mask: torch.Tensor
    ) -> torch.Tensor:
        """x: [1, new, width]; place: [new], where its tokens stand; mask: [new, capacity]."""
        c, new = self.c, x.shape[1]
        y = self.before(x)
        query = turned(self.query(y).view(1, new, c.heads, c.head).transpose(1, 2), turns)
        key = turned(self.key(y).view(1, new, c.key_heads, c.head).transpose(1, 2), turns)
        value = self.value(y).view(1, new, c.key_heads, c.head).transpose(1, 2)
        self.keys.index_copy_(2, place, key)
        self.values.index_copy_(2, place, value)
        shared = c.heads // c.key_heads
        grouped = query.view(1, c.key_heads, shared * new, c.head)
        scores = grouped @ self.keys.transpose(-1, -2) / math.sqrt(c.head)
        scores = scores.view(1, c.key_heads, shared, new, c.capacity) + mask
        found = scores.softmax(-1).view(1, c.key_heads, shared * new, c.capacity) @ self.values
        found = found.view(1, c.heads, new, c.head).transpose(1, 2).reshape(1, new, c.width)
        x = x + self.out(found)
        y = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def turned(x: torch.Tensor, turns: tuple[Any, Any]) -> torch.Tensor:
    """Each pair of features turned by its position."""
    cos, sin = turns
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Llama(nn.Module):
    """prefill, then decode or sample again and again; `length` tokens are in the cache."""

    length: torch.Tensor
    rates: torch.Tensor

    def __init__(self, config: Config | None = None, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.c = c = Config() if config is None else config
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.last = Norm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))
        rates = 10000.0 ** (-torch.arange(0, c.head, 2) / c.head)
        self.register_buffer("rates", rates, persistent=False)

    def body(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        angles = place[:, None] * self.rates
        turns = angles.cos(), angles.sin()
        seen = torch.arange(self.c.capacity) <= place[:, None]  # nobody looks ahead
        mask = torch.where(seen, 0.0, -math.inf)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, place, turns, mask)
        return self.last(x)

    def prefill(self, tokens: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Logits [1, vocabulary] behind the first `count` [1] of the tokens [1, prompt]: what
        stands behind them is written to the cache as well, and overwritten before it is seen."""
        x = self.body(tokens, torch.arange(self.c.prompt))
        self.length.copy_(count)
        return self.head(x.index_select(1, count - 1)[:, 0])

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        """Logits [1, vocabulary] behind one more token [1, 1]."""
        x = self.body(token, self.length + 0)
        self.length.add_(1)
        return self.head(x[:, 0])

    def sample(
        self, token: torch.Tensor, uniform: torch.Tensor, temperature: torch.Tensor
    ) -> torch.Tensor:
        """The next token [1, 1], drawn with uniform numbers [1, vocabulary] in (0, 1)."""
        gumbel = -torch.log(-torch.log(uniform))
        return (self.decode(token) / temperature + gumbel).argmax(-1, keepdim=True)

    forward = decode


def entry_points(model: Llama) -> dict[str, Any]:
    """What `girih.compile` takes: each method with example inputs."""
    c, one = model.c, torch.zeros(1, 1, dtype=torch.int64)
    prompt = torch.zeros(1, c.prompt, dtype=torch.int64)
    return {
        "prefill": (model.prefill, (prompt, torch.ones(1, dtype=torch.int64))),
        "decode": (model.decode, (one,)),
        "sample": (model.sample, (one, torch.full((1, c.vocabulary), 0.5), torch.ones(1))),
    }

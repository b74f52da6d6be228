"""A PyTorch transformer layer, annotated by the names of its parameters, sends what the JAX program
with the same annotations sends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch
from torch.nn import functional

import girih
from models.annotated_networks import NETWORKS
from models.sharded import BATCH, HEADS, HIDDEN, TOKENS, WIDTH

MESH = {"data": 2, "model": 4}
COLUMNS, ROWS = ("model", None), (None, "model")  # of weights as PyTorch keeps them, in_order
SHARDINGS = {
    "x": ("data",),
    **{f"*.{name}.weight": COLUMNS for name in "qkv"},
    "attention.out.weight": ROWS,
    "up.weight": COLUMNS,
    "down.weight": ROWS,
    "*_scale": (None,),
}


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        q, k, v = (
            one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        self.first_scale, self.second_scale = (
            torch.nn.Parameter(torch.ones(WIDTH)) for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        x = x + self.attention(functional.rms_norm(x, (WIDTH,), self.first_scale))
        normed = functional.rms_norm(x, (WIDTH,), self.second_scale)
        return x + self.down(functional.gelu(self.up(normed), approximate="tanh"))


@pytest.fixture(scope="module")
def exported() -> Any:
    with torch.device("meta"):
        layer = Layer()
    layer = layer.to_empty(device="cpu")
    return torch.export.export(layer.eval(), (torch.zeros(BATCH, TOKENS, WIDTH),))


def sent(parts: girih.Partitioned) -> Counter[Any]:
    """Kinds of collectives with axes and bytes, and how many there are of each."""
    return Counter((row.collectives, row.axes, row.total) for row in parts.communications)


def test_names_give_the_collectives_of_the_jax_program(exported: Any) -> None:
    wanted = sent(girih.partition(NETWORKS["b1"].module(8)))
    found = sent(girih.partition(exported, mesh=MESH, shardings=SHARDINGS))
    assert found == wanted and wanted


def test_a_name_that_nothing_has(exported: Any) -> None:
    with pytest.raises(girih.UserError, match=r"named 'attention\.query\.weight'; nearest are"):
        girih.partition(exported, mesh=MESH, shardings={"attention.query.weight": COLUMNS})

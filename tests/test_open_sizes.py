"""One program for all sizes that its symbols admit: models, bundles, errors, memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, TensorType

torch = pytest.importorskip("torch")
OPTIONS = girih.Options(cache="off", size_plans=1)  # plans of ranges: test_size_ranges.py
SIZES = ((3, 37), (1, 1), (1, 16), (8, 64), (2, 47), (5, 13), (8, 1))


class Block(torch.nn.Module):
    """An encoder's layer, or a decoder's."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inner = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = torch.nn.Linear(width, 96), torch.nn.Linear(96, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: Any, mask: Any) -> Any:
        b, t, width = x.shape
        q, k, v = (
            layer(x).reshape(b, t, self.heads, width // self.heads).transpose(1, 2)
            for layer in self.inner[:3]
        )
        attend = torch.nn.functional.scaled_dot_product_attention
        z = attend(q, k, v, is_causal=True) if self.causal else attend(q, k, v, attn_mask=mask)
        x = self.first(x + self.inner[3](z.transpose(1, 2).reshape(b, t, width)))
        return self.second(x + self.narrow(torch.nn.functional.gelu(self.wide(x))))


class Encoder(torch.nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(50, 32), torch.nn.Embedding(64, 32)
        self.blocks = torch.nn.ModuleList(Block(32, 4, causal) for _ in range(2))

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        weights = (1.0 - mask[:, None, None, :].float()) * -1e9
        for block in self.blocks:
            x = block(x, weights)
        return x, x[:, 0].argmax(-1)


def inputs(b: int, t: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(b * 100 + t)
    ids = torch.randint(0, 50, (b, t), generator=generator)
    mask = torch.ones(b, t, dtype=torch.int64)
    mask[:, t // 2 + 1 :] = 0
    return ids, mask


def exported(model: Any) -> Any:
    batch, length = (
        torch.export.Dim("batch", min=1, max=8),
        torch.export.Dim("length", min=1, max=64),
    )
    dims = ({0: batch, 1: length}, {0: batch, 1: length})
    return torch.export.export(model, inputs(3, 37), dynamic_shapes=dims)


@pytest.fixture(scope="module", params=[False, True], ids=["encoder", "decoder"])
def model(request: pytest.FixtureRequest) -> Encoder:
    torch.manual_seed(0)
    return Encoder(request.param).eval()


@pytest.fixture(scope="module")
def program_of_torch(model: Encoder) -> Any:
    return exported(model)


@pytest.fixture(scope="module")
def made(model: Encoder, program_of_torch: Any) -> tuple[Any, girih.Program]:
    return model, girih.compile(program_of_torch, options=OPTIONS)


def test_a_program_serves_all_sizes(made: Any, tmp_path: Path) -> None:
    model, program = made
    program.save(tmp_path / "model.girih")
    loaded = girih.load(tmp_path / "model.girih")
    for b, t in SIZES:
        ids, mask = inputs(b, t)
        wanted, best = model(ids, mask)
        got, found = program(ids, mask)
        np.testing.assert_allclose(got, wanted.detach().numpy(), atol=2e-5)
        np.testing.assert_array_equal(found, best.numpy())
        again, _ = loaded(ids.numpy(), mask.numpy())
        np.testing.assert_array_equal(again, got)


def test_the_interpreter_runs_it_at_any_size(made: Any) -> None:
    model, program = made
    ids, mask = inputs(2, 11)
    got, _ = girih.interpret(program.module, [ids.numpy(), mask.numpy()])
    np.testing.assert_allclose(got, model(ids, mask)[0].detach().numpy(), atol=2e-5)


def test_memory_is_that_of_the_sizes(made: Any) -> None:
    _, program = made
    names = sorted(program.sizes)
    assert [str(program.sizes[name]) for name in names] in (
        ["from 1 to 8", "from 1 to 64"], ["from 1 to 64", "from 1 to 8"],
    )  # fmt: skip
    largest = program.memory.arena_bytes
    said = {name: said.last for name, said in program.sizes.items()}
    assert program.at(**said).memory.arena_bytes == largest
    smaller = [program.at(**dict.fromkeys(names, n)).memory.arena_bytes for n in (1, 2, 4, 8)]
    assert smaller == sorted(smaller) and smaller[-1] < largest


def test_calls_of_all_sizes_have_their_contexts_in_common(made: Any) -> None:
    """One for each call at a time, whose memory is that of all; many sizes in turn are right."""
    _, program = made
    given = [tuple(x.numpy() for x in inputs(b, t)) for b, t in SIZES]
    wanted = [program(*one)[0] for one in given]

    def turn(first: int) -> bool:
        order = [(first + n) % len(given) for n in range(40)]
        return all(np.array_equal(program(*given[n])[0], wanted[n]) for n in order)

    assert turn(0)
    sized = [program.of_call(one, {}) for one in given]
    kept = {id(one._contexts): len(one._contexts) for one in sized}
    assert len(kept) <= len(program.plans) and set(kept.values()) == {1}
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(turn, range(8)))
    assert all(len(one._contexts) <= 4 for one in sized)


def test_a_range_without_addresses_is_refused() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.tanh %x : tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    with pytest.raises(girih.UserError, match="more memory than there are addresses"):
        girih.compile(text, sizes={"d0": (1, 1 << 60)})


def test_a_call_names_what_does_not_fit(made: Any) -> None:
    _, program = made
    ids, mask = (x.numpy() for x in inputs(3, 7))
    for given, message in (
        ((ids, mask[:, :5]), "mask: dimension 1"),
        ((ids[:, :0], mask[:, :0]), "must be from 1 to 64"),
        ((np.zeros((9, 2), np.int64), np.ones((9, 2), np.int64)), "must be from 1 to 8"),
        ((ids[0], mask), "got an array of 1 dims"),
        ((ids.astype(np.int32), mask), "int32"),
    ):
        with pytest.raises(girih.UserError, match=message):
            program(*given)
    with pytest.raises(girih.UserError, match="give all of the sizes"):
        program.at(nothing=3)
    first, second = program.sizes
    with pytest.raises(girih.UserError, match="must be"):
        program.at(**{first: 1000, second: 1})


def test_prepared_and_profiled_calls(made: Any) -> None:
    _, program = made
    ids, mask = (x.numpy() for x in inputs(2, 9))
    plain, _ = program(ids, mask)
    call = program.prepare(ids, mask)
    np.testing.assert_array_equal(call()[0], plain)
    np.testing.assert_array_equal(program.profile(ids, mask).outputs[0], plain)
    others = [x.numpy() for x in inputs(7, 50)]
    program(*others)  # the prepared call keeps its memory
    np.testing.assert_array_equal(call()[0], plain)


def test_narrowed_and_fixed_sizes(made: Any, program_of_torch: Any) -> None:
    model, program = made
    first, second = program.sizes
    narrowed = girih.compile(
        program_of_torch, options=OPTIONS, sizes={first: 2, second: range(1, 8)}
    )
    assert list(narrowed.sizes) == [second]
    length = program.sizes[first].last == 64
    b, t = (3, 2) if length else (2, 3)
    ids, mask = inputs(b, t)
    wanted = model(ids, mask)[0].detach().numpy()
    np.testing.assert_allclose(narrowed(ids, mask)[0], wanted, atol=2e-5)


def test_a_limit_is_checked_at_the_largest_sizes(made: Any, program_of_torch: Any) -> None:
    _, program = made
    with pytest.raises(girih.UserError, match="max_memory|limit"):
        girih.compile(program_of_torch, options=replace(OPTIONS, max_memory=100_000))
    enough = program.memory.allocated_bytes
    girih.compile(program_of_torch, options=replace(OPTIONS, max_memory=enough))


ENDLESS = """
func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = stablehlo.tanh %x : tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}
"""


def test_sizes_without_an_end_need_a_range() -> None:
    with pytest.raises(girih.UserError, match="no largest value.*--size"):
        girih.compile(ENDLESS, options=OPTIONS)
    module = girih.import_model(ENDLESS)
    name = next(iter(module.symbols))
    program = girih.compile(module, options=OPTIONS, sizes={name: (0, 100)})
    for size in (0, 1, 17, 100):
        x = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
        np.testing.assert_allclose(program(x)[0], np.tanh(x), atol=1e-6)


def test_equal_compilations_give_equal_bytes(made: Any, tmp_path: Path) -> None:
    model, program = made
    program.save(tmp_path / "one.girih")
    girih.compile(exported(model), options=OPTIONS).save(tmp_path / "two.girih")
    assert (tmp_path / "one.girih").read_bytes() == (tmp_path / "two.girih").read_bytes()


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_entry_points_have_the_memory_of_the_largest(target: str) -> None:
    """They take turns in it, though the first one needs less."""

    def module(name: str, most: int, width: int) -> Module:
        b, size = Builder(), SymbolicDim(name)
        (x,) = b.arguments([TensorType((size, width), F32)])
        sums: dict[str, Any] = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        }  # fmt: skip
        square = b("dot_general", x, x, type=TensorType((size, size), F32), **sums)
        cube = b("dot_general", square, square, type=TensorType((size, size), F32), **sums)
        main = Function("main", b.region([cube]))
        return Module({"main": main}, symbols={name: Symbol(1, most)})

    modules = {"small": module("n", 4, 8), "large": module("k", 200, 16)}
    program = girih.compile(modules, target=target, options=OPTIONS)
    for name, size, width in (("small", 3, 8), ("large", 150, 16), ("small", 4, 8)):
        x = np.random.default_rng(size).standard_normal((size, width)).astype(np.float32)
        (got,) = program.entry(name)(x)
        square = x @ x.T
        np.testing.assert_allclose(got, square @ square.T, rtol=1e-3, atol=1e-2)


class Attention(torch.nn.Module):
    """Of so many heads that the values of one lie far apart, which packs them in the kernel."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inner = torch.nn.ModuleList(torch.nn.Linear(64 * heads, 64 * heads) for _ in range(3))

    def forward(self, x: Any) -> Any:
        b, t, width = x.shape
        q, k, v = (layer(x).view(b, t, self.heads, 64).transpose(1, 2) for layer in self.inner)
        z = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return z.transpose(1, 2).reshape(b, t, width)


def test_any_number_of_rows_is_left_for_the_last_tile() -> None:
    """What packs the right side of a product is the first panel of a tile, whatever its rows."""
    dims = {0: torch.export.Dim("b", min=1, max=64), 1: torch.export.Dim("t", min=1, max=512)}
    model = Attention(12).eval()
    exported = torch.export.export(model, (torch.randn(3, 37, 768),), dynamic_shapes=(dims,))
    program = girih.compile(exported, options=OPTIONS)
    for length in (8, *range(257, 274), 300):
        x = torch.randn(1, length, 768)
        wanted = model(x).detach().numpy()
        np.testing.assert_allclose(program(x.numpy()), wanted, atol=1e-4, err_msg=str(length))

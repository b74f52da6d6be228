"""Programs that draw random numbers: distributions, the generator as state, loops, compiling."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch.nn import functional as F

import girih
from girih.frontends.torch.importing import import_torch
from girih.hlo.errors import UserError

COUNT = 100_000


class Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs)


def drawn(body: Callable[..., Any], *inputs: Any, call: int = 3) -> list[Any]:
    """What the interpreter draws in that call."""
    module = import_torch(Body(body), *(inputs or (torch.zeros(1),)))
    arrays = [x.numpy() for x in inputs or (torch.zeros(1),)]
    return girih.interpret(module, [*arrays, np.array([7, call], np.uint64)])


def gap(values: Any, distribution: Callable[[Any], Any]) -> float:
    """The largest distance of a sample's distribution function from this one, times the root of
    the sample's size (Kolmogorov and Smirnov): more than 2.2 in one of 10,000 samples."""
    values = np.sort(np.asarray(values, np.float64).ravel())
    wanted = distribution(values)
    places = np.arange(values.size + 1) / values.size
    away = max((places[1:] - wanted).max(), (wanted - places[:-1]).max())
    return float(away * math.sqrt(values.size))


def normal(x: Any) -> Any:
    return 0.5 * (1 + torch.erf(torch.from_numpy(x) / math.sqrt(2)).numpy())


CONTINUOUS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rand": (lambda x: torch.rand(COUNT), lambda v: v),
    "rand-f64": (lambda x: torch.rand(COUNT, dtype=torch.float64), lambda v: v),
    "randn": (lambda x: torch.randn(COUNT), normal),
    "randn-like-f64": (
        lambda x: torch.randn_like(torch.empty(COUNT, dtype=torch.float64)), normal,
    ),
    "normal": (lambda x: torch.normal(2.0, 3.0, (COUNT,)), lambda v: normal((v - 2) / 3)),
    "uniform": (lambda x: torch.empty(COUNT).uniform_(-2, 3), lambda v: (v + 2) / 5),
    "exponential": (lambda x: torch.empty(COUNT).exponential_(2), lambda v: 1 - np.exp(-2 * v)),
    "cauchy": (
        lambda x: torch.empty(COUNT).cauchy_(1, 2),
        lambda v: np.arctan((v - 1) / 2) / np.pi + 0.5,
    ),
    "log-normal": (
        lambda x: torch.empty(COUNT).log_normal_(1, 0.5), lambda v: normal((np.log(v) - 1) / 0.5),
    ),
    "rrelu": (
        lambda x: F.rrelu(x - torch.ones(COUNT), 0.25, 0.5, True), lambda v: (v + 0.5) * 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_distribution(name: str) -> None:
    body, distribution = CONTINUOUS[name]
    (values,) = drawn(body)[:1]
    assert values.shape == (COUNT,) and np.isfinite(values).all()
    assert gap(values, distribution) < 2.2
    assert len(np.unique(values)) > COUNT * 0.98


def near(part: float, wanted: float, count: int = COUNT) -> None:
    """A part of many draws is what it is to be, within five deviations."""
    assert abs(part - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / count) + 1e-12


def test_draws_of_few_values() -> None:
    def body(p: Any, weights: Any, rates: Any) -> Any:
        return (
            torch.bernoulli(p), torch.randint(-2, 3, (COUNT,)),
            torch.multinomial(weights, COUNT, True), torch.empty(COUNT).geometric_(0.25),
            F.dropout(torch.ones(COUNT), 0.3, True), F.dropout2d(torch.ones(1000, 8, 2, 2), 0.5),
            torch.poisson(rates), torch.randperm(1000), torch.multinomial(weights, 3),
        )  # fmt: skip

    weights = torch.tensor([1.0, 0.0, 2.0, 5.0])
    rates = torch.tensor([3.0, 40.0]).repeat_interleave(COUNT // 2)
    ones, whole, chosen, trials, kept, features, counts, order, few, *_ = drawn(
        body, torch.full((COUNT,), 0.3), weights, rates
    )
    near(ones.mean(), 0.3)
    for value in range(-2, 3):
        near((whole == value).mean(), 0.2)
    for place, weight in enumerate(weights.tolist()):
        near((chosen == place).mean(), weight / 8)
    for value in (1, 2, 3):
        near((trials == value).mean(), 0.25 * 0.75 ** (value - 1))
    near((kept == 0).mean(), 0.3)
    np.testing.assert_allclose(kept[kept != 0], 1 / 0.7, rtol=1e-6)
    assert (features.reshape(1000, 8, 4).max(2) == features.reshape(1000, 8, 4).min(2)).all()
    near((features[:, :, 0, 0] == 0).mean(), 0.5, 8000)
    for half, rate in zip(np.split(counts, 2), (3.0, 40.0), strict=True):
        value = int(rate)
        part = math.exp(-rate + value * math.log(rate) - math.lgamma(value + 1))
        near((half == value).mean(), part, COUNT // 2)
        assert abs(half.var() / rate - 1) < 0.05
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))
    assert (order != np.arange(1000)).mean() > 0.9
    assert sorted(few.tolist()) == [0, 2, 3]


def test_binomial_draws() -> None:
    """Few and many successes of rare and of frequent kinds; none of none, all of certain ones."""
    cases = ((5, 0.3), (5, 0.8), (200, 0.25), (1000, 0.9), (7, 0.0), (7, 1.0), (0, 0.5))
    trials, chances = (torch.tensor(x).float()[:, None] for x in zip(*cases, strict=True))
    counts = drawn(lambda n, p: torch.binomial(n.expand(-1, 2000), p.expand(-1, 2000)),
                   trials, chances)[0]  # fmt: skip
    for found, (n, p) in zip(counts, cases, strict=True):
        assert abs(found.mean() - n * p) <= 5 * math.sqrt(n * p * (1 - p) / found.size)
        for value in (0, int(n * p), n):
            part = math.comb(n, value) * p**value * (1 - p) ** (n - value)
            near((found == value).mean(), part, found.size)
    odd = torch.tensor([[torch.nan, 0.5], [5, torch.nan], [-1, 0.5], [5, -1]])
    (found,) = drawn(torch.binomial, odd[:, 0], odd[:, 1])[:1]
    np.testing.assert_array_equal(found, [0, np.nan, 0, 0])


def test_draws_of_a_size_that_is_data() -> None:
    def body(n: Any) -> Any:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= 300)
        return torch.rand(count), torch.randperm(count)

    exported = torch.export.export(Body(body), (torch.tensor(5),), strict=False)
    session = girih.compile(exported).session()
    for count in (200, 0, 300):
        share, order = session(np.int64(count))
        assert share.shape == (count,) and len(np.unique(share)) == count
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x + torch.rand(4), F.dropout(x, 0.5, True)


X = np.ones(4, np.float32)


def test_the_generator_is_state_that_sessions_keep(tmp_path: Path) -> None:
    program = girih.compile(Noisy(), torch.ones(4))
    module = import_torch(Noisy(), torch.ones(4))
    assert program.signature.generator == "generator"
    assert any("draws random numbers" in note for note in module.notes)
    first, second = program(X), program(X)
    assert not np.array_equal(first[0], second[0])
    for call, found in enumerate((first, second)):
        wanted = girih.interpret(module, [X, np.array([0, call], np.uint64)])
        for one, other in zip(found, wanted, strict=False):
            np.testing.assert_array_equal(one, other)
    program.save(tmp_path / "noisy.girih")
    again = girih.load(tmp_path / "noisy.girih").session()
    np.testing.assert_array_equal(again(X)[0], first[0])
    again.seed(11)
    seeded = again(X)[0]
    assert not np.array_equal(seeded, second[0])
    again.seed(11)
    np.testing.assert_array_equal(again(X)[0], seeded)
    result, state = program.stateless(X, state={"generator": np.array([11, 0], np.uint64)})
    np.testing.assert_array_equal(result[0], seeded)
    np.testing.assert_array_equal(state["generator"], np.array([11, 1], np.uint64))


def test_a_program_that_draws_nothing_has_no_seed() -> None:
    program = girih.compile(nn.Dropout(0.5).eval(), torch.ones(4))
    assert program.signature.generator is None
    with pytest.raises(UserError, match="draws no random numbers"):
        program.session().seed(1)


def test_a_model_with_a_generator_of_its_own() -> None:
    class Own(nn.Module):
        generator: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("generator", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.generator.add_(1)
            return x + self.generator + torch.rand(4)

    signature = import_torch(Own(), torch.ones(4)).signature
    assert signature is not None and signature.generator == "generator_"
    assert set(signature.buffers) == {"generator", "generator_"}


def test_each_turn_and_each_branch_draws_anew() -> None:
    def turns(x: Any) -> Any:
        def more(i: Any, x: Any) -> Any:
            return i < 4

        def step(i: Any, x: Any) -> Any:
            return i + 1, torch.cat([torch.rand(1), x[:3]])

        return while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))[1]

    def branch(x: Any) -> Any:
        drawn = torch.cond(x.sum() > 0, lambda x: torch.rand(4) + x, lambda x: x - 1, (x,))
        return drawn, torch.rand(4) + x

    assert len(set(drawn(turns, torch.zeros(4))[0].tolist())) == 4
    inside, outside = drawn(branch, torch.ones(4))[:2]
    assert not np.array_equal(inside, outside) and (inside > 1).all()


def test_dropout_in_place_writes() -> None:
    def body(x: Any) -> Any:
        y = x + 1
        rest = y[2:]
        F.dropout(rest, 0.999, True, inplace=True)
        return y

    found = drawn(body, torch.ones(1000))[0]
    assert (found[:2] == 2).all() and (found[2:] == 0).mean() > 0.9


def test_open_sizes_draw() -> None:
    n = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Body(lambda x: x + torch.rand_like(x)), (torch.ones(4, 5),),
                                  dynamic_shapes=(({0: n},),))  # fmt: skip
    module = import_torch(program)
    x = np.ones((3, 5), np.float32)
    wanted = girih.interpret(module, [x, np.zeros(2, np.uint64)])[0]
    np.testing.assert_array_equal(girih.compile(program)(x), wanted)
    assert wanted.shape == (3, 5) and len(np.unique(wanted)) == 15


def test_torch_compile_draws_by_manual_seed() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    call = torch.compile(net, backend="girih", options={"fallback": False})
    x = torch.ones(4, 8)
    torch.manual_seed(1)
    first, second = call(x), call(x)
    torch.manual_seed(1)
    again = call(x)
    assert torch.equal(first, again) and not torch.equal(first, second)
    again.sum().backward()
    assert net[0].weight.grad is not None

"""What models change in forward: through branches, views, caches and attributes of theirs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import girih
from girih.hlo.errors import UserError

UP, DOWN = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([-0.5, -2.0, 1.0])


class Buffers(nn.Module):
    n: torch.Tensor
    k: torch.Tensor
    low: torch.Tensor
    short: torch.Tensor

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())


def agree(program: Any, model: nn.Module, calls: Any) -> None:
    """The program's calls give the model's results, and leave its state."""
    for x in calls:
        with torch.no_grad():
            expected = model(x)
        found = program(x)
        several = isinstance(expected, tuple)
        for ours, theirs in zip(
            found if several else [found], expected if several else [expected], strict=True
        ):
            np.testing.assert_allclose(
                np.asarray(ours, np.float64), theirs.double(), rtol=1e-5, atol=1e-6
            )
    named = dict(model.named_buffers(remove_duplicate=False))
    for name, value in program.own_session.state.items():
        if name in named:
            np.testing.assert_allclose(
                np.asarray(value, np.float64), named[name].double(), rtol=1e-5, atol=1e-6
            )


class Branches(Buffers):
    """Changes other buffers, and views of them, in each of two branches."""

    def forward(self, x: torch.Tensor) -> Any:
        self.n.mul_(1.5)

        def up(x: torch.Tensor) -> torch.Tensor:
            self.n.add_(1)
            self.k[1].sub_(x)
            return x + self.n

        def down(x: torch.Tensor) -> torch.Tensor:
            def inner(x: torch.Tensor) -> torch.Tensor:
                self.k.add_(2)
                return x - 1

            return torch.cond(x[0] > -1, inner, lambda x: x * 3, (x,))

        y = torch.cond(x.sum() > 0, up, down, (x,))
        self.k[0].add_(self.n)
        return y, self.k * 1


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_branch_changes_buffers(target):
    model = Branches(n=torch.zeros(3), k=torch.zeros(2, 3))
    with torch.no_grad():
        program = girih.compile(copy.deepcopy(model), UP, target=target)
    agree(program, model, (UP, DOWN, 2 * DOWN, UP))


@pytest.mark.parametrize(
    "model",
    [nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())],
)
def test_a_saved_export_in_training(model, tmp_path):
    turns = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(copy.deepcopy(model).train(), (turns[0],))
    torch.export.save(exported, tmp_path / "x.pt2")
    for source in (tmp_path / "x.pt2", exported):
        agree(girih.compile(source), copy.deepcopy(model).train(), turns)


def test_in_place_arithmetic_computes_in_the_promoted_type():
    class Sum(Buffers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.low.add_(x)
            self.short.mul_(x)
            return self.low.float() + self.short.float()

    model = Sum(low=torch.zeros(3, dtype=torch.bfloat16), short=torch.ones(3).half())
    x = torch.tensor([-2.1788, 1.5410, 0.2934])
    agree(girih.compile(copy.deepcopy(model), x), model, [x] * 3)


def test_a_tensor_that_is_no_buffer_is_state_too():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n.add_(x)
            fresh = torch.tensor([1.0, 2.0, 3.0])
            fresh.mul_(2)
            return self.n * fresh

    program = girih.compile(Plain(), UP)
    assert program.signature.buffers == ("n",)
    agree(program, Plain(), [UP] * 3)

    count = torch.zeros(3)

    class Hidden(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count.add_(x)
            return count * 1

    with pytest.raises(UserError, match=r"f32\[3\] that is neither its buffer nor its attribute"):
        girih.compile(Hidden(), UP)


@pytest.mark.parametrize("written", ["n", "m"])
def test_buffers_in_the_memory_of_others(written):
    class Views(nn.Module):
        n: torch.Tensor
        m: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(2, 3))
            self.register_buffer("m", self.n[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            getattr(self, written).add_(x)
            return self.n + self.m

    with pytest.raises(UserError, match=f"changes its buffer '{written}', in whose memory"):
        girih.compile(Views(), UP)

    class Columns(nn.Module):
        n: torch.Tensor
        m: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            table = torch.zeros(2, 6)
            self.register_buffer("n", table[:, :3])
            self.register_buffer("m", table[:, 3:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n.add_(x)
            return self.m.sub_(self.n) * 1

    agree(girih.compile(Columns(), UP), Columns(), [UP] * 2)


@pytest.mark.filterwarnings("ignore:The tensor attribute self.last")
def test_attributes_that_a_model_changes_are_told():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.seen, self.last = 1, [0], None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k += 1
            self.seen.append(self.k)
            self.last = x + 1
            return x * self.k

    model = Counts()
    program = girih.compile(model, UP)
    told = sorted(note.split("'")[1] for note in program.plan.notes if "its attribute" in note)
    assert told == ["k", "last", "seen"]
    assert (model.k, model.seen, model.last) == (1, [0], None)
    with pytest.raises(UserError, match="attribute 'k', which is no buffer: every call begins"):
        girih.compile(model, UP, options=girih.Options(strict=True))


def test_what_pytorch_cannot_make_functional_is_one_sentence():
    """It raises errors of its own inside; the reason that girih has comes first."""
    from torch._higher_order_ops.while_loop import while_loop

    class Loops(Buffers):
        def forward(self, x: torch.Tensor) -> Any:
            def step(i: torch.Tensor, y: torch.Tensor) -> Any:
                return i + 1, y + self.n.add_(1)

            return while_loop(lambda i, y: i < 3, step, (torch.tensor(0), x))[1]

    with pytest.raises(UserError):
        girih.compile(Loops(n=torch.zeros(3)), UP)


def test_copies_of_a_session_and_values_that_are_no_state():
    class Counter(Buffers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return self.n.add_(x) * 1

    program = girih.compile(Counter(n=torch.zeros(3)), UP)
    session = program.session()
    session(UP)
    for twin in (copy.copy(session), copy.deepcopy(session)):
        twin(UP)
        assert session.state["n"].tolist() == (2 * UP).tolist()
        assert twin.state["n"].tolist() == (4 * UP).tolist()
    with pytest.raises(TypeError, match="a session is not pickled: save"):
        pickle.dumps(session)
    wrong: Any
    for wrong in (None, [1], "n", 3):
        with pytest.raises(UserError, match="state: expected values by name, got"):
            session.state = wrong
    for wrong in ([1], "n", 3):
        with pytest.raises(UserError, match="state: expected values by name, got"):
            program.stateless(UP, state=wrong)
    with pytest.raises(UserError, match="n: expected an array, got None; leave it out"):
        program.stateless(UP, state={"n": None})
    state: Any = None
    for turn in range(1, 4):
        found, state = program.stateless(UP, state=state)  # it names 'x', too, which is written
        assert found.tolist() == (2 * turn * UP).tolist() and "x" in state
    session.state = {"n": UP.clone().requires_grad_()}


def test_a_static_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    settings = model.generation_config
    settings.cache_implementation, settings.use_cache = "static", True
    settings.cache_config = {"batch_size": 1, "max_cache_len": 8}
    decoder = transformers.TorchExportableModuleWithStaticCache(
        model, batch_size=1, max_cache_len=8, device="cpu"
    )
    reference = copy.deepcopy(decoder)

    def turn(number: int) -> dict[str, Any]:
        return {
            "input_ids": torch.tensor([[number + 1]]),
            "cache_position": torch.tensor([number]),
        }

    program = girih.compile(decoder, **turn(0))
    assert program.signature.buffers == ("key_cache_0", "value_cache_0", "cumulative_length_0")
    for number in range(4):
        with torch.no_grad():
            expected = reference(**turn(number))
        np.testing.assert_allclose(program(**turn(number)), expected, rtol=1e-4, atol=1e-5)

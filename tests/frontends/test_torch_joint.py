"""Joint graphs of forward and backward: girih's own, and those that PyTorch makes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export.experimental import _export_forward_backward
from torch.nn import functional as F

import girih
from girih.frontends.torch.exported import array_of

OFF = girih.Options(cache="off")


def exported(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
    return torch.export.export(model, inputs, strict=False, **options)


def run(joint: Any, *inputs: torch.Tensor) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """What the interpreter makes of a joint graph: the results, and the gradients."""
    module = girih.import_model(joint)
    assert module.signature is not None
    given = [array_of(x.detach()) for x in inputs]
    return module.signature.unflatten(girih.interpret(module, given))


def slopes(model: nn.Module, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """PyTorch's gradients of the first result."""
    model.zero_grad()
    results = model(*inputs)
    (results if isinstance(results, torch.Tensor) else results[0]).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def agree(found: Any, wanted: dict[str, torch.Tensor], epsilon: float = 2**-23) -> None:
    """Within 16 units in the last place of the largest value."""
    assert found.keys() == wanted.keys()
    for name, slope in wanted.items():
        assert found[name].dtype == array_of(slope).dtype
        off = np.abs(found[name].astype(np.float64) - slope.double().numpy()).max()
        assert off <= 16 * epsilon * float(slope.abs().max()), name


class Tied(nn.Module):
    """An embedding that is the last layer's weight as well, and a parameter without use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.last = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.last.weight = self.table.weight
        self.norm, self.unused = nn.LayerNorm(4), nn.Linear(2, 2)

    def forward(self, ids: torch.Tensor, goals: torch.Tensor) -> Any:
        scores = self.last(self.norm(F.gelu(self.table(ids))))
        return F.cross_entropy(scores, goals), scores


IDS, GOALS = torch.tensor([1, 4, 4, 0, 6]), torch.tensor([2, 3, 0, 6, 1])


def test_tied_weights_have_one_gradient_and_unused_ones_none() -> None:
    """As well where the joint graph is read from a file."""
    model, file = Tied(), io.BytesIO()
    torch.export.save(girih.joint_graph(exported(model, IDS, GOALS)), file)
    (loss, scores), found = run(file.getvalue(), IDS, GOALS)
    wanted = model(IDS, GOALS)
    np.testing.assert_allclose(loss, wanted[0].item(), rtol=1e-6)
    np.testing.assert_allclose(scores, wanted[1].detach().numpy(), atol=1e-6)
    assert set(found) == {"table.weight", "norm.weight", "norm.bias"}
    agree(found, slopes(model, IDS, GOALS))


def test_what_a_backward_function_computes_has_the_line_of_its_operation() -> None:
    joint = girih.joint_graph(exported(Tied(), IDS, GOALS))
    module = girih.import_model(joint)
    own = [op for op in module.main.body.ops if op.name not in ("constant", "weight")]
    assert own
    assert not [op for op in own if not any(o.file == __file__ for o in op.origin)]
    (backward,) = [n for n in joint.graph.nodes if "layer_norm_backward" in str(n.target)]
    (forward,) = [n for n in joint.graph.nodes if "native_layer_norm.default" in str(n.target)]
    for field in ("stack_trace", "nn_module_stack"):
        assert backward.meta[field] == forward.meta[field]


def test_a_joint_graph_without_lines_says_how_to_keep_them() -> None:
    model = nn.Linear(2, 1)
    made = _export_forward_backward(exported(model, torch.ones(1, 2)))
    module = girih.import_model(made)
    assert ["girih.joint_graph" in note for note in module.notes] == [True]
    assert not [o for op in module.main.body.ops for o in op.origin if o.file]


@torch.library.custom_op("girih_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("girih_tests::opaque_slope", mutates_args=())
def opaque_slope(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


opaque.register_fake(torch.empty_like)
opaque_slope.register_fake(torch.empty_like)
opaque.register_autograd(lambda context, slope: opaque_slope(slope))


def test_a_blocker_of_the_backward_pass_names_the_users_line() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return opaque(self.layer(x)).sum()

    joint = girih.joint_graph(exported(Model(), torch.ones(3, 2)))
    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(joint)
    blockers = [b for b in caught.value.blockers if b.operation.endswith("opaque_slope.default")]
    line = Model.forward.__code__.co_firstlineno + 1
    assert [b.place for b in blockers] == [f"{__file__}:{line}"]


class Normed(nn.Module):
    """Statistics that are state, an input with a gradient, writes in place, no grad."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.register_buffer("calls", torch.zeros(3))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x)).clone()
        y.mul_(2)
        with torch.no_grad():
            self.calls.add_(y.square().mean((0, 2, 3)))
            scale = y.abs().amax()
        return (torch.relu(y) / scale - goal).square().mean()


def test_statistics_are_state_and_inputs_have_gradients() -> None:
    torch.manual_seed(5)
    model, x, goal = Normed(), torch.randn(2, 2, 4, 4), torch.randn(2, 3, 2, 2)
    wanted_of = x.clone().requires_grad_()
    joint = girih.joint_graph(exported(model, wanted_of, goal))
    module = girih.import_model(joint)
    assert module.signature is not None
    given = [array_of(x), array_of(goal), *(array_of(b.clone()) for b in model.buffers())]
    results = girih.interpret(module, given)
    (_, found), state = module.signature.unflatten(results), module.signature.states(results)
    wanted = slopes(model, wanted_of, goal)
    assert wanted_of.grad is not None
    bias = wanted.pop("layer.bias")  # in front of a norm: zero but for roundings
    assert np.abs(found.pop("layer.bias") - bias.numpy()).max() < 1e-6
    agree(found, {**wanted, "x": wanted_of.grad})
    for name, buffer in model.named_buffers():
        np.testing.assert_allclose(state[name], buffer.numpy(), rtol=1e-5, atol=1e-7)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layer = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        parts = self.layer(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        result = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        return (result.transpose(1, 2).reshape(2, 5, 8) - goal).square().mean()


@pytest.mark.parametrize("make", [girih.joint_graph, _export_forward_backward])
def test_gradients_of_attention(make: Any) -> None:
    """PyTorch's own joint graphs give the backward operator shares instead of sums."""
    torch.manual_seed(7)
    model, mask = Attention(), torch.zeros(2, 1, 5, 5)
    mask[1, :, :, 3:] = -np.inf
    inputs = torch.randn(2, 5, 8), mask, torch.randn(2, 5, 8)
    _, found = run(make(exported(model, *inputs)), *inputs)
    agree(found, slopes(model, *inputs))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layer = nn.LSTM(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][-1].square().sum()


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0, lambda v: self.layer(v).sin(), lambda v: self.layer(v).cos(), (x,)
        ).sum()


@pytest.mark.parametrize("make", [Recurrent, Chosen])
def test_gradients_of(make: Any) -> None:
    model, x = make(), torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1))
    _, found = run(girih.joint_graph(exported(model, x)), x)
    agree(found, slopes(model, x))


def test_the_gradient_of_dropout_drops_the_same() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(1.0, 65.0))

        def forward(self, x: torch.Tensor) -> Any:
            kept = F.dropout(x * self.weight, 0.5)
            return kept.sum(), kept.detach()

    x = torch.ones(64)
    program = girih.compile(girih.joint_graph(exported(Model(), x)), options=OFF)
    (_, kept), found = program(array_of(x))
    assert 10 < np.count_nonzero(kept) < 54
    np.testing.assert_allclose(found["weight"], kept / np.arange(1, 65), rtol=1e-6)


def test_open_sizes_stay_open() -> None:
    auto = torch.export.Dim.AUTO
    model, x = Recurrent(), torch.randn(2, 3, 3)
    joint = girih.joint_graph(exported(model, x, dynamic_shapes=({1: auto},)))
    other = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(2))
    agree(run(joint, other)[1], slopes(model, other))


def test_grouped_products_have_gradients() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(10)
            self.weight = nn.Parameter(torch.randn(3, 8, 8).bfloat16())

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._grouped_mm(x, self.weight, ends).float().square().mean()

    model = Model()
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
    ends = torch.tensor([2, 2, 8], dtype=torch.int32)
    x.requires_grad_()
    _, found = run(girih.joint_graph(exported(model, x, ends)), x, ends)
    wanted = slopes(model, x, ends)
    assert x.grad is not None
    agree(found, {**wanted, "x": x.grad}, 2**-8)


class Results(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), x.sum(), self.layer(x).sum()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (0, r"result 0 is no loss, a float of rank 0, but \[3, 2\]"),
        (1, "result 1 depends on no parameter that requires gradients"),
        (3, "no result 3; the export has 3"),
    ],
)
def test_losses_that_are_none(loss: int, said: str) -> None:
    with pytest.raises(girih.UserError, match=said):
        girih.joint_graph(exported(Results(), torch.ones(3, 2)), loss=loss)


def test_sources_that_are_none() -> None:
    with pytest.raises(girih.UserError, match=r"a Linear is no torch.export.ExportedProgram"):
        girih.joint_graph(nn.Linear(2, 2))
    joint = girih.joint_graph(exported(Results(), torch.ones(3, 2)), loss=2)
    with pytest.raises(girih.UserError, match="the export is a joint graph already"):
        girih.joint_graph(joint)

"""torch.compile(backend="girih"): inference, changed weights, sizes, training, what falls back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from girih.call_sizes import GirihWarning
from girih.dynamo import _FunctionalGraph
from girih.hlo.errors import UnsupportedError, UserError

STRICT = {"fallback": False, "cache": "off"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test starts without graphs of others."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, in order."""
    programs: list[Any] = []
    plain = _FunctionalGraph.made

    def made(self: Any, *args: Any) -> Any:
        programs.append(plain(self, *args))
        return programs[-1]

    monkeypatch.setattr(_FunctionalGraph, "made", made)
    return programs


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="girih", options={**STRICT, **options})


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


def test_the_entry_point_is_known() -> None:
    assert "girih" in torch._dynamo.list_backends()


def test_inference_takes_parameters_as_weights(made: list[Any]) -> None:
    model, x = perceptron(), torch.randn(3, 16)
    quick = compiled(model)
    with torch.no_grad():
        close(quick(x), model(x))
        close(quick(x * 2), model(x * 2))
    (program,) = made
    assert len(program.given) == 1 and len(program.frozen) == 6


@pytest.mark.parametrize("freeze", [True, False])
def test_changed_parameters_are_seen(made: list[Any], freeze: bool) -> None:
    model, x = perceptron(), torch.randn(3, 16)
    quick = compiled(model, freeze=freeze)
    with torch.no_grad():
        close(quick(x), model(x))
        for _ in range(2):
            model[0].weight.mul_(0.5)  # type: ignore[union-attr, operator]
            close(quick(x), model(x))
    assert len(made) == (2 if freeze else 1)
    assert not made[-1].frozen


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_are_compiled_once(made: list[Any], dynamic: bool | None) -> None:
    model = perceptron()
    quick = torch.compile(model, backend="girih", dynamic=dynamic, options=STRICT)
    with torch.no_grad():
        for rows in (3, 4, 5, 4, 300):
            x = torch.randn(rows, 16)
            close(quick(x), model(x))
        open_ones = [program for program in made if program.chosen.ranges]
        assert len(open_ones) == 1 and len(made) == (1 if dynamic else 2)
        for rows in (600, 7, 2000):  # more than was planned for, once
            x = torch.randn(rows, 16)
            close(quick(x), model(x))
    assert len(made) == (2 if dynamic else 3)
    assert [program.chosen.ranges["n0"].last for program in made[-2:]] == [512, 4096]


def test_sizes_are_compiled_once_in_training(made: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    twin = copy.deepcopy(model)
    quick = torch.compile(model, backend="girih", dynamic=True, options=STRICT)
    for rows in (5, 9, 4):
        x = torch.randn(rows, 6)
        for net, one in ((model, quick), (twin, twin)):
            net.zero_grad()
            one(x).square().mean().backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            close(ours.grad, theirs.grad)
    assert len(made) == 2  # forward and backward


def test_sizes_that_are_integers_alone(made: list[Any]) -> None:
    def repeated(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.expand(count, 3).cumsum(1) + x.new_ones(count, 3)

    quick = torch.compile(repeated, backend="girih", options=STRICT)
    x = torch.randn(3)
    for count in (4, 6, 9, 2):
        close(quick(x, count), repeated(x, count))
    assert len(made) == 2


@pytest.fixture
def no_open_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler refuses sizes that calls decide."""
    import girih.compiler

    plain = girih.compiler.compile

    def compile(module: Any, **options: Any) -> Any:
        if module.symbols:
            raise UnsupportedError("nothing here takes open sizes")
        return plain(module, **options)

    monkeypatch.setattr("girih.dynamo.compile", compile)


def test_a_compilation_for_each_size_is_told(no_open_code: None, made: list[Any]) -> None:
    model = perceptron()
    options = {"sizes": 2, "cache": "off"}
    quick = torch.compile(model, backend="girih", dynamic=True, options=options)
    with torch.no_grad():
        with pytest.warns(GirihWarning, match="each size .* on its own: nothing here"):
            quick(torch.randn(3, 16))
        for rows in (4, 3, 4):
            x = torch.randn(rows, 16)
            close(quick(x), model(x))
        assert len(made) == 2
        x = torch.randn(5, 16)
        with pytest.warns(GirihWarning, match="more than 2 combinations of sizes"):
            close(quick(x), model(x))
    torch._dynamo.reset()
    strict = torch.compile(model, backend="girih", dynamic=True, options={**STRICT, "strict": True})
    with torch.no_grad(), pytest.raises(Exception, match="nothing here takes open sizes"):
        strict(torch.randn(3, 16))


def test_training_gives_the_same_losses(made: list[Any]) -> None:
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(),
                          nn.Linear(48, 1))  # fmt: skip
    other = copy.deepcopy(model)
    x, y = torch.randn(12, 3, 8), torch.randn(12, 1)
    losses: list[list[float]] = [[], []]
    for net, called, found in ((model, compiled(model), losses[0]), (other, other, losses[1])):
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((called(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    close(torch.tensor(losses[0]), torch.tensor(losses[1]))
    close(model[1].running_var, other[1].running_var)
    assert len(made) == 2  # forward and backward, once each


def test_graph_breaks_and_python_between() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            if y.sum() > 0:
                return y * 2
            return y.softmax(-1)

    model = Broken()
    quick = compiled(model)
    with torch.no_grad():
        for x in (torch.ones(4), -torch.ones(4)):
            close(quick(x), model(x))


def test_inputs_that_are_changed_and_views() -> None:
    def change(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return x[:, ::2], (y.T * 2).contiguous(), y.sum(1).to(torch.bfloat16), y.T

    x, y = torch.randn(3, 4), torch.randn(3, 5)
    twins = x.clone(), y.clone()
    for ours, theirs in zip(compiled(change)(x, y), change(*twins), strict=True):
        assert ours.stride() == theirs.stride()
        close(ours, theirs, 1e-2)
    close(x, twins[0])


class Cache(nn.Module):
    """Writes rows of a buffer and of an argument, and reads the buffer."""

    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))

    def forward(self, at: torch.Tensor, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at, x)
        other.index_add_(0, at, x)
        return self.rows.sum(0)


def test_what_a_graph_changes_is_overwritten_where_it_lies(made: list[Any]) -> None:
    model, twin = Cache(), Cache()
    quick, other = compiled(model), torch.ones(4, 8).T  # its memory is not row-major
    theirs, place = other.clone(), model.rows.data_ptr()
    with torch.no_grad():
        for number in range(3):
            at, x = torch.tensor([number, 7 - number]), torch.randn(2, 4)
            close(quick(at, x, other), twin(at, x, theirs))
            close(other, theirs)
            close(model.rows, twin.rows)
    assert model.rows.data_ptr() == place and model.rows._version >= 3
    assert made[0].run.memory.replaced_bytes == 2 * 8 * 4 * 4


def test_results_have_pytorchs_memory_order() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        ours, theirs = compiled(model)(x), model(x)
    assert ours.stride() == theirs.stride()
    close(ours, theirs)


def test_what_girih_cannot_do_runs_in_pytorch_with_a_warning() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ops.aten._standard_gamma(torch.ones(3))

    with pytest.warns(GirihWarning, match=r"(?s)runs in PyTorch: .*aten\._standard_gamma"):
        assert torch.compile(noisy, backend="girih")(torch.zeros(3)).shape == (3,)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"aten\._standard_gamma"):
        compiled(noisy)(torch.zeros(3))


def test_what_girih_cannot_do_at_any_size_is_tried_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []
    plain = _FunctionalGraph.made
    monkeypatch.setattr(_FunctionalGraph, "made", lambda *args: tried.append(args) or plain(*args))
    options: dict[str, Any] = {"sizes": 2}

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ops.aten._standard_gamma(torch.ones(3))

    quick = torch.compile(noisy, backend="girih", dynamic=True, options=options)
    with pytest.warns(GirihWarning, match="girih: "):
        for rows in (4, 5, 6, 7):
            assert quick(torch.zeros(rows, 3)).shape == (rows, 3)
    assert len(tried) == 3  # for all sizes, and for two of them


def test_nothing_is_told_where_nothing_falls_back() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", GirihWarning)
        torch.compile(perceptron(), backend="girih")(torch.randn(2, 16))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"speed": 3}, "no option 'speed'"), ({"numerics": "wild"}, "numerics must be one of")],
)
def test_wrong_options_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words) as caught:
        torch.compile(perceptron(), backend="girih", options=options)(torch.randn(2, 16))
    assert isinstance(caught.value, UserError) or "UserError" in str(caught.value)


# On a GPU, which nobody has here: where tensors are, what is compiled for it, and how it is called.


class FakeProgram:
    """What was asked of a program for a GPU; its results are those of the CPU's program."""

    def __init__(self, program: Any) -> None:
        self.program, self.device, self.given = program, -1, ()

    def with_device(self, number: int) -> FakeProgram:
        self.device = number
        return self

    def on_device(self, *given: Any) -> Any:
        self.given = given
        return self.program(*given)


def test_tensors_on_a_gpu_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import girih.compiler
    import girih.dynamo as dynamo

    real, asked, programs = girih.compiler.compile, [], []

    def compile(module: Any, target: str, options: Any) -> FakeProgram:
        asked.append(target)
        programs.append(FakeProgram(real(module, options=options)))
        return programs[-1]

    monkeypatch.setattr("girih.dynamo.compile", compile)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (8, number))
    monkeypatch.setattr(dynamo, "_gpu_of", lambda args: 6)
    taken: list[Any] = []
    monkeypatch.setattr(dynamo, "_taken", lambda a: taken.append(a) or torch.from_numpy(a))
    x = torch.randn(3, 4)
    found = compiled(lambda x: (x.T @ x).relu())(x.t().contiguous().t())
    close(found, (x.T @ x).relu())
    assert asked == ["nvidia:sm_86"] and programs[0].device == 6
    assert programs[0].given[0].is_contiguous() and len(taken) == 1


def test_where_tensors_are() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from girih.dynamo import _gpu_of

    with FakeTensorMode(allow_non_fake_inputs=True):
        near, far = torch.empty(3), torch.empty(3, device="cuda:2")
        other, scalar = torch.empty(3, device="cuda:1"), torch.empty(())
        assert _gpu_of([near, scalar, 4]) is None
        assert _gpu_of([far, scalar, 4]) == 2
        for tensors in ([far, other], [far, near]):
            with pytest.raises(UserError, match="several devices: .*cuda:2"):
                _gpu_of(tensors)
        with pytest.raises(UserError, match="on meta; girih compiles for CPUs and NVIDIA"):
            _gpu_of([torch.empty(3, device="meta")])

"""What a user is told where a PyTorch model cannot be exported or imported."""

from __future__ import annotations

from typing import Any

import pytest

import girih

torch = pytest.importorskip("torch")
X = torch.arange(12.0).reshape(3, 4)
INSIDES = ("u0", "FakeTensor", "SymInt", "GuardOnDataDependent", "Traceback", "torch._C")


class Branch(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Sliced(torch.nn.Module):
    def forward(self, x):
        return x[: int(x.sum().item())] * 2


class Mismatch(torch.nn.Module):
    def forward(self, x):
        return x @ x


class Holds(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.encoder = torch.nn.ModuleList([torch.nn.Identity(), inner])

    def forward(self, x):
        return self.encoder[1](x) + 1


@pytest.mark.parametrize("inner", [Branch, Sliced, Mismatch])
def test_exports_that_fail_name_line_and_module_and_no_insides(inner):
    with pytest.raises(girih.UserError, match="torch.export cannot export Holds") as caught:
        girih.import_model(Holds(inner()), X)
    message = str(caught.value)
    assert "test_torch_failures.py:" in message and "(encoder.1): " in message
    assert not [name for name in INSIDES if name in message]
    assert "\n" not in message


def test_blockers_name_operations_as_users_write_them():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.lu_factor(x[:, :3], pivot=False)[0], torch._standard_gamma(x)

    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(Holds(Model()).encoder[1], X)
    assert {blocker.operation: blocker.spelled for blocker in caught.value.blockers} == {
        "aten.linalg_lu_factor.default": "torch.linalg.lu_factor (aten.linalg_lu_factor.default)",
        "aten._standard_gamma.default": "aten._standard_gamma.default",
    }
    assert ": torch.linalg.lu_factor (aten.linalg_lu_factor.default): " in str(caught.value)


def test_profiles_name_the_module():
    model = Holds(torch.nn.Linear(4, 4)).eval()
    (kernel,) = girih.compile(model, X).profile(X.numpy()).kernels()
    assert kernel.origin.endswith("(encoder.1)")


class Tries(torch.nn.Module):
    def forward(self, x):
        try:
            return x.view(7)
        except RuntimeError:
            return x


class ToNumpy(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class Loss(torch.nn.Module):
    def forward(self, x):
        scores, ones = x[:, None].log_softmax(-1), torch.tensor([[1, 2]])
        return torch.nn.functional.ctc_loss(scores, ones, torch.tensor([3]), torch.tensor([2]))


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (Tries, "PyTorch cannot make the export of Holds functional: shape '.7.' is invalid"),
        (ToNumpy, "it takes a tensor to numpy"),
        (Loss, "PyTorch cannot trace torch.nn.functional.ctc_loss"),
    ],
)
def test_failures_of_pytorch_are_one_sentence(inner, said):
    with pytest.raises(girih.UserError, match=said) as caught:
        girih.import_model(Holds(inner()), X)
    assert "test_torch_failures.py:" in str(caught.value) and "\n" not in str(caught.value)


def test_a_size_that_depends_on_values_has_no_name_of_pytorchs():
    class Model(torch.nn.Module):
        def forward(self, x):
            counts = torch.bincount(x.flatten().long())
            more = counts[0].item()
            torch._check(more >= 0)
            return counts.float(), torch.nn.functional.pad(x, (0, more))

    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(Model(), X)
    message = str(caught.value)
    assert "pad (" in message
    assert "u0" not in message and "<" not in message
    assert "needs a size at compile time that the program computes" in message


def test_graphs_that_pytorch_prints_are_left_out(capfd):
    class Model(torch.nn.Module):
        def forward(self, x):
            import sys

            print("here", file=sys.stderr)
            return x if x.sum() > 0 else -x

    with pytest.raises(girih.UserError, match="decides by a value"):
        girih.import_model(Model(), X)
    said = capfd.readouterr().err
    assert "here" in said and "def forward" not in said


def test_a_kernel_that_cannot_be_read_names_the_line_that_calls_it():
    scope: dict[str, Any] = {}
    exec("def twice(a, out):\n    out[:] = a[:] * 2", scope)
    twice = girih.kernel(out=lambda a: a, grid=1)(scope["twice"])

    class Model(torch.nn.Module):
        def forward(self, x):
            return twice(x)

    with pytest.raises(girih.UserError, match="its source is not at hand") as caught:
        girih.import_model(Holds(Model()), X)
    assert "test_torch_failures.py:" in str(caught.value).partition("torch.export")[0]

"""What a user is told where a PyTorch model cannot be exported or imported."""

from __future__ import annotations

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
            return torch.linalg.eig(x[:, :3]).eigenvalues, torch.nonzero(x)

    with pytest.raises(girih.ImportBlockers) as caught:
        girih.import_model(Holds(Model()).encoder[1], X)
    assert {blocker.operation: blocker.spelled for blocker in caught.value.blockers} == {
        "aten.linalg_eig.default": "torch.linalg.eig (aten.linalg_eig.default)",
        "aten.nonzero.default": "torch.nonzero (aten.nonzero.default)",
    }
    assert ": torch.linalg.eig (aten.linalg_eig.default): " in str(caught.value)


def test_profiles_name_the_module():
    model = Holds(torch.nn.Linear(4, 4)).eval()
    (kernel,) = girih.compile(model, X).profile(X.numpy()).kernels()
    assert kernel.origin.endswith("(encoder.1)")

"""The reader of `.pt2` archives: without torch, without copies, and safe on damaged files."""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import girih
from girih.frontends.torch.archive import read_archive
from girih.frontends.torch.importing import import_torch
from girih.frontends.torch.sizes import Unreadable, parse_size
from girih.hlo.errors import UserError
from girih.hlo.symbols import SymbolicDim, ceildiv, maximum


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.wide = nn.Parameter(torch.arange(24.0).reshape(4, 6))
        self.part = nn.Parameter(self.wide.detach()[1:3, ::2])  # a strided view of one storage

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum() + self.part * self.wide.sum()


@pytest.fixture(scope="module")
def archive() -> bytes:
    torch.manual_seed(0)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Small().eval(), (torch.ones(2, 4),)), file)
    return file.getvalue()


def rewritten(archive: bytes, change: Any) -> bytes:
    """The archive with `change(name, data)` in place of each member; None drops it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return out.getvalue()


def test_weights_are_views_into_the_file(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small.pt2"
    path.write_bytes(archive)
    tensors = read_archive(path).tensors
    np.testing.assert_array_equal(tensors["part"].array, Small().part.detach().numpy())
    base: Any = tensors["wide"].array
    while getattr(base, "base", None) is not None:
        base = base.base
    assert isinstance(base, mmap.mmap)
    assert not tensors["wide"].array.flags.writeable


def test_bytes_and_path_say_the_same(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(archive)
    assert str(import_torch(path)) == str(import_torch(archive))


def test_reading_needs_no_torch(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small.pt2"
    path.write_bytes(archive)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from girih.frontends.torch.importing import import_torch\n"
        f"module = import_torch({str(path)!r})\n"
        "print(len(module.weights), *[n for n in sys.modules if n.startswith('torch.')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["4"]


class Everything(nn.Module):
    """Tied weights, a buffer that is not saved, a constant, and a size that stays open."""

    frequencies: torch.Tensor

    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 6), persistent=False)
        self.register_buffer("offset", torch.full((1,), 0.5))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens) * self.frequencies + torch.tensor([1.0, -1.0] * 3)
        hidden = torch.where(mask[..., None], hidden, torch.zeros(())) + self.offset
        return self.head(hidden[:, 1:]).reshape(tokens.shape[0], -1)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_whole_model_runs_where_torch_cannot_be_imported(
    decomposed: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Everything().eval()
    batch, length = torch.export.Dim("batch", max=16), torch.export.Dim("length", min=3, max=64)
    sizes = {"tokens": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    inputs = torch.randint(0, 11, (2, 5)), torch.rand(2, 5) > 0.4
    exported = torch.export.export(model, inputs, dynamic_shapes=sizes, strict=False)
    if decomposed:
        exported = exported.run_decompositions()
    torch.export.save(exported, tmp_path / "model.pt2")
    given = torch.randint(0, 11, (3, 4)), torch.rand(3, 4) > 0.4
    np.savez(tmp_path / "inputs.npz", *(x.numpy() for x in given))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, girih\n"
        f"inputs = list(np.load({str(tmp_path / 'inputs.npz')!r}).values())\n"
        f"program = girih.compile({str(tmp_path / 'model.pt2')!r}, *inputs)\n"
        f"np.save({str(tmp_path / 'result.npy')!r}, program(*inputs))\n"
        "weights = program.module.weights.values()\n"
        "print(*sorted(name for w in weights for name in (w.name, *w.aliases)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"head.weight", "table.weight"} <= set(run.stdout.split())
    expected = model(*given).detach().numpy()
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("minor", [8, 14, 99])
def test_minor_versions_of_the_format_are_read(archive: bytes, minor: int) -> None:
    """Minor versions add fields: what is missing has a default, what is new is not read."""

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        said = json.loads(data)
        said["schema_version"]["minor"] = minor
        said["something_new"] = {"of": [1]}
        for field in ("verifiers", "torch_version", "guards_code"):
            said.pop(field, None)
        for node in said["graph_module"]["graph"]["nodes"]:
            node["something_new"] = None
        return json.dumps(said).encode()

    module = import_torch(rewritten(archive, change))
    assert str(module).split("\n")[1:] == str(import_torch(archive)).split("\n")[1:]


def test_another_major_version_is_refused(archive: bytes) -> None:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        said = json.loads(data)
        said["schema_version"]["major"] = 9
        return json.dumps(said).encode()

    with pytest.raises(UserError, match=r"version 9\.\d+ of PyTorch's format"):
        import_torch(rewritten(archive, change))


def test_the_old_layout_is_refused_with_the_remedy() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(UserError, match="save it again with a newer PyTorch"):
        import_torch(out.getvalue())


def test_pickled_weights_are_refused_by_name(archive: bytes) -> None:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("model_weights_config.json"):
            return data
        said = json.loads(data)
        said["config"]["linear.bias"]["use_pickle"] = True
        return json.dumps(said).encode()

    with pytest.raises(UserError, match=r"linear\.bias"):
        import_torch(rewritten(archive, change))


def test_a_tensor_outside_its_storage_is_refused(archive: bytes) -> None:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("model_weights_config.json"):
            return data
        said = json.loads(data)
        said["config"]["wide"]["tensor_meta"]["sizes"][0]["as_int"] = 10**9
        return json.dumps(said).encode()

    with pytest.raises(UserError, match="shorter than its tensor"):
        import_torch(rewritten(archive, change))


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip at all", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_archive_is_one_sentence(data: bytes) -> None:
    with pytest.raises(UserError, match=r"is damaged or no \.pt2 archive"):
        import_torch(data)


def test_damaged_archives_give_user_errors_only(archive: bytes) -> None:
    generator = random.Random(0)
    for _ in range(150):
        data = bytearray(archive)
        for _ in range(generator.randint(1, 8)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        if generator.random() < 0.3:
            data = data[: generator.randrange(len(data))]
        with contextlib.suppress(UserError):
            import_torch(bytes(data))


def test_sizes_are_formulas_of_whole_numbers() -> None:
    one, two = SymbolicDim("s0"), SymbolicDim("s1")
    symbol, other = "Symbol('s0', positive=True, integer=True)", "Symbol('s1')"
    for text, size in (
        ("Integer(7)", 7),
        (f"Add(Mul(Integer(2), {symbol}), Integer(-1))", one * 2 - 1),
        (f"Mul({symbol}, {other})", one * two),
        (f"FloorDiv(Add({symbol}, Integer(-1)), Integer(2))", (one - 1) // 2),
        (f"PythonMod(Mul(Integer(-1), {symbol}), Integer(7))", -one % 7),
        (f"CeilToInt(IntTrueDiv({symbol}, Integer(3)))", ceildiv(one, 3)),
        (f"TruncToInt(Mul(Float('1.5', precision=53), ToFloat({symbol})))", 3 * one // 2),
        (f"Max(Integer(1), {symbol})", maximum(1, one)),
    ):
        assert parse_size(text) == size
    assert parse_size(f"FloorDiv({symbol}, Integer(2))", {"s0": 7}) == 3
    for text in (
        "1 +", f"Pow({symbol}, Integer(-1))", f"FloorDiv({symbol}, Integer(0))",
        f"TruncToInt(Mul(Float('0.3', precision=53), ToFloat({symbol})))", "log(Integer(3))",
    ):  # fmt: skip
        with pytest.raises(Unreadable):
            parse_size(text)


class Fit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.last(torch.tanh(self.first(x))) - y).square().mean()


@pytest.mark.parametrize("saved", [False, True], ids=["live", "saved"])
def test_a_joint_graph_gives_loss_and_gradients(saved: bool) -> None:
    """As a pair: what forward returns, and a dict of gradients by the names of parameters."""
    from torch.export.experimental import _export_forward_backward

    torch.manual_seed(1)
    model, inputs = Fit(), (torch.randn(3, 4), torch.randn(3, 2))
    joint: Any = _export_forward_backward(torch.export.export(model, inputs))
    if saved:
        file = io.BytesIO()
        torch.export.save(joint, file)
        joint = file.getvalue()
    arrays = [x.numpy() for x in inputs]
    loss, gradients = girih.compile(joint, options=girih.Options(cache="off"))(*arrays)
    wanted = model(*inputs)
    wanted.backward()
    np.testing.assert_allclose(loss, wanted.item(), rtol=1e-6)
    assert list(gradients) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-5, atol=1e-6)

"""Sizes that data decide, from PyTorch to a loaded program: what eager gives, at no, one, some and
all elements; interpreted and compiled, with the worst numbers behind each size."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import girih
from girih.cli import inspecting
from girih.runtime.bundle import Bundle
from girih.tests.optimizer.passes.test_mask_bounded import poisoned

torch = pytest.importorskip("torch")


def exported(function: Callable[..., Any], *inputs: Any) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return function(*arguments)

    return torch.export.export(Model(), inputs, strict=False)


def agree(found: Any, wanted: Any, exact: bool = True) -> None:
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = found if isinstance(found, (tuple, list)) else (found,)
    for left, right in zip(found, wanted, strict=True):
        assert left.shape == tuple(right.shape)
        if exact:
            np.testing.assert_array_equal(left, right.numpy())
        else:
            np.testing.assert_allclose(left, right.numpy(), rtol=2e-5, atol=1e-5)


def compare(
    function: Callable[..., Any], calls: list[Any], exact: bool = True, **options: Any
) -> girih.Program:
    """The program of the first call's export, which agrees with eager in all calls."""
    module = girih.import_model(exported(function, *calls[0]))
    program = girih.compile(module, **options)
    for inputs in calls:
        arrays, wanted = [x.numpy() for x in inputs], function(*inputs)
        agree(program(*arrays), wanted, exact)
        agree(girih.interpret(module, arrays), wanted, exact)
    return program


def images() -> list[Any]:
    """With no, one, some and all elements above 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=generator)
    one = torch.zeros(5, 4)
    one[3, 2] = 0.5
    return [(x,), (torch.zeros(5, 4),), (one,), (x.abs() + 0.1,)]


def rows(x: Any) -> Any:
    return x[x.sum(1) > 0]


def found_places(x: Any) -> Any:
    places = torch.nonzero(x > 0)
    return (
        places,
        torch.argwhere(x > 0),
        *torch.where(x > 0),
        torch.masked_select(x, x > 0),
        x[x > 0],
        rows(x),
        x[:, x.sum(0) > 0],
        x[x.sum(1) > 0, 2],
        x[places[:, 0], places[:, 1]] * 2,
        torch.nonzero(x[0, 0]),
    )


def written(x: Any) -> Any:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask] * 2
    places = torch.nonzero(x.sum(1) > 0)[:, 0]
    z = torch.zeros(5, 4)
    z[places] = x[places]
    experts = torch.zeros_like(x)
    for k in range(2):
        own = torch.nonzero((x[:, 0] > 0).long() == k)[:, 0]
        experts = experts.index_add(0, own, x[own] * (k + 1))
    best = torch.argsort(x[mask], descending=True)[:3]
    return y, z, experts, torch.zeros(5, 4).masked_scatter(mask, x[mask] * 3), x[mask][best]


def test_what_is_written(monkeypatch):
    poisoned(monkeypatch)
    compare(written, images())


def test_what_is_found(monkeypatch):
    poisoned(monkeypatch)
    program = compare(found_places, images())
    assert [str(r).partition(": ")[2] for r in program.signature.results[:2]] == [
        "i64[u0,2]",
        "i64[u1,2]",
    ]


def different(x: Any) -> Any:
    return (
        *torch.unique(x, return_inverse=True, return_counts=True),
        *torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        torch.unique(x),
    )


def test_different_elements(monkeypatch):
    poisoned(monkeypatch)
    lines = ([3, 1, 3, 3, 0, 1, 1], [2] * 7, [6, 5, 4, 3, 2, 1, 0])
    compare(different, [(torch.tensor(line),) for line in lines])
    nan = float("nan")
    compare(different, [(torch.tensor([[1.0, nan], [-0.0, 0.0], [nan, 1.0]]),)])


def different_rows(x: Any) -> Any:
    return (
        *torch.unique(x, dim=0, return_inverse=True, return_counts=True),
        *torch.unique_consecutive(x, return_counts=True, dim=0),
        torch.unique(x, dim=1),
    )


def test_different_rows(monkeypatch):
    poisoned(monkeypatch)
    lines = ([[3, 1], [0, 2], [3, 1], [3, 0]], [[2, 2]] * 4, [[1, 2], [1, 2], [0, 2], [1, 2]])
    compare(different_rows, [(torch.tensor(line),) for line in lines])


def repeated(x: Any, counts: Any) -> Any:
    return (
        torch.repeat_interleave(x, counts, dim=0) + 1,
        torch.repeat_interleave(counts),
        torch.repeat_interleave(x, counts, dim=0, output_size=6),
    )


def test_repeated_elements(monkeypatch):
    poisoned(monkeypatch)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    calls = [(x, torch.tensor(n)) for n in ([1, 0, 3, 2, 0], [0, 6, 0, 0, 0], [0, 0, 0, 0, 6])]
    sizes = {"u0": (0, 6), "u1": (0, 6)}
    program = compare(repeated, calls, sizes=sizes)
    with pytest.raises(girih.UserError, match="repeats can not be negative"):
        program(x.numpy(), np.asarray([7, -1, 0, 0, 0]))
    with pytest.raises(girih.UserError, match="allocated size does not match"):
        program(x.numpy(), np.asarray([1, 1, 1, 1, 1]))
    module = girih.import_model(exported(repeated, *calls[0]))
    with pytest.raises(girih.UnsupportedError, match=r"size u0 has no bound; .* sizes=\{'u0': \("):
        girih.compile(module)


def parts(x: Any, n: Any) -> Any:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return (
        x[:count] * 2,
        x[5 - count :] * 3,
        x.narrow(0, 0, count),
        torch.zeros(count, 2) + count,
        torch.arange(count),
        torch.cat([x[:count], x[:1]]),
        (torch.arange(count) < x[:, :1]).view(1, 5, count),
        x[:, :1].expand(5, count),
    )


def test_parts_by_a_number_that_is_read():
    (x,) = images()[0]
    program = compare(parts, [(x, torch.tensor(n)) for n in (3, 0, 1, 5)])
    for n, text in ((6, "u0 <= 5"), (-1, "u0 >= 0")):
        with pytest.raises(girih.UserError, match=f"test_torch_data_sizes.*failed.*{text}"):
            program(x.numpy(), np.int64(n))


def test_parts_at_positions_that_are_data():
    (x,) = images()[0]
    positions = ([1, 3], [3, 1], [-2, 9], [0, 0], [-9, 5])
    compare(lambda x, at: torch.tensor_split(x, at), [(x, torch.tensor(at)) for at in positions])


def computed(x: Any) -> Any:
    y, z = rows(x), torch.masked_select(x, x > 0)
    places = torch.nonzero(x > 0)
    return (
        torch.sigmoid(y) * 3 - rows(x).exp(),
        torch.softmax(y, 0),
        torch.softmax(y, 1),
        y @ torch.ones(4, 6),
        y.T @ y,
        y @ y.T,
        (places.float() @ torch.ones(2, 3)).sum(0),
        y.sum(),
        y.amax(1),
        y.pow(2).mean(1),
        torch.nn.functional.layer_norm(y, (4,)),
        torch.cumsum(z, 0),
        torch.zeros(5).index_add(0, places[:, 0], x[places[:, 0], places[:, 1]]),
        z[:, None] - z[None, :],
        torch.bmm(y[:, None, :], y[:, :, None]),
        z * z.shape[0],
    )


def moved(x: Any) -> Any:
    y, z = rows(x), torch.masked_select(x, x > 0)
    return (
        torch.cat([y, x, rows(-x)]),
        torch.sort(z, descending=True).values,
        y.reshape(-1),
        y.reshape(-1, 2),
        y.T.reshape(-1),
        torch.flip(z, (0,)),
        y[:2],
        y[-1:],
        y[y[:, 0] > 0],
        y.unsqueeze(0).transpose(1, 2),
        torch.nn.functional.pad(y, (1, 1)),
        z[torch.argsort(z)],
    )


@pytest.mark.parametrize("function", [computed, moved])
def test_what_is_computed_of_them(function, monkeypatch):
    poisoned(monkeypatch)
    compare(function, images(), exact=function is moved)


def looped(x: Any) -> Any:
    y = rows(x)

    def one(i: Any, y: Any) -> Any:
        return i + 1, y * 2 + y.sum()

    def total(i: Any, s: Any) -> Any:
        return i + 1, s + y.sum(0)

    start = torch.tensor(0)
    both = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))
    return (
        torch._higher_order_ops.while_loop(lambda i, y: i < 3, one, (start, y))[1],
        torch._higher_order_ops.while_loop(
            lambda i, s: i < y.shape[0], total, (start, torch.zeros(4))
        )[1],
        both,
    )


def test_loops_and_branches_carry_them(monkeypatch):
    poisoned(monkeypatch)
    compare(looped, images(), exact=False)


def test_parts_of_what_a_call_sizes():
    def first(x: Any, n: Any) -> Any:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= x.shape[0])
        return x[:count] * 2, x[:count].sum(0)

    class Model(torch.nn.Module):
        def forward(self, x: Any, n: Any) -> Any:
            return first(x, n)

    sizes = {"x": {0: torch.export.Dim("rows", min=1, max=64)}, "n": None}
    inputs = torch.randn(5, 4), torch.tensor(2)
    module = girih.import_model(
        torch.export.export(Model(), inputs, dynamic_shapes=sizes, strict=False)
    )
    program = girih.compile(module)
    for rows_, n in ((5, 2), (9, 9), (2, 0)):
        x = torch.randn(rows_, 4)
        agree(program(x.numpy(), np.int64(n)), first(x, torch.tensor(n)), exact=False)
    declared = program.parts.signatures["main"]
    (bound,) = (one.bound for one in declared.measured if one.size)
    assert module.signature is not None
    assert bound == module.signature.arguments[0].dims[0]
    with pytest.raises(girih.UserError, match=r"Runtime assertion failed .* u0 <= s"):
        program(np.zeros((3, 4), np.float32), np.int64(4))


def test_a_users_bound_beside_what_a_call_sizes(monkeypatch):
    """Chosen elements of an open batch: the user's bound is one, and less is computed than without;
    one that no call reaches changes nothing."""
    poisoned(monkeypatch)

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.masked_select(x, x > 0) * 2, torch.nonzero(x > 0)

    calls = {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    module = girih.import_model(torch.export.export(Model(), (x,), dynamic_shapes=calls))
    free, bounded, never = (
        girih.compile(module, sizes=sizes)
        for sizes in ({}, {"u0": (0, 90), "u1": (0, 90)}, {"u0": (0, 2560), "u1": (0, 5000)})
    )
    for rows_ in (1, 3):
        agree(bounded(x[:rows_].numpy()), Model()(x[:rows_]))
    agree(never(x.numpy()), Model()(x))
    with pytest.raises(girih.UserError, match=r"the size u0 that data decide is not in 0\.\..*min"):
        bounded(x.numpy())
    agree(bounded(-x.abs().numpy()), Model()(-x.abs()))
    assert bounded.memory.output_bytes < free.memory.output_bytes / 20
    assert never.memory == free.memory


def test_an_archive_and_a_bundle_say_the_same(tmp_path):
    (x,) = images()[0]
    archive = io.BytesIO()
    torch.export.save(exported(parts, x, torch.tensor(2)), archive)
    girih.compile(archive.getvalue()).save(tmp_path / "parts.girih")
    program = girih.load(tmp_path / "parts.girih")
    rows_ = inspecting.describe(Bundle(tmp_path / "parts.girih"))["entries"]["main"]["results"]
    assert rows_[0] == ("output[0]", "f32[u0,4]", "data decide u0 <= 5")
    agree(program(x.numpy(), np.int64(4)), parts(x, torch.tensor(4)))
    agree(girih.interpret(program.module, [x.numpy(), np.int64(4)]), parts(x, torch.tensor(4)))
    with pytest.raises(girih.UserError, match="prepare: the program's data decide sizes"):
        program.prepare(x.numpy(), np.int64(4))
    results = [dict(r) for r in program.signature.to_json()["results"][:1]]
    assert results[0]["dims"] == ["u0", 4]
    assert {"size": "u0", "bound": 5} in program.signature.to_json()["measured"]


def test_a_prepared_call_checks_its_data():
    def whole(x: Any, n: Any) -> Any:
        count = n.item()
        torch._check(count > 2)
        return x * count

    (x,) = images()[0]
    program = girih.compile(exported(whole, x, torch.tensor(3)))
    number = np.asarray(3)
    call = program.prepare(x.numpy(), number)
    np.testing.assert_array_equal(call(), x.numpy() * 3)
    assert len(call.outputs) == 1
    number[...] = 2
    with pytest.raises(girih.UserError, match="failed .*2 < u0|failed .*u0 >= 3"):
        call()


def test_a_gpu_gives_the_same():
    (x,) = images()[0]
    program = compare(lambda x: rows(x) @ torch.ones(4, 2), images(), False, target="ptx-sim")
    found = program.on_device(x.numpy())
    agree(found.numpy(), rows(x) @ torch.ones(4, 2), exact=False)

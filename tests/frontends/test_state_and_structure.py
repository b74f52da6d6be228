"""Compiled models keep their state, take their example inputs and give what the framework gives."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import girih
from girih.hlo.errors import UserError


class Counter(nn.Module):
    """Changes a number, a window of a table, and gives the table's own new value."""

    n: torch.Tensor
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("table", torch.arange(8.0).reshape(4, 2))

    def forward(self, x: torch.Tensor) -> Any:
        self.n.add_(1)
        self.table[1:3] += x
        return self.table * self.n, self.table


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(3, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.line(x)))


def turns(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
@pytest.mark.parametrize("make", [Counter, lambda: Normalised().train()])
def test_state_advances_as_in_the_framework(make, target, tmp_path):
    model = make()
    inputs = turns(4, 2, 2) if isinstance(model, Counter) else turns(4, 6, 3)
    compiled = girih.compile(copy.deepcopy(model), inputs[0], target=target)
    compiled.save(tmp_path / "x.girih")
    family = "nvidia" if target == "ptx-sim" else target
    loaded = girih.load(tmp_path / "x.girih", target=family, simulate=family != target)
    for program in (compiled, loaded):
        reference, session = copy.deepcopy(model), program.session()
        for x in inputs:
            expected = reference(x)
            for found in (program(x), session(x)):
                assert type(found) is type(expected) or isinstance(found, np.ndarray)
                pairs = zip(leaves(found), leaves(expected), strict=True)
                for ours, theirs in pairs:
                    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        for name, value in session.state.items():
            theirs = dict(reference.named_buffers())[name].numpy()
            np.testing.assert_allclose(value, theirs, rtol=1e-5, atol=1e-5)


def leaves(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, (tuple, list)):
        return [leaf for child in tree for leaf in leaves(child)]
    return [tree.detach().numpy() if isinstance(tree, torch.Tensor) else np.asarray(tree)]


@pytest.fixture(scope="module")
def counter() -> Any:
    return girih.compile(Counter(), torch.ones(2, 2))


def test_sessions_are_independent(counter):
    x = np.ones((2, 2), np.float32)
    one, two = counter.session(), counter.session()
    assert one.memory == 4 + 32
    for _ in range(3):
        one(x)
    fork = one.fork()
    one(x)
    assert [float(s.state["n"]) for s in (one, two, fork)] == [4, 0, 3]
    one.reset()
    assert one.state["table"].tolist() == np.arange(8).reshape(4, 2).tolist()
    two.state = {"n": np.float32(7)}
    two(x)
    assert float(two.state["n"]) == 8
    with pytest.raises(UserError, match="m: the program has no such state; it has n, table"):
        two.state = {"m": x}
    with pytest.raises(UserError, match="table: expected float32"):
        two.state = {"n": np.float32(0), "table": x}
    assert float(two.state["n"]) == 8


def test_a_result_is_not_the_state(counter):
    session, x = counter.session(), np.ones((2, 2), np.float32)
    first = session(x)[1]
    before = first.copy()
    session(x)
    assert (first == before).all()
    first[...] = 100
    assert session.state["table"].max() < 100


def test_the_pure_form_changes_nothing(counter):
    x = np.ones((2, 2), np.float32)
    table = np.zeros((4, 2), np.float32)
    result, state = counter.stateless(x, state={"n": np.float32(4), "table": table})
    assert (float(state["n"]), table.max()) == (5, 0)
    np.testing.assert_array_equal(result[0], state["table"] * 5)
    again, state = counter.stateless(x, state=state)
    assert float(state["n"]) == 6
    assert float(counter.stateless(x)[1]["n"]) == 1
    with pytest.raises(UserError, match="m: the program has no such state; it has n, table"):
        counter.stateless(x, state={"m": x})


def test_a_call_that_fails_leaves_the_state(counter):
    session = counter.session()
    session(np.ones((2, 2), np.float32))
    before = session.state
    for wrong in (np.ones((2, 3), np.float32), np.ones((2, 2)), "x"):
        with pytest.raises(UserError):
            session(wrong)
    for name, value in session.state.items():
        np.testing.assert_array_equal(value, before[name])


class Cache(nn.Module):
    """Writes one line of a buffer, which the plan does in place."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(256, 64))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, place, x)
        return self.cache.sum(0)


def interrupted(program: Any) -> None:
    """The program's next call is interrupted when its work is done, but not yet its call."""
    device = program._device

    def run(*arguments: Any) -> Any:
        program._device = device
        device.run(*arguments)
        raise KeyboardInterrupt

    program._device = device._replace(run=run)


def test_an_interrupted_call_leaves_the_state():
    place, x = torch.tensor([3]), torch.ones(1, 64)
    program = girih.compile(Cache(), x, place)
    session = program.session()
    assert program.overwrites_state and program.undoes
    session(x, place)
    interrupted(program)
    with pytest.raises(KeyboardInterrupt):
        session(2 * x, place)
    assert session.fork().state["cache"].sum() == session.state["cache"].sum() == 64
    interrupted(program)
    with pytest.raises(KeyboardInterrupt):
        session(2 * x, torch.tensor([4]))
    session.state = {"cache": np.ones((256, 64), np.float32)}
    assert session(x, place)[0] == 256
    interrupted(program)
    with pytest.raises(KeyboardInterrupt):
        program(x, place)
    assert program(x, torch.tensor([7]))[0] == 1


def test_an_interrupted_call_leaves_state_that_takes_new_memory():
    class Power(nn.Module):
        power: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("power", torch.eye(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.power.copy_(self.power @ x)  # a product is not computed over its factor
            return self.power.sum()

    x = turns(1, 4, 4)[0]
    program = girih.compile(Power(), x)
    assert not program.overwrites_state
    session = program.session()
    interrupted(program)
    with pytest.raises(KeyboardInterrupt):
        session(x)
    assert session.state["power"].tolist() == np.eye(4).tolist()
    np.testing.assert_allclose(session(x), x.sum(), rtol=1e-5)


def test_threads_find_one_own_session(monkeypatch):
    program = girih.compile(Counter(), torch.ones(2, 2))
    make, meet = program.session, threading.Barrier(2, timeout=1)

    def slowly() -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait()  # both threads are here only where each makes a session
        return make()

    monkeypatch.setattr(program, "session", slowly)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(program.own_session)) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


def test_a_session_is_one_threads_at_a_time(counter, monkeypatch):
    session, inside, leave = counter.session(), threading.Event(), threading.Event()
    advance = counter.advance

    def slowly(*arguments: Any) -> Any:
        inside.set()
        leave.wait()
        return advance(*arguments)

    monkeypatch.setattr(counter, "advance", slowly)
    x = np.ones((2, 2), np.float32)
    thread = threading.Thread(target=session, args=(x,))
    thread.start()
    inside.wait()
    for use in (lambda: session(x), lambda: session.state, session.reset, session.fork):
        with pytest.raises(UserError, match="used in another thread; make one for each"):
            use()
    leave.set()
    thread.join()
    assert float(session.state["n"]) == 1


def test_what_cannot_be_with_state(counter):
    with pytest.raises(UserError, match="prepare: the program keeps state"):
        counter.prepare(np.ones((2, 2), np.float32))
    checked = counter.with_checks([np.ones((2, 2), np.float32)])
    assert [error for error, _ in checked.run_checks()] == [0.0]
    profile = counter.profile(np.ones((2, 2), np.float32))
    assert float(profile.state["n"]) == 1


def test_large_state_is_overwritten_in_place():
    place = torch.tensor([3])
    program = girih.compile(Cache(), torch.ones(1, 64), place)
    session = program.session()
    session(torch.ones(1, 64), place)
    (before,) = session._buffers.values()
    assert session(torch.ones(1, 64), torch.tensor([5]))[0] == 2
    (after,) = session._buffers.values()
    assert after.ctypes.data == before.ctypes.data


@pytest.mark.parametrize("registered", [True, False])
def test_a_second_name_of_a_buffer(registered):
    class Twice(nn.Module):
        n: torch.Tensor
        m: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(2))
            if registered:
                self.register_buffer("m", self.n)
            else:
                self.m = self.n

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n.add_(x)
            return self.m * 1

    if registered:
        program = girih.compile(Twice(), torch.ones(2))
        assert [program(torch.ones(2)).tolist() for _ in "ab"] == [[1, 1], [2, 2]]
    else:
        with pytest.raises(UserError, match="its buffer 'n', and reads it through another attr"):
            girih.compile(Twice(), torch.ones(2))


def test_an_input_that_is_written_is_told():
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 2

    program = girih.compile(Writes(), torch.ones(3))
    assert any("the model writes its input 'x'" in note for note in program.plan.notes)
    x = np.ones(3, np.float32)
    assert program(x).tolist() == [4, 4, 4] and x.tolist() == [1, 1, 1]
    assert program.stateless(x)[1]["x"].tolist() == [2, 2, 2]


# Inputs.


@pytest.mark.parametrize(
    ("function", "inputs", "copies"),
    [
        (lambda x: x + 1, (np.ones(3),), 1),
        (lambda x: x + 1, (np.arange(3),), 1),
        (lambda x, y: x * y, (np.float64(2), np.int64(3)), 2),
        (lambda x, y: x * y, (2.0, 3), 0),
        (lambda x: x[0] + x[1]["a"], ([1.0, {"a": np.ones(2, np.float32)}],), 0),
        (lambda b, x: jnp.where(b, x, 0), (True, np.ones(2, np.float32)), 0),
        (lambda x: x * 2, (jnp.ones(2, jnp.bfloat16),), 0),
    ],
)
def test_jax_examples_are_accepted(function, inputs, copies):
    program = girih.compile(function, *inputs)
    expected = np.asarray(function(*inputs))
    found = program(*inputs)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=1e-6
    )
    assert program.copies == copies
    said = [note for note in program.plan.notes if "are converted at each call" in note]
    assert len(said) == copies


@pytest.mark.parametrize(
    ("function", "inputs", "keywords"),
    [
        (jax.jit(lambda x, n: x * n, static_argnums=1), (np.ones(3), 4), {}),
        (jax.jit(lambda n, x: x * n, static_argnums=0), (4, np.arange(3)), {}),
        (jax.jit(lambda x, *, n, y: x * n + y, static_argnames="n"), (np.ones(3),),
         {"n": 2, "y": np.ones(3)}),
    ],
)  # fmt: skip
def test_examples_beside_static_arguments_are_accepted(function, inputs, keywords):
    program = girih.compile(function, *inputs, **keywords)
    dynamic = [x for x in inputs if not isinstance(x, int)]
    named = {name: x for name, x in keywords.items() if not isinstance(x, int)}
    found = program(*dynamic, **named)
    np.testing.assert_allclose(found, function(*inputs, **keywords), rtol=1e-6)
    assert program.copies == len(dynamic) + len(named)


def test_a_variadic_function_with_static_arguments_takes_what_it_declares():
    function = jax.jit(lambda *x: x[0] * x[1] + x[2], static_argnums=1)
    program = girih.compile(function, np.ones(3), 4, np.ones(3))
    one = np.ones(3, np.float32)
    assert program(one, one).tolist() == [5, 5, 5]


def test_what_a_prepared_call_would_convert_is_refused():
    program = girih.compile(lambda x: x + 1, np.ones(3))
    remedy = r"pass numpy.ascontiguousarray\(x, 'float32'\)"
    with pytest.raises(UserError, match=f"x: .*would be copied.*{remedy}"):
        program.prepare(np.ones(3))
    assert program.prepare(np.ascontiguousarray(np.ones(3), "float32"))().tolist() == [2, 2, 2]


def test_conversions_are_checked_and_refused():
    program = girih.compile(lambda x: x + 1, np.arange(3))
    with pytest.raises(UserError, match="x: .*int64 holds a number that does not fit"):
        program(np.array([0, 1, 2**40]))
    with pytest.raises(UserError, match="got float64"):
        program(np.ones(3))
    with pytest.raises(UserError, match="strict: .*which JAX takes as f32"):
        girih.compile(lambda x: x + 1, np.ones(3), options=girih.Options(strict=True))


def test_random_keys_of_jax():
    key = jax.random.key(7)
    program = girih.compile(lambda k: (jax.random.normal(k, (3,)), jax.random.split(k)), key)
    numbers, keys = program(key)
    np.testing.assert_allclose(numbers, jax.random.normal(key, (3,)), rtol=1e-5)
    assert keys.dtype == key.dtype
    expected = jax.random.key_data(jax.random.split(key))
    np.testing.assert_array_equal(jax.random.key_data(keys), expected)
    numbers, _ = program(np.asarray(jax.random.key_data(key)))
    np.testing.assert_allclose(numbers, jax.random.normal(key, (3,)), rtol=1e-5)


def test_torch_constants_are_what_the_export_fixed():
    class Scaled(nn.Module):
        def forward(self, x: Any, k: int = 2, flags: Any = (True, None)) -> Any:
            return x["a"] * k if flags[0] else x["a"]

    inputs = ({"a": torch.ones(2)}, 3, (True, None))
    program = girih.compile(Scaled(), *inputs)
    for given in (inputs, inputs[:2], ({"a": torch.ones(2)},)):
        assert program(*given).tolist() == [3, 3]
    with pytest.raises(UserError, match="k: the export fixed it to 3, got int 4; export it again"):
        program({"a": torch.ones(2)}, 4)


@pytest.mark.parametrize(
    "given",
    [
        turns(1, 2, 3)[0].requires_grad_(),
        turns(1, 2, 3)[0].requires_grad_() * 2,
        nn.Parameter(turns(1, 2, 3)[0]),
        (turns(1, 2, 3)[0] + 1j).conj(),
        (turns(1, 2, 3)[0] + 1j).conj().imag,
        turns(1, 3, 2)[0].T,
        turns(1, 2, 3)[0].bfloat16(),
    ],
)
def test_torch_examples_are_accepted(given):
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    found, expected = girih.compile(Doubled(), given)(given), (given * 2).detach().resolve_conj()
    if given.dtype is torch.bfloat16:
        found, expected = found.astype(np.float32), expected.float()
    np.testing.assert_array_equal(found, expected)


def test_what_has_no_capsule_and_what_is_of_another_byte_order():
    narrow = jnp.arange(3).astype(jnp.int4)
    assert girih.compile(lambda x: x + 1, narrow)(narrow).astype(int).tolist() == [1, 2, 3]
    program = girih.compile(lambda x: x + 1, np.ones(3, np.float32))
    with pytest.raises(UserError, match=r"in foreign byte order; pass x.astype\('float32'\)"):
        program(np.ones(3, ">f4"))


@pytest.mark.parametrize(
    ("arguments", "keywords", "static"),
    [
        ((2, np.ones(3), "up"), {}, {"static_argnums": (0, 2)}),
        ((np.ones(3), 2), {"mode": "up"}, {"static_argnames": ("k", "mode")}),
        ((np.ones(3),), {"k": 2, "mode": "up"}, {"static_argnames": ("k", "mode")}),
    ],
)
def test_static_arguments_may_be_given_again(arguments, keywords, static, tmp_path):
    if isinstance(arguments[0], int):
        function = lambda k, x, mode="up": x * k if mode == "up" else x  # noqa: E731
    else:
        function = lambda x, k, mode="up": x * k if mode == "up" else x  # noqa: E731
    program = girih.compile(jax.jit(function, **static), *arguments, **keywords)
    program.save(tmp_path / "x.girih")
    x = np.ones(3, np.float32)
    for each in (program, girih.load(tmp_path / "x.girih")):
        for given, named in ((arguments, keywords), ((x,), {}), ((), {"x": x})):
            assert each(*given, **named).tolist() == [2, 2, 2]
        other = [3 if type(value) is int else value for value in arguments]
        changed = {name: 3 if name == "k" else value for name, value in keywords.items()}
        with pytest.raises(UserError, match="k: the export fixed it to 2, got int 3"):
            each(*other, **changed)


def test_inputs_and_results_that_exports_do_not_know():
    class Typed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, x.dtype

    with pytest.raises(UserError, match="its result holds a torch.dtype, which PyTorch's exports"):
        girih.compile(Typed(), torch.ones(2))
    with pytest.raises(UserError, match=r"a numpy array \(pass torch.from_numpy\(x\)\)"):
        girih.compile(nn.ReLU(), np.ones(2, np.float32))
    with pytest.raises(UserError, match="its input holds a complex, which PyTorch's exports"):
        girih.compile(nn.ReLU(), 2j)

"""State by name: which arguments it is, what entry points share of it, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError
from girih.states import with_states

jax = pytest.importorskip("jax")
jnp = jax.numpy

OFF = girih.Options(cache="off")
CAPACITY = 8
CACHE = {"k": jnp.zeros((CAPACITY, 4)), "n": jnp.int32(0)}
ROW = np.ones((1, 4), np.float32)


def prefill(x: Any) -> Any:
    return x.sum(0), {"k": jnp.zeros((CAPACITY, 4)).at[:3].set(x), "n": jnp.int32(3)}


def decode(cache: Any, x: Any) -> Any:
    k = jax.lax.dynamic_update_slice(cache["k"], x, (cache["n"], 0))
    return k.sum(0), {"k": k, "n": cache["n"] + 1}


def peek(cache: Any) -> Any:
    return cache["k"].sum()


SOURCES = {
    "prefill": (prefill, (jnp.ones((3, 4)),)),
    "decode": (decode, (CACHE, jnp.ones((1, 4)))),
    "peek": (peek, (CACHE,)),
}
STATE = {"cache": {"prefill": "output[1]", "decode": "output[1]", "peek": None}}


@pytest.fixture(scope="module", params=["cpu", "ptx-sim"])
def program(request: Any) -> girih.Program:
    return girih.compile(SOURCES, state=STATE, target=request.param, options=OFF)


def test_entries_share_state_of_one_name(program):
    session = program.session()
    assert session.memory == 4 * 4 * CAPACITY + 4
    assert session.peek() == 0
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert session.prefill(rows).tolist() == rows.sum(0).tolist()
    assert session.decode(ROW).tolist() == (rows.sum(0) + 1).tolist()
    assert session.peek() == rows.sum() + 4
    assert session.state["cache.n"] == 4
    session.reset()
    assert session.peek() == 0 and session.decode(ROW).tolist() == [1, 1, 1, 1]


def test_signatures_are_without_state(program):
    signature = program.entry("decode").signature
    assert [str(argument) for argument in signature.arguments] == [
        "x: f32[1,4]", "cache.k: f32[8,4]", "cache.n: i32[]",
    ]  # fmt: skip
    assert signature.buffers == ("cache.k", "cache.n") == signature.state
    assert program.entry("peek").signature.state == ()
    assert [str(r) for r in signature.results][:1] == ["output[0]: f32[4]"]


def test_state_alone_is_given_and_comes_back(program):
    result, state = program.entry("decode").stateless(ROW, state={"cache.n": np.int32(2)})
    assert result.tolist() == [1, 1, 1, 1] and state["cache.n"] == 3
    assert state["cache.k"][2].tolist() == [1, 1, 1, 1]


def test_a_bundle_keeps_it(program, tmp_path):
    program.save(tmp_path / "x.girih")
    loaded = girih.load(tmp_path / "x.girih", simulate=program.target != "cpu")
    session = loaded.session()
    session.decode(ROW)
    assert session.peek() == 4
    features = [one["name"] for one in loaded.parts.manifest["features"]]
    assert "signatures.state.read" in features
    again = girih.compile(tmp_path / "x.girih", options=OFF).session()
    again.decode(ROW)
    assert again.peek() == 4


def test_the_same_in_one_program():
    program = girih.compile(
        decode, CACHE, ROW, state={"cache": ("output[1]", 2.0)}, options=OFF
    )  # an integer of the state begins with 2, too
    assert program(ROW).tolist() == [2 * CAPACITY - 1] * 4
    assert program.own_session.state["cache.n"] == 3


def test_initial_values_are_stored_once(tmp_path):
    def step(a: Any, b: Any, x: Any) -> Any:
        return a + x, b + x, x.sum()

    zeros = jnp.zeros((64, 256))
    program = girih.compile(
        step, zeros, zeros, np.ones((64, 256), np.float32),
        state={"a": "output[0]", "b": "output[1]"}, options=OFF,
    )  # fmt: skip
    program.save(tmp_path / "x.girih")
    weights = girih.load(tmp_path / "x.girih").parts.members["weights/weights.safetensors"]
    assert weights < 2 * zeros.nbytes


def test_patterns_and_donation():
    def step(layers: Any, x: Any) -> Any:
        return [{"k": one["k"] + x, "v": one["v"] * 2} for one in layers], x.sum()

    layers = [{"k": jnp.zeros(2), "v": jnp.ones(2)} for _ in range(3)]
    x = np.ones(2, np.float32)
    program = girih.compile(
        step, layers, x, options=OFF,
        state={"layers.*.k": "output.0.*.k", "layers[*].v": ("output[0][*]['v']", 1)},
    )  # fmt: skip
    session = program.session()
    session(x)
    assert session(x) == 2
    assert session.state["layers.1.k"].tolist() == [2, 2]
    assert session.state["layers.2.v"].tolist() == [4, 4]
    donating = jax.jit(lambda c, x: (c + x, x.sum()), donate_argnums=0)
    session = girih.compile(donating, x, x, state={"c": 5}, options=OFF).session()
    session(x)
    assert session.state["c"].tolist() == [6, 6]


def counting(n: Any, x: Any) -> Any:
    return n + 1, x * n


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"cach": "output[1]"}, r"no argument is called 'cach' \(did you mean 'cache"),
        ({"cache": "output[2]"}, r"entry point 'main' has no result output\.2\.k"),
        ({"cache": {"decod": "output[1]"}}, r"no entry point 'decod'.*there are main"),
        ({"cache": {"main": 3}}, "a result is named by its path, not 3"),
        ({"cache": None}, "name the result that replaces it"),
        ({"cache": 0}, "has no result that it is donated for"),
        ({"cache": ("output[1]", 0, 1)}, r"\(result, what it begins with\)"),
        ({"cache": ("output[1]", 0.5)}, r"state 'cache.n': i32\[\] cannot begin with 0.5"),
        ({"cache": ("output[1]", np.zeros(3))}, r"it is f32\[8,4\], what it begins with is"),
        ({"cache.*": "output[1]"}, "has not as many stars"),
        ({"cache": "output[1]", "cache.k": "output[1].k"}, "named twice|has no result"),
        ({"x": "output[0]"}, r"it is f32\[1,4\], the result that replaces it is f32\[4\]"),
        ({3: "output[1]"}, "names are texts"),
        (["cache"], "give {argument: the result"),
    ],
)
def test_state_that_is_none(state, words):
    with pytest.raises(UserError, match=words):
        girih.compile(decode, CACHE, ROW, state=state, options=OFF)


def test_types_agree_by_name():
    def other(cache: Any, x: Any) -> Any:
        return x.sum(), {"k": cache["k"] * 2, "n": cache["n"] + 1}

    longer = {"k": jnp.zeros((2 * CAPACITY, 4)), "n": jnp.int32(0)}
    sources = {"decode": SOURCES["decode"], "other": (other, (longer, ROW))}
    with pytest.raises(UserError, match=(
        r"state 'cache\.k' is f32\[16,4\] in the entry point 'other', and f32\[8,4\] in 'decode'"
    )):  # fmt: skip
        girih.compile(sources, state={"cache": "output[1]"}, options=OFF)


def test_names_of_state_that_there_is_not(program):
    session = program.session()
    with pytest.raises(UserError, match=r"no such state \(did you mean 'cache\.n'\?\); it has"):
        session.state = {"cache.m": np.int32(1)}
    with pytest.raises(UserError, match="cache.n: expected"):
        session.state = {"cache.n": np.zeros(3, np.int32)}
    assert session.peek() == 0


def test_a_module_keeps_its_meaning():
    """What `with_states` makes computes what the module did, its state behind all others."""
    module = girih.import_model(decode, CACHE, ROW)
    (kept,) = with_states({"main": module}, {"cache": "output[1]"}).values()
    k, n = np.arange(32, dtype=np.float32).reshape(8, 4), np.int32(5)
    one = girih.interpret(module, [k, n, ROW])
    other = girih.interpret(kept, [ROW, k, n])
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Buffers of torch.


def test_a_buffer_that_another_entry_changes_is_no_constant():
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):
        n: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def add(self, x: Any) -> Any:
            self.n.add_(x)
            return x.sum()

        def read(self) -> Any:
            return self.n * 2

    model, x = Counter(), torch.ones(3)
    program = girih.compile({"add": (model.add, (x,)), "read": (model.read, ())}, options=OFF)
    session = program.session()
    session.add(x)
    assert session.read().tolist() == [2, 2, 2]
    assert program.session().read().tolist() == [0, 0, 0]
    program.entry("add")(x)  # the program's own session
    assert program.entry("read")().tolist() == [2, 2, 2]
    assert float(model.n.sum()) == 0


def test_state_that_begins_otherwise_is_refused():
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):
        n: Any

        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("n", torch.full((3,), value))

        def forward(self, x: Any) -> Any:
            self.n.add_(x)
            return x.sum()

    x = torch.ones(3)
    sources = {"one": (Counter(0.0), (x,)), "two": (Counter(1.0), (x,))}
    with pytest.raises(UserError, match="state 'n' begins with other values in the entry point"):
        girih.compile(sources, options=OFF)

"""A limit for memory: plans within it give the same bits, or there is an error with a remedy."""

import random

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.errors import MemoryLimitError, UserError
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, TensorType
from girih.imports import import_model
from girih.optimizer.limit import MemoryNeed
from girih.options import OptionError, Options, bytes_of
from girih.runtime.loaded import Memory

from .transformer import dot, transformer_layer

SIZES = [
    (1, 1), ("7", 7), ("7 B", 7), ("1kB", 1000), ("1KB", 1000), ("3 KiB", 3072), ("2MB", 2_000_000),
    ("1.5MiB", 3 << 19), ("1GB", 10**9), ("2GiB", 1 << 31), ("1TB", 10**12), ("1TiB", 1 << 40),
]  # fmt: skip
WRONG = [
    0,
    -1,
    "0",
    "-2GiB",
    "",
    "GiB",
    "2 GIB",
    "2gib",
    "1.5",
    "1.5B",
    "1e9",
    "2GiB free",
    True,
    1.5,
]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_sizes(text, size):
    assert bytes_of(text) == Options(max_memory=text).memory_limit == size


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_size(text):
    with pytest.raises(OptionError, match="max_memory"):
        Options(max_memory=text)


def deep(layers: int = 6, width: int = 64, batch: int = 256) -> Module:
    """Values that are made early and read late, in turn: x -> tanh, gradients backwards."""

    def body(b: Builder, x: Value, *weights: Value) -> list[Value]:
        kept = []
        for w in weights:
            x = dot(b, x, w, 0, 1, 0)
            kept.append(x)
            x = b("tanh", b("multiply", x, x))
        for w, value in zip(reversed(weights), reversed(kept), strict=True):
            slope = b("multiply", b("cosine", value), x)
            x = b("add", dot(b, slope, w, 0, 1, 1), b("exponential", b("negate", value)))
        return [x]

    types = [TensorType((batch, width), F32), *[TensorType((width, width), F32)] * layers]
    return build_module(types, body)


def inputs_of(module: Module) -> list[np.ndarray]:
    chance = np.random.default_rng(1)
    return [
        (chance.standard_normal(v.dims) / 8).astype(v.tensor.dtype) for v in module.body.arguments
    ]


def bits(program, inputs) -> list[bytes]:
    return [np.asarray(r).tobytes() for r in program.call_flat([i.copy() for i in inputs])]


def options(limit: int | None) -> Options:
    return Options(max_memory=limit, threads=1)


@pytest.mark.parametrize("make", [deep, transformer_layer], ids=["deep", "transformer"])
def test_random_limits(make):
    module = make()
    inputs = inputs_of(module)
    free = girih.compile(module, options=options(None))
    expected, most = bits(free, inputs), free.memory.total_bytes
    chance = random.Random(2)
    lowest = most - free.memory.arena_bytes
    reached = 0
    for limit in sorted({chance.randint(lowest, most + 100) for _ in range(12)}):
        try:
            program = girih.compile(module, options=options(limit))
        except MemoryLimitError as error:
            assert error.needed_bytes > error.limit_bytes == limit
            assert error.impossible or "; or " in str(error)
            continue
        reached += program.memory.total_bytes < most
        assert program.memory.total_bytes <= program.memory.allocated_bytes <= limit
        assert bits(program, inputs) == expected
    assert reached or make is transformer_layer


def test_what_is_computed_again_is_told():
    module = deep()
    free = girih.compile(module, options=options(None))
    limit = free.memory.total_bytes - free.memory.arena_bytes // 4
    program = girih.compile(module, options=Options(max_memory=limit, threads=1, strict=True))
    (note,) = [note for note in program.plan.notes if "max_memory" in note]
    assert "computed again" in note and "ms (predicted)" in note
    assert len(program.plan.steps) > len(free.plan.steps)


def test_what_the_device_allocates_is_limited():
    module = deep()
    memory = girih.compile(module, options=options(None)).memory
    assert memory.context_bytes % 4096 == 0 and memory.context_bytes >= memory.arena_bytes
    same = girih.compile(module, options=options(memory.allocated_bytes))
    assert not any("max_memory" in note for note in same.plan.notes)
    less = girih.compile(module, options=options(memory.allocated_bytes - 1))
    assert less.memory.allocated_bytes < memory.allocated_bytes
    assert any("max_memory" in note for note in less.plan.notes)


def test_no_plan_above_a_limit_is_given_back(monkeypatch):
    module = deep()
    memory = girih.compile(module, target="null").memory
    chance = random.Random(3)
    fits = 0
    for _ in range(25):
        limit = memory.total_bytes - chance.randrange(memory.arena_bytes)
        try:
            program = girih.compile(module, target="null", options=options(limit))
        except MemoryLimitError as error:
            assert error.needed_bytes > limit
        else:
            fits += 1
            assert program.memory.allocated_bytes <= limit
    assert 5 < fits < 25
    limit = memory.allocated_bytes
    monkeypatch.setattr(Memory, "allocated_bytes", property(lambda self: limit + 1 + next(more)))
    more = iter(range(100))
    for place in ("girih.optimizer.limit.need", "girih.lowering.need"):
        monkeypatch.setattr(place, lambda *_: MemoryNeed(0, 0, 0, 0, 0))
    with pytest.raises(MemoryLimitError, match="the best needs") as caught:
        girih.compile(module, target="null", options=options(limit))
    assert caught.value.needed_bytes == limit + 1 and not caught.value.impossible


def test_one_byte_below_the_bound():
    module = deep(layers=2)
    with pytest.raises(MemoryLimitError) as first:
        girih.compile(module, options=options(1))
    assert first.value.impossible and "without any temporary value" in str(first.value)
    always = first.value.needed_bytes
    with pytest.raises(MemoryLimitError) as second:
        girih.compile(module, options=options(always))
    bound = second.value.needed_bytes
    assert second.value.impossible and bound > always and "operand f32[" in str(second.value)
    with pytest.raises(MemoryLimitError) as third:
        girih.compile(module, options=options(bound - 1))
    assert third.value.needed_bytes == bound


def test_arguments_alone_are_too_many_and_a_donation_would_help():
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda state, x: (state + jnp.tanh(x), x.sum()))
    module = import_model(step, np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32))
    with pytest.raises(MemoryLimitError, match="donate .*frees 16.4 kB at no cost"):
        girih.compile(module, options=options(40_000))


def test_on_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from girih.cli.app import app

    source = tmp_path / "deep.girih"
    girih.compile(deep()).save(source)
    most = girih.compile(deep(), options=options(None)).memory
    limit = most.total_bytes - most.arena_bytes // 4
    run = CliRunner().invoke
    arguments = ["compile", str(source), "-o", str(tmp_path / "small.girih"), "-s", "threads=1"]
    assert run(app, [*arguments, "--max-memory", str(limit)]).exit_code == 0
    assert girih.load(tmp_path / "small.girih", threads=1).memory.total_bytes <= limit
    for wrong in ("1kB", "two"):
        result = run(app, [*arguments, "--max-memory", wrong])
        assert result.exit_code != 0 and "max_memory" in str(result.exception or result.output)


def test_symbolic_sizes_are_refused_as_without_a_limit():
    import jax
    from jax import export

    (n,) = export.symbolic_shape("n")
    source = export.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((n,), np.float32))
    with pytest.raises(UserError):
        girih.compile(source, options=options(1 << 20))

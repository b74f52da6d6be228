"""Arrays of kept programs: made of today's weights, once, on demand, and of nothing else."""

from __future__ import annotations

import functools
import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import girih
from girih import programs
from girih.hlo.build import Builder, build_module
from girih.hlo.derivation import constant_weight, derived
from girih.hlo.graph import Dense, Function, Module, Weight
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I8, QuantizedType, TensorType
from girih.programs import ProgramCache
from girih.recipes import Arrays, Recipes, Supply, Unknown
from girih.runtime import devices

pytestmark = [
    pytest.mark.program_cache,
    pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's"),
]

RNG = np.random.default_rng(5)
SQUARE = TensorType((64, 64), F32)


@pytest.fixture(autouse=True)
def unchanged_sources(monkeypatch):
    monkeypatch.setattr(programs, "_compiler", lambda: "c0ffee")


def model(arrays: dict[str, np.ndarray], loaded: list[str]) -> Module:
    """Products of a weight that is packed, of one that is folded first, and a tied one; `loaded`
    gets the name of each weight whose data is asked for."""
    b = Builder()
    (x,) = b.arguments([SQUARE])

    def weight(name: str) -> Any:
        return b("weight", type=TensorType(arrays[name].shape, F32), weight=name)

    def product(x: Any, w: Any) -> Any:
        return b("dot_general", x, w, lhs_batching_dimensions=(), rhs_batching_dimensions=(),
                 lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))  # fmt: skip

    x = product(x, weight("packed"))
    scaled = b("multiply", weight("folded"), b.broadcast(weight("scale"), (64, 64), (1,)))
    x = b("tanh", product(x, b.transpose(scaled, (1, 0))))
    x = b("add", x, b.broadcast(weight("bias"), (64, 64), (1,)))
    module = Module({"main": Function("main", b.region([product(x, weight("packed"))]))})

    def load(name: str) -> np.ndarray:
        loaded.append(name)
        return arrays[name]

    return module.with_weights(
        {
            name: Weight(
                name,
                functools.partial(load, name),
                TensorType(array.shape, F32),
                ("tied",) if name == "packed" else (),
            )
            for name, array in arrays.items()
        }
    )


def data() -> dict[str, np.ndarray]:
    shapes = {"packed": (64, 64), "folded": (64, 64), "scale": (64,), "bias": (64,)}
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def compiled(cache: Any, arrays: dict[str, np.ndarray], **options: Any) -> tuple[Any, list, list]:
    """The program, the stages that ran, and the weights whose data has been asked for so far."""
    stages: list[str] = []
    loaded: list[str] = []
    made = model(arrays, loaded)
    chosen = girih.Options(cache=str(cache), **options)
    return girih.compile(made, options=chosen, progress=stages.append), stages, loaded


@pytest.mark.parametrize(
    "options", [{}, {"matmul_precision": "bfloat16"}, {"pack_weights": False}], ids=str
)
def test_arrays_are_made_of_the_weights_of_today(tmp_path, options):
    compiled(tmp_path, data(), **options)
    assert len(ProgramCache(tmp_path).entries()) == 1
    arrays = data()
    program, stages, loaded = compiled(tmp_path, arrays, **options)
    assert "simplify" not in stages and not loaded
    program.save(tmp_path / "warm.girih")
    assert set(loaded) == set(arrays) and len(loaded) == len(arrays)
    cold, stages, _ = compiled("off", arrays, **options)
    cold.save(tmp_path / "cold.girih")
    assert "simplify" in stages
    assert (tmp_path / "warm.girih").read_bytes() == (tmp_path / "cold.girih").read_bytes()


def test_the_first_call_makes_them_once_in_any_number_of_threads(tmp_path, monkeypatch):
    compiled(tmp_path, data())
    arrays, x = data(), RNG.normal(size=(64, 64)).astype(np.float32)
    program, _, loaded = compiled(tmp_path, arrays)
    opened: list[Any] = []
    open_device = devices.open_device

    def counted(*arguments: Any, **keywords: Any) -> Any:
        opened.append(open_device(*arguments, **keywords))
        return opened[-1]

    monkeypatch.setattr(devices, "open_device", counted)
    assert not loaded and "cpu" in program.target and program.signature and program.plan
    assert not loaded
    start, results = threading.Barrier(4), []

    def call() -> None:
        start.wait()
        results.append(program(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1 and sorted(loaded) == sorted(arrays)
    expected = compiled("off", arrays)[0](x)  # nothing of the cache in it
    assert len(results) == 4 and all(np.array_equal(one, expected) for one in results)


@pytest.mark.parametrize(
    "use",
    [
        lambda program, x: program(x),
        lambda program, x: program.donate(x),
        lambda program, x: program.call_flat([x]),
        lambda program, x: program.prepare(x)(),
        lambda program, x: program.profile(x).outputs,
        lambda program, x: program.with_checks([x])(x),
        lambda program, x: program.with_parts(program.parts)(x),
        lambda program, x: interpret(program.module, [x]),
        lambda program, x: (program.memory.context_bytes > 0, program(x))[1],
    ],
)
def test_every_first_use_finds_the_arrays(tmp_path, use):
    compiled(tmp_path, data())
    arrays, x = data(), RNG.normal(size=(64, 64)).astype(np.float32)
    program, _, loaded = compiled(tmp_path, arrays)
    assert not loaded
    (found,) = use(program, x)
    assert sorted(loaded) == sorted(arrays)
    (expected,) = compiled("off", arrays)[0](x)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)  # the interpreter's sums


@pytest.mark.parametrize("cache", ["kept", "off"])
def test_a_program_does_not_hold_what_its_arrays_were_made_of(tmp_path, cache):
    if cache == "kept":
        compiled(tmp_path, data())
    arrays = data()
    program, _, _ = compiled(tmp_path if cache == "kept" else "off", arrays)
    program(np.ones((64, 64), np.float32))
    held = {name: weakref.ref(array) for name, array in arrays.items()}
    arrays.clear()
    gc.collect()
    assert held["folded"]() is None and held["scale"]() is None


def test_quantised_weights_are_the_sources(tmp_path):
    kind = TensorType((64, 64), QuantizedType(I8, F32, None, (0.05,), (3,), -128, 127))

    def module(stored: np.ndarray) -> Module:
        def body(b: Builder, x: Any) -> Any:
            weight = b("weight", type=kind, weight="w")
            return [b("add", x, b("uniform_dequantize", weight))]

        made = build_module([SQUARE], body)
        return made.with_weights({"w": Weight("w", stored, kind)})

    options = girih.Options(cache=str(tmp_path))
    girih.compile(module(np.zeros((64, 64), np.int8)), options=options)
    stored = RNG.integers(-128, 128, (64, 64), np.int8)
    stages: list[str] = []
    warm = girih.compile(module(stored), options=options, progress=stages.append)
    assert "simplify" not in stages
    x = RNG.normal(size=(64, 64)).astype(np.float32)
    cold = girih.compile(module(stored), options=girih.Options(cache="off"))
    np.testing.assert_array_equal(warm(x)[0], cold(x)[0])


def test_what_comes_from_nowhere_is_not_kept():
    module = build_module([SQUARE], lambda b, x: [x])
    weight = Weight("w", np.ones((2,), np.float32))
    module = module.with_weights({"w": weight})
    recipes = Recipes(module.weights)
    assert recipes.places({"w": weight.array}, {"w": weight}) == [("w", ("source", "w"))]
    other = Weight("w", np.ones((2,), np.float32))
    for made in ({}, {"w": other}, {"w": Weight("v", weight.array)}):
        with pytest.raises(Unknown):
            Recipes(module.weights).places({"w": weight.array}, made)
    with pytest.raises(Unknown):
        Recipes(module.weights).places({"w": other.array}, {"w": other})


def test_chains_constants_and_missing_places():
    source = Weight("w", RNG.normal(size=(3, 5)).astype(np.float32))
    table = constant_weight("t", Dense.of(np.arange(15, dtype=np.float32).reshape(5, 3)))
    b = build_module([source.type], lambda b, x: [b.transpose(x, (1, 0))])
    turned = derived("turned", [source], b.body)
    b = build_module([turned.type, table.type], lambda b, x, t: [b("add", x, t)])
    total = derived("total", [turned, table], b.body)
    module = build_module([SQUARE], lambda b, x: [x]).with_weights({"w": source})
    recipes = Recipes(module.weights)
    made = {"total": total, "table": table, "w": source}
    places = recipes.places({name: weight.array for name, weight in made.items()}, made)
    assert places == [("total", ("derived", 1)), ("table", ("kept", "0")), ("w", ("source", "w"))]
    document, program = recipes.document(), recipes.program()
    found = Arrays(places, Supply(module.weights, recipes.kept, document, program))
    assert list(found) == ["total", "table", "w"] and "w" in found and "v" not in found
    for name in found:
        np.testing.assert_array_equal(found[name], made[name].array)
        assert found[name].flags.c_contiguous
    with pytest.raises(KeyError):
        Arrays(places, Supply(module.weights, {}, document, program))
    with pytest.raises(KeyError):
        Arrays(places, Supply({}, recipes.kept, document, program))
    with pytest.raises(KeyError):
        Arrays([("x", ("derived", 2))], Supply(module.weights, recipes.kept, document, program))

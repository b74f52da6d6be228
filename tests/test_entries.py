"""Several entry points of one program: what they share, how they are called, kept and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih import programs
from girih.hlo.errors import UserError
from girih.runtime.bundle import Bundle, MemoryParts, Variant
from girih.runtime.parts import copied_parts

torch = pytest.importorskip("torch")

from .generating import (  # noqa: E402
    eager,
    llama_program,
    prompt,
    small_llama,
    sources,
    token,
)

OFF = girih.Options(cache="off")
TWO = """
func.func public @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func public @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
X = np.arange(4, dtype=np.float32)


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_model_generates_as_in_its_framework(target):
    model, session = small_llama(), llama_program(target).session()
    tokens, count = prompt()
    close(session.prefill(tokens, count), eager(model, "prefill", tokens, count))
    for number in (7, 3, 9):
        close(session.decode(token(number)), eager(model, "decode", token(number)))


def test_sampling_is_part_of_the_program():
    model, random = small_llama(), np.random.default_rng(5)
    program = girih.compile(sources(model, "prefill", "sample"), options=OFF)
    session, last = program.session(), token(3)
    session.prefill(*prompt())
    eager(model, "prefill", *prompt())
    for _ in range(8):
        uniform = random.uniform(1e-6, 1 - 1e-6, (1, 64)).astype(np.float32)
        given = last, uniform, np.array([0.7], np.float32)
        last = session.sample(*given)
        assert np.array_equal(last, eager(model, "sample", *given))


def test_decode_before_prefill_begins_with_the_exported_state():
    model, program = small_llama(), llama_program()
    close(program.session().decode(token(4)), eager(model, "decode", token(4)))


def test_entries_are_called_by_name(tmp_path):
    program = girih.compile(TWO, options=OFF)
    assert program.entries == ("double", "square") and program.entry_name is None
    assert program.entry("double")(X)[0].tolist() == [0, 2, 4, 6]
    assert program.entry("square")(X)[0].tolist() == [0, 1, 4, 9]
    assert program.entry("square").entry("double").entry_name == "double"
    program.save(tmp_path / "two.girih")
    loaded = girih.load(tmp_path / "two.girih")
    assert loaded.entry("square")(X)[0].tolist() == [0, 1, 4, 9]
    assert loaded.entry("double").module.main.name == "double"


def test_main_is_what_a_call_runs():
    double, square = (girih.import_model(TWO, entry=name) for name in ("double", "square"))
    program = girih.compile({"square": square, "main": double}, options=OFF)
    assert program(X)[0].tolist() == [0, 2, 4, 6] and program.entry_name == "main"
    assert program.entry("main") is program
    alone = girih.compile({"square": square}, options=OFF)
    assert alone(X)[0].tolist() == [0, 1, 4, 9] and alone.entries == ("square",)


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p(X), lambda p: p.signature, lambda p: p.plan, lambda p: p.prepare(X),
        lambda p: p.donate(X), lambda p: p.memory, lambda p: p.session()(X), lambda p: p.module,
        lambda p: p.profile(X), lambda p: p.stateless(X), lambda p: p.call_flat([X]),
    ],
)  # fmt: skip
def test_an_entry_has_to_be_named(use):
    program = girih.compile(TWO, options=OFF)
    with pytest.raises(UserError, match=r"entry points double, square: name one, such as"):
        use(program)
    assert not hasattr(program, "decode")


def test_names_that_there_are_not():
    program = llama_program()
    with pytest.raises(UserError, match=r"no entry point 'decod' \(did you mean 'decode'\?\)"):
        program.entry("decod")
    with pytest.raises(UserError, match=r"no entry point 'prefil' \(did you mean 'prefill'\?\)"):
        program.session().entry("prefil")
    with pytest.raises(AttributeError, match=r"no entry point 'decod' .*'decode'"):
        _ = program.session().decod
    with pytest.raises(UserError, match="two: it has the entry points|has no function 'tripel'"):
        girih.import_model(TWO, entry="tripel")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "there are no entry points"),
        ({"a b": TWO}, "entry point 'a b': a name is letters"),
        ({3: TWO}, "entry point 3: a name is letters"),
        ({"fork": TWO}, "entry point 'fork': sessions have a 'fork' of their own"),
        ({"one": (abs, X)}, "got a ndarray"),
        ({"one": ()}, "not a tuple of 0"),
        ({"one": (abs, (X,), [])}, "got a list"),
        ({"one": "missing.pt2"}, "entry point 'one': there is no file 'missing.pt2'"),
        ({"one": TWO}, "entry point 'one': .*its public functions are: @double, @square"),
    ],
)
def test_sources_that_are_none(source, words):
    with pytest.raises(UserError, match=words):
        girih.compile(source, options=OFF)


def test_inputs_stand_at_their_entry():
    with pytest.raises(UserError, match="example inputs stand at each entry point"):
        girih.compile({"one": TWO}, X, options=OFF)


# What is shared.


def test_weights_code_and_state_are_there_once(tmp_path):
    model = small_llama(width=128, hidden=384, vocabulary=512)
    both = girih.compile(sources(model), options=OFF)
    both.save(tmp_path / "both.girih")
    sizes = {}
    for name in ("prefill", "decode"):
        path = tmp_path / f"{name}.girih"
        girih.compile(sources(model, name), options=OFF).save(path)
        sizes[name] = {k: v for k, v in Bundle(path).members.items() if k.startswith("weights")}
    bundle = Bundle(tmp_path / "both.girih")
    found = {k: v for k, v in bundle.members.items() if k.startswith("weights")}
    (member,) = found
    assert found[member] <= 1.001 * max(one[member] for one in sizes.values())
    buffers = [one for name in both.entries for one in both.entry(name).plan.buffers if one.weight]
    own = [one for one in buffers if one.weight not in bundle.weights]
    assert all(one.weight.startswith("constant:") and not one.dims for one in own)
    for program in (both, girih.load(tmp_path / "both.girih")):
        one, other = (program.entry(name)._device.context for name in program.entries)
        assert one.__self__.image is other.__self__.image
        mine, its = (where.__self__._weights for where in (one, other))
        assert all(mine[name] is its[name] for name in mine)


def test_equal_kernels_are_linked_once():
    double = girih.import_model(TWO, entry="double")
    alone = girih.compile({"one": double}, options=OFF)
    both = girih.compile({"one": double, "two": double}, options=OFF)
    image, single = (p.parts.variants["cpu"].image for p in (both, alone))
    assert len(image) == len(single)
    places = [[kernel.entry for kernel in both.entry(n).plan.kernels] for n in both.entries]
    assert places[0] == places[1]


class Scaled(torch.nn.Module):
    def __init__(self, value: float, name: str = "weight") -> None:
        super().__init__()
        self.name = name
        self.register_parameter(name, torch.nn.Parameter(torch.full((64, 64), value)))

    def forward(self, x: Any) -> Any:
        return x @ getattr(self, self.name)


def test_weights_are_one_by_data_not_by_name(tmp_path):
    x = torch.ones(1, 64)
    made = {"a": Scaled(1.0), "b": Scaled(2.0), "c": Scaled(2.0, "other"), "d": Scaled(1.0)}
    program = girih.compile({n: (m, (x,)) for n, m in made.items()}, options=OFF)
    for name, factor in zip(program.entries, (64, 128, 128, 64), strict=True):
        assert program.entry(name)(x).flat[0] == factor
    assert len(program.parts.weights) == 2
    program.save(tmp_path / "x.girih")
    assert girih.load(tmp_path / "x.girih").entry("c")(x).flat[0] == 128


def test_what_one_source_keeps_apart_stays_apart():
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(64, 64))
            self.b = torch.nn.Parameter(torch.ones(64, 64))

        def forward(self, x: Any) -> Any:
            return x @ self.a + x @ self.b

    model, x = Two(), torch.ones(1, 64)
    program = girih.compile({"one": (model, (x,)), "two": (model, (2 * x,))}, options=OFF)
    assert program.entry("two")(x).flat[0] == 128
    assert {name.partition("|")[0] for name in program.parts.weights} == {"a", "b"}


def test_jax_functions_share_what_they_close_over():
    jax = pytest.importorskip("jax")
    weight = jax.numpy.asarray(np.random.default_rng(0).normal(size=(64, 64)), "float32")

    def one(x: Any) -> Any:
        return x @ weight

    def two(x: Any) -> Any:
        return jax.numpy.tanh(x @ weight)

    x = np.ones((8, 64), np.float32)
    program = girih.compile({"one": (one, (x,)), "two": (two, (x[:4],))}, options=OFF)
    assert len(program.parts.weights) == 1
    close(program.entry("two")(x[:4]), np.tanh(x[:4] @ np.asarray(weight)))


# How it is kept.


def test_one_entry_named_main_is_stored_as_ever(tmp_path):
    module = girih.import_model(TWO, entry="double")
    girih.compile(module, options=OFF).save(tmp_path / "a.girih")
    girih.compile({"main": module}, options=OFF).save(tmp_path / "b.girih")
    assert (tmp_path / "a.girih").read_bytes() == (tmp_path / "b.girih").read_bytes()
    manifest = Bundle(tmp_path / "a.girih").manifest
    assert "entries" not in manifest
    assert "program.entries" not in [feature["name"] for feature in manifest["features"]]


def test_a_bundle_says_what_readers_it_needs(tmp_path):
    program = llama_program()
    program.save(tmp_path / "a.girih")
    program.save(tmp_path / "b.girih")
    assert (tmp_path / "a.girih").read_bytes() == (tmp_path / "b.girih").read_bytes()
    manifest = Bundle(tmp_path / "a.girih").manifest
    assert "program.entries" in [feature["name"] for feature in manifest["features"]]
    assert manifest["entries"] == [
        {"name": "prefill", "program": "program.pb"},
        {"name": "decode", "program": "programs/decode.pb"},
    ]
    loaded = girih.load(tmp_path / "a.girih")
    loaded.save(tmp_path / "c.girih")
    assert (tmp_path / "a.girih").read_bytes() == (tmp_path / "c.girih").read_bytes()
    loaded.save(tmp_path / "d.girih", version="1.1")
    assert girih.load(tmp_path / "d.girih").entries == ("prefill", "decode")


def altered(bundle: Path, change: Any) -> bytes:
    """The bundle's parts with another manifest, in a container that is whole."""
    from .runtime.test_bundle import rewritten

    manifest = json.loads(json.dumps(Bundle(bundle).manifest))
    change(manifest)
    changed = {key: value for key, value in manifest.items() if key in ("entries", "variants")}
    return rewritten(bundle, bundle.with_name("y"), **changed).read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["entries"].pop(),
        lambda m: m["entries"].append({"name": "x", "program": "programs/x.pb"}),
        lambda m: m["entries"][0].update(name="../x"),
        lambda m: m["entries"][1].update(name="prefill"),
        lambda m: m["entries"][1].update(program="program.pb"),
        lambda m: m["entries"].reverse(),
        lambda m: m.update(entries=3),
        lambda m: m["variants"][0]["further"].clear(),
        lambda m: m["variants"][0]["further"][0].update(entry="x"),
        lambda m: m["variants"][0]["further"][0].update(plan="nowhere"),
    ],
)
def test_a_manifest_that_lies_is_one_sentence(tmp_path, change):
    llama_program().save(tmp_path / "x.girih", seal=False)
    data = altered(tmp_path / "x.girih", change)
    with pytest.raises(UserError, match="damaged or was altered"):
        girih.load(data, allow_native=True)


def test_sources_and_targets_of_a_bundle(tmp_path):
    program = llama_program()
    program.save(tmp_path / "x.girih")
    with pytest.raises(UserError, match=r"entry points prefill, decode; name one: import_model"):
        girih.import_model(tmp_path / "x.girih")
    with pytest.raises(UserError, match=r"no entry point 'decod' \(did you mean 'decode'"):
        girih.import_model(tmp_path / "x.girih", entry="decod")
    module = girih.import_model(tmp_path / "x.girih", entry="decode")
    assert len(module.body.arguments) == 6
    text = girih.export_stablehlo(tmp_path / "x.girih", entry="decode", text=True)
    assert isinstance(text, str) and "tensor<1x1xi64>" in text
    wanted = program.session().decode(token(4))
    for source in (tmp_path / "x.girih", (tmp_path / "x.girih").read_bytes(), program):
        again = girih.compile(source, target=["cpu", "null"], options=OFF)
        assert again.entries == program.entries and set(again.parts.variants) == {"cpu", "null"}
        close(again.session().decode(token(4)), wanted)


def test_golden_cases_of_each_entry(tmp_path):
    program = llama_program()
    for name, inputs in (("prefill", prompt()), ("decode", (token(3),))):
        program = program.entry(name).with_checks(inputs)
    program.save(tmp_path / "x.girih")
    loaded = girih.load(tmp_path / "x.girih")
    assert [check.entry for check in loaded.parts.checks] == ["prefill", "decode"]
    assert [error for error, _ in loaded.run_checks()] == [0.0, 0.0]


@pytest.mark.program_cache
def test_the_program_cache_keeps_all_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_compiler", lambda: "c0ffee")
    options = girih.Options(cache=str(tmp_path / "kept"))
    model = small_llama()
    girih.compile(sources(model), options=options).save(tmp_path / "first.girih")
    stages: list[str] = []
    again = girih.compile(sources(model), options=options, progress=stages.append)
    assert stages == ["import", "package"]
    again.save(tmp_path / "second.girih")
    assert (tmp_path / "first.girih").read_bytes() == (tmp_path / "second.girih").read_bytes()
    other = small_llama(vocabulary=64)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    changed = girih.compile(sources(other), options=options, progress=stages.append)
    assert stages[2:] == ["import", "package"]  # other weights, the same program
    close(changed.session().decode(token(4)), eager(other, "decode", token(4)))


def test_meshes_are_for_one_entry():
    with pytest.raises(UserError, match="compiled for one device; compile each of them"):
        girih.compile(TWO, mesh={"data": 2}, options=OFF)


def test_memory_limits_hold_for_each_entry():
    roomy = girih.Options(cache="off", max_memory="1GB")
    program = girih.compile(TWO, options=roomy)
    assert program.entry("double")(X)[0].tolist() == [0, 2, 4, 6]
    with pytest.raises(girih.MemoryLimitError):
        girih.compile(sources(small_llama()), options=girih.Options(cache="off", max_memory=4096))


def test_parts_of_several_entries_are_copied():
    parts = llama_program().parts
    copy = copied_parts(parts)
    assert isinstance(copy, MemoryParts) and copy.programs == parts.programs
    variant = copy.variants["cpu"]
    assert isinstance(variant, Variant) and list(variant.further) == ["decode"]
    assert variant.plan_of("decode") != variant.plan_of("prefill") == variant.plan

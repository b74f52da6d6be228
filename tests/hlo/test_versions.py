"""Programs are written for older formats and read from them; what cannot be is listed."""

from __future__ import annotations

import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from girih.hlo import versions, wire
from girih.hlo.build import build_module, build_region
from girih.hlo.errors import ExportBlockers, UserError
from girih.hlo.graph import Module, Origin
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS, find
from girih.hlo.ops.tile_examples import kernel_cases
from girih.hlo.room import AttributeSpec
from girih.hlo.text import print_module
from girih.hlo.types import F32, FutureType, TensorType, tensor_of
from girih.hlo.verify import verify
from girih.hlo.wire import decode, encode, for_version, read_message

CORPUS = Path(__file__).parents[1] / "corpus"
ROW = TensorType((4,), F32)
HALF = {"start_indices": (0,), "limit_indices": (2,), "strides": (1,)}


def since_of(step: types.ModuleType) -> set[str]:
    return {room.name for room in DEFINITIONS if room.since == step.VERSION}


@pytest.mark.parametrize("step", versions.STEPS, ids=lambda step: step.VERSION)
def test_a_step_lists_what_came_with_it(step):
    assert since_of(step) == set(step.OPERATIONS)
    declared = {
        f"{room.name}.{key}"
        for room in DEFINITIONS
        for key, spec in room.attributes.items()
        if spec.since == step.VERSION
    }
    assert declared == set(step.ATTRIBUTES)
    assert set(step.REMEDIES) <= set(step.OPERATIONS) | set(step.TYPES)


def test_every_version_in_use_is_known():
    used = {room.since for room in DEFINITIONS}
    used |= {spec.since for room in DEFINITIONS for spec in room.attributes.values() if spec.since}
    assert used <= set(versions.known_versions())
    assert versions.known_versions()[-1] == versions.FORMAT_VERSION
    ordered = sorted(versions.known_versions(), key=versions.version_tuple)
    assert ordered == list(versions.known_versions())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_frozen_program_is_written_as_it_was(version):
    """What uses nothing new has the same bytes, whatever version of girih writes it."""
    with zipfile.ZipFile(CORPUS / f"{version}.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith("program.pb")]
        for name in names[::7]:
            frozen = archive.read(name)
            expected = read_message(frozen)
            expected.format_version = expected.minimum_reader  # 1.1 named itself everywhere
            wanted = expected.SerializeToString(deterministic=True)
            assert encode(decode(frozen)) == wanted, name
            assert for_version(frozen, version) == wanted, name


def with_kernel(reference: bool) -> Module:
    """y = 2 * x by a kernel, then y + y; the kernel stands in a nested region as well."""
    case = next(case for case in kernel_cases() if case.name == "kernel_double")
    assert case.regions is not None
    kind = tensor_of(np.asarray(case.inputs[0]))

    def call(b, x):
        twice = [build_region([kind], lambda b, x: [b("add", x, x)])] if reference else []
        regions = (*case.regions(build_region), *twice)  # pyright: ignore[reportOptionalCall]
        return b.op("kernel_call", [x], case.attributes, regions, case.result_types).result

    def body(b, x):
        b.origin = (Origin("model.py", 7),)
        y = call(b, x)
        branch = b.op(
            "if", [b.constant(True)], {}, (
                build_region([], lambda b: [call(b, y)]), build_region([], lambda b: [y]),
            ),
        ).result  # fmt: skip
        return [b("add", y, b("negate", branch)), y]

    return build_module([kind], body)


def test_a_kernel_becomes_its_reference():
    module = with_kernel(reference=True)
    verify(module)
    older = decode(encode(module, "1.0"))
    verify(older)
    assert {op.name for op in older.walk()} == {"constant", "if", "add", "negate"}
    assert read_message(encode(module, "1.0")).minimum_reader == "1.0"
    assert encode(module, "1.1") == encode(module)
    x = np.arange(10, dtype=np.float32)
    for new, old in zip(interpret(module, [x]), interpret(older, [x]), strict=True):
        np.testing.assert_array_equal(new, old)


def test_what_an_older_format_cannot_say_is_listed_with_place_and_remedy():
    with pytest.raises(ExportBlockers, match="format 1.0") as caught:
        encode(with_kernel(reference=False), "1.0")
    kernels = [b for b in caught.value.blockers if b.operation == "kernel_call"]
    assert kernels and all("reference=" in blocker.remedy for blocker in kernels)
    assert any(blocker.place == "model.py:7" for blocker in kernels)
    assert "tile_load" in {blocker.operation for blocker in caught.value.blockers}


def with_foreign_kernel(reference: bool) -> Module:
    (case,) = find("foreign_call").cases()
    assert case.regions is not None
    regions = case.regions(build_region) if reference else ()
    kind = tensor_of(np.asarray(case.inputs[0]))

    def body(b, x):
        b.origin = (Origin("model.py", 7),)
        y = b.op("foreign_call", [x], case.attributes, regions, [kind]).result
        return [b("negate", y)]

    return build_module([kind], body)


def test_a_foreign_kernel_becomes_its_reference():
    module = with_foreign_kernel(reference=True)
    assert read_message(encode(module)).minimum_reader == "1.3"
    older = decode(encode(module, "1.2"))
    verify(older)
    assert [op.name for op in older.walk()] == ["add", "negate"]
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(interpret(older, [x])[0], interpret(module, [x])[0])
    with pytest.raises(ExportBlockers, match=r"model\.py:7.*foreign_kernel\(reference="):
        encode(with_foreign_kernel(reference=False), "1.2")


def asynchronous(body) -> Module:
    def build(b, x):
        part = build_region([ROW], lambda b, v: [b("slice", v, **HALF)])
        before = b("negate", x)
        future = b.op("async_start", [before], {}, (part,)).result
        return body(b, x, future)

    return build_module([ROW], build)


def test_an_asynchronous_operation_is_done_where_it_starts():
    def finish(b, x, future):
        y = b("tanh", x)
        kind = TensorType((2,), F32)
        (done,) = b.op("async_done", [future], {}, (), [kind]).results
        return [b("multiply", done, done), y]

    module = asynchronous(finish)
    verify(module)
    older = decode(encode(module, "1.1"))
    verify(older)
    assert [op.name for op in older.body.ops] == ["negate", "slice", "tanh", "multiply"]
    x = np.arange(4, dtype=np.float32)
    for new, old in zip(interpret(module, [x]), interpret(older, [x]), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_future_that_leaves_its_function_stays():
    module = asynchronous(lambda b, x, future: [future])
    with pytest.raises(ExportBlockers) as caught:
        encode(module, "1.1")
    assert {b.operation for b in caught.value.blockers} >= {"async_start"}
    with pytest.raises(ExportBlockers, match="type future"):
        encode(build_module([FutureType([ROW])], lambda b, x: []), "1.1")


def test_a_version_that_is_not_known():
    with pytest.raises(UserError, match=r"no program format '7\.1'; this girih writes 1\.0, 1\.1"):
        encode(with_kernel(True), "7.1")


def test_new_attributes_count_where_they_say_something(monkeypatch):
    room = next(room for room in DEFINITIONS if room.name == "tanh")
    added = {**room.attributes, "mood": AttributeSpec(str, "plain", "1.2")}
    monkeypatch.setattr(type(room), "attributes", added)

    def minimum(**attributes):
        module = build_module([ROW], lambda b, x: [b("tanh", x, **attributes)])
        return read_message(encode(module)).minimum_reader

    assert minimum() == minimum(mood="plain") == "1.0"
    assert minimum(mood="merry") == "1.2"
    with pytest.raises(ExportBlockers, match=r"attribute tanh\.mood"):
        encode(build_module([ROW], lambda b, x: [b("tanh", x, mood="merry")]), "1.1")


def test_upgrades_run_in_order_and_from_where_the_file_stands(monkeypatch):
    """Two steps that did not happen: `tenh` became `tonh` in 2.0 and `tanh` in 2.1."""

    def renaming(version, old, new):
        def rename(message, old, new):
            names = [new if name == old else name for name in message.strings]
            del message.strings[:]
            message.strings.extend(names)
            for feature in message.features:
                feature.name = feature.name.replace(old, new)

        step = types.SimpleNamespace(VERSION=version, OPERATIONS=set(), TYPES=set(), REMEDIES={})
        step.upgrade = lambda message: rename(message, old, new)
        step.downgrade = lambda message: rename(message, new, old)
        return step

    steps = (*versions.STEPS, renaming("2.0", "tenh", "tonh"), renaming("2.1", "tonh", "tanh"))
    monkeypatch.setattr(versions, "STEPS", steps)
    module = build_module([ROW], lambda b, x: [b("tanh", x)])
    for version, name in (("1.2", "tenh"), ("2.0", "tonh"), ("2.1", "tanh")):
        message = read_message(encode(module))
        versions.downgrade(message, version)
        message.format_version = version
        assert name in message.strings
        versions.upgrade(message)
        assert "tanh" in message.strings and "op:tanh" in {f.name for f in message.features}


def test_a_reader_takes_newer_files_that_use_nothing_new(monkeypatch):
    module = build_module([ROW], lambda b, x: [b("tanh", x)])
    message = read_message(encode(module))
    message.format_version = "1.9"  # whoever wrote it knows more
    read = decode(message.SerializeToString())
    assert print_module(read) == print_module(module)
    monkeypatch.setattr(wire, "FORMAT_VERSION", "1.0")
    with pytest.raises(UserError, match=r"format 1\.1 \(for op:kernel_call, .*use a newer girih"):
        decode(encode(with_kernel(True)))

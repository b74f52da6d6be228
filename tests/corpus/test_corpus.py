"""Programs of every released format version load and give the numbers that they gave then."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS
from girih.hlo.wire import FORMAT_VERSION, decode, version_tuple

FILES = sorted(Path(__file__).parent.glob("*.zip"))
# Operations whose rooms say why they have no case of their own (tests/hlo/test_op_cases.py).
WITHOUT = {"weight", "call", "composite", "tuple", "get_tuple_element", "after_all", "create_token"}


def read(path: Path) -> dict[str, dict[str, bytes]]:
    cases: dict[str, dict[str, bytes]] = defaultdict(dict)
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            case, _, part = member.rpartition("/")
            cases[case][part] = archive.read(member)
    return cases


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_frozen_programs_give_the_frozen_numbers(path):
    for name, parts in read(path).items():
        module = decode(parts["program.pb"])
        types = [value.tensor for value in module.body.arguments]
        inputs = [
            np.frombuffer(parts[f"in{i}"], type.dtype).reshape(type.dims)
            for i, type in enumerate(types)
        ]
        for i, found in enumerate(interpret(module, inputs)):
            frozen = np.frombuffer(parts[f"out{i}"], found.dtype).reshape(found.shape)
            if found.dtype.kind in "biu":
                np.testing.assert_array_equal(found, frozen, err_msg=name)
                continue
            wide = np.complex128 if found.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                found.astype(wide), frozen.astype(wide), rtol=1e-5, atol=1e-6, err_msg=name
            )


def test_every_released_operation_is_in_the_corpus():
    assert any(path.stem == FORMAT_VERSION for path in FILES)
    frozen: dict[str, tuple[int, int]] = {}
    for path in FILES:
        for parts in read(path).values():
            for op in decode(parts["program.pb"]).walk():
                frozen.setdefault(op.name, version_tuple(path.stem))
    missing = {
        room.name
        for room in DEFINITIONS
        if room.name not in WITHOUT
        and frozen.get(room.name, (99, 0)) > version_tuple(room.since)
        and version_tuple(room.since) <= version_tuple(FORMAT_VERSION)
    }
    assert not missing

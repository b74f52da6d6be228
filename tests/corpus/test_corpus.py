"""Programs of every released format version load and give the numbers that they gave then."""

from __future__ import annotations

import functools
import io
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from girih.hlo.ops import DEFINITIONS
from girih.hlo.versions import FIRST, STEPS, version_tuple
from girih.hlo.wire import encode, read_message

from .programs import entries, frozen, replay

FILES = sorted(Path(__file__).parent.glob("*.zip"), key=lambda path: version_tuple(path.stem))
# Operations of 1.0 that were first frozen with 1.2: they need a program around them.
LATE = {"weight", "call", "composite", "tuple", "get_tuple_element", "after_all", "create_token"}
# Their results are unique but for signs and phases, which a LAPACK chooses.
UP_TO_PHASE = {"linalg.eigh", "linalg.svd", "linalg.eig"}


@functools.cache
def read(path: Path) -> dict[str, dict[str, bytes]]:
    cases: dict[str, dict[str, bytes]] = defaultdict(dict)
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            case, _, part = member.rpartition("/")
            cases[case][part] = archive.read(member)
    return cases


def features(parts: dict[str, bytes]) -> set[str]:
    return {feature.name for feature in read_message(parts["program.pb"]).features}


def same(name: str, parts: dict[str, bytes]) -> None:
    """The program gives its frozen numbers, and exactly as many."""
    found, told = replay(parts)
    if "op:rng" in features(parts):  # any numbers of its distribution will do
        return
    assert f"out{len(found)}" not in parts and (f"out{len(found) - 1}" in parts or not found)
    wanted = [
        np.frombuffer(parts[f"out{i}"], x.dtype).reshape(x.shape) for i, x in enumerate(found)
    ]
    if "op:linalg.schur" in features(parts):
        found, wanted = (schur_invariants(*results) for results in (found, wanted))
    for array, right in zip(found, wanted, strict=True):
        compare(name, parts, array, right)
    for member, array in told.items():
        compare(name, parts, array, np.load(io.BytesIO(parts[f"{member}.npy"])).reshape(-1))


def schur_invariants(t: np.ndarray, z: np.ndarray, w: np.ndarray, info: np.ndarray) -> list:
    """What all Schur forms of a matrix share. The order of eigenvalues along the diagonal, and how
    the block of a conjugate pair stands, differ between LAPACKs, and between CPUs of one."""
    wide = t.astype(np.complex128)
    ordered = np.sort_complex(np.round(w.astype(np.complex128), 4))
    product = z @ wide @ np.conj(np.swapaxes(z, -1, -2))  # the matrix; zero without vectors
    below = np.tril(wide, -2)
    return [ordered, np.sort_complex(np.round(np.linalg.eigvals(wide), 4)), product, below, info]


def compare(name: str, parts: dict[str, bytes], found: np.ndarray, wanted: np.ndarray) -> None:
    wanted = wanted.reshape(found.shape)
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    left, right = found.astype(wide), wanted.astype(wide)
    rough = {feature.removeprefix("op:") for feature in features(parts)}
    if rough & UP_TO_PHASE:
        left, right = np.abs(left), np.abs(right)
    tolerance = 1e-3 if any(op.startswith("linalg.") for op in rough) else 1e-5
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance / 10, err_msg=name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_frozen_programs_give_the_frozen_numbers(path):
    for name, parts in read(path).items():
        same(name, parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_holds_every_operation_of_its_version(path):
    """And every type and attribute that came with a version up to it, with inputs and outputs."""
    held = set().union(*(features(parts) for parts in read(path).values()))
    version = version_tuple(path.stem)
    wanted = {
        f"op:{room.name}"
        for room in DEFINITIONS
        if version_tuple(room.since) <= version
        and not (room.name in LATE and version < version_tuple("1.2"))
    }
    for step in STEPS:
        if version_tuple(step.VERSION) <= version:
            wanted |= {f"type:{name}" for name in step.TYPES}
            wanted |= {f"attribute:{name}" for name in step.ATTRIBUTES}
    assert wanted <= held


def test_every_version_is_frozen():
    stems = [path.stem for path in FILES]
    assert stems == [FIRST, *(step.VERSION for step in STEPS)]


def test_today_can_be_frozen():
    """The next file would hold every operation, and replays as it was made."""
    held: set[str] = set()
    for entry in entries():
        if entry.name in ("host", "asynchronous", "functions", "tuples", "layers", "weights"):
            parts = frozen(entry)
            assert parts is not None
            same(entry.name, parts)
            held |= features(parts)
        elif sum(np.asarray(array).nbytes for array in entry.inputs) < 1 << 12:
            held |= {f.name for f in read_message(encode(entry.module)).features}
    assert {f"op:{room.name}" for room in DEFINITIONS} <= held

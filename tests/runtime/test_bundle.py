"""Bundles: whole or refused with one sentence, deterministic, trusted only where they were made."""

from __future__ import annotations

import json
import os
import stat

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import json_format

import girih
from girih import UserError
from girih.runtime import bundle as bundles
from girih.runtime import trust
from girih.runtime.archive import Archive, ArchiveWriter
from girih.runtime.bundle import Bundle
from girih.specs.generated import bundle_pb2, plan_pb2

from .fakes import NESTED, adding_program

IMAGE = bytes(range(64))


def weights():
    tied = np.arange(64, dtype=np.float32)
    return {
        "bias": np.float32(2).reshape(()),
        "head.weight": tied,
        "embedding.weight": tied,
        "half": np.ones(3, ml_dtypes.bfloat16),
    }


def sample(image=IMAGE, **parts):
    parts.setdefault("weights", weights())
    program = adding_program(image=image, **parts)
    x = np.ones((2, 3), np.float32)
    return program.with_checks([x, x])


def rewritten(source, target, **changes):
    """The bundle with members replaced, and a manifest that fits them."""
    archive = Archive(source)
    manifest = json.loads(bytes(archive.data("manifest.json")))
    with ArchiveWriter(target) as writer:
        for name in archive.entries:
            if name in ("manifest.json", "seal.json"):
                continue
            data = changes.pop(name, archive.data(name))
            if data is not None:
                writer.add(name, data)
        if "features" in changes:
            manifest["features"] += changes.pop("features")
        manifest["members"] = [
            {"name": name, "bytes": size, "sha256": digest}
            for name, (size, digest) in writer.digests.items()
        ]
        manifest |= changes
        writer.add("manifest.json", json.dumps(manifest).encode())
    return target


def sentence(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parts_survive(tmp_path):
    program = sample(provenance={"frontend": "test"}, debug={"a.txt": b"text"})
    program.save(tmp_path / "x.girih")
    found = Bundle(tmp_path / "x.girih")
    assert found.verify_all() == len(found.members)
    assert found.program == b"wire form"
    assert found.signatures == {"main": program.signature}
    assert bytes(found.variants["adding"].image) == IMAGE
    assert found.variants["adding"].native
    assert found.provenance["frontend"] == "test"
    assert found.debug == {"a.txt": b"text"}
    assert found.checks[0].outputs[0].tolist() == program.parts.checks[0].outputs[0].tolist()
    assert set(found.weights) == set(weights())
    for name, array in weights().items():
        assert found.weights[name].dtype == array.dtype
        assert found.weights[name].tobytes() == array.tobytes()
        assert found.weights[name].ctypes.data % 64 == 0


def test_tied_weights_are_stored_once(tmp_path):
    sample().save(tmp_path / "x")
    found = Bundle(tmp_path / "x")
    member = found.manifest["weights"]
    assert member["aliases"] == {"head.weight": "embedding.weight"}
    assert found.weights["head.weight"] is found.weights["embedding.weight"]


def test_documents_are_what_the_schema_says(tmp_path):
    adding_program(NESTED, IMAGE, weights=weights()).save(tmp_path / "x")
    archive = Archive(tmp_path / "x")
    for member, message in (
        ("manifest.json", bundle_pb2.Manifest()),
        ("signatures.json", bundle_pb2.Signatures()),
        ("provenance.json", bundle_pb2.Provenance()),
        ("seal.json", bundle_pb2.Seal()),
    ):
        json_format.Parse(bytes(archive.data(member)), message)
        assert message.ByteSize()


def test_equal_programs_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        sample().save(tmp_path / name)
    one = (tmp_path / "one").read_bytes()
    assert one == (tmp_path / "two").read_bytes()
    girih.load(tmp_path / "one").save(tmp_path / "three")
    assert one == (tmp_path / "three").read_bytes()
    girih.load(one).save(tmp_path / "one")  # over the very file
    assert one == (tmp_path / "one").read_bytes()


MEMBERS = (
    "program.pb",
    "signatures.json",
    "weights/weights.safetensors",
    "variants/adding/plan.pb",
    "variants/adding/image.bin",
    "checks/golden.safetensors",
    "provenance.json",
    "debug/a.txt",
    "manifest.json",
    "seal.json",
)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_flipped_byte_in_any_member(tmp_path, name):
    sample(debug={"a.txt": b"text"}).save(tmp_path / "x")
    entries = Archive(tmp_path / "x").entries
    assert tuple(entries) == MEMBERS
    entry = entries[name]
    data = bytearray((tmp_path / "x").read_bytes())
    x = np.ones((2, 3), np.float32)
    for position in (entry.start, entry.start + entry.bytes // 2, entry.start + entry.bytes - 1):
        data[position] ^= 4
        assert "bundle is damaged" in sentence(lambda: Bundle(bytes(data)).verify_all())
        assert "damaged" in sentence(lambda: girih.load(bytes(data), verify="all")(x, x))
        if name.startswith(("weights", "variants", "signatures", "manifest", "seal")):
            assert "damaged" in sentence(lambda: girih.load(bytes(data))(x, x))
        data[position] ^= 4


def test_altered_weights_never_give_a_result(tmp_path):
    sample().save(tmp_path / "x")
    entry = Archive(tmp_path / "x").entries["weights/weights.safetensors"]
    data = bytearray((tmp_path / "x").read_bytes())
    data[entry.start + entry.bytes - 1] ^= 1
    x = np.ones((2, 3), np.float32)
    program = girih.load(bytes(data))
    for _ in range(2):
        assert "weights.safetensors" in sentence(lambda: program(x, x))
    lazy = girih.load(bytes(data), verify="lazy")
    assert lazy(x, x)[0][0, 0] == 4  # as the user asked
    for unchecked in (program, lazy):
        assert "weights.safetensors" in sentence(lambda: unchecked.save(tmp_path / "y"))  # noqa: B023
    assert not (tmp_path / "y").exists()


def test_every_cut_is_one_sentence(tmp_path):
    sample().save(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for length in [*range(0, len(data), 997), *range(len(data) - 40, len(data))]:
        with pytest.raises(UserError) as caught:
            Bundle(data[:length])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2.0"}, "install a newer girih"),
        ({"version": "1.x"}, "malformed"),
        ({"version": 1}, "not a girih bundle"),
        ({"format": "other"}, "not a girih bundle"),
        ({"features": [{"name": "time.warp", "minimumRuntime": "9.1"}]}, "time.warp (girih 9.1)"),
        ({"features": [{}]}, "manifest.json is malformed"),
        ({"members": []}, "lists other members"),
        ({"members": [{}]}, "manifest.json is malformed"),
        ({"variants": [7]}, "manifest.json is malformed"),
        ({"variants": []}, "no compiled variant"),
        ({"variants": [{"target": "adding", "plan": "no.pb"}]}, "no.pb is missing"),
        ({"weights": {"member": "no"}}, "the member no is missing"),
        ({"weights": {"member": "program.pb"}}, "malformed"),
        ({"weights": {"member": MEMBERS[2], "aliases": {"a": "b"}}}, "stand for"),
        ({"signatures.json": b"{"}, "signatures.json is malformed"),
        ({"signatures.json": b"[" * 100_000}, "signatures.json is malformed"),
        ({"signatures.json": b'{"entries": {"main": {"inputs": 3}}}'}, "json is malformed"),
        ({"signatures.json": b'{"entries": {}}'}, "no entry point"),
        ({"signatures.json": None}, "signatures.json is missing"),
        ({"variants/adding/plan.pb": b"\xff\xff\xff"}, "plan is malformed"),
        ({"variants/adding/plan.pb": b""}, "plan is malformed"),
    ],
)  # fmt: skip
def test_documents_that_lie(tmp_path, changes, words):
    sample(image=b"").save(tmp_path / "x")
    path = rewritten(tmp_path / "x", tmp_path / "y", **changes)
    assert words in sentence(lambda: girih.load(path))


def test_a_later_minor_version_is_read(tmp_path):
    sample(image=b"").save(tmp_path / "x")
    girih.load(rewritten(tmp_path / "x", tmp_path / "y", version="1.9"))


def test_the_seal(tmp_path, own_configuration):
    program = sample()
    program.save(tmp_path / "ours")
    program.save(tmp_path / "plain", seal=False)
    key = own_configuration / "machine.key"
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    girih.load(tmp_path / "ours")
    for action in (
        lambda: girih.load(tmp_path / "plain", target="adding"),
        lambda: girih.load(rewritten(tmp_path / "ours", tmp_path / "altered")),
    ):
        words = sentence(action)
        assert "not compiled by this user" in words and "allow_native=True" in words
    girih.load(tmp_path / "plain", allow_native=True)
    key.unlink()
    assert "allow_native" in sentence(lambda: girih.load(tmp_path / "ours"))
    assert not key.exists()  # looking makes no key
    program.save(tmp_path / "again")
    girih.load(tmp_path / "again")
    assert "allow_native" in sentence(lambda: girih.load(tmp_path / "ours"))


def test_a_key_that_others_can_read_is_no_key(tmp_path, own_configuration):
    sample().save(tmp_path / "x")
    (own_configuration / "machine.key").chmod(0o644)
    assert "not compiled by this user" in sentence(lambda: girih.load(tmp_path / "x"))
    assert trust.seal(b"manifest") is None


def test_where_no_key_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    sample().save(tmp_path / "x")
    assert "seal.json" not in Archive(tmp_path / "x").entries


def test_data_alone_needs_no_trust(tmp_path):
    sample(image=b"").save(tmp_path / "x", seal=False)
    girih.load(tmp_path / "x")


def test_code_is_code_whatever_the_manifest_says(tmp_path):
    sample().save(tmp_path / "x")
    described = Bundle(tmp_path / "x").manifest["variants"]
    described[0]["native"] = False
    path = rewritten(tmp_path / "x", tmp_path / "y", variants=described)
    assert "not compiled by this user" in sentence(lambda: girih.load(path))


def test_a_plan_for_machine_code_is_native_even_without_any(tmp_path):
    sample(image=b"").save(tmp_path / "x")
    plan = plan_pb2.Plan.FromString(Bundle(tmp_path / "x").variants["adding"].plan)
    plan.target, plan.executor_entry = "cpu", 1 << 40
    changes = {"variants/adding/plan.pb": plan.SerializeToString()}
    path = rewritten(tmp_path / "x", tmp_path / "y", **changes)
    assert "not compiled by this user" in sentence(lambda: girih.load(path))


def test_verify_modes(tmp_path):
    sample().save(tmp_path / "x")
    assert "verify is one of" in sentence(lambda: girih.load(tmp_path / "x", verify="no"))


def test_only_the_chosen_variant_is_read(tmp_path):
    sample().save(tmp_path / "x")
    found = Bundle(tmp_path / "x")
    assert list(found.variants) == ["adding"] and len(found.variants) == 1
    assert "variants/adding/plan.pb" not in found._checked
    assert "not compiled for 'cpu', only for adding" in sentence(
        lambda: girih.load(tmp_path / "x", target="cpu")
    )


def test_feature_table_is_complete():
    assert all(version.count(".") == 1 for version in bundles.FEATURES.values())

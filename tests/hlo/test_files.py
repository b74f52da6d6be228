"""Whatever is given for a program or a bundle, its error says what it is and what would help."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import girih
from girih.cli.doctor import examine
from girih.hlo.errors import UserError
from girih.runtime.bundle import Bundle

KINDS = {
    "empty.pt2": (b"", "an empty file; .* make it anew"),
    "data.json": (b' {"a": 1}', "a JSON document; export"),
    "page.pt2": (b"<!DOCTYPE html><html>404</html>", "a web page, .*; fetch the file anew"),
    "pointer.pt2": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS .*; git lfs pull"),
    "model.py": (b"import torch\n", "a program in Python; name a function in it"),
    "photo.png": (b"\x89PNG\r\n\x1a\n" + bytes(60), "a picture .*numpy.save it"),
    "model.tar": (bytes(257) + b"ustar\0" + bytes(300), "a tar archive; unpack it first"),
    "model.zst": (b"\x28\xb5\x2f\xfd" + bytes(60), "a Zstandard file; unpack it first"),
    "saved_model.pb": (b"\x08\x01\x12\xf1\x02\x0a\x10" + bytes(300), "SavedModel of TensorFlow"),
    "small.pb": (b"\x08\x01\x12\x05\x0a\x03abc" + bytes(9), "a SavedModel of TensorFlow"),
    "model.bin": (b"\x08\x07\x12\x07pytorch\x1a" + bytes(90), "an ONNX model"),
    "cut.pt2": (b"PK\x03\x04" + bytes(60), "a zip file that is damaged.*; fetch the file anew"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_file_is(name: str, tmp_path: Path) -> None:
    data, said = KINDS[name]
    path = tmp_path / name
    path.write_bytes(data)
    for use in (girih.compile, girih.load, Bundle):
        with pytest.raises(UserError, match=said) as caught:
            use(path)
        assert str(path) in str(caught.value)
    findings = examine(path)
    assert findings.exit_code == 2 and findings.problems[0].remedy
    if path.suffix != ".py":  # which is known by its name alone
        with pytest.raises(UserError, match=f"the bytes: this is .*{said.split(';')[0]}"):
            girih.compile(data)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    for path, said in ((tmp_path, "a folder; name a file"), (tmp_path / "hub", "Hugging Face")):
        for use in (girih.compile, girih.load):
            with pytest.raises(UserError, match=said):
                use(path)
        assert said.split(";")[0] in examine(path).kind


def test_what_is_no_file_and_what_may_not_be_read(tmp_path: Path, monkeypatch) -> None:
    for name, said in (("x" * 5000, "File name too long"), ("a\0b", "null|no file has")):
        for use in (girih.compile, girih.load):
            with pytest.raises(UserError, match=said):
                use(name)
    for value in (None, 5, []):
        with pytest.raises(UserError, match="a bundle is a path or bytes, not a"):
            girih.load(value)  # type: ignore[arg-type]

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("stat", "open", "is_dir"):
        monkeypatch.setattr(Path, name, refused)
    with pytest.raises(UserError, match="m.pt2: cannot be read: Permission denied"):
        girih.compile("m.pt2")


def test_a_byte_order_mark_is_no_operation(tmp_path: Path) -> None:
    text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    path = tmp_path / "m.mlir"
    path.write_text(text, encoding="utf-8-sig")
    assert len(girih.import_model(path).body.arguments) == 1


def test_what_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="none of the files that girih reads.*; give StableHLO"):
        girih.compile(path)


def test_a_bundle_that_is_cut_off_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "x.girih"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.pb", bytes(100))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="this bundle is damaged"):
        girih.load(path)

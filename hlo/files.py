"""Files of other tools: what they are, and what would be needed instead.

Told by their first bytes and, in a zip, by the names of the members; nothing in them is run.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import NamedTuple

_ZIP = b"PK\x03\x04"
_EXPORT = "export the model with torch.export.save, or a JAX function with jax.export"
_WEIGHTS = "it has no program: build the model in its framework, load them there, and " + _EXPORT
_INPUT = "it is an input of a program: girih run BUNDLE FILE"
_COMPILE = "compile it first: girih compile FILE -o NEW.girih"
_UNPACK = "unpack it first"
_FETCH = "fetch the file anew"
_PICTURE = "as an input it has to be an array: numpy.save it, then girih run BUNDLE FILE"
_HEAD = 512  # bytes that tell a file; a tar says so behind 257


class FileKind(NamedTuple):
    """`what` a file is; `advice`; `source`: girih compiles it."""

    what: str
    advice: str
    source: bool = False

    def __str__(self) -> str:
        return f"this is {self.what}; {self.advice}"


_CODE = FileKind("a compiled library, program or object", _EXPORT)
_STARTS = {
    b"\x93NUMPY": FileKind("an array of numpy (.npy)", _INPUT),
    b"GGUF": FileKind("a file of weights for llama.cpp (GGUF)", _WEIGHTS),
    b"\x89HDF\r\n": FileKind("an HDF5 file, as Keras writes weights", _WEIGHTS),
    b"ML\xefR": FileKind("a StableHLO artifact", _COMPILE, source=True),
    b"\x1f\x8b": FileKind("a gzip file", _UNPACK),
    b"PK\x05\x06": FileKind("an empty zip file", _FETCH),
    b"BZh": FileKind("a bzip2 file", _UNPACK),
    b"\xfd7zXZ": FileKind("an xz file", _UNPACK),
    b"\x28\xb5\x2f\xfd": FileKind("a Zstandard file", _UNPACK),
    b"7z\xbc\xaf": FileKind("a 7-Zip archive", _UNPACK),
    b"\x7fELF": _CODE,
    b"\xcf\xfa\xed\xfe": _CODE,
    b"\xca\xfe\xba\xbe": _CODE,
    b"MZ\x90": _CODE,
    b"ptrt": FileKind("an engine of TensorRT", _EXPORT),
    b"\x89PNG": FileKind("a picture (PNG)", _PICTURE),
    b"\xff\xd8\xff": FileKind("a picture (JPEG)", _PICTURE),
    b"%PDF": FileKind("a PDF", _EXPORT),
    b"version https://git-lfs": FileKind("what Git LFS leaves in place of a file", "git lfs pull"),
}
_ONNX = FileKind(
    "an ONNX model", f"girih reads no ONNX: {_EXPORT}, from the model that it was made of"
)
_TFLITE = FileKind("a TensorFlow Lite model", f"girih reads none: {_EXPORT}")
_PICKLE = FileKind("a Python pickle, which is never loaded: it could run anything", _EXPORT)
_SAFETENSORS = FileKind("a file of weights (safetensors)", _WEIGHTS)
_TENSORFLOW = FileKind(
    "a SavedModel of TensorFlow",
    "give the HLO of its function: tf.function.experimental_get_compiler_ir(...)(stage='hlo')",
)
_EMPTY = FileKind("an empty file", "what wrote or fetched it may have failed: make it anew")
_PYTHON = FileKind(
    "a program in Python",
    "name a function in it that gives (source, *inputs): FILE.py:NAME",
)
_BUNDLE = b"program.pb"  # a bundle's first member
_CUT = FileKind("a zip file that is damaged: it has no end, or an altered one", _FETCH)
_FOLDER = FileKind("a folder", "name a file in it")
_TEXTS = {  # how texts that are no program begin
    b"{": FileKind("a JSON document", _EXPORT),
    b"[": FileKind("a JSON document", _EXPORT),
    b"<!doctype": FileKind("a web page, which a download that failed leaves", _FETCH),
    b"<html": FileKind("a web page, which a download that failed leaves", _FETCH),
    b"<?xml": FileKind("an XML document", _EXPORT),
}


def kind_of_file(path: Path) -> FileKind | None:
    """What a file or a folder of another tool is; None where it may be a source, or is unknown."""
    try:
        if path.is_dir():
            return _of_folder(path)
        if not path.is_file():  # a pipe would wait for a writer
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return None
    if head.startswith(_ZIP):
        return _of_zip(path, head)
    return kind_of_bytes(head, path.suffix)


def kind_of_bytes(data: bytes | bytearray | memoryview, suffix: str = "") -> FileKind | None:
    """The same of a file's bytes, or of its first ones where it is no zip."""
    head = bytes(data[:_HEAD])
    if head.startswith(_ZIP):
        return _of_zip(io.BytesIO(bytes(data)), head)
    if not head:
        return _EMPTY
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    if head[4:8] == b"TFL3":
        return _TFLITE
    if head[257:262] == b"ustar":
        return FileKind("a tar archive", _UNPACK)
    # A model's first field is its IR version, a small number; the producer's name comes next. In a
    # SavedModel a graph comes next, whose first field begins with a line feed.
    starts_so = len(head) > 4 and head[0] == 8 and 0 < head[1] < 20 and head[2] == 0x12
    if starts_so and suffix != ".onnx" and not _is_text(head[4 : 4 + min(head[3], 8)]):
        return _TENSORFLOW
    if suffix == ".onnx" or starts_so:
        return _ONNX
    if suffix == ".py":
        return _PYTHON
    if _is_text(head):
        text = head.lstrip().lower()
        for start, kind in _TEXTS.items():
            if text.startswith(start):
                return kind
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _PICKLE
    if len(head) > 9 and head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 1 << 27:
        return _SAFETENSORS
    return None


def _is_text(data: bytes) -> bool:
    """Whether there is no byte in it that only binary files have."""
    return all(byte >= 32 or byte in b"\t\n\r" for byte in data)


def _of_folder(path: Path) -> FileKind:
    if (path / "saved_model.pb").is_file():
        return _TENSORFLOW
    if (path / "config.json").is_file():
        return FileKind(
            "a folder of a model's weights, as Hugging Face's libraries keep it", _WEIGHTS
        )
    return _FOLDER


def _of_zip(file: Path | io.BytesIO, head: bytes) -> FileKind | None:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except OSError:
        return None
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return None if head[30:].startswith(_BUNDLE) else _CUT
    if _BUNDLE.decode() in names:
        return None
    if any("models/" in name and name.endswith(".json") for name in names):
        return FileKind("an export of PyTorch (.pt2)", _COMPILE, source=True)
    if any(name.endswith("serialized_exported_program.json") for name in names):
        return FileKind("an export of PyTorch (.pt2)", _COMPILE, source=True)
    if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
        return FileKind("a TorchScript model", f"girih reads none: {_EXPORT}")
    if any(name.endswith("data.pkl") for name in names):
        return FileKind("what torch.save wrote, which is weights as a rule", _WEIGHTS)
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("arrays of numpy (.npz)", _INPUT)
    if "model.weights.h5" in names:
        return FileKind("a model of Keras", _EXPORT)
    return FileKind("a zip file of another tool", _EXPORT)

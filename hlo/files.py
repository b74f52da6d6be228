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


class Kind(NamedTuple):
    """`what` a file is; `advice`; `source`: girih compiles it."""

    what: str
    advice: str
    source: bool = False

    def __str__(self) -> str:
        return f"this is {self.what}; {self.advice}"


_CODE = Kind("a compiled library, program or object", _EXPORT)
_STARTS = {
    b"\x93NUMPY": Kind("an array of numpy (.npy)", _INPUT),
    b"GGUF": Kind("a file of weights for llama.cpp (GGUF)", _WEIGHTS),
    b"\x89HDF\r\n": Kind("an HDF5 file, as Keras writes weights", _WEIGHTS),
    b"ML\xefR": Kind("a StableHLO artifact", _COMPILE, source=True),
    b"\x1f\x8b": Kind("a gzip file", _UNPACK),
    b"PK\x05\x06": Kind("an empty zip file", _FETCH),
    b"BZh": Kind("a bzip2 file", _UNPACK),
    b"\xfd7zXZ": Kind("an xz file", _UNPACK),
    b"\x28\xb5\x2f\xfd": Kind("a Zstandard file", _UNPACK),
    b"7z\xbc\xaf": Kind("a 7-Zip archive", _UNPACK),
    b"\x7fELF": _CODE,
    b"\xcf\xfa\xed\xfe": _CODE,
    b"\xca\xfe\xba\xbe": _CODE,
    b"MZ\x90": _CODE,
    b"ptrt": Kind("an engine of TensorRT", _EXPORT),
    b"\x89PNG": Kind("a picture (PNG)", _PICTURE),
    b"\xff\xd8\xff": Kind("a picture (JPEG)", _PICTURE),
    b"%PDF": Kind("a PDF", _EXPORT),
    b"version https://git-lfs": Kind("what Git LFS leaves in place of a file", "git lfs pull"),
}
_ONNX = Kind("an ONNX model", f"girih reads no ONNX: {_EXPORT}, from the model that it was made of")
_TFLITE = Kind("a TensorFlow Lite model", f"girih reads none: {_EXPORT}")
_PICKLE = Kind("a Python pickle, which is never loaded: it could run anything", _EXPORT)
_SAFETENSORS = Kind("a file of weights (safetensors)", _WEIGHTS)
_TENSORFLOW = Kind(
    "a SavedModel of TensorFlow",
    "give the HLO of its function: tf.function.experimental_get_compiler_ir(...)(stage='hlo')",
)
_EMPTY = Kind("an empty file", "what wrote or fetched it may have failed: make it anew")
_PYTHON = Kind(
    "a program in Python",
    "name a function in it that gives (source, *inputs): FILE.py:NAME",
)
_BUNDLE = b"program.pb"  # a bundle's first member
_CUT = Kind("a zip file that is damaged: it has no end, or an altered one", _FETCH)
_FOLDER = Kind("a folder", "name a file in it")
_TEXTS = {  # how texts that are no program begin
    b"{": Kind("a JSON document", _EXPORT),
    b"[": Kind("a JSON document", _EXPORT),
    b"<!doctype": Kind("a web page, which a download that failed leaves", _FETCH),
    b"<html": Kind("a web page, which a download that failed leaves", _FETCH),
    b"<?xml": Kind("an XML document", _EXPORT),
}


def kind_of_file(path: Path) -> Kind | None:
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


def kind_of_bytes(data: bytes | bytearray | memoryview, suffix: str = "") -> Kind | None:
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
        return Kind("a tar archive", _UNPACK)
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


def _of_folder(path: Path) -> Kind:
    if (path / "saved_model.pb").is_file():
        return _TENSORFLOW
    if (path / "config.json").is_file():
        return Kind("a folder of a model's weights, as Hugging Face's libraries keep it", _WEIGHTS)
    return _FOLDER


def _of_zip(file: Path | io.BytesIO, head: bytes) -> Kind | None:
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
        return Kind("an export of PyTorch (.pt2)", _COMPILE, source=True)
    if any(name.endswith("serialized_exported_program.json") for name in names):
        return Kind("an export of PyTorch (.pt2)", _COMPILE, source=True)
    if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
        return Kind("a TorchScript model", f"girih reads none: {_EXPORT}")
    if any(name.endswith("data.pkl") for name in names):
        return Kind("what torch.save wrote, which is weights as a rule", _WEIGHTS)
    if names and all(name.endswith(".npy") for name in names):
        return Kind("arrays of numpy (.npz)", _INPUT)
    if "model.weights.h5" in names:
        return Kind("a model of Keras", _EXPORT)
    return Kind("a zip file of another tool", _EXPORT)

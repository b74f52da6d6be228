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


class Kind(NamedTuple):
    """`what` a file is; `advice`; `source`: girih compiles it."""

    what: str
    advice: str
    source: bool = False

    def __str__(self) -> str:
        return f"this is {self.what}; {self.advice}"


_STARTS = {
    b"\x93NUMPY": Kind("an array of numpy (.npy)", _INPUT),
    b"GGUF": Kind("a file of weights for llama.cpp (GGUF)", _WEIGHTS),
    b"\x89HDF\r\n": Kind("an HDF5 file, as Keras writes weights", _WEIGHTS),
    b"ML\xefR": Kind("a StableHLO artifact", _COMPILE, source=True),
    b"\x1f\x8b": Kind("a gzip file", "unpack it first"),
    b"\x7fELF": Kind("a compiled library or object", _EXPORT),
}
_ONNX = Kind("an ONNX model", f"girih reads no ONNX: {_EXPORT}, from the model that it was made of")
_TFLITE = Kind("a TensorFlow Lite model", f"girih reads none: {_EXPORT}")
_PICKLE = Kind("a Python pickle, which is never loaded: it could run anything", _EXPORT)
_SAFETENSORS = Kind("a file of weights (safetensors)", _WEIGHTS)
_TENSORFLOW = Kind(
    "a SavedModel of TensorFlow",
    "give the HLO of its function: tf.function.experimental_get_compiler_ir(...)(stage='hlo')",
)


def kind_of_file(path: Path) -> Kind | None:
    """What a file or a folder of another tool is; None where it may be a source, or is unknown."""
    if path.is_dir():
        return _TENSORFLOW if (path / "saved_model.pb").is_file() else None
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return None
    if head.startswith(_ZIP):
        return _of_zip(path)
    return kind_of_bytes(head, path.suffix)


def kind_of_bytes(data: bytes, suffix: str = "") -> Kind | None:
    """The same of a file's bytes, or of its first ones where it is no zip."""
    head = bytes(data[:64])
    if head.startswith(_ZIP):
        return _of_zip(io.BytesIO(data))
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    if head[4:8] == b"TFL3":
        return _TFLITE
    # A model's first field is its IR version, a small number; the producer's name comes next.
    starts_so = len(head) > 2 and head[0] == 8 and 0 < head[1] < 20 and head[2] == 0x12
    if suffix == ".onnx" or starts_so:
        return _ONNX
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _PICKLE
    if len(head) > 9 and head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 1 << 27:
        return _SAFETENSORS
    return None


def _of_zip(file: Path | io.BytesIO) -> Kind | None:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return None
    if "program.pb" in names:
        return None  # a bundle
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

"""Named arrays in one buffer: safetensors files with aligned tensors, read without a copy.

Any safetensors reader can read what we write. Alignment is made of spaces after the header and of
`__pad_N` tensors, because the format allows no holes. Element types that safetensors does not know
(4-bit integers, some 8-bit floats, complex<f64>) are stored as bytes, their names in the metadata.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .archive import unique_keys

ALIGNMENT = 64
_PAGE = 4096
_MAX_HEADER = 100 << 20  # safetensors' own limit
_PAD = "__pad_"
_TYPE_KEY = "girih.type."

_NUMPY_TAGS = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_EXTENSION_TAGS = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
# Held as bytes, with the name in the metadata.
_UNTAGGED = (
    "complex128", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn",
    "float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)  # fmt: skip
_TAGS = {name: tag for tag, name in (_NUMPY_TAGS | _EXTENSION_TAGS).items()}

Arrays = Mapping[str, np.ndarray[Any, Any]]


def numpy_type(name: str) -> np.dtype[Any]:
    """The dtype of that name, from numpy or ml_dtypes; ValueError for any other name."""
    if name in _NUMPY_TAGS.values() or name == "complex128":
        return np.dtype(name)
    if name in _TAGS or name in _UNTAGGED:
        import ml_dtypes  # costs several milliseconds, few programs need it

        return np.dtype(getattr(ml_dtypes, name))
    raise ValueError(f"no element type is named {name!r}")


def encode(tensors: Arrays, metadata: Mapping[str, str] | None = None) -> tuple[int, Iterator[Any]]:
    """Size in bytes, and the buffers of a safetensors file with the arrays sorted by name.

    Tensors start at multiples of 64 bytes and the first at a multiple of 4096, from the file's
    start. Buffers are made one by one, so no second copy of all weights is ever in memory.
    """
    notes = dict(metadata or {})
    header: dict[str, Any] = {}
    order: list[str | int] = []  # a tensor's name, or a number of padding bytes
    offset = pads = 0
    for name in sorted(tensors):
        if name.startswith("__"):
            raise ValueError(f"a tensor may not be named {name!r}: two underscores are reserved")
        array = tensors[name]
        if gap := -offset % ALIGNMENT:
            header[f"{_PAD}{pads}"] = _entry("U8", (gap,), offset, gap)
            order.append(gap)
            pads, offset = pads + 1, offset + gap
        tag, shape = _TAGS.get(array.dtype.name), array.shape
        if tag is None:
            numpy_type(array.dtype.name)  # refuses what we could not read back
            notes[_TYPE_KEY + name] = array.dtype.name
            tag, shape = "U8", (*shape, array.dtype.itemsize)
        header[name] = _entry(tag, shape, offset, array.nbytes)
        order.append(name)
        offset += array.nbytes
    if notes:
        header = {"__metadata__": dict(sorted(notes.items())), **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    return 8 + len(text) + offset, _buffers(text, order, tensors)


def _entry(tag: str, shape: tuple[int, ...], offset: int, size: int) -> dict[str, Any]:
    return {"dtype": tag, "shape": list(shape), "data_offsets": [offset, offset + size]}


def _buffers(text: bytes, order: list[str | int], tensors: Arrays) -> Iterator[Any]:
    yield struct.pack("<Q", len(text)) + text
    for item in order:
        if isinstance(item, int):
            yield bytes(item)
        elif tensors[item].nbytes:
            yield np.ascontiguousarray(tensors[item]).reshape(-1).view(np.uint8)


def decode(data: Any) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The arrays, as read-only views of `data`, and the metadata; ValueError if it is malformed."""
    view = memoryview(data).toreadonly().cast("B")
    header, start = _header(view)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("the tensors' metadata is not a table of strings")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    end = 0
    for name, entry in header.items():
        dtype, shape, begin, stop = _checked(name, entry, metadata)
        if begin != end or start + stop > view.nbytes:
            raise ValueError(f"tensor {name!r} overlaps another one or lies outside the file")
        end = stop
        if not name.startswith(_PAD):
            bytes_of = np.frombuffer(view[start + begin : start + stop], np.uint8)
            arrays[name] = bytes_of.view(dtype).reshape(shape)
    if start + end != view.nbytes:
        raise ValueError("bytes that belong to no tensor follow the last one")
    notes = {key: note for key, note in metadata.items() if not key.startswith(_TYPE_KEY)}
    return arrays, notes


def _header(view: memoryview) -> tuple[dict[str, Any], int]:
    """The parsed header and where the data begins."""
    if view.nbytes < 8:
        raise ValueError("a tensor file is cut off in its header")
    (size,) = struct.unpack_from("<Q", view)
    if size > min(_MAX_HEADER, view.nbytes - 8):
        raise ValueError(f"a tensor file claims a header of {size} bytes")
    try:
        header = json.loads(bytes(view[8 : 8 + size]), object_pairs_hook=unique_keys)
    except (RecursionError, UnicodeDecodeError) as error:
        raise ValueError("the header of a tensor file is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError("the header of a tensor file is not a JSON object")
    return header, 8 + size


def _checked(
    name: str, entry: Any, metadata: Mapping[str, str]
) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """A tensor's dtype, shape and byte range, which must agree."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of tensor {name!r} is malformed")
    shape, offsets = entry["shape"], entry["data_offsets"]
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not lists or not all(type(n) is int and n >= 0 for n in (*shape, *offsets)):
        raise ValueError(f"the shape or the offsets of tensor {name!r} are malformed")
    tag = entry["dtype"]
    known = _NUMPY_TAGS.get(tag) or _EXTENSION_TAGS.get(tag)
    if known is None:
        raise ValueError(f"tensor {name!r} has the unknown element type {tag!r}")
    dtype = numpy_type(known)
    untagged = metadata.get(_TYPE_KEY + name)
    if untagged is not None:
        dtype = numpy_type(untagged)
        if tag != "U8" or not shape or shape[-1] != dtype.itemsize:
            raise ValueError(f"tensor {name!r} does not hold {untagged}")
        shape = shape[:-1]
    begin, stop = offsets
    if stop - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"tensor {name!r} claims {stop - begin} bytes, its type needs another size"
        )
    return dtype, tuple(shape), begin, stop

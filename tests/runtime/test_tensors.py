"""Weights files: read by others, aligned, and strict."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from girih.hlo.types import ElementType
from girih.runtime import tensors


def packed(arrays, metadata=None) -> bytes:
    size, buffers = tensors.encode(arrays, metadata)
    data = b"".join(bytes(buffer) for buffer in buffers)
    assert len(data) == size
    return data


@pytest.mark.parametrize("element", ElementType.table.values(), ids=str)
def test_every_element_type_round_trips(element):
    array = np.arange(6).reshape(2, 3).astype(element.dtype)
    arrays, _ = tensors.decode(packed({"x": array, "none": array[:0], "scalar": array[0, 0]}))
    assert arrays["x"].dtype == element.dtype
    assert arrays["x"].tobytes() == array.tobytes()
    assert arrays["none"].shape == (0, 3)
    assert arrays["scalar"].shape == ()


def test_alignment_and_other_readers():
    arrays = {"b": np.arange(3.0), "a": np.ones((5, 7), np.float32).T, "c": np.arange(9)}
    data = packed(arrays, {"note": "text"})
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    starts = [e["data_offsets"][0] for n, e in header.items() if not n.startswith("__")]
    assert (8 + size) % 4096 == 0 and all(start % 64 == 0 for start in starts)
    theirs = {k: v for k, v in safetensors.numpy.load(data).items() if not k.startswith("__pad")}
    assert set(theirs) == set(arrays)
    assert all(np.array_equal(theirs[name], arrays[name]) for name in arrays)
    assert tensors.decode(data)[1] == {"note": "text"}


def test_arrays_are_read_only_views():
    data = packed({"x": np.arange(4.0)})
    array = tensors.decode(data)[0]["x"]
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_equal_arrays_give_equal_bytes():
    one, two = np.arange(3.0), np.ones((2, 2), ml_dtypes.bfloat16)
    assert packed({"a": one, "b": two}) == packed({"b": two, "a": one})


def header_of(**entries) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 26) + b'{"a":1,"a":{"dtype":"F32"}',
        header_of(x=1),
        header_of(x={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),  # no data
        header_of(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(4),
        header_of(x={"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}) + bytes(4),
        header_of(x={"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}) + bytes(4),
        header_of(x={"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}) + bytes(4),
        header_of(x={"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}) + bytes(4),
        header_of(x={"dtype": "F32", "shape": [1], "data_offsets": [4]}) + bytes(4),
        header_of(x={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}) + bytes(8),
        header_of(x={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}) + bytes(9),
        header_of(x={"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]})
        + bytes(4),
        header_of(
            x={"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            __metadata__={"girih.type.x": "__class__"},
        )
        + bytes(4),
    ],
)
def test_malformed_files_are_value_errors(data):
    with pytest.raises(ValueError):  # noqa: PT011  # the bundle adds the file's name
        tensors.decode(data)


def test_reserved_names():
    with pytest.raises(ValueError, match="reserved"):
        tensors.encode({"__pad_0": np.ones(1)})

"""Code that was written elsewhere, as `foreign_call` carries it (specs/foreign_kernels.md).

`codes` of the operation is a tuple of dicts, which `read_codes` gives as `HostCode` and
`DeviceCode`; both turn back into the same dicts by `as_attribute`. Codes of targets that this
version does not know stay dicts that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UserError

Extent = tuple[int, int, int]
ELEMENTS = ("i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64", "f16", "bf16", "f32", "f64")
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class HostCode:
    """A function `void entry(const void *const *arguments, int64_t begin, int64_t end,
    void *scratch)` that computes the tiles [begin, end); any split of [0, tiles) gives the same.

    `arguments` has the addresses of the operands, then of the results, all dense and row-major.
    code: LLVM IR (text), or an ELF object (bytes) for `architecture`. features: what of the
    processor it needs, in LLVM's names. scratch: bytes for each worker, 64-byte aligned.
    """

    entry: str
    code: str | bytes
    architecture: str = ""
    features: tuple[str, ...] = ()
    tiles: int = 1
    scratch: int = 0

    def as_attribute(self) -> dict[str, Any]:
        text = isinstance(self.code, str)
        return {
            "target": "cpu", "language": "llvm" if text else "elf", "entry": self.entry,
            "code": self.code, "architecture": self.architecture, "features": self.features,
            "tiles": self.tiles, "scratch": self.scratch,
        }  # fmt: skip


@dataclass(frozen=True)
class BufferAddress:
    """The address of operand or result `slot` (operands first), or of scratch where it is -1."""

    slot: int
    offset: int = 0  # bytes


@dataclass(frozen=True)
class Number:
    """Little-endian bytes of a parameter that is a number of type `element`."""

    element: str
    data: bytes


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over a buffer, as cuTensorMapEncodeTiled takes it: dims fastest first in
    elements, strides in bytes of dims 1.., box in elements, swizzle in bytes."""

    buffer: BufferAddress
    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


Argument = BufferAddress | Number | TensorMap


@dataclass(frozen=True)
class DeviceLaunch:
    """One start of an entry; grid in blocks, block in threads, cluster in blocks, `shared` the
    dynamic shared memory of a block in bytes."""

    entry: str
    grid: Extent
    block: Extent
    arguments: tuple[Argument, ...]
    shared: int = 0
    cluster: Extent = (1, 1, 1)


@dataclass(frozen=True)
class DeviceCode:
    """PTX and its launches, one after the other on one stream. scratch: bytes of global memory
    while they run, undefined at first."""

    ptx: str
    launches: tuple[DeviceLaunch, ...]
    scratch: int = 0

    def as_attribute(self) -> dict[str, Any]:
        launches = tuple(
            {
                "entry": one.entry, "grid": one.grid, "block": one.block, "cluster": one.cluster,
                "shared": one.shared, "arguments": tuple(map(_argument, one.arguments)),
            }
            for one in self.launches
        )  # fmt: skip
        return {
            "target": "nvidia", "language": "ptx", "code": self.ptx, "launches": launches,
            "scratch": self.scratch,
        }  # fmt: skip


Code = HostCode | DeviceCode


def read_codes(codes: Sequence[Any]) -> tuple[Code, ...]:
    """The codes of targets that are known here; UserError for one that is malformed."""
    found: list[Code] = []
    for entry in codes:
        reader = MappingReader(entry, "code")
        key = reader.text("target"), reader.text("language")
        if key == ("cpu", "llvm") or key == ("cpu", "elf"):
            found.append(_host(reader, key[1]))
        elif key == ("nvidia", "ptx"):
            found.append(_device(reader))
    return tuple(found)


class MappingReader:
    """A mapping whose parts are asked for by kind; UserError names the part that is wrong."""

    def __init__(self, entry: Any, what: str) -> None:
        if not isinstance(entry, Mapping):
            raise UserError(f"a {what} of a foreign kernel is no mapping")
        self.entry, self.what = entry, what

    def _wrong(self, key: str, wanted: str) -> UserError:
        return UserError(f"a {self.what} of a foreign kernel has no '{key}' that is {wanted}")

    def text(self, key: str) -> str:
        value = self.entry.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def data(self, key: str) -> bytes:
        value = self.entry.get(key)
        if not isinstance(value, bytes):
            raise self._wrong(key, "bytes")
        return value

    def size(self, key: str, limit: int = 1 << 40) -> int:
        value = self.entry.get(key)
        if type(value) is not int or not 0 <= value <= limit:
            raise self._wrong(key, f"an integer from 0 to {limit}")
        return value

    def members(self, key: str) -> tuple[Any, ...]:
        value = self.entry.get(key)
        if not isinstance(value, tuple):
            raise self._wrong(key, "a tuple")
        return value

    def sizes(self, key: str, limit: int = 1 << 40) -> tuple[int, ...]:
        values = self.members(key)
        if not all(type(n) is int and 0 <= n <= limit for n in values):
            raise self._wrong(key, f"a tuple of integers from 0 to {limit}")
        return values

    def extent(self, key: str) -> Extent:
        values = self.sizes(key, (1 << 31) - 1)
        if len(values) != 3 or (key != "grid" and 0 in values):
            raise self._wrong(key, "three sizes")
        return values[0], values[1], values[2]


def _host(reader: MappingReader, language: str) -> HostCode:
    features = reader.members("features")
    if not all(isinstance(name, str) for name in features):
        raise UserError("a code of a foreign kernel has 'features' that are no texts")
    code = reader.text("code") if language == "llvm" else reader.data("code")
    return HostCode(
        reader.text("entry"), code, reader.text("architecture"), features,
        reader.size("tiles"), reader.size("scratch"),
    )  # fmt: skip


def _device(reader: MappingReader) -> DeviceCode:
    launches = []
    for member in reader.members("launches"):
        part = MappingReader(member, "launch")
        arguments = tuple(map(_read_argument, part.members("arguments")))
        launches.append(
            DeviceLaunch(
                part.text("entry"), part.extent("grid"), part.extent("block"), arguments,
                part.size("shared", (1 << 31) - 1), part.extent("cluster"),
            )
        )  # fmt: skip
    return DeviceCode(reader.text("code"), tuple(launches), reader.size("scratch"))


def _argument(argument: Argument) -> dict[str, Any]:
    if isinstance(argument, Number):
        return {"number": argument.data, "element": argument.element}
    if isinstance(argument, BufferAddress):
        return {"slot": argument.slot, "offset": argument.offset}
    return {
        **_argument(argument.buffer), "element": argument.element, "dims": argument.dims,
        "strides": argument.strides, "box": argument.box, "swizzle": argument.swizzle,
    }  # fmt: skip


def _read_argument(entry: Any) -> Argument:
    reader = MappingReader(entry, "argument")
    if "number" in reader.entry:
        return Number(_element(reader), reader.data("number"))
    slot = reader.entry.get("slot")
    if type(slot) is not int or slot < -1:
        raise UserError("an argument of a foreign kernel has no 'slot' that is an integer from -1")
    buffer = BufferAddress(slot, reader.size("offset"))
    if "box" not in reader.entry:
        return buffer
    dims, strides, box = reader.sizes("dims"), reader.sizes("strides"), reader.sizes("box")
    swizzle = reader.size("swizzle")
    if not (1 <= len(dims) <= 5 and len(strides) == len(dims) - 1 and len(box) == len(dims)):
        raise UserError("a tensor map needs 1 to 5 dims, as many boxes and one stride less")
    if swizzle not in SWIZZLES or 0 in dims or not all(1 <= n <= 256 for n in box):
        raise UserError("a tensor map needs dims from 1, boxes of 1 to 256 and a swizzle of "
                        "0, 32, 64 or 128 bytes")  # fmt: skip
    return TensorMap(buffer, _element(reader), dims, strides, box, swizzle)


def _element(reader: MappingReader) -> str:
    name = reader.text("element")
    if name not in ELEMENTS:
        raise UserError(f"an argument of a foreign kernel has the unknown element type '{name}'")
    return name

"""A linker for one shape of input: ELF64 objects -> one flat, position-independent image.

The image is what a bundle stores and the runtime maps executable: code and constants together, no
relocation left, no symbol from outside. An object that needs either is a bug of an emitter, and the
error names it. Reference: System V ABI x86-64 and AArch64 ELF supplements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...hlo.errors import CompilerBug

PAGE = 4096  # the image is mapped at a multiple of this; AArch64's ADRP relies on it
_ALIGNMENT = 64

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_X86_64, _AARCH64 = 62, 183
_SYMTAB, _RELA = 2, 4
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_LOCAL = 0


@dataclass(frozen=True)
class Image:
    """Linked bytes and the byte offset of every global function in them."""

    data: bytes
    symbols: dict[str, int]


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int


class _Object:
    """The parsed tables of one relocatable file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != _ELF64_LITTLE:
            raise CompilerBug("image: an object is not a little-endian ELF64 file")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (table,) = struct.unpack_from("<Q", data, 40)
        count, names = struct.unpack_from("<HH", data, 60)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
        strings = rows[names][4]
        self.sections = [
            _Section(self._string(strings + row[0]), row[1], row[2], *row[4:9]) for row in rows
        ]
        self.symbols: list[_Symbol] = []
        for section in self.sections:
            if section.kind == _SYMTAB:
                strings = self.sections[section.link].offset
                for at in range(section.offset, section.offset + section.size, 24):
                    name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                    self.symbols.append(
                        _Symbol(self._string(strings + name), info >> 4, index, value)
                    )

    def _string(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def loaded(self) -> list[int]:
        """The sections that belong in the image, code first."""
        found = []
        for index, section in enumerate(self.sections):
            if not section.flags & _ALLOC or section.size == 0:
                continue
            if section.name.startswith((".eh_frame", ".note", ".llvm")):
                continue  # unwinding never crosses a kernel
            if section.flags & _WRITE and not section.name.startswith(".data.rel.ro"):
                raise CompilerBug(f"image: section '{section.name}' is writable; images are not")
            found.append(index)
        return sorted(found, key=lambda i: not self.sections[i].flags & _EXECUTE)


def link(objects: Sequence[bytes]) -> Image:
    """One image of all objects, in order. Raises CompilerBug on what an image cannot hold."""
    parsed = [_Object(data) for data in objects]
    image = bytearray()
    places: list[dict[int, int]] = []
    for item in parsed:
        place: dict[int, int] = {}
        for index in item.loaded():
            section = item.sections[index]
            alignment = max(section.alignment, _ALIGNMENT if section.flags & _EXECUTE else 1)
            image.extend(bytes(-len(image) % alignment))
            place[index] = len(image)
            image.extend(item.data[section.offset : section.offset + section.size])
        places.append(place)
    symbols: dict[str, int] = {}
    for item, place in zip(parsed, places, strict=True):
        for symbol in item.symbols:
            if symbol.binding != _LOCAL and symbol.section in place:
                if symbol.name in symbols:
                    raise CompilerBug(f"image: symbol '{symbol.name}' is defined twice")
                symbols[symbol.name] = place[symbol.section] + symbol.value
    for item, place in zip(parsed, places, strict=True):
        _relocate(image, item, place, symbols)
    image.extend(bytes(-len(image) % _ALIGNMENT))
    return Image(bytes(image), symbols)


def _relocate(
    image: bytearray, item: _Object, place: dict[int, int], symbols: dict[str, int]
) -> None:
    apply = {_X86_64: _relocate_x86_64, _AARCH64: _relocate_aarch64}.get(item.machine)
    if apply is None:
        raise CompilerBug(f"image: no linker for ELF machine {item.machine}")
    for section in item.sections:
        if section.kind != _RELA or section.info not in place:
            continue
        base = place[section.info]
        for at in range(section.offset, section.offset + section.size, 24):
            offset, info, addend = struct.unpack_from("<QQq", item.data, at)
            symbol = item.symbols[info >> 32]
            target = _address(symbol, place, symbols)
            try:
                apply(image, base + offset, info & 0xFFFFFFFF, target, addend)
            except _Unsupported as error:
                where = item.sections[section.info].name
                name = symbol.name or "a section"
                raise CompilerBug(
                    f"image: {error} in '{where}' against '{name}'; only PC-relative is possible"
                ) from None


def _address(symbol: _Symbol, place: dict[int, int], symbols: dict[str, int]) -> int:
    if symbol.section in place:
        return place[symbol.section] + symbol.value
    if symbol.section == _UNDEFINED and symbol.name in symbols:
        return symbols[symbol.name]
    if symbol.section in (_ABSOLUTE, _COMMON):
        raise CompilerBug(f"image: symbol '{symbol.name}' is absolute or common")
    raise CompilerBug(f"image: undefined symbol '{symbol.name}'; kernels may call nothing outside")


class _Unsupported(Exception):
    pass


def _patch_signed(image: bytearray, at: int, size: int, value: int) -> None:
    if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
        raise _Unsupported(f"a {8 * size}-bit distance overflows")
    image[at : at + size] = value.to_bytes(size, "little", signed=True)


def _relocate_x86_64(image: bytearray, at: int, kind: int, target: int, addend: int) -> None:
    if kind in (2, 4):  # PC32, PLT32: call or address straight
        _patch_signed(image, at, 4, target + addend - at)
    elif kind == 24:  # PC64
        _patch_signed(image, at, 8, target + addend - at)
    elif kind in (9, 41, 42):  # GOTPCREL and relaxable kinds: mov from the table becomes lea
        if image[at - 2] != 0x8B:
            raise _Unsupported("a table entry that is no plain load (R_X86_64_GOTPCREL)")
        image[at - 2] = 0x8D
        _patch_signed(image, at, 4, target + addend - at)
    elif kind != 0:
        raise _Unsupported(f"relocation R_X86_64 kind {kind}")


def _field(bits: int, low: int, width: int) -> int:
    """The lowest `width` bits, moved up to bit `low` of an instruction word."""
    return (bits & ((1 << width) - 1)) << low


# AArch64: how a value enters an instruction word, by relocation kind.
_LOAD_SCALES = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # LDST{8,16,32,64,128}_ABS_LO12_NC


def _relocate_aarch64(image: bytearray, at: int, kind: int, target: int, addend: int) -> None:
    value = target + addend
    if kind in (260, 261, 262):  # PREL64, PREL32, PREL16
        _patch_signed(image, at, {260: 8, 261: 4, 262: 2}[kind], value - at)
        return
    (word,) = struct.unpack_from("<I", image, at)
    if kind in (275, 276, 311):  # ADR_PREL_PG_HI21(_NC), ADR_GOT_PAGE straight to the symbol
        pages = (value >> 12) - (at >> 12)
        word = word & 0x9F00001F | _field(pages, 29, 2) | _field(pages >> 2, 5, 19)
    elif kind == 274:  # ADR_PREL_LO21
        distance = value - at
        word = word & 0x9F00001F | _field(distance, 29, 2) | _field(distance >> 2, 5, 19)
    elif kind == 277:  # ADD_ABS_LO12_NC
        word = word & ~(0xFFF << 10) | _field(value, 10, 12)
    elif kind == 312:  # LD64_GOT_LO12_NC: the load from the table becomes an add
        word = 0x91000000 | word & 0x3FF | _field(value, 10, 12)
    elif kind in _LOAD_SCALES:
        word = word & ~(0xFFF << 10) | _field((value & 0xFFF) >> _LOAD_SCALES[kind], 10, 12)
    elif kind in (282, 283):  # JUMP26, CALL26
        word = word & 0xFC000000 | _field((value - at) >> 2, 0, 26)
    elif kind in (273, 280):  # LD_PREL_LO19, CONDBR19
        word = word & ~(0x7FFFF << 5) | _field((value - at) >> 2, 5, 19)
    elif kind == 279:  # TSTBR14
        word = word & ~(0x3FFF << 5) | _field((value - at) >> 2, 5, 14)
    elif kind != 0:
        raise _Unsupported(f"relocation R_AARCH64 kind {kind}")
    struct.pack_into("<I", image, at, word & 0xFFFFFFFF)

"""The container of a bundle: a zip of stored, aligned members in one canonical layout.

Any zip tool can list and extract a bundle. We read only what we would have written: members follow
each other without a gap, every header field has its one legal value, the directory ends the file.
So members cannot overlap, hide or point outside, and every byte of the file is either member data
or compared with what it has to be. See specs/bundle.md.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ..hlo.errors import UserError

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")

_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = 0x04034B50, 0x02014B50, 0x06054B50
_END64_MAGIC, _LOCATOR_MAGIC = 0x06064B50, 0x07064B50

_VERSION, _VERSION64 = 20, 45  # zip's "version needed": 2.0, and 4.5 for zip64
_MADE_BY = (3 << 8) | _VERSION64  # unix
_REGULAR_FILE = 0o100644 << 16  # external attributes
_DATE = (1 << 5) | 1  # 1980-01-01, zip's first day: bundles hold no times
_ALIGNMENT_FIELD = 0xD935  # zipalign's extra field: the alignment, then zeros
_ZIP64_FIELD = 1
_FULL = 0xFFFFFFFF
_MAX_MEMBERS = 1 << 16
_CHUNK = 4 << 20

DATA_ALIGNMENT = 64
PAGE_ALIGNMENT = 4096

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


@dataclass(frozen=True)
class ArchiveMember:
    """One member: where its data lies in the file."""

    name: str
    start: int
    bytes: int
    crc: int


class Archive:
    """A zip read through a memory map; `entries` in file order, member data as read-only views."""

    def __init__(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview):
        """Map a file, or copy bytes to aligned memory; UserError if the layout is not canonical."""
        if isinstance(source, (bytes, bytearray, memoryview)):
            self.label = "bundle"
            self._map, self._is_file = _copy_to_pages(memoryview(source).cast("B")), False
            self.size = len(source)
        elif isinstance(source, (str, os.PathLike)):
            self.label = str(source)
            self._map, self._is_file = _map_file(Path(source)), True
            self.size = len(self._map)
        else:
            raise UserError(f"a bundle is a path or bytes, not a {type(source).__name__}")
        self._view = memoryview(self._map).toreadonly()[: self.size]
        self.entries: Mapping[str, ArchiveMember] = {e.name: e for e in self._read_directory()}

    def data(self, name: str) -> memoryview:
        """The bytes of a member, without a copy; KeyError if there is none."""
        entry = self.entries[name]
        return self._view[entry.start : entry.start + entry.bytes]

    def pieces(self, name: str) -> Iterator[memoryview]:
        """The bytes of a member, piece by piece; memory of a file's piece is given back when the
        next one is asked for, and read again from the file where somebody needs it."""
        data, start = self.data(name), self.entries[name].start
        for begin in range(0, len(data), _CHUNK):
            yield data[begin : begin + _CHUNK]
            if self._is_file and hasattr(mmap, "MADV_DONTNEED"):
                first = (start + begin) // mmap.PAGESIZE * mmap.PAGESIZE
                last = min(start + begin + _CHUNK, self.size)
                self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def check_crc(self, name: str) -> None:
        """UserError if the member's bytes do not have the checksum in its header."""
        if zlib.crc32(self.data(name)) != self.entries[name].crc:
            raise self.damaged(f"the checksum of member {name} does not fit its bytes")

    def damaged(self, reason: str) -> UserError:
        """The error for a file that is not what it says: one sentence with the file and reason."""
        return UserError(
            f"{self.label}: this bundle is damaged or was altered: {reason}; "
            "compile it again or fetch a fresh copy"
        )

    def _read_directory(self) -> list[ArchiveMember]:
        count, start, size, tail = self._read_end()
        if start + size != tail or start > self.size:
            raise self.damaged("its directory does not end where the file says")
        entries: list[ArchiveMember] = []
        position, expected_start = start, 0
        names: set[str] = set()
        for _ in range(count):
            if position + _CENTRAL.size > tail:
                raise self.damaged("its directory is cut off")
            entry, position = self._read_entry(position, tail, expected_start)
            if entry.name in names:
                raise self.damaged(f"it holds the member {entry.name} twice")
            names.add(entry.name)
            entries.append(entry)
            expected_start = entry.start + entry.bytes
        if position != tail:
            raise self.damaged("its directory holds bytes that belong to no member")
        if expected_start != start:
            raise self.damaged("bytes that belong to no member lie before its directory")
        return entries

    def _read_end(self) -> tuple[int, int, int, int]:
        """Number of members, start and size of the directory, and where its end records begin."""
        tail = self.size - _END.size
        if tail < 0 or self.size < _LOCAL.size or self._field(0) != _LOCAL_MAGIC:
            raise UserError(f"{self.label}: this is not a girih bundle (it does not start as one)")
        magic, disk, first_disk, here, count, size, start, comment = _END.unpack_from(
            self._view, tail
        )
        if magic != _END_MAGIC:
            raise self.damaged("its end is missing or something was appended")
        if disk or first_disk or here != count or comment:
            raise self.damaged("its end record is malformed")
        if count != 0xFFFF and size != _FULL and start != _FULL:
            return count, start, size, tail
        return self._read_end64(tail, (count, size, start))

    def _read_end64(self, tail: int, small: tuple[int, int, int]) -> tuple[int, int, int, int]:
        locator = tail - _LOCATOR.size
        position = locator - _END64.size
        if position < 0:
            raise self.damaged("its zip64 end record is missing")
        if _LOCATOR.unpack_from(self._view, locator) != (_LOCATOR_MAGIC, 0, position, 1):
            raise self.damaged("its zip64 end record is not where the file says")
        record = _END64.unpack_from(self._view, position)
        count, size, start = record[7:]
        fixed = (_END64_MAGIC, _END64.size - 12, _MADE_BY, _VERSION64, 0, 0, count)
        if record[:7] != fixed or count > _MAX_MEMBERS:
            raise self.damaged("its zip64 end record is malformed")
        limits = (0xFFFF, _FULL, _FULL)
        if any(
            shown not in pair
            for shown, *pair in zip(small, limits, (count, size, start), strict=True)
        ):
            raise self.damaged("its two end records disagree")
        return count, start, size, position

    def _read_entry(self, position: int, tail: int, header_start: int) -> tuple[ArchiveMember, int]:
        """The member whose directory entry is at `position`, and where the next entry begins."""
        fields = _CENTRAL.unpack_from(self._view, position)
        (magic, made_by, version, flags, method, time, date, crc, packed, size) = fields[:10]
        name_size, extra_size, comment_size, disk, internal, external, offset = fields[10:]
        end = position + _CENTRAL.size + name_size + extra_size + comment_size
        if magic != _CENTRAL_MAGIC or end > tail:
            raise self.damaged("its directory is malformed")
        name = self._name(position + _CENTRAL.size, name_size)
        extra = bytes(self._view[position + _CENTRAL.size + name_size : end])
        if flags & 1:
            raise self.damaged(f"member {name} is encrypted")
        if method:
            raise self.damaged(f"member {name} is compressed")
        if external >> 28 == 0o12:
            raise self.damaged(f"member {name} is a symbolic link")
        large = _FULL in (packed, size, offset)
        if large:
            size, packed, offset = self._read_zip64(name, extra, (size, packed, offset))
        elif extra:
            raise self.damaged(f"the directory entry of member {name} is malformed")
        if size != packed or offset + size > self.size:
            raise self.damaged(
                f"member {name} claims {size} bytes, more than the file of {self.size} bytes holds"
                if offset + size > self.size
                else f"member {name} claims two different sizes"
            )
        fixed = (made_by, version, flags, time, date, comment_size, disk, internal, external)
        needed = _VERSION64 if large else _VERSION
        if fixed != (_MADE_BY, needed, 0, 0, _DATE, 0, 0, 0, _REGULAR_FILE):
            raise self.damaged(f"the directory entry of member {name} is malformed")
        if offset != header_start:
            raise self.damaged(f"member {name} overlaps another one or leaves a gap")
        return self._read_local(name, header_start, size, crc), end

    def _read_zip64(self, name: str, extra: bytes, small: tuple[int, ...]) -> tuple[int, int, int]:
        """Sizes and offset from the zip64 field, which we always write with all three."""
        head, sizes = extra[:4], extra[4:]
        if (
            head != struct.pack("<HH", _ZIP64_FIELD, 24)
            or len(sizes) != 24
            or set(small) != {_FULL}
        ):
            raise self.damaged(f"the zip64 sizes of member {name} are malformed")
        return struct.unpack("<QQQ", sizes)

    def _read_local(self, name: str, position: int, size: int, crc: int) -> ArchiveMember:
        """The member's place, after its own header was compared with the directory's entry."""
        head_end = position + _LOCAL.size + len(name)
        if head_end > self.size:
            raise self.damaged(f"member {name} lies outside the file")
        extra_size = _LOCAL.unpack_from(self._view, position)[10]
        start = head_end + extra_size
        extra = bytes(self._view[head_end:start])
        large = extra[:2] == struct.pack("<H", _ZIP64_FIELD)
        alignment = 0
        if len(extra) >= (skip := 20 if large else 0) + 6:
            alignment = struct.unpack_from("<H", extra, skip + 4)[0]
        if alignment not in (DATA_ALIGNMENT, PAGE_ALIGNMENT):
            raise self.damaged(f"the header of member {name} is malformed")
        header = _local_header(name, position, size, crc, alignment, large)
        if self._view[position:start] != header:
            raise self.damaged(f"the header of member {name} does not fit the directory")
        if start + size > self.size:
            raise self.damaged(f"member {name} lies outside the file")
        return ArchiveMember(name, start, size, crc)

    def _name(self, position: int, size: int) -> str:
        raw = bytes(self._view[position : position + size])
        name = raw.decode("ascii", "replace")
        if not _NAME.fullmatch(name) or len(name) > 255:
            shown = ascii(name[:80])
            if name.startswith(("/", "\\")) or name[1:2] == ":":
                raise self.damaged(f"the member name {shown} is an absolute path")
            if ".." in re.split(r"[/\\]", name):
                raise self.damaged(f"the member name {shown} leads out of the bundle")
            raise self.damaged(f"the member name {shown} is not a plain relative name")
        return name

    def _field(self, position: int) -> int:
        return struct.unpack_from("<I", self._view, position)[0]


class ArchiveWriter:
    """Writes members one after the other to `path`, which appears whole or not at all.

    Use as a context manager. Equal members give equal bytes: no times, no owner, no path.
    """

    def __init__(self, path: str | os.PathLike[str], large: int = _FULL):
        """`large`: sizes and offsets from here on are written in zip64 fields (tests lower it)."""
        self._path = Path(path)
        self._large = large
        self._temporary = self._path.with_name(f".{self._path.name}.{os.urandom(4).hex()}.tmp")
        self._entries: list[tuple[ArchiveMember, int, bool]] = []
        self._file: BinaryIO
        self.digests: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> ArchiveWriter:
        try:
            self._file = open(self._temporary, "xb")  # noqa: SIM115  # closed in __exit__
        except OSError as error:
            raise UserError(f"{self._path}: cannot write here: {error.strerror}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write_directory()
                self._file.close()
            if kind is None:
                os.replace(self._temporary, self._path)
        except OSError as problem:
            raise UserError(f"{self._path}: cannot write: {problem.strerror}") from problem
        finally:
            with suppress(OSError):  # what a full disk left in the file's buffer
                self._file.close()
            with suppress(OSError):
                os.unlink(self._temporary)
        if isinstance(error, OSError):  # such as a full disk, while a member was written
            raise UserError(f"{self._path}: cannot write: {error.strerror}") from error

    def add(self, name: str, data: Any, alignment: int = DATA_ALIGNMENT) -> str:
        """Write a member from one buffer; its sha256."""
        view = memoryview(data).cast("B")
        return self.add_stream(name, view.nbytes, [view], alignment)

    def add_stream(
        self, name: str, size: int, parts: Iterable[Any], alignment: int = DATA_ALIGNMENT
    ) -> str:
        """Write a member of `size` bytes from buffers that arrive one by one; its sha256."""
        if not _NAME.fullmatch(name) or name in self.digests:
            raise ValueError(f"{name!r} is not a new, plain member name")
        position = self._file.tell()
        large = max(size, position) >= self._large
        self._file.write(_local_header(name, position, size, 0, alignment, large))
        start, crc, digest = self._file.tell(), 0, hashlib.sha256()
        for part in parts:
            view = memoryview(part).cast("B")
            for index in range(0, view.nbytes, _CHUNK):  # chunks stay in cache for all three
                chunk = view[index : index + _CHUNK]
                crc = zlib.crc32(chunk, crc)
                digest.update(chunk)
                self._file.write(chunk)
        end = self._file.tell()
        if end - start != size:
            raise ValueError(f"member {name} was announced with {size} bytes, got {end - start}")
        self._file.seek(position)
        self._file.write(_local_header(name, position, size, crc, alignment, large))
        self._file.seek(end)
        self._entries.append((ArchiveMember(name, start, size, crc), position, large))
        self.digests[name] = (size, digest.hexdigest())
        return digest.hexdigest()

    def _write_directory(self) -> None:
        start = self._file.tell()
        for entry, position, large in self._entries:
            size = _FULL if large else entry.bytes
            extra = struct.pack("<HHQQQ", _ZIP64_FIELD, 24, entry.bytes, entry.bytes, position)
            extra = extra if large else b""
            self._file.write(
                _CENTRAL.pack(
                    _CENTRAL_MAGIC, _MADE_BY, _VERSION64 if large else _VERSION, 0, 0, 0, _DATE,
                    entry.crc, size, size, len(entry.name), len(extra), 0, 0, 0, _REGULAR_FILE,
                    _FULL if large else position,
                )
                + entry.name.encode()
                + extra
            )  # fmt: skip
        end, count = self._file.tell(), len(self._entries)
        size = end - start
        small = (min(count, 0xFFFF), min(size, _FULL), min(start, _FULL))
        if start >= self._large or count >= 0xFFFF:
            small = (small[0], small[1], _FULL)
            fields = (0, 0, count, count, size, start)
            self._file.write(
                _END64.pack(_END64_MAGIC, _END64.size - 12, _MADE_BY, _VERSION64, *fields)
                + _LOCATOR.pack(_LOCATOR_MAGIC, 0, end, 1)
            )
        self._file.write(_END.pack(_END_MAGIC, 0, 0, small[0], *small, 0))


def _local_header(
    name: str, position: int, size: int, crc: int, alignment: int, large: bool
) -> bytes:
    """A member's header at file offset `position`, padded so that its data starts aligned."""
    sizes = struct.pack("<HHQQ", _ZIP64_FIELD, 16, size, size) if large else b""
    unpadded = position + _LOCAL.size + len(name) + len(sizes) + 6
    zeros = -unpadded % alignment
    extra = sizes + struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + zeros, alignment) + bytes(zeros)
    shown = _FULL if large else size
    version = _VERSION64 if large else _VERSION
    return (
        _LOCAL.pack(_LOCAL_MAGIC, version, 0, 0, 0, _DATE, crc, shown, shown, len(name), len(extra))
        + name.encode()
        + extra
    )


def _map_file(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder, not a girih bundle") from error
    except ValueError as error:  # an empty file cannot be mapped, nor a name with a zero opened
        reason = "no file has this name" if "\0" in str(path) else "the file is empty"
        raise UserError(f"{path}: this is not a girih bundle ({reason})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _copy_to_pages(data: memoryview) -> mmap.mmap:
    """Page-aligned memory with the bytes, so that member alignment holds as it does in a file."""
    pages = mmap.mmap(-1, max(len(data), 1))
    pages[: len(data)] = data
    return pages


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: an object whose keys differ; ValueError where Python would keep the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in a JSON object")
    return found

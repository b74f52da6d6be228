"""Compiled kernels in the user's cache folder, named by all that they depend on.

A key is the operation's canonical text, the target and a digest of the compiler's own sources, so
an entry never goes stale: another compiler asks for other names. An entry is one file with a
checksum; it appears whole or not at all, and a damaged one counts as absent and is deleted.

The files hold machine code. Only files and folders that belong to this user, and that nobody else
may write, are read; the folder is made for its user alone.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import json
import os
import stat
import struct
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..hlo.errors import UserError
from ..hlo.size_text import parse_dim
from ..hlo.sizes import SizeConstraint
from ..hlo.symbols import SymbolicDim
from ..optimizer.plan import KernelFacts

CAPACITY = 256 << 20  # bytes; above it the entries that were used longest ago go
_MAGIC = b"girih kernel 1\n"
_CHECKSUM = 32
_LENGTHS = struct.Struct("<QQ")  # of the header and of the packed operation text
_SUFFIX = ".kernel"
_STALE = 3600.0  # seconds after which a temporary file belongs to nobody
_IMPORTED = time.time()
# Bytes of all entries of a folder, as far as this process knows: looked up once, then counted.
_SIZES: dict[tuple[Path, str], int] = {}
_COMPARED = 256  # entries that `explain` compares texts with


def cache_folder() -> Path:
    """Where this user's caches of girih are, by the platform's convention."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "girih"


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel's object code, the symbol that it defines, and what a plan says of it."""

    symbol: str
    facts: KernelFacts
    object: bytes


@dataclass(frozen=True)
class Key:
    """What a kernel depends on: canonical text, target and compiler."""

    operation: str
    target: str
    compiler: str

    @functools.cached_property
    def digest(self) -> str:
        """The entry's name: 40 hexadecimal digits."""
        parts = (self.operation, self.target, self.compiler)
        state = hashlib.blake2b(digest_size=20)
        for part in parts:
            data = part.encode()
            state.update(len(data).to_bytes(8, "little") + data)
        return state.hexdigest()


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache."""

    path: Path
    bytes: int
    used: float  # seconds since the epoch

    def read(self) -> tuple[Key, CompiledKernel] | None:
        """What it holds; None if it is damaged or not to be trusted."""
        data = _read_trusted(self.path, touch=False)
        return None if data is None else _decode(data)


def key_of(operation: str, target: Hashable) -> Key:
    """The key of a kernel by its operation's canonical text and a target, whose `repr` says all."""
    return Key(operation, _target_text(target), compiler_digest() or "")


@functools.lru_cache(maxsize=16)
def _target_text(target: Hashable) -> str:
    return repr(target)


@functools.cache
def compiler_digest() -> str | None:
    """A digest of everything that decides code: the sources of the compiler, and LLVM's version.

    None if a source was changed while this process runs: which of it runs is not known then.
    """
    sources = sources_digest("hlo", "optimizer", "backends")
    if sources is None:
        return None
    return hashlib.blake2b(f"{sources} {_llvm_version()}".encode(), digest_size=16).hexdigest()


def sources_digest(*names: str) -> str | None:
    """A digest of files and folders of this package; None if one was changed while it runs."""
    root = Path(__file__).resolve().parents[1]
    started = _process_start()
    state = hashlib.blake2b(digest_size=16)
    for name in names:
        place = root / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".json"):
                if path.stat().st_mtime >= started:
                    return None
                state.update(f"{path.relative_to(root).as_posix()}\0".encode())
                state.update(hashlib.blake2b(path.read_bytes(), digest_size=16).digest())
    return state.hexdigest()


def _process_start() -> float:
    """When this process began, in seconds since the epoch; where nobody tells, when this module
    was imported."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, AttributeError, ValueError, IndexError):
        return _IMPORTED


def _llvm_version() -> str:
    import llvmlite
    import llvmlite.binding

    return f"{llvmlite.__version__} {llvmlite.binding.llvm_version_info}"


def open_cache(choice: str | None) -> DiskCache | None:
    """The cache that `Options.cache` means: None, the user's folder; "off", none; or a path."""
    if choice == "off":
        return None
    if choice is not None:
        return DiskCache(Path(choice))
    try:
        return DiskCache(cache_folder() / "kernels")
    except RuntimeError:  # no home folder is known
        return None


class FileCache:
    """Entries with names of hexadecimal digits in a folder, one file each; any number of threads
    and processes may share it.

    Nothing here fails where the folder is missing, read-only or full: then less is kept.
    `suffix`: of the entries' names; the capacity in bytes is that of all entries of this suffix.
    """

    suffix = ""

    def __init__(self, folder: Path, capacity: int = CAPACITY) -> None:
        self.folder, self.capacity = folder, capacity

    def read(self, digest: str) -> bytes | None:
        """The bytes of an entry; None where there is none, or none to be trusted."""
        return _read_trusted(self._path(digest), touch=True) if self._is_trusted() else None

    def drop_damaged(self, digest: str, what: str) -> None:
        """Delete an entry that is not whole, with a warning."""
        path = self._path(digest)
        with contextlib.suppress(OSError):
            path.unlink()
        warnings.warn(
            f"{path}: this entry of the {what} cache was damaged; it is compiled again",
            RuntimeWarning,
            stacklevel=3,
        )

    def keep(self, digest: str, write: Callable[[Path], None]) -> None:
        """Keep what `write` puts into the file that it is given; old entries go where the folder
        grows beyond its capacity."""
        path = self._path(digest)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_trusted():
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                write(temporary)
                os.chmod(temporary, 0o600)
                added = temporary.stat().st_size
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                return
        except OSError:
            return
        place = (self.folder, self.suffix)
        known = _SIZES.get(place)
        size = sum(entry.bytes for entry in self.entries()) if known is None else known + added
        _SIZES[place] = size
        if size > self.capacity:
            self._evict()

    def entries(self) -> list[CacheEntry]:
        """All entries, the one used last first."""
        found = []
        for path in self._files():
            if path.suffix == self.suffix and not path.name.startswith("."):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append(CacheEntry(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.path))

    def clear(self) -> tuple[int, int]:
        """Delete all entries: how many, and how many bytes, they were."""
        count = size = 0
        for entry in self.entries():
            try:
                entry.path.unlink()
            except FileNotFoundError:
                continue  # another process was faster
            except OSError as error:
                raise UserError(f"{entry.path}: cannot delete: {error.strerror}") from error
            count, size = count + 1, size + entry.bytes
        _SIZES.pop((self.folder, self.suffix), None)
        return count, size

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest}{self.suffix}"

    def _files(self) -> Iterator[Path]:
        try:
            yield from self.folder.glob("[0-9a-f][0-9a-f]/*")
        except OSError:
            return

    def _is_trusted(self) -> bool:
        """Whether the folder is this user's and nobody else can put files into it."""
        if os.name != "posix":
            return self.folder.is_dir()
        try:
            status = os.stat(self.folder)
        except OSError:
            return False
        mode = status.st_mode
        return stat.S_ISDIR(mode) and status.st_uid == os.geteuid() and not mode & 0o022

    def _evict(self) -> None:
        """Delete what was used longest ago, down to four fifths of the capacity."""
        now = time.time()
        for path in self._files():
            with contextlib.suppress(OSError):
                if path.name.startswith(".") and now - path.stat().st_mtime > _STALE:
                    path.unlink()
        entries = self.entries()
        size = sum(entry.bytes for entry in entries)
        while entries and size > self.capacity * 4 // 5:
            entry = entries.pop()
            with contextlib.suppress(OSError):
                entry.path.unlink()
                size -= entry.bytes
        _SIZES[self.folder, self.suffix] = size


class DiskCache(FileCache):
    """Compiled kernels in a folder."""

    suffix = _SUFFIX

    def load(self, key: Key) -> CompiledKernel | None:
        """The kernel of that key, or None."""
        data = self.read(key.digest)
        if data is None:
            return None
        found = _decode(data)
        if found is None:
            self.drop_damaged(key.digest, "kernel")
            return None
        return found[1] if found[0] == key else None

    def store(self, key: Key, kernel: CompiledKernel) -> None:
        """Keep a kernel; old ones go where the folder grows beyond its capacity."""
        self.keep(key.digest, lambda path: _write_private(path, _encode(key, kernel)))

    def explain(self, key: Key) -> str:
        """ "hit", or why the key missed: what differs from the entry that is nearest to it."""
        entry = CacheEntry(self._path(key.digest), 0, 0.0)
        found = entry.read() if self._is_trusted() else None
        if found is not None and found[0] == key:
            return "hit"
        others = self._keys()
        same = [other for other in others if other.operation == key.operation]
        if same:
            nearest = max(same, key=lambda other: other.target == key.target)
            if nearest.target != key.target:
                return "miss: compiled for another target\n" + _difference(
                    nearest.target.replace(", ", ",\n"), key.target.replace(", ", ",\n")
                )
            return (
                "miss: compiled by another version of the compiler "
                f"({nearest.compiler[:8]}, now {key.compiler[:8]})"
            )
        if not others:
            return "miss: the cache is empty"
        lines = key.operation.splitlines()
        matcher = difflib.SequenceMatcher(b=lines, autojunk=False)

        def likeness(other: Key) -> float:
            matcher.set_seq1(other.operation.splitlines())
            return matcher.ratio()

        nearest = max(others[:_COMPARED], key=likeness)
        return "miss: a new operation; nearest entry:\n" + _difference(
            nearest.operation, key.operation
        )

    def _keys(self) -> list[Key]:
        return [found[0] for entry in self.entries() if (found := entry.read()) is not None]


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _read_trusted(path: Path, touch: bool) -> bytes | None:
    """The bytes of a plain file that only this user can write; None for any other, or none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
                return None
            if touch:
                with contextlib.suppress(OSError):  # a read-only folder keeps its order
                    os.utime(descriptor if os.utime in os.supports_fd else path)
            return file.read()
    except OSError:
        return None


def _encode(key: Key, kernel: CompiledKernel) -> bytes:
    header = {
        "symbol": kernel.symbol,
        "facts": {name: _plain(fact) for name, fact in kernel.facts._asdict().items()},
        **{name: text for name, text in asdict(key).items() if name != "operation"},
    }
    head = json.dumps(header, sort_keys=True).encode()
    text = zlib.compress(key.operation.encode(), 1)
    rest = _LENGTHS.pack(len(head), len(text)) + head + text + kernel.object
    return _MAGIC + hashlib.blake2b(rest, digest_size=_CHECKSUM).digest() + rest


def _decode(data: bytes) -> tuple[Key, CompiledKernel] | None:
    start = len(_MAGIC) + _CHECKSUM
    rest = data[start:]
    whole = hashlib.blake2b(rest, digest_size=_CHECKSUM).digest()
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != whole:
        return None
    head, text = _LENGTHS.unpack_from(rest)
    at = _LENGTHS.size
    header: dict[str, Any] = json.loads(rest[at : at + head])
    operation = zlib.decompress(rest[at + head : at + head + text]).decode()
    # Another version's entry has other facts: it is listed, and never found.
    facts: dict[str, Any] = {
        name: _of_plain(fact)
        for name, fact in header["facts"].items()
        if name in KernelFacts._fields
    }
    key = Key(operation, header["target"], header["compiler"])
    code = rest[at + head + text :]
    return key, CompiledKernel(header["symbol"], KernelFacts(**facts), code)


def _plain(fact: Any) -> Any:
    """A fact as JSON has it: sizes and relations of sizes as their texts."""
    if isinstance(fact, SizeConstraint):
        return {"guard": [_plain(part) for part in fact]}
    if isinstance(fact, SymbolicDim):
        return {"size": repr(fact)}
    return [_plain(part) for part in fact] if isinstance(fact, tuple) else fact


def _of_plain(fact: Any) -> Any:
    if isinstance(fact, list):
        return tuple(_of_plain(part) for part in fact)
    if not isinstance(fact, dict):
        return fact
    if "size" in fact:
        return parse_dim(fact["size"])
    return SizeConstraint(*map(_of_plain, fact["guard"]))


def _difference(old: str, new: str) -> str:
    """The lines that differ, old ones with "-", new ones with "+"; long ones are cut."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return "\n".join(f"  {line[:160]}" for line in list(lines)[2:] if not line.startswith("@@"))


class KernelCache:
    """Kernels by canonical text, shared by all compilations of a process, and found on disk."""

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self.kernels: dict[tuple[str, Hashable], CompiledKernel] = {}
        self.lock = threading.Lock()

    def find(self, text: str, target: Hashable, disk: DiskCache | None) -> CompiledKernel | None:
        """The kernel of an operation's text, if it is known."""
        with self.lock:
            known = self.kernels.get((text, target))
        if known is None and disk is not None:
            known = disk.load(key_of(text, target))
            if known is not None:
                self._remember(text, target, known)
        return known

    def add(
        self, text: str, target: Hashable, disk: DiskCache | None, made: CompiledKernel
    ) -> None:
        """Keep a kernel that was just compiled."""
        self._remember(text, target, made)
        if disk is not None:
            disk.store(key_of(text, target), made)

    def _remember(self, text: str, target: Hashable, kernel: CompiledKernel) -> None:
        with self.lock:
            if len(self.kernels) >= self.capacity:
                self.kernels.pop(next(iter(self.kernels)))
            self.kernels[text, target] = kernel

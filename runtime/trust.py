"""Which bundles may run machine code: those that bear this machine's seal.

Machine code can do anything that its user may do. A bundle's code therefore runs only where the
bundle was compiled by the same user, which a seal proves: an HMAC over the manifest, whose key is a
file that only this user can read. The manifest holds the digest of every member, so the seal covers
all of them. Elsewhere the user says `allow_native=True`, or the program is compiled anew.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ALGORITHM = "hmac-sha256"
_KEY_BYTES = 32


def configuration_folder() -> Path:
    """Where this user's settings for girih live, by the platform's convention."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "girih"


def machine_key(create: bool = False) -> bytes | None:
    """The key of this user on this machine; None if there is none (and none could be made).

    A key file that others may read, or that is not ours, counts as none: whoever reads it could
    have sealed the bundle.
    """
    path = configuration_folder() / "machine.key"
    key = _read_key(path)
    if key is None and create:
        with suppress(OSError):
            _write_key(path)
            key = _read_key(path)
    return key


def _read_key(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            if os.name == "posix":
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                    return None
            key = file.read(_KEY_BYTES + 1)
    except (OSError, RuntimeError):  # RuntimeError: no home folder is known
        return None
    return key if len(key) == _KEY_BYTES else None


def _write_key(path: Path) -> None:
    """Make the key file; of several processes that try at once, one wins and its key stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, never replaces a key
    finally:
        os.unlink(temporary)


def seal(manifest: bytes) -> dict[str, str] | None:
    """The content of seal.json for this manifest; None where no key can be kept."""
    key = machine_key(create=True)
    if key is None:
        return None
    return {"algorithm": ALGORITHM, "key": _fingerprint(key), "mac": _mac(key, manifest)}


def is_ours(manifest: bytes, mark: Mapping[str, object]) -> bool | None:
    """Whether this machine's key sealed the manifest; None if another key did.

    False means that the seal names our key but does not fit: the bundle was altered.
    """
    key = machine_key()
    if key is None or mark.get("algorithm") != ALGORITHM or mark.get("key") != _fingerprint(key):
        return None
    return hmac.compare_digest(str(mark.get("mac", "")).encode(), _mac(key, manifest).encode())


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(b"girih machine key" + key).hexdigest()[:16]


def _mac(key: bytes, manifest: bytes) -> str:
    return hmac.new(key, manifest, hashlib.sha256).hexdigest()

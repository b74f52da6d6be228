"""A session's state in a file: safetensors, with the bundle that it belongs to in its metadata.

The bundle is named by the digests of its programs and of its weights, so that code for another
target in the same bundle goes on with the state, and no other bundle does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from . import tensors
from .bundle import MAIN, Bundle, Parts
from .bundle_writer import stored_once
from .inputs import Leaf

Array = np.ndarray[Any, Any]
_VERSION = "1"
_KEYS = ("girih.state", "girih.bundle", "girih.byte_order", "girih.sha256")
_PREFIX = "state."  # of the tensors' names


def write_state(path: str | os.PathLike[str], values: Mapping[str, Array], parts: Parts) -> None:
    """Write the values by name; the file appears whole or not at all."""
    target = Path(path)
    notes = (_VERSION, owner_of(parts), sys.byteorder, _digest(values))
    named = {_PREFIX + name: array for name, array in values.items()}
    _, buffers = tensors.encode(named, dict(zip(_KEYS, notes, strict=True)))
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{target}: cannot write: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def read_state(
    path: str | os.PathLike[str], declared: Mapping[str, Leaf], parts: Parts
) -> dict[str, Array]:
    """The values of a file that `write_state` has written for a program of these parts, whose state
    is `declared`; one UserError for any other file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        arrays, notes = tensors.decode(data)
    except (ValueError, TypeError) as error:
        raise _unfit(path, data, error) from error
    version, owner, order, digest = (notes.get(key, "") for key in _KEYS)
    if not version:
        raise UserError(f"{path}: this is no state of a session, but weights (safetensors)")
    if version != _VERSION:
        raise UserError(f"{path}: this state has format {version[:20]}; install a newer girih")
    if order != sys.byteorder:
        raise UserError(
            f"{path}: this state was saved on a machine of the other byte order ({order[:20]} "
            "endian); save it on one like this"
        )
    if owner != owner_of(parts):
        raise UserError(
            f"{path}: this is the state of another bundle: its programs or its weights differ; "
            "load it in a session of the bundle that saved it"
        )
    values = {name.removeprefix(_PREFIX): array for name, array in arrays.items()}
    for name, leaf in declared.items():
        found = values.get(name)
        if found is None or (found.dtype, found.shape) != (leaf.dtype, leaf.shape):
            raise UserError(f"{path}: this state is damaged: it has no '{name}' of type {leaf}")
    if set(values) != set(declared) or _digest(values) != digest:
        raise UserError(f"{path}: this state is damaged or was altered; save it again")
    return values


def _unfit(path: Any, data: bytes, error: Exception) -> UserError:
    """The error for a file that cannot be read as tensors."""
    if any(key.encode() in data[: 1 << 16] for key in _KEYS):
        return UserError(f"{path}: this state is cut off or damaged ({error}); save it again")
    return UserError(f"{path}: this is no state that a session has saved")


def _digest(values: Mapping[str, Array]) -> str:
    state = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        state.update(f"{name}\0{array.dtype.name}{array.shape}\0".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def owner_of(parts: Parts) -> str:
    """What names a program with its weights, whatever it is compiled for: the same in memory, in
    its bundle, and in one with code for more targets."""
    described = parts.manifest.get("weights") if isinstance(parts, Bundle) else None
    if isinstance(parts, Bundle):
        weights = parts.member_digest(described["member"]) if described else ""
    else:
        weights = _weights_digest(parts)
    programs = [hashlib.sha256(program).hexdigest() for program in parts.programs.values()]
    text = "\n".join([*parts.signatures, *programs, weights])
    return hashlib.sha256(text.encode()).hexdigest()


def _weights_digest(parts: Any) -> str:
    """The digest of the member that the weights would be."""
    if not parts.weights:
        return ""
    stored, _ = stored_once(parts.weights, list(parts.signatures) != [MAIN])
    state = hashlib.sha256()
    for buffer in tensors.encode(stored)[1]:
        state.update(buffer)
    return state.hexdigest()

"""How meshes, shardings and state are spelled on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..hlo.errors import UserError


def read_state(texts: Sequence[str]) -> dict[str, str] | None:
    """The results of ARGUMENT=RESULT, by argument; None for none."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, result = text.partition("=")
        if not equals or not name or not result or name in found:
            raise UserError(f"--state: each is ARGUMENT=RESULT, once, not '{text}'")
        found[name] = result
    return found or None


def read_mesh(text: str) -> dict[str, int | None]:
    """The axes of `data=2,model=?`, None for a size that is open; UserError for anything else."""
    axes: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if not name or name in axes or not (size == "?" or size.isdecimal()):
            raise UserError(f"--mesh: axes are AXIS=SIZE, each once, not '{part}'")
        axes[name] = None if size == "?" else int(size)
    return axes


def read_sizes(text: str | None) -> dict[str, int] | None:
    """The axes of a mesh whose sizes are all known; None for none."""
    if text is None:
        return None
    axes = read_mesh(text)
    sizes = {name: size for name, size in axes.items() if size is not None}
    if len(sizes) < len(axes):
        raise UserError(f"--mesh: every axis of a mesh that runs has a size, not '{text}'")
    return sizes


def read_shardings(shards: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The specs of `PATTERN=-,data+model`, by pattern; UserError for anything else."""
    shardings: dict[str, tuple[Any, ...]] = {}
    for text in shards:
        pattern, equals, spec = text.rpartition("=")
        if not equals or not pattern or pattern in shardings:
            raise UserError(f"--shard: each is PATTERN=SPEC, patterns differ, not '{text}'")
        dims = [dim.strip() for dim in spec.split(",")]
        shardings[pattern] = tuple(None if dim == "-" else tuple(dim.split("+")) for dim in dims)
    return shardings

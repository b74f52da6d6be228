"""Formats of programs: one file for each step between two versions, with the way up and down.

In: messages of any released format. Out: today's (`upgrade`), or an older one's (`downgrade`). A
step is a module with VERSION, to which it leads; OPERATIONS, TYPES, ATTRIBUTES that came with it;
REMEDIES for who needs an older format; `upgrade` and `downgrade`, in place. A released step never
changes, except that `downgrade` may learn more. Imported by `cli`, `hlo`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..errors import UserError
from . import v1_1, v1_2, v1_3, v1_4, v1_5

FIRST = "1.0"
STEPS: tuple[ModuleType, ...] = (v1_1, v1_2, v1_3, v1_4, v1_5)
FORMAT_VERSION: str = STEPS[-1].VERSION


def version_tuple(text: str) -> tuple[int, int]:
    """'1.2' -> (1, 2); ValueError for anything else."""
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and len(text) < 12):
        raise ValueError(f"'{text[:40]}' is no version")
    return int(major), int(minor)


def known_versions() -> tuple[str, ...]:
    """Every version that can be read and written, the oldest first."""
    return (FIRST, *(step.VERSION for step in STEPS))


def require_known(version: str) -> None:
    """UserError unless programs can be written for that version."""
    if version not in known_versions():
        raise UserError(
            f"there is no program format '{version}'; this girih writes "
            f"{', '.join(known_versions())}"
        )


def upgrade(message: Any) -> None:
    """A `WireModule` as today's format says it, in place; a newer one stays as it is."""
    written = version_tuple(message.format_version or FIRST)
    for step in STEPS:
        if version_tuple(step.VERSION) > written:
            step.upgrade(message)


def downgrade(message: Any, version: str) -> None:
    """Replace what that version lacks by what means the same there, as far as there is such a
    way, in place; what is left is for the caller to report."""
    for step in reversed(STEPS):
        if version_tuple(step.VERSION) > version_tuple(version):
            step.downgrade(message)


def remedy(feature: str) -> str:
    """What helps a user who needs an older format than `op:...` or `type:...` has."""
    kind, _, name = feature.partition(":")
    for step in STEPS:
        if kind == "type" and name in step.TYPES or kind == "op" and name in step.OPERATIONS:
            found = step.REMEDIES.get(name)
            return found or f"read the program with a girih that reads format {step.VERSION}"
    return "read the program with a newer girih"

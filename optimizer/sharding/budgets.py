"""What devices may send: limits that a user writes, and files of what was accepted before.

    require_within(rows, [limits("total=64MiB,op=8MiB,count=12", parts.mesh.names)])
    require_within(rows, [recorded(Path("accepted.json"), parts.mesh)])

A file is what `girih explain sharding --json` prints. Against it a program fails where a device
receives more in total or along an axis than was recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...hlo.errors import BudgetError, UserError
from ...hlo.sharding import Mesh
from ...options import bytes_of
from .communications import CommunicationSite

OPTION = "--max-reshard"
_AXIS = "axis."
_Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Limit:
    """At most `most` of one thing in a step: `total` bytes that a device receives; those of one
    communication (`op`); the `count` of communications; the bytes along one axis (`axis.NAME`)."""

    what: str
    most: float

    def over(self, rows: Sequence[CommunicationSite]) -> tuple[float, Sequence[CommunicationSite]]:
        """How much there is, and the rows that count."""
        if self.what == "count":
            return float(len(rows)), rows
        if self.what == "op":
            largest = max((row.total for row in rows), default=0.0)
            return largest, [row for row in rows if row.total > self.most]
        if self.what.startswith(_AXIS):
            rows = [row for row in rows if self.what.removeprefix(_AXIS) in row.axes]
        return sum(row.total for row in rows), rows


@dataclass(frozen=True)
class Budget:
    """Limits, and who set them. accepted: bytes by what is sent, where a file has said it: then
    only rows that are beyond these are listed."""

    source: str
    limits: tuple[Limit, ...]
    accepted: Mapping[_Key, float] | None = field(default=None, hash=False)

    def grown(self, rows: Sequence[CommunicationSite]) -> Sequence[CommunicationSite]:
        """The rows that were not accepted, or with fewer bytes."""
        if self.accepted is None:
            return rows
        found: Counter[_Key] = Counter()
        for row in rows:
            found[_key(row.facts())] += row.total  # type: ignore[assignment]
        return [
            row for row in rows if found[key := _key(row.facts())] > self.accepted.get(key, 0.0)
        ]


def limits(text: str, axes: Sequence[str]) -> Budget:
    """The budget of `total=64MiB,op=8MiB,count=12,axis.model=32MiB`: what a device receives in a
    step, by one communication in a step, how many communications there are, and what it receives
    along one axis of the mesh. axes: those of the mesh. UserError for anything else."""
    found: list[Limit] = []
    for part in text.split(","):
        what, equals, most = (word.strip() for word in part.partition("="))
        if not equals or what not in ("total", "op", "count") and not what.startswith(_AXIS):
            raise UserError(f"{OPTION}: '{part}' is none of total=, op=, count= and {_AXIS}NAME=")
        if what.startswith(_AXIS) and what.removeprefix(_AXIS) not in axes:
            raise UserError(f"{OPTION}: the mesh has no axis of '{what}', only {', '.join(axes)}")
        if what == "count" and not most.isdecimal():
            raise UserError(f"{OPTION}: count is a number, not '{most}'")
        found.append(Limit(what, int(most) if most.isdecimal() else bytes_of(most, OPTION)))
    return Budget(OPTION, tuple(found))


def recorded(path: Path, mesh: Mesh) -> Budget:
    """The budget of a file that `girih explain sharding --json` wrote for the same mesh.

    UserError for a file that is none, and one of another mesh.
    """
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
        rows: list[Any] = told["communications"]
        accepted: dict[_Key, float] = {}
        along: dict[str, float] = dict.fromkeys(mesh.names, 0.0)
        for row in rows:
            size = row["bytes"] * (1 if row["times"] is None else row["times"])
            accepted[_key(row)] = accepted.get(_key(row), 0.0) + size
            for axis in row["axes"]:
                along[axis] = along.get(axis, 0.0) + size
        before = told["mesh"]
        limits = (
            Limit("total", float(told["bytes"])),
            *(Limit(_AXIS + axis, size) for axis, size in along.items()),
        )
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}: is no budget; write one with girih explain sharding ... --json"
        ) from None
    if before != dict(mesh.axes):
        raise UserError(f"{path}: was written for the mesh {before}, this one is {dict(mesh.axes)}")
    return Budget(str(path), limits, accepted)


def require_within(rows: Sequence[CommunicationSite], budgets: Sequence[Budget]) -> None:
    """BudgetError that lists, for each limit that is exceeded, the rows that count."""
    lines: list[str] = []
    for budget in budgets:
        for limit in budget.limits:
            found, counted = limit.over(rows)
            if found > limit.most:
                lines.append(
                    f"{budget.source}: {limit.what} is {found:.12g}, "
                    f"at most {limit.most:.12g} allowed:"
                )
                lines += [f"  {row}" for row in budget.grown(counted)]
    if lines:
        raise BudgetError("\n".join(lines))


def _key(facts: Mapping[str, Any]) -> _Key:
    """What is sent, whatever line it stands on."""
    kind, types, source, target = (str(facts[name]) for name in ("kind", "type", "from", "to"))
    return kind, types, source, target, ", ".join(facts["collectives"])

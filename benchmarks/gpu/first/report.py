"""The results file of a run: whole and readable whenever the run is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SAME = ("target", "device", "compiler")  # facts that a run which goes on has to agree in


class Report:
    """Facts about the machine, and a row for each check. The file is written anew after every row,
    beside the old one, which it then replaces."""

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        self.file = file
        self.facts = dict(facts)
        self.rows: list[dict[str, Any]] = []

    def resume(self) -> None:
        """Take the rows of the file that are done; ValueError where it is of another machine or
        compiler, or no such file at all."""
        try:
            old = json.loads(self.file.read_text())
            before, rows = dict(old["machine"]), [dict(row) for row in old["checks"]]
            if not all(isinstance(row[key], str) for row in rows for key in ("name", "group")):
                raise TypeError("a check's name or group is no text")
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self.file} holds no results of a run that can go on ({type(error).__name__}: "
                f"{error}); leave --resume out, or name another file with --into"
            ) from error
        now = self.facts.get("machine", {})
        apart = [name for name in _SAME if before.get(name) != now.get(name)]
        if apart:
            raise ValueError(
                f"{self.file} is of another {' and '.join(apart)}: {before.get(apart[0])}, now "
                f"{now.get(apart[0])}; leave --resume out, or name another file with --into"
            )
        self.rows = [row for row in rows if "not_run" not in row]

    @property
    def done(self) -> set[str]:
        return {row["name"] for row in self.rows}

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.write(ended=False)

    def write(self, ended: bool) -> None:
        part = self.file.with_name(self.file.name + ".part")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.as_json(ended), indent=1) + "\n")
            os.replace(part, self.file)
        except OSError as error:
            raise ValueError(f"{self.file}: cannot be written: {error.strerror}") from error

    def as_json(self, ended: bool) -> dict[str, Any]:
        failures = [row for row in self.rows if not row.get("good", True)]
        good = sum(row.get("good", False) for row in self.rows)
        left = sum("good" not in row for row in self.rows)
        said = (
            f"{good} of {len(self.rows)} checks are good, {len(failures)} fail, {left} did not run"
        )
        if failures:
            said += (
                f"; the first that fails is '{failures[0]['name']}': {failures[0].get('reason')}"
            )
        groups: dict[str, dict[str, int]] = {}
        for row in self.rows:
            counts = groups.setdefault(row["group"], {"good": 0, "bad": 0, "left": 0})
            counts["left" if "good" not in row else "good" if row["good"] else "bad"] += 1
        return {
            "ended": ended, "good": ended and not failures and good > 0,
            "verdict": said if ended else f"not ended: {said}", "groups": groups,
            "first_failure": failures[0] if failures else None, **self.facts, "checks": self.rows,
        }  # fmt: skip

"""`girih check-backend`: what a backend computes beside what operations mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from ..backends import find
from ..conformance import check
from ..options import Options
from . import show

_SHOWN = 160  # letters of a reason


def check_backend(target: str, only: Sequence[str], as_json: bool) -> bool:
    """Print a line for each operation that has a limitation or a fault, and the sums; True if
    nothing failed."""
    find(target, Options())  # a plugin that cannot be used is told before anything runs
    reports = []
    with show.progress_console.status("checking") as status:
        for report in check(target, only):
            status.update(f"checking: {report.operation}")
            reports.append(report)
    sums = {
        "agreed": sum(report.agreed for report in reports),
        "limited": sum(len(report.limited) for report in reports),
        "failed": sum(len(report.failed) for report in reports),
    }
    if as_json:
        show.print_json({"target": target, **sums, "operations": [asdict(r) for r in reports]})
        return not sums["failed"]
    table = Table("operation", "agreed", "limited", "failed", "first reason", box=None)
    for report in reports:
        if words := [*report.failed, *report.limited]:
            numbers = (report.agreed, len(report.limited), len(report.failed))
            table.add_row(report.operation, *map(str, numbers), words[0][:_SHOWN])
    if table.row_count:
        show.console.print(table)
    show.console.print(
        f"{target}: of {sum(sums.values())} cases {sums['agreed']} agree, {sums['limited']} need "
        f"what it states that it lacks, {sums['failed']} failed"
    )
    return not sums["failed"]

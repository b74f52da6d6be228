"""A picture of a results file: a panel for each group, a bar for each engine and case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"girih": "#1b6ca8", "torch": "#e08e0b", "torch.compile": "#7a9e3d", "xla": "#8d5a97",
           "triton": "#b04a4a"}  # fmt: skip


def draw(report: dict[str, Any], file: Path) -> None:
    """Percent of the peak; milliseconds for models. Left out where nothing was timed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        if any("milliseconds" in entry for entry in row["engines"].values()):
            groups.setdefault(row["group"], []).append(row)
    if not groups:
        return
    figure, panels = pyplot.subplots(
        len(groups), 1, figsize=(14, 3.6 * len(groups)), squeeze=False, layout="constrained"
    )
    for panel, (group, rows) in zip(panels[:, 0], groups.items(), strict=True):
        unit = "milliseconds" if group == "zoo" else "percent_of_peak"
        names = [n for n in COLOURS if any(unit in r["engines"].get(n, {}) for r in rows)]
        width = 0.8 / max(1, len(names))
        for place, name in enumerate(names):
            heights = [row["engines"].get(name, {}).get(unit, 0.0) for row in rows]
            at = [number + (place - (len(names) - 1) / 2) * width for number in range(len(rows))]
            panel.bar(at, heights, width, label=name, color=COLOURS[name])
        labels = [f"{row['name']}\n{row['dtype']}" for row in rows]
        panel.set_xticks(range(len(rows)), labels, fontsize=7, rotation=40, ha="right")
        panel.set_title(group)
        panel.set_ylabel("ms" if group == "zoo" else "% of the measured peak")
        panel.grid(axis="y", alpha=0.3)
        panel.legend(fontsize=8, ncols=len(names) or 1)
    machine = report["machine"]
    figure.suptitle(f"{machine['device']}, {machine['date']}, {machine['commit']}")
    figure.savefig(file, dpi=130)
    pyplot.close(figure)

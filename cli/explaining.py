"""`girih explain memory`: where memory goes over the steps of a program."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from ..hlo.errors import UserError
from ..runtime.bundle import MAIN, Bundle
from ..runtime.devices import family
from ..runtime.devices.cpu import workers_of
from ..runtime.loading import choose_variant
from ..runtime.plans import parse_plan
from ..runtime.timeline import Timeline, totals
from . import show

WIDTH, HEIGHT = 72, 10  # of the picture, in characters
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def explain_memory(
    path: Path,
    target: str | None,
    html: Path | None,
    rows: int,
    as_json: bool,
    entry: str | None = None,
) -> None:
    """Show where the memory of a bundle's program goes; no code of it is mapped."""
    bundle = Bundle(path, verify="lazy")
    name = target or choose_variant(bundle).target or next(iter(sorted(bundle.variants)))
    if name not in bundle.variants:
        has = ", ".join(sorted(bundle.variants))
        raise UserError(f"{path}: no code for {name!r}; it has code for {has}")
    entry = show.chosen_entry(path, tuple(bundle.signatures), entry)
    plan = parse_plan(bundle.variants[name], bundle.label, entry)
    try:
        data = described(plan)
    except IndexError:
        raise UserError(
            f"{path}: the plan for {name} is malformed: it names what it lacks"
        ) from None
    data = {"bundle": str(path), "target": name, "entry": entry, **data}
    if html is not None:
        show.write(html, page(data))
    if as_json:
        return show.print_json(data)
    shown = [(kind, show.size(size)) for kind, size in data["totals"].items() if size]
    show.facts(
        [*shown, ("together", show.size(data["total_bytes"]))],
        title=f"{path}, {name}{'' if entry == MAIN else f', {entry}'}",
    )
    if not data["peak"]["rows"]:
        return show.console.print("no temporary values")
    peak = data["peak"]
    show.console.print(
        f"\ntemporaries over {len(data['live'])} steps, up to {show.size(peak['bytes'])}"
    )
    for line in picture(data["live"]):
        show.console.print(line)
    listed = peak["rows"][:rows]
    show.table(
        (">size", "type", "made by", "alive because", ">again"),
        [
            (
                show.size(row["bytes"]),
                row["type"],
                f"{row['kernel']} {row['line']}".strip(),
                row["why"],
                show.time(1e6 * row["seconds"]),
            )
            for row in listed
        ],  # fmt: skip
        title=f"\n{len(listed)} of {len(peak['rows'])} values at the peak, step {peak['step']}: "
        f"{peak['name']}",
    )
    if data["remedies"]:
        show.console.print("\nwhat would lower it")
    for remedy in data["remedies"][:rows]:
        show.console.print(f"{show.size(remedy['bytes']):>9}  {remedy['text']}")


def described(plan: Any) -> dict[str, Any]:
    """All that is shown, as JSON values; with the workers that a call has on this machine."""
    workers = workers_of(plan) if family(plan.target) == "cpu" else 1
    line, parts = Timeline(plan), totals(plan, workers)
    return {
        "workers": workers,
        "totals": parts,
        "total_bytes": sum(parts.values()),
        "live": line.live,
        "peak": {
            "step": line.peak,
            "bytes": line.live[line.peak],
            "name": line.name(line.peak),
            "rows": [row._asdict() for row in line.rows()],
        },
        "remedies": [{"bytes": size, "text": text} for size, text in line.remedies()],
        "bound_bytes": plan.memory.lower_bound_bytes,
        "placement": plan.memory.placement_proof,
        "order_bound_bytes": plan.memory.order_bound_bytes,
        "order": plan.memory.order_proof,
    }


def picture(live: list[int]) -> list[str]:
    """Bytes over steps in blocks; each column stands for the most of its steps."""
    columns = min(WIDTH, len(live))
    bounds = [len(live) * column // columns for column in range(columns + 1)]
    tops = [max(live[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    unit = max(max(tops), 1) / (8 * HEIGHT)
    return [
        "".join(_EIGHTHS[min(max(round(top / unit) - 8 * row, 0), 8)] for top in tops)
        for row in reversed(range(HEIGHT))
    ]


def page(data: dict[str, Any]) -> str:
    """A page of its own, which loads nothing."""
    live, peak = data["live"], data["peak"]
    most = max(max(live), 1)
    points = " ".join(
        f"{1000 * step / len(live):.1f},{200 - 190 * size / most:.1f}"
        for number, size in enumerate(live)
        for step in (number, number + 1)
    )
    at = 1000 * (peak["step"] + 0.5) / len(live)
    facts = "".join(
        f"<tr><td>{escape(kind)}</td><td>{escape(show.size(size))}</td></tr>"
        for kind, size in {**data["totals"], "together": data["total_bytes"]}.items()
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (
            show.size(row["bytes"]), row["type"], row["kernel"], row["line"], row["why"],
            show.time(1e6 * row["seconds"]),
        )) + "</tr>"
        for row in peak["rows"]
    )  # fmt: skip
    remedies = "".join(
        f"<li>{escape(show.size(r['bytes']))}: {escape(r['text'])}</li>" for r in data["remedies"]
    )
    title = escape(f"Memory of {data['bundle']}, {data['target']}")
    headings = ("size", "type", "kernel", "line", "alive because", "again")
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px sans-serif;margin:2em}}td{{padding:1px 12px 1px 0}}svg{{width:100%}}</style>
<h1>{title}</h1>
<table>{facts}</table>
<h2>Temporaries over {len(live)} steps, up to {escape(show.size(peak["bytes"]))}</h2>
<svg viewBox="0 0 1000 200" preserveAspectRatio="none" height="200">
<polygon points="0,200 {points} 1000,200" fill="#9bd"/>
<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="200" stroke="#c33"/></svg>
<h2>At the peak, step {peak["step"]}: {escape(peak["name"])}</h2>
<table><tr>{"".join(f"<th align=left>{name}</th>" for name in headings)}</tr>{rows}</table>
<h2>What would lower it</h2><ul>{remedies}</ul></html>
"""

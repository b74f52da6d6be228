"""The page of `girih explain sharding --html`: the mesh, who holds what, what is sent and why.

It loads nothing, and is the same, byte for byte, for the same program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ..hlo.sharding import Mesh
from ..optimizer.sharding.explanation import Explanation, ExplanationRow, Held, spec_of
from ..optimizer.sharding.provenance import Reason
from ..optimizer.sharding.suggestions import Suggestion
from . import show

_STYLE = """body{font:14px sans-serif;margin:2em;max-width:75em}
td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top}
svg{display:block;margin:4px 0}svg text{font:11px sans-serif;fill:#123}
rect{stroke:#567;stroke-width:1}summary{cursor:pointer}code{background:#eef}
.held{display:inline-block;vertical-align:top;margin:0 2em 1em 0}"""
_COLORS = ("#cfe3f5", "#d9efd2", "#fbe6c2", "#f3d3d9", "#e2d8f0", "#d2eeec", "#f0ead0", "#e3e3e3")
_LISTED = 8  # devices that one block lists
_WIDE, _HIGH = 240, 120  # of the picture of one tensor


def page(source: str, told: Explanation, suggestions: Mapping[int, Suggestion]) -> str:
    """The whole text of the page."""
    mesh = told.mesh
    shape = " x ".join(f"{name}={size}" for name, size in mesh.axes)
    title = escape(f"{source} on {shape}")
    held = "".join(
        f"<h2>{heading}</h2>" + "".join(_held(one, mesh) for one in values)
        for heading, values in (("Arguments", told.arguments), ("Results", told.results))
        if values
    )
    most = sorted(told.rows, key=lambda row: -row.communication.total)
    rows = "".join(_row(row, suggestions.get(row.communication.number)) for row in most)
    headings = ("#", "bytes", "times", "each", "how", "along", "of", "at", "because of")
    annotations = "".join(
        f'<tr id="{escape(a.id)}">{_cells((a.id, a.kind, a.name, a.place, a.sharding))}</tr>'
        for a in told.annotations
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<p>{len(told.rows)} communications; a device receives {escape(show.size(told.bytes))} in a step,
{told.bytes:.12g} bytes.</p>
<h2>Mesh</h2>
{_mesh(mesh)}
{held}
<h2>Communications</h2>
<table><tr>{"".join(f"<th>{name}</th>" for name in headings)}</tr>{rows}</table>
<h2>Annotations</h2>
<table>{annotations}</table></html>
"""


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _mesh(mesh: Mesh) -> str:
    """Devices in the order of the grid, a row for each place along all axes but the last."""
    columns = (mesh.axes[-1][1] or 1) if mesh.axes else 1
    ids = mesh.device_ids or range(mesh.devices)
    cells: list[str] = []
    for place, device in enumerate(ids):
        row, column = divmod(place, columns)
        at = ", ".join(f"{name} {where}" for name, where in mesh.coordinates(place).items())
        x, y = 4 + 110 * column, 4 + 44 * row
        fill = _COLORS[device % len(_COLORS)]
        cells.append(
            f'<rect x="{x}" y="{y}" width="104" height="38" fill="{fill}"/>'
            f'<text x="{x + 6}" y="{y + 16}">device {device}</text>'
            f'<text x="{x + 6}" y="{y + 31}">{escape(at)}</text>'
        )
    rows = -(-len(ids) // columns)
    return f'<svg width="{8 + 110 * columns}" height="{8 + 44 * rows}">{"".join(cells)}</svg>'


def _held(held: Held, mesh: Mesh) -> str:
    said = "" if held.annotation is None else f", {held.annotation.id}"
    head = f"{held.name}: {held.type}, {spec_of(held.sharding)}{said}"
    size = f"{show.size(held.bytes)} on each device"
    return f'<div class="held">{escape(head)}<br>{escape(size)}{_blocks(held, mesh)}</div>'


def _blocks(held: Held, mesh: Mesh) -> str:
    """The tensor's blocks along the first two dims that are cut, with the devices that hold them;
    those of all other dims lie behind each other."""
    dims = held.sharding.dims
    cut = [number for number, dim in enumerate(dims) if mesh.parts(dim.axes) > 1]
    shown = (cut + [number for number in range(len(dims)) if number not in cut])[:2]
    shown.sort()
    down = shown[0] if shown else None
    across = shown[1] if len(shown) > 1 else None
    counts = [1 if n is None else mesh.parts(dims[n].axes) for n in (down, across)]
    holders: dict[tuple[int, int], list[int]] = {}
    for place, device in enumerate(mesh.device_ids or range(mesh.devices)):
        at = mesh.coordinates(place)
        where = [0 if n is None else mesh.index(dims[n].axes, at) for n in (down, across)]
        holders.setdefault((where[0], where[1]), []).append(device)
    high = max(_HIGH // counts[0], 18)
    wide = max(_WIDE // counts[1], 64)
    cells: list[str] = []
    for (row, column), devices in sorted(holders.items()):
        x, y = 1 + wide * column, 1 + high * row
        fill = _COLORS[min(devices) % len(_COLORS)]
        cells.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{fill}"/>'
            f'<text x="{x + 4}" y="{y + 13}">{_listed(devices)}</text>'
        )
    axes = [f"dim {n} {word}" for n, word in ((down, "down"), (across, "across")) if n is not None]
    axes += [f"dim {n} behind" for n in cut if n not in shown]
    size = f'width="{2 + wide * counts[1]}" height="{2 + high * counts[0]}"'
    return f"<svg {size}>{''.join(cells)}</svg><small>{', '.join(axes) or 'a scalar'}</small>"


def _listed(devices: Sequence[int]) -> str:
    text = " ".join(map(str, sorted(devices)[:_LISTED]))
    return text if len(devices) <= _LISTED else f"{text} ... ({len(devices)})"


def _row(row: ExplanationRow, suggestion: Suggestion | None) -> str:
    sent = row.communication
    cells = (
        str(sent.number), show.size(sent.bytes), "?" if sent.times is None else str(sent.times),
        show.time(1e6 * sent.seconds), ", ".join(sent.collectives), ", ".join(sent.axes), row.of,
        row.place,
    )  # fmt: skip
    ids = [escape(annotation.id) for annotation in row.annotations]
    links = ", ".join(f'<a href="#{name}">{name}</a>' for name in ids)
    parts: list[str] = []
    if sent.plan is not None:
        ends = f"{spec_of(sent.plan.source)} -> {spec_of(sent.plan.target)}"
        moves = "".join(f"<li><code>{escape(move)}</code></li>" for move in row.moves)
        parts.append(f"<p>{escape(ends)}</p><ol>{moves}</ol>")
    parts += [_reason("Is", reason) for reason in row.before]
    parts += [_reason("Is needed", reason) for reason in row.after]
    parts += [f"<p>Needed by {escape(str(need))}</p>" for need in row.needs]
    others = "".join(
        f"<li>{escape(f'{other.text}: {show.signed_size(other.bytes)}')}</li>"
        for other in row.alternatives
    )
    parts.append(f"<p>Otherwise:</p><ul>{others}</ul>" if others else "")
    if suggestion is not None:
        text = f"Removed by: {suggestion}: {show.signed_size(suggestion.bytes)} in all"
        held = f"; a device holds {show.signed_size(suggestion.held)}" if suggestion.held else ""
        option = f" <code>{escape(suggestion.option)}</code>" if suggestion.option else ""
        parts.append(f"<p>{escape(text + held)}{option}</p>")
    details = f"<details><summary>why</summary>{''.join(parts)}</details>"
    return (
        f"<tr>{_cells(cells)}<td>{links}</td></tr>\n"
        f'<tr><td></td><td colspan="8">{details}</td></tr>\n'
    )


def _reason(word: str, reason: Reason) -> str:
    steps = "".join(f"<li>{escape(str(step))}</li>" for step in reason.steps)
    return f"<p>{escape(f'{word} {reason}')}</p><ol>{steps}</ol>"

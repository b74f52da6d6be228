"""`girih explain sharding` and `girih explain reshard`: what devices send, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..annotate import tensor_named
from ..hlo.errors import UserError
from ..hlo.sharding import Mesh
from ..hlo.types import unsharded
from ..optimizer.sharding import budgets
from ..optimizer.sharding.explanation import Explanation, ExplanationRow, spec_of
from ..optimizer.sharding.reshard import ReshardPlan, plan_reshard
from ..optimizer.sharding.suggestions import Suggestion
from ..options import bytes_of
from ..partitioning import AUTO, Partitioned, partition
from . import show
from .compiling import import_source, read_said
from .sharding_page import page
from .spelled import read_mesh, read_shardings

_CHAIN = 6  # steps of a chain that the terminal shows; --json and --html have all


def explain_sharding(
    source: str,
    said: tuple[str | None, Sequence[str], str | None],
    budgets: tuple[str | None, Path | None],
    html: Path | None,
    rows: int,
    suggesting: bool,
    as_json: bool,
) -> None:
    """Show what the devices of a mesh send to each other in one step, and why; nothing runs.

    said: the mesh, how arguments and weights lie on it, and what a device may hold. budgets: limits
    as text, and a file with what was accepted.
    """
    parts = _partitioned(source, *said)
    limits = _budgets(*budgets, parts)
    told = parts.explain()
    suggestions = parts.suggest() if suggesting else {}
    data = {"source": source, **told.facts()}
    for row in data["communications"]:
        found = suggestions.get(row["number"])
        row["suggestion"] = None if found is None else found.facts()
    if parts.automatic is not None:
        data["automatic"] = parts.automatic.facts()
    if html is not None:
        show.write(html, page(source, told, suggestions))
    if as_json:
        show.print_json(data)
    else:
        _print(source, parts, told, suggestions, rows)
    parts.require_within(*limits)


def explain_reshard(
    source: str, value: str, ends: tuple[str, str], mesh: str | None, as_json: bool
) -> None:
    """Show how one tensor of a program gets from one sharding to another, and what that costs."""
    module = import_source(source)
    if mesh is not None:
        devices = Mesh(tuple(read_mesh(mesh).items()))
    else:
        devices = next((m for m in module.meshes.values() if m.axes and m.static), None)
        if devices is None:
            raise UserError(f"{source} has no mesh with sizes; say --mesh data=2,model=4")
    specs = [read_shardings([f"{value}={end}"])[value] for end in ends]
    kind, (before, after) = tensor_named(module, value, specs, devices)
    if not kind.is_static:
        raise UserError(f"'{value}' is {kind}; its bytes are not known before its sizes are")
    size = max(kind.element.bits // 8, 1)
    plan = plan_reshard(devices, kind.dims, size, before, after)
    least = sum(plan.least) / len(plan.least)
    try:
        chain = plan_reshard(devices, kind.dims, size, before, after, exchange=False)
    except UserError:  # blocks that do not nest: no chain of collectives leads there
        chain = None
    ways = [("chosen", plan)]
    if chain is not None and chain.moves != plan.moves:
        ways.append(("collectives alone", chain))
    if as_json:
        return show.print_json(
            {
                "source": source, "value": value, "type": str(unsharded(kind)),
                "mesh": dict(devices.axes), "from": str(before), "to": str(after),
                "least_bytes": least,
                "ways": [{"way": way, **_plan_facts(one)} for way, one in ways],
            }
        )  # fmt: skip
    facts = [("from", before), ("to", after), ("needed at least", show.size(least))]
    show.facts(facts, title=f"{value}, {unsharded(kind)}, on {devices}")
    for way, one in ways:
        show.table(
            ("step", "along", ">bytes", "then lies"),
            [
                (
                    move.kind, ", ".join(map(str, move.axes)),
                    show.size(sum(move.received) / len(move.received)), move.after,
                )
                for move in one.moves
            ],
            title=f"\n{way}: {show.size(one.mean)} a device, {show.time(1e6 * one.seconds)}, "
            f"{show.size(one.peak)} of its memory",
        )  # fmt: skip


def _plan_facts(plan: ReshardPlan) -> dict[str, Any]:
    return {
        "bytes": plan.mean, "maximum_bytes": plan.maximum, "seconds": plan.seconds,
        "memory_bytes": plan.peak,
        "moves": [
            {
                "kind": move.kind, "axes": [str(axis).replace('"', '') for axis in move.axes],
                "bytes": sum(move.received) / len(move.received), "to": str(move.after),
            }
            for move in plan.moves
        ],
    }  # fmt: skip


def _partitioned(
    source: str, mesh: str | None, shards: Sequence[str], max_memory: str | None
) -> Partitioned:
    if mesh is None and shards:
        raise UserError("--shard: needs --mesh data=2,..., the axes on which the arrays lie")
    axes = None if mesh is None else read_mesh(mesh)
    said = read_said(shards)
    memory = None if max_memory is None else bytes_of(max_memory)
    if memory is not None and said != AUTO:
        raise UserError("--max-memory: bounds what --shard auto finds, nothing else")
    return partition(import_source(source), mesh=axes, shardings=said, memory=memory)


def _budgets(limits: str | None, file: Path | None, parts: Partitioned) -> list[Any]:
    found = [] if limits is None else [budgets.limits(limits, parts.mesh.names)]
    return found if file is None else [*found, budgets.recorded(file, parts.mesh)]


def _print(
    source: str,
    parts: Partitioned,
    told: Explanation,
    suggestions: Mapping[int, Suggestion],
    count: int,
) -> None:
    sent = [
        ("communications", len(told.rows)),
        ("a device receives", show.size(told.bytes)),
    ]
    if (found := parts.automatic) is not None:
        sent.append(("cost, work and memory as bytes", show.size(found.price)))
        if found.bound > 0:
            bound = f"{show.size(found.bound)}: within {100 * found.gap:.2g} %"
            sent.append(("no choice costs less than", bound))
        sent.append(("a device holds", show.size(found.memory)))
    show.facts(sent, title=f"{source} on {parts.mesh}")
    show.table(
        ("argument", "how it lies"),
        [(held.name, str(held.sharding)) for held in told.arguments],
        title="\narguments",
    )
    most = sorted(told.rows, key=lambda row: -row.communication.total)[:count]
    show.table(
        (">#", ">bytes", ">times", ">each", "how", "along", "of", "at", "because of"),
        [
            (
                str(row.communication.number),
                show.size(row.communication.bytes),
                "?" if row.communication.times is None else str(row.communication.times),
                show.time(1e6 * row.communication.seconds),
                ", ".join(row.communication.collectives),
                ", ".join(row.communication.axes),
                row.of,
                row.place,
                ", ".join(annotation.id for annotation in row.annotations),
            )
            for row in most
        ],
        title=f"\n{len(most)} of {len(told.rows)}, the largest first",
    )
    for row in most:
        show.console.print()
        for line in _why(row, suggestions.get(row.communication.number)):
            show.console.print(line)
    named = {annotation for row in most for annotation in row.annotations}
    if named:
        show.console.print("\nannotations")
    for annotation in told.annotations:
        if annotation in named:
            show.console.print(f"  {annotation}")


def _why(row: ExplanationRow, suggestion: Suggestion | None) -> Iterator[str]:
    """The lines about one communication."""
    sent = row.communication
    head = f"#{sent.number} {sent.kind} of {row.of}" + (f" at {row.place}" if row.place else "")
    yield (
        head
        if sent.plan is None
        else (f"{head}: {spec_of(sent.plan.source)} -> {spec_of(sent.plan.target)}")
    )
    for word, reasons in (("is", row.before), ("is needed", row.after)):
        for reason in reasons:
            said = "no annotation" if reason.annotation is None else reason.annotation.id
            yield f"  {word} {reason.how}, because of {said}:"
            steps = reason.steps
            for number, step in enumerate(steps):
                if len(steps) <= _CHAIN or number < 2 or number >= len(steps) - _CHAIN + 2:
                    yield f"    {step}"
                elif number == 2:
                    yield f"    ... {len(steps) - _CHAIN} more ..."
    for need in row.needs[:3]:
        yield f"  needed by {need}"
    if len(row.needs) > 3:
        yield f"  and by {len(row.needs) - 3} more"
    for other in row.alternatives:
        yield f"  otherwise: {other.text}: {show.signed_size(other.bytes)}"
    if suggestion is not None:
        held = f"; a device holds {show.signed_size(suggestion.held)}" if suggestion.held else ""
        yield f"  removed by: {suggestion}: {show.signed_size(suggestion.bytes)} in all{held}"
        if suggestion.option:
            yield f"    {suggestion.option}"

"""`girih explain`: why a program is as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..parameters import (
    BundlePath,
    Entry,
    Json,
    Source,
)
from .implementation import implementation


def explain_memory_command(
    bundle: BundlePath,
    entry: Entry = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="The variant; by default the one that runs here."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with the picture and all values, too."),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show so many values.")] = 12,
    as_json: Json = False,
) -> None:
    """Show where a program's memory goes: over its steps, and at the peak value by value.

    Each value at the peak has its size, the line that makes it, the use that keeps it alive, and
    what computing it again would take; then follows what would lower the peak.

    Examples:

      girih explain memory model.girih

      girih explain memory model.girih --html memory.html
    """
    implementation("explaining").explain_memory(bundle, target, html, rows, as_json, entry)


def explain_sharding_command(
    source: Source,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="The mesh; without it, that of the source. With --shard or girih.shard it gives "
            "axes their sizes, else it moves the source's shardings to axes of other sizes.",
        ),
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option("--shard", metavar="PATTERN=SPEC", help="As for `girih compile`."),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="What a device may hold, 8GiB, where --shard is auto.",
        ),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            "--max-reshard",
            metavar="LIMITS",
            help="Fail, with exit code 3, where devices receive more in a step: total=64MiB, "
            "op=8MiB (by one communication), count=12 (of them), axis.model=32MiB (along it); "
            "several with commas.",
        ),
    ] = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            "--budget",
            help="Fail likewise where a device receives more, in all or along an axis, than this "
            "file says, which --json has written.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with pictures and all chains, too."),
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Try other annotations, and tell for each communication which one removes it; "
            "takes as long as planning up to 32 times.",
        ),
    ] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show so many.")] = 12,
    as_json: Json = False,
) -> None:
    """Show what devices send to each other when a program runs on a mesh, and why.

    Each communication has the bytes that a device receives, the collectives, the mesh axes, its
    time by a round figure of a network, the line that makes the value, the annotations from which
    it follows with all operations between, and what else could be done.

    Examples:

      girih explain sharding exported.jax

      girih explain sharding model.pt2 --mesh data=2,model=4 --shard 'layers.*.w1=-,model'

      girih explain sharding exported.jax --suggest --html sharding.html

      girih explain sharding model.pt2 --mesh data=2,model=4 --shard auto --max-memory 8GiB
    """
    implementation("sharding").explain_sharding(
        source, (mesh, shard or [], max_memory), (limits, budget), html, rows, suggest, as_json
    )


def explain_reshard_command(
    source: Source,
    value: Annotated[
        str, typer.Argument(help="An argument, a weight or a result.", show_default=False)
    ],
    before: Annotated[
        str,
        typer.Option("--from", metavar="SPEC", help="As in --shard: data,-.", show_default=False),
    ],
    after: Annotated[str, typer.Option("--to", metavar="SPEC", show_default=False)],
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh", metavar="AXIS=SIZE,...", help="The mesh; without it, that of the source."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a tensor gets from one sharding to another: the steps, their bytes and memory.

    Beside what is chosen stand a chain of collectives alone, and the least that has to be sent.

    Examples:

      girih explain reshard model.pt2 weight --from data+model,- --to -,model --mesh data=2,model=4
    """
    implementation("sharding").explain_reshard(source, value, (before, after), mesh, as_json)

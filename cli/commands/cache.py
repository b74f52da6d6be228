"""`girih cache`: what is kept of compilations."""

from __future__ import annotations

from typing import Annotated

import typer

from ..parameters import (
    Json,
    Settings,
    Source,
)
from .implementation import implementation

CacheFolder = Annotated[
    str | None,
    typer.Option("--folder", help="Another folder than the user's own cache.", show_default=False),
]


def cache_list(folder: CacheFolder = None, as_json: Json = False) -> None:
    """List the kernels that are kept, those used last first.

    Examples:

      girih cache ls

      girih cache ls --json | jq length
    """
    implementation("caching").list_entries(folder, as_json)


def cache_explain(
    source: Source,
    settings: Settings = None,
    folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Say for each kernel of a program whether it is kept, and if not, what differs.

    Examples:

      girih cache explain model.pt2

      girih cache explain model.pt2 -s cpu_level=avx2
    """
    implementation("caching").explain_source(source, settings or [], folder, as_json)


def cache_clear(folder: CacheFolder = None, as_json: Json = False) -> None:
    """Delete all kernels and programs that are kept.

    Examples:

      girih cache clear
    """
    implementation("caching").clear_entries(folder, as_json)

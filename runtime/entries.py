"""What the entry points of one program share in a process, and what is said where one is named that
there is not."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hlo.errors import UserError
from .bundle import MAIN

if TYPE_CHECKING:
    from .program import Program
    from .session import Session


@dataclass
class Loaded:
    """Weights and code in memory, once for all entry points, and the session of the program itself.

    `programs` by entry point, where there are several; `weights` that their plans name, once they
    are looked up; `on_device`: what a device keeps for all of them.
    """

    programs: dict[str, Program] = field(default_factory=dict)
    weights: dict[str, np.ndarray[Any, Any]] | None = None
    on_device: dict[str, Any] = field(default_factory=dict)
    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    opening: threading.Lock = field(default_factory=threading.Lock)


def chosen(name: str | None, entries: Sequence[str]) -> str:
    """The entry point of that name, by default "main", or the only one; UserError if there is none,
    or where one of several has to be named."""
    if name is not None and name not in entries:
        raise unknown_entry(name, entries)
    found = default_entry(entries) if name is None else name
    if found is None:
        raise unnamed(entries)
    return found


def default_entry(entries: Sequence[str]) -> str | None:
    """What a call runs where nothing is named: "main", or the only entry point."""
    if MAIN in entries:
        return MAIN
    return entries[0] if len(entries) == 1 else None


def unnamed(entries: Sequence[str]) -> UserError:
    """The error where none of several entry points is named."""
    return UserError(
        f"the program has the entry points {', '.join(entries)}: name one, such as "
        f"program.entry({entries[0]!r}) (--entry {entries[0]})"
    )


def unknown_entry(name: object, entries: Sequence[str]) -> UserError:
    """The error for an entry point that a program lacks."""
    return UserError(
        f"the program has no entry point {name!r}{nearest(name, entries)}; it has "
        f"{', '.join(entries)}"
    )


def nearest(name: object, known: Sequence[str]) -> str:
    """ " (did you mean 'decode'?)" in an error, or nothing."""
    found = difflib.get_close_matches(str(name), known, 1)
    return f" (did you mean '{found[0]}'?)" if found else ""

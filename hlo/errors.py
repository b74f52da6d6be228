"""Two blames and no third: the user can mend a `UserError`, only we can mend a `CompilerBug`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class GirihError(Exception):
    """Base of every error that girih raises on purpose."""


class UserError(GirihError):
    """Something outside the compiler is wrong; the message says where, why, and what would help."""


class UnsupportedError(UserError):
    """A program that is valid, but that this version cannot import, compile or run."""


class MemoryLimitError(UserError):
    """A program needs more memory than its limit allows.

    limit_bytes: that limit. needed_bytes: of the best plan that was found, or, if `impossible`,
    what no plan of these kernels can be below.
    """

    def __init__(self, message: str, limit_bytes: int, needed_bytes: int, impossible: bool) -> None:
        super().__init__(message)
        self.limit_bytes, self.needed_bytes = limit_bytes, needed_bytes
        self.impossible = impossible


class BudgetError(UserError):
    """The devices of a program send each other more than its user allows."""


class VerifyError(UserError):
    """A program breaks a clause of the specification (`concatenate.C2: ...`)."""


class Blocker(NamedTuple):
    """One reason why an export cannot be imported."""

    operation: str
    place: str  # "model.py:41", or "" where the export carries no location
    reason: str
    remedy: str
    spelled: str = ""  # the operation as users write it; "": as it is

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{place}{self.spelled or self.operation}: {self.reason}{remedy}"


class ImportBlockers(UnsupportedError):
    """All reasons at once why an export cannot be imported; `blockers` lists them."""

    def __init__(self, blockers: Sequence[Blocker], source: str = "the export") -> None:
        self.blockers = tuple(blockers)
        count = len(self.blockers)
        head = f"{source} cannot be imported, {count} blocker{'s' if count != 1 else ''}:"
        super().__init__("\n".join([head, *(f"  {blocker}" for blocker in self.blockers)]))


class ExportBlockers(UnsupportedError):
    """All reasons at once why a program cannot be written in another format."""

    def __init__(self, blockers: Sequence[Blocker], source: str, target: str) -> None:
        self.blockers = tuple(blockers)
        count = len(self.blockers)
        head = f"{source} cannot be written as {target}, {count} reason{'s' if count != 1 else ''}:"
        super().__init__("\n".join([head, *(f"  {blocker}" for blocker in self.blockers)]))


class CompilerBug(GirihError):
    """An invariant of the compiler itself is broken; please report it with the program."""


class SeveralEntries(UserError):
    """A source has several functions to start with, `names`; `read(name)` gives the module of one
    of them."""

    def __init__(self, message: str, names: Sequence[str], read: Callable[[str], Any]) -> None:
        super().__init__(message)
        self.names, self.read = tuple(names), read

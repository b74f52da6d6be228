"""The places of a document, numbered so that parts come before the places that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import tree

_OPEN = -1


class Places:
    """Numbers of locations: equal handles have one number, unknown places have none."""

    def __init__(self, document: tree.Document) -> None:
        self._document = document
        self._numbers: dict[Any, int | None] = {}
        self._entries: list[tuple[type, tuple[Any, ...]]] = []
        self._known: dict[tuple[type, tuple[Any, ...]], int] = {}

    def number(self, handle: Any) -> int | None:
        """The number of the place behind a handle; None where it is not known."""
        if handle is None or isinstance(handle, tree.TextLine):
            return None
        if handle in self._numbers:
            return self._numbers[handle]
        pending = [handle]
        while pending:
            current = pending[-1]
            if self._numbers.get(current, _OPEN) != _OPEN:
                pending.pop()
                continue
            location = self._resolve(current)
            first = current not in self._numbers
            self._numbers[current] = _OPEN
            # A place that holds itself is malformed: the inner one counts as unknown.
            parts = [part for part in _parts(location) if part not in self._numbers]
            if first and parts:
                pending.extend(parts)
                continue
            pending.pop()
            self._numbers[current] = self._add(location)
        return self._numbers[handle]

    def entries(self, start: int = 0) -> Iterator[tuple[int, type, tuple[Any, ...]]]:
        """(number, class, fields) of each place from `start` on; places in the fields are numbers
        or None."""
        for number in range(start, len(self._entries)):
            yield number, *self._entries[number]

    def _resolve(self, handle: Any) -> Any:
        return self._document.location(handle) if isinstance(handle, (int, str)) else handle

    def _inner(self, handle: Any) -> int | None:
        if handle is None or isinstance(handle, tree.TextLine):
            return None
        number = self._numbers[handle]
        return None if number == _OPEN else number

    def _add(self, location: Any) -> int | None:
        fields: tuple[Any, ...]
        match location:
            case tree.FileLocation():
                fields = tuple(location)
            case tree.NameLocation(name, child):
                fields = (name, self._inner(child))
            case tree.CallSite(callee, caller):
                fields = (self._inner(callee), self._inner(caller))
            case tree.FusedLocation(parts):
                fields = (tuple(map(self._inner, parts)),)
            case _:
                return None
        entry = (type(location), fields)
        number = self._known.setdefault(entry, len(self._entries))
        if number == len(self._entries):
            self._entries.append(entry)
        return number


def _parts(location: Any) -> list[Any]:
    """Handles inside a location, those of unknown places left out."""
    match location:
        case tree.NameLocation(_, child):
            found = [child]
        case tree.CallSite(callee, caller):
            found = [callee, caller]
        case tree.FusedLocation(parts):
            found = list(parts)
        case _:
            found = []
    return [part for part in found if part is not None and not isinstance(part, tree.TextLine)]

"""Locations in StableHLO's text: stepped over while reading, resolved when they are asked for."""

from __future__ import annotations

import re
from typing import Any

from ...hlo.errors import UserError
from .. import tree
from .scanner import SKIP
from .text_attributes import AttributeReader

_PLAIN_LOCATION = re.compile(SKIP + r"loc\((#[\w$.]+|unknown)\)")


class LocationReader(AttributeReader):
    """Reads `loc(...)`; a handle is an alias or a position in the text."""

    def location_handle(self) -> str | int | None:
        """Step over `loc(...)` if it stands here; what `resolve_location` takes."""
        match = _PLAIN_LOCATION.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return match[1]
        if not self.at("loc("):
            return None
        start = self.position
        self.position += len("loc")
        self.balanced()
        return start

    def resolve_location(self, handle: str | int | None) -> Any:
        """The location behind a handle, one level deep: aliases inside it are handles again."""
        if handle is None or handle == "unknown":
            return None
        if isinstance(handle, str):
            if handle not in self.aliases:
                return None
            start = self.aliases[handle]
        else:
            start = handle
        saved, self.position = self.position, start
        try:
            self.expect("loc")
            self.expect("(")
            return self._location()
        except UserError:
            return None  # a location is a courtesy: a strange one must not stop an import
        finally:
            self.position = saved

    def _location(self) -> Any:
        """One location; the caller chain of nested call sites is read in a loop."""
        callees: list[Any] = []
        while self.accept_word("callsite"):
            self.expect("(")
            callees.append(self._simple_location())
            self.expect_word("at")
        last = self._simple_location()
        for callee in reversed(callees):
            self.expect(")")
            last = tree.CallSite(callee, last)
        return last

    def _simple_location(self) -> Any:
        self.enter()
        try:
            if self.at("#"):
                self.position += 1
                return "#" + self.identifier()
            if self.accept_word("unknown"):
                return None
            if self.accept_word("callsite"):
                self.position -= len("callsite")
                return self._location()
            if self.accept_word("fused"):
                if self.at("<"):
                    self.balanced()
                return tree.FusedLocation(tuple(self.sequence("[", "]", self._location)))
            text = self.string()
            if self.accept(":"):
                line = self.integer()
                column = self.integer() if self.accept(":") else 0
                if self.accept_word("to"):
                    if self.text[self.skip()].isdigit():
                        self.integer()
                    if self.accept(":"):
                        self.integer()
                return tree.FileLocation(text, line, column)
            child = None
            if self.accept("("):
                child = self._location()
                self.expect(")")
            return tree.NameLocation(text, child)
        finally:
            self.leave()

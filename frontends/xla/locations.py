"""Where instructions come from: metadata and tables of stack frames, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import tree
from . import messages
from .wire import Damaged

_MAXIMUM_FRAMES = 1000


@dataclass(slots=True)
class Frames:
    """A module's tables; every number in them counts from 1.

    files: names; functions: names; places: (file, function, line, column); frames: (place, parent
    frame). `metadata` gives the facts of one instruction by the handle that it has.
    """

    files: Sequence[str]
    functions: Sequence[str]
    places: Sequence[tuple[int, int, int, int]]
    frames: Sequence[tuple[int, int]]
    metadata: Callable[[int], Mapping[str, Any]]

    @staticmethod
    def of_proto(index: Mapping[str, Any], metadata: Sequence[memoryview]) -> Frames:
        """The tables of a StackFrameIndexProto, with the OpMetadata of each instruction."""

        def read(handle: int) -> Mapping[str, Any]:
            try:
                return messages.METADATA.read(metadata[handle])
            except Damaged:
                return {}

        return Frames(
            index.get("file_names", ()),
            index.get("function_names", ()),
            [
                (
                    item.get("file_name_id", 0),
                    item.get("function_name_id", 0),
                    item.get("line", 0),
                    item.get("column", 0),
                )
                for item in index.get("file_locations", ())
            ],
            [
                (item.get("file_location_id", 0), item.get("parent_frame_id", 0))
                for item in index.get("stack_frames", ())
            ],
            read,
        )

    def location(self, handle: int) -> Any:
        """The op tree's location of the instruction with this handle; None where none is known."""
        facts = self.metadata(handle)
        name = _text(facts, "op_name")
        found = self._stack(_number(facts, "stack_frame_id"))
        file = _text(facts, "source_file")
        if found is None and file:
            line, column = _number(facts, "source_line"), _number(facts, "source_column")
            found = tree.FileLocation(file, line, column)
        return tree.NameLocation(name, found) if name else found

    def _stack(self, number: int) -> Any:
        """The frames from the one of that number outwards, as call sites."""
        stack: list[tree.FileLocation] = []
        seen: set[int] = set()
        while 0 < number <= len(self.frames) and number not in seen:
            if len(stack) >= _MAXIMUM_FRAMES:
                break
            seen.add(number)
            place, number = self.frames[number - 1]
            if not 0 < place <= len(self.places):
                break
            file, _, line, column = self.places[place - 1]
            if 0 < file <= len(self.files):
                stack.append(tree.FileLocation(self.files[file - 1], line, column))
        found: Any = None
        for frame in reversed(stack):
            found = frame if found is None else tree.CallSite(frame, found)
        return found


def _text(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    return value if isinstance(value, str) else ""


def _number(facts: Mapping[str, Any], key: str) -> int:
    value = facts.get(key)
    return value if isinstance(value, int) else 0

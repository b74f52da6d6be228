"""MLIR locations become origins: the user's innermost file and line, and the framework's name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...hlo.graph import Origin
from .. import tree

_FRAMEWORK = re.compile(
    r"(?:site|dist)-packages/(?:jax|jaxlib|flax|haiku|equinox|optax|torch|torch_xla|torchax)/"
    r"|/lib/python3[^/]*/(?!site-packages|dist-packages)"
)
_OURS = str(Path(__file__).resolve().parents[1]) + "/"
_MAXIMUM_FRAMES = 1000


class Locations:
    """Resolves a document's locations, each once."""

    def __init__(self, document: tree.Document):
        self._document = document
        self._known: dict[Any, tuple[Origin, ...]] = {}

    def origins(self, handle: Any) -> tuple[Origin, ...]:
        """The origin behind an op's location as a tuple of one, or () where nothing is known."""
        if handle is None:
            return ()
        known = self._known.get(handle)
        if known is None:
            known = self._known[handle] = self._origins(handle)
        return known

    def place(self, *handles: Any) -> str:
        """`model.py:41` of the first with a file, else a line of the text, a name, or ""."""
        known = [origin for handle in handles for origin in self.origins(handle)]
        for origin in known:
            if origin.file:
                return f"{origin.file}:{origin.line}"
        lines = (handle.line for handle in handles if isinstance(handle, tree.TextLine))
        if (line := next(lines, None)) is not None:
            return f"{self._document.source}:{line}"
        return next((origin.name for origin in known if origin.name), "")

    def name(self, handle: Any) -> str:
        """The outermost name of a location: an argument's name."""
        location = self._resolve(handle)
        return location.name if isinstance(location, tree.NameLocation) else ""

    def _resolve(self, location: Any) -> Any:
        if isinstance(location, (str, int)):
            return self._document.location(location)
        return location

    def _origins(self, handle: Any) -> tuple[Origin, ...]:
        name = ""
        first: tree.FileLocation | None = None
        pending = [handle]
        for _ in range(_MAXIMUM_FRAMES):
            if not pending:
                break
            location = self._resolve(pending.pop())
            match location:
                case tree.NameLocation(text, child):
                    # Inside call sites a name is a Python function's, outside it is the op's.
                    name = name or text
                    pending.append(child)
                case tree.CallSite(callee, caller):
                    pending += (caller, callee)
                case tree.FusedLocation(parts):
                    pending += reversed(parts)
                case tree.FileLocation(file) if not file.startswith(_OURS):
                    first = first or location
                    if not _FRAMEWORK.search(file):
                        return (Origin(file, location.line, name),)
        if first is not None:
            return (Origin(first.file, first.line, name),)
        return (Origin(name=name),) if name else ()

"""Where in the user's own code a framework's error comes from."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|^<")
_OURS = str(Path(__file__).resolve().parents[1] / "frontends")


def user_line(error: BaseException) -> str:
    """`model.py:41: ` of the innermost frame that was still called by the user's code, else ""."""
    found = ""
    inside = False
    for frame in traceback.extract_tb(error.__traceback__):
        if str(Path(frame.filename).resolve()).startswith(_OURS):
            inside = True
        elif inside and not _LIBRARY.search(frame.filename):
            found = f"{frame.filename}:{frame.lineno}: "
    return found

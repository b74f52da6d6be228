"""Where in the user's own code a framework's error comes from."""

from __future__ import annotations

import functools
import re
import traceback
from pathlib import Path

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|^<")
_ROOT = Path(__file__).resolve().parents[1]
# While tracing.
_CALLED = ("frontends", "compiler.py", "foreign.py", "jitted.py", "kernels.py", "imports.py")


def user_line(error: BaseException) -> str:
    """`model.py:41: ` of the innermost frame that was still called by the user's code, else ""."""
    found = ""
    inside = False
    for frame in traceback.extract_tb(error.__traceback__):
        if is_ours(frame.filename):
            inside = True
        elif inside and not _LIBRARY.search(frame.filename):
            found = f"{frame.filename}:{frame.lineno}: "
    return found


@functools.lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Whether it is a file of girih's that stands between the user's call and what is traced."""
    return str(Path(file).resolve()).startswith(tuple(str(_ROOT / name) for name in _CALLED))


@functools.cache
def hide_our_frames() -> None:
    """From now on JAX records no line of ours as the place of an operation, but the user's."""
    from jax._src import source_info_util  # JAX has no public way

    for root in {_ROOT, Path(__file__).parents[1]}:  # which may be a link
        for name in _CALLED:
            source_info_util.register_exclusion(str(root / name))

"""Where a node comes from: the user's line and the path of its module, from PyTorch's records."""

from __future__ import annotations

import re
from functools import lru_cache

from ...hlo.graph import Origin
from ..user_line import is_ours

_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in ', re.MULTILINE)
_GENERATED = "<eval_with_key>"
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")
_LAYERS = re.compile(r"[/\\]torch[/\\]nn[/\\](?!modules[/\\]module\.py)")


@lru_cache(maxsize=4096)
def user_frame(stack_trace: str) -> tuple[str, int]:
    """The innermost frame outside PyTorch itself and girih; the innermost of all if there is no
    other. Code that PyTorch has generated of a graph is nobody's line."""
    frames = [found for found in _FRAME.findall(stack_trace) if not found[0].startswith(_GENERATED)]
    for file, line in reversed(frames):
        if not _LIBRARY.search(file) and not is_ours(file):
            return file, int(line)
    return (frames[-1][0], int(frames[-1][1])) if frames else ("", 0)


def origin(stack_trace: str, module_path: str) -> tuple[Origin, ...]:
    """The origin of a node; empty if nothing is known."""
    file, line = user_frame(stack_trace) if stack_trace else ("", 0)
    name = module_path.removeprefix("L['self']").lstrip(".")
    return (Origin(file, line, name),) if file or name else ()


def is_models(file: str) -> bool:
    """Whether code of a model stands in a file: the user's, a library's, or torch.nn."""
    return bool(_LAYERS.search(file)) or not (_LIBRARY.search(file) or is_ours(file))

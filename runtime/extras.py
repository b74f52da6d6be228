"""Which optional packages are at hand."""

from __future__ import annotations

import importlib.util


def is_installed(package: str) -> bool:
    """Whether `package` can be found; import hooks that forbid it count as a no."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False

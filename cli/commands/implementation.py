"""How a command finds what does its work."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def implementation(name: str) -> Any:
    """The module of cli/ that does a command's work, imported when the command is given: help needs
    none of them, and is quick."""
    return import_module(f"...{name}", __name__)

"""Which optional packages are at hand, and in which version."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from typing import NamedTuple

from .errors import UserError


class _Extra(NamedTuple):
    """The extra of girih that brings a package, the oldest version that works, and what the package
    itself does not work without."""

    name: str
    oldest: tuple[int, ...] = ()
    besides: tuple[str, ...] = ()


EXTRAS = {
    "llvmlite": _Extra("cpu", (0, 48)),  # before, LLVM refuses the vectors of convolutions
    # Before 0.9 traced functions do not tell their results' structure.
    "jax": _Extra("jax", (0, 9), ("jaxlib",)),
    "torch": _Extra("torch"),
    "scipy": _Extra("linalg"),
    "typer": _Extra("cli", (0, 16)),  # before, it does not work with today's click
    "rich": _Extra("cli", (13,)),
}


def is_installed(package: str) -> bool:
    """Whether `package` can be found; import hooks that forbid it count as a no."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def require(package: str, what: str) -> None:
    """UserError, with the line that installs it, where a package of `EXTRAS` is missing or too old.
    `what` needs it: "tracing a function"."""
    extra = EXTRAS[package]
    remedy = f"pip install --upgrade 'girih[{extra.name}]'"
    for name in (package, *extra.besides):
        if not is_installed(name):
            raise UserError(f"{what} needs {name}, which is not installed: {remedy}")
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return
    if tuple(map(int, re.findall(r"\d+", found)))[: len(extra.oldest)] < extra.oldest:
        needed = ".".join(map(str, extra.oldest))
        raise UserError(f"{what} needs {package} {needed} or newer, this is {found}: {remedy}")

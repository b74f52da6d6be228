"""Which optional packages are at hand, and in which version."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from typing import NamedTuple

from .errors import UserError


class _Extra(NamedTuple):
    """The extra of girih that brings a package, and the oldest version that works."""

    name: str
    oldest: tuple[int, ...] = ()


EXTRAS = {
    "llvmlite": _Extra("cpu", (0, 48)),  # before, LLVM refuses the vectors of convolutions
    "jax": _Extra("jax", (0, 9)),  # before, traced functions do not tell their results' structure
    "torch": _Extra("torch"),
    "scipy": _Extra("linalg"),
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
    if not is_installed(package):
        raise UserError(f"{what} needs {package}, which is not installed: {remedy}")
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return
    if tuple(map(int, re.findall(r"\d+", found)))[: len(extra.oldest)] < extra.oldest:
        needed = ".".join(map(str, extra.oldest))
        raise UserError(f"{what} needs {package} {needed} or newer, this is {found}: {remedy}")

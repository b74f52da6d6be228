"""`girih check-contract`: whether a kernel's contract holds, on made-up inputs."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..hlo.contracts import contract_text
from ..hlo.errors import UserError
from ..hlo.signature import Argument
from . import arrays, show

_TYPE = re.compile(r"(\w+)\[([\d, ]*)\]")


def check_contract(
    kernel: str, types: Sequence[str], settings: Sequence[str], seed: int, as_json: bool
) -> None:
    """Run the kernel whole and in parts, and compare; UserError with the dim where they differ."""
    found = _kernel(kernel)
    inputs = [
        arrays.made_up(_argument(text, number), seed, number) for number, text in enumerate(types)
    ]
    constants = dict(map(_constant, settings))
    found.check_contract(*inputs, **constants)
    text = contract_text(found.module(*inputs, **constants).body.ops[0])
    if as_json:
        show.print_json({"kernel": kernel, "inputs": list(types), "contract": text})
    else:
        print(f"{kernel}: `{text}` holds")


def _kernel(text: str) -> Any:
    """The kernel that `FILE.py:NAME` or `MODULE:NAME` names."""
    place, colon, name = text.rpartition(":")
    if not colon or not name:
        raise UserError(f"{text}: name the kernel as FILE.py:NAME or MODULE:NAME")
    if place.endswith(".py"):
        if not Path(place).exists():
            raise UserError(f"{place}: there is no such file")
        names = runpy.run_path(place, run_name="girih_source")
    else:
        try:
            names = vars(importlib.import_module(place))
        except ImportError as error:
            raise UserError(f"{place}: the module cannot be imported: {error}") from error
    found = names.get(name)
    if not getattr(found, "is_girih_kernel", False):
        known = [key for key, value in names.items() if getattr(value, "is_girih_kernel", False)]
        listed = ", ".join(known) or "none"
        raise UserError(f"{place}: it has no kernel '{name}'; kernels there are {listed}")
    return found


def _argument(text: str, number: int) -> Argument:
    """An input of a type such as `f32[16,8]`."""
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{text}: inputs are types such as f32[16,8]")
    dims = tuple(int(size) for size in found[2].split(",") if size.strip())
    return Argument(f"input {number}", dims, found[1])


def _constant(text: str) -> tuple[str, int | float | str]:
    """A constant of the kernel: a number, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--constant {text}: write NAME=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value

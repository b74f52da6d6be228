"""Whether a backend computes what operations mean: the cases of all rooms, compiled and run.

Each operation's cases are tried in a process of their own, so that code that crashes or hangs is a
line of the report. What a backend says that it lacks (UnsupportedError) is a limitation, no fault.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .compiler import compile as compile_program
from .hlo.cases import Example, example
from .hlo.errors import CompilerBug, UnsupportedError, UserError
from .hlo.interpret import interpret
from .hlo.ops import DEFINITIONS
from .hlo.room import OpDefinition
from .hlo.verify import HLO
from .options import Options

SECONDS = 300  # of one operation's cases
_COARSE = {2: 2e-2, 1: 2e-1}  # relative error of floats by their bytes, where a case asks for less


@dataclass
class Report:
    """What became of one operation's cases: how many agree, the words of the others."""

    operation: str
    agreed: int = 0
    limited: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def check(target: str, only: Sequence[str] = ()) -> Iterator[Report]:
    """The report of each operation, in the table's order; `only` narrows to names."""
    if unknown := set(only) - {definition.name for definition in DEFINITIONS}:
        raise UserError(f"there is no operation '{min(unknown)}'")
    for definition in DEFINITIONS:
        if HLO.holds(definition) and (not only or definition.name in only):
            report = _apart(target, definition)
            if report.agreed or report.limited or report.failed:
                yield report


def _apart(target: str, definition: OpDefinition) -> Report:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send(_tried(target, definition)))
    child.start()
    theirs.close()
    report = Report(definition.name)
    try:
        if ours.poll(SECONDS):
            report = ours.recv()
        else:
            report.failed.append(f"ran on for {SECONDS} s")
    except EOFError:
        child.join()
        report.failed.append(f"ended the process with status {child.exitcode}")
    child.kill()
    child.join()
    return report


def _tried(target: str, definition: OpDefinition) -> Report:
    report = Report(definition.name)
    for case in definition.cases():
        made = example(definition, case)
        try:
            wanted = interpret(made.module, made.inputs)
        except UserError:
            continue  # a case for what the interpreter refuses, or of several devices
        try:
            found = _compiled(target, made)
        except UnsupportedError as error:
            report.limited.append(f"{made.name}: {error}")
        except (UserError, CompilerBug) as error:
            report.failed.append(f"{made.name}: {error}")
        except Exception as error:  # noqa: BLE001 - a backend's own fault is a line of the report
            report.failed.append(f"{made.name}: {type(error).__name__}: {error}")
        else:
            pairs = zip(found, wanted, strict=True)
            if wrong := next((w for a, b in pairs if (w := _difference(made, a, b))), ""):
                report.failed.append(f"{made.name}: {wrong}")
            else:
                report.agreed += 1
    return report


def _compiled(target: str, made: Example) -> list[Any]:
    """The results of the compiled case; the same text must give the same image twice."""
    options = Options(cache="off")
    program = compile_program(made.module, target=target, options=options)
    again = compile_program(made.module, target=target, options=options)
    images = [bytes(one.parts.variants[one.target].image) for one in (program, again)]
    if images[0] != images[1]:
        raise CompilerBug("compiled twice, it gives different code")
    results = program(*made.inputs)
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _difference(made: Example, found: Any, wanted: Any) -> str:
    """How two results differ; "" if they agree."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"{found.dtype}{found.shape}, wanted {wanted.dtype}{wanted.shape}"
    if found.dtype.kind in "iub" or found.dtype.name.startswith(("int", "uint")):
        same = found == wanted
    else:
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        bound = max(made.tolerance, 1e-5, _COARSE.get(found.dtype.itemsize, 0.0))
        with np.errstate(all="ignore"):
            x, y = found.astype(wide), wanted.astype(wide)
            size = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
            same = np.isclose(x, y, bound, bound * min(size, 1e300), equal_nan=True)
    if np.all(same):
        return ""
    place = tuple(int(n) for n in np.argwhere(~np.atleast_1d(same))[0])
    x, y = np.atleast_1d(found)[place], np.atleast_1d(wanted)[place]
    return f"{x} at {list(place)}, wanted {y}"

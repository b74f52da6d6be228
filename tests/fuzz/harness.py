"""Runs a reader on mutants in a child process that may not grow, hang, or die.

Mutant number n of a seed is always the same bytes. A child works through numbers until it is done
or dies; what it was doing stands in shared memory, so its parent knows which mutant killed it and
starts the next child behind it. Limits are of CPU time and of address space, so that a busy machine
makes no finds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import mmap
import os
import pickle
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import girih
from girih.hlo.errors import UserError

from .readers import READERS, Reader, seeds_of

ROOT = Path(girih.__file__).resolve().parent
SECONDS = 2.0  # CPU time of one mutant
BYTES = 1 << 30  # address space that reading may take
PER_CHILD = 5000  # mutants, after which types that were interned are given back
SMALL = 1 << 16  # elements of all values of a program that is run
_COUNTS = struct.Struct("<QQQQQ")  # current number, phase, refused, accepted, run
_READING, _RUNNING = 0, 1


class Find(NamedTuple):
    """A mutant that a reader did not refuse as it has to. `place` is where, for telling finds
    apart; `story` is the traceback."""

    number: int
    kind: str
    place: str
    story: str


class Report(NamedTuple):
    """What a run did; `stopped` counts accepted programs that ran too long when interpreted."""

    tried: int
    refused: int
    accepted: int
    interpreted: int
    stopped: int
    finds: list[Find]


def mutant(reader: Reader, seeds: list[bytes], seed: int, number: int) -> bytes:
    """Mutant `number` of a run."""
    rng = random.Random(f"{seed}/{number}")
    weights = [1 / (1 + len(data) / 4096) for data in seeds]
    (data,) = rng.choices(seeds, weights)
    others = rng.choices(seeds, weights, k=3)
    return reader.mutate(rng, data, others)


def judge(reader: Reader, data: bytes, phase: Callable[[int], None]) -> str:
    """ "refused", "accepted" or "run"; anything else that a reader does is raised."""
    try:
        module = reader.read(data)
    except UserError:
        return "refused"
    if module is None:
        return "accepted"
    phase(_RUNNING)
    return _run(module)


def _run(module: Any) -> str:
    """Verify what was read, and interpret it where it is small and has no loops."""
    from girih.hlo.interpret import interpret
    from girih.hlo.types import TensorType
    from girih.hlo.verify import verify

    try:
        verify(module)
        ops = list(module.walk())
        types = [value.type for op in ops for value in (*op.operands, *op.results)]
        types += module.body.argument_types
        if any(not isinstance(type, TensorType) or not type.is_static for type in types):
            return "accepted"
        names = {op.name for op in ops}
        if sum(type.size for type in types) > SMALL or names & {"while", "kernel_call", "tile_for"}:
            return "accepted"
        with np.errstate(all="ignore"):
            arguments = [value.tensor for value in module.body.arguments]
            interpret(module, [np.zeros(type.dims, type.dtype) for type in arguments])
    except UserError:
        return "accepted"
    return "run"


def fuzz(name: str, seed: int, start: int, stop: int, until: float = float("inf")) -> Report:
    """Try the mutants start..stop, or until that time (`time.monotonic`)."""
    reader, seeds = READERS[name], seeds_of(name)
    shared = mmap.mmap(-1, _COUNTS.size)
    finds: list[Find] = []
    number, stopped, totals = start, 0, [0, 0, 0]
    while number < stop and time.monotonic() < until:
        end = min(stop, number + PER_CHILD)
        shared[:] = _COUNTS.pack(number, _READING, 0, 0, 0)
        work = functools.partial(_work, reader, seeds, seed, number, end, until, shared)
        found, died, log = in_child(work)
        finds += found
        reached, phase, *counts = _COUNTS.unpack(shared[:])
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        number = reached + 1 if died else reached
        if died == signal.SIGPROF and phase == _RUNNING:
            stopped += 1
        elif died:
            finds.append(Find(reached, _death(died), _last_place(log), log))
    refused, accepted, interpreted = totals
    return Report(number - start, refused, accepted, interpreted, stopped, finds)


def _work(
    reader: Reader, seeds: list[bytes], seed: int, number: int, end: int, until: float,
    shared: mmap.mmap, tell: Callable[[Any], None],
) -> None:  # fmt: skip
    refused = accepted = run = 0

    def note(phase: int) -> None:
        shared[:] = _COUNTS.pack(number, phase, refused, accepted, run)

    while number < end and time.monotonic() < until:
        note(_READING)
        data = mutant(reader, seeds, seed, number)
        try:
            with _time_limit():
                outcome = judge(reader, data, note)
        except Exception as error:
            tell(_find_of(number, error))
            outcome = "accepted"
        refused += outcome == "refused"
        accepted += outcome != "refused"
        run += outcome == "run"
        number += 1
    note(_READING)


def failure(reader: Reader, data: bytes) -> Find | None:
    """What is wrong when these bytes are read, in a process of its own; None if nothing is."""

    def work(tell: Callable[[Any], None]) -> None:
        try:
            with _time_limit():
                judge(reader, data, lambda phase: tell(phase))
        except Exception as error:
            tell(_find_of(0, error))

    told, died, log = in_child(work)
    if died and not (died == signal.SIGPROF and _RUNNING in told):
        return Find(0, _death(died), _last_place(log), log)
    return next((entry for entry in told if isinstance(entry, Find)), None)


@contextlib.contextmanager
def _time_limit() -> Any:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _find_of(number: int, error: Exception) -> Find:
    frames = traceback.extract_tb(error.__traceback__)
    ours = (f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if _is_ours(f.filename))
    place = next(ours, "")
    story = "".join(traceback.format_exception(error, limit=-6))
    return Find(number, type(error).__name__, place, story[-4000:])


def _is_ours(filename: str) -> bool:
    path = Path(filename).resolve()
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in (".venv", "tests")


def _death(number: int) -> str:
    return f"died of {signal.Signals(number).name}" if number > 0 else f"left with {-number}"


def _last_place(log: str) -> str:
    """The innermost line of ours in what faulthandler wrote."""
    for line in log.splitlines():
        parts = line.split('"')
        if line.startswith("  File") and len(parts) == 3 and _is_ours(parts[1]):
            return f"{Path(parts[1]).name}:{parts[2].split()[2]}"
    return ""


def in_child(work: Callable[[Callable[[Any], None]], None]) -> tuple[list[Any], int, str]:
    """What `work(tell)` told in a limited child, the signal that ended it (0: none), its log."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.close(reading)
            code = 1
            try:
                _limit(log.fileno())
                with os.fdopen(writing, "wb") as out:
                    work(lambda entry: pickle.dump(entry, out) or out.flush())
                code = 0
            except BaseException:
                os.write(log.fileno(), traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(writing)
        told: list[Any] = []
        with os.fdopen(reading, "rb") as source, contextlib.suppress(EOFError, pickle.PickleError):
            while True:
                told.append(pickle.load(source))
        _, status = os.waitpid(child, 0)
        log.seek(0)
        text = log.read().decode("utf-8", "replace")[-4000:]
    code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
    return told, code, text


def _limit(log: int) -> None:
    """Limit this process, and let it say where it was when it dies."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(log)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.register(signal.SIGPROF, log, chain=True)


def minimise(reader: Reader, data: bytes, find: Find, seconds: float = 60.0) -> bytes:
    """Smaller bytes that fail in the same way: ever smaller pieces are left out."""
    until = time.monotonic() + seconds
    piece = max(len(data) // 2, 1)
    while piece:
        at = 0
        while at < len(data) and time.monotonic() < until:
            shorter = data[:at] + data[at + piece :]
            found = failure(reader, shorter)
            if found is not None and (found.kind, found.place) == (find.kind, find.place):
                data = shorter
            else:
                at += piece
        piece //= 2
    return data

"""Choices that were measured: which variant of a kernel is the fastest on some machine.

A `Tuning` is data, kept in bundles as `tuning.json`: for each kernel, by a digest of its canonical
text and its target, the variant that was taken. A `Tuner` serves one compilation: it answers from
the tuning that was given, times variants only where that is asked for, and remembers what it said.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..hlo.errors import UserError

if TYPE_CHECKING:
    from ..hlo.graph import Op
    from .schedule import Schedule

SCHEMA, VERSION = "girih.tuning", 1
BUDGET = 30.0  # seconds of measuring in one compilation, after which no kernel is begun
_DIGEST = 32  # hexadecimal digits
_AS_FAST = 0.98  # of the time of a variant: what is within it is noise
_LONGEST = 1e9  # seconds of a call
_NAMED = 3  # kernels that a note names

Choice = Mapping[str, Any]  # name -> int, bool or list of ints: what JSON gives back as it was


class Variant(NamedTuple):
    """One way to make a kernel, and the seconds that the cost model predicts."""

    choice: Choice
    predicted: float


class Ready(NamedTuple):
    """A variant that can be run: a plan_pb2.Plan of this kernel alone, its code and weights."""

    plan: Any
    image: bytes
    weights: Mapping[str, Any]


Clock = Callable[[Sequence[Ready]], list[float]]  # seconds of a call of each


@dataclass(frozen=True)
class TuningEntry:
    """What was taken for a kernel. Seconds of a call; `kernel` and `machine` are for people."""

    kernel: str
    choice: Choice
    predicted: float
    measured: float
    machine: str


@dataclass(frozen=True)
class Tuning:
    """Entries by `digest_of`."""

    entries: Mapping[str, TuningEntry] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document `tuning.json`."""
        kernels = {digest: asdict(entry) for digest, entry in sorted(self.entries.items())}
        return {"schema": SCHEMA, "version": VERSION, "kernels": kernels}


def digest_of(text: str, target: str) -> str:
    """The name of a kernel: 32 hexadecimal digits of its canonical text and target."""
    data = f"{len(target)} {target}{text}".encode()
    return hashlib.blake2b(data, digest_size=_DIGEST // 2).hexdigest()


def from_text(text: str | bytes, label: str) -> Tuning:
    """The tuning of a JSON text; UserError if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(label, f"it is no JSON ({error})"[:200]) from error
    return from_json(data, label)


def from_json(data: Any, label: str) -> Tuning:
    """The tuning of a document; UserError if it is none."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise _malformed(label, f"its schema is not {SCHEMA}")
    if data.get("version") != VERSION:
        raise UserError(
            f"tuning: '{label}' has version {data.get('version')!r}, this girih reads {VERSION}; "
            "measure again"
        )
    kernels = data.get("kernels")
    if not isinstance(kernels, dict):
        raise _malformed(label, "it has no kernels")
    return Tuning({str(k): _entry(str(k), value, label) for k, value in kernels.items()})


def _entry(digest: str, data: Any, label: str) -> TuningEntry:
    if len(digest) != _DIGEST or set(digest) - set("0123456789abcdef"):
        raise _malformed(label, f"{digest[:40]!r} is no digest")
    names = set(TuningEntry.__dataclass_fields__)
    if not isinstance(data, dict) or set(data) != names:
        raise _malformed(label, f"kernel {digest} has other fields than {', '.join(sorted(names))}")
    choice = data["choice"]
    if not isinstance(choice, dict) or not all(map(_is_value, choice.values())):
        raise _malformed(label, f"the choice of kernel {digest} is no map of whole numbers")
    for name in ("predicted", "measured"):
        number = data[name]
        if type(number) not in (int, float) or not 0 <= number < _LONGEST:
            raise _malformed(label, f"{name} of kernel {digest} is no number of seconds")
    for name in ("kernel", "machine"):
        if not isinstance(data[name], str):
            raise _malformed(label, f"{name} of kernel {digest} is no text")
    return TuningEntry(**data)


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return all(type(item) is int for item in value)
    return type(value) in (int, bool)


def _malformed(label: str, reason: str) -> UserError:
    return UserError(f"tuning: '{label}' is damaged: {reason}; measure again")


class Choices(Protocol):
    """What a backend chooses with a tuner. Each method is called before what it decides is made."""

    tuner: Tuner

    def tiling(self, text: str, variants: Sequence[tuple[Variant, Op]]) -> Op:
        """One of the tile functions of a group with that canonical text, best predicted first."""
        ...

    def kernels(self, schedule: Schedule) -> None:
        """Choose for every kernel of a schedule that `build` will make."""
        ...


class Tuner:
    """The choices of one compilation: from `known`, else measured, else the cost model's (None).

    measure: how many variants of a kernel are timed; 0: nothing is ever timed.
    """

    def __init__(self, known: Tuning | None, measure: int, clock: Clock, machine: str = "") -> None:
        self.known, self.measure, self.clock, self.machine = known, measure, clock, machine
        self.found: dict[str, TuningEntry] = {}
        self._left_out: dict[str, str] = {}  # digest -> kernel
        self._end: float | None = None

    @property
    def tuning(self) -> Tuning:
        """What this compilation chose, for its bundle."""
        return Tuning(dict(self.found))

    @property
    def notes(self) -> tuple[str, ...]:
        """Kernels that the cost model alone chose for, although a measurement was asked for."""
        if not self._left_out:
            return ()
        names = list(dict.fromkeys(self._left_out.values()))
        more = ", ..." if len(names) > _NAMED else ""
        listed = ", ".join(names[:_NAMED]) + more
        count = len(self._left_out)
        kernels = f"{count} kernel{'s' * (count > 1)} ({listed})"
        if self.measure:
            reason = f"not measured, as {BUDGET:.0f} s were over"
        else:
            reason = "not in the tuning"
        return (f"{kernels} {reason}: the cost model chose",)

    def choose(
        self,
        digest: str,
        kernel: str,
        variants: Sequence[Variant],
        is_legal: Callable[[Choice], bool],
        ready: Callable[[Choice], Ready],
    ) -> Choice | None:
        """The choice for a kernel that has several `variants`, the best predicted first."""
        if digest in self.found:
            return self.found[digest].choice
        if digest in self._left_out:
            return None
        entry = self.known.entries.get(digest) if self.known else None
        if entry is not None and not is_legal(entry.choice):
            entry = None  # of another cost model or compiler: as if it were not there
        if entry is None and self.measure and self._in_time():
            entry = self._measured(kernel, variants[: self.measure], ready)
        if entry is None:
            self._left_out[digest] = kernel
            return None
        self.found[digest] = entry
        return entry.choice

    def _in_time(self) -> bool:
        now = time.monotonic()
        if self._end is None:
            self._end = now + BUDGET
        return now < self._end

    def _measured(
        self, kernel: str, variants: Sequence[Variant], ready: Callable[[Choice], Ready]
    ) -> TuningEntry:
        """The fastest variant; among those that are as fast the best predicted."""
        made: dict[bytes, tuple[Ready, Variant]] = {}
        for variant in variants:
            one = ready(variant.choice)
            made.setdefault(one.image, (one, variant))  # equal code is timed once
        seconds = self.clock([one for one, _ in made.values()])
        best = next(n for n, took in enumerate(seconds) if _AS_FAST * took <= min(seconds))
        choice, predicted = [variant for _, variant in made.values()][best]
        return TuningEntry(kernel, choice, _digits(predicted), _digits(seconds[best]), self.machine)


def _digits(seconds: float) -> float:
    """Four digits: more mean nothing."""
    return float(f"{seconds:.4g}")

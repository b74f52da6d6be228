"""What a profiled call did: one event per worker and executed kernel, for people and Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..hlo.errors import UserError

_NAMED = 3  # kernels in the name of a launch


@dataclass(frozen=True)
class Event:
    """A worker's share of one executed step; times in microseconds from the call's start."""

    kernel: str
    kind: str
    worker: int
    begin: float
    duration: float
    step: int
    ops: tuple[str, ...] = ()
    origin: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)  # what a simulator counted
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by line of source


@dataclass(frozen=True)
class KernelTotal:
    """All events of one kernel: times in microseconds, of the slowest worker per step."""

    kernel: str
    kind: str
    calls: int
    time: float
    flops: float
    bytes: float
    origin: str
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def gigaflops(self) -> float:
        """Operations per nanosecond."""
        return self.flops / self.time / 1e3 if self.time else 0.0

    @property
    def gigabytes(self) -> float:
        """Bytes per nanosecond."""
        return self.bytes / self.time / 1e3 if self.time else 0.0


class Profile:
    """Events of one call, its outputs, and where the time went."""

    def __init__(
        self,
        plan: Any,
        raw: Sequence[Any],
        outputs: Any,
        state: Mapping[str, Any] | None = None,
        warm: bool = False,
    ) -> None:
        """`raw`: what a device's run gives: step, worker, begin and duration of events. `state`:
        the new values of buffers by name. `warm`: a call in the same memory went before."""
        self._plan, self.warm = plan, warm
        # Steps that are one launch are one event, of the first of them.
        self._merged = {
            min(one.step for one in merge.steps): [one.step for one in merge.steps]
            for merge in plan.merges
        }
        self.outputs, self.state = outputs, dict(state or {})
        self.events = tuple(self._event(item) for item in raw)

    def _event(self, item: Any) -> Event:
        kernels = self._kernels(item.step)
        kernel = kernels[0]
        return Event(
            kernel=launch_name([one.name for one in kernels]),
            kind=kernel.kind if len(kernels) == 1 else "merged",
            worker=item.worker,
            begin=item.begin,
            duration=item.duration,
            step=item.step,
            ops=tuple(op for one in kernels for op in one.ops),
            origin=origin_text(kernel),
            counters=getattr(item, "counters", {}),
            lines=getattr(item, "lines", {}),
        )

    def _kernels(self, step: int) -> list[Any]:
        """What an event of a step runs."""
        plan = self._plan
        return [plan.kernels[plan.steps[n].run.kernel] for n in self._merged.get(step, [step])]

    @property
    def duration(self) -> float:
        """Microseconds from the first event's begin to the last one's end."""
        ends = [event.begin + event.duration for event in self.events]
        return max(ends) - min(event.begin for event in self.events) if ends else 0.0

    def kernels(self) -> list[KernelTotal]:
        """Totals per kernel, the slowest first."""
        slowest: dict[tuple[int, int], float] = {}
        seen: dict[tuple[int, int], int] = {}
        for event in self.events:
            turn = seen.get((event.step, event.worker), 0)  # a loop runs a step several times
            seen[event.step, event.worker] = turn + 1
            slowest[event.step, turn] = max(slowest.get((event.step, turn), 0.0), event.duration)
        first = {event.kernel: event for event in reversed(self.events)}
        counters: dict[str, dict[str, int]] = {}
        names = {event.step: event.kernel for event in self.events}
        for event in self.events:
            counted = counters.setdefault(event.kernel, {})
            for name, count in event.counters.items():
                counted[name] = counted.get(name, 0) + count
        totals: dict[str, list[float]] = {}
        for (step, _), time in slowest.items():
            runs = [self._plan.steps[n].run for n in self._merged.get(step, [step])]
            total = totals.setdefault(names[step], [0, 0.0, 0.0, 0.0])
            done = sum(run.flops for run in runs), sum(run.bytes for run in runs)
            for index, value in enumerate((1, time, *done)):
                total[index] += value
        found = [
            KernelTotal(
                kernel=name,
                kind=first[name].kind,
                calls=int(calls),
                time=time,
                flops=flops,
                bytes=moved,
                origin=first[name].origin,
                counters=counters[name],
            )
            for name, (calls, time, flops, moved) in totals.items()
        ]
        return sorted(found, key=lambda kernel: -kernel.time)

    def lines(self) -> dict[str, dict[str, int]]:
        """What a simulator counted for each line of source ("model.py:9"; "" is unknown), the most
        instructions first."""
        found: dict[str, dict[str, int]] = {}
        for event in self.events:
            for line, counters in event.lines.items():
                counted = found.setdefault(line, {})
                for name, count in counters.items():
                    counted[name] = counted.get(name, 0) + count
        order = sorted(found, key=lambda line: -found[line].get("instructions", 0))
        return {line: found[line] for line in order}

    def trace(self) -> dict[str, Any]:
        """The events in the trace format that Perfetto and chrome://tracing open."""
        workers = sorted({event.worker for event in self.events})
        names: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "girih"}}
        ]
        names += [
            {
                "name": "thread_name",
                "ph": "M",
                "pid": 1,
                "tid": worker,
                "args": {"name": f"worker {worker}"},
            }
            for worker in workers
        ]
        events = [
            {
                "name": event.kernel,
                "cat": event.kind,
                "ph": "X",
                "pid": 1,
                "tid": event.worker,
                "ts": event.begin,
                "dur": event.duration,
                "args": {
                    "step": event.step,
                    "ops": " ".join(event.ops),
                    "origin": event.origin,
                    **event.counters,
                },
            }
            for event in self.events
        ]
        data = {"traceEvents": names + events, "displayTimeUnit": "ns"}
        return {**data, "otherData": {"warm": self.warm}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace; open it at https://ui.perfetto.dev."""
        try:
            Path(path).write_text(json.dumps(self.trace()))
        except OSError as error:
            raise UserError(f"{path}: cannot write: {error.strerror}") from error

    def __str__(self) -> str:
        total = sum(kernel.time for kernel in self.kernels()) or 1.0
        lines = [
            "a warm call: others went before"
            if self.warm
            else "the first call, with cold memory and code; profile(..., warmup=1) is a warm one"
        ]
        lines += [f"{'time us':>10} {'share':>6} {'calls':>6} {'GF/s':>8} {'GB/s':>7}  kernel"]
        lines += [
            f"{k.time:10.1f} {k.time / total:6.1%} {k.calls:6} {k.gigaflops:8.1f} "
            f"{k.gigabytes:7.1f}  {k.kernel}{'  ' + k.origin if k.origin else ''}"
            for k in self.kernels()
        ]
        lines += [f"note: {note}" for note in self._plan.notes]
        return "\n".join(lines)


def launch_name(kernels: Sequence[str]) -> str:
    """What a launch of several kernels is called, by their names."""
    names = [*dict.fromkeys(kernels)]
    return "+".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])


def origin_text(kernel: Any) -> str:
    """The first place in the user's program that a kernel computes for, and the module there:
    `model.py:41 (encoder.layer.3)`."""
    for origin in kernel.origins:
        module = module_path(origin.name)
        if origin.file:
            line = f"{os.path.basename(origin.file)}:{origin.line}"
            return f"{line} ({module})" if module else line
        if origin.name:
            return module or origin.name  # type: ignore[no-any-return]
    return ""


def module_path(name: str) -> str:
    """The user's module or scope in a framework's name for an operation; "" if there is none:
    `encoder.layer.3` as it is, `encoder/block` of `jit(step)/encoder/block/tanh`."""
    scopes, slash, _ = name.rpartition("/")
    if not slash:
        return "" if name.endswith(")") else name
    return "/".join(scope for scope in scopes.split("/") if not scope.endswith(")"))

"""What a simulated launch tells: counts, and faults with the place in the PTX and in the source."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....hlo.errors import UserError

# What a user does about faults of a kernel of their own.
REMEDIES = {
    "bounds": "guard it with a mask or a comparison with the array's size",
    "race": "put a barrier between the two; blocks need atomics, or launches one after the other",
    "uninitialised": "write it first, and wait for that with a barrier",
    "deadlock": "let all threads reach the barrier, and as often as it counts",
    "proxy": "put fence.proxy.async behind the stores, before the barrier",
}


@dataclass(frozen=True)
class Fault:
    """`kind` is one word ("bounds", "race", "deadlock", ...); `line` counts PTX lines from 1;
    `source` is "file:line" of the last .loc, or ""."""

    kind: str
    message: str
    entry: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        place = f"PTX line {self.line}" + (f" ({self.source})" if self.source else "")
        remedy = f"\n    remedy: {REMEDIES[self.kind]}" if self.kind in REMEDIES else ""
        return f"{self.kind} in '{self.entry}' at {place}: {self.message}{remedy}"


@dataclass
class Report:
    """`instructions` counts per thread, `vector_instructions` per executed vector.

    `counters`, where asked for: global_requests / global_sectors (of 32 bytes, per warp), ideal
    sectors, shared_requests / bank_conflicts (extra wavefronts). `lines`: the same, and
    instructions, by line of source ("model.py:9"; "" is unknown)."""

    entry: str
    instructions: int = 0
    vector_instructions: int = 0
    faults: list[Fault] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, name: str, amount: int, line: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount
        self.count_line(name, amount, line)

    def count_line(self, name: str, amount: int, line: str) -> None:
        counted = self.lines.setdefault(line, {})
        counted[name] = counted.get(name, 0) + amount


class SimulationError(UserError):
    """A fault that makes results wrong; `fault` says where, `report` what ran until then."""

    def __init__(self, fault: Fault, report: Report) -> None:
        self.fault = fault
        self.source = fault.source
        self.report = report
        super().__init__(str(fault))

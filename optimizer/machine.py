"""What a cost model needs to know about a machine: levels of memory, units, executors, sync costs.

A machine is data: a JSON file, written by hand or filled by a backend's calibration. Nothing here
belongs to one kind of hardware: an executor is a core, or a multiprocessor; a unit is anything that
does arithmetic; a level is any memory with a capacity and a bandwidth.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..hlo.errors import UserError
from .cost import assumed

SCHEMA, VERSION = "girih.machine", 1
KINDS = ("exchange", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ENGINES = ("girih", "library")

Json = dict[str, Any]


class Bandwidth(NamedTuple):
    """Bytes per second that so many active executors reach together."""

    executors: int
    read: float
    write: float
    copy: float  # read plus written


class Efficiency(NamedTuple):
    """The fraction of a unit's peak that a block of rows x vectors of accumulators reaches."""

    rows: int
    vectors: int
    fraction: float


@dataclass(frozen=True)
class Level:
    """One level of memory. `capacity` in bytes of one executor, or of all where it is `shared`;
    `line` in bytes, `latency` in seconds; bandwidths in the order of their executors. `ways`:
    places that a line may take; lines capacity / ways apart contend for them."""

    name: str
    capacity: int
    line: int
    ways: int
    latency: float
    shared: bool
    bandwidth: tuple[Bandwidth, ...]

    def rate(self, executors: int, kind: str = "read") -> float:
        """Bytes per second of one of so many active executors; linear between known counts."""
        table = self.bandwidth
        if executors <= table[0].executors:
            return getattr(table[0], kind) / table[0].executors
        for low, high in zip(table, table[1:], strict=False):
            if executors <= high.executors:
                share = (executors - low.executors) / (high.executors - low.executors)
                total = (1 - share) * getattr(low, kind) + share * getattr(high, kind)
                return total / executors
        # Beyond what was measured a private level grows with its owners, a shared one is full.
        last = table[-1]
        return getattr(last, kind) / (executors if self.shared else last.executors)


@dataclass(frozen=True)
class Unit:
    """What multiplies and adds: `flops` per second of one executor for these element types.

    lanes: elements of one vector of the result. parallelism: independent accumulators that hide
    the unit's latency. registers: vectors that a block may hold. grain: rows, columns and depth of
    the least that it multiplies at once; () where that is one vector.
    """

    name: str
    elements: tuple[str, ...]
    flops: float
    lanes: int
    parallelism: int
    registers: int
    efficiency: tuple[Efficiency, ...]
    grain: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sync:
    """Seconds: `step`: executors that are awake agree once; `wake`: one that sleeps begins to
    work; `dispatch`: one call of native code from the host; `counter`: one looks at a counter that
    another has changed; `barrier`: all count themselves on one word and see the others there."""

    step: float
    wake: float
    dispatch: float
    counter: float = assumed.SECONDS_PER_COUNTER
    barrier: float = assumed.SECONDS_PER_BARRIER


@dataclass(frozen=True)
class MathRates:
    """Elements per second of one executor, in single precision, operands in registers."""

    simple: float
    exp: float
    div: float
    sqrt: float


@dataclass(frozen=True)
class Limitation:
    """Why no kernel of a target computes something as a whole; dtype: of what is multiplied."""

    target: str
    dtype: str
    reason: str


@dataclass(frozen=True)
class BlockExecution:
    """How an executor runs blocks of threads, which share its first level of memory by their own
    loads and stores. registers: of 4 bytes, of one executor. Seconds: `fill` from the start of a
    kernel until a first block computes, `tile` around each tile, `poll` from the end of a kernel
    until the host has read a number that it has written, `conditional` until a node of a graph that
    decides has decided. `meeting`: what it costs that threads of a block meet, in instructions."""

    registers: int
    fill: float
    tile: float
    meeting: float = 32.0
    poll: float = 1e-5
    conditional: float = 4e-6


class Residency(NamedTuple):
    """Most that one executor holds of blocks of threads at a time: threads, blocks, registers and
    bytes of the memory that a block's threads share; each block takes `reserved` more of these."""

    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved: int


class CommunicationCost(NamedTuple):
    """What an operation between processes was measured to cost: the seconds that begin it, and
    those of each byte that a process receives.

    kind: "exchange" (each sends to one other), "all_reduce", "all_gather", "reduce_scatter",
    "all_to_all". processes: of a group. engine: "girih" (messages and sums of our own) or
    "library" (the collective of MPI).
    """

    kind: str
    processes: int
    engine: str
    call: float
    byte: float

    def seconds(self, received: float) -> float:
        """Of one call in which a process receives so many bytes."""
        return self.call + received * self.byte


def nearest(
    network: tuple[CommunicationCost, ...], kind: str, processes: int, engine: str
) -> CommunicationCost | None:
    """The row of a group of so many processes, or of the nearest number that was measured; None
    where none was."""
    rows = [row for row in network if (row.kind, row.engine) == (kind, engine)]
    return min(rows, key=lambda row: (abs(row.processes - processes), row.processes), default=None)


@dataclass(frozen=True)
class Machine:
    """A machine as cost models see it. Levels are ordered from the fastest to main memory, whose
    capacity is what programs may use. overlap: the part of the second slowest of computing and
    moving that is hidden behind the slowest. blocks: None where executors are cores with caches.
    network: what was measured between processes that a launcher started; () where none was."""

    name: str
    executors: int
    levels: tuple[Level, ...]
    units: tuple[Unit, ...]
    sync: Sync
    math: MathRates
    overlap: float
    blocks: BlockExecution | None = None
    network: tuple[CommunicationCost, ...] = ()

    def __post_init__(self) -> None:
        # Machines are parts of cache keys: a deep hash each time would cost more than a lookup.
        parts = tuple(getattr(self, field.name) for field in fields(self))
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"Machine({self.name} {digest(self)})"

    def unit(self, element: str) -> Unit:
        """The fastest unit for an element type; UserError if none has it."""
        found = [unit for unit in self.units if element in unit.elements]
        if not found:
            raise UserError(f"machine '{self.name}' has no unit for {element}")
        return max(found, key=lambda unit: unit.flops)

    def communication(self, kind: str, processes: int, engine: str) -> CommunicationCost | None:
        """What an operation costs in a group of so many processes, as `nearest` knows it."""
        return nearest(self.network, kind, processes, engine)

    def level(self, name: str) -> Level:
        """The level of that name; UserError if there is none."""
        for level in self.levels:
            if level.name == name:
                return level
        known = ", ".join(level.name for level in self.levels)
        raise UserError(f"machine '{self.name}' has no level '{name}'; it has {known}")


@functools.lru_cache(maxsize=64)
def digest(machine: Machine) -> str:
    """Of all that is known of a machine."""
    return hashlib.blake2b(to_json(machine).encode(), digest_size=8).hexdigest()


def to_json(machine: Machine) -> str:
    """The machine as a JSON document, the same text for equal machines."""
    body = asdict(machine)
    for level, made in zip(machine.levels, body["levels"], strict=True):
        made["bandwidth"] = [row._asdict() for row in level.bandwidth]
    for unit, made in zip(machine.units, body["units"], strict=True):
        made["efficiency"] = [list(row) for row in unit.efficiency]
        if not unit.grain:
            del made["grain"]
    if machine.blocks is None:
        del body["blocks"]
    if machine.network:
        body["network"] = [row._asdict() for row in machine.network]
    else:
        del body["network"]
    return _text({"schema": SCHEMA, "version": VERSION, **body}) + "\n"


def _text(value: Any, indent: int = 0) -> str:
    """JSON with short lists and objects on one line, for people who write such files by hand."""
    flat = json.dumps(value)
    if len(flat) + indent <= 96 or not isinstance(value, (dict, list, tuple)):
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key)}: {_text(v, indent + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + pad[:-1] + "}"
    parts = [pad + _text(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(parts) + "\n" + pad[:-1] + "]"


def read_machine(path: str | Path) -> Machine:
    """The machine of a JSON file; UserError names the file and what is wrong in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"machine file '{path}' cannot be read: {error}") from error
    return from_json(text, str(path))


def from_json(text: str, where: str = "machine") -> Machine:
    """The machine of a JSON document; UserError says where (`where: levels[2].line`) and why."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UserError(f'{where}: no machine file: it must be an object with "schema": "{SCHEMA}"')
    if body.get("version") != VERSION:
        raise UserError(
            f"{where}: version {body.get('version')!r} of machine files is unknown; this girih "
            f"reads version {VERSION}: calibrate anew, or use another girih"
        )
    body = {key: value for key, value in body.items() if key not in ("schema", "version")}
    reader = _MachineReader(where)
    machine = reader.machine(body)
    _check(machine, where)
    return machine


class _MachineReader:
    """Takes a parsed document apart; every error says where it stands."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, place: str, reason: str) -> UserError:
        return UserError(f"{self.where}: {place}: {reason}" if place else f"{self.where}: {reason}")

    def machine(self, body: Json) -> Machine:
        self.keys(body, Machine, "")
        return Machine(
            self.text(body["name"], "name"),
            self.whole(body["executors"], "executors"),
            tuple(self.level(v, f"levels[{i}]") for i, v in self.each(body["levels"], "levels")),
            tuple(self.unit(v, f"units[{i}]") for i, v in self.each(body["units"], "units")),
            Sync(**self.numbers(body["sync"], Sync, "sync", zero=True)),
            MathRates(**self.numbers(body["math"], MathRates, "math")),
            self.number(body["overlap"], "overlap", zero=True),
            self.blocks(body["blocks"]) if "blocks" in body else None,
            self.network(body["network"]) if "network" in body else (),
        )

    def blocks(self, body: Any) -> BlockExecution:
        made = self.numbers(body, BlockExecution, "blocks")
        return BlockExecution(
            **{**made, "registers": self.whole(body["registers"], "blocks.registers")}
        )

    def network(self, body: Any) -> tuple[CommunicationCost, ...]:
        rows: list[CommunicationCost] = []
        for i, row in self.each(body, "network"):
            here = f"network[{i}]"
            self.keys(row, CommunicationCost, here)
            rows.append(
                CommunicationCost(
                    self.one_of(row["kind"], KINDS, f"{here}.kind"),
                    self.whole(row["processes"], f"{here}.processes"),
                    self.one_of(row["engine"], ENGINES, f"{here}.engine"),
                    self.number(row["call"], f"{here}.call", zero=True),
                    self.number(row["byte"], f"{here}.byte", zero=True),
                )
            )
        if len({row[:3] for row in rows}) < len(rows):
            raise self.fail("network", "has two rows of one kind, engine and number of processes")
        return tuple(rows)

    def one_of(self, value: Any, known: tuple[str, ...], place: str) -> str:
        if value not in known:
            raise self.fail(place, f"must be one of {', '.join(known)}, not {value!r}")
        return value

    def level(self, body: Any, place: str) -> Level:
        self.keys(body, Level, place)
        rows = []
        for i, row in self.each(body["bandwidth"], f"{place}.bandwidth"):
            here = f"{place}.bandwidth[{i}]"
            values = self.numbers(row, Bandwidth, here)
            rows.append(
                Bandwidth(**values)._replace(
                    executors=self.whole(row["executors"], f"{here}.executors")
                )
            )
        if [row.executors for row in rows] != sorted({row.executors for row in rows}):
            raise self.fail(f"{place}.bandwidth", "executors must grow from row to row")
        if not isinstance(body["shared"], bool):
            raise self.fail(f"{place}.shared", "must be true or false")
        return Level(
            self.text(body["name"], f"{place}.name"),
            self.whole(body["capacity"], f"{place}.capacity"),
            self.whole(body["line"], f"{place}.line"),
            self.whole(body["ways"], f"{place}.ways"),
            self.number(body["latency"], f"{place}.latency", zero=True),
            body["shared"],
            tuple(rows),
        )

    def unit(self, body: Any, place: str) -> Unit:
        self.keys(body, Unit, place)
        elements = [
            self.text(e, f"{place}.elements[{i}]")
            for i, e in self.each(body["elements"], f"{place}.elements")
        ]
        table = []
        for i, row in self.each(body["efficiency"], f"{place}.efficiency"):
            here = f"{place}.efficiency[{i}]"
            if not isinstance(row, list) or len(row) != 3:
                raise self.fail(here, "must be [rows, vectors, fraction]")
            table.append(
                Efficiency(
                    self.whole(row[0], here), self.whole(row[1], here), self.number(row[2], here)
                )
            )
        return Unit(
            self.text(body["name"], f"{place}.name"),
            tuple(elements),
            self.number(body["flops"], f"{place}.flops"),
            self.whole(body["lanes"], f"{place}.lanes"),
            self.whole(body["parallelism"], f"{place}.parallelism"),
            self.whole(body["registers"], f"{place}.registers"),
            tuple(table),
            self.grain(body["grain"], f"{place}.grain") if "grain" in body else (),
        )

    def grain(self, body: Any, place: str) -> tuple[int, ...]:
        found = tuple(self.whole(one, f"{place}[{i}]") for i, one in self.each(body, place))
        if len(found) != 3:
            raise self.fail(place, "must be [rows, columns, depth]")
        return found

    def keys(self, body: Any, kind: Any, place: str) -> None:
        """The object has exactly the fields of a class; those with a default may be missing."""
        if not isinstance(body, dict):
            raise self.fail(place, f"must be an object, not {type(body).__name__}")
        known = [] if hasattr(kind, "_fields") else fields(kind)
        wanted = getattr(kind, "_fields", None) or [field.name for field in known]
        optional = {field.name for field in known if field.default is not MISSING}
        missing = [name for name in wanted if name not in body and name not in optional]
        unknown = [name for name in body if name not in wanted]
        if missing or unknown:
            reasons = [f"lacks {', '.join(missing)}"] if missing else []
            reasons += [f"has unknown {', '.join(unknown)}"] if unknown else []
            raise self.fail(place, " and ".join(reasons))

    def each(self, value: Any, place: str) -> Any:
        if not isinstance(value, list) or not value:
            raise self.fail(place, "must be a list that is not empty")
        return enumerate(value)

    def numbers(self, body: Any, kind: Any, place: str, *, zero: bool = False) -> Json:
        self.keys(body, kind, place)
        return {k: self.number(v, f"{place}.{k}", zero=zero) for k, v in body.items()}

    def number(self, value: Any, place: str, *, zero: bool = False) -> float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not (0 <= value < float("inf")) or (value == 0 and not zero):
            raise self.fail(place, f"must be a {'' if zero else 'positive '}number, not {value!r}")
        return float(value)

    def whole(self, value: Any, place: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 62:
            raise self.fail(place, f"must be a positive whole number, not {value!r}")
        return value

    def text(self, value: Any, place: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.fail(place, f"must be a name, not {value!r}")
        return value


def _check(machine: Machine, where: str) -> None:
    """What the fields promise together."""
    sizes = [level.capacity for level in machine.levels]
    if sizes != sorted(sizes):
        raise UserError(
            f"{where}: levels must be ordered from the smallest capacity to the largest"
        )
    if len({level.name for level in machine.levels}) != len(machine.levels):
        raise UserError(f"{where}: two levels have one name")
    if machine.overlap > 1:
        raise UserError(f"{where}: overlap must be between 0 and 1, not {machine.overlap}")

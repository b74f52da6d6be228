"""Bytes that devices receive in the annotated programs: XLA's partitioner, and what is needed.

    python benchmarks/sharding.py [--equal DEVICES] [ID...]

Every program of `models/annotated_*.py`, compiled by XLA for eight virtual devices; its partitioned
HLO is imported, and its collectives are counted by the formulas of their rooms, which are those of
`girih.interpret_parallel`: MiB per device and step, the mean of all devices, as rings carry them.
Beside it what was measured earlier with the same jaxlib (XLA and Shardy), the ideal as derived on
paper, and XLA's own account of a device's memory. Where the program of the earlier measurement was
described by words only, ours was rebuilt from them; `*` marks rows in which XLA's bytes then differ
by more than 1 %. Ours are counted over the program of one device that `choose` and `partition`
make; `decided` is what `communications` says of it beforehand. Our memory is that of one device's
arguments and temporary values in the plan for the CPU; XLA's is the sum of both. With --equal
programs are run by the interpreter on so many devices, and the largest relative difference from one
device is told; this takes minutes for large ones. Results go to benchmarks/results/sharding.json;
`b24`, which takes minutes, is run only where it is named.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from girih import partition
from girih.frontends.xla import read_hlo
from girih.hlo.errors import UserError
from girih.hlo.graph import Module, Op
from girih.hlo.interpret import interpret
from girih.hlo.ops.rooted import ProcessNumber
from girih.optimizer.passes.inline import Inline
from girih.optimizer.sharding.communications import walk_turns
from girih.optimizer.sharding.timeline import timeline
from models.annotated import Example
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

RESULTS = Path(__file__).resolve().parent / "results" / "sharding.json"
EXAMPLES = {**NETWORKS, **OPERATIONS}
LEFT_OUT = ("b24", "e3")  # of sums: 24 times b2, and e2 once more
USUAL = tuple(name for name in EXAMPLES if name != "b24")
DEVICES = 8
MIB = 1 << 20


class Known(NamedTuple):
    """MiB per device and step with jaxlib 0.10.2; None where it was not measured."""

    xla: float
    shardy: float | None
    ideal: float

    @property
    def bar(self) -> float:
        return self.xla if self.shardy is None else min(self.xla, self.shardy)


KNOWN = {
    "a1": Known(3.5, 3.5, 3.5), "a2": Known(5.25, 3.5, 3.5), "a3": Known(7.0, 7.0, 7.0),
    "b1": Known(6.0, 6.0, 6.0), "b2": Known(21.004, 21.004, 15.004),
    "b3": Known(15.004, 15.004, 15.004), "b4": Known(12.0, 12.0, 6.0),
    "b24": Known(504.1, None, 360.1),
    "c1": Known(3.0, 3.0, 3.0), "c2": Known(3.0, 3.0, 3.0), "c3": Known(6.0, 6.0, 6.0),
    "c4": Known(21.004, 21.004, 15.004), "c5": Known(12.004, 12.004, 12.004),
    "d1": Known(42.0, 28.0, 28.0), "d3": Known(42.0, 42.0, 28.0), "d4": Known(23.1, 3.883, 3.555),
    "e1": Known(10.527, 7.027, 1.094), "e2": Known(1.094, 1.094, 1.094),
    "e3": Known(1.094, 1.094, 1.094),
    "f1": Known(0.219, None, 0.219), "f2": Known(0.328, None, 0.328),
    "f3": Known(0.875, None, 0.875), "f4": Known(0.453, None, 0.234),
    "f5": Known(28.0, None, 0.219), "f6": Known(0.109, None, 0.109),
    "g1": Known(0.5, 0.5, 0.375), "g6": Known(3.5, 0.875, 0.875),
    "g10": Known(0.75, 0.75, 0.438), "g11": Known(1.875, 0.875, 0.438),
    "i1": Known(7.0, 1.25, 0.875), "i3": Known(0.281, 0.445, 0.07),
    "h1": Known(3.0, 3.0, 3.0), "h2": Known(0.018, 0.018, 0.018),
    "h3": Known(19.012, 19.012, 19.012), "h4": Known(1.75, None, 0.007),
    "h6": Known(7.0, None, 0.007), "h7": Known(1.75, 1.75, 1.75), "h9": Known(5.75, None, 2.0),
    "h10": Known(1.75, 1.75, 0.875), "h11": Known(0.0, 0.0, 0.0),
    "h12": Known(28.0, 3.507, 0.014), "h13": Known(1.75, 0.438, 0.219),
    "h14": Known(3.875, 3.875, 3.688), "h15": Known(14.0, 14.0, 3.5),
    "h16": Known(28.0, 28.0, 28.0),
}  # fmt: skip


class Sent(NamedTuple):
    """calls and MiB per device of each kind of collective in a step."""

    calls: dict[str, int]
    size: float


def sent(local: Module) -> Sent:
    """What the program of one device receives in a step, the mean of all devices.

    ValueError for a loop with collectives that turns as often as data says.
    """
    calls: Counter[str] = Counter()
    total = 0.0
    for op, times in _communicating(Inline()(local)):
        calls[op.name] += times
        total += times * op.definition.traffic(op, DEVICES)
    return Sent(dict(calls), total / MIB)


def _communicating(module: Module) -> Iterator[tuple[Op, int]]:
    for op, times in walk_turns(module.body):
        if not op.definition.communicates or isinstance(op.definition, ProcessNumber):
            continue
        if times is None:
            raise ValueError(f"{op.place}{op.name}: nobody knows how often")
        yield op, times


def compiled(example: Example) -> Any:
    """The program as XLA partitions and compiles it for eight virtual devices."""
    names, sizes = zip(*example.mesh, strict=True)
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    devices = np.array(jax.devices()).reshape(sizes)
    return example.lowered(jax.sharding.Mesh(devices, names, axis_types=kinds)).compile()


def ours(example: Example) -> dict[str, Any]:
    """MiB per device as decided and as counted, or why there is no program of one device."""
    try:
        parts = partition(example.module(DEVICES))
    except UserError as error:
        return {"decided": None, "ours": None, "refused": str(error)}
    counted = sent(parts.local)
    memory = parts.memory
    return {
        "decided": parts.bytes / MIB,
        "ours": counted.size,
        "ours_calls": counted.calls,
        "ours_memory": (memory.total - memory.outputs) / MIB,
        "seconds": timeline(parts.local, parts.costs).seconds,
        "seconds_overlapped": parts.timeline().seconds,
    }


def difference(example: Example, devices: int) -> float:
    """max |partitioned - whole| / max |whole| over the results, both by the interpreter."""
    inputs, module = example.inputs(), example.module(devices)
    whole = interpret(Inline()(module), inputs)
    return max(
        float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30))
        for x, y in zip(partition(module).interpret(inputs), whole, strict=True)
    )


def row(name: str) -> dict[str, Any]:
    """One program's figures; sizes in MiB per device."""
    made = compiled(EXAMPLES[name])
    theirs = sent(read_hlo(made.as_text()))
    memory, known = made.memory_analysis(), KNOWN[name]
    return {
        **ours(EXAMPLES[name]),
        "xla": theirs.size,
        "xla_calls": theirs.calls,
        "xla_earlier": known.xla,
        "shardy_earlier": known.shardy,
        "ideal": known.ideal,
        "bar": known.bar,
        "xla_arguments": memory.argument_size_in_bytes / MIB,
        "xla_results": memory.output_size_in_bytes / MIB,
        "xla_temporaries": memory.temp_size_in_bytes / MIB,
    }


def shown(rows: dict[str, dict[str, Any]]) -> Table:
    table = Table("id", "XLA's collectives", title="MiB received per device and step")
    heads = (
        "decided", "ours", "XLA", "earlier", "Shardy, earlier", "ideal",
        "our memory", "XLA's arguments", "results", "temporary",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    keys = (
        "decided", "ours", "xla", "xla_earlier", "shardy_earlier", "ideal",
        "ours_memory", "xla_arguments", "xla_results", "xla_temporaries",
    )  # fmt: skip
    for name, found in rows.items():
        calls = ", ".join(f"{count} {kind}" for kind, count in found["xla_calls"].items())
        mark = (
            "*"
            if abs(found["xla"] - found["xla_earlier"]) > 0.01 * found["xla_earlier"] + 1e-3
            else ""
        )
        cells = ["-" if found.get(key) is None else f"{found[key]:.3f}" for key in keys]
        table.add_row(name, calls, *cells[:2], cells[2] + mark, *cells[3:])
    summed = [found for name, found in rows.items() if name not in LEFT_OUT]
    totals = [
        sum(found[key] or 0.0 for found in summed) for key in ("decided", "xla", "xla_earlier")
    ]
    needed = sum(found["ideal"] for found in summed)
    table.add_row(
        f"{len(summed)} programs",
        "",
        f"{totals[0]:.1f}",
        "",
        *(f"{t:.1f}" for t in totals[1:]),
        "",
        f"{needed:.1f}",
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes that devices receive, beside XLA's.")
    parser.add_argument("ids", nargs="*", metavar="ID", choices=[[], *EXAMPLES], help="programs")
    parser.add_argument("--equal", type=int, metavar="DEVICES", help="compare results instead")
    given = parser.parse_args()
    names = given.ids or USUAL
    if given.equal:
        for name in names:
            if EXAMPLES[name].portable or given.equal == DEVICES:
                print(name, f"{difference(EXAMPLES[name], given.equal):.2e}", flush=True)
        return
    rows = {name: row(name) for name in names}
    Console(width=170).print(shown(rows))
    known = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    record = {"jax": jax.__version__, "programs": {**known, **rows}}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

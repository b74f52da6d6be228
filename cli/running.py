"""`girih run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import Signature, spell
from ..runtime.loading import load
from ..runtime.profile import Profile
from ..runtime.program import Program
from . import arrays, show


class LoadOptions(NamedTuple):
    """Where a bundle runs; see `girih.load`."""

    target: str | None = None
    mesh: Mapping[str, int] | None = None
    device: int | None = None
    simulate: bool = False
    threads: int | None = None
    comm_timeout: float | None = None


def run_bundle(
    bundle: Path,
    inputs: Sequence[str],
    seed: int | None,
    output: Path | None,
    repeat: int,
    profile: Path | None,
    place: LoadOptions,
    allow_native: bool,
    as_json: bool,
    entry: str | None = None,
) -> None:
    """Load, run, and show or save the results; state begins as the bundle has it."""
    begin = perf_counter()
    program = load(bundle, **place._asdict(), allow_native=allow_native, verify="all")
    program = program.entry(show.chosen_entry(bundle, program.entries, entry))
    speaks = show.speaks_for_all(program)
    if output is not None and program.mesh is None and program.plan.processes > 1:
        raise UserError(
            f"{bundle}: each of its {program.plan.processes} processes has results of its own, and "
            f"{output} is one file; compile it for a mesh (--mesh), whose results are gathered"
        )
    own = [item.replace("{rank}", str(program.rank)) for item in inputs] if program.mesh else inputs
    values = arrays.collect_inputs(program.signature, own, seed)
    positional, keywords = arrays.as_call(program.signature, values)
    traced = None
    if place.simulate:  # slow, so it is done once
        traced = program.profile(*positional, **keywords)
        flat = _flat(program, traced.outputs, traced.state)
    else:
        flat = _flat(program, *program.stateless(*positional, **keywords))
    first = (perf_counter() - begin) * 1e6
    times = _times(program, values, repeat)
    if profile is not None:
        if traced is None:
            positional, keywords = arrays.as_call(program.signature, [np.array(v) for v in values])
            traced = program.profile(*positional, **keywords)
        traced.save(profile)
    if program.mesh is not None:
        flat = [block.gather() for block in flat]
    found = dict(zip(_result_names(program.signature), flat, strict=True))
    if output is not None and speaks:
        arrays.write_file(output, found)
    if as_json:
        data: dict[str, Any] = {
            "bundle": str(bundle),
            "target": program.target,
            "entry": program.entry_name,
            "reason": program.reason,
            "outputs": [_summary(name, array) for name, array in found.items()],
            "load_to_first_result_us": first,
            "times_us": times,
        }
        if traced is not None:
            data["warm"] = traced.warm
            data["kernels"] = [vars(k) for k in traced.kernels()]
            data["lines"] = traced.lines()
        return show.print_json(data)
    rows = [_row(name, array) for name, array in found.items()]
    show.table(("result", "type", ">minimum", ">mean", ">maximum", "values"), rows)
    show.console.print(f"ran {program.target}: {program.reason}")
    show.console.print(f"load to first result {show.time(first)}")
    if times:
        spread = f"{show.time(min(times))} to {show.time(max(times))}"
        show.console.print(f"median of {len(times)} runs {show.time(median(times))} ({spread})")
    if traced is not None and place.simulate:
        _show_counters(traced)
    elif traced is not None:
        show.console.print(f"\n{traced}")
    if profile is not None:
        show.console.print(f"open {profile} at https://ui.perfetto.dev")


def _show_counters(profile: Profile) -> None:
    """What the simulator counted in each kernel, the longest first."""
    kernels = [kernel for kernel in profile.kernels() if kernel.counters]
    names = list(dict.fromkeys(name for kernel in kernels for name in kernel.counters))
    rows = [
        (k.kernel, k.calls, *(k.counters.get(name, 0) for name in names), k.origin)
        for k in sorted(kernels, key=lambda k: -k.counters.get("instructions", 0))
    ]
    titles = [f">{name.replace('_', ' ')}" for name in names]
    show.table(("kernel", ">calls", *titles, "source"), rows, title="\nsimulated, no faults found")
    lines = profile.lines()
    if any(lines):
        counted = [(*(c.get(name, 0) for name in names), line) for line, c in lines.items()]
        show.table((*titles, "line of source"), counted, title="\nby line")


def _times(program: Program, values: Sequence[Any], repeat: int) -> list[float]:
    """Microseconds of `repeat` more calls, none for one."""
    positional, keywords = arrays.as_call(program.signature, values)
    found = []
    for _ in range(repeat if repeat > 1 else 0):
        begin = perf_counter()
        program(*positional, **keywords)
        found.append((perf_counter() - begin) * 1e6)
    return found


def _result_names(signature: Signature) -> list[str]:
    return [result.path for result in signature.results]


def _flat(program: Program, outputs: Any, state: Any) -> list[Any]:
    return [*program.signature.outputs.flatten(outputs, "output"), *state.values()]


def _row(name: str, array: np.ndarray[Any, Any]) -> tuple[str, ...]:
    summary = _summary(name, array)
    numbers = (summary.get(key) for key in ("minimum", "mean", "maximum"))
    return (
        name,
        spell(summary["dtype"], array.shape),
        *("" if number is None else f"{number:.6g}" for number in numbers),
        " ".join(map(str, summary["first"])) + (" ..." if array.size > 4 else ""),
    )


def _summary(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What a person wants to see of a result: type, range and the first values."""
    data: dict[str, Any] = {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "first": [_plain(value) for value in array.reshape(-1)[:4]],
    }
    if array.size and array.dtype.kind != "c":
        wide = array.astype(np.float64)
        data |= {
            "minimum": float(wide.min()),
            "mean": float(wide.mean()),
            "maximum": float(wide.max()),
        }
    return data


def _plain(value: Any) -> Any:
    """A numpy scalar as a JSON value."""
    item = value.item()
    if isinstance(item, (bool, int)):
        return item
    return float(f"{float(item):.6g}") if not isinstance(item, complex) else str(item)

"""girih on a GPU beside torch (cuBLAS, cuDNN, FlashAttention), torch.compile, JAX/XLA and Triton.

    python benchmarks/gpu/run.py                     everything, about an hour
    python benchmarks/gpu/run.py --quick             the few cases that say most, 5 minutes
    python benchmarks/gpu/run.py --only matmul,zoo --engines girih,torch
    python benchmarks/gpu/run.py --dry               without a GPU: small cases through the
                                                     simulator, static figures of the real sizes

Every case is checked against float64 on the numbers that it is timed with. Peaks are measured
first; a speed is a percentage of what a copy, or cuBLAS at 8192, reaches on this very GPU. Engines
that are missing, or cannot do a case, are left out with their reason in the results. Writes
benchmarks/results/gpu.json (gpu-quick.json, gpu-dry.json) and a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import cases as operations
import models_on_gpu
import peers
import static
from cases import Case
from first_run import find_girih
from peers import Unavailable

RESULTS = Path(__file__).resolve().parents[1] / "results"
GROUPS = ("matmul", "attention", "softmax", "layer norm", "elementwise", "transpose", "zoo")
ZOO_TOLERANCE = 2e-2  # engines multiply f32 in tf32 where their defaults say so
PACKAGES = ("girih", "torch", "jax", "jaxlib", "triton", "cuda-bindings", "llvmlite", "numpy")


def main() -> int:
    options = arguments()
    find_girih()
    wanted: list[str] = options.only.split(",") if options.only else list(GROUPS)
    unknown = sorted(set(wanted) - set(GROUPS))
    if unknown:
        print(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    size = "dry" if options.dry else "quick" if options.quick else "full"
    report: dict[str, Any] = {"size": size, "machine": machine(options)}
    if options.dry:
        report["rows"] = list(dry_rows(wanted, options))
    else:
        from timing import Clock, calibrate

        clock = Clock()
        report["peaks"] = calibrate(clock)
        report["rows"] = list(measured_rows(wanted, size, clock, report["peaks"], options))
    RESULTS.mkdir(exist_ok=True)
    suffix = "" if size == "full" else f"-{size}"
    file = Path(options.into) if options.into else RESULTS / f"gpu{suffix}.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {file}")
    if not options.dry:
        from picture import draw

        draw(report, file.with_suffix(".png"))
    return 0 if all(row.get("good", True) for row in report["rows"]) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the few cases that say most")
    parser.add_argument("--dry", action="store_true", help="without a GPU")
    parser.add_argument("--only", metavar="GROUPS", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--engines", metavar="NAMES", help=f"of {', '.join(peers.ENGINES)}")
    parser.add_argument("--count", type=int, default=30, help="timed calls of each engine")
    parser.add_argument("--architecture", default="sm_90a", help="of --dry")
    parser.add_argument("--into", metavar="FILE", help="where the results go")
    return parser.parse_args()


# On a GPU.


def measured_rows(
    wanted: list[str], size: str, clock: Any, peaks: dict[str, float], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    chosen = options.engines.split(",") if options.engines else list(peers.ENGINES)
    for case in operations.cases(size):
        if case.group in wanted:
            row = measured(case, chosen, clock, peaks, options.count)
            show(row)
            yield row
    for name in models_on_gpu.names(size == "quick") if "zoo" in wanted else ():
        row = measured_model(name, chosen, clock, options.count)
        show(row)
        yield row


def measured(
    case: Case,
    chosen: list[str],
    clock: Any,
    peaks: dict[str, float],
    count: int,
    device: str = "cuda",
) -> dict[str, Any]:
    """A case on all engines: error, milliseconds, speed and its share of the peak."""
    inputs = case.make_inputs(device)
    row: dict[str, Any] = {"group": case.group, "name": case.name, "dtype": case.dtype,
                           "flops": case.flops, "bytes": case.bytes, "engines": {}}  # fmt: skip
    calls = {}
    for name in chosen:
        try:
            made = peers.prepared(name, case, inputs)
            error = static.relative(*case.sample(inputs, _single(made.call())))
        except Unavailable as reason:
            row["engines"][name] = {"unavailable": str(reason)}
            continue
        except Exception as error:  # noqa: BLE001  # the other engines go on
            reason = f"{type(error).__name__}: {peers.first_line(error)}"
            row["engines"][name] = {"unavailable": reason}
            continue
        row["engines"][name] = checked(error, case.tolerance, made)
        calls[name] = made.call
    if "girih" in chosen:
        row["good"] = row["engines"]["girih"].get("good", False)
    work = case.flops if case.units == "flops" else case.bytes
    peak = peaks[case.dtype if case.units == "flops" else "bytes"]
    for name, seconds in clock.in_turns(calls, count).items():
        entry = row["engines"][name]
        entry["milliseconds"] = seconds * 1e3
        entry["tera" if case.units == "flops" else "giga"] = (
            work / seconds / (1e12 if case.units == "flops" else 1e9)
        )
        entry["percent_of_peak"] = 100 * work / seconds / peak
    return row


def measured_model(name: str, chosen: list[str], clock: Any, count: int) -> dict[str, Any]:
    expected, makers = models_on_gpu.engines_of(name)
    row: dict[str, Any] = {"group": "zoo", "name": name, "dtype": "f32", "engines": {}}
    calls = {}
    for engine, maker in makers.items():
        if engine not in chosen:
            continue
        try:
            made = models_on_gpu.make(maker)
            error = models_on_gpu.error_of(made.call(), expected)
        except Exception as error:  # noqa: BLE001
            row["engines"][engine] = {"unavailable": peers.first_line(error)}
            continue
        row["engines"][engine] = checked(error, ZOO_TOLERANCE, made)
        calls[engine] = made.call
    if "girih" in chosen:
        row["good"] = row["engines"]["girih"].get("good", False)
    for engine, seconds in clock.in_turns(calls, count).items():
        row["engines"][engine]["milliseconds"] = seconds * 1e3
    return row


def checked(error: float, tolerance: float, made: Any) -> dict[str, Any]:
    good, seconds = error <= tolerance, round(made.seconds, 3)
    return {"error": error, "good": good, "prepare_seconds": seconds, **made.facts}


def _single(result: Any) -> Any:
    return result[0] if isinstance(result, (list, tuple)) else result


# Without one.


def dry_rows(wanted: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in operations.cases("dry"):
        if case.group in wanted:
            found = static.attempt(static.simulated, case, options.architecture)
            row = {"group": case.group, "name": case.name, "dtype": case.dtype,
                   "good": found.get("good", False), "simulated": found}  # fmt: skip
            show(row)
            yield row
    for case in operations.cases("quick" if options.quick else "full"):
        if case.group in wanted:
            found = static.attempt(static.figures, case, options.architecture)
            row = {"group": case.group, "name": case.name, "dtype": case.dtype,
                   "good": "unavailable" not in found and not found.get("faults"),
                   "static": found}  # fmt: skip
            show(row)
            yield row


# The report.


def show(row: dict[str, Any]) -> None:
    """One line for people."""
    head = f"{row['group']:11} {row['name']:24} {row['dtype']:5}"
    if "engines" not in row:
        kind = "simulated" if "simulated" in row else "static"
        print(
            f"{head} {kind}: {'good' if row['good'] else 'NOT GOOD'} {_brief(row[kind])}",
            flush=True,
        )
        return
    parts = []
    for name, entry in row["engines"].items():
        if "milliseconds" not in entry:
            parts.append(f"{name} -")
            continue
        share = f" {entry['percent_of_peak']:.0f}%" if "percent_of_peak" in entry else ""
        wrong = "" if entry["good"] else " WRONG"
        parts.append(f"{name} {entry['milliseconds']:.3f} ms{share}{wrong}")
    print(f"{head} {'   '.join(parts)}", flush=True)


def _brief(found: dict[str, Any]) -> str:
    if "unavailable" in found:
        return found["unavailable"]
    if "error" in found:
        return f"error {found['error']:.1e}, {found['seconds']:.2f} s"
    registers = [str(entry.get("registers", "?")) for entry in found["entries"].values()]
    faults = f", {found['faults'][0]}" if found.get("faults") else ""
    return f"{found['launches']} launches, registers {', '.join(registers)}{faults}"


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    folder = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": done.stdout.strip(),
        "python": platform.python_version(),
    }  # fmt: skip
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    if options.dry:
        return {**found, "device": f"simulator of {options.architecture}"}
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        answer = "unknown"
    properties = torch.cuda.get_device_properties(0)
    return {
        **found, "device": properties.name, "multiprocessors": properties.multi_processor_count,
        "driver": answer.strip().splitlines()[0], "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

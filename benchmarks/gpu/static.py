"""What can be said of kernels without a GPU: results through the simulator, and static figures."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from cases import Case
from peers import first_line

# Instructions that tell how a kernel was made, by the name that the report gives them.
TELLING = {
    "wgmma": r"wgmma\.mma_async", "mma": r"mma\.sync", "tma": r"cp\.async\.bulk\.tensor",
    "cp.async": r"cp\.async\.c[ag]\.", "ldmatrix": r"ldmatrix", "16-byte loads":
    r"ld\.(?:global|shared)\S*\.(?:v4\S*32|v2\S*64)", "barriers": r"bar(?:rier)?\.(?:cta\.)?sync",
}  # fmt: skip


def figures(case: Case, architecture: str) -> dict[str, Any]:
    """Of the kernels of a case at its real size: launches, and by entry registers, spills and
    instructions. Registers need ptxas."""
    import girih
    from girih.backends.nvidia.assemble import assemble, find_ptxas
    from girih.backends.nvidia.target import target

    started = time.perf_counter()
    options = girih.Options(numerics=case.numerics)
    program = girih.compile(case.exported(), target=f"nvidia:{architecture}", options=options)
    seconds = time.perf_counter() - started
    (variant,) = program.parts.variants.values()
    text = bytes(variant.image).decode()
    found: dict[str, Any] = {
        "compile_seconds": round(seconds, 2),
        "launches": sum(len(kernel.launches) for kernel in program.plan.kernels),
        "notes": sorted({note for kernel in program.plan.kernels for note in kernel.notes}),
        "entries": dict(_entries(text)),
    }
    if find_ptxas() is not None:
        made = assemble(text, target(architecture).architecture)
        for name, usage in made.usages.items():
            spills = usage.spill_store_bytes + usage.spill_load_bytes
            found["entries"].setdefault(name, {}).update(
                registers=usage.registers, spilled_bytes=spills, stack_bytes=usage.stack_bytes
            )
        found["faults"] = made.faults()
    return found


def _entries(text: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Instructions of every entry of a PTX module, and how many of the telling ones."""
    for part in re.split(r"\.visible \.entry ", text)[1:]:
        name = re.match(r"[\w$]+", part)
        lines = [line.strip() for line in part.splitlines()]
        body = [s for s in lines if s.endswith(";") and not s.startswith((".", "//"))]
        counts: Counter[str] = Counter()
        for what, pattern in TELLING.items():
            counts[what] = sum(len(re.findall(pattern, line)) for line in lines)
        yield (
            name[0] if name else "",
            {"instructions": len(body), **{k: v for k, v in counts.items() if v}},
        )


def simulated(case: Case, architecture: str) -> dict[str, Any]:
    """The case through the simulator, against float64."""
    import numpy as np
    import torch

    import girih

    inputs = case.make_inputs("cpu")
    arrays = [_numpy(tensor) for tensor in inputs]
    options = girih.Options(numerics=case.numerics)
    program = girih.compile(case.exported(), target=f"ptx-sim:{architecture}", options=options)
    started = time.perf_counter()
    result = program(*arrays)
    seconds = time.perf_counter() - started
    result = np.asarray(result[0] if isinstance(result, (list, tuple)) else result)
    wanted, found = case.sample(inputs, torch.from_numpy(result.astype(np.float64)))
    error = relative(wanted, found)
    return {"seconds": round(seconds, 2), "error": error, "good": error <= case.tolerance}


def _numpy(tensor: Any) -> Any:
    import ml_dtypes
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def relative(wanted: Any, found: Any) -> float:
    """The largest error, relative to the largest value; infinite where one is not finite."""
    import torch

    found = found.to(torch.float64)
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-30))


def attempt(function: Any, *arguments: Any) -> dict[str, Any]:
    """What the function gives, or why it gives nothing."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  # one case must not end the run
        return {"unavailable": f"{type(error).__name__}: {first_line(error)}"}

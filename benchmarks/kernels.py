"""Kernels that memory bounds, beside torch and XLA, and beside a plain copy of as many bytes.

    python benchmarks/kernels.py [--threads 1 2] [--seconds 0.4] [--only TEXT] [--save]

Elementwise functions, reductions, normalisations, moves, look-ups, scatters, scans and sorts, in
sizes that a core's caches hold and in sizes that they do not. Bytes are those that must be read and
written once; of a look-up, the rows that are looked up. The limit of a case is the rate at which a
loop of vectors copies arrays of so many bytes (or reads them, where a case writes less than a
quarter of what it reads), measured in turns with the engines. Every figure is a median. All
engines get memory from a heap that is never given back, so none pays for fresh pages, and girih's
program writes into the same arrays each time (`Program.prepare`). One process per number of
threads, held on as many cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limits import Call, Limits
from turns import in_children, merged, usual_seconds

RESULTS = Path(__file__).parent / "results" / "kernels.json"


class Case(NamedTuple):
    """The same function for JAX (and girih) and for torch, on the same arrays. `read`: bytes that
    are read, where it is not all of the inputs."""

    name: str
    inputs: tuple[np.ndarray, ...]
    jax: Callable[..., Any]
    torch: Callable[..., Any]
    read: int | None = None


def normal(*dims: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(dims, np.float32)


def places(size: int, *dims: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, size, dims).astype(np.int32)


def elementwise() -> list[Case]:
    import jax
    import torch

    found = []
    for label, dims in (("0.4 MB", (128, 768)), ("64 MB", (4096, 4096))):
        x, y = normal(*dims), normal(*dims)
        found += [
            Case(f"add {label}", (x, y), lambda x, y: x + y, torch.add),
            Case(f"multiply, add {label}", (x, y), lambda x, y: x * 3 + y,
                 lambda x, y: torch.add(y, x, alpha=3)),
            Case(f"exp {label}", (x,), jax.numpy.exp, torch.exp),
            Case(f"gelu {label}", (x,), lambda x: jax.nn.gelu(x, approximate=False),
                 torch.nn.functional.gelu),
            Case(f"broadcast row {label}", (x[0].copy(), x), lambda r, x: x + r, torch.add),
        ]  # fmt: skip
    return found


def reductions() -> list[Case]:
    import jax.numpy as jnp
    import torch

    found = []
    for label, dims in (("3 MB", (16, 64, 768)), ("48 MB", (64, 256, 768))):
        x = normal(*dims)
        found += [
            Case(f"sum last {label}", (x,), lambda x: x.sum(-1), lambda x: x.sum(-1)),
            Case(f"sum first {label}", (x,), lambda x: x.sum(0), lambda x: x.sum(0)),
            Case(f"sum middle {label}", (x,), lambda x: x.sum(1), lambda x: x.sum(1)),
            Case(f"sum all {label}", (x,), lambda x: x.sum(), lambda x: x.sum()),
            Case(f"sum leading {label}", (x,), lambda x: x.sum((0, 1)), lambda x: x.sum((0, 1))),
            Case(f"max last {label}", (x,), lambda x: x.max(-1), lambda x: x.amax(-1)),
            Case(f"argmax last {label}", (x,), lambda x: jnp.argmax(x, -1),
                 lambda x: torch.argmax(x, -1)),
        ]  # fmt: skip
    x = normal(32, 64, 56, 56)
    found.append(
        Case("channel mean, var 25 MB", (x,), lambda x: (x.mean((0, 2, 3)), x.var((0, 2, 3))),
             lambda x: torch.var_mean(x, (0, 2, 3), correction=0)[::-1])
    )  # fmt: skip
    x = normal(1, 50257)
    found.append(Case("argmax 50257", (x,), lambda x: jnp.argmax(x, -1),
                      lambda x: torch.argmax(x, -1)))  # fmt: skip
    return found


def normalisations() -> list[Case]:
    import jax
    import jax.numpy as jnp
    import torch
    from torch.nn import functional

    def softmax(label: str, *dims: int) -> Case:
        return Case(f"softmax {label}", (normal(*dims),), lambda x: jax.nn.softmax(x, -1),
                    lambda x: torch.softmax(x, -1))  # fmt: skip

    def layer(x: Any, g: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * g + b

    def rms(x: Any, g: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g

    found = [softmax("64", 12 * 256, 64), softmax("64, 48 MB", 192 * 1024, 64),
             softmax("1024", 512, 1024), softmax("1024, 64 MB", 16384, 1024),
             softmax("50257", 8, 50257), softmax("50257, 51 MB", 256, 50257)]  # fmt: skip
    for label, rows in (("1.5 MB", 512), ("48 MB", 16384)):
        x, g, b = normal(rows, 768), normal(768), normal(768)
        found += [
            Case(f"layer norm {label}", (x, g, b), layer,
                 lambda x, g, b: functional.layer_norm(x, (768,), g, b)),
            Case(f"rms norm {label}", (x, g), rms,
                 lambda x, g: functional.rms_norm(x, (768,), g, 1e-5)),
        ]  # fmt: skip
    return found


def moves() -> list[Case]:
    import jax.numpy as jnp
    import torch
    from torch.nn import functional

    def turned(label: str, x: np.ndarray, order: tuple[int, ...]) -> Case:
        # JAX would give a transpose of an input as another view of it; negation makes it a kernel.
        return Case(f"transpose {label}", (x,), lambda x: -jnp.transpose(x, order),
                    lambda x: torch.neg(x.permute(order)).contiguous())  # fmt: skip

    found = [
        turned("2-D 4 MB", normal(1024, 1024), (1, 0)),
        turned("2-D 64 MB", normal(4096, 4096), (1, 0)),
        turned("2-D 4001 x 4099", normal(4001, 4099), (1, 0)),
        turned("NCHW to NHWC 0.8 MB", normal(1, 64, 56, 56), (0, 2, 3, 1)),
        turned("NCHW to NHWC 25 MB", normal(32, 64, 56, 56), (0, 2, 3, 1)),
        turned("NHWC to NCHW 25 MB", normal(32, 56, 56, 64), (0, 3, 1, 2)),
        turned("heads 1.5 MB", normal(1, 512, 12, 64), (0, 2, 1, 3)),
        turned("heads 25 MB", normal(8, 1024, 12, 64), (0, 2, 1, 3)),
    ]
    for label, rows in (("1.5 MB", 512), ("48 MB", 16384)):
        x, y = normal(rows, 384), normal(rows, 384)
        wide = normal(rows, 768)
        found += [
            Case(f"concatenate last {label}", (x, y), lambda x, y: jnp.concatenate([x, y], -1),
                 lambda x, y: torch.cat([x, y], -1)),
            Case(f"concatenate first {label}", (x, y), lambda x, y: jnp.concatenate([x, y], 0),
                 lambda x, y: torch.cat([x, y], 0)),
            Case(f"slice columns {label}", (wide,), lambda x: x[:, 100:612],
                 lambda x: x[:, 100:612].contiguous(), read=rows * 512 * 4),
        ]  # fmt: skip
    for label, batch in (("0.8 MB", 1), ("25 MB", 32)):
        x = normal(batch, 64, 56, 56)
        found.append(Case(f"pad {label}", (x,),
                          lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
                          lambda x: functional.pad(x, (1, 1, 1, 1))))  # fmt: skip
    return found


def lookups() -> list[Case]:
    import jax
    import jax.numpy as jnp
    import torch

    table, small = normal(30522, 768), normal(2048, 768)
    few, many = places(30522, 512), places(30522, 16384)
    row_bytes, part = 768 * 4, (normal(64, 768), np.array(1000, np.int32))

    def update(x: Any, u: Any, at: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, u, (at, 0))

    def torch_update(x: Any, u: Any, at: Any) -> Any:
        result = x.clone()
        result[int(at) : int(at) + u.shape[0]] = u
        return result

    found = [
        Case("gather rows 1.5 MB", (table, few), lambda t, i: t[i],
             lambda t, i: torch.nn.functional.embedding(i, t), read=512 * row_bytes),
        Case("gather rows 48 MB", (table, many), lambda t, i: t[i],
             lambda t, i: torch.nn.functional.embedding(i, t), read=16384 * row_bytes),
        Case("take along axis 1.5 MB", (normal(512, 768), places(768, 512, 768)),
             lambda x, i: jnp.take_along_axis(x, i, -1, mode="clip"),
             lambda x, i: torch.gather(x, -1, i.long())),
        Case("take along axis 32 MB", (normal(8192, 1024), places(1024, 8192, 1024)),
             lambda x, i: jnp.take_along_axis(x, i, -1, mode="clip"),
             lambda x, i: torch.gather(x, -1, i.long())),
        Case("scatter-add rows 1.5 MB", (small, places(2048, 512), normal(512, 768)),
             lambda t, i, u: t.at[i].add(u), lambda t, i, u: t.index_add(0, i, u)),
        Case("scatter-add rows 48 MB", (small, places(2048, 16384), normal(16384, 768)),
             lambda t, i, u: t.at[i].add(u), lambda t, i, u: t.index_add(0, i, u)),
        Case("update slice 6 MB", (small, *part), update, torch_update),
        Case("update slice 48 MB", (normal(16384, 768), *part), update, torch_update),
    ]  # fmt: skip
    return found


def scans_and_sorts() -> list[Case]:
    import jax
    import jax.numpy as jnp
    import torch

    found = []
    for label, dims in (("1M", (1 << 20,)), ("256 x 1024", (256, 1024))):
        x = normal(*dims)
        found += [
            Case(f"cumsum {label}", (x,), lambda x: jnp.cumsum(x, -1),
                 lambda x: torch.cumsum(x, -1)),
            Case(f"sort {label}", (x,), lambda x: jnp.sort(x, -1),
                 lambda x: torch.sort(x, stable=True, dim=-1)[0]),
            Case(f"argsort {label}", (x,), lambda x: jnp.argsort(x, -1),
                 lambda x: torch.argsort(x, stable=True, dim=-1)),
        ]  # fmt: skip
    x = normal(1, 50257)
    found += [
        Case("top 50 of 50257", (x,), lambda x: jax.lax.top_k(x, 50), lambda x: torch.topk(x, 50)),
        Case("top 8 of 16384 x 64", (normal(16384, 64),), lambda x: jax.lax.top_k(x, 8),
             lambda x: torch.topk(x, 8)),
    ]  # fmt: skip
    return found


GROUPS = (elementwise, reductions, normalisations, moves, lookups, scans_and_sorts)


def flat(results: Any) -> list[np.ndarray]:
    results = results if isinstance(results, (tuple, list)) else [results]
    return [np.asarray(result) for result in results]


def engines(case: Case, threads: int) -> dict[str, Call]:
    """The same function by everybody, its results compared once."""
    import jax
    import torch

    import girih

    torch.set_num_threads(threads)
    options = girih.Options(threads=threads, cache="off")
    program = girih.compile(girih.import_model(case.jax, *case.inputs), options=options)
    own = program.prepare(*case.inputs)
    there = [jax.device_put(x) for x in case.inputs]
    compiled = jax.jit(case.jax).lower(*there).compile()
    tensors = [torch.tensor(x) for x in case.inputs]

    def theirs() -> Any:
        with torch.inference_mode():
            return case.torch(*tensors)

    wanted = flat(compiled(*there))
    for engine, results in (("girih", flat(own())), ("torch", flat(theirs()))):
        for found, right in zip(results, wanted, strict=True):
            if not np.allclose(found, right, rtol=1e-3, atol=2e-3 * max(1, np.abs(right).max())):
                raise SystemExit(f"{case.name}: {engine} is wrong")
    return {
        "girih": own, "torch": theirs, "xla": lambda: jax.block_until_ready(compiled(*there)),
    }  # fmt: skip


def measure(case: Case, limits: Limits, seconds: float) -> Any:
    """One row of the table."""
    calls = engines(case, limits.threads)
    written = sum(result.nbytes for result in flat(calls["girih"]()))
    read = sum(x.nbytes for x in case.inputs) if case.read is None else case.read
    kind = "copy" if written >= read / 4 else "read"
    limit = limits.copying if kind == "copy" else limits.reading
    calls["limit"], moved = limit(read + written)
    usual, count = usual_seconds(calls, seconds)
    bandwidth = moved / usual.pop("limit")
    rate = (read + written) / usual["girih"]
    return {
        "case": case.name,
        "threads": limits.threads,
        "megabytes": (read + written) / 1e6,
        "limit": kind,
        "limit_gigabytes_per_second": bandwidth / 1e9,
        "gigabytes_per_second": rate / 1e9,
        "microseconds": {name: value * 1e6 for name, value in usual.items()},
        "of_limit": rate / bandwidth,
        "over": {name: usual[name] / usual["girih"] for name in usual if name != "girih"},
        "rounds": count,
    }


def show(row: Any) -> None:
    over = "  ".join(f"{name} x{value:5.2f}" for name, value in row["over"].items())
    print(
        f"{row['case']:28} {row['threads']}t {row['microseconds']['girih']:9.1f} us "
        f"{row['gigabytes_per_second']:6.1f} GB/s {row['of_limit']:5.0%} of {row['limit']}  {over}",
        flush=True,
    )


def child(options: argparse.Namespace) -> None:
    """Measures with the one number of threads that the environment was made for."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.child])
    limits = Limits(options.child)
    found = []
    for group in GROUPS:
        for case in group():
            if options.only not in case.name:
                continue
            row = measure(case, limits, options.seconds)
            found.append(row)
            show(row)
    Path(options.into).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--save", action="store_true", help="into results/kernels.json")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    rows = in_children(__file__, options.threads)
    if options.save:
        rows = merged(rows, RESULTS, ("case", "threads"))
    behind = [row for row in rows if min(row["over"].values()) < 1]
    mean = math.exp(statistics.fmean(math.log(min(row["over"].values())) for row in rows))
    print(f"x{mean:.2f} of the better peer (geometric mean); behind: {len(behind)} of {len(rows)}")
    if options.save:
        rows.sort(key=lambda row: row["threads"])
        RESULTS.write_text(json.dumps({"over_better_peer": mean, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

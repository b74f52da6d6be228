"""Bytes of reshardings: our plans, Shardy's chains, XLA's programs, and what is needed at least.

    python benchmarks/resharding.py

Every pair of shardings of a matrix on a mesh of 2 x 2 x 2, 300 of them through XLA; a sample of
pairs of rank 3 on 2 x 2 x 2 x 2; six reshardings from programs. Bytes are received per device, the
mean of all devices, as rings carry them; "needed" is what a device does not hold already. Shardy's
chains come from its own pass in jaxlib; XLA's programs are those of its partitioner for 8 virtual
devices, run and counted by `girih.interpret_parallel`. Seconds are of the processor, of plans that
no cache had. Results go to benchmarks/results/resharding.json.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from rich.console import Console
from rich.table import Table

from girih.frontends.xla import read_hlo
from girih.hlo.distributed import interpret_parallel
from girih.hlo.sharding import Axis, Mesh, Sharding, parse_mesh, parse_sharding
from girih.optimizer.sharding.blocks import atoms_of
from girih.optimizer.sharding.interconnect import Interconnect, Link
from girih.optimizer.sharding.moves import cheapest
from girih.optimizer.sharding.reshard import ReshardPlan, plan_reshard
from girih.tests.optimizer.sharding.cases import all_shardings

RESULTS = Path(__file__).resolve().parent / "results"
BYTES = Interconnect(usual=Link(call=1e-12, message=0.0, byte=1.0))  # calls decide ties
MIB = 1 << 20

Pair = tuple[Sharding, Sharding]

ROWS = {
    "g1": ('<["x"=2, "y"=4]>', (1024, 1024), '[{"x"}, {"y"}]', '[{"y"}, {"x"}]', 0.375),
    "g6": ('<["x"=2, "y"=4]>', (1024, 1024), '[{"x", "y"}, {}]', '[{}, {"y"}]', 0.875),
    "g10": (
        '<["x"=2, "y"=2, "z"=2]>', (128, 128, 64),
        '[{"x"}, {"y", "z"}, {}]', '[{"z"}, {}, {"x", "y"}]', 0.438,
    ),
    "g11": (
        '<["x"=2, "y"=2, "z"=2]>', (128, 128, 64),
        '[{"x", "y", "z"}, {}, {}]', '[{"z"}, {"x"}, {"y"}]', 0.438,
    ),
    "i1": (
        '<["x"=4, "y"=2]>', (128, 128, 128),
        '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]', 0.875,
    ),
    "i3": ('<["data"=2, "model"=4]>', (384, 384), '[{}, {"model"}]', '[{}, {"model"}]', 0.07),
}  # fmt: skip
"""name -> mesh, dims, source, target, the MiB that are needed."""
GRAINS = {"i3": ((), (1, 64))}  # 6 heads of 64, in 4 parts


def shardy(mesh: Mesh, dims: Sequence[int], pairs: Sequence[Pair]) -> list[float]:
    """Mean bytes per device of Shardy's chain for each pair; dims that the axes divide."""
    kind = f"tensor<{'x'.join(map(str, dims))}xf32>"
    lines = [f"module {{ sdy.mesh @mesh = {mesh}"]
    for number, (source, target) in enumerate(pairs):
        lines += [
            f"func.func @f{number}(%arg0: {kind} {{sdy.sharding = #sdy.sharding{source}}})"
            f" -> {kind} {{",
            f"  %0 = sdy.reshard %arg0 {target} : {kind}",
            f"  return %0 : {kind} }}",
        ]
    with mlir.make_ir_context():
        module = ir.Module.parse("\n".join([*lines, "}"]))
        pipeline = "builtin.module(func.func(sdy-reshard-to-collectives))"
        passmanager.PassManager.parse(pipeline).run(module.operation)
        text = str(module)
    found = []
    for (source, _), body in zip(pairs, text.split("func.func")[1:], strict=True):
        before, size = source, 0.0
        for name, after_text in re.findall(r"sdy\.(\w+) .*?out_sharding=(<.*?>) : ", body):
            after = parse_sharding(after_text)
            size += _received(mesh, dims, name, before, after)
            before = after
        found.append(size)
    return found


def _received(
    mesh: Mesh, dims: Sequence[int], name: str, before: Sharding, after: Sharding
) -> float:
    """Mean bytes of one of Shardy's collectives, axes of several dims at a time counted as one."""
    blocks = (atoms := atoms_of(mesh, (before, after), prime=False)).blocks(dims, 4)
    one, other = atoms.state(before), atoms.state(after)
    size = blocks.bytes(one)
    if name == "all_slice":
        return 0.0
    if name == "all_gather":
        return float(blocks.bytes(other) - size)
    if name == "collective_permute":
        return size * int(blocks.moving(one, other).sum()) / blocks.devices
    assert name == "all_to_all", name
    moved = {
        atom
        for left, right in zip(one.dims, other.dims, strict=True)
        for atom in set(left) ^ set(right)
    }
    return size - size / blocks.parts(tuple(moved))


def xla(mesh: Mesh, dims: Sequence[int], pair: Pair) -> float:
    """Mean bytes per device of XLA's program for a pair of shardings by whole axes."""
    devices = np.array(jax.devices()).reshape([mesh.size(Axis(name)) for name in mesh.names])
    ends = [
        jax.NamedSharding(
            jax.sharding.Mesh(devices, mesh.names),
            jax.P(*(tuple(axis.name for axis in dim.axes) for dim in end.dims)),
        )
        for end in pair
    ]
    whole = jax.ShapeDtypeStruct(dims, np.float32)
    made = jax.jit(lambda x: x, in_shardings=ends[0], out_shardings=ends[1]).lower(whole).compile()
    block = np.zeros(pair[0].local_dims(mesh, dims), np.float32)
    module = read_hlo(made.as_text() or "")
    found = interpret_parallel(module, [[block]] * mesh.devices, num_partitions=mesh.devices)
    return sum(sum(counts.values()) for counts in found.received) / mesh.devices


def against_xla(mesh: Mesh, dims: Sequence[int], pairs: Sequence[Pair]) -> dict[str, float]:
    ratios = []
    for pair in pairs:
        plan = plan_reshard(mesh, dims, 4, *pair)
        needed = sum(plan.least) / len(plan.least)
        size = xla(mesh, dims, pair)
        ratios.append(size / needed if needed else 1.0 + size)
    return {"pairs": len(pairs), "mean": round(sum(ratios) / len(ratios), 4), "max": max(ratios)}


def ratio(plan: ReshardPlan) -> float:
    needed = sum(plan.least) / len(plan.least)
    return plan.mean / needed if needed else 1.0 + plan.mean


def compare(name: str, mesh: Mesh, dims: Sequence[int], pairs: Sequence[Pair]) -> dict[str, Any]:
    theirs = shardy(mesh, dims, pairs)
    found: dict[str, Any] = {"name": name, "pairs": len(pairs)}
    for kind, exchange in (("chain", False), ("plan", True)):
        cheapest.cache_clear()
        begin = time.process_time()
        plans = [plan_reshard(mesh, dims, 4, *pair, BYTES, exchange) for pair in pairs]
        spent = time.process_time() - begin
        ratios = list(map(ratio, plans))
        ends = [
            [plan.source.local_dims(mesh, dims), plan.target.local_dims(mesh, dims)]
            for plan in plans
        ]
        blocks = [[4 * math.prod(local) for local in pair] for pair in ends]
        found[kind] = {
            "seconds": round(spent, 2),
            "mean": round(sum(ratios) / len(ratios), 4),
            "max": max(ratios),
            "exact": sum(r < 1 + 1e-9 for r in ratios),
            "worse than Shardy": sum(
                p.mean > other + 1e-6 for p, other in zip(plans, theirs, strict=True)
            ),
            "better than Shardy": sum(
                p.mean < other - 1e-6 for p, other in zip(plans, theirs, strict=True)
            ),
            "unproven": sum(not p.proven for p in plans),
            "above one block more": sum(
                p.peak > 2 * max(two) for p, two in zip(plans, blocks, strict=True)
            ),
            "above both ends": sum(p.peak > sum(two) for p, two in zip(plans, blocks, strict=True)),
        }  # fmt: skip
        needed = [sum(p.least) / len(p.least) for p in plans]
    others = [t / n if n else 1.0 + t for t, n in zip(theirs, needed, strict=True)]
    found["Shardy"] = {"mean": round(sum(others) / len(others), 4), "max": max(others)}
    return found


def row(name: str) -> dict[str, Any]:
    mesh_text, dims, source, target, wanted = ROWS[name]
    mesh = parse_mesh(mesh_text)
    first, last = (parse_sharding(f"<@mesh, {text}>") for text in (source, target))
    grains = GRAINS.get(name, ((), ()))
    plan = plan_reshard(mesh, dims, 4, first, last, grains=grains)
    chain = theirs = None
    if name not in GRAINS:
        chain = plan_reshard(mesh, dims, 4, first, last, exchange=False).mean / MIB
        theirs = round(xla(mesh, dims, (first, last)) / MIB, 4)
    return {
        "name": name, "wanted": wanted, "MiB": round(plan.mean / MIB, 4),
        "at most": round(plan.maximum / MIB, 4), "chain": chain, "XLA": theirs, "plan": str(plan),
    }  # fmt: skip


def main() -> None:
    three = parse_mesh('<["x"=2, "y"=2, "z"=2]>')
    pairs = list(itertools.permutations(all_shardings("xyz", 2), 2))
    results = [compare("rank 2 on 2x2x2", three, (64, 64), pairs)]
    four = parse_mesh('<["x"=2, "y"=2, "z"=2, "w"=2]>')
    shardings = all_shardings("xyzw", 3)
    generator = random.Random(0)
    sample = [tuple(generator.sample(shardings, 2)) for _ in range(1000)]
    results.append(compare("rank 3 on 2x2x2x2, 1,000 of 468,540", four, (64, 64, 64), sample))  # type: ignore[arg-type]
    rows = [row(name) for name in ROWS]
    partitioned = against_xla(three, (64, 64), generator.sample(pairs, 300))
    table = Table("pairs", "", "mean", "max", "exact", "worse", "better", "seconds")
    for entry in results:
        shardys = entry["Shardy"]
        table.add_row(entry["name"], "Shardy", f"{shardys['mean']}", f"{shardys['max']:.3f}")
        for kind in ("chain", "plan"):
            facts = entry[kind]
            table.add_row(
                "", kind, f"{facts['mean']}", f"{facts['max']:.3f}", f"{facts['exact']}",
                f"{facts['worse than Shardy']}", f"{facts['better than Shardy']}",
                f"{facts['seconds']}",
            )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(f"XLA: {partitioned}", highlight=False)
    for entry in rows:
        console.print(
            f"{entry['name']}: wanted {entry['wanted']} MiB, XLA {entry['XLA']}, {entry['plan']}",
            highlight=False,
        )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "resharding.json"
    path.write_text(
        json.dumps({"pairs": results, "rows": rows, "XLA": partitioned}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

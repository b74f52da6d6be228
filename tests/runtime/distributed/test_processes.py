"""Programs of several processes under mpiexec give the interpreter's bits."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih

from .launch import launched, needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]

RANK = """
import sys
import numpy as np
import girih
program = girih.load(sys.argv[1])
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
with np.load(sys.argv[2]) as given:
    results = program(given[f"i{rank}"])
with np.load(sys.argv[2]) as wanted:
    for number, result in enumerate(results):
        assert result.tobytes() == wanted[f"o{rank}_{number}"].tobytes(), (rank, number)
print("equal", flush=True)
"""


def text(count: int) -> str:
    """All kinds of collectives, one of them in a loop."""
    groups = f"replica_groups = dense<[{list(range(count))}]> : tensor<1x{count}xi64>"
    ring = [[n, (n + 1) % count] for n in range(count)]
    wide = 2 * count

    def facts(number: int) -> str:
        handle = f"#stablehlo.channel_handle<handle = {number}, type = 1>"
        return f"{groups}, channel_handle = {handle}"

    def folded(name: str) -> str:
        return f"""({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.{name} %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
          }})"""

    a, g, p = f"tensor<3x{wide}xf32>", f"tensor<3x{wide * count}xf32>", "tensor<3x2xf32>"
    t = f"tensor<{3 * count}x2xf32>"
    return f"""module @m attributes {{mhlo.num_partitions = {count} : i32}} {{
      func.func public @main(%a: {a}) -> ({a}, {g}, tensor<ui32>, {p}, {t}, {a}) {{
        %e = stablehlo.multiply %a, %a : {a}
        %0 = "stablehlo.all_reduce"(%e) <{{{facts(1)}, use_global_device_ids}}>
          {folded("add")} : ({a}) -> {a}
        %1 = "stablehlo.all_gather"(%e) <{{all_gather_dim = 1 : i64, {facts(2)},
          use_global_device_ids}}> : ({a}) -> {g}
        %2 = stablehlo.partition_id : tensor<ui32>
        %3 = "stablehlo.reduce_scatter"(%0) <{{scatter_dimension = 1 : i64, {facts(3)},
          use_global_device_ids}}> {folded("maximum")} : ({a}) -> {p}
        %4 = "stablehlo.all_to_all"(%e) <{{split_dimension = 1 : i64, concat_dimension = 0 : i64,
          split_count = {count} : i64, {facts(4)}}}> : ({a}) -> {t}
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %5:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, {a}
          cond {{
            %n = stablehlo.constant dense<3> : tensor<i32>
            %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %more : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add %i, %one : tensor<i32>
            %moved = "stablehlo.collective_permute"(%v) <{{
              source_target_pairs = dense<{ring}> : tensor<{count}x2xi64>,
              channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>}}> : ({a}) -> {a}
            %sum = stablehlo.add %moved, %a : {a}
            stablehlo.return %next, %sum : tensor<i32>, {a}
          }}
        return %0, %1, %2, %3, %4, %5#1 : {a}, {g}, tensor<ui32>, {p}, {t}, {a}
      }}
    }}"""


def saved(folder: Path, count: int) -> tuple[Path, Path]:
    """A bundle, and a file of inputs and of the interpreter's results."""
    source, bundle, data = folder / "p.mlir", folder / "p.girih", folder / "data.npz"
    source.write_text(text(count))
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal((3, 2 * count), np.float32) for _ in range(count)]
    wanted = girih.interpret_parallel(girih.import_model(source), [[x] for x in inputs])
    girih.compile(source).save(bundle)
    arrays = {f"i{rank}": x for rank, x in enumerate(inputs)}
    for rank, row in enumerate(wanted.results):
        arrays |= {f"o{rank}_{number}": x for number, x in enumerate(row)}
    np.savez(data, **arrays)  # pyright: ignore[reportArgumentType]
    return bundle, data


def ran(count: int, folder: Path, *paths: Path, **extra: Any) -> subprocess.CompletedProcess[str]:
    script = folder / "rank.py"
    script.write_text(RANK)
    return launched(count, script, *paths, **extra)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_results_are_the_interpreters_bit_for_bit(tmp_path, count):
    done = ran(count, tmp_path, *saved(tmp_path, count))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == count

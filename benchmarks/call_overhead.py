"""What one call costs around the work itself: a program of one small addition, in microseconds.

    python benchmarks/call_overhead.py

Gates: 6 us with numpy inputs, 4 us for a prepared call. jax.jit stands beside it where JAX is
installed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import girih

GATES = {"girih": 6.0, "girih prepared": 4.0}
PROGRAM = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


def microseconds(call: Callable[[], Any], batches: int = 40, calls: int = 500) -> float:
    """Median over batches of the mean time of a call."""
    means = []
    for _ in range(batches):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - started) / calls)
    return statistics.median(means) * 1e6


def main() -> int:
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    program = girih.compile(PROGRAM)
    assert np.array_equal(np.asarray(program(x, y)[0]), x + y)
    prepared = program.prepare(x, y)
    assert np.array_equal(prepared()[0], x + y)
    report = {
        "girih": microseconds(lambda: program(x, y)),
        "girih prepared": microseconds(prepared),
    }
    try:
        import jax
    except ImportError:
        pass
    else:
        add = jax.jit(lambda a, b: a + b)
        report["jax.jit (numpy)"] = microseconds(lambda: add(x, y).block_until_ready())
        a, b = jax.device_put(x), jax.device_put(y)
        report["jax.jit (arrays)"] = microseconds(lambda: add(a, b).block_until_ready())
        ours = girih.jit(lambda a, b: a + b)
        report["girih.jit (numpy)"] = microseconds(lambda: ours(x, y))
        report["girih.jit (arrays)"] = microseconds(lambda: ours(a, b))
    for name, value in report.items():
        print(f"{name:18s} {value:6.1f} us")
    file = Path(__file__).resolve().parent / "results" / "call_overhead.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"microseconds": report, "gates": GATES}, indent=1) + "\n")
    return 0 if all(report[name] <= gate for name, gate in GATES.items()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Attention with open batch and length beside the code for just that size, interleaved.

    python -m girih.benchmarks.open_attention [--threads 2] [--rounds 40]

Prints for each size the milliseconds of both and open / fixed, medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import girih
from girih.hlo.specialize import specialized
from girih.options import Options

from ..tests.optimizer.tiles.open_programs import ROWS, attention, inputs_at

SIZES = ((1, 16), (1, 37), (1, 128), (1, 384), (2, 131), (4, 64), (8, 32), (8, 128), (32, 256))
LEAST = 0.01  # seconds of one round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    options = Options(cache="off", threads=chosen.threads)
    for causal in (False, True):
        module = attention(ROWS, causal=causal)
        program = girih.compile(module, options=options)
        ratios = []
        for batch, rows in SIZES:
            fixed = specialized(module, {"batch": batch, "rows": rows})
            both = (program, girih.compile(fixed, options=options))
            given = inputs_at(batch, rows, rows)
            for one in both:
                one(*given)
            begin = time.perf_counter()
            both[1](*given)
            calls = max(1, int(LEAST / (time.perf_counter() - begin)))
            times: list[list[float]] = [[], []]
            for _ in range(chosen.rounds):
                for one, found in zip(both, times, strict=True):
                    begin = time.perf_counter()
                    for _ in range(calls):
                        one(*given)
                    found.append((time.perf_counter() - begin) / calls * 1e3)
            opened, static = map(statistics.median, times)
            ratios.append(opened / static)
            what = "causal" if causal else "all keys"
            print(f"{what:9} {batch:3} x {rows:3}: {opened:8.3f} {static:8.3f} {ratios[-1]:6.2f}")
        print(f"geometric mean {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()

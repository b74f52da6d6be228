"""Runs many generated programs: `python tests/differential/run_generated.py [COUNT] [FIRST]`.

Programs run in processes of some hundreds, so that one that kills its process costs no other. Each
that disagrees is reported with its seed and the operations that differ.
"""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path

PER_PROCESS = 200


def main(count: int, first: int) -> int:
    """The number of programs that disagree or fail."""
    seed, failed = first, 0
    while seed < first + count:
        last = min(seed + PER_PROCESS, first + count)
        command = [sys.executable, __file__, "--range", str(seed), str(last)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        reports = [line for line in lines if not line.startswith("seed ")]
        failed += sum(line.startswith("program ") for line in reports)
        print(
            "\n".join([*reports, f"{last - first} of {count} programs, {failed} failed"]),
            flush=True,
        )
        if done.returncode == 0:
            seed = last
        else:
            seed = max(int(line.split()[1]) for line in lines if line.startswith("seed "))
            failed += 1
            print(f"program {seed} ended its process: {done.stderr.splitlines()[:4]}", flush=True)
            seed += 1
    return failed


def run_range(first: int, last: int) -> None:
    """Check the programs of these seeds in this process."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from differential import against_xla, generator

    warnings.simplefilter("ignore")
    for seed in range(first, last):
        print(f"seed {seed}", flush=True)
        module, inputs = generator.program(random.Random(seed))
        try:
            reports = against_xla.check(module, inputs)
            if reports:
                reports += against_xla.culprits(module, inputs)
        except Exception as error:  # whatever it is, the others still run
            reports = [f"{type(error).__name__}: {error}"]
        if reports:
            print(
                f"program {seed}:", *(report[:1500] for report in reports), sep="\n  ", flush=True
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--range"]:
        run_range(int(sys.argv[2]), int(sys.argv[3]))
    else:
        chosen = [int(word) for word in sys.argv[1:3]]
        sys.exit(main(*chosen, *(5000, 0)[len(chosen) :]) > 0)

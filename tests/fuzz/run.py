"""A developer's tool: `python -m tests.fuzz.run READER... [--minutes N] [--seed S]`.

Tries mutants until the time is over, tells finds apart by kind and place, minimises one of each
and writes it to `--output` (kept ones belong into `tests/fuzz/seeds/READER/`). `--replay FILE`
reads one file; without a reader all of them are run, one after the other.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from .harness import Find, failure, fuzz, minimise, mutant
from .readers import READERS, seeds_of

_BATCH = 20_000


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("reader", nargs="*", help=f"of {', '.join(READERS)}")
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--start", type=int, default=0, help="number of the first mutant")
    options.add_argument("--output", type=Path, default=None, help="folder for minimised finds")
    options.add_argument("--replay", type=Path, default=None, help="read this file only")
    given = options.parse_args()
    for name in given.reader or READERS:
        if given.replay is not None:
            found = failure(READERS[name], given.replay.read_bytes())
            print("no find" if found is None else f"{found.kind} {found.place}\n{found.story}")
        else:
            _run(name, given)


def _run(name: str, given: argparse.Namespace) -> None:
    begin = time.monotonic()
    until = begin + 60 * given.minutes
    first: dict[tuple[str, str], Find] = {}
    counts: dict[tuple[str, str], int] = {}
    number, totals = given.start, [0] * 5
    while time.monotonic() < until:
        report = fuzz(name, given.seed, number, number + _BATCH, until)
        number += report.tried
        totals = [a + b for a, b in zip(totals, report[:5], strict=True)]
        for find in report.finds:
            key = find.kind, find.place
            counts[key] = counts.get(key, 0) + 1
            if key not in first:
                first[key] = find
                _keep(name, find, given)
    tried, refused, accepted, interpreted, stopped = totals
    print(
        f"{name}: seed {given.seed}, {tried} mutants in {time.monotonic() - begin:.0f} s: "
        f"{refused} refused, {accepted} accepted ({interpreted} of them interpreted, {stopped} "
        f"stopped), {sum(counts.values())} finds at {len(first)} places",
        flush=True,
    )
    for (kind, place), count in counts.items():
        print(f"    {count} x {kind} {place}", flush=True)


def _keep(name: str, find: Find, given: argparse.Namespace) -> None:
    """Print a new find, and write it as small as it gets."""
    print(f"{name}: mutant {find.number}: {find.kind} {find.place}\n{find.story}", flush=True)
    if given.output is not None:
        reader = READERS[name]
        data = mutant(reader, seeds_of(name), given.seed, find.number)
        given.output.mkdir(parents=True, exist_ok=True)
        path = given.output / f"{name}_{find.number}"
        path.write_bytes(minimise(reader, data, find))
        print(f"    -> {path} ({path.stat().st_size} bytes)", flush=True)


if __name__ == "__main__":
    main()

"""A developer's tool: `python -m tests.fuzz.run READER... [--minutes N | --mutants N] [--seed S]`.

Tries mutants, tells finds apart by kind and place, minimises one of each and writes it to
`--output` (kept ones belong into `tests/fuzz/seeds/READER/`). `--replay FILE...` reads files
instead, without one the kept ones. Without a reader all of them are run, one after the other. The
exit code is 1 if there is a find.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .harness import Find, failure, fuzz, minimise, mutant
from .readers import READERS, kept, seeds_of

_BATCH = 20_000


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("reader", nargs="*", help=f"of {', '.join(READERS)}")
    options.add_argument("--minutes", type=float, default=1.0, help="of each reader")
    options.add_argument("--mutants", type=int, default=1 << 40, help="of each reader, at most")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--start", type=int, default=0, help="number of the first mutant")
    options.add_argument("--output", type=Path, default=None, help="folder for minimised finds")
    options.add_argument("--replay", type=Path, nargs="*", default=None, help="read files only")
    given = options.parse_args()
    finds = 0
    for name in given.reader or READERS:
        if given.replay is None:
            finds += _run(name, given)
            continue
        seeds_of(name)  # what is read beside a mutant is made once, outside of its limits
        for data in [path.read_bytes() for path in given.replay] or kept(name):
            found = failure(READERS[name], data)
            if found is not None:
                finds += 1
                print(f"{name}: {found.kind} {found.place}\n{found.story}\n{data[:200]!r}")
    return min(finds, 1)


def _run(name: str, given: argparse.Namespace) -> int:
    """Fuzz one reader; the number of different finds."""
    begin = time.monotonic()
    until = begin + 60 * given.minutes
    first: dict[tuple[str, str], Find] = {}
    counts: dict[tuple[str, str], int] = {}
    number, totals, stop = given.start, [0] * 5, given.start + given.mutants
    while number < stop and time.monotonic() < until:
        report = fuzz(name, given.seed, number, min(stop, number + _BATCH), until)
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
    return len(first)


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
    sys.exit(main())

"""Ranges of sizes that get plans of their own: where others are predicted to be faster.

A plan serves all sizes, but its tiles are those of a likely call: of a short sequence the tiles for
long ones are mostly empty, and what is worth connecting there is not worth it here. So a few plans
are made for other likely calls, the time of each is predicted at a sample of all sizes, and the
range whose plan gains most there is chosen until none gains enough. A plan of a range is tried
before the one for all sizes; its code knows that sizes lie in the range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..hlo.assumptions import Assumptions
from ..hlo.deciding import Decisions, decided_by
from ..hlo.sizes import SizeConstraint, Symbol
from ..hlo.symbols import SymbolicDim
from .cost.assumed import SECONDS_PER_CALL
from .cost.blocks import counter_of
from .cost.estimate import retimed
from .machine import Machine
from .passes.connect import Judged

# Of the time of all sampled sizes, each as important as the others: for the plan of all sizes to be
# made for another call, and for a plan more. Of one for cores most code is new, which takes long to
# compile; kernels of blocks of threads are few lines.
LEAST_GAIN, LEAST_GAIN_OF_CORES = 0.01, 0.03
MOST_TRIED = 5  # likely calls for which plans are made
_SHORT = 3  # calls of all sizes are shorter than so many calls without kernels: nothing is tried
_NOTHING = 1e-9  # of a gain
_POINTS = (10, 3, 2)  # sampled values of a symbol, of the widest first
Hints = Mapping[str, int]
Array = np.ndarray[Any, Any]


class Range(NamedTuple):
    """First and last value of symbols; of others all. hints: the likely call that its plan is made
    for. gain: the fraction of the time that is saved there, on average; None: a user asked for it.
    """

    bounds: Mapping[str, tuple[int, int]]
    hints: Hints | None = None
    gain: float | None = None

    @property
    def conditions(self) -> tuple[SizeConstraint, ...]:
        """What holds of the sizes in the range, and of no others."""
        found: list[SizeConstraint] = []
        for name, (first, last) in self.bounds.items():
            size = SymbolicDim(name)
            if first == last:
                found.append(SizeConstraint(size, "==", first))
            else:
                found += [SizeConstraint(first, "<=", size), SizeConstraint(size, "<=", last)]
        return tuple(found)

    def __str__(self) -> str:
        said = [f"{name} {Symbol(*ends)}" for name, ends in self.bounds.items()]
        if self.gain is None:
            return f"this plan is for {', '.join(said)} alone, as was asked for (hot)"
        return (
            f"this plan is for {', '.join(said)}: predicted to take {100 * self.gain:.0f} % less "
            "time there than the next ones"
        )


class PlanSizes(NamedTuple):
    """What plans are made for: the hints of the one for all sizes, and ranges, the first to be
    tried first."""

    hints: Hints
    ranges: tuple[Range, ...] = ()


def choose(
    assumptions: Assumptions,
    hints: Hints,
    machine: Machine,
    judged: Callable[[Hints], Sequence[Judged]],
    most: int,
) -> PlanSizes:
    """Which plans are worth being made, `most` for ranges. hints: for which the plan of all sizes
    is made where no others are better; judged: the kernels that are made for hints."""
    tried = [hints, *_tried(assumptions, hints)]
    if len(tried) == 1:
        return PlanSizes(hints)
    sample = list(_sample(assumptions))
    predict = _Predictor(assumptions, machine, sample)
    first = predict(judged(hints))
    if first.max() < _SHORT * SECONDS_PER_CALL:
        return PlanSizes(hints)
    plans = [first, *(predict(judged(one)) for one in tried[1:])]
    # The one for all sizes is made for large calls: what is best in small ones may need much more
    # memory in these, though no call of them runs it.
    widest = _by_width(assumptions)[0]
    large = np.array([sizes[widest] >= hints[widest] for sizes in sample])
    gains = [
        float(np.log(plans[0] / times)[large].mean()) if sizes[widest] >= hints[widest] else 0.0
        for sizes, times in zip(tried, plans, strict=True)
    ]
    general = int(np.argmax(gains)) if max(gains) >= LEAST_GAIN else 0
    return PlanSizes(tried[general], _ranges(assumptions, machine, tried, plans, general, most))


def _ranges(
    assumptions: Assumptions,
    machine: Machine,
    tried: Sequence[Hints],
    plans: Sequence[Array],
    general: int,
    most: int,
) -> tuple[Range, ...]:
    """The ranges that gain enough, the first to be tried first. plans: seconds of each in each of
    the sampled calls; general: the one for all sizes."""
    sample = list(_sample(assumptions))
    boxes = list(_boxes(assumptions, sample))
    inside = np.array([one for _, one in boxes], float).reshape(len(boxes), len(sample))
    holds = np.array([
        [all(low <= one[n] <= high for n, (low, high) in bounds.items()) for one in tried]
        for bounds, _ in boxes
    ])  # fmt: skip
    least = LEAST_GAIN if machine.blocks else LEAST_GAIN_OF_CORES
    current = plans[general]
    found: list[Range] = []
    while boxes and len(found) < most:
        saved = inside @ np.log(current / np.array(plans)).T
        gains = np.where(holds, saved, -np.inf) / len(sample)
        box, number = divmod(_first_best(gains.ravel()), len(tried))
        if gains[box, number] < least:
            break
        mean = 1 - math.exp(-float(saved[box, number] / inside[box].sum()))
        found.insert(0, Range(boxes[box][0], tried[number], mean))
        current = np.where(inside[box] > 0, plans[number], current)
    return tuple(found)


def _first_best(gains: Array) -> int:
    """The number of the largest one; of those that differ by nothing the first."""
    best = 0
    while (later := np.flatnonzero(gains[best + 1 :] > gains[best] + _NOTHING)).size:
        best += 1 + int(later[0])
    return best


class _Predictor:
    """Seconds of kernels in calls of each of the sampled sizes; equal ones are judged once."""

    def __init__(self, assumptions: Assumptions, machine: Machine, sample: Sequence[Hints]) -> None:
        self.assumptions, self.machine, self.sample = assumptions, machine, sample
        self.known: dict[tuple[Any, ...], Array] = {}

    def __call__(self, judged: Sequence[Judged]) -> Array:
        alone = np.full(len(self.sample), SECONDS_PER_CALL)
        return sum((one.count * self.kernel(one) for one in judged), alone)

    def kernel(self, one: Judged) -> Array:
        key = one.text, one.plan.sizes, one.plan.stream, one.plan.step, one.tiled
        if key not in self.known:
            about = decided_by(Decisions(self.assumptions, self.sample[0]))
            with about, np.errstate(divide="ignore", invalid="ignore"):
                # Where threads run no blocks, tiles are computed as far as they lie inside.
                clipped = not one.tiled or self.machine.blocks is None
                kind = counter_of(self.machine)
                found = retimed(one.group, self.machine, one.plan, clipped, self.sample, kind)
            # A kernel of nothing takes no time.
            self.known[key] = np.where(np.isfinite(found), found, 0.0)
        return self.known[key]


def _values(said: Symbol, most: int) -> list[int]:
    """The least but 0, the largest, and of what is between halves of the largest, large ones."""
    first = said.first
    last = first if said.last is None else said.last
    if first == 0 and last >= said.modulus:
        first = said.modulus
    steps = max(1, math.ceil(math.log2(max(last, 1) / max(first, 1)) / max(most - 1, 1)))
    found = {first}
    for number in range(most - 1):
        size = last >> (number * steps)
        size -= (size - said.residue) % said.modulus
        if size >= first:
            found.add(size)
    return sorted(found)


def _by_width(assumptions: Assumptions) -> list[str]:
    """The symbols, those of the widest ranges first."""
    symbols = assumptions.symbols
    return sorted(symbols, key=lambda n: -((symbols[n].last or 1) / max(symbols[n].first, 1)))


def _points(assumptions: Assumptions) -> dict[str, list[int]]:
    symbols, widest = assumptions.symbols, _by_width(assumptions)
    counts = dict(zip(widest, itertools.chain(_POINTS, itertools.repeat(1)), strict=False))
    return {name: _values(said, counts[name]) for name, said in symbols.items()}


def _sample(assumptions: Assumptions) -> Iterator[Hints]:
    """Sizes over the whole ranges, evenly in their logarithms."""
    points = _points(assumptions)
    for values in itertools.product(*points.values()):
        sizes = dict(zip(points, values, strict=True))
        if all(one.holds(sizes) for one in assumptions.constraints):
            yield sizes


def _tried(assumptions: Assumptions, hints: Hints) -> Iterator[Hints]:
    """Likely calls that differ from the hints: smaller and larger sizes, alone and together."""
    points = _points(assumptions)
    few = {
        name: sorted({values[0], hints[name]})
        if len(values) <= _POINTS[1]
        else sorted({values[len(values) // 4], values[len(values) // 2], values[-1], hints[name]})
        for name, values in points.items()
    }
    number = 0
    for values in itertools.product(*few.values()):
        sizes = dict(zip(few, values, strict=True))
        if sizes != hints and all(one.holds(sizes) for one in assumptions.constraints):
            yield sizes
            number += 1
        if number == MOST_TRIED:
            break


def _boxes(
    assumptions: Assumptions, sample: Sequence[Hints]
) -> Iterator[tuple[dict[str, tuple[int, int]], Array]]:
    """Every box between sampled sizes, and which of these it holds; ends are closed."""
    points = _points(assumptions)
    intervals = [
        [(name, i, j) for i in range(len(values)) for j in range(i, len(values))]
        for name, values in points.items()
    ]
    columns = {name: np.array([sizes[name] for sizes in sample]) for name in points}
    for chosen in itertools.product(*intervals):
        bounds: dict[str, tuple[int, int]] = {}
        inside = np.ones(len(sample), bool)
        for name, i, j in chosen:
            values = points[name]
            if i == 0 and j == len(values) - 1:
                continue
            low = assumptions.symbols[name].first if i == 0 else values[i - 1] + 1
            bounds[name] = low, values[j]
            inside &= (low <= columns[name]) & (columns[name] <= values[j])
        if bounds and inside.any():
            yield bounds, inside

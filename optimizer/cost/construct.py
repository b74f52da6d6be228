"""Tile sizes without a search: every aligned configuration is scored at once, the best are kept.

A `TilingProblem` lists its eligible configurations as arrays and says what they do (`Features`);
the machine says how long that takes. No configuration is ever run here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..machine import Machine
from .model import Features, seconds, work

Array = np.ndarray[Any, Any]


class TilingProblem(Protocol):
    """One kernel whose tile sizes are to be chosen."""

    @property
    def configurations(self) -> Array:
        """All legal configurations, one per element, in a fixed order; at least one."""
        ...

    def features(self, configurations: Array, machine: Machine, executors: int) -> Features:
        """What each configuration does."""
        ...

    def footprint(self, configurations: Array) -> Array:
        """Bytes of scratch of one executor."""
        ...


@dataclass(frozen=True)
class Scores:
    """Predictions for each configuration, in the order of the problem."""

    time: Array
    area: Array
    footprint: Array

    @property
    def order(self) -> Array:
        """Indices from the best to the worst; ties by area, footprint, then position."""
        # Seconds that differ in the ninth digit do so by the order of additions only.
        keys = [_rounded(self.time), _rounded(self.area), self.footprint]
        return np.lexsort((np.arange(len(self.time)), *reversed(keys)))


def score(
    problem: TilingProblem, configurations: Array, machine: Machine, executors: int | None = None
) -> Scores:
    """Predictions for the given configurations; executors: all of the machine's."""
    count = executors or machine.executors
    features = problem.features(configurations, machine, count)
    shape = configurations.shape
    time = np.broadcast_to(seconds(features, machine, count), shape)
    area = np.broadcast_to(work(features, machine, count), shape)
    return Scores(time, area, np.broadcast_to(problem.footprint(configurations), shape))


def ranked(
    problem: TilingProblem, machine: Machine, executors: int | None = None
) -> tuple[Array, Array]:
    """All configurations from the best to the worst, and their predicted seconds."""
    every = problem.configurations
    scores = score(problem, every, machine, executors)
    order = scores.order
    return every[order], scores.time[order]


def _rounded(values: Array) -> Array:
    """Nine digits, so that equal costs compare equal in every environment."""
    with np.errstate(divide="ignore"):
        digits = np.where(values > 0, np.floor(np.log10(np.maximum(values, 1e-300))), 0)
    scale = 10.0 ** (8 - digits)
    return np.round(values * scale) / scale

"""What a GPU's device does, step by step: launches of kernels on memory, branches and jumps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .driver import LaunchConfiguration, TensorMapBox


class Where(NamedTuple):
    """An address: `offset` bytes behind base number `base`."""

    base: int
    offset: int


class Mapped(NamedTuple):
    """A tensor map as a launch's argument."""

    box: TensorMapBox
    where: Where


class ArgumentTable(NamedTuple):
    """Arguments of several kernels as one of a launch: where in its `size` bytes each lies; zeros
    between."""

    cells: tuple[tuple[int, bytes | Where | Mapped], ...]
    size: int


Parameter = bytes | Where | Mapped | ArgumentTable


class Started(NamedTuple):
    """One launch of a step."""

    start: LaunchConfiguration
    parameters: tuple[Parameter, ...]
    persistent: bool = False

    def on(self, multiprocessors: int) -> LaunchConfiguration:
        """How it starts on a device with so many multiprocessors (0: unknown)."""
        (blocks, *others), cluster = self.start.grid, volume(self.start.cluster)
        most = max(1, multiprocessors // cluster) * cluster
        if not self.persistent or not multiprocessors or blocks <= most:
            return self.start
        return self.start._replace(grid=(most, *others))

    @property
    def name(self) -> str:
        return self.start.entry

    @property
    def bases(self) -> tuple[int, ...]:
        """The bases that its parameters lie behind, each once."""
        each: list[Parameter] = []
        for one in self.parameters:
            each += [cell for _, cell in one.cells] if isinstance(one, ArgumentTable) else [one]
        places = [one.where if isinstance(one, Mapped) else one for one in each]
        return tuple(dict.fromkeys(one.base for one in places if isinstance(one, Where)))


class Array(NamedTuple):
    """An operand or result of a step's kernel, for messages about it."""

    where: Where
    nbytes: int
    name: str
    type: str  # "f32[4,8]"
    dims: tuple[int, ...]
    itemsize: int


class KernelStep(NamedTuple):
    """A step that runs a kernel on `arrays`, with `scratch_bytes` of its own at `scratch`; `dead`:
    (offset, bytes) of the arena, not read after it. `step`: its number in the plan; `copies`: it is
    a part of an exchange, and runs no kernel of the plan. `after`: steps that it follows, before
    it; `wait`: it follows all. `merged`: how many kernels its launch is, those of the steps behind
    it among them, which start none themselves; `others`: the scratch of these."""

    kernel: str
    origin: str  # "model.py:41", or ""
    launches: tuple[Started, ...]
    dead: tuple[tuple[int, int], ...]
    arrays: tuple[Array, ...]
    scratch: Where
    scratch_bytes: int
    step: int = 0
    copies: bool = False
    after: tuple[int, ...] = ()
    wait: bool = True
    merged: int = 1
    others: tuple[tuple[Where, int], ...] = ()


class Choose(NamedTuple):
    """Continues at targets[value]: a boolean's or a clamped index's, `size` bytes at `where`.
    holds: of a boolean, how many times in a row it is known to hold until it does once not; -1:
    always; None: that is not known."""

    where: Where
    size: int
    targets: tuple[int, ...]
    holds: int | None = None


class TurnCounts:
    """How many times in a row the conditions of a call's loops have held, of those that are
    known."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}  # by step

    def value(self, at: int, step: Choose) -> int | None:
        """The boolean that a step would read now; None where it has to be read."""
        if step.holds is None or step.holds < 0:
            return None if step.holds is None else 1
        held = self.held.get(at, 0)
        holds = held < step.holds
        self.held[at] = held + 1 if holds else 0
        return int(holds)


def chosen(found: np.ndarray[Any, Any], count: int) -> int:
    """Which of so many ways the bytes mean that a branch reads: a boolean, or an i32, which means
    the last way where it is out of range."""
    if found.size == 1:
        return int(found[0] != 0)
    value = int(found.view(np.int32)[0])
    return value if 0 <= value < count else count - 1


class Jump(NamedTuple):
    target: int


def volume(extent: tuple[int, int, int]) -> int:
    return extent[0] * extent[1] * extent[2]

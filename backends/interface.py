"""What a backend is: data and functions of one target, for the compiler to read and call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..hlo.graph import Op
from ..optimizer.cuts.choose import Shape
from ..optimizer.machine import Machine
from ..optimizer.passes.approximate import Formula
from ..optimizer.schedule import Schedule
from ..optimizer.tuning import Choices, Tuner
from ..options import Options
from .capabilities import Capabilities

API = 2  # of `Plugin` and `Backend`: raised when what they hold changes its meaning
SIMULATED = "ptx-sim"  # code for NVIDIA's GPUs that the simulator runs


Scheduled = tuple[Schedule, tuple[str, ...]]  # with the notes that its plan bears
KERNELS = "kernels"  # the last stage of a program: its operations are kernels


@dataclass(frozen=True)
class Stage:
    """A text that a kernel becomes on its way to code, by the function that compilation runs.

    takes: the stage whose text `run` is given; `KERNELS`: it is given the kernel's operation. What
    no stage takes tells of decisions alone, or is the last one.
    """

    takes: str
    run: Callable[[Any], str]


@dataclass(frozen=True)
class Backend:
    """One target. `build` takes the schedules of a program's entry points, with the notes of each,
    and gives a plan_pb2.Plan of each and one image; UnsupportedError lists every operation without
    a kernel. `packing` says how a contraction wants a weight to lie in memory; None: as follows
    from `capabilities`.
    `choices`: what decides beside the cost model, if there is a tuner. `begin`: starts, on other
    threads, what depends on no program. `assemble`: an image in machine code, by architecture.
    `in_tiles`: whether its tile functions write results where operands lie.
    `slow`: what an operation costs more than another element type would, "" as a rule.
    `identity`: a text that says all of the target that code depends on, and the tools that make it.
    `formulas`: by which operations may be computed that are marked as approximate.
    `windows`: kinds of fusions whose kernels read and write parts of arrays where they lie.
    `open_sizes`: whether its code serves sizes that calls decide.
    `expands`: which operations on whole matrices it wants as plain HLO (`optimizer/expansions/`).
    `splits_complex`: whether complex products are better as products of their parts.
    `lacks`: why no code of a foreign_call runs on the target, "" if one does.
    `schedules`: which of `Options.schedule` it can run a program by.
    `shared_packing`: how a contraction would have a weight that products of more rows read as
    well, in another entry point.
    `capabilities`: what its contractions are made of, where the optimizer chooses their forms and
    which of them become one with what is around.
    `shape`: what a kernel does, as a shape that `optimizer/cuts` divides; None where that is not
    done in one way.
    `stages`: the texts that a kernel becomes, in order; those of the whole program come before."""

    name: str
    build: Callable[[Sequence[Scheduled]], tuple[list[Any], bytes]]
    packing: Callable[[Op], Any] | None = None
    model: Machine | None = None  # what the optimizer's cost model assumes; None: nothing is tiled
    identity: str = ""
    machine: str = ""  # that machine's name, with a digest where it is no typical one
    choices: Choices | None = None
    in_tiles: bool = False
    begin: Callable[[], None] = lambda: None
    lacks: Callable[[Op], str] = lambda op: ""
    expands: Callable[[Op], bool] = lambda op: False
    slow: Callable[[Op], str] = lambda op: ""
    assemble: Callable[[bytes], Mapping[str, bytes]] | None = None
    formulas: tuple[Formula, ...] = ()
    windows: frozenset[str] = frozenset()
    open_sizes: bool = False
    splits_complex: bool = False
    shared_packing: Callable[[Op], Any] | None = None
    capabilities: Capabilities | None = None
    shape: Callable[[Op], Shape | None] | None = None
    stages: Mapping[str, Stage] = field(default_factory=dict)
    schedules: tuple[str, ...] = ("auto",)


@dataclass(frozen=True)
class Plugin:
    """A target of another package's, which an entry point of the group "girih.backends" names.

    name: the target's, as the entry point's. "cpu:NAME" makes plans and images that run like the
    CPU's; another family runs on a device that the group "girih.devices" names (runtime/devices).
    make: the backend for a target of this name, options, and what knows or measures choices.
    api: the `API` that it was written for; another one is refused. One that says none is of the
    first, which had none to say.
    """

    name: str
    make: Callable[[str, Options, Tuner | None], Backend]
    api: int = 1

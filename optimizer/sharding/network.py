"""What propagation walks: steps between tensors, and which steps a changed tensor concerns.

A step is an operation with its factors. Values that always have one sharding share a place: a
result of a loop, and what its condition and its body get for it. The step that joins such values
with what flows into them is an *edge*: the identity from its sources to its place.

The order of steps, and of the uses of a value, decides which axis arrives first, and so who wins a
conflict; both are the Shardy dialect's (openxla/shardy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from ...hlo.factors import Factor, Factors
from ...hlo.sharding import Mesh, Sharding
from .basic import BOTH
from .parts import Part


class OpPriority(Enum):
    """How early an operation takes part: elementwise ones and other PASSAGES first, then those with
    factors that pass, then the rest; axes go forward through a slice before they go back, and back
    through a broadcast before they go forward."""

    ELEMENTWISE, PASSAGE, SLICE, BROADCAST, OTHER = range(5)


class Link(NamedTuple):
    """How an axis came to a dim: carried by `step` from a dim of another place, or stated."""

    part: Part
    step: NetworkStep | None = None
    place: ShardingPlace | None = None
    dim: int = 0


@dataclass(eq=False)
class ShardingPlace:
    """Where the sharding of one tensor, or of several that always agree, is kept.

    stated: what an annotation says of it. source: the value of the program. step: what computes it,
    or the edge that joins several. tensor: the value that it is the place of; others: those that
    share it. group: places that have the same sharding. links: for each dim how its axes came.
    concerns: the steps to visit after a change, the last one first.
    """

    dims: tuple[int, ...]
    stated: Sharding | None = None
    source: Any = None
    sharding: Sharding | None = None
    step: NetworkStep | None = None
    group: Sequence[ShardingPlace] = ()
    others: tuple[NetworkTensor, ...] = ()
    tensor: NetworkTensor | None = None
    links: list[list[Link]] = field(default_factory=list)
    concerns: tuple[NetworkStep, ...] = ()


class TensorUse(NamedTuple):
    """One use of a tensor: by an operand of `step` or a source of an edge; None where nothing of
    the network is concerned. `demand`: what a constraint wants it to be there; `block`,
    `position`: where it stands in the program."""

    step: NetworkStep | None
    number: int = -1
    demand: Sharding | None = None
    block: int = 0
    position: int = 0


@dataclass(eq=False)
class NetworkTensor:
    """One value; None stands for it where a value is no tensor."""

    place: ShardingPlace
    uses: list[TensorUse] = field(default_factory=list)
    in_order: bool = False  # the first use is visited first; otherwise the last one

    def __post_init__(self) -> None:
        if self.place.tensor is None:
            self.place.tensor = self

    @property
    def shared(self) -> bool:
        """Whether an edge joins it with other values."""
        return self.place.step is not None and self.place.step.edge

    def users(self) -> list[NetworkStep]:
        uses = self.uses if self.in_order else self.uses[::-1]
        return [use.step for use in uses if use.step is not None]


@dataclass(eq=False)
class NetworkStep:
    """One operation, or an edge; without a rule nothing is propagated through it.

    `inward`, `outward`: an edge sees its place's sharding through them (axes that are manual
    inside). `allowed`: the directions of a barrier.
    """

    name: str
    operands: list[NetworkTensor | None]
    results: list[NetworkTensor | None]
    rule: Factors | None
    op_priority: OpPriority = OpPriority.OTHER
    source: Any = None  # the operation
    edge: bool = False
    constraint: bool = False
    allowed: int | None = None
    inward: Callable[[Sharding], Sharding] | None = None
    outward: Callable[[Sharding], Sharding] | None = None
    block: int = 0
    position: int = 0

    @property
    def crowded(self) -> bool:
        """Whether an operand that can be cut has other uses."""
        if self.edge:
            return False
        return any(x is not None and x.place.dims and len(x.uses) != 1 for x in self.operands)


@dataclass(eq=False)
class Network:
    """Steps in the program's order, the meshes, steps that put their operand into a group of
    tensors with one sharding, and results of the program with what is stated of them."""

    meshes: Mapping[str, Mesh]
    steps: list[NetworkStep] = field(default_factory=list)
    groupings: list[tuple[int, NetworkStep]] = field(default_factory=list)
    results: list[tuple[NetworkTensor, ShardingPlace]] = field(default_factory=list)
    places: list[ShardingPlace] = field(default_factory=list)
    rules: dict[Factors, Factors] = field(default_factory=dict)

    def rule(self, rule: Factors) -> Factors:
        """The same object for equal rules: few are kept, and a memo can go by identity."""
        return self.rules.setdefault(rule, rule)

    def place(
        self, dims: Sequence[int], stated: Sharding | None, source: Any = None
    ) -> ShardingPlace:
        found = ShardingPlace(tuple(dims), stated, source, links=[[] for _ in dims])
        found.sharding = stated
        self.places.append(found)
        return found

    def finish(self) -> None:
        """Fix who is concerned by a change of each place. Call once, when all is connected."""
        for place in self.places:
            steps: list[NetworkStep] = []
            for other in place.others:
                steps.extend(other.users())
            if place.step is not None:
                steps.append(place.step)
            if place.tensor is not None:
                steps.extend(place.tensor.users())
            place.concerns = tuple(step for step in steps if step.rule is not None)
        self.steps = [step for step in self.steps if step.rule is not None]
        for step in self.steps:
            assert step.rule is not None
            step.rule = self.rule(step.rule)


def identity(dims: Sequence[int], sources: int = 1) -> Factors:
    """The rule of an operation whose operands and result have the same dims."""
    each = tuple((n,) for n in range(len(dims)))
    return Factors(tuple(map(Factor, dims)), (each,) * sources, (each,))


def replace_uses(
    old: NetworkTensor,
    new: NetworkTensor,
    chosen: Callable[[TensorUse], bool],
    keep: Iterable[NetworkStep] = (),
) -> None:
    """Let the chosen uses of a tensor, but those by steps in `keep`, read another one."""
    kept = set(map(id, keep))
    stay: list[TensorUse] = []
    moved: list[TensorUse] = []
    for use in old.uses if old.in_order else reversed(old.uses):
        (stay if id(use.step) in kept or not chosen(use) else moved).append(use)
    for use in moved:
        if use.step is not None and use.number >= 0:
            use.step.operands[use.number] = new
    old.uses = stay if old.in_order else stay[::-1]
    new.uses.extend(moved)


ALLOWED = {"NONE": 0, "FORWARD": 1, "BACKWARD": 2, "BOTH": BOTH}
"""The directions of a `propagation_barrier`."""

"""What constraints and groups say of tensors, put into the network before propagation.

A constraint says how its result lies. Where all of its dims are closed, and no other constraint
says otherwise of the operand, that lies so too: there is nothing to move between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...hlo.errors import UserError
from ...hlo.sharding import Sharding, opened
from .network import (
    Link,
    Network,
    NetworkStep,
    NetworkTensor,
    OpPriority,
    ShardingPlace,
    TensorUse,
    identity,
    replace_uses,
)
from .parts import of_axes


@dataclass(frozen=True)
class Demand:
    """What the only operand of a constraint's step must be; without `result`, of the edge by which
    a manual computation gets it."""

    sharding: Sharding
    step: NetworkStep
    result: NetworkTensor | None = None

    @property
    def operand(self) -> NetworkTensor:
        (found,) = self.step.operands
        assert found is not None
        return found


def apply_demands(
    network: Network, demands: Sequence[Demand], blocks: dict[int, NetworkStep]
) -> None:
    """Give operands of constraints their sharding. `blocks`: the step that stands for the start of
    each block; steps that move do so to just behind what they constrain."""
    moved: dict[int, list[NetworkStep]] = {}
    gone: set[int] = set()
    for demand in demands:
        if demand.result is not None:
            _skip_chain(demand)
        operand, place = demand.operand, demand.operand.place
        if place.sharding is not None or any(dim.open for dim in demand.sharding.dims):
            continue
        if any(use.demand not in (None, demand.sharding) for use in operand.uses):
            continue
        if not operand.shared:
            place.sharding = place.stated = demand.sharding
            source = None if demand.result is None else demand.result.place
            _link(network, place, demand.sharding, demand.step, source)
            continue
        # An edge's sharding is not bound by one of its uses: the others read what this one gives.
        step, result = demand.step, demand.result
        if result is None:
            step, result = _constraint(network, operand, demand.sharding, demand.step)
        else:
            gone.add(id(step))
        replace_uses(operand, result, lambda use: True, [step])
        anchor = _start(operand, blocks)
        moved.setdefault(id(anchor), []).insert(0, step)
        if demand.sharding.unreduced:
            place.sharding = replace(
                opened(demand.sharding.mesh, len(place.dims)),
                unreduced=demand.sharding.unreduced,
                reduction=demand.sharding.reduction,
            )
    _reorder(network, moved, gone)


def _link(
    network: Network,
    place: ShardingPlace,
    sharding: Sharding,
    step: NetworkStep | None,
    source: ShardingPlace | None,
) -> None:
    """Note that all axes of a place's sharding come from a constraint or a member of its group."""
    mesh = network.meshes[sharding.mesh]
    for number, dim in enumerate(sharding.dims):
        for part in of_axes(mesh, dim.axes):
            place.links[number].append(Link(part, step, source, number))


def _skip_chain(demand: Demand) -> None:
    """Where constraints follow one another on a tensor, what comes behind them reads the last."""
    operand, last = demand.operand, demand.result
    before = operand.place.step
    if (before is not None and before.constraint) or operand.place.sharding is not None:
        return
    if any(use.demand is not None and use.step is not demand.step for use in operand.uses):
        return
    step = demand.step
    while last is not None and len(last.uses) == 1:
        user = last.uses[0].step
        if user is None or not user.constraint:
            break
        step, last = user, user.results[0]
    if last is None or step is demand.step or any(use.demand is not None for use in last.uses):
        return

    def behind(use: TensorUse) -> bool:
        return use.step is not None and use.block == step.block and use.position > step.position

    replace_uses(operand, last, behind, [demand.step])


def _constraint(
    network: Network, operand: NetworkTensor, sharding: Sharding, cause: NetworkStep
) -> tuple[NetworkStep, NetworkTensor]:
    """A constraint that the program does not have."""
    dims = operand.place.dims
    result = NetworkTensor(network.place(dims, sharding, operand.place.source))
    step = NetworkStep(
        "sharding_constraint", [operand], [result], identity(dims), OpPriority.ELEMENTWISE,
        cause.source, constraint=True,
    )  # fmt: skip
    result.place.step = step
    operand.uses.append(TensorUse(step, 0, sharding))
    return step, result


def _start(tensor: NetworkTensor, blocks: dict[int, NetworkStep]) -> NetworkStep:
    """The step behind which a tensor is known."""
    place = tensor.place
    if tensor is place.tensor and place.step is not None:
        return place.step
    return blocks[id(tensor)]


def _reorder(network: Network, moved: dict[int, list[NetworkStep]], gone: set[int]) -> None:
    """Put moved steps behind their anchors."""
    if not moved:
        return
    steps: list[NetworkStep] = []

    def add(step: NetworkStep) -> None:
        steps.append(step)
        for follower in moved.get(id(step), ()):
            add(follower)

    for step in network.steps:
        if id(step) not in gone:
            add(step)
    network.steps = steps


def unite_groups(network: Network, blocks: dict[int, NetworkStep]) -> None:
    """Let each group start with the one sharding that its members have; where they have several,
    the group is of what follows them instead."""
    moved: dict[int, list[NetworkStep]] = {}
    for group in _groups(network):
        common: Sharding | None = None
        conflict = False
        for tensor in group:
            found = tensor.place.sharding
            if found is None or all(dim.open and not dim.axes for dim in found.dims):
                continue
            conflict = conflict or common not in (None, found)
            common = common or found
        if common is not None and conflict and len(group) > 1:
            free = opened(common.mesh, common.rank)
            for number, tensor in enumerate(group):
                cause = tensor.place.step or blocks[id(tensor)]
                step, result = _constraint(network, tensor, free, cause)
                replace_uses(tensor, result, lambda use: True, [step])
                moved.setdefault(id(_start(tensor, blocks)), []).insert(0, step)
                group[number] = result
        elif common is not None:
            source = next(x.place for x in group if x.place.sharding == common)
            for tensor in group:
                if tensor.place.sharding != common:
                    tensor.place.sharding = common
                    _link(network, tensor.place, common, None, source)
        places = tuple(tensor.place for tensor in group)
        for place in places:
            place.group = places
    _reorder(network, moved, set())


def _groups(network: Network) -> list[list[NetworkTensor]]:
    """The tensors of each group, each once; groups with a tensor in common are one."""
    leaders: dict[int, int] = {}

    def leader(number: int) -> int:
        while leaders.setdefault(number, number) != number:
            number = leaders[number]
        return number

    first: dict[NetworkTensor, int] = {}
    for number, step in network.groupings:
        tensor = step.operands[0]
        if tensor is not None:
            one, other = leader(first.setdefault(tensor, number)), leader(number)
            leaders[max(one, other)] = min(one, other)
    found: dict[int, dict[NetworkTensor, None]] = {}
    for number, step in network.groupings:
        tensor = step.operands[0]
        if tensor is None:
            continue
        members = found.setdefault(leader(number), {})
        members[tensor] = None
        first_dims = next(iter(members)).place.dims
        if tensor.place.dims != first_dims:
            raise UserError(
                f"{getattr(step.source, 'place', '')}a sharding group has tensors of dims "
                f"{list(first_dims)} and {list(tensor.place.dims)}; they must be equal"
            )
    return [list(found[number]) for number in sorted(found)]

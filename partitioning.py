"""`girih.partition`: the program that each device of a mesh runs, and what the devices send.

parts = girih.partition(module, mesh={"data": 2, "model": 4}, shardings={"x": ("data",)})
print(*parts.communications, sep="\\n")
results = parts.interpret([x, w])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .annotate import annotated, on_mesh
from .backends import find
from .hlo.distributed import interpret_parallel
from .hlo.errors import MemoryLimitError, UnsupportedError, UserError
from .hlo.graph import Attribute, Module, signature_of
from .hlo.placement import cut, joined
from .hlo.sharding import Mesh, Sharding
from .hlo.types import TensorType
from .hlo.verify import DECIDED, verify
from .imports import import_model
from .optimizer.limit import MemoryNeed, need
from .optimizer.measure import measure
from .optimizer.passes.dce import Dce
from .optimizer.passes.decompose import KEPT, Decompose
from .optimizer.passes.inline import Inline
from .optimizer.passes.legalize_quantized import LegalizeQuantized
from .optimizer.passes.mask_bounded import MaskBounded
from .optimizer.passes.require_static import RequireStatic
from .optimizer.pipeline import pipeline_for
from .optimizer.sharding.ahead import gathered_ahead
from .optimizer.sharding.automatic import Filled, fill
from .optimizer.sharding.budgets import Budget, require_within
from .optimizer.sharding.choice import ShardingChoice, choose
from .optimizer.sharding.combine import combined
from .optimizer.sharding.communications import CommunicationSite, communications
from .optimizer.sharding.explanation import Explanation, explain
from .optimizer.sharding.interconnect import USUAL, Interconnect
from .optimizer.sharding.overlap import overlapped
from .optimizer.sharding.partition.program import WEIGHT, WHOLE
from .optimizer.sharding.partition.program import partition as partitioned
from .optimizer.sharding.propagated import Propagated, propagate
from .optimizer.sharding.regather import gaps, regathered
from .optimizer.sharding.remesh import remeshed
from .optimizer.sharding.rotations import pads_for_slices
from .optimizer.sharding.states import states_as_taken
from .optimizer.sharding.suggestions import Suggestion, suggest
from .optimizer.sharding.timeline import Costs, Timeline, timeline
from .options import Options, bytes_of

Array = np.ndarray[Any, Any]


AUTO = "auto"

DIVIDED = frozenset(("chlo.ragged_dot",))
"""Operations that devices compute in parts as they are, and that are decomposed afterwards."""


@dataclass(frozen=True, eq=False, repr=False)
class Partitioned:
    """A program on a mesh of devices.

    propagated: the program as imported, and how annotations let its tensors lie. choice: how each
    operation is computed. local: the program of one device, plain HLO with collectives, on its
    blocks; small collectives are joined. automatic: what was found, where shardings are "auto".
    """

    propagated: Propagated
    choice: ShardingChoice
    local: Module
    interconnect: Interconnect
    automatic: Filled | None = None

    @property
    def decided(self) -> Module:
        """The program with a sharding in each type, where `sharding_constraint` says what is
        sent."""
        return self.choice.module

    @property
    def mesh(self) -> Mesh:
        """The mesh that the shardings are on."""
        found = (s.mesh for s in self.propagated.shardings.values())
        return self.decided.meshes[next(found, next(iter(self.decided.meshes)))]

    @cached_property
    def communications(self) -> tuple[CommunicationSite, ...]:
        """What devices send, in the order of the program; their bytes are those that are counted
        when it runs."""
        return communications(self.decided, self.interconnect)

    @cached_property
    def overlapped(self) -> Module:
        """`local` with communication beside computing, for devices whose links work by themselves:
        loops gather ahead, calls are `async_start` and `async_done`. Results have the same bits."""
        return overlapped(gathered_ahead(self.local), self.costs)

    @property
    def costs(self) -> Costs:
        """What the operations of one device's program take, by a model."""
        return Costs(self.mesh, self.interconnect)

    @cached_property
    def memory(self) -> MemoryNeed:
        """Bytes that one device needs for a call, by what for: those of `local` as it is planned
        for the CPU of this machine, without scratch of its workers."""
        options = Options()
        backend = find("cpu", options)
        local, whole = self.local, signature_of(self.decided)
        taken, made = local.body.argument_types, [value.type for value in local.body.results]
        donated = {
            n: None if leaf.aliases is None or made[leaf.aliases] != taken[n] else leaf.aliases
            for n, leaf in enumerate(whole.arguments)
            if leaf.donated
        }
        local = replace(local, signature=signature_of(local).donating(donated))
        _, fused = pipeline_for(backend, options).run(local)
        return need(measure(fused, backend.in_tiles))

    def timeline(self, costs: Costs | None = None) -> Timeline:
        """When `overlapped` computes and sends; costs: measured ones instead of the model's."""
        return timeline(self.overlapped, costs or self.costs)

    @property
    def bytes(self) -> float:
        """Bytes that a device receives in one step, the mean of all."""
        return sum(row.total for row in self.communications)

    def explain(self) -> Explanation:
        """Each communication with the annotations from which it follows, how these came there, and
        what else could be done; and what each device holds."""
        return explain(self.propagated, self.choice, self.interconnect)

    def suggest(self) -> Mapping[int, Suggestion]:
        """By the number of a communication, another annotation that removes it. Each is found by
        partitioning the program with it, so that this takes as long as many partitions."""
        return suggest(self.propagated, self.choice, self.explain(), self.interconnect)

    def require_within(self, *budgets: Budget) -> None:
        """BudgetError, with the communications that count, where the program exceeds a budget."""
        require_within(self.communications, budgets)

    def interpret(self, inputs: Sequence[Any]) -> list[Array]:
        """The whole results for whole inputs (flat, in argument order), each device's program run
        by the interpreter. UserError for inputs of other shapes or dtypes."""
        main, mesh = self.local.main, self.mesh
        count = len(self.decided.body.arguments)
        kinds = [_tensor(facts) for facts in main.argument_attributes]
        if len(inputs) != count:
            raise UserError(f"the program takes {count} inputs, got {len(inputs)}")
        blocks: list[list[Array]] = []
        for number, (given, (kind, sharding)) in enumerate(zip(inputs, kinds[:count], strict=True)):
            array = np.asarray(given)
            if array.shape != kind.dims or array.dtype != kind.dtype:
                got = f"{array.dtype}{list(array.shape)}"
                raise UserError(f"input {number} must be {kind}, got {got}")
            blocks.append(cut(array, sharding, mesh))
        for facts in main.argument_attributes[count:]:
            weight = self.local.weights[str(facts[WEIGHT])].array
            blocks.append(cut(weight, _tensor(facts)[1], mesh))
        found = interpret_parallel(
            self.local, [[block[n] for block in blocks] for n in range(mesh.devices)]
        )
        return [
            joined([results[number] for results in found.results], sharding, mesh, kind.dims)
            for number, (kind, sharding) in enumerate(map(_tensor, main.result_attributes))
        ]


def partition(
    source: Any,
    *example_inputs: Any,
    mesh: Mapping[str, int | None] | None = None,
    shardings: Mapping[str, Iterable[Any]] | str | None = None,
    interconnect: Interconnect = USUAL,
    memory: int | str | None = None,
    **keywords: Any,
) -> Partitioned:
    """The program of one device of a mesh, from any source that `girih.compile` takes.

    mesh, shardings: as for `girih.compile`. Without `shardings` the source brings its own, and a
    mesh of other sizes moves it there. interconnect: what sending costs. memory: the most that a
    call may take on one device, bytes or text such as "8GiB", counted as `max_memory` is: what does
    not fit gathers values again for later uses rather than keep them, as few as that takes.
    shardings "auto": those of arguments and weights that nobody said are found, so that `memory`,
    by the estimate of `optimizer/sharding/memory.py`, is enough.
    UserError for a program without a mesh, UnsupportedError for what cannot be moved or cut,
    MemoryLimitError where all of that does not make it fit.
    """
    module = import_model(source, *example_inputs, **keywords)
    if mesh is not None and isinstance(shardings, str):
        filled = _filled(module, mesh, shardings, memory)
        return replace(partition_module(filled.module, None, interconnect), automatic=filled)
    if mesh is not None:
        module, mesh = annotated_for(module, mesh, shardings, memory)
    return partition_module(module, mesh, interconnect, memory)


def annotated_for(
    module: Module,
    mesh: Mapping[str, int | None],
    shardings: Mapping[str, Iterable[Any]] | str | None,
    memory: int | str | None = None,
) -> tuple[Module, Mapping[str, int | None] | None]:
    """The module with what a user says of a mesh; and the mesh that it has to be moved to, None if
    it is on it. A module that has a mesh of its own keeps it, and its annotations. memory: of a
    device, for shardings that are "auto"."""
    if shardings is None and _sized(module):
        return module, mesh
    if isinstance(shardings, str):
        return _filled(module, mesh, shardings, memory).module, None

    return annotated(module, mesh, shardings), None


def partition_module(
    module: Module,
    mesh: Mapping[str, int | None] | None = None,
    interconnect: Interconnect = USUAL,
    memory: int | str | None = None,
) -> Partitioned:
    """The program of one device, from a module whose annotations say how it lies. mesh: the sizes
    that its axes get instead of those that they have; memory, errors as for `partition`."""
    found = states_as_taken(pads_for_slices(_propagated(module, mesh)))
    parts = _partitioned(found, choose(found), interconnect)
    return parts if memory is None else _fitting(parts, bytes_of(memory))


def _partitioned(
    found: Propagated, choice: ShardingChoice, interconnect: Interconnect
) -> Partitioned:
    verify(choice.module, DECIDED)
    parts = Partitioned(found, choice, partitioned(choice.module, interconnect), interconnect)
    return replace(parts, local=combined(parts.local, parts.costs))


def _fitting(parts: Partitioned, limit: int) -> Partitioned:
    """The program within `limit` bytes of memory, with as few values gathered again as that takes;
    MemoryLimitError without one."""
    if parts.memory.total <= limit:
        return parts
    known = gaps(parts.decided, parts.mesh)

    def gathering(count: int) -> Partitioned:
        choice = parts.choice
        again = replace(choice, decided=regathered(choice.decided, known[:count]))
        return _partitioned(parts.propagated, again, parts.interconnect)

    best = gathering(len(known)) if known else parts
    most = best.memory
    if most.total > limit:
        raise MemoryLimitError(
            f"memory: {limit:,} bytes are too few: one of {parts.mesh.devices} devices needs "
            f"{most.total:,} ({most.text}), {len(known)} values gathered again; cut more of the "
            "arguments, or take more devices",
            limit, most.total, impossible=False,
        )  # fmt: skip
    low, high = 0, len(known)  # too much memory is needed with `low` of them, not with `high`
    while high - low > 1:
        middle = (low + high) // 2
        tried = gathering(middle)
        if tried.memory.total <= limit:
            high, best = middle, tried
        else:
            low = middle
    return best


def _require_one_mesh(module: Module) -> None:
    """UnsupportedError where values are cut along the axes of meshes that are not one."""
    first: tuple[Sharding, str] | None = None
    arguments = [(value, "an argument") for value in module.body.arguments]
    results = [(value, f"{op.place}{op.name}") for op in module.walk() for value in op.results]
    for value, what in (*arguments, *results):
        sharding = value.type.sharding if isinstance(value.type, TensorType) else None
        if sharding is None or not any(dim.axes for dim in sharding.dims):
            continue
        first = first or (sharding, what)
        one, other = (module.meshes[found.mesh] for found in (first[0], sharding))
        if (one.axes, _order(one)) != (other.axes, _order(other)):
            raise UnsupportedError(
                f"{what} is {value.type} and {first[1]} {first[0]}: these meshes have other axes, "
                f"or their devices in another order ({one} and {other}); say both on one mesh"
            )


def _order(mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.device_ids or range(mesh.devices)) if mesh.static else ()


def moved(module: Module, mesh: Mapping[str, int | None] | None) -> Module:
    """The program, its calls inline, on axes of other sizes, None for those that it has."""
    for step in (MaskBounded(), RequireStatic(), LegalizeQuantized(), Inline()):
        module = step(module)
    return module if mesh is None else remeshed(module, mesh)


def _propagated(module: Module, mesh: Mapping[str, int | None] | None = None) -> Propagated:
    _require_one_mesh(module)
    module = moved(module, mesh)
    for step in (Decompose(KEPT | DIVIDED), Dce()):
        module = step(module)
    return propagate(module)


def _filled(
    module: Module, mesh: Mapping[str, int | None], shardings: str, memory: int | str | None
) -> Filled:
    """The module, prepared, with shardings of what it leaves open."""
    if shardings != AUTO:
        raise UserError(f"shardings: a mapping of patterns, or '{AUTO}', not '{shardings}'")
    devices = Mesh(tuple(mesh.items()))
    module = on_mesh(module, devices)
    if not devices.static:
        raise UserError(f"shardings: '{AUTO}' needs the size of each axis of the mesh {devices}")
    if devices not in module.meshes.values():
        if _sized(module):
            own = ", ".join(map(str, module.meshes.values()))
            raise UserError(f"shardings: '{AUTO}' fills the program's own mesh, {own}")
        module = replace(module, meshes={**module.meshes, "mesh": devices})
    return fill(_propagated(module), None if memory is None else bytes_of(memory))


def _sized(module: Module) -> bool:
    """Whether a mesh of the program has sizes."""
    return any(mesh.axes and mesh.static for mesh in module.meshes.values())


def _tensor(facts: Mapping[str, Attribute]) -> tuple[TensorType, Sharding]:
    """What an argument or a result is a block of, and how it lies."""
    kind = facts.get(WHOLE)
    if not isinstance(kind, TensorType) or kind.sharding is None:
        raise UserError("only tensors are arguments and results of partitioned programs")
    return TensorType(kind.dims, kind.element), kind.sharding

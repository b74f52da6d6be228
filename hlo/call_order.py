"""Whether the processes of a program make the same calls in the same order, said before it runs.

All processes have the same text, so their calls can differ only where a loop or a branch decides
otherwise on one than on another. Of each value it is known on which processes it is provably equal
(`Classes`): constants on all, numbers of processes on none, what is gathered or summed over a group
on its members. Each operation that communicates asks that whatever decides whether it runs is equal
among those that it communicates among.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from .errors import UserError
from .graph import Module, Op, Region, Value
from .groups import Groups, named_by, process_groups
from .ops.annotation import ANNOTATIONS
from .ops.collectives import Collective, members
from .ops.exchange import transfers
from .ops.manual import ManualLayout, whole_shardings
from .placement import WHOLE
from .processes import grid_of
from .sharding import SUM, Mesh, Sharding
from .types import TensorType

Classes = tuple[int, ...]
"""For each process a number; where two have the same, the value is equal on both."""


def check_call_order(module: Module) -> None:
    """UserError, with the places, where processes may wait for calls that others do not make.

    module: for the grid that it says (`grid_of`), calls inlined or not. Arguments of a program on a
    mesh are whole, and so equal on all; those of the program of one device (`girih.whole`) are
    where devices hold the same block; all others may differ, and weights are equal.
    """
    analysis = _Analysis(module, *grid_of(module))
    analysis.region(module.body, [analysis.argument(n) for n in range(len(module.body.arguments))])
    if analysis.problems:
        raise UserError(
            "processes may wait for each other for ever: whether they communicate is decided by "
            "what may differ among them; decide by what is equal on all (a sum, a maximum):\n"
            + "\n".join(f"  {text}" for text in analysis.problems.values())
        )


class _Analysis:
    def __init__(self, module: Module, replicas: int, partitions: int) -> None:
        self.module, self.replicas, self.partitions = module, replicas, partitions
        self.count = replicas * partitions
        self.known: dict[Value, Classes] = {}
        self.deciding: list[tuple[Op, Classes]] = []  # the loops and branches around, outside first
        self.problems: dict[Op, str] = {}
        self.settled = True  # False while classes of a loop's values are still being split
        self.equal: Classes = (0,) * self.count
        self.different: Classes = tuple(range(self.count))

    def argument(self, number: int) -> Classes:
        facts = self.module.main.argument_attributes
        whole = facts[number].get(WHOLE) if number < len(facts) else None
        if not isinstance(whole, TensorType) or whole.sharding is None:
            meshes = [mesh for mesh in self.module.meshes.values() if mesh.static]
            on_mesh = any(mesh.devices == self.count for mesh in meshes)
            return self.equal if on_mesh else self.different
        mesh = self.module.meshes.get(whole.sharding.mesh)
        if mesh is None or not mesh.static or mesh.devices != self.count:
            return self.different
        return _held(mesh, whole.sharding)

    # Regions and control flow.

    def region(self, region: Region, arguments: Sequence[Classes]) -> list[Classes]:
        """The classes of its results; those of all its values are known afterwards."""
        self.known.update(zip(region.arguments, arguments, strict=False))
        for op in region.ops:
            found = self.classes(op, [self.known[value] for value in op.operands])
            self.known.update(zip(op.results, found, strict=True))
        return [self.known[value] for value in region.results]

    def classes(self, op: Op, operands: list[Classes]) -> Sequence[Classes]:
        """Of the results of an operation."""
        if op.name in _BRANCHES:
            return self.branches(op, operands)
        if op.name == "while":
            return self.loop(op, operands)
        if op.name in _TALK:
            return _TALK[op.name](self, op, operands)
        if op.name in ANNOTATIONS or op.name == "optimization_barrier":
            return operands
        if op.definition.communicates:  # with the world outside
            return [self.different] * len(op.results)
        if op.name in ("call", "call_with_weights", "composite"):
            callee = op.attributes.get("callee") or op.attributes.get("decomposition")
            function = self.module.functions.get(str(callee))
            if function is not None:
                arguments = [*operands, *[self.equal] * len(function.body.arguments)]
                return self.region(function.body, arguments[: len(function.body.arguments)])
        captured = [self.known[value] for body in op.regions for value in body.captures()]
        together = _meet([*operands, *captured], self.equal)
        if any(inner.definition.communicates for body in op.regions for inner in body.walk()):
            together = self.repeated(op, together)
        return [together] * len(op.results)

    def branches(self, op: Op, operands: list[Classes]) -> list[Classes]:
        self.deciding.append((op, operands[0]))
        found = [self.region(body, operands[1:]) for body in op.regions]
        self.deciding.pop()
        return [_meet([operands[0], *column], self.equal) for column in zip(*found, strict=True)]

    def loop(self, op: Op, carried: list[Classes]) -> list[Classes]:
        condition, body = op.regions
        settled, self.settled = self.settled, False
        while True:
            (decides,) = self.region(condition, carried)
            self.deciding.append((op, decides))
            after = self.region(body, carried)
            self.deciding.pop()
            pairs = zip(carried, after, strict=True)
            split = [_meet(pair, self.equal) for pair in pairs]
            if split == carried:
                break
            carried = split
        self.settled = settled
        self.deciding.append((op, decides))
        self.region(condition, carried)
        self.region(body, carried)
        self.deciding.pop()
        return [_meet([decides, one], self.equal) for one in carried]

    def repeated(self, op: Op, together: Classes) -> Classes:
        """Of the results of an operation whose bodies communicate, run as often on all."""
        settled, self.settled = self.settled, False
        while True:
            found = [self.region(body, [together] * len(body.arguments)) for body in op.regions]
            split = _meet([together, *(one for some in found for one in some)], self.equal)
            if split == together:
                break
            together = split
        self.settled = settled
        for body in op.regions:
            self.region(body, [together] * len(body.arguments))
        return together

    def meets(self, op: Op, groups: Iterable[Sequence[int]]) -> None:
        """The operation communicates among the members of each group."""
        if not self.settled:
            return
        for group in groups:
            for control, decides in self.deciding:
                if len({decides[member] for member in group}) > 1:
                    what = "condition" if control.name == "while" else "index or predicate"
                    self.problems.setdefault(
                        op,
                        f"{op.place}{op.name} among the processes {list(group)}: the {what} of "
                        f"{control.place}{control.name} around it may differ there",
                    )

    # What processes say to each other.

    def processes(self, op: Op, named: Groups) -> Groups:
        assert isinstance(op.definition, Collective)
        strategy = op.definition.strategy(op)
        if not named and not isinstance(op.attributes.get("source_target_pairs"), tuple):
            named = (tuple(range(named_by(strategy, self.replicas, self.partitions))),)
        found = process_groups(strategy, named, self.replicas, self.partitions)
        return tuple(group for group in found if all(member < self.count for member in group))

    def collective(self, op: Op, operands: list[Classes]) -> list[Classes]:
        """What the members of a group get of what all of them give."""
        groups = self.processes(op, members(op))
        self.meets(op, groups)
        own = op.name in ("reduce_scatter", "all_to_all")
        captured = [self.known[value] for body in op.regions for value in body.captures()]
        found: list[Classes] = []
        for given in operands[: len(op.results)]:
            keys: list[Hashable] = [("no group", n) for n in range(self.count)]
            for group in groups:
                for place, member in enumerate(group):
                    keys[member] = (tuple(given[m] for m in group), place if own else 0)
            found.append(_meet([_numbered(keys), *captured], self.equal))
        return found

    def rooted(self, op: Op, operands: list[Classes]) -> list[Classes]:
        """Roots of which nothing is known are taken to be others on each process."""
        groups = self.processes(op, members(op))
        self.meets(op, groups)
        fixed = op.name == "collective_broadcast" and not op.has_dynamic_root
        if not fixed:
            return [self.different] * len(op.results)
        found: list[Classes] = []
        for given in operands:
            keys: list[Hashable] = ["zeros"] * self.count
            for group in groups:
                for member in group:
                    keys[member] = given[group[0]]
            found.append(_numbered(keys))
        return found

    def permute(self, op: Op, operands: list[Classes]) -> list[Classes]:
        pairs = self.processes(op, op.source_target_pairs)
        self.meets(op, pairs)
        keys: list[Hashable] = ["zeros"] * self.count
        for source, target in pairs:
            keys[target] = operands[0][source]
        return [_numbered(keys)]

    def exchange(self, op: Op, operands: list[Classes]) -> list[Classes]:
        boxes: list[list[Any]] = [[] for _ in range(self.count)]
        for entry in transfers(op):
            for source, target in self.processes(op, ((entry.source, entry.target),)):
                self.meets(op, ((source, target),))
                boxes[target].append((*entry[2:], operands[0][source]))
        return [_numbered([tuple(sorted(some)) for some in boxes])]

    def number(self, op: Op, operands: list[Classes]) -> list[Classes]:
        if op.name == "partition_id":
            return [tuple(n % self.partitions for n in range(self.count))]
        return [tuple(n // self.partitions for n in range(self.count))]

    def start(self, op: Op, operands: list[Classes]) -> list[Classes]:
        return [_meet(self.region(op.regions[0], operands), self.equal)]

    def done(self, op: Op, operands: list[Classes]) -> list[Classes]:
        return operands * len(op.results)

    def manual(self, op: Op, operands: list[Classes]) -> list[Classes]:
        layout = ManualLayout(op)
        if self.count == 1 and layout.count > 1:  # its devices are processes of their own
            inside = _Analysis(self.module, 1, layout.count)
            inside.known = dict.fromkeys(self.known, inside.equal)
            inside.settled, inside.problems = self.settled, self.problems
            inside.manual(op, [inside.equal] * len(operands))
            return [self.equal] * len(op.results)
        if layout.count != self.count:  # nothing can run it
            return [self.different] * len(op.results)
        stated, blocks = whole_shardings(op), list[Classes]()
        for value, given, cuts, sharding in zip(
            op.operands, operands, op.in_shardings, stated, strict=False
        ):
            if not isinstance(value.type, TensorType):
                blocks.append(given)
                continue
            summed = sharding is not None and sharding.reduction == SUM
            pending = layout.pending(sharding) if summed else []
            keys: list[Hashable] = []
            for n in range(self.count):
                starts = tuple(axis.start for axis in layout.window(n, cuts, value.dims))
                keys.append("zeros" if layout.index(n, pending) else (given[n], starts))
            blocks.append(_numbered(keys))
        found = self.region(op.regions[0], blocks)
        self.meets(op, {layout.group(n) for n in range(self.count)})
        results: list[Classes] = []
        for one, result, cuts, sharding in zip(
            found, op.results, op.out_shardings, stated[len(op.in_shardings) :], strict=True
        ):
            if not isinstance(result.type, TensorType):
                results.append(one)
                continue
            held = [
                tuple(
                    (piece.term, tuple(axis.start for axis in piece.window), one[piece.member])
                    for piece in layout.pieces(n, cuts, sharding, result.dims)
                )
                for n in range(self.count)
            ]
            results.append(_numbered([tuple(sorted(some)) for some in held]))
        return results


_BRANCHES = ("if", "case")
_TALK: dict[str, Callable[[_Analysis, Op, list[Classes]], Sequence[Classes]]] = {
    "all_gather": _Analysis.collective,
    "all_reduce": _Analysis.collective,
    "cross-replica-sum": _Analysis.collective,
    "reduce_scatter": _Analysis.collective,
    "all_to_all": _Analysis.collective,
    "collective_broadcast": _Analysis.rooted,
    "collective_reduce": _Analysis.rooted,
    "collective_permute": _Analysis.permute,
    "exchange": _Analysis.exchange,
    "partition_id": _Analysis.number,
    "replica_id": _Analysis.number,
    "async_start": _Analysis.start,
    "async_done": _Analysis.done,
    "sdy.manual_computation": _Analysis.manual,
}


def _numbered(keys: Sequence[Hashable]) -> Classes:
    """Classes of equal keys."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _meet(classes: Iterable[Classes], equal: Classes) -> Classes:
    """Where all of them are equal; `equal` of none."""
    columns = list(dict.fromkeys(classes))
    return _numbered(list(zip(*columns, strict=True))) if columns else equal


def _held(mesh: Mesh, sharding: Sharding) -> Classes:
    """Which devices hold the same block, by their numbers."""
    keys: list[Hashable] = [()] * mesh.devices
    for place, device in enumerate(mesh.device_ids or range(mesh.devices)):
        at = mesh.coordinates(place)
        blocks = tuple(mesh.index(dim.axes, at) for dim in sharding.dims)
        keys[device] = (blocks, mesh.index(sharding.unreduced, at))
    return _numbered(keys)

"""undo-log: what a call overwrites of state is kept, so that a session can go back to it.

The rows of a state that an update is about to write in place are copied to outputs behind the
program's own results, together with where they lie and with bytes that say that they are there. A
state that is written whole gets other memory for what replaces it, where it is small; programs that
write a large one whole keep nothing, since that would be a copy of it in every call.

It comes when every update is an operation of its own, which it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from ...hlo.build import Builder, make_op
from ...hlo.deciding import largest
from ...hlo.graph import (
    LOGGED,
    Module,
    Op,
    Origin,
    Region,
    Value,
    arguments,
    constant_of,
    union_origins,
)
from ...hlo.processes import grid_of
from ...hlo.regions import alias_roots, rename
from ...hlo.types import UI8, TensorType, Type
from ...hlo.verify import FUSED, Level
from ..schedule import UNDO, Overwritten

SMALL = 1 << 16  # bytes of a state that may have two memories
TOGETHER = 8  # states whose rows one kernel keeps
_PLACED = ("inserted_window_dims", "update_window_dims", "index_vector_dim")  # of a scatter


@dataclass(frozen=True)
class UndoLog:
    """FUSED -> FUSED; the module with the attributes `schedule.UNDO` and `graph.LOGGED`."""

    name: ClassVar[str] = "undo-log"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        if module.signature is None or grid_of(module) != (1, 1):
            return module
        body, found, whole = module.body, list[_Window](), list[Overwritten]()
        roots = alias_roots(body)
        for number, argument in enumerate(module.signature.arguments):
            if argument.state is None or argument.aliases is None:
                continue
            windows = _windows(body, roots, number, body.results[argument.aliases])
            if windows is not None:
                found += windows
            elif largest(body.arguments[number].tensor.bytes) <= SMALL:
                whole.append(Overwritten(number))
            else:
                return module
        if not found and not whole:
            return module
        body, kept = _Log(body, roots).keeping(found)
        attributes = {**module.attributes, UNDO: tuple(map(tuple, (*whole, *kept)))}
        attributes[LOGGED] = len(body.results) - len(module.body.results)
        return replace(module.with_main(body), attributes=attributes)


class _Window(NamedTuple):
    """What an update writes of the argument of a number: boxes that begin at `base`, and at values
    of the program in `dims`. `starts` are those operands of the update that hold them."""

    argument: int
    update: Op
    base: tuple[int, ...]
    dims: tuple[int, ...]
    starts: tuple[int, ...]

    def alike(self, roots: Mapping[Value, Value]) -> tuple[object, ...]:
        """Windows of which this is equal are kept by one kernel."""
        update = self.update
        values = [update.operands[n] for n in self.starts]
        written = update.operands[-1 if update.name == "scatter" else 1].type
        places = [(roots.get(value, value), value.type) for value in values]
        rest = tuple(sorted((k, v) for k, v in update.attributes.items() if k in _PLACED))
        return update.name, update.operands[0].type, written, self.base, self.dims, rest, *places


def _windows(
    body: Region, roots: Mapping[Value, Value], number: int, result: Value
) -> list[_Window] | None:
    """The updates that make the result of the argument of that number; None where others do, or
    where they may write more than the argument has."""
    argument, found = body.arguments[number], list[_Window]()
    value = roots.get(result, result)
    while value is not argument:
        op = value.op
        if op is None or not op.operands or op.operands[0].type is not argument.type:
            return None
        window = _window(op, number)
        if window is None:
            return None
        found.append(window)
        value = roots.get(op.operands[0], op.operands[0])
    written = [one.update.operands[-1 if one.update.name == "scatter" else 1] for one in found]
    much = sum(largest(value.tensor.bytes) for value in written)
    return found if much <= largest(argument.tensor.bytes) else None


def _window(op: Op, argument: int) -> _Window | None:
    """What an update writes; None for other operations."""
    rank = op.operands[0].rank
    if op.name == "dynamic_update_slice" and rank:
        known = [constant_of(start) for start in op.operands[2:]]
        base = tuple(0 if one is None else max(int(one.splat_value), 0) for one in known)
        dims = tuple(d for d, one in enumerate(known) if one is None)
        return _Window(argument, op, base, dims, tuple(2 + d for d in dims))
    if op.name != "scatter" or len(op.operands) != 3 or op.input_batching_dims:
        return None
    indices, dims = op.operands[1], tuple(op.scatter_dims_to_operand_dims)
    if op.index_vector_dim < indices.rank - 1:
        return None
    return _Window(argument, op, (0,) * rank, dims, (1,))


class _Log:
    """Makes the body that keeps what it overwrites."""

    def __init__(self, body: Region, roots: Mapping[Value, Value]) -> None:
        self.body, self.roots = body, roots
        self.ops: list[Op] = []
        self.results: list[Value] = []  # behind those of the body
        self.copies: dict[tuple[Value, Type], Value] = {}  # of where windows begin
        self.kept: list[Overwritten] = []

    def keeping(self, windows: Sequence[_Window]) -> tuple[Region, list[Overwritten]]:
        """The body with the rows of these windows behind its results, and which those are."""
        groups: dict[tuple[object, ...], list[_Window]] = {}
        for window in windows:
            groups.setdefault(window.alike(self.roots), []).append(window)
        of = {window.update: window for window in windows}
        mapping: dict[Value, Value] = {}
        for op in self.body.ops:
            operands = [mapping.get(value, value) for value in op.operands]
            if op in of:
                group = groups.pop(of[op].alike(self.roots), ())
                for n in of[op].starts:
                    operands[n] = self.copied(op.operands[n], operands[n])
                starts = [operands[n] for n in of[op].starts]
                for first in range(0, len(group), TOGETHER):
                    self.keep(group[first : first + TOGETHER], starts)
            new = op.with_operands(operands, [rename(body, mapping) for body in op.regions])
            if new is not op:
                mapping.update(zip(op.results, new.results, strict=True))
            self.ops.append(new)
        results = [*self.body.results, *self.results]
        results = [mapping.get(value, value) for value in results]
        return Region(self.body.arguments, self.ops, results), self.kept

    def result(self, value: Value) -> int:
        """The number of a result of the body that this value is from now on."""
        if value not in self.results:
            self.results.append(value)
        return len(self.body.results) + self.results.index(value)

    def copied(self, old: Value, value: Value) -> Value:
        """A copy of where a window begins, which the update reads: so it is there before anything
        is overwritten."""
        key = self.roots.get(old, old), old.type
        if key not in self.copies:
            own = arguments([value.type])
            self.copies[key] = self.fusion([value], Region(own, (), own), ()).result
        return self.copies[key]

    def keep(self, group: Sequence[_Window], starts: Sequence[Value]) -> None:
        """One kernel that copies the rows of these windows, which begin at the same places."""
        states = [self.body.arguments[one.argument] for one in group]
        own = arguments([value.type for value in (*states, *starts)])
        b = Builder(check=False)
        rows = [_read(b, group[0], value, own[len(group) :]) for value in own[: len(group)]]
        rows.append(b.constant(1, TensorType(rows[0].dims, UI8)))
        origin = union_origins(*(one.update.origin for one in group))
        made = self.fusion([*states, *starts], Region(own, b.ops, rows), origin)
        saved = self.result(made.results[-1])
        begins = tuple(map(self.result, starts))
        for one, value in zip(group, made.results, strict=False):
            number = 1 + self.result(value)
            self.kept.append(Overwritten(one.argument, number, saved, begins, one.dims, one.base))

    def fusion(self, operands: Sequence[Value], region: Region, origin: tuple[Origin, ...]) -> Op:
        types = region.result_types
        made = make_op("fusion", operands, {"kind": "loop"}, (region,), types, origin, check=False)
        self.ops.append(made)
        return made


def _read(b: Builder, window: _Window, state: Value, starts: Sequence[Value]) -> Value:
    """The rows of a state that an update writes."""
    update = window.update
    if update.name == "dynamic_update_slice":
        values = dict(zip(window.dims, starts, strict=True))
        kinds = [start.tensor for start in update.operands[2:]]
        places = [
            values[d] if d in values else b.constant(window.base[d], kind)
            for d, kind in enumerate(kinds)
        ]
        return b("dynamic_slice", state, *places, slice_sizes=update.operands[1].dims)
    (indices,), sizes = starts, [1] * state.rank
    moved = (d for d in range(state.rank) if d not in update.inserted_window_dims)
    for d, place in zip(moved, update.update_window_dims, strict=True):
        sizes[d] = update.operands[2].dims[place]
    batches = indices.rank - (update.index_vector_dim < indices.rank)
    return b(
        "gather", state, indices, offset_dims=tuple(range(batches, batches + state.rank)),
        collapsed_slice_dims=(), start_index_map=window.dims, slice_sizes=tuple(sizes),
        index_vector_dim=update.index_vector_dim,
    )  # fmt: skip

"""stacks: kernels read and write the rows of stacks where they lie.

A loop that stacks what it computes carries the stack, and ends each turn with a
`dynamic_update_slice` that copies the row into it. Where nothing else needs the stack as it was,
and a row is a run of its memory, the fusion that makes the row writes it there, or one that has it
at hand: the update becomes a root of that fusion (optimizer/windows.py). In the same way a
contraction reads a row of a stack that stays as it is: the `dynamic_slice` goes into its fusion, in
place of a copy of the row.

A stack that is donated to the program is updated on its own: whether a caller gives it up, and the
rest of it need not be copied, is known at the call.

It comes after everything that makes one kernel of several: what happens to a value in a register
or in a tile is worth more than the place of its copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import make_op
from ...hlo.graph import Module, Op, Region, Value, arguments, constant_of, union_origins
from ...hlo.regions import map_bodies, prune, rename
from ...hlo.verify import FUSED, Level
from ..windows import SLICE, UPDATE, contiguous, unshaped


@dataclass(frozen=True)
class Stacks:
    """FUSED -> FUSED. kinds: of the fusions that the target's kernels compute on windows."""

    kinds: frozenset[str]
    name: ClassVar[str] = "stacks"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(self.region)

    def region(self, region: Region, carries: bool = False) -> Region:
        """The region with its rows in place, bodies of control flow first. carries: its results
        replace its arguments, as in the body of a loop."""

        def change(op: Op, body: Region) -> Region:
            return self.region(body, op.name == "while" and body.result_types == op.result_types)

        region = map_bodies(region, change)
        if "contract" in self.kinds:
            region = _read_in_place(region)
        return _write_in_place(region, self.kinds) if carries else region


# Reading.


def _read_in_place(region: Region) -> Region:
    """The region, whose contractions read rows of stacks from outside of it where they lie."""
    inside = {value for op in region.ops for value in op.results} | set(region.arguments)
    rows = {
        op.result: op
        for op in region.ops
        if _is_row(op)
        and op.operands[0] not in inside
        and all(_contracts(user) for user, _ in region.uses.get(op.result, ((None, 0),)))
        and not _replaceable(op.operands[0], region)
    }
    new = {
        op: _reading(op, rows)
        for op in region.ops
        if _contracts(op) and not rows.keys().isdisjoint(op.operands)
    }
    if not new:
        return region
    results: dict[Value, Value] = {}
    for op, made in new.items():
        results.update(zip(op.results, made.results, strict=True))
    return _rebuilt(region, new, set(rows.values()), results)


def _contracts(op: Op | None) -> bool:
    return op is not None and op.name == "fusion" and op.kind == "contract"


def _is_row(op: Op) -> bool:
    """Whether a fusion is a copy of a run of its first operand, and of nothing else."""
    if op.name != "fusion" or op.kind != "loop" or len(op.results) != 1 or not op.operands:
        return False
    region = op.regions[0]
    row = unshaped(region.results[0])
    if row.op is None or row.op.name != SLICE:
        return False
    stack, *starts = row.op.operands
    return (
        stack is region.arguments[0]
        and list(region.uses[stack]) == [(row.op, 0)]
        and all(start in region.arguments or constant_of(start) is not None for start in starts)
        and contiguous(stack.dims, row.dims)
    )


def _replaceable(value: Value, region: Region) -> bool:
    """Whether an operation of the region might write where the value lies, before it is read."""
    users = [user for user, _ in region.uses[value] if user is not None]
    return any(result.type is value.type for user in users for result in user.results)


def _reading(op: Op, rows: Mapping[Value, Op]) -> Op:
    """The fusion with the operations that read those of its operands inside it."""
    groups = [rows[v].operands if v in rows else (v,) for v in op.operands]
    operands = [value for group in groups for value in group]
    own = arguments([value.type for value in operands])
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    first = 0
    for argument, value, group in zip(op.regions[0].arguments, op.operands, groups, strict=True):
        given = own[first : first + len(group)]
        first += len(group)
        if value in rows:
            row = rows[value].regions[0]
            mapping.update(zip(row.arguments, given, strict=True))
            ops += _copied(row.ops, mapping)
            mapping[argument] = mapping[row.results[0]]
        else:
            mapping[argument] = given[0]
    ops += _copied(op.regions[0].ops, mapping)
    body = Region(own, ops, [mapping[value] for value in op.regions[0].results])
    origin = union_origins(op.origin, *(rows[v].origin for v in op.operands if v in rows))
    return Op(op.definition, operands, op.attributes, (body,), op.result_types, origin)


# Writing.


def _write_in_place(region: Region, kinds: frozenset[str]) -> Region:
    """The body of a loop, whose fusions write rows of stacks in place of their updates."""
    found: dict[Op, list[Op]] = {}
    for number in range(len(region.results)):
        update = _row_update(region, number)
        if update is None:
            continue
        for writer in _writers(update, region, kinds):
            if _come_before(_starts(update), writer, region, found):
                found.setdefault(writer, []).append(update)
                break
    if not found:
        return region
    updates = {update for group in found.values() for update in group}
    new_ops: dict[Op, Op] = {}
    results: dict[Value, Value] = {}
    for writer, group in found.items():
        kept = [value for value in writer.results if not _only_for(value, updates, region)]
        made = new_ops[writer] = _writing(writer, kept, group)
        old_results = [*kept, *(update.result for update in group)]
        results.update(zip(old_results, made.results, strict=True))
    return _rebuilt(region, new_ops, updates, results)


def _row_update(region: Region, number: int) -> Op | None:
    """The operation that replaces a row of a carried value that nothing else needs."""
    argument, result = region.arguments[number], region.results[number]
    op = result.op
    if op is None or op.name != UPDATE or op not in region.ops:
        return None
    alone = list(region.uses.get(argument, ())) == [(op, 0)]
    returned = list(region.uses[result]) == [(None, number)]
    run = contiguous(argument.dims, op.operands[1].dims)
    return op if alone and returned and run else None


def _writers(update: Op, region: Region, kinds: frozenset[str]) -> Iterator[Op]:
    """The fusions that could write the row: the one that makes it, or loops that read every element
    of it for the same one of theirs."""
    row = unshaped(update.operands[1])
    op = row.op
    if op is not None and op in region.ops and op.name == "fusion" and op.kind in kinds:
        yield op
        return
    for user, number in region.uses.get(row, ()):
        if user is None or user.name != "fusion" or user.kind != "loop" or "loop" not in kinds:
            continue
        body = user.regions[0]
        argument = body.arguments[number]
        if user.results[0].dims == row.dims and any(
            reader is not None and reader.definition.pattern == "elementwise"
            for reader, _ in body.uses.get(argument, ())
        ):
            yield user


def _starts(update: Op) -> list[Value]:
    """The indices of an update that are no constants."""
    return [start for start in update.operands[2:] if constant_of(start) is None]


def _come_before(
    starts: Sequence[Value], writer: Op, region: Region, found: Mapping[Op, Sequence[Op]]
) -> bool:
    """Whether values can be there before `writer` runs: they need nothing of it, no control flow
    and no effect. found: updates that their writers will wait for."""
    members = set(region.ops)
    stack, seen = [*starts], set()
    while stack:
        op = stack.pop().op
        if op is None or op in seen or op not in members:
            continue
        if op is writer or op.definition.effects or op.definition.flow:
            return False
        seen.add(op)
        stack += op.operands
        for update in found.get(op, ()):
            stack += _starts(update)
    return True


def _only_for(value: Value, updates: set[Op], region: Region) -> bool:
    """Whether a value serves nothing but those updates, under its name or reshaped."""
    return all(
        user is not None
        and (
            (user in updates and number == 1)
            or (user.name == "reshape" and _only_for(user.result, updates, region))
        )
        for user, number in region.uses.get(value, ())
    )


def _writing(writer: Op, kept: Sequence[Value], updates: Sequence[Op]) -> Op:
    """The fusion with updates of stacks as roots, behind those results that are kept."""
    operands = list(writer.operands)
    for update in updates:
        operands += [update.operands[0], *_starts(update)]
    own = arguments([value.type for value in operands])
    old = writer.regions[0]
    mapping = dict(zip(old.arguments, own, strict=False))
    ops = _copied(old.ops, mapping)
    known = dict(zip(writer.operands, own, strict=False))
    known |= {value: mapping[old.results[value.index]] for value in writer.results}
    roots = [known[value] for value in kept]
    place = len(writer.operands)
    for update in updates:
        _, row, *starts = update.operands
        inner = [own[place]]
        value = known[unshaped(row)]
        if value.type is not row.type:
            ops.append(make_op("reshape", [value], result_types=(row.type,), check=False))
            value = ops[-1].result
        inner.append(value)
        place += 1
        for start in starts:
            if start.op is not None and constant_of(start) is not None:
                ops += _copied((start.op,), mapping)
                inner.append(mapping[start])
            else:
                inner.append(own[place])
                place += 1
        ops.append(
            Op(update.definition, inner, update.attributes, (), update.result_types, update.origin)
        )
        roots.append(ops[-1].result)
    body = Region(own, ops, roots)
    origin = union_origins(writer.origin, *(update.origin for update in updates))
    return Op(writer.definition, operands, writer.attributes, (body,), body.result_types, origin)


# Regions.


def _copied(ops: Sequence[Op], mapping: dict[Value, Value]) -> list[Op]:
    """Copies of a fusion's operations on what their operands are mapped to; `mapping` gets their
    results."""
    made = []
    for op in ops:
        operands = [mapping[value] for value in op.operands]
        made.append(
            Op(op.definition, operands, op.attributes, op.regions, op.result_types, op.origin)
        )
        mapping.update(zip(op.results, made[-1].results, strict=True))
    return made


def _rebuilt(
    region: Region, new: Mapping[Op, Op], dropped: set[Op], results: Mapping[Value, Value]
) -> Region:
    """The region with some operations replaced and others left out; what needs more than before
    comes after that. results: the values that the new operations give in place of old ones."""
    source = {value: op for op in region.ops for value in op.results}
    makers = {value: op for op, made in new.items() for value in made.results}
    source.update({old: makers[value] for old, value in results.items()})
    placed: dict[Op, None] = {}
    for op in region.ops:
        stack = [] if op in dropped else [op]
        while stack:
            wanted = new.get(stack[-1], stack[-1])
            values = [*wanted.operands, *(v for body in wanted.regions for v in body.captures())]
            missing = [source[v] for v in values if v in source and source[v] not in placed]
            if missing:
                stack += missing[:1]
            else:
                placed[stack.pop()] = None
    mapping: dict[Value, Value] = {}
    replaced: dict[Value, list[Value]] = {}
    for old, value in results.items():
        replaced.setdefault(value, []).append(old)
    ops: list[Op] = []
    for op in placed:
        wanted = new.get(op, op)
        nested = [rename(body, mapping) for body in wanted.regions]
        copy = wanted.with_operands([mapping.get(v, v) for v in wanted.operands], nested)
        ops.append(copy)
        for value, result in zip(wanted.results, copy.results, strict=True):
            mapping.update(dict.fromkeys(replaced.get(value, (value,)), result))
    return prune(Region(region.arguments, ops, [mapping.get(v, v) for v in region.results]))

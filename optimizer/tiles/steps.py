"""A tile function's body as steps: nests, accesses of memory, scalars, control flow.

Runs of ordinary operations on tiles are fused as programs are (`../passes/fuse.py`); each
fusion is a *nest*, a small kernel on scratch or on windows of memory. Scalars that offsets, bounds
and branches depend on are computed by the driver itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...hlo.build import Builder, make_op
from ...hlo.graph import Op, Region, Value, arguments, union_origins
from ...hlo.regions import extract, inline
from ...hlo.tiling import MEMORY_OPS
from ..passes.fuse import fuse_region


class NestEmitters(NamedTuple):
    """What a backend has code for. scalar: operations on scalars in registers. columns: regions
    around reductions over the rows of one tile, in few passes."""

    scalar: Callable[[Op], bool]
    columns: Callable[[Region], bool]


@dataclass(eq=False)
class BodyStep:
    """One operation. `inputs` and `outputs` are the body's values, whatever the operation's own
    operands and results are; `blocks` are the bodies of control flow."""

    kind: str  # "nest", "alias", "scalar", "load", "store" or "control"
    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    blocks: tuple[BodyBlock, ...] = ()

    def uses(self) -> Iterator[Value]:
        """Values used here or in the blocks inside."""
        yield from self.inputs
        for block in self.blocks:
            yield from block.uses()


@dataclass(eq=False)
class BodyBlock:
    """The steps of one region in order. `last` are the values that no later step uses, by the
    number of the step that uses them last. `whole`: the steps where the region's masks hold in
    whole tiles; itself where there are none."""

    region: Region
    steps: list[BodyStep]
    last: dict[int, list[Value]] = field(default_factory=dict)
    masked: BodyBlock | None = None

    @property
    def whole(self) -> BodyBlock:
        return self.masked or self

    def uses(self) -> Iterator[Value]:
        for step in self.steps:
            yield from step.uses()
        yield from self.region.results

    def walk(self) -> Iterator[BodyStep]:
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.walk()


class Cutter:
    """Cuts the body of a kernel_call. `native` are the scalars that the driver computes. masks: by
    region, comparisons that may be known to hold once it begins; idle: those that always do."""

    def __init__(
        self,
        kernel: Op,
        able: NestEmitters,
        masks: Mapping[Region, Sequence[Op]] | None = None,
        idle: Collection[Op] = (),
    ) -> None:
        self.able = able
        self.masks, self.idle = masks or {}, idle
        self.body = kernel.regions[0]
        self.results = frozenset(self.body.arguments[len(kernel.operands) :])
        self.owners = {region: op for op in (kernel, *self.body.walk()) for region in op.regions}
        self.native: set[Value] = set()
        self._mark()

    def cut(self) -> BodyBlock:
        return self._versions(self.body, frozenset(self.idle))

    def _versions(self, region: Region, holding: frozenset[Op]) -> BodyBlock:
        """The block of a region where these masks hold; and where all of its own do, too."""
        block = self._block(region, holding)
        masks = self.masks.get(region)
        if masks:
            block.masked = self._block(region, holding.union(masks))
        return block

    # Scalars.

    def _mark(self) -> None:
        for op in self.body.walk():
            wanted: Sequence[Value] = ()
            if op.name in MEMORY_OPS:
                wanted = [value for value in op.offsets if value.rank == 0]
            elif op.name == "tile_for":
                wanted = op.operands[:2]
            elif op.definition.flow == "branch":
                wanted = op.operands
            elif op.name == "while":
                wanted = op.regions[0].results
            for value in wanted:
                self._need(value)

    def _need(self, start: Value) -> None:
        """The driver computes this scalar, and those that it comes from."""
        pending = [start]
        while pending:
            value = pending.pop()
            if value in self.native or value.rank:
                continue
            op = value.op
            if op is None:
                pending += self._carried(value)
            elif op.name == "tile_for":
                pending += [op.inputs[value.index], op.regions[0].results[value.index]]
                pending.append(op.regions[0].arguments[value.index + 1])
            elif op.name == "while":
                pending += [op.operands[value.index], op.regions[1].results[value.index]]
                pending += [region.arguments[value.index] for region in op.regions]
            elif op.definition.flow == "branch":
                pending += [region.results[value.index] for region in op.regions]
            elif self._scalar(op):
                pending += op.operands
            else:
                continue
            self.native.add(value)

    def _scalar(self, op: Op) -> bool:
        """Whether an operation on scalars has code of one register."""
        if len(op.results) != 1 or any(
            v.rank or v.element.is_complex for v in (*op.operands, op.result)
        ):
            return False
        if op.definition.uniform or op.name in ("constant", "reshape"):
            return True
        return not op.regions and bool(op.operands) and self.able.scalar(op)

    def _carried(self, value: Value) -> list[Value]:
        """What an argument of a loop's body stands for."""
        region = value.owner
        assert isinstance(region, Region)
        op = self.owners[region]
        if op.name == "tile_for":
            return [op.results[value.index - 1]] if value.index else []
        return [op.results[value.index]] if op.name == "while" else []

    # Steps.

    def _block(self, region: Region, holding: frozenset[Op]) -> BodyBlock:
        """Stores come as late as possible, so that what is computed between them is fused."""
        steps: list[BodyStep] = []
        pending = [
            value.op
            for value in region.captures()
            if value.op is not None and value.op.name == "constant" and value not in self.native
        ]
        stores: list[BodyStep] = []
        made: set[Value] = {op.result for op in pending}

        def flush() -> None:
            if pending:
                steps.extend(self._nests(region, pending, holding))
                pending.clear()
                made.clear()

        for op in region.ops:
            kind = self._kind(op)
            if kind == "tile":
                pending.append(op)
                made.update(op.results)
                continue
            inner = op.regions if kind == "control" else ()
            blocks = tuple(self._versions(body, holding) for body in inner)
            step = BodyStep(kind, op, op.operands, op.results, blocks)
            if kind == "store":
                stores.append(step)
                continue
            reads = kind == "load" and op.operands[0] in self.results
            if kind == "control" or reads or any(value in made for value in step.uses()):
                flush()
            if stores and (reads or any(inner.kind != "nest" for inner in _inner(step))):
                steps += stores
                stores.clear()
            steps.append(step)
        flush()
        block = BodyBlock(region, [*steps, *stores])
        _mark_last(block)
        return block

    def _kind(self, op: Op) -> str:
        if op.definition.flow or op.name == "tile_for":
            return "control"
        if op.name in MEMORY_OPS:
            return "store" if op.definition.stores else "load"
        plain = op.definition.uniform or self._native_op(op)
        return "scalar" if plain else "tile"

    def _makes_again(self, user: Op | None, number: int) -> bool:
        """Whether a use of a constant is served by a copy of its operation."""
        return user is not None and (number < 0 or self._kind(user) == "tile")

    def _native_op(self, op: Op) -> bool:
        return bool(op.results) and op.results[0] in self.native

    def _nests(self, region: Region, ops: Sequence[Op], holding: frozenset[Op]) -> list[BodyStep]:
        """Fused operations between two boundaries. Constants are made again wherever they are
        used, so none is read from scratch because it stands outside of a loop."""
        own = set(ops)
        given = {value.op: None for op in ops for value in op.operands}
        again = [op for op in given if op is not None and op.name == "constant" and op not in own]
        ops = [*again, *ops]
        defined = {result for op in ops for result in op.results}
        inputs = list(dict.fromkeys(v for op in ops for v in _all_operands(op) if v not in defined))
        roots = [
            result
            for op in ops
            if op in own
            for result in op.results
            if any(
                user not in own and not (op.name == "constant" and self._makes_again(user, number))
                for user, number in region.uses.get(result, ())
            )
        ]
        computed: Sequence[Value] = roots
        if holding:
            ops, computed = unmasked(ops, roots, holding)
        fused = fuse_region(extract(ops, inputs, computed), strided_kernels=True)
        names = dict(zip(fused.arguments, inputs, strict=True))
        repeated: list[tuple[Value, Value]] = []
        for root, result in zip(roots, fused.results, strict=True):
            if result in names:
                repeated.append((root, result))
            else:
                names[result] = root
        steps = []
        for op in fused.ops:
            kind = "alias" if op.name == "reshape" else "nest"
            sources = tuple(names.get(value, value) for value in op.operands)
            found = tuple(names.get(value, value) for value in op.results)
            steps.append(BodyStep(kind, op, sources, found))
        for root, result in repeated:
            source = names[result]
            op = source.op or root.op
            assert op is not None
            steps.append(BodyStep("alias", op, (source,), (root,)))
        return joined_columns(steps, set(roots), self.able.columns)


def unmasked(
    ops: Sequence[Op], roots: Sequence[Value], holding: frozenset[Op]
) -> tuple[list[Op], list[Value]]:
    """Operations without the choices that masks decide which hold everywhere, as far as the roots
    need them; and what stands for the roots."""
    true = {op.result for op in holding}
    mapping: dict[Value, Value] = {}
    changed: list[Op] = []
    for op in ops:
        holds = [value in true for value in op.operands]
        if op.name == "select" and holds[0]:
            mapping[op.result] = mapping.get(op.operands[1], op.operands[1])
        elif op.name == "and" and any(holds):
            other = op.operands[holds.index(True) ^ 1]
            if all(holds):
                true.add(op.result)
            mapping[op.result] = mapping.get(other, other)
        else:
            new = op.with_operands([mapping.get(value, value) for value in op.operands])
            mapping.update(zip(op.results, new.results, strict=True))
            changed.append(new)
    computed = [mapping.get(root, root) for root in roots]
    needed = set(computed)
    kept: list[Op] = []
    for op in reversed(changed):
        if not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(_all_operands(op))
    return kept[::-1], computed


def joined_columns(
    steps: list[BodyStep], needed: set[Value], fits: Callable[[Region], bool]
) -> list[BodyStep]:
    """The steps with neighbouring nests over the columns of one tile made one. `needed` are the
    values that are used behind these steps."""
    found: list[BodyStep] = []
    number = 0
    while number < len(steps):
        best, count = steps[number], 1
        for end in range(number + 2, len(steps) + 1):
            if not _loop(steps[end - 1]) or not _loop(steps[number]):
                break
            later = {value for step in steps[end:] for value in step.inputs}
            candidate = _joined(steps[number:end], needed | later)
            if fits(candidate.op.regions[0]):
                best, count = candidate, end - number
        found.append(best)
        number += count
    return found


def _loop(step: BodyStep) -> bool:
    return step.kind == "nest" and step.op.attributes.get("kind") in ("loop", "reduce", "rows")


def _joined(steps: Sequence[BodyStep], needed: set[Value]) -> BodyStep:
    """One nest that does what several do one after the other."""
    made = [value for step in steps for value in step.outputs]
    inputs = list(dict.fromkeys(v for step in steps for v in step.inputs if v not in made))
    body = Builder()
    values = dict(zip(inputs, body.arguments([v.type for v in inputs]), strict=True))
    for step in steps:
        results = inline(body, step.op.regions[0], [values[value] for value in step.inputs])
        values.update(zip(step.outputs, results, strict=True))
    outputs = [value for value in made if value in needed]
    region = body.region([values[value] for value in outputs])
    origin = union_origins(*(step.op.origin for step in steps))
    op = make_op(
        "fusion", arguments([v.type for v in inputs]), {"kind": "columns"}, (region,),
        region.result_types, origin, check=False,
    )  # fmt: skip
    return BodyStep("nest", op, tuple(inputs), tuple(outputs))


def _inner(step: BodyStep) -> Iterator[BodyStep]:
    """Accesses of memory inside control flow."""
    for block in step.blocks:
        for inner in block.walk():
            if inner.kind in ("load", "store"):
                yield inner


def _all_operands(op: Op) -> list[Value]:
    captured = [value for region in op.regions for value in region.captures()]
    return [*op.operands, *captured]


def _mark_last(block: BodyBlock) -> None:
    """Fills `last`: a value lives as long as those that are other names of it."""
    source: dict[Value, Value] = {}
    final: dict[Value, int] = {}

    def root(value: Value) -> Value:
        while value in source:
            value = source[value]
        return value

    for number, step in enumerate(block.steps):
        if step.kind == "alias":
            source[step.outputs[0]] = step.inputs[0]
        for value in (*step.uses(), *step.outputs):
            final[root(value)] = number
    for value in block.region.results:
        final[root(value)] = len(block.steps)
    for value, number in final.items():
        block.last.setdefault(number, []).append(value)

"""loops: fewer turns, less inside them, fewer carried values; branches that cost nothing are chosen
from, and what all branches compute is computed once.

Bodies come before what holds them. Rules know branches that are known, loops that never begin, and
carried values that never change or that nothing needs (`optimizer/rules/control.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...hlo.build import Builder, make_op
from ...hlo.graph import Dense, Module, Op, Region, Value, arguments, constant_of
from ...hlo.regions import rewritten
from ...hlo.types import I1, TensorType, Type
from ...hlo.verify import INLINED, Level
from ..counters import counters, proven, ranges, turns
from ..keys import Keys
from ..licence import BITWISE, REASSOCIATES, Ledger, Licence
from ..projections import before, projections, within
from ..rewrite import copied
from ..stacks import CHEAPLY, formula, repeated, rows

CHEAP = frozenset({"constant", "broadcast_in_dim", "reshape"})  # beside elementwise operations


@dataclass(frozen=True)
class Loops:
    """INLINED -> INLINED: no loop of one turn, none of few turns and operations, no carried value
    twice.

    unrolled_turns, unrolled_operations: a loop is unrolled up to so many turns, if it becomes no
        more operations than that.
    kept_bytes: how many bytes a value may have that is computed before a loop and kept over it.
    projected_bytes: how many a product of a sequence may have that replaces those of its parts.
    chosen_operations, chosen_elements: branches of no more operations and elements all run.
    """

    name: ClassVar[str] = "loops"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    unrolled_turns: int = 8
    unrolled_operations: int = 96
    kept_bytes: int = 4096
    projected_bytes: int = 1 << 23
    chosen_operations: int = 8
    chosen_elements: int = 1024
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not any(op.definition.flow for op in module.body.ops):
            return module
        return module.with_main(_Loops(self).region(module.body))


Changed = tuple[Op | None, Sequence[Value]]  # what is left of it, and what its results became
Change = Callable[[Op, list[Op]], Changed | None]


class _Loops:
    def __init__(self, options: Loops) -> None:
        self.options = options
        self.keys = Keys()
        self.values: dict[Value, Value] = {}  # what became of a value
        self.after: list[Op] = []  # what follows the loop that is placed
        loop: tuple[Change, ...] = (
            self.same, self.known, self.sink, self.hoist, self.project, self.unroll, self.derive,
        )  # fmt: skip
        branches: tuple[Change, ...] = (self.common, self.choose)
        self.changes = {"while": loop, "if": branches, "case": branches}

    def region(self, region: Region) -> Region:
        """The region after all changes, those inside it first; itself if there are none."""
        ops: list[Op] = []
        for op in region.ops:
            nested = op.regions
            if op.definition.flow:
                nested = tuple(self.region(body) for body in nested)
            self.place(op.with_operands(self.renamed(op.operands), nested), op.results, ops)
        results = self.renamed(region.results)
        if ops == list(region.ops) and results == list(region.results):
            return region
        return Region(region.arguments, ops, results)

    def place(self, op: Op, old: Sequence[Value], ops: list[Op]) -> None:
        """Append an operation, or what it becomes, and note what the old results became."""
        results: Sequence[Value] = op.results
        left: Op | None = op
        for change in self.changes.get(op.name, ()):
            changed = None if left is None else change(left, ops)
            if left is not None and changed is not None:
                became = dict(zip(left.results, changed[1], strict=True))
                results = [became.get(value, value) for value in results]
                left = changed[0]
        if left is not None:
            ops.append(left)
        ops += self.after
        self.after.clear()
        self.values.update((a, b) for a, b in zip(old, results, strict=True) if a is not b)

    def renamed(self, values: Sequence[Value]) -> list[Value]:
        return [self.values.get(value, value) for value in values]

    def record(self, what: str, op: Op, needs: Licence = BITWISE) -> None:
        self.options.ledger.record(f"loops-{what}", needs, op)

    def pure(self, regions: Sequence[Region]) -> bool:
        return not any(self.keys.has_effects(op) for region in regions for op in region.ops)

    # Loops.

    def same(self, op: Op, ops: list[Op]) -> Changed | None:
        """Without carried values that always equal another one, or a constant."""
        body = op.regions[1]
        starts = [self.number(value) for value in op.operands]
        fixed = {
            index for index, value in enumerate(body.results)
            if constant_of(value) is not None and self.number(value) == starts[index]
        }  # fmt: skip
        classes = _classes(starts)
        while len(set(classes)) < len(classes):
            stands: dict[Value, Value] = {
                argument: body.arguments[number]
                for argument, number in zip(body.arguments, classes, strict=True)
            }
            self.merge(body, stands, self.constants(body))
            results = (stands.get(value, value) for value in body.results)
            before, classes = classes, _classes(list(zip(classes, results, strict=True)))
            if before == classes:
                break
        kept = [i for i, first in enumerate(classes) if i == first and i not in fixed]
        if len(kept) == len(classes) or not kept:
            return None
        self.record("same", op)

        def stand(index: int, fresh: Mapping[int, Value]) -> Value:
            return op.operands[index] if index in fixed else fresh[classes[index]]

        made = _without(op, kept, stand)
        became = dict(zip(kept, made.results, strict=True))
        return made, [
            op.operands[index] if index in fixed else became[classes[index]]
            for index in range(len(classes))
        ]

    def number(self, value: Value) -> Any:
        """Equal for the same value, and for equal constants."""
        owner = value.op
        if owner is None or constant_of(value) is None:
            return value
        return self.keys.of(owner, ())

    def constants(self, region: Region) -> dict[Any, tuple[Value, ...]]:
        """Those of outside that a region uses, by what equal ones inside it have as well."""
        outside = (value for value in region.captures() if constant_of(value) is not None)
        return {self.number(value): (value,) for value in outside}

    def merge(
        self, region: Region, stands: dict[Value, Value], table: dict[Any, tuple[Value, ...]]
    ) -> None:
        """Note in `stands` which value, the first of its kind in `table`, each one equals."""
        for op in region.ops:
            key = self.keys.of(op, tuple(stands.get(value, value) for value in op.operands))
            if key is not None:
                stands.update(zip(op.results, table.setdefault(key, op.results), strict=True))

    def known(self, op: Op, ops: list[Op]) -> Changed | None:
        """Without comparisons, clamps and remainders that the counter's range decides."""
        found = counters(op)
        facts = proven(op.regions[1], ranges(op, found, turns(op, found)))
        if not facts.truths and not facts.equal:
            return None

        def change(b: Builder, inner: Op, mapping: dict[Value, Value]) -> bool:
            value = inner.results[0] if inner.results else None
            if value is not None and value in facts.truths:
                mapping[value] = b.constant(facts.truths[value], value.tensor)
            elif value is not None and value in facts.equal:
                mapping[value] = mapping.get(facts.equal[value], facts.equal[value])
            else:
                return False
            self.record("range", inner)
            return True

        body = rewritten(op.regions[1], {}, change)
        made = op.with_operands(op.operands, (op.regions[0], body))
        return made, made.results

    def sink(self, op: Op, ops: list[Op]) -> Changed | None:
        """With cheap formulas of a stack computed for the rows that are read: the stack that they
        would give needs no memory."""
        body = op.regions[1]
        uses = body.uses
        found = {
            value: made for value in body.captures()
            if all(user is not None and user.name == "dynamic_slice" and number == 0
                   for user, number in uses[value])
            and (made := formula(value, lambda leaf: leaf.op is None or leaf.op.name not in CHEAPLY,
                                 lambda _: True)) is not None
            and made[0].dims == value.dims
        }  # fmt: skip
        if not found:
            return None

        def change(b: Builder, inner: Op, mapping: dict[Value, Value]) -> bool:
            if not inner.operands or inner.operands[0] not in found:
                return False
            leaf, steps = found[inner.operands[0]]
            starts = [mapping.get(value, value) for value in inner.operands[1:]]
            sizes = inner.slice_sizes
            with b.at(inner.origin):
                row = b("dynamic_slice", leaf, *starts, slice_sizes=sizes)
            mapping[inner.result] = repeated(steps, leaf, row, tuple(sizes), b.ops)
            self.record("sink", inner)
            return True

        made = op.with_operands(op.operands, (op.regions[0], rewritten(body, {}, change)))
        return made, made.results

    def derive(self, op: Op, ops: list[Op]) -> Changed | None:
        """Without stacks that are a cheap formula of another one, which follows the loop."""
        found = counters(op)
        body = op.regions[1]
        written = rows(op, found, turns(op, found))
        of: dict[Value, int] = {}
        for number, row in written.items():
            of.setdefault(row, number)
        inside = set(body.ops)
        derived = {
            number: made for number, row in written.items()
            if of[row] == number
            and (made := formula(row, of.__contains__, inside.__contains__)) is not None
            and made[0].dims == row.dims
        }  # fmt: skip
        if not derived:
            return None
        self.record("derive", op)
        kept = [index for index in range(len(op.operands)) if index not in derived]
        updates = {value.op for n, value in enumerate(body.results) if n in derived}
        made = _without(
            op, kept, lambda index, fresh: fresh.get(index, op.operands[index]),
            [update for update in updates if update is not None],
        )  # fmt: skip
        results = dict(zip(kept, made.results, strict=True))
        position = {value: at for at, inner in enumerate(body.ops) for value in inner.results}
        for number in sorted(derived, key=lambda number: position[written[number]]):
            leaf, steps = derived[number]
            stack = results[of[leaf]]
            results[number] = repeated(steps, leaf, stack, op.results[number].dims, self.after)
        return made, [results[index] for index in range(len(op.operands))]

    def hoist(self, op: Op, ops: list[Op]) -> Changed | None:
        """Without what is the same in every turn, where keeping it needs few bytes."""
        body = op.regions[1]
        varying = set(body.arguments)
        fixed: list[Op] = []
        for inner in body.ops:
            pure = self.keys.of(inner, inner.operands) is not None
            if inner.definition.flow or not pure or not varying.isdisjoint(inner.operands):
                varying.update(inner.results)
            else:
                fixed.append(inner)
        moved: set[Op] = set()
        needed: dict[Op, None] = {}
        wanted: set[Value] = set()
        for inner in reversed(fixed):
            if (
                inner.definition.pattern != "source"
                and _bytes(inner.results) <= self.options.kept_bytes
            ):
                moved.add(inner)
            if inner in moved or any(value in wanted for value in inner.results):
                needed[inner] = None
                wanted.update(inner.operands)
        if not moved:
            return None
        values: dict[Value, Value] = {}
        for inner in reversed(needed):
            if inner in moved:
                self.record("hoist", inner)
            _append(inner, values, ops)

        def change(b: Builder, inner: Op, mapping: dict[Value, Value]) -> bool:
            if inner in moved:
                mapping.update((value, values[value]) for value in inner.results)
            return inner in moved

        made = op.with_operands(op.operands, (op.regions[0], rewritten(body, {}, change)))
        return made, made.results

    def project(self, op: Op, ops: list[Op]) -> Changed | None:
        """With products of parts of a sequence taken of the whole sequence, before the loop."""
        count, allowed = turns(op, counters(op)), self.options.ledger.allowed
        if count is None or (allowed is not None and REASSOCIATES not in allowed):
            return None
        body = op.regions[1]
        varying = {*body.arguments, *(value for inner in body.ops for value in inner.results)}
        found = {
            one.product: one
            for one in projections(body.ops, varying, count, self.options.projected_bytes)
        }
        if not found:
            return None
        parts: dict[Op, Value] = {}
        for product, one in found.items():
            outside = Builder(product.origin)
            parts[product] = before(one, outside)
            ops += outside.ops

        def change(b: Builder, inner: Op, mapping: dict[Value, Value]) -> bool:
            one = found.get(inner)
            if one is not None:
                self.record("project", inner, REASSOCIATES)
                with b.at(inner.origin):
                    index = mapping.get(one.index, one.index)
                    mapping[inner.result] = within(one, parts[inner], index, b)
            return one is not None

        made = op.with_operands(op.operands, (op.regions[0], rewritten(body, {}, change)))
        return made, made.results

    def unroll(self, op: Op, ops: list[Op]) -> Changed | None:
        """The turns one after the other, if they are few and small, or one."""
        count = turns(op, counters(op))
        if count is None or not self.pure(op.regions[:1]) or count > self.options.unrolled_turns:
            return None
        if count > 1 and count * _size(op.regions[1]) > self.options.unrolled_operations:
            return None
        self.record("unroll", op)
        carried: Sequence[Value] = op.operands
        for _ in range(count):
            carried = _run(op.regions[1], carried, ops)
        return None, carried

    # Branches.

    def common(self, op: Op, ops: list[Op]) -> Changed | None:
        """Without what all branches compute, or return."""
        stands: dict[Value, Value] = {}
        table: dict[Any, tuple[Value, ...]] = {}
        for region in op.regions:
            self.merge(region, stands, table)
        made = [{stands.get(v, v) for o in region.ops for v in o.results} for region in op.regions]
        everywhere = set.intersection(*made)
        local = set.union(*made)
        first = op.regions[0]
        shared: list[Op] = []
        for inner in first.ops:
            pure = self.keys.of(inner, inner.operands) is not None
            alike = pure and not inner.definition.flow
            given = {stands.get(value, value) for value in inner.operands}
            if alike and everywhere.issuperset(inner.results) and local.isdisjoint(given):
                shared.append(inner)
                local.difference_update(inner.results)
        rows = [[stands.get(v, v) for v in region.results] for region in op.regions]
        equal = {
            index for index, column in enumerate(zip(*rows, strict=True))
            if len(set(column)) == 1 and column[0] not in local
        }  # fmt: skip
        wanted = {rows[0][index] for index in equal}
        taken: list[Op] = []
        for inner in reversed(shared):
            if inner.definition.pattern != "source" or any(
                value in wanted for value in inner.results
            ):
                taken.append(inner)
                wanted.update(stands.get(value, value) for value in inner.operands)
        if not taken and not equal:
            return None
        values: dict[Value, Value] = {}
        for inner in reversed(taken):
            given = [stands.get(value, value) for value in inner.operands]
            _append(inner.with_operands(given), values, ops)
            values.update(zip(inner.results, ops[-1].results, strict=True))
        self.record("common", op)
        gone = {old: values[new] for old, new in stands.items() if new in values}

        def change(b: Builder, inner: Op, mapping: dict[Value, Value]) -> bool:
            out = bool(inner.results) and inner.results[0] in gone
            if out:
                mapping.update((value, gone[value]) for value in inner.results)
            return out

        kept = [index for index in range(len(op.results)) if index not in equal]
        regions = []
        for region in op.regions:
            new = rewritten(region, {}, change)
            regions.append(Region(new.arguments, new.ops, [new.results[i] for i in kept]))
        same = {index: values.get(rows[0][index], rows[0][index]) for index in equal}
        if not kept and self.pure(regions):
            return None, [same[index] for index in range(len(op.results))]
        types = [op.results[index].type for index in kept]
        left = Op(op.definition, op.operands, op.attributes, regions, types, op.origin)
        became = {**same, **dict(zip(kept, left.results, strict=True))}
        return left, [became[index] for index in range(len(op.results))]

    def choose(self, op: Op, ops: list[Op]) -> Changed | None:
        """All branches, where they are cheap, and a select for each result."""
        inside = [inner for region in op.regions for inner in region.ops]
        values = [value for inner in (op, *inside) for value in inner.results]
        choices = (len(op.regions) - 1) * len(op.results)
        if (
            sum(inner.definition.pattern != "source" for inner in inside) + choices
            > self.options.chosen_operations
            or not all(self.cheap(inner) for inner in inside)
            or not all(_elements(value) <= self.options.chosen_elements for value in values)
        ):
            return None
        self.record("choose", op)
        given = [_run(region, (), ops) for region in op.regions]
        *rest, chosen = given
        for number, branch in reversed(list(enumerate(rest))):
            taken = self.taken(op, number, ops)
            chosen = [
                yes if yes is no else _made("select", (taken, yes, no), op, ops)
                for yes, no in zip(branch, chosen, strict=True)
            ]
        return None, chosen

    def cheap(self, op: Op) -> bool:
        pure = op.definition.pattern == "elementwise" or op.name in CHEAP
        return pure and not self.keys.has_effects(op)

    def taken(self, op: Op, number: int, ops: list[Op]) -> Value:
        """Whether a branch is taken; the last one is if no other is."""
        selector = op.operands[0]
        if op.name == "if":
            return selector
        index = Dense.splat(number, selector.tensor)
        constant = make_op("constant", (), {"value": index}, origin=op.origin, check=False)
        ops.append(constant)
        direction = {"comparison_direction": "EQ"}
        kind = selector.tensor.with_element(I1)
        return _made("compare", (selector, constant.result), op, ops, direction, kind)


def _without(
    op: Op,
    kept: Sequence[int],
    stand: Callable[[int, Mapping[int, Value]], Value],
    gone: Collection[Op] = (),
) -> Op:
    """The loop with these carried values alone, and without some operations of its body. `stand`
    says what takes the place of an argument, from the new arguments by their old numbers."""
    regions = []
    for region in op.regions:
        own = arguments([region.arguments[index].type for index in kept])
        fresh = dict(zip(kept, own, strict=True))
        outer = {argument: stand(index, fresh) for index, argument in enumerate(region.arguments)}
        new = rewritten(region, outer, lambda _, inner, __: inner in gone, own)
        body = region is op.regions[1]
        results = [new.results[index] for index in kept] if body else new.results
        regions.append(Region(own, new.ops, results))
    types = [op.results[index].type for index in kept]
    operands = [op.operands[index] for index in kept]
    return Op(op.definition, operands, op.attributes, regions, types, op.origin)


def _classes(keys: Sequence[Any]) -> list[int]:
    """For each key, the number of the first one that equals it."""
    first: dict[Any, int] = {}
    return [first.setdefault(key, number) for number, key in enumerate(keys)]


def _append(op: Op, values: dict[Value, Value], ops: list[Op]) -> None:
    """A copy of an operation at the end of `ops`."""
    copy = copied(op, values)
    values.update(zip(op.results, copy.results, strict=True))
    ops.append(copy)


def _run(region: Region, given: Sequence[Value], ops: list[Op]) -> list[Value]:
    """A copy of a region's operations at the end of `ops`; its results."""
    values = dict(zip(region.arguments, given, strict=True))
    for op in region.ops:
        _append(op, values, ops)
    return [values.get(value, value) for value in region.results]


def _made(
    name: str,
    operands: Sequence[Value],
    of: Op,
    ops: list[Op],
    attributes: Mapping[str, Any] | None = None,
    type: Type | None = None,
) -> Value:
    """The result of a new operation at the end of `ops`, which comes from where `of` does."""
    types = None if type is None else (type,)
    ops.append(make_op(name, operands, attributes, (), types, of.origin, check=False))
    return ops[-1].result


def _elements(value: Value) -> float:
    """How many elements a value has; none that is no tensor is small."""
    known = isinstance(value.type, TensorType) and value.type.is_static
    return value.tensor.size if known else float("inf")


def _bytes(values: Sequence[Value]) -> float:
    return sum(
        value.tensor.bytes if _elements(value) < float("inf") else float("inf") for value in values
    )


def _size(region: Region) -> int:
    """Operations that compute something, those inside control flow too."""
    count = 0
    for op in region.ops:
        inner = op.regions if op.definition.flow else ()
        count += op.definition.pattern != "source"
        count += sum(_size(body) for body in inner)
    return count

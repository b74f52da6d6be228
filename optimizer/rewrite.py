"""The rewrite engine: one forward sweep rebuilds a region and applies rules on the way.

Every operation is offered, with its already simplified operands, to the rules of its name; what
a rule builds is offered to the rules in turn, so no rule applies any more where the sweep has been.
Equal pure operations become one in the same sweep; dead ones are dropped after it. Sweeps repeat
until one changes nothing, and then the very same region comes back (`new is old`).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any

from ..hlo.build import Builder, make_op
from ..hlo.errors import CompilerBug
from ..hlo.graph import (
    EXACT,
    Dense,
    Module,
    Op,
    Origin,
    Region,
    Value,
    arguments,
    union_origins,
)
from ..hlo.interpret import Interpreter
from ..hlo.ops import find
from ..hlo.types import TensorType, Type, unsharded
from .counters import counters, ranges, turns
from .fold import Folder
from .keys import Keys
from .licence import DEFAULT_LICENCES, Ledger, Licence
from .rule import Rule

Origins = tuple[Origin, ...]

MAXIMUM_SWEEPS = 12
MAXIMUM_DEPTH = 48  # rules that build operations on which rules fire, ...: longer chains are a bug

STATIC_PATTERNS = frozenset({"elementwise", "index", "reduce", "contract"})


class Engine:
    """Applies rules to the regions of one module.

    `fold_bytes` bounds a folded constant, `fold_elements` the work of all folding together.
    `check` verifies every operation that a rule builds; without `merge` equal ones stay apart.
    `substitutes` says which operations, without operands, take the place of which ones.
    """

    def __init__(
        self,
        module: Module,
        rules: Iterable[Rule] = (),
        licences: Licence = DEFAULT_LICENCES,
        ledger: Ledger | None = None,
        fold_bytes: int = 64 << 10,
        fold_elements: int = 1 << 26,
        check: bool = False,
        merge: bool = True,
        substitutes: Mapping[Op, Op] | None = None,
    ) -> None:
        self.module = module
        self.merge = merge
        self.substitutes = substitutes or {}
        self.licences = licences
        self.ledger = Ledger() if ledger is None else ledger
        self.check = check
        self.folder = Folder(Interpreter(module), self.ledger, fold_bytes, fold_elements)
        self.keys = Keys()
        self.rules, self.general = _by_root(tuple(rules), licences)
        self.folding = bool(self.rules or self.general)
        self.values: dict[Value, Value] = {}  # what became of a value of the old region
        self.uses: dict[Value, int] = defaultdict(int)
        self.users: dict[Value, list[Sequence[tuple[Op | None, int]]]] = {}
        self.static: set[Value] = set()
        self.stable: set[Region] = set()  # regions on which a sweep changed nothing
        self.progress = False  # whether this sweep did anything after which rules may apply
        self.scalars: dict[Value, Any] = {}
        self.ranges: dict[Value, tuple[int, int]] = {}  # what `rules/ranges.py` has proven
        # Operations that stand for others since the last sweep; the next one rebuilds them.
        self.origins: dict[Op, tuple[Origin, ...]] = {}

    def simplify(self, region: Region, sweeps: int = MAXIMUM_SWEEPS) -> Region:
        """The simplified region; itself if no rule applies, nothing repeats and nothing is dead."""
        for _ in range(sweeps):
            before = region
            self.values.clear()
            self.uses.clear()
            self.users.clear()
            self.static.clear()
            self.scalars.clear()
            self.ranges.clear()
            self.progress = False
            region = self.sweep(before)
            if region is before or not self.progress:
                break
        return region

    def sweep(self, region: Region) -> Region:
        """Rebuild one region, nested ones included, once."""
        if region in self.stable:
            return region
        rewriter = Rewriter(self)
        for value, users in region.uses.items():
            new = self.values.get(value, value)
            self.uses[new] += len(users)
            self.users.setdefault(new, []).append(users)
        for op in region.ops:
            rewriter.rebuild(op)
        results = [self.values.get(value, value) for value in region.results]
        ops = self.live(rewriter.ops, results)
        if len(ops) != len(rewriter.ops):
            self.progress = True
        if _same(ops, region.ops) and _same(results, region.results):
            if not self.keys.captures(region):
                self.stable.add(region)
            return region
        return Region(region.arguments, ops, results)

    def live(self, ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
        """The operations that have effects or are used, in order."""
        wanted = set(results)
        kept = []
        for op in reversed(ops):
            if any(value in wanted for value in op.results) or self.keys.has_effects(op):
                kept.append(op)
                wanted.update(op.operands)
                for region in op.regions:
                    wanted.update(self.keys.captures(region))
        kept.reverse()
        return kept


Offered = list[tuple[Rule, bool]]


@functools.lru_cache(maxsize=16)
def _by_root(rules: tuple[Rule, ...], licences: Licence) -> tuple[dict[str, Offered], Offered]:
    """The rules of each root, then those of any root, each with the question whether its licence
    is not granted: then it may still fire where no float is involved."""
    found: dict[str, Offered] = {}
    general: Offered = []
    for rule in rules:
        limited = bool(rule.licence & ~licences)
        for root in rule.roots:
            kept = general if root == "*" else found.setdefault(root, [])
            kept.append((rule, limited))
    for kept in found.values():
        kept += general
    return found, general


def copied(op: Op, values: Mapping[Value, Value], place: Origins = ()) -> Op:
    """A fresh copy of an operation on the values that its operands became, regions copied too.

    `place`: where it comes from if the operation itself does not know its file.
    """
    operands = [values.get(value, value) for value in op.operands]
    regions = [copied_region(region, values, place) for region in op.regions]
    origin = _placed(op.origin, place) if place else op.origin
    return Op(op.definition, operands, op.attributes, regions, op.result_types, origin)


def _placed(origin: Origins, place: Origins) -> Origins:
    """The origin, or the file and line of `place` under the origin's own name."""
    if any(known.file for known in origin):
        return origin
    name = next((known.name for known in origin if known.name), "")
    return tuple(Origin(p.file, p.line, name or p.name) for p in place)


def copied_region(region: Region, values: Mapping[Value, Value], place: Origins = ()) -> Region:
    """A fresh copy of a region; `values` says what the outer values that it uses became."""
    fresh = arguments(region.argument_types)
    inner = {**values, **dict(zip(region.arguments, fresh, strict=True))}
    ops = []
    for op in region.ops:
        copy = copied(op, inner, place)
        inner.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)
    return Region(fresh, ops, [inner.get(value, value) for value in region.results])


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(map(is_, left, right))


def _kept_exact(name: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands for an exact operation is exact."""
    return {**attributes, EXACT: True} if find(name).pattern == "elementwise" else attributes


def _kind(op: Op | None, operand: int) -> str:
    if op is None or operand < 0:
        return ""
    definition = op.definition
    return "elementwise" if definition.pattern == "elementwise" else definition.name


class Rewriter(Builder):
    """The region under construction: what rules ask, and what they build with.

    `b("add", x, y)` simplifies at once: the value may come from another operation, or an older one.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(check=engine.check)
        self.engine = engine
        self.table: dict[Any, tuple[Value, ...]] = {}
        self.depth = 0
        self.rewriting: Op | None = None
        self.local = False
        self.replacing: Op | None = None  # the operation of the old region that is brought over

    # What rules ask.

    def constant_of(self, value: Value) -> Dense | None:
        """The constant that a value is, else None."""
        owner = value.owner
        if isinstance(owner, Op) and owner.definition.name == "constant":
            return owner.attributes["value"]
        return None

    def scalar(self, value: Value) -> Any:
        """The numpy scalar of which a value is the splat, else None."""
        owner = value.owner
        if not isinstance(owner, Op) or owner.definition.name != "constant":
            return None
        scalars = self.engine.scalars
        if value not in scalars:
            dense = owner.attributes["value"]
            scalars[value] = dense.splat_value if dense.is_splat else None
        return scalars[value]

    def is_static(self, value: Value) -> bool:
        """Whether weights and constants alone determine it: known when the bundle is built."""
        return value in self.engine.static

    def single_use(self, value: Value) -> bool:
        """Whether it has at most one user; may say no where it is so, never yes where it is not."""
        return self.engine.uses[value] <= 1

    def users(self, value: Value) -> set[str]:
        """Names of the operations that used it before this sweep, elementwise ones as that.

        "" stands for a result of the region or a use inside a nested one.
        """
        lists = self.engine.users.get(value, ())
        return {_kind(op, at) for users in lists for op, at in users}

    def uses(self, value: Value) -> int:
        """At least the number of its users."""
        return self.engine.uses[value]

    # What rules build.

    def __call__(
        self,
        name: str,
        *operands: Value,
        type: Type | None = None,
        regions: Sequence[Region] = (),
        **attributes: Any,
    ) -> Value:
        """The one result of an operation, simplified."""
        types = None if type is None else (type,)
        (result,) = self.build(name, operands, attributes, regions, types)
        return result

    def build(
        self,
        name: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[Region] = (),
        types: Sequence[Type] | None = None,
    ) -> tuple[Value, ...]:
        """The results of an operation, simplified."""
        origin = self._origin_of_new()
        if self.rewriting is not None and EXACT in self.rewriting.attributes:
            attributes = _kept_exact(name, attributes or {})
        op = make_op(name, operands, attributes, regions, types, origin, self.check)
        self.replacing = None
        return self.emit(op, new=True)

    def like(self, op: Op, *operands: Value, type: Type | None = None) -> Value:
        """The same operation with the same attributes on other operands, simplified."""
        types = None if type is None else (type,)
        (result,) = self.build(op.name, operands, op.attributes, op.regions, types)
        return result

    def existing(self, name: str, *operands: Value, type: Type | None = None) -> Value | None:
        """The result of such an operation, where one that is computed before has it."""
        types = None if type is None else (type,)
        op = make_op(name, operands, None, (), types, (), self.check)
        key = self.engine.keys.op(op) if self.engine.merge else None
        known = None if key is None else self.table.get(key)
        return known[0] if known else None

    def splat(self, value: Any, type: TensorType) -> Value:
        """A constant whose elements all equal `value`."""
        return self.constant(Dense.splat(value, type))

    def inline(self, region: Region, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The results of a region's operations on `operands`: fresh copies, simplified."""
        self.replacing = None  # the copies are not what the old region has there
        values = dict(zip(region.arguments, operands, strict=True))
        for op in region.ops:
            copy = copied(op, values)
            values.update(zip(op.results, self.emit(copy, new=True), strict=True))
        return tuple(values.get(value, value) for value in region.results)

    # The sweep's own part.

    def rebuild(self, op: Op) -> None:
        """Bring an operation of the old region over, on the new operands."""
        values = self.engine.values
        substitute = self.engine.substitutes.get(op)
        if substitute is not None:
            self.ops.append(substitute)
            values.update(zip(op.results, substitute.results, strict=True))
            return
        regions: Sequence[Region] = op.regions
        operands = [values.get(value, value) for value in op.operands]
        if op.definition.name == "while":
            loop = op.with_operands(operands)
            found = counters(loop)
            self.engine.ranges.update(ranges(loop, found, turns(loop, found)))
        if regions and not op.definition.sealed:
            regions = [self.engine.sweep(region) for region in regions]
        fresh = op.with_operands(operands, regions)
        origin = self.engine.origins.pop(op, None)
        if origin is not None:
            fresh = Op(
                op.definition, operands, op.attributes, fresh.regions, op.result_types, origin
            )
        self.replacing = op
        results = self.emit(fresh, new=False)
        self.replacing = None
        if results is not op.results:
            uses, users = self.engine.uses, self.engine.users
            for old, new in zip(op.results, results, strict=True):
                if old is not new:
                    values[old] = new
                    uses[new] += uses.get(old, 0)
                    if old in users:
                        users.setdefault(new, []).extend(users[old])

    def emit(self, op: Op, new: bool) -> tuple[Value, ...]:
        """Results equal to the operation's, after every rule that applies here."""
        engine = self.engine
        key = engine.keys.op(op) if engine.merge else None
        if key is not None:
            known = self.table.get(key)
            if known is not None:
                engine.progress = True
                self._merge(known, op)
                return known
        results = self._rewritten(op)
        if self.local:
            self.local, key = False, None
        if results is None:
            results = op.results
            self.ops.append(op)
            if new:
                for operand in op.operands:
                    engine.uses[operand] += 1
            self._note_static(op)
        if key is not None:
            self.table[key] = results
        return results

    def _rewritten(self, op: Op) -> tuple[Value, ...] | None:
        engine = self.engine
        if engine.ledger.is_full:
            return None
        folded = engine.folder.fold(op) if op.operands and engine.folding else None
        if folded is not None:
            engine.progress = True
            engine.ledger.record("fold-constants", Licence.BITWISE, op)
            return (self.constant(folded),)
        rules = engine.rules.get(op.definition.name, engine.general)
        if not rules:
            return None
        exact = EXACT in op.attributes
        if self.depth >= MAXIMUM_DEPTH:
            engine.ledger.exhausted += 1
            return None
        before = self.rewriting
        self.rewriting = op
        self.depth += 1
        made = {v.owner.definition.name for v in op.operands if isinstance(v.owner, Op)}
        try:
            for rule, limited in rules:
                if rule.makers and rule.makers.isdisjoint(made):
                    continue
                if (limited or exact) and rule.needs(op):
                    continue
                replacement = rule.rewrite(op, self)
                if replacement is None:
                    continue
                single = isinstance(replacement, Value)
                results = (replacement,) if single else tuple(replacement)
                if self._same_types(rule, op, results):
                    self.local = rule.local
                    engine.progress = True
                    engine.ledger.record(rule.name, rule.needs(op), op)
                    return results
        finally:
            self.depth -= 1
            self.rewriting = before
        return None

    def _same_types(self, rule: Rule, op: Op, results: tuple[Value, ...]) -> bool:
        if len(results) == len(op.results):
            pairs = [(new.type, old.type) for new, old in zip(results, op.results, strict=True)]
            if all(new is old or new is unsharded(old) for new, old in pairs):
                return all(new is old for new, old in pairs)  # what a sharding says is kept
            if all(unsharded(new) is old for new, old in pairs):
                return True  # an annotated argument
        wanted = ", ".join(str(value.type) for value in op.results)
        got = ", ".join(str(value.type) for value in results)
        raise CompilerBug(f"rule '{rule.name}' made {got} of {op.name}'s {wanted}")

    def _origin_of_new(self) -> tuple[Origin, ...]:
        # What a rule builds stands for the operation and for the operands that it swallows.
        op = self.rewriting
        if op is None:
            return self.origin
        origins = [op.origin]
        for operand in op.operands:
            owner = operand.owner
            if not isinstance(owner, Op) or owner.definition.pattern == "source":
                continue
            if self.engine.uses[operand] <= 1 and owner.origin != op.origin:
                origins.append(owner.origin)
        return union_origins(*origins)

    def _merge(self, known: tuple[Value, ...], op: Op) -> None:
        owner = known[0].owner if known else None
        if not isinstance(owner, Op) or owner.definition.pattern == "source":
            return
        origins = self.engine.origins
        before = origins.get(owner, owner.origin)
        after = union_origins(before, op.origin)
        if after != before:
            origins[owner] = after

    def _note_static(self, op: Op) -> None:
        static = self.engine.static
        definition = op.definition
        if definition.stored or (
            definition.pattern in STATIC_PATTERNS
            and op.operands
            and all(value in static for value in op.operands)
        ):
            static.update(op.results)

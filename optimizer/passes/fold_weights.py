"""fold-weights: what depends on weights and constants alone is computed when the bundle is built.

Transposes, slices, conversions, scales and products of weights become new weights, named after what
was done (`w#transpose(1,0)`) and computed only when they are first asked for. A set of weights that
are used together is folded if the bundle does not grow by more than `growth` bytes, or than that
part of all weights of which `share` make the whole.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...hlo.build import make_op
from ...hlo.derivation import derived
from ...hlo.graph import Dense, Module, Op, Region, Value, Weight, arguments
from ...hlo.types import TensorType
from ...hlo.verify import INLINED, Level
from ..fold import FOLDED_PATTERNS, grows
from ..licence import BITWISE, Ledger
from ..rewrite import Engine
from .dce import Dce

MAXIMUM_FLOPS = 1e11  # of one product of weights
MAXIMUM_RATIO = 2  # a result larger than that many times its operands is left to the kernels
LARGEST_BROADCAST = 1 << 30  # bytes
SMALL = 1 << 16  # bytes; but for results up to this size
LONGEST_NAME = 160


@dataclass(frozen=True)
class FoldWeights:
    """INLINED -> INLINED: no operation on weights and constants alone is left that would pay."""

    name: ClassVar[str] = "fold-weights"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    growth: int = 1 << 16
    share: int = 256
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not module.weights:
            return module
        folder = _WeightFolder(self, module)
        substitutes = folder.fold(module.body)
        if not substitutes:
            return module
        weights = {**module.weights, **folder.derived}
        before = sum(weight.type.bytes for weight in module.weights.values())
        body = Engine(module, substitutes=substitutes).simplify(module.body)
        changed = Dce()(module.with_main(body).with_weights(weights))
        after = sum(weight.type.bytes for weight in changed.weights.values())
        return changed.with_notes(folder.note(before, after))


class _WeightFolder:
    def __init__(self, options: FoldWeights, module: Module) -> None:
        self.options, self.module = options, module
        total = sum(weight.type.bytes for weight in module.weights.values())
        self.limit = max(options.growth, total // options.share)  # bytes that a group may gain
        self.roots: dict[Value, frozenset[str]] = {}  # the weights that a known value depends on
        self.names: dict[Value, str] = {}
        self.derived: dict[str, Weight] = {}
        self.kinds: Counter[str] = Counter()

    def fold(self, region: Region) -> dict[Op, Op]:
        """What takes the place of which operations on weights."""
        for op in region.ops:
            self.visit(op)
        frontier = [op for op in region.ops if self.is_last(op, region)]
        return {op: self.weight(op) for op in self.worth_it(frontier, region)}

    def visit(self, op: Op) -> None:
        if op.name == "weight":
            self.roots[op.results[0]] = frozenset([op.attributes["weight"]])
        elif op.definition.known:
            self.roots[op.results[0]] = frozenset()
        elif self.is_foldable(op):
            found = [self.roots[value] for value in op.operands]
            self.roots[op.results[0]] = frozenset().union(*found)
        if op.results and op.results[0] in self.roots:
            self.names[op.results[0]] = self.name_of(op)

    def is_foldable(self, op: Op) -> bool:
        if len(op.results) != 1 or op.definition.pattern not in FOLDED_PATTERNS or not op.operands:
            return False
        if any(value not in self.roots for value in op.operands):
            return False
        type = op.results[0].type
        if not isinstance(type, TensorType) or not type.is_static:
            return False
        if any(inner.captures() for inner in op.regions):
            return False
        if op.definition.pattern == "contract" and op.definition.flops(op) > MAXIMUM_FLOPS:
            return False
        if grows(op):
            return type.bytes <= LARGEST_BROADCAST  # is never stored itself
        given = sum(value.tensor.bytes for value in op.operands)
        if op.name == "convert" and type.bytes > max(given, SMALL):
            return False  # kernels widen in registers, and read fewer bytes at every call
        return type.bytes <= max(MAXIMUM_RATIO * given, SMALL, self.limit)

    def is_last(self, op: Op, region: Region) -> bool:
        """Whether an operation on weights has a user that is none."""
        if op.name == "weight" or len(op.results) != 1 or not self.roots.get(op.results[0]):
            return False
        users = region.uses.get(op.results[0], ())
        return bool(users) and not grows(op) and self.needed(op.results[0], region)

    def needed(self, value: Value, region: Region) -> bool:
        """Whether a known value has a user that is not known, past broadcasts that enlarge it."""
        for user, _ in region.uses.get(value, ()):
            if user is None or not user.results or user.results[0] not in self.roots:
                return True
            if grows(user) and self.needed(user.results[0], region):
                return True
        return False

    def worth_it(self, frontier: list[Op], region: Region) -> Iterable[Op]:
        """The operations to be replaced, decided for each set of weights that belong together."""
        raw = self.raw_weights(region)
        for group in self.components(frontier):
            names = frozenset().union(*(self.roots[op.results[0]] for op in group))
            if self.growth(group, names - raw) <= self.limit:
                yield from group
                continue
            needed = Counter(name for op in group for name in self.roots[op.results[0]])
            for op in group:
                alone = [n for n in self.roots[op.results[0]] if needed[n] == 1 and n not in raw]
                if self.growth([op], alone) <= min(self.limit, op.type.bytes // 8):
                    yield op

    def growth(self, group: Iterable[Op], dropped: Iterable[str]) -> int:
        """Bytes that the bundle gains if the group's results are stored and `dropped` is not."""
        gained = sum(op.type.bytes for op in group)
        return gained - sum(self.module.weights[name].type.bytes for name in dropped)

    def raw_weights(self, region: Region) -> set[str]:
        """Weights that something needs as they are."""
        found = {
            op.attributes["weight"]
            for op in self.module.walk()
            if op.name == "weight" and op.results[0] not in self.roots
        }
        for op in region.ops:
            if op.name != "weight":
                continue
            if self.needed(op.results[0], region):
                found.add(op.attributes["weight"])
        return found

    def components(self, frontier: list[Op]) -> list[list[Op]]:
        """The operations, together where they depend on a common weight; in program order."""
        groups: list[tuple[set[str], list[Op]]] = []
        for op in frontier:
            names, members = set(self.roots[op.results[0]]), [op]
            for other in [group for group in groups if group[0] & names]:
                groups.remove(other)
                names |= other[0]
                members = other[1] + members
            groups.append((names, members))
        return [members for _, members in groups]

    # Making a derived weight.

    def weight(self, op: Op) -> Op:
        """A `weight` operation for the value that `op` computes."""
        (value,) = op.results
        name = self.names[value]
        if name not in self.derived:
            sources, region = _computation(value)
            weights = [self.module.weights[source] for source in sources]
            self.derived[name] = derived(name, weights, region)
            self.kinds[op.name] += 1
            self.options.ledger.record("fold-weights", BITWISE, op)
        return make_op(
            "weight", [], {"weight": name}, result_types=[value.type], origin=op.origin, check=False
        )

    def name_of(self, op: Op) -> str:
        """A name for the value of a foldable operation, whose operands have names already."""
        if op.name == "weight":
            return op.attributes["weight"]
        if op.name == "constant":
            return f"{op.attributes['value'].digest.hex()}:{op.type}"
        operands = op.operands
        names = [self.names[operand] for operand in operands]
        weights = [n for n, v in zip(names, operands, strict=True) if self.roots[v]]
        base = (weights or names or ["iota"])[0]
        if op.name == "transpose":
            name = f"{base}#transpose({','.join(map(str, op.permutation))})"
        elif op.name == "reshape":
            name = f"{base}#reshape({','.join(map(str, op.type.dims))})"
        else:
            name = f"{base}#{op.name}[{_digest(op, names)}]"
        if len(name) > LONGEST_NAME:
            root = min(self.roots[op.results[0]], default="constant")
            name = f"{root}#folded[{_digest(op, names)}]"
        return name

    def note(self, before: int, after: int) -> str:
        parts = ", ".join(f"{count} {name}" for name, count in sorted(self.kinds.items()))
        change = "is unchanged" if after == before else f"changes by {after - before:+,} bytes"
        count = len(self.derived)
        weights, whose = ("1 weight is", "its") if count == 1 else (f"{count} weights are", "their")
        return f"fold-weights: {weights} stored transformed ({parts}); {whose} size {change}"


def _computation(value: Value) -> tuple[list[str], Region]:
    """What a value of weights and constants is: the weights' names, and a region on them."""
    ops: list[Op] = []
    seen: set[Op] = set()
    stack = [value.op]
    while stack:
        op = stack[-1]
        assert op is not None  # a known value is no argument
        missing = [operand.op for operand in op.operands if operand.op not in seen]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if op not in seen:
            seen.add(op)
            ops.append(op)
    roots = [op for op in ops if op.name == "weight"]
    names = list(dict.fromkeys(op.attributes["weight"] for op in roots))
    types = {op.attributes["weight"]: op.type for op in roots}
    given = dict(zip(names, arguments([types[name] for name in names]), strict=True))
    mapping = {op.result: given[op.attributes["weight"]] for op in roots}
    body: list[Op] = []
    for op in ops:
        if op.name != "weight":
            body.append(op.with_operands([mapping[operand] for operand in op.operands]))
            mapping[op.results[0]] = body[-1].results[0]
    return names, Region(tuple(given.values()), body, [mapping[value]])


def _digest(op: Op, names: Iterable[str]) -> str:
    """A short name for an operation on operands of those names."""
    types = [repr(value.type) for value in (*op.operands, *op.results)]
    parts = [op.name, *types, *names, *_attributes(op)]
    for region in op.regions:
        local = {value: f"a{value.index}" for value in region.arguments}
        for number, inner in enumerate(region.ops):
            local.update((value, f"{number}.{value.index}") for value in inner.results)
            operands = [local.get(value, "?") for value in inner.operands]
            parts += [inner.name, *operands, *_attributes(inner)]
        parts += [local.get(value, "?") for value in region.results]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


def _attributes(op: Op) -> list[str]:
    def shown(attribute: Any) -> str:
        return attribute.digest.hex() if isinstance(attribute, Dense) else repr(attribute)

    return [f"{name}={shown(op.attributes[name])}" for name in sorted(op.attributes)]

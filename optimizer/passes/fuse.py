"""fuse: which values get memory, and which live only inside a kernel.

`fuse(module)` turns an inlined module into one whose regions hold `fusion` operations, control
flow, sources (constants, weights), free reshapes and single opaque operations. Greedy, in three
sweeps over each region:

1. every contraction takes the elementwise operations that follow it, as far as one value leaves
   (its epilogue);
2. in reverse order, every elementwise, index and reduce operation is computed inside its consumers
   if that is legal and cheap, else it becomes the root of a group of its own. What several need
   is computed in each of them while that takes less time than to store it, by the bytes that both
   move, and while it reads at most two large values;
3. groups of equal dims that feed each other at the same element become one group with several
   roots; so do large results of contractions and loops that read nothing else.

Kinds: `loop` (one element at a time), `rows` (reductions over trailing dims, one row at a time),
`reduce` (other reductions), `contract` (one dot or convolution with its epilogue).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from ...hlo.build import make_op
from ...hlo.deciding import at_hint, estimating
from ...hlo.graph import Module, Op, Region, Value, union_origins
from ...hlo.regions import aliases, extract, in_order_of_demand, map_bodies, rename
from ...hlo.verify import FUSED, INLINED, Level
from ...hlo.views import view_of, widens
from ..cost.assumed import NEAR_BYTES, WORK_PER_BYTE
from ..fusable import (
    FOLLOWED,
    brings_features_together,
    fusable,
    is_splat_constant,
    keeps_vectors,
    reshape_moves,
    respells,
    trailing_reduction,
)

MAXIMUM_MEMBERS = 200  # operations of one group: bounds the size of one function
MAXIMUM_LEAVES = 2  # large values that a chain may read where it is computed again
LARGE = 4  # a value is large beside another one that is less than so many times its size
WORK = {"transcendental": 12.0, "division": 4.0}  # additions in the time of one operation
SMALL_FULL_REDUCTION = 1 << 14  # elements; larger ones are split over workers


@dataclass(eq=False)
class FusionGroup:
    """Operations that become one kernel. `outer` is the number of row dims of a `rows` group."""

    kind: str
    roots: list[Value]
    outer: int = 0
    members: set[Op] = field(default_factory=set)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.roots[0].dims


def own_work(op: Op) -> float:
    """What an element of an operation costs, in additions."""
    definition = op.definition
    if definition.cost_class in WORK:
        return WORK[definition.cost_class]
    return 0.25 if definition.pattern == "index" else 1.0


@dataclass(frozen=True)
class Fuse:
    """INLINED -> FUSED."""

    name: ClassVar[str] = "fuse"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(fuse_region)


def fuse_region(region: Region, strided_kernels: bool = False) -> Region:
    """The region with its operations grouped; nested bodies of control flow first.

    strided_kernels: whether convolutions read kernels through any view that strides can say.
    """
    inner = partial(fuse_region, strided_kernels=strided_kernels)
    return _Fuser(map_bodies(region, lambda op, body: inner(body)), strided_kernels).run()


class _Fuser:
    def __init__(self, region: Region, strided_kernels: bool) -> None:
        self.region, self.strided_kernels = region, strided_kernels
        self.uses = region.uses
        self.position = {op: number for number, op in enumerate(region.ops)}
        self.homes: dict[Op, set[FusionGroup]] = {}
        self.groups: list[FusionGroup] = []
        self.leaves: dict[Value, frozenset[Value]] = {}
        self.producers: dict[Value, FusionGroup] = {}
        self.reads: dict[FusionGroup, list[Value]] = {}
        self.ends: dict[FusionGroup, int] = {}

    def run(self) -> Region:
        for op in self.region.ops:
            if op.definition.pattern == "contract" and op not in self.homes:
                self.contract(op)
        for op in self.region.ops:
            self.follow(op)
        for op in reversed(self.region.ops):
            if op not in self.homes and fusable(op):
                self.place(op)
        self.narrowed()
        self.merge()
        return self.rebuild()

    def join(self, op: Op, group: FusionGroup) -> None:
        self.homes.setdefault(op, set()).add(group)
        group.members.add(op)

    # 1. Epilogues.

    def contract(self, contraction: Op) -> None:
        group = FusionGroup("contract", [contraction.result])
        self.groups.append(group)
        dims = contraction.result.dims
        inside: list[Op] = [contraction]
        values = {contraction.result}
        depends: dict[Value, bool] = {}
        seen = self.users(contraction)
        waiting = [self.position[user] for user in seen]
        heapq.heapify(waiting)
        while waiting and len(inside) < MAXIMUM_MEMBERS:
            op = self.region.ops[heapq.heappop(waiting)]
            legal = (
                op.definition.pattern == "elementwise"
                and len(op.results) == 1
                and not op.definition.effects
                and op.result.dims == dims
                and op not in self.homes
                and not any(
                    v not in values and self.follows(v, inside, depends) for v in op.operands
                )
            )
            if not legal:
                continue
            inside.append(op)
            values.add(op.result)
            for user in self.users(op) - seen:
                seen.add(user)
                heapq.heappush(waiting, self.position[user])
        count, root = self.single_exit(inside)
        group.roots = [root]
        for op in inside[:count]:
            self.join(op, group)

    def follows(self, value: Value, inside: Sequence[Op], known: dict[Value, bool]) -> bool:
        """Whether a value depends on the first of `inside`; what stands before it does not."""
        first = self.position[inside[0]]
        stack = [value]
        while stack:
            current = stack[-1]
            op = current.op
            if current in known:
                stack.pop()
            elif op is None or self.position.get(op, -1) <= first:
                known[current] = op is inside[0]
            else:
                sources = [*op.operands, *(v for body in op.regions for v in body.captures())]
                unknown = [v for v in sources if v not in known]
                if unknown:
                    stack += unknown
                else:
                    known[current] = any(known[v] for v in sources)
        return known[value]

    def users(self, op: Op) -> set[Op]:
        """The operations of the region that use a result of `op`."""
        uses = self.uses
        return {
            user for result in op.results for user, _ in uses.get(result, ()) if user is not None
        }

    def single_exit(self, inside: list[Op]) -> tuple[int, Value]:
        """The longest prefix that only one value leaves."""
        for count in range(len(inside), 1, -1):
            chosen = set(inside[:count])
            leaving = [
                op.result
                for op in inside[:count]
                if any(user not in chosen for user, _ in self.uses.get(op.result, ((None, 0),)))
            ]
            if len(leaving) == 1:
                return count, leaving[0]
        return 1, inside[0].result

    # 2. Everything else, consumers first.

    def place(self, op: Op) -> None:
        homes: set[FusionGroup] = set()
        needed = False  # by someone who cannot compute it
        for result in op.results:
            for user, number in self.uses.get(result, ()):
                into = self.absorbing(op, user, number)
                if into is None:
                    needed = True
                else:
                    homes |= into
        if op.name == "iota" or is_splat_constant(op):
            for group in homes:
                self.join(op, group)
            if needed and op.name == "iota":
                self.start(op)
            return
        if not homes and respells(op):
            return  # what it names anew keeps its dims, in which others may join it
        if needed or not homes or not self.worth(op, homes):
            self.start(op)
            return
        for group in homes:
            outer = trailing_reduction(op)
            if outer is not None:
                group.kind, group.outer = "rows", outer
            self.join(op, group)

    def start(self, op: Op) -> None:
        outer = trailing_reduction(op)
        kind = "loop"
        if op.definition.pattern == "reduce":
            big = outer == 0 and at_hint(op.operands[0].tensor.size) > SMALL_FULL_REDUCTION
            kind = "reduce" if outer is None or big else "rows"
        group = FusionGroup(kind, list(op.results), outer or 0)
        self.groups.append(group)
        self.join(op, group)

    def absorbing(self, op: Op, user: Op | None, number: int) -> set[FusionGroup] | None:
        """The groups of that use if they all can compute `op` inside; else None."""
        if user is None or number < 0 or user not in self.homes:
            return None
        homes = self.homes[user]
        return homes if all(self.legal(op, user, group) for group in homes) else None

    def legal(self, op: Op, user: Op, group: FusionGroup) -> bool:
        if len(group.members) >= MAXIMUM_MEMBERS:
            return False
        if user.definition.pattern == "contract" or self.operand_view(user, group):
            # Operands of a contraction are read from memory, but through any view of it.
            viewed = op.definition.strided or widens(op)
            together = brings_features_together(op, user)
            return (
                viewed and len(self.uses[op.result]) == 1 and self.even(op, group) and not together
            )
        initial = user.operands[len(user.operands) // 2 :] if user.name == "reduce" else ()
        if any(result in initial for result in op.results):
            return is_splat_constant(op)
        if is_splat_constant(op) or op.name == "iota":
            return True
        if op.definition.pattern == "reduce":
            return self.rows_legal(op, group)
        if op.definition.pattern == "index" and op.name not in FOLLOWED:
            kept = op.name == "transpose" and op.permutation[-1:] == (op.operands[0].rank - 1,)
            if not kept:
                return False
        if group.kind == "contract":
            root_size = group.roots[0].tensor.size
            small = at_hint(op.result.tensor.size) <= at_hint(root_size)
            return small and (op.definition.pattern == "elementwise" or keeps_vectors(op))
        if group.kind == "reduce":
            return True
        return self.affordable(op, group)

    def operand_view(self, user: Op, group: FusionGroup) -> bool:
        """Whether `user` is a view that the group's contraction reads an operand through."""
        if group.kind != "contract" or (not user.definition.strided and not widens(user)):
            return False
        users = self.uses[user.result]
        reader = users[0][0]
        if len(users) != 1 or reader is None or reader not in group.members:
            return False
        return reader.definition.pattern == "contract" or self.operand_view(reader, group)

    def even(self, op: Op, group: FusionGroup) -> bool:
        """Whether the contraction still sees plain strides: a dimension is merged only after all
        splits (here: no split above a merge), and on one side of the contraction alone."""
        if op.name != "reshape":
            return True
        kernel = self.kernel_view(op, group) if self.strided_kernels else None
        if kernel is not None:
            return view_of(kernel) is not None
        splits, merges = reshape_moves(op.operands[0].dims, op.result.dims)
        below = [m for m in group.members if m.name == "reshape" and self.operand_view(m, group)]
        moves = [reshape_moves(m.operands[0].dims, m.result.dims) for m in below]
        if splits and merges or merges and any(m for _, m in moves):
            return False
        if merges and any(m.name == "convolution" for m in group.members):
            return False
        return not (merges and any(s for s, _ in moves))

    def kernel_view(self, op: Op, group: FusionGroup) -> Value | None:
        """The kernel of the group's convolution, if that is read through `op`."""
        while True:
            user, number = self.uses[op.result][0]
            if user is None or user not in group.members:
                return None
            if user.name == "convolution":
                return user.operands[1] if number == 1 else None
            op = user

    @estimating()
    def affordable(self, op: Op, group: FusionGroup) -> bool:
        """A value smaller than the root is computed again for each element it spreads to."""
        size, root = op.result.tensor.size, group.roots[0].tensor.size
        if op.definition.cost_class == "simple" or size * 2 > root or size <= 16:
            return True
        return self.row_scalar(op.result, group)

    def row_scalar(self, value: Value, group: FusionGroup) -> bool:
        """One number per row of the roots, `[rows]` or `[rows, 1]`: computed once per row."""
        dims, root = value.dims, group.dims
        meaningful = [d for d in dims if d != 1]
        for outer in range(len(root) + 1):
            if [d for d in root[:outer] if d != 1] == meaningful:
                return group.kind != "rows" or outer == group.outer or not meaningful
        return False

    def rows_legal(self, op: Op, group: FusionGroup) -> bool:
        outer = trailing_reduction(op)
        if outer is None or group.kind not in ("loop", "rows"):
            return False
        rows = op.operands[0].dims[:outer]
        if group.kind == "rows" and group.outer != outer:
            return False
        if outer == 0 and at_hint(op.operands[0].tensor.size) > SMALL_FULL_REDUCTION:
            return False
        if any(root.dims[:outer] != rows for root in group.roots):
            return False
        return all(self.row_aligned(result, group, rows, set()) for result in op.results)

    def row_aligned(
        self, value: Value, group: FusionGroup, rows: tuple[int, ...], seen: set[Value]
    ) -> bool:
        """Whether every use inside the group, down to its roots, stays in the value's own row."""
        if value in seen:
            return True
        seen.add(value)
        outer = len(rows)
        for user, _ in self.uses.get(value, ()):
            if user is None or group not in self.homes.get(user, ()):
                continue
            name = user.name
            if any(result.dims[:outer] != rows for result in user.results):
                return False
            if name == "broadcast_in_dim":
                if tuple(user.broadcast_dimensions[:outer]) != tuple(range(outer)):
                    return False
            elif name == "reshape":
                if value.dims[:outer] != rows:
                    return False
            elif name == "transpose":
                if tuple(user.permutation[:outer]) != tuple(range(outer)):
                    return False
            elif name == "reduce":
                if trailing_reduction(user) != outer:
                    return False
            elif user.definition.pattern != "elementwise":
                return False
            if not all(self.row_aligned(r, group, rows, seen) for r in user.results):
                return False
        return True

    @estimating()
    def worth(self, op: Op, homes: set[FusionGroup]) -> bool:
        """Whether computing it in every home beats storing it once."""
        if len(homes) == 1:
            return True
        if keeps_vectors(op) and op.definition.pattern == "index":
            return True
        if op.definition.pattern == "reduce" or op.name in FOLLOWED and not keeps_vectors(op):
            return False
        leaves = self.leaves[op.result]
        if op.result in leaves:
            return False  # it is stored for somebody who cannot compute it, or reads too much
        # A store brings the line that it writes into the cache first.
        stored = op.result.tensor.bytes * (2 + len(homes)) + sum(
            leaf.tensor.bytes for leaf in leaves
        )
        read = sum(
            leaf.tensor.bytes
            for home in homes
            for leaf in leaves
            if not any(user in home.members for user, _ in self.uses.get(leaf, ()))
        )
        return read + self.work(op) * (len(homes) - 1) / WORK_PER_BYTE <= stored

    @estimating()
    def follow(self, op: Op) -> None:
        """What computing the results of `op` in one more kernel would read; the results themselves
        where they are stored, or would read too much. Known of all that comes before."""
        for result in op.results:
            self.leaves[result] = frozenset({result})
        chained = op.definition.pattern == "elementwise" or keeps_vectors(op)
        if not chained or not fusable(op) or op in self.homes or self.is_stored(op):
            return
        read = frozenset(leaf for v in op.operands for leaf in self.leaves.get(v, (v,)))
        size = op.result.tensor.bytes
        if sum(leaf.tensor.bytes * LARGE > size for leaf in read) <= MAXIMUM_LEAVES:
            self.leaves[op.result] = read

    @estimating()
    def work(self, op: Op) -> float:
        """Additions for computing a result in one more kernel, from what is stored."""
        additions, stack, seen = 0.0, [op], {op}
        while stack:
            current = stack.pop()
            additions += own_work(current) * current.result.tensor.size
            for value in current.operands:
                source = value.op
                if source and source not in seen and value not in self.leaves.get(value, (value,)):
                    seen.add(source)
                    stack.append(source)
        return additions

    def is_stored(self, op: Op) -> bool:
        """Whether somebody needs a result who cannot compute it."""
        return any(
            user is None
            or number < 0
            or not (fusable(user) or user.definition.pattern == "contract")
            or user.definition.pattern == "contract"
            and not (op.definition.strided or widens(op))
            for result in op.results
            for user, number in self.uses.get(result, ())
        )

    # 3. Several roots.

    @estimating()
    def narrowed(self) -> None:
        """A loop that reads a contraction's large result alone, at the element that it computes, is
        one more result of the contraction: what it reads is still in registers there. A smaller one
        is near anyway, and may better lie where an operand did."""
        makers = {
            group.roots[0]: group
            for group in self.groups
            if group.kind == "contract" and at_hint(group.roots[0].tensor.bytes) >= NEAR_BYTES
        }
        for group in sorted(self.groups, key=lambda group: self.order(group.roots[0])):
            read = self.inputs(group) if group.kind == "loop" else []
            maker = makers.get(read[0]) if len(read) == 1 else None
            if maker is None or len(maker.members) + len(group.members) > MAXIMUM_MEMBERS:
                continue
            if maker.dims != group.dims or not self.same_element(read[0], group):
                continue
            for member in group.members:
                self.homes[member].discard(group)
                self.join(member, maker)
            maker.roots += group.roots
            makers |= dict.fromkeys(group.roots, maker)
            self.groups.remove(group)

    def merge(self) -> None:
        """Loops that read what other loops make join them, as long as any can. Only a group that
        has changed, and who reads what it makes, is looked at again."""
        self.producers = {root: group for group in self.groups for root in group.roots}
        self.reads = {group: self.inputs(group) for group in self.groups}
        self.ends = {
            group: max(map(self.position.__getitem__, group.members)) for group in self.groups
        }
        number = {group: index for index, group in enumerate(self.groups)}
        readers: dict[Value, set[FusionGroup]] = {}
        for group in self.groups:
            for value in self.reads[group]:
                readers.setdefault(value, set()).add(group)
        waiting = list(range(len(self.groups)))
        queued, gone = set(waiting), set[FusionGroup]()
        while waiting:
            index = heapq.heappop(waiting)
            queued.discard(index)
            group = self.groups[index]
            producer = None if group in gone else self.mergeable(group)
            if producer is None:
                continue
            gone.add(producer)
            self.absorb(producer, group)
            for value in self.reads[group]:
                readers.setdefault(value, set()).add(group)
            again = {group}.union(*(readers.get(root, ()) for root in group.roots))
            for other in again - gone:
                if number[other] not in queued:
                    queued.add(number[other])
                    heapq.heappush(waiting, number[other])
        self.groups = [group for group in self.groups if group not in gone]
        for group in reversed(self.groups):
            self.settle(group)
        self.groups = [group for group in self.groups if group in self.reads]

    def settle(self, group: FusionGroup) -> None:
        """A loop is computed inside the only group that reads it, where several did before."""
        if group.kind != "loop" or len(group.roots) != 1:
            return
        (root,) = group.roots
        readers = {
            home
            for user, _ in self.uses.get(root, ((None, 0),))
            for home in (self.homes.get(user, ()) if user is not None else (group,))
        }
        outside = any(user not in self.homes for user, _ in self.uses.get(root, ()))
        if len(readers) != 1 or outside or group in readers:
            return
        (home,) = readers
        inside = group.members | home.members
        if len(inside) > MAXIMUM_MEMBERS or not all(
            self.legal(op, user, home) for op in group.members for user in self.users(op) & inside
        ):
            return
        for op in group.members:
            self.homes[op].discard(group)
            self.join(op, home)
        del self.producers[root], self.reads[group]
        self.reads[home] = self.inputs(home)

    def mergeable(self, group: FusionGroup) -> FusionGroup | None:
        """A loop whose values the loop `group` reads, and that may become one with it."""
        if group.kind != "loop":
            return None
        for value in self.reads[group]:
            producer = self.producers.get(value)
            if (
                producer is not None
                and producer is not group
                and producer.kind == "loop"
                and producer.dims == group.dims
                and len(producer.members) + len(group.members) <= MAXIMUM_MEMBERS
                and self.same_element(value, group)
                and not self.reaches_around(producer, group)
            ):
                return producer
        return None

    def absorb(self, producer: FusionGroup, group: FusionGroup) -> None:
        """`producer` becomes a part of `group`."""
        for member in producer.members:
            self.homes[member].discard(producer)
            self.join(member, group)
        group.roots = producer.roots + group.roots
        for root in producer.roots:
            self.producers[root] = group
        self.ends[group] = max(self.ends[group], self.ends.pop(producer))
        del self.reads[producer]
        self.reads[group] = self.inputs(group)

    def inputs(self, group: FusionGroup) -> list[Value]:
        found: dict[Value, None] = {}
        for op in group.members:
            for value in op.operands:
                if value.op is None or value.op not in group.members:
                    found[value] = None
        return sorted(found, key=self.order)

    def order(self, value: Value) -> tuple[int, int]:
        """Where a value is defined, for lists that do not depend on hashing."""
        op = value.op
        if op is None or op not in self.position:
            return (-1, value.index)
        return (self.position[op], value.index)

    def same_element(self, value: Value, group: FusionGroup) -> bool:
        """Whether the group reads the value only at the element that it computes."""
        stack, seen = [value], set()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            for user, _ in self.uses.get(current, ()):
                if user is None or user not in group.members:
                    continue
                if user.definition.pattern != "elementwise" or user.result.dims != group.dims:
                    return False
                stack.append(user.result)
        return True

    def reaches_around(self, producer: FusionGroup, consumer: FusionGroup) -> bool:
        """Whether a third group or operation stands between the two."""
        producers = self.producers
        start = min(self.position[op] for op in producer.members)
        stack = [value for value in self.reads[consumer] if producers.get(value) is not producer]
        seen: set[object] = set()
        while stack:
            value = stack.pop()
            op = value.op
            if op is None or op not in self.position:
                continue
            group = producers.get(value)
            if group is producer:
                return True
            node: object = group or op
            if node in seen:
                continue
            seen.add(node)
            if (self.position[op] if group is None else self.ends[group]) < start:
                continue  # it stands before all that the producer computes
            if group is not None:
                stack += self.reads[group]
            else:
                stack += op.operands
                for body in op.regions:
                    stack += body.captures()
        return False

    # The new region.

    def rebuild(self) -> Region:
        self.new: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.done: set[object] = set()
        for op in self.region.ops:
            if op.definition.effects or op.definition.pattern == "control":
                self.need_op(op)
        for value in self.region.results:
            self.need(value)
        results = [self.new.get(value, value) for value in self.region.results]
        return Region(self.region.arguments, self.ops, results)

    def need(self, value: Value) -> None:
        """Emit what computes the value, after all that it needs (without recursion)."""
        stack: list[tuple[Value, bool]] = [(value, False)]
        while stack:
            current, ready = stack.pop()
            op = current.op
            if op is None or op not in self.position or current in self.new:
                continue
            group = self.producers.get(current)
            wanted = self.reads[group] if group else [*op.operands]
            if group is None:
                for body in op.regions:
                    wanted += body.captures()
            if not ready:
                stack.append((current, True))
                stack += [(v, False) for v in reversed(wanted) if v not in self.new]
            elif group is not None:
                self.emit_group(group)
            else:
                self.emit_single(op)

    def need_op(self, op: Op) -> None:
        if op in self.done or op in self.homes:
            return
        for value in op.operands:
            self.need(value)
        for body in op.regions:
            for value in body.captures():
                self.need(value)
        self.emit_single(op)

    def emit_single(self, op: Op) -> None:
        if op in self.done:
            return
        self.done.add(op)
        operands = [self.new.get(value, value) for value in op.operands]
        regions = [rename(body, self.new) for body in op.regions]
        new = op.with_operands(operands, regions)
        self.new.update(zip(op.results, new.results, strict=True))
        self.ops.append(new)

    def emit_group(self, group: FusionGroup) -> None:
        if group in self.done:
            return
        self.done.add(group)
        roots = sorted(set(group.roots), key=self.order)
        members, inputs = in_order_of_demand(group.members, roots)
        inside = not any(root in self.region.results for root in roots)
        if len(members) == 1 and (members[0].name == "reshape" or inside and aliases(members[0])):
            self.emit_single(members[0])  # the same bytes under another type
            return
        region = extract(members, inputs, roots)
        operands = [self.new.get(value, value) for value in inputs]
        origin = union_origins(*(op.origin for op in _main_first(members)))
        fusion = make_op(
            "fusion", operands, {"kind": group.kind}, (region,), region.result_types, origin,
            check=False,
        )  # fmt: skip
        self.ops.append(fusion)
        self.new.update(zip(roots, fusion.results, strict=True))


def _main_first(members: Sequence[Op]) -> list[Op]:
    """Contractions and reductions name a kernel's place better than the casts around them."""
    return sorted(members, key=lambda op: op.definition.pattern not in ("contract", "reduce"))

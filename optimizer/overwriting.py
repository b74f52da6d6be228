"""Which kernels may write a result where an operand lies, and which results of a region may lie
where what they replace does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..hlo.deciding import at_hint, surely_at_most
from ..hlo.graph import Op, Region, Value
from ..hlo.offsets import Offset, Offsets
from ..hlo.regions import alias_roots, aliases, shared_parts
from ..hlo.tiling import MEMORY_OPS
from .fusable import trailing_reduction
from .windows import opened, updated

Hinders = Callable[[Op, int, int], str]  # why a result may not lie where an operand does, or ""


def hinders_of(in_tiles: bool) -> Hinders:
    """Why a result may not lie where an operand does, on a target whose tile functions write there
    or do not; each answer is computed once for all copies of a kernel."""
    known: dict[Any, tuple[str, Op]] = {}

    def hinders(op: Op, operand: int, result: int) -> str:
        key = shared_parts(op) or op, operand, result
        found = known.get(key)
        if found is None:
            found = known[key] = computed(op, operand, result), op
        return found[0]

    def computed(op: Op, operand: int, result: int) -> str:
        tiled = op.name == "kernel_call"
        if not in_tiles and (tiled or _becomes_tiles(op, result)):
            return "whose results lie apart from what it reads on this target"
        may = (tiles_may_overwrite if tiled else may_overwrite)(op, operand, result)
        return "" if may else "which needs it until that is written"

    return hinders


def _becomes_tiles(op: Op, result: int) -> bool:
    """Whether a result is one of several of a contraction, which becomes a tile function where
    targets have them: there one is stored before what another follows from is read. A window that
    is written has to lie where the rest does."""
    several = op.name == "fusion" and op.kind == "contract" and len(op.results) > 1
    return several and result not in updated(op)


def may_overwrite(op: Op, operand: int, result: int) -> bool:
    """Whether a kernel of any target may write `result` where `operand` lies: it reads each element
    of the operand only to compute the element of that number of the result, or, in a `rows` kernel,
    to reduce the row that is finished before any of it is written (or it is an update in place). A
    contraction reads what follows its sums when they are complete. A result of which a window alone
    is written has to lie where what it updates does."""
    if op.name == "dynamic_update_slice":
        return operand == 0
    if op.name == "scatter":
        return operand == result
    if op.name != "fusion":
        return False
    partly = updated(op)
    if result in partly or operand in partly.values():
        return partly.get(result) == operand
    op = opened(op).op
    region = op.regions[0]
    product = op.kind == "contract" and any(o.definition.pattern == "contract" for o in region.ops)
    single = len(set(region.results)) == 1
    if op.kind != "loop" and not (product or op.kind == "rows" and single):
        return False
    argument, root = region.arguments[operand], region.results[result]
    if argument.type is not root.type or root is argument:
        return root is argument
    # Results of a contraction that follow from this one alone are computed of what it is.
    apart = set() if single or op.kind == "loop" else {*region.results} - {root}
    stack, seen = [argument], set()
    while stack:
        value = stack.pop()
        if value in apart:
            return False
        if value in seen or (apart and value is root):
            continue
        seen.add(value)
        for user, _ in region.uses.get(value, ()):
            if user is None or (op.kind == "rows" and trailing_reduction(user) is not None):
                continue
            elementwise = user.definition.pattern == "elementwise" or user.name == "reshape"
            if not elementwise or user.result.tensor.size != root.tensor.size:
                return False
            stack.append(user.result)
    return True


def fills(op: Op) -> bool:
    """Whether it is a kernel that reads nothing: it may run where its result is needed instead."""
    return op.name == "fusion" and op.kind == "loop" and not op.operands and len(op.results) == 1


def tiles_may_overwrite(kernel: Op, operand: int, result: int) -> bool:
    """The same for a tile function, where a target reads a window when the first operation on it
    runs, or later, but not behind the stores that follow all of them.

    A task touches of both memories the one window that it stores, no two tasks have an element of
    it in common, and all that is computed from the operand stands before the store.
    """
    if kernel.name != "kernel_call" or operand in kernel.starts:
        return False
    body = kernel.regions[0]
    source, target = body.arguments[operand], body.arguments[len(kernel.operands) + result]
    if source.type is not target.type or not source.rank:
        return False
    touching = [op for op in body.walk() if op.name in MEMORY_OPS and op.operands[0] is target]
    if len(touching) != 1 or touching[0].name != "tile_store":
        return False
    (store,) = touching
    position = {op: number for number, op in enumerate(body.ops)}
    started = bool(kernel.starts) and kernel.starts[result] != -1
    if store.combine or store.masked or started or store not in position:
        return False
    offsets = Offsets(kernel)
    window = [offsets.of(value) for value in store.offsets]
    sizes = store.operands[1].dims
    for load in body.walk():
        if load.name not in MEMORY_OPS or load.operands[0] is not source:
            continue
        if load.name != "tile_load" or load.sizes != sizes or load not in position:
            return False
        if [offsets.of(value) for value in load.offsets] != window:
            return False
        if any(position[op] > position[store] for op in _computed_from(load, body)):
            return False
    return _disjoint(kernel, window, sizes)


def _computed_from(load: Op, body: Region) -> Iterator[Op]:
    """The load and the operations of the body that need it, without the stores at their end."""
    stack, seen = [load], {load}
    while stack:
        op = stack.pop()
        if op.name != "tile_store":
            yield op
        for value in op.results:
            users = {user for user, _ in body.uses.get(value, ()) if user is not None}
            stack += users - seen
            seen |= users


def _disjoint(kernel: Op, window: list[Offset], sizes: tuple[int, ...]) -> bool:
    """Whether no two tiles of the grid have an element of the window in common: in each dim the
    tile ids count in steps that their smaller ones cannot fill."""
    told: set[int] = set()
    for offset, size in zip(window, sizes, strict=True):
        reach = size
        for variable, factor in sorted(offset.terms, key=lambda term: at_hint(term[1])):
            known = variable.op is not None and variable.op.name == "tile_id"
            axis = variable.op.axis if variable.op is not None and known else len(kernel.grid)
            if axis >= len(kernel.grid) or not surely_at_most(reach, factor):
                return False
            told.add(axis)
            reach += factor * (kernel.grid[axis] - 1)
    return told >= {axis for axis, count in enumerate(kernel.grid) if not surely_at_most(count, 1)}


def hindrances(
    body: Region,
    carries: Sequence[tuple[Value, int, object]],
    hinders: Hinders,
    in_order: bool = True,
) -> list[str]:
    """For each argument, why the result that replaces it cannot be computed straight into its
    memory, "" where it can: all its readers have to come before, or be the operation itself and
    allow it. A loop takes it over as the start of the same carried value; branches, if each of them
    could, or returns it as it is. in_order: as the operations stand; False: as if all other readers
    of an argument came before what replaces it."""
    results = Results(body, in_order)
    return [results.hindrance([old], body.results[index], hinders) for old, index, _ in carries]


class Results:
    """A region's results: what they are made of, and what may lie where something else does."""

    def __init__(self, region: Region, in_order: bool = True) -> None:
        self.region, self.in_order = region, in_order
        self.roots = alias_roots(region)
        self.names: dict[Value, list[Value]] = {}
        for value, source in self.roots.items():
            self.names.setdefault(source, []).append(value)
        self.results = Counter(self.roots.get(value, value) for value in region.results)
        self.position = {op: number for number, op in enumerate(region.ops)}

    def passed_on(self, number: int) -> int | None:
        """The number of the argument that the result is, if it is one and nothing else is it."""
        result = self.region.results[number]
        root = self.roots.get(result, result)
        alone = self.results[root] == 1 and root.op is None and root in self.region.arguments
        return root.index if alone else None

    def computed(self, number: int) -> bool:
        """Whether one kernel of the region makes the result, and nothing else returns it."""
        result = self.region.results[number]
        root = self.roots.get(result, result)
        op = root.op
        if op is None or op not in self.position or self.results[root] != 1:
            return False
        return not (op.definition.flow or op.definition.stored or fills(op))

    def hindrance(self, old: Collection[Value], result: Value, hinders: Hinders) -> str:
        """Why a result cannot lie where `old` does, an argument or captured value by all its names;
        "" where it can."""
        root = self.roots.get(result, result)
        op = root.op
        if op is None or op not in self.position:
            return "the result is no value that is computed here"
        if self.results[root] > 1:
            return f"{op.place}what replaces it is returned twice"
        if op.definition.stored:
            return f"{op.place}what replaces it comes from '{op.name}'"
        names = [*old, *(name for value in old for name in self.names.get(value, ()))]
        own = []
        for user, number in (use for name in names for use in self.region.uses.get(name, ())):
            if user is None:
                return "it is returned as it is"
            if user is op:
                own.append(number)
            elif self.in_order and self.position[user] > self.position[op] and not aliases(user):
                return (
                    f"{user.place}{_kernel(user)} reads it, when what replaces it is computed "
                    f"already ({op.place}{_kernel(op)})"
                )
        if not own:
            return ""
        if op.definition.flow == "branch" and set(own) == {-1}:
            return next(filter(None, (_branch(b, names, root, hinders) for b in op.regions)), "")
        alone = len(own) == 1 and own[0] >= 0
        if op.name == "while":
            why = "" if alone and own[0] == root.index else "which needs it in every turn"
        else:
            why = hinders(op, own[0], root.index) if alone else "which reads it more than once"
        return why and f"{op.place}what replaces it comes from {_kernel(op)}, {why}"


def _branch(body: Region, old: Collection[Value], result: Value, hinders: Hinders) -> str:
    """Why the branch's result of that number cannot lie where `old` does, "" where it can."""
    found = Results(body)
    value = body.results[result.index]
    kept = found.roots.get(value, value) in old
    if kept and found.results[found.roots.get(value, value)] == 1:
        return ""
    return found.hindrance(old, value, hinders)


def _kernel(op: Op) -> str:
    """What kind of kernel an operation is."""
    kind = op.attributes.get("kind", op.attributes.get("kernel", ""))
    return f"{op.name} '{kind}'" if kind else op.name

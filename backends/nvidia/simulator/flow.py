"""Control flow: calls become copies of their bodies, instructions become blocks with ranks.

A *rank* is a place in an order in which every block stands before its successors, loops are
contiguous, and every loop ends in a *latch* through which all back edges go. Running the threads
of the lowest rank first therefore brings diverged threads together again as early as immediate
postdominators do (earlier where some paths leave the kernel), and once per loop iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from ....hlo.errors import UserError
from .syntax import (
    CARRY,
    Address,
    Function,
    Group,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from .table import Bound, Entry

CONTROL = frozenset(("bra", "brx", "ret", "exit"))
MAXIMUM_DEPTH = 64


@dataclass(slots=True, eq=False)
class Node:
    """An instruction with its meaning and its registers."""

    instruction: Instruction
    entry: Entry
    number: int  # index into Program.nodes
    bound: Bound | None
    writes: tuple[int, ...]
    reads: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Block:
    number: int
    nodes: list[Node] = field(default_factory=list)
    kind: str = "jump"  # "jump", "branch", "index", "exit"
    guard: Register | None = None
    negated: bool = False
    index: Operand | None = None
    successors: list[int] = field(default_factory=list)  # branch: taken, then not taken
    instruction: Instruction | None = None  # that ends the block
    rank: int = -1
    live_in: int = 0
    live_out: int = 0
    blocking: bool = False


@dataclass(slots=True, eq=False)
class Flow:
    """Blocks in order of their ranks; `latches`: rank of a latch -> rank of its loop's header."""

    blocks: list[Block]
    latches: dict[int, int]
    nodes: list[Node]
    registers: list[Register]
    variables: dict[str, Variable]  # local and shared ones of all bodies


# ---------------------------------------------------------------- calls


@dataclass(slots=True, eq=False)
class _Flat:
    module: Module
    items: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    copies: int = 0

    def add(self, function: Function, names: dict[str, str], depth: int, prefix: str) -> None:
        if depth > MAXIMUM_DEPTH:
            raise UserError(f"PTX line {function.line}: '{function.name}' calls itself")
        if function.body is None:
            raise UserError(f"PTX line {function.line}: '{function.name}' has no body here")
        base = len(self.registers)
        self.registers += [replace(r, number=base + r.number) for r in function.registers]
        for variable in function.variables.values():
            own = prefix if variable.space in ("local", "param") else f"{function.name}:"
            name = names[variable.name] = own + variable.name if depth else variable.name
            self.variables[name] = replace(variable, name=name)
        for label in function.labels:
            names[label] = prefix + label
        ends: dict[int, list[str]] = {}
        for label, position in function.labels.items():
            ends.setdefault(position, []).append(label)
        plain = depth == 0
        for position, instruction in enumerate(function.body):
            for label in ends.get(position, ()):
                self.labels[prefix + label] = len(self.items)
            if not plain:
                instruction = self._copy(instruction, base, names)
            if instruction.parts[0] == "call":
                self._call(instruction, depth)
            elif instruction.parts[0] == "ret" and not plain:
                self._branch(instruction, prefix + "@end")
            else:
                self.items.append(instruction)
        for label in ends.get(len(function.body), ()):
            self.labels[prefix + label] = len(self.items)
        self.labels[prefix + "@end"] = len(self.items)

    def _branch(self, model: Instruction, label: str) -> None:
        self.items.append(
            replace(model, opcode="bra", parts=("bra",), operands=(Symbol(label),), text="ret")
        )

    def _copy(self, instruction: Instruction, base: int, names: dict[str, str]) -> Instruction:
        def clone(operand: Any) -> Any:
            if isinstance(operand, Register):
                return self.registers[base + operand.number]
            if isinstance(operand, Symbol):
                return Symbol(names.get(operand.name, operand.name), operand.offset)
            if isinstance(operand, Vector):
                return Vector(tuple(map(clone, operand.items)))
            if isinstance(operand, Group):
                return Group(tuple(map(clone, operand.items)))
            if isinstance(operand, Address):
                coordinates = clone(operand.coordinates) if operand.coordinates else None
                more = tuple(map(clone, operand.more))
                return Address(clone(operand.base), operand.offset, coordinates, more)
            if isinstance(operand, Pair):
                return Pair(clone(operand.first), clone(operand.second))
            if isinstance(operand, Negated):
                return Negated(clone(operand.register))
            return operand

        return replace(
            instruction,
            operands=tuple(map(clone, instruction.operands)),
            guard=clone(instruction.guard) if instruction.guard else None,
            targets=tuple(names.get(t, t) for t in instruction.targets),
        )

    def _call(self, instruction: Instruction, depth: int) -> None:
        groups = [o for o in instruction.operands if isinstance(o, Group)]
        targets = [o for o in instruction.operands if isinstance(o, Symbol)]
        first = instruction.operands[0]
        results = first.items if isinstance(first, Group) else ()
        arguments = groups[-1].items if len(groups) > bool(results) else ()
        callee = self.module.functions.get(targets[0].name) if targets else None
        if callee is None:
            raise UserError(
                f"PTX line {instruction.line}: only calls of known functions are simulated: "
                f"{instruction.text}"
            )
        self.copies += 1
        prefix = f"{callee.name}#{self.copies}:"
        names: dict[str, str] = {}
        skip = f"{prefix}@skip"
        if instruction.guard is not None:
            self.items.append(
                replace(
                    instruction,
                    opcode="bra",
                    parts=("bra",),
                    operands=(Symbol(skip),),
                    guard_negated=not instruction.guard_negated,
                )
            )
            instruction = replace(instruction, guard=None)
        pairs = [*zip(callee.parameters, arguments, strict=False)]
        pairs += [*zip(callee.results, results, strict=False)]
        if len(callee.parameters) != len(arguments) or len(callee.results) != len(results):
            raise UserError(f"PTX line {instruction.line}: arguments of '{callee.name}' differ")
        for formal, actual in pairs:
            if not isinstance(actual, Symbol):
                raise UserError(
                    f"PTX line {instruction.line}: calls pass .param variables only, "
                    f"not '{instruction.text}'"
                )
            names[formal.name] = actual.name
        self.add(callee, names, depth + 1, prefix)
        self.labels[skip] = len(self.items)


# ---------------------------------------------------------------- blocks


def registers_of(operand: Any) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector | Group):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        if operand.coordinates:
            yield from registers_of(operand.coordinates)
        for item in operand.more:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Negated):
        yield operand.register


def _numbers(operands: Any) -> tuple[int, ...]:
    return tuple(r.number for operand in operands for r in registers_of(operand))


def build(module: Module, function: Function, table: dict[str, Entry], find: Any) -> Flow:
    """Blocks of `function` with all calls copied in, ranked, with live registers."""
    flat = _Flat(module)
    flat.add(function, {}, 0, "")
    items = flat.items
    nodes: list[Node] = []
    starts = set(flat.labels.values()) | {0}
    meanings: list[Node | None] = []
    for position, instruction in enumerate(items):
        if instruction.parts[0] in CONTROL:
            meanings.append(None)
            starts.add(position + 1)
            continue
        entry = find(table, instruction)
        if entry is None:
            raise UserError(
                f"PTX line {instruction.line}: instruction '{instruction.opcode}' is not known to "
                f"the simulator\n    {instruction.text}"
            )
        node = _node(instruction, entry, len(nodes))
        nodes.append(node)
        meanings.append(node)
        blocking = node.bound is not None and node.bound.blocking
        if blocking or (instruction.guard is not None and entry.kind != "expression"):
            starts |= {position, position + 1}
    order = sorted(s for s in starts if s <= len(items))
    if not order or order[-1] != len(items):
        order.append(len(items))
    at = {start: number for number, start in enumerate(order)}
    blocks: list[Block] = []
    for number, start in enumerate(order):
        block = Block(number)
        blocks.append(block)
        if start == len(items):
            block.kind = "exit"
            continue
        end = order[number + 1]
        block.nodes = [n for n in meanings[start:end] if n is not None]
        block.blocking = any(n.bound is not None and n.bound.blocking for n in block.nodes)
        _terminate(block, items[end - 1], flat.labels, at, at[end])
    _skips(blocks)
    return _rank(blocks, nodes, flat)


def _node(instruction: Instruction, entry: Entry, number: int) -> Node:
    if entry.kind == "operation":
        try:
            bound = entry.function(instruction)
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            place = f"PTX line {instruction.line}: {instruction.text}"
            raise UserError(f"{place}: this form is not known ({problem!r})") from problem
        writes = _numbers(operand for operand, _ in bound.targets)
        reads = _numbers(operand for operand, _ in bound.sources)
        return Node(instruction, entry, number, bound, writes, reads)
    operands = instruction.operands
    writes = _numbers(operands[: entry.results])
    reads = _numbers(operands[entry.results :])
    last = operands[-1] if operands else None
    if isinstance(last, Register) and last.name == CARRY:
        writes += (last.number,)
    if instruction.guard is not None and entry.kind == "expression":
        reads += (instruction.guard.number, *writes)
    return Node(instruction, entry, number, None, writes, reads)


def _terminate(
    block: Block, last: Instruction, labels: dict[str, int], at: dict[int, int], following: int
) -> None:
    block.successors = [following]
    kind = last.parts[0]
    if kind not in CONTROL:
        return
    block.instruction = last
    if kind == "brx":
        block.kind, block.index = "index", last.operands[0]
        block.successors = [at[labels[name]] for name in last.targets]
    elif kind == "bra":
        target = last.operands[0]
        assert isinstance(target, Symbol)
        block.successors = [at[labels[target.name]]]
        if last.guard is not None:
            block.successors.append(following)
    else:
        block.kind, block.successors = "exit", []
        if last.guard is not None:
            block.successors = [-1, following]  # -1: the exit, set by _skips
    if last.guard is not None:
        block.kind, block.guard, block.negated = "branch", last.guard, last.guard_negated


def _skips(blocks: list[Block]) -> None:
    """`@p effect` becomes a branch around the effect; `@p ret` a branch to an exit."""
    exit_block: Block | None = None
    for block in list(blocks):
        for position, successor in enumerate(block.successors):
            if successor == -1:
                if exit_block is None:
                    exit_block = Block(len(blocks), kind="exit")
                    blocks.append(exit_block)
                block.successors[position] = exit_block.number
        first = block.nodes[0] if block.nodes else None
        if first is None or first.instruction.guard is None or first.entry.kind == "expression":
            continue
        inner = Block(len(blocks), [first], blocking=block.blocking)
        inner.successors = list(block.successors)
        blocks.append(inner)
        block.nodes, block.blocking, block.kind = [], False, "branch"
        block.guard, block.negated = first.instruction.guard, first.instruction.guard_negated
        block.instruction = first.instruction
        block.successors = [inner.number, *block.successors]


# ---------------------------------------------------------------- ranks


def _components(nodes: list[int], edges: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for successor in rest:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
    return found


def _order(
    nodes: list[int], edges: dict[int, list[int]], entered: set[int], output: list[tuple[str, int]]
) -> None:
    """Appends ("block", b) and ("latch", header) in rank order; `entered`: nodes that are entered
    from outside of `nodes`."""
    components = _components(nodes, edges)
    of = {member: number for number, c in enumerate(components) for member in c}
    waiting = [0] * len(components)
    following: list[set[int]] = [set() for _ in components]
    for node in nodes:
        for successor in edges[node]:
            if of[successor] != of[node]:
                if of[successor] not in following[of[node]]:
                    waiting[of[successor]] += 1
                following[of[node]].add(of[successor])
                entered.add(successor)
    ready: list[tuple[int, int]] = []
    for number, component in enumerate(components):
        if not waiting[number]:
            heappush(ready, (min(component), number))
    while ready:
        _, number = heappop(ready)
        component = components[number]
        header = component[0]
        if len(component) == 1 and header not in edges[header]:
            output.append(("block", header))
        else:
            doors = [n for n in component if n in entered]
            header = min(doors or component)
            output.append(("block", header))
            inside = set(component) - {header}
            rest = sorted(inside)
            if rest:
                inner = {n: [s for s in edges[n] if s in inside] for n in rest}
                _order(rest, inner, {s for s in edges[header] if s in inside}, output)
            output.append(("latch", header))
        for successor in following[number]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heappush(ready, (min(components[successor]), successor))


def _rank(blocks: list[Block], nodes: list[Node], flat: _Flat) -> Flow:
    reached, work = {0}, [0]
    while work:
        for successor in blocks[work.pop()].successors:
            if successor not in reached:
                reached.add(successor)
                work.append(successor)
    inside = sorted(reached)
    edges = {n: list(dict.fromkeys(blocks[n].successors)) for n in inside}
    output: list[tuple[str, int]] = []
    _order(inside, edges, {0}, output)
    ordered: list[Block] = []
    latch_of: dict[int, Block] = {}
    for kind, number in output:
        block = blocks[number] if kind == "block" else Block(-1, successors=[number])
        block.rank = len(ordered)
        ordered.append(block)
        if kind == "latch":
            latch_of[number] = block
    latches = {block.rank: blocks[header].rank for header, block in latch_of.items()}
    for block in ordered:
        if block.rank in latches:
            block.successors = [latches[block.rank]]
            continue
        ranks = []
        for successor in block.successors:
            back = blocks[successor].rank <= block.rank
            ranks.append(latch_of[successor].rank if back else blocks[successor].rank)
        block.successors = ranks
    _liveness(ordered)
    return Flow(ordered, latches, nodes, flat.registers, flat.variables)


def _liveness(blocks: list[Block]) -> None:
    uses, writes = [0] * len(blocks), [0] * len(blocks)
    for block in blocks:
        use = write = 0
        for node in block.nodes:
            for register in node.reads:
                if not write >> register & 1:
                    use |= 1 << register
            for register in node.writes:
                write |= 1 << register
        for register in registers_of(block.guard) if block.guard else ():
            if not write >> register.number & 1:
                use |= 1 << register.number
        for register in registers_of(block.index) if block.index else ():
            if not write >> register.number & 1:
                use |= 1 << register.number
        uses[block.rank], writes[block.rank] = use, write
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = 0
            for successor in block.successors:
                out |= blocks[successor].live_in
            inward = uses[block.rank] | (out & ~writes[block.rank])
            if out != block.live_out or inward != block.live_in:
                block.live_out, block.live_in, changed = out, inward, True

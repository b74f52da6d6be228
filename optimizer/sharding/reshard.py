"""From one sharding to another: the cheapest moves, their bytes, their memory.

    plan = plan_reshard(mesh, (1024, 1024), 4, source, target)
    print(plan)

A plan is the cheaper of a chain of collectives and one direct exchange, or a chain that ends with
an exchange (`moves.py`), on an interconnect that is data. `lowering.py` makes a program of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ...hlo.errors import UserError
from ...hlo.ops.collectives import share
from ...hlo.sharding import Axis, Mesh, Sharding
from .blocks import (
    Atoms,
    BlockState,
    Numbers,
    TensorBlocks,
    atoms_of,
    require_grains,
    require_legal,
)
from .interconnect import USUAL, Interconnect, seconds, slowest
from .moves import (
    ALL_GATHER,
    ALL_REDUCE,
    EXCHANGE,
    MAXIMUM_ATOMS,
    PERMUTE,
    SLICE,
    ChainProblem,
    ChainResult,
    ChainStep,
    cheapest,
    padded,
    peak,
)


@dataclass(frozen=True)
class ReshardMove:
    """One step of a plan.

    kind: slice, permute, all_to_all, all_gather, reduce_scatter, all_reduce or exchange.
    axes: along which devices take part, in the order of their places in a group.
    dim, to: the dim that axes leave, the one that they come to cut; None where there is none.
    grains: of each dim before and after; empty where all are 1.
    received: the bytes that each device gets from others, as `interpret_parallel` counts them.
    peak: bytes of a device's blocks before and after, which are there at one time.
    """

    kind: str
    before: Sharding
    after: Sharding
    axes: tuple[Axis, ...]
    dim: int | None
    to: int | None
    grains: tuple[Numbers, Numbers]
    received: tuple[int, ...]
    peak: int

    def __str__(self) -> str:
        axes = f" {{{', '.join(map(str, self.axes))}}}" if self.axes else ""
        ways = "" if self.dim is None else f" of dim {self.dim}"
        ways += "" if self.to is None else f" to dim {self.to}"
        return f"{self.kind}{axes}{ways} -> {self.after}: {_counted(self.received)}"


@dataclass(frozen=True)
class ReshardPlan:
    """How a tensor of `dims`, `itemsize` bytes an element, gets from source to target.

    grains: of each dim at the source and at the target; empty where all are 1.
    received: bytes that each device gets from others. least: the same, if every box that a device
    lacks came to it once, values to fold as their fold, and nothing else. seconds: what the
    interconnect says. peak: the most bytes of its blocks that a device has at one time. proven: no
    chain of moves is cheaper.
    """

    mesh: Mesh
    dims: tuple[int, ...]
    itemsize: int
    source: Sharding
    target: Sharding
    grains: tuple[Numbers, Numbers]
    moves: tuple[ReshardMove, ...]
    received: tuple[int, ...]
    least: tuple[int, ...]
    seconds: float
    peak: int
    proven: bool

    def local(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dims of a device's block, of the source and of the target."""
        atoms = atoms_of(self.mesh, (self.source, self.target), prime=False)
        blocks = atoms.blocks(self.dims, self.itemsize)
        ends = zip((self.source, self.target), self.grains, strict=True)
        source, target = (blocks.local(atoms.state(*end)) for end in ends)
        return source, target

    @property
    def mean(self) -> float:
        """Bytes received, the mean of all devices."""
        return sum(self.received) / len(self.received)

    @property
    def maximum(self) -> int:
        """Bytes that the device receives that receives most."""
        return max(self.received)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.dims)) or "scalar"
        ends = [
            f"{end} in grains {grains}" if max(grains, default=1) > 1 else str(end)
            for end, grains in zip((self.source, self.target), self.grains, strict=True)
        ]
        lines = [f"{shape}, {self.itemsize} bytes each: {ends[0]} -> {ends[1]}"]
        lines += [f"  {move}" for move in self.moves]
        lines.append(
            f"  {_counted(self.received)}, needed {_mean(self.least)}; "
            f"{self.peak} bytes of memory; {self.seconds * 1e6:.1f} us"
            + ("" if self.proven else "; the search ended at its bound")
        )
        return "\n".join(lines)


def _mean(received: Sequence[int]) -> str:
    return f"{sum(received) / len(received):.12g}"


def _counted(received: Sequence[int]) -> str:
    same = len(set(received)) == 1
    return f"{_mean(received)} bytes a device" + ("" if same else f", at most {max(received)}")


def plan_reshard(
    mesh: Mesh,
    dims: Sequence[int],
    itemsize: int,
    source: Sharding,
    target: Sharding,
    interconnect: Interconnect = USUAL,
    exchange: bool = True,
    grains: tuple[Numbers, Numbers] = ((), ()),
    memory: int | None = None,
) -> ReshardPlan:
    """The cheapest plan on this interconnect; `exchange=False`: of collectives alone.

    dims: of the whole tensor; itemsize: bytes of an element. Open dims, priorities and replicated
    axes of the shardings say nothing here. The target may be unreduced where the source is.
    grains: for each dim, what no block of the source, and of the target, cuts (`blocks.py`).
    memory: bytes of a device's blocks, before and after a move, that no move may exceed.
    UserError for shardings that do not fit the mesh or the dims, and where collectives alone
    (blocks of uneven dims that do not nest), or this memory, cannot do it.
    """
    return _plan(
        mesh, tuple(dims), itemsize, source, target, interconnect, exchange, grains, memory
    )


@functools.lru_cache(maxsize=8192)  # equal layers ask the same
def _plan(
    mesh: Mesh, dims: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding,
    interconnect: Interconnect, exchange: bool, grains: tuple[Numbers, Numbers],
    memory: int | None,
) -> ReshardPlan:  # fmt: skip
    require_legal(mesh, dims, source, target)
    require_grains(dims, grains)
    for prime in (True, False):
        atoms = atoms_of(mesh, (source, target), prime)
        ends = _ends(atoms, source, target, grains)
        movable = {atom for end in ends for atom in end.atoms} - _kept(*ends)
        if len(movable) <= MAXIMUM_ATOMS:
            break
    if not set(ends[1].pending) <= set(ends[0].pending):
        raise UserError(f"{source} and {target} cut an unreduced axis in ways that do not nest")
    blocks = atoms.blocks(dims, itemsize)
    if atoms.disjoint:
        found = _search(atoms, blocks, ends, movable, interconnect, exchange, memory)
    else:
        found = _direct(atoms, blocks, ends, interconnect) if exchange else None
    if found is None or memory is not None and any(peak(blocks, s) > memory for s in found.steps):
        within = "" if memory is None else f" in {memory} bytes of a device's memory"
        both = sum(map(blocks.bytes, ends))
        remedy = f"its blocks at both ends have {both}" if memory else "an exchange leads there"
        raise UserError(
            f"no chain of moves was found from {source} to {target} on {mesh}{within}; {remedy}"
        )
    moves = tuple(_move(atoms, blocks, step, source) for step in found.steps)
    totals = zip(*(move.received for move in moves), strict=True)
    received = tuple(map(sum, totals)) if moves else (0,) * blocks.devices
    most = max((move.peak for move in moves), default=blocks.bytes(ends[0]))
    least = tuple(map(int, _least(blocks, *ends)))
    return ReshardPlan(
        mesh, dims, itemsize, source, target, (ends[0].grains, ends[1].grains), moves,
        received, least, found.seconds, most, found.proven,
    )  # fmt: skip


def _ends(
    atoms: Atoms, source: Sharding, target: Sharding, grains: tuple[Numbers, Numbers]
) -> tuple[BlockState, BlockState]:
    """The two states. A dim that nothing cuts at one end has the other end's grain there."""
    one, other = (atoms.state(*end) for end in zip((source, target), grains, strict=True))
    if not any(grains):
        return one, other
    left, right = [], []
    for dim in range(len(one.dims)):
        here, there = one.grain(dim), other.grain(dim)
        left.append(here if one.dims[dim] else there)
        right.append(there if other.dims[dim] else here)
    return one._replace(grains=tuple(left)), other._replace(grains=tuple(right))


def _kept(source: BlockState, target: BlockState) -> set[int]:
    """Atoms that both states begin a dim with."""
    alike = (source.alike(target, dim) for dim in range(len(source.dims)))
    return {atom for atoms in alike for atom in atoms}


def _search(
    atoms: Atoms, blocks: TensorBlocks, ends: tuple[BlockState, BlockState], movable: set[int],
    interconnect: Interconnect, exchange: bool, memory: int | None,
) -> ChainResult | None:  # fmt: skip
    """`cheapest` of the same problem with atoms numbered as they come, so that equal ones meet."""
    sizes = blocks.sizes
    links = [interconnect.link(axis.name) for axis in atoms.axes]
    order = list(dict.fromkeys(ends[0].atoms + ends[1].atoms))
    rest = set(range(len(sizes))).difference(order)
    unused = sorted(rest, key=lambda atom: (sizes[atom], links[atom]))
    order += unused[: max(MAXIMUM_ATOMS - len(movable), 0)]
    number = {atom: place for place, atom in enumerate(order)}

    def renamed(state: BlockState, names: dict[int, int]) -> BlockState:
        dims = tuple(tuple(names[atom] for atom in atoms) for atoms in state.dims)
        return BlockState(dims, tuple(sorted(names[atom] for atom in state.pending)), state.grains)

    problem = ChainProblem(
        tuple(sizes[atom] for atom in order), tuple(links[atom] for atom in order), blocks.dims,
        blocks.itemsize, renamed(ends[0], number), renamed(ends[1], number), exchange,
        memory,
    )  # fmt: skip
    found = cheapest(problem)
    if found is None:
        return None
    back = dict(enumerate(order))
    steps = tuple(
        step._replace(
            before=renamed(step.before, back), after=renamed(step.after, back),
            group=tuple(back[atom] for atom in step.group),
        )
        for step in found.steps
    )  # fmt: skip
    return found._replace(steps=steps)


def _direct(
    atoms: Atoms,
    blocks: TensorBlocks,
    ends: tuple[BlockState, BlockState],
    interconnect: Interconnect,
) -> ChainResult:
    """The exchange alone, where the ends share no atoms."""
    missing = blocks.missing(*ends)
    link = slowest(interconnect.link(axis.name) for axis in atoms.axes)
    spent = seconds(link, float(blocks.messages(*ends).max()), float(missing.mean()))
    step = ChainStep(EXCHANGE, *ends, tuple(range(len(atoms.axes))))
    return ChainResult((step,), spent if missing.any() else 0.0, True)


def _move(atoms: Atoms, blocks: TensorBlocks, step: ChainStep, like: Sharding) -> ReshardMove:
    return ReshardMove(
        step.kind,
        atoms.sharding(step.before, like),
        atoms.sharding(step.after, like),
        atoms.merged(step.group),
        step.dim,
        step.to,
        (step.before.grains, step.after.grains),
        tuple(map(int, _received(blocks, step))),
        peak(blocks, step),
    )


def _received(blocks: TensorBlocks, step: ChainStep) -> Sequence[int]:
    """Bytes that each device gets from others in one step."""
    size, count = blocks.bytes(step.before), blocks.parts(step.group)
    if step.kind == SLICE:
        return [0] * blocks.devices
    if step.kind == EXCHANGE:
        return list(blocks.missing(step.before, step.after))
    if step.kind == PERMUTE:
        return list(blocks.moving(step.before, step.after) * size)
    if step.kind == ALL_GATHER:
        return [size * (count - 1)] * blocks.devices
    if step.kind == ALL_REDUCE:
        return [2 * (size - share(size, count, int(i))) for i in blocks.index(step.group)]
    assert step.to is not None
    finer = step.after.dims[step.to]
    whole = padded(blocks, step.before, step.to, finer, count)
    return [whole - whole // count] * blocks.devices


def _least(blocks: TensorBlocks, source: BlockState, target: BlockState) -> Sequence[int]:
    """What each device lacks; unreduced values may be folded on the way to it."""
    if not blocks.folded(source, target):
        return list(blocks.missing(source, target))
    return list(blocks.held(target) * blocks.itemsize)

"""Clusters of blocks, fences between proxies, and registers that warp groups hand over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .block_barriers import check_aligned
from .mbarriers import meet
from .memory import CLUSTER_SHIFT, SHARED_BASE
from .syntax import Immediate, Instruction
from .table import Bound, operation
from .traffic import Traffic
from .warpgroups import rendezvous

if TYPE_CHECKING:
    from .engine import At, Batch

OFFSET = (1 << CLUSTER_SHIFT) - 1
REGISTERS = 65536  # of a multiprocessor


class ClusterBarrier:
    """barrier.cluster of the batch's cluster; threads that have left count as arrived."""

    def __init__(self, state: Batch) -> None:
        self.state = state
        self.arrived = np.zeros(state.T, bool)
        self.phase = 0
        self.phase_of = np.full(state.T, -1)  # in which a thread has arrived, before its wait

    @staticmethod
    def of(state: Batch) -> ClusterBarrier:
        found = state.data.get("cluster barrier")
        if found is None:
            found = state.data["cluster barrier"] = ClusterBarrier(state)
        return found

    def advance(self) -> None:
        if self.arrived.any() and (self.arrived | ~self.state.live).all():
            self.arrived[:] = False
            self.phase += 1


@operation("barrier.cluster.arrive")
def cluster_arrive(instruction: Instruction) -> Bound:
    aligned = "aligned" in instruction.parts

    def run(at: At) -> None:
        if aligned:
            check_aligned(at, at.threads)
        meet(at)
        barrier = ClusterBarrier.of(at.state)
        if (barrier.phase_of[at.threads] >= 0).any():
            at.fault("barrier", "a thread arrives at the cluster's barrier again before its wait")
        barrier.arrived[at.threads] = True
        barrier.phase_of[at.threads] = barrier.phase
        barrier.advance()

    return Bound(run)


@operation("barrier.cluster.wait")
def cluster_wait(instruction: Instruction) -> Bound:
    aligned = "aligned" in instruction.parts

    def run(at: At) -> None:
        if aligned:
            check_aligned(at, at.threads)
        barrier = ClusterBarrier.of(at.state)
        phases = barrier.phase_of[at.threads]
        if (phases < 0).any():
            at.fault("barrier", "barrier.cluster.wait without an arrive before it")
        barrier.phase_of[at.threads] = -1
        phase = int(phases.max())
        barrier.advance()
        if barrier.phase <= phase:

            def ready() -> bool:
                barrier.advance()
                return barrier.phase > phase

            at.park(np.ones(at.threads.size, bool), ready, "all blocks of the cluster")

    return Bound(run, blocking=True)


@operation("mapa")
def mapa(instruction: Instruction) -> Bound:
    """The shared::cluster address of the same variable in another block of the cluster."""
    generic = "shared::cluster" not in instruction.parts
    target, address, rank = instruction.operands
    kind = "u8" if instruction.parts[-1].endswith("64") else "u4"

    def run(at: At, address: Any, rank: Any) -> Any:
        ranks = rank.astype(np.int64)
        size = math.prod(at.state.launch.cluster)
        if (ranks >= size).any():
            at.fault("cluster", f"mapa to rank {int(ranks.max())} of a cluster of {size} blocks")
        mapped = (address.astype(np.int64) & OFFSET) | (ranks + 1) << CLUSTER_SHIFT
        if generic:
            mapped = mapped + SHARED_BASE
        return (mapped.astype(np.uint64 if kind == "u8" else np.uint32),)

    return Bound(run, ((address, kind), (rank, "u4")), ((target, kind),))


@operation("getctarank")
def getctarank(instruction: Instruction) -> Bound:
    target, address = instruction.operands
    kind = "u8" if instruction.parts[-1].endswith("64") else "u4"

    def run(at: At, address: Any) -> Any:
        state = at.state
        own = np.array([cta.rank for cta in state.ctas])[
            state.lanes[at.threads] // state.threads_per_cta
        ]
        rank = (address.astype(np.int64) & (SHARED_BASE - 1)) >> CLUSTER_SHIFT
        return (np.where(rank == 0, own, rank - 1).astype(np.uint32),)

    return Bound(run, ((address, kind),), ((target, "u4"),))


@operation("fence.proxy.async")
def fence_proxy(instruction: Instruction) -> Bound:
    """What the thread wrote before is seen by copies and products issued later."""
    shared = "global" not in instruction.parts

    def run(at: At) -> None:
        if shared:
            Traffic.of(at.state).fence(at.threads)

    return Bound(run)


@operation("fence.proxy.tensormap", "fence.proxy.alias", "fence.mbarrier_init", lockstep=True)
def fence(instruction: Instruction) -> Bound:
    """Threads of this simulator see each other's writes at once."""
    return Bound(lambda at: None)


@operation("griddepcontrol", lockstep=True)
def griddepcontrol(instruction: Instruction) -> Bound:
    """Kernels of a stream run one after the other here."""
    return Bound(lambda at: None)


@operation("setmaxnreg")
def setmaxnreg(instruction: Instruction) -> Bound:
    """A pool of registers for each block: `dec` gives some back, `inc` waits for them."""
    wanted = instruction.operands[0]
    releases = "dec" in instruction.parts

    def run(at: At) -> None:
        state = at.state
        count = wanted.value if isinstance(wanted, Immediate) else 0
        if count % 8 or not 24 <= count <= 256:
            at.fault("registers", f"setmaxnreg {count}; it takes multiples of 8 from 24 to 256")
        per_cta = state.threads_per_cta
        at_entry = min(255, REGISTERS // per_cta) // 8 * 8
        for threads in rendezvous(at):
            group = int(threads[0]) // 128
            pool = state.ctas[group * 128 // per_cta].data.setdefault("registers", {"free": 0})
            held = pool.get(group, at_entry)
            if releases and count > held or not releases and count < held:
                verb = "dec" if releases else "inc"
                at.fault("registers", f"setmaxnreg.{verb} {count} of a group that has {held}")
            if releases:
                pool["free"] += held - count
                pool[group] = count
                continue
            more = count - held

            def take(pool: Any = pool, more: int = more, group: int = group) -> bool:
                if pool["free"] < more:
                    return False
                pool["free"] -= more
                pool[group] = count
                return True

            if not take():
                text = f"{more} registers for each of its threads ({pool['free']} were free)"
                at.park(at.threads // 128 == group, take, text)

    return Bound(run, blocking=True)

"""Code that both roles share: the tiles that a block walks, and the state of its rings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ....optimizer.asynchronous.configuration import PipelineConfiguration, Ring
from ....optimizer.asynchronous.protocol import ROUND, TILE, Recorder, Verb
from ... import llvm
from ...llvm import Function, Value
from ..frame import rolled, special
from ..raster import places
from . import instructions as hopper
from .registers import FragmentEvaluator

State = tuple[Value, Value]  # (stage, parity of its phase), i32


@dataclass
class Rounds:
    """A loop while it is written: its variable, and what it carries besides states of rings: at
    the beginning of a round, behind it (which is to be set), behind the last one."""

    index: Value
    carried: Sequence[Value]
    following: Sequence[Value] = ()
    results: Sequence[Value] = ()


class Role:
    """One role of the kernel while it is written: its function, evaluator and rings; what it
    does to these is recorded."""

    def __init__(
        self, f: Function, plan: PipelineConfiguration, evaluator: FragmentEvaluator, parity: int
    ) -> None:
        self.f, self.plan, self.evaluator = f, plan, evaluator
        start = llvm.constant("i32", 0), llvm.constant("i32", parity)
        self.states: dict[Ring, State] = dict.fromkeys(plan.rings, start)
        self.rank = special(f, "cluster.ctarank") if plan.cluster > 1 else llvm.constant("i32", 0)
        self.recorder = Recorder()

    # Loops.

    def note(self, kind: str, *rings: Ring, count: int = 0, **facts: bool) -> None:
        """One verb more of the program."""
        numbers = tuple(map(self.plan.rings.index, rings))
        self.recorder.note(Verb(kind, numbers, count, **facts))

    @contextmanager
    def rounds(
        self, begin: Value, end: Value, step: Value | int, rings: Sequence[Ring],
        carried: Sequence[Value] = (), at_least_once: bool = False, each: str = ROUND,
    ) -> Iterator[Rounds]:  # fmt: skip
        """A loop in which these rings go on."""
        start = [*self.flat(rings), *carried]
        with self.f.for_range(
            begin, end, step, start, at_least_once=at_least_once, metadata=rolled(self.f)
        ) as loop:
            made = Rounds(loop.index, self.resume(rings, loop.carried))
            with self.recorder.repeated(each):
                yield made
            loop.carry(*self.flat(rings), *made.following)
        made.results = self.resume(rings, loop.results)

    # Rings.

    def flat(self, rings: Sequence[Ring]) -> list[Value]:
        """Their states as values that a loop carries."""
        return [value for ring in rings for value in self.states[ring]]

    def resume(self, rings: Sequence[Ring], values: Sequence[Value]) -> Sequence[Value]:
        """Takes the states from carried values; the values behind them."""
        for number, ring in enumerate(rings):
            self.states[ring] = values[2 * number], values[2 * number + 1]
        return values[2 * len(rings) :]

    def full(self, ring: Ring, stage: Value) -> Value:
        return self._barrier(ring.barriers, stage)

    def empty(self, ring: Ring, stage: Value) -> Value:
        return self._barrier(ring.barriers + 8 * ring.stages, stage)

    def _barrier(self, offset: int, stage: Value) -> Value:
        f = self.f
        at = f.mul(stage, 8) if stage.number is not None else f.shl(stage, 3)
        return hopper.shared(f, f.add(at, offset))

    def stage_offset(self, ring: Ring, stage: Value) -> Value:
        """Where a stage begins in shared memory, i32."""
        return self.f.add(self.f.mul(stage, ring.stage_bytes), ring.offset)

    def advance(self, ring: Ring) -> None:
        """The next stage; behind the last one the first again, with the other parity."""
        f = self.f
        self.note("advance", ring)
        stage, parity = self.states[ring]
        if ring.stages == 1:
            self.states[ring] = stage, f.xor(parity, 1)
            return
        following = f.add(stage, 1)
        wraps = f.compare("eq", following, ring.stages)
        self.states[ring] = (
            f.select(wraps, 0, following) if following.number is None else following,
            f.xor(parity, f.cast("zext", wraps, "i32")),
        )

    # Tiles.

    @contextmanager
    def each_tile(self) -> Iterator[None]:
        """The code inside is for each tile of this block, in an order that reuses the cache."""
        f, plan = self.f, self.plan
        name = "clusterid.x" if plan.cluster > 1 else "ctaid.x"
        first = special(f, name)
        if not plan.walks:
            with self.evaluator.inside(), self.recorder.repeated(TILE):
                self.evaluator.ids = self.places(first)
                yield
            return
        # As many as are launched: the device's own number of multiprocessors decides.
        stride = special(f, "nclusterid.x" if plan.cluster > 1 else "nctaid.x")
        last = f.constant("i32", plan.tiles)
        tiles = self.rounds(first, last, stride, plan.rings, (), True, TILE)
        with tiles as loop, self.evaluator.inside():
            self.evaluator.ids = self.places(loop.index)
            yield

    def places(self, number: Value) -> list[Value]:
        """The tile's place along each axis of the grid."""
        f, plan = self.f, self.plan
        sizes = list(plan.work.kernel.grid)
        if plan.cluster > 1:
            sizes[plan.cluster_axis] //= plan.cluster
        found = places(f, number, sizes, plan.raster)
        for axis in plan.reversed_axes:
            found[axis] = f.sub(f.constant("i32", sizes[axis] - 1), found[axis])
        if plan.cluster > 1:
            axis = plan.cluster_axis
            found[axis] = f.add(f.mul(found[axis], plan.cluster), self.rank)
        return found

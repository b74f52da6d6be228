"""Steps that are one launch: the first of them starts it, the others nothing. What a plan says of
it is checked."""

from __future__ import annotations

from collections.abc import Sequence

from ...specs.generated import plan_pb2
from ..profile import launch_name
from .driver import LaunchConfiguration
from .gpu_steps import KernelStep, Started, volume
from .limits import malformed
from .starts import table_of


def merge_steps(plan: plan_pb2.Plan, merge: plan_pb2.Merge, pieces: list[Sequence]) -> None:
    """Puts the launch of a merge into the pieces of its steps; UserError where the plan contradicts
    itself. pieces: of each step of the plan, what the device does."""
    steps = [_alone(pieces[one.step]) for one in merge.steps]
    numbers = sorted(one.step for one in merge.steps)
    if not numbers or numbers != [*range(numbers[0], numbers[-1] + 1)]:
        raise malformed("merged steps do not follow each other")
    first, inside = numbers[0], {*numbers[1:]}
    if inside & _targets(plan):
        raise malformed("a jump leads into merged steps")
    for step in steps:
        if inside.union((first,)).intersection(step.after) or (step.wait and step.step != first):
            raise malformed(f"step {step.step} waits for one that it is merged with")
        if step.scratch_bytes and not plan.steps[step.step].run.HasField("scratch"):
            raise malformed(f"kernel {step.kernel} has no scratch of its own")
    name = launch_name([step.kernel for step in steps])
    launch = _launch(merge, steps, name)
    scratches = tuple((step.scratch, step.scratch_bytes) for step in steps if step.scratch_bytes)
    for number in numbers:
        (step,) = pieces[number]
        if number == first:
            merged = step._replace(
                kernel=name, launches=(launch,), others=scratches, merged=len(steps),
                arrays=tuple(array for one in steps for array in one.arrays),
                after=tuple(sorted({other for one in steps for other in one.after})),
                scratch_bytes=0,
            )  # fmt: skip
        else:
            merged = step._replace(
                launches=(), after=(first,), wait=False, arrays=(), scratch_bytes=0
            )
        pieces[number] = [merged]


def _alone(piece: Sequence) -> KernelStep:
    """The step that one of a merge is by itself."""
    step = piece[0] if len(piece) == 1 else None
    if not isinstance(step, KernelStep) or len(step.launches) != 1 or step.merged > 1:
        raise malformed("a merged step is no launch of a kernel")
    return step


def _targets(plan: plan_pb2.Plan) -> set[int]:
    """The steps that control may come to from elsewhere."""
    found: set[int] = set()
    for step in plan.steps:
        action = step.WhichOneof("action")
        if action == "switch":
            found.update(step.switch.targets)
        elif action in ("jump", "branch_if_false"):
            found.add(getattr(step, action).target)
    return found


def _launch(merge: plan_pb2.Merge, steps: Sequence[KernelStep], name: str) -> Started:
    """The one launch."""
    cells, blocks = [], 0
    for one, step in zip(merge.steps, steps, strict=True):
        (own,) = step.launches
        start = own.start
        row = volume(start.block) == start.block[0] <= merge.threads
        cluster = start.cluster == (max(merge.cluster, 1), 1, 1)
        if not row or not cluster or start.shared_bytes > merge.shared_bytes:
            raise malformed(
                f"kernel {step.kernel} does not fit into the blocks that it is merged in"
            )
        if one.first_block != blocks or one.blocks != volume(start.grid):
            raise malformed(f"kernel {step.kernel} has no range of blocks of its own")
        if len(one.places) != len(own.parameters):
            raise malformed(f"kernel {step.kernel} has arguments without a place")
        blocks += one.blocks
        cells += zip(one.places, own.parameters, strict=True)
    start = LaunchConfiguration(
        merge.entry, (blocks, 1, 1), (merge.threads, 1, 1), (max(merge.cluster, 1), 1, 1),
        merge.shared_bytes,
    )  # fmt: skip
    return table_of(cells, merge.table_bytes, name, start)

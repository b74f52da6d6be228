"""Which steps of a plan run natively in one go, where others exchange between them.

A stretch is a range of steps that native code walks from its first to behind its last: no step of
it exchanges, nothing jumps into its middle, and nothing leaves it but at its end. So loops without
communication are part of a stretch, and Python takes the jumps of loops with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...specs.generated import plan_pb2

BETWEEN = ("exchange", "collective")  # what processes do together


def stretches(steps: Sequence[plan_pb2.Step]) -> list[tuple[int, int]]:
    """(first, behind the last) of each stretch, in order; steps in none are taken one by one."""
    count = len(steps)
    targets = [_targets(step) for step in steps]
    alone = [step.WhichOneof("action") in BETWEEN for step in steps]
    cuts: set[int] = set()
    while True:
        found = _ranges(alone, cuts, count)
        home = [-1] * count
        for number, (first, last) in enumerate(found):
            home[first:last] = [number] * (last - first)
        changed = False
        for number, leads in enumerate(targets):
            own = home[number]
            low, high = found[own] if own >= 0 else (0, 0)
            if all(low <= target <= high for target in leads) and (own >= 0 or not leads):
                continue
            if own >= 0:  # it leaves its stretch, so Python takes it
                alone[number] = changed = True
            fresh = {target for target in leads if target < count} - cuts
            changed = changed or bool(fresh)
            cuts |= fresh
        if not changed:
            return found


def _ranges(alone: Sequence[bool], cuts: set[int], count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    begin = 0
    for number in range(count + 1):
        if number == count or alone[number] or number in cuts:
            if begin < number:
                found.append((begin, number))
            begin = number + 1 if number < count and alone[number] else number
    return found


def _targets(step: plan_pb2.Step) -> list[int]:
    action = step.WhichOneof("action")
    if action == "jump":
        return [step.jump.target]
    if action == "branch_if_false":
        return [step.branch_if_false.target]
    return list(step.switch.targets) if action == "switch" else []

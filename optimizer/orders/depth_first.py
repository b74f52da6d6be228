"""Each task right after what it alone waits for: a walk backwards from the region's results."""

from __future__ import annotations

from .graph import TaskGraph, bits


def depth_first_order(graph: TaskGraph) -> list[int]:
    """All tasks; of what a task waits for, that which waits for most itself comes first."""
    weight = [mask.bit_count() for mask in graph.ancestors]
    done = 0
    order: list[int] = []
    ends = [number for number in range(len(graph.tasks)) if not graph.after[number]]
    for end in ends:
        stack = [end]
        while stack:
            number = stack[-1]
            missing = sorted(
                bits(graph.before[number] & ~done), key=lambda other: (weight[other], -other)
            )
            if done >> number & 1:
                stack.pop()
            elif missing:
                stack += missing
            else:
                done |= 1 << number
                order.append(stack.pop())
    return graph.tasks_of(order)

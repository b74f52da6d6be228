"""Walks a CPU plan of several processes: stretches of steps natively, what is between them here."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...specs.generated import plan_pb2
from .library import Collective
from .started import joined_world
from .stretches import stretches
from .transfers import Exchange, array_at
from .world import comm_timeout, mpi_world

Words = np.ndarray[Any, np.dtype[np.int64]]

_JUMPS = {"jump", "branch_if_false"}  # whose target stands in the fourth word of their row


class PlanWalker:
    """One plan, as this process runs it. `received`: bytes that came from other processes.

    Steps are rows of the variant's table (backends/cpu/executor.py); a stretch is a table of its
    own, whose jumps count from its first step. UserError where the launcher's processes are not
    those of the plan, or have another plan or other `facts` (name -> what has to be equal). Each
    wait for other processes may take `seconds`.
    """

    def __init__(
        self, plan: plan_pb2.Plan, rows: Words, facts: Mapping[str, bytes], seconds: float | None
    ) -> None:
        self.seconds = comm_timeout(seconds)
        self.world = mpi_world(joined_world(plan.processes, self.seconds), "a program for CPUs")
        facts = {**facts, "plan": plan.SerializeToString(deterministic=True)}
        what = "the comparison of plans before the first step"
        with self.world.lock:
            self.world.check_equal(facts, what, self.seconds)
            self.tag = self.world.next_tag()
        self.plan, self.rows = plan, rows
        self.received: Counter[str] = Counter()
        self.exchanges = {
            number: Exchange(plan, step.exchange, self.world.rank)
            for number, step in enumerate(plan.steps)
            if step.WhichOneof("action") == "exchange"
        }
        self.collectives = {
            number: Collective(plan, step.collective, self.world.rank)
            for number, step in enumerate(plan.steps)
            if step.WhichOneof("action") == "collective"
        }
        for one in self.collectives.values():  # in one order on all processes
            self.world.communicator_of(one.groups)
        # One exchange after the other packs and unpacks in it.
        most = max((exchange.scratch for exchange in self.exchanges.values()), default=0)
        self._scratch = np.empty(most, np.uint8)
        self.tables: dict[int, tuple[Words, int]] = {}  # by first step: table, the step behind it
        self._targets: list[Words] = []
        for first, last in stretches(plan.steps):
            self.tables[first] = self._table(first, last), last

    def _table(self, first: int, last: int) -> Words:
        table = np.zeros((last - first + 1, self.rows.shape[1]), np.int64)  # an end is all zeros
        table[:-1] = self.rows[first:last]
        for number in range(first, last):
            step = self.plan.steps[number]
            action = step.WhichOneof("action")
            if action in _JUMPS:
                table[number - first, 3] -= first
            elif action == "switch":
                own = np.array(step.switch.targets, np.int64) - first
                self._targets.append(own)  # the table points at it
                table[number - first, 3] = own.ctypes.data
        return table

    def run(self, words: Words, slots: Words, execute: Callable[[], Any]) -> None:
        """A call. words: the context's; execute() walks the table that its first word names."""
        steps, number = self.plan.steps, 0
        while number < len(steps):
            if (stretch := self.tables.get(number)) is not None:
                table, number = stretch
                words[0] = table.ctypes.data
                execute()
                continue
            step, row = steps[number], self.rows[number]
            action = step.WhichOneof("action")
            if action == "exchange":
                exchange = self.exchanges[number]
                addresses = int(slots[row[2]]), int(slots[row[3]]), self._scratch.ctypes.data
                exchange.run(self.world, *addresses, self.received, self.seconds, self.tag)
                number += 1
            elif action == "collective":
                one = self.collectives[number]
                given = array_at(int(slots[row[2]]), (one.given,), one.dtype)
                made = array_at(int(slots[row[3]]), (one.made,), one.dtype)
                one.run(self.world, given, made, self.seconds)
                self.received[one.kind] += one.bytes
                number += 1
            elif action == "jump":
                number = step.jump.target
            elif action == "branch_if_false":
                holds = ctypes.c_uint8.from_address(int(slots[row[2]])).value
                number = number + 1 if holds else step.branch_if_false.target
            else:
                chosen = ctypes.c_int32.from_address(int(slots[row[2]])).value
                last = len(step.switch.targets) - 1
                number = step.switch.targets[chosen if 0 <= chosen <= last else last]

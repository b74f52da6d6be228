"""order: of several strategies for a region's operations, the one whose schedule needs least memory
wins; then a search, which ends in an order or in a proof that there is no better one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ...hlo.graph import Module, Op, Region
from ...hlo.regions import map_bodies
from ...hlo.verify import FUSED, Level
from ..certify import check_order_bound
from ..measure import Measure, Scratch, measure, measure_body
from ..orders.beam import beam_order
from ..orders.bound import certified, forced_live
from ..orders.depth_first import depth_first_order
from ..orders.divide import WORK, search
from ..orders.graph import Pairs, Role, TaskGraph, task_graph
from ..orders.ready import least_net_order, list_order
from ..orders.source import source_order
from ..overwriting import Hinders, hinders_of
from ..schedule import ORDER_BOUND, ORDER_PROOF, remember
from .require_static import is_static

STRATEGIES: tuple[Callable[[TaskGraph], list[int]], ...] = (
    source_order, list_order, least_net_order, depth_first_order,
)  # fmt: skip
LITTLE = 0.001  # where no more than this can be gained, less work is worth it
SAVING = 16  # bytes that might be saved, for each move that a search looks at
LEAST_WORK = WORK // 16  # moves of any search, however little it can save
BY_BOUND, BY_EXHAUSTION = "proven by bound", "proven by exhaustion"
NOT_PROVEN = "not proven, stopped after {} states"


@dataclass(frozen=True)
class Order:
    """FUSED -> FUSED: every region of control flow, and the entry, in its best order.

    What any order of the entry needs that overwrites the donated arguments which can be, and how
    that is known, are attributes of the module.
    in_tiles, scratch: see `optimizer/measure.py`. work: moves that a search looks at, at most.
    """

    in_tiles: bool = False
    scratch: Scratch | None = None
    work: int = WORK

    name: ClassVar[str] = "order"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        if not is_static(module):
            return module  # no schedule can be made of it: that tells why
        orderer = _Orderer(hinders_of(self.in_tiles), self.scratch, self.work)
        functions = dict(module.functions)
        for name, function in module.functions.items():
            if name != module.entry:
                functions[name] = function.with_body(orderer.region(function.body, "other").region)

        def judge(region: Region) -> Measure:
            return measure(module.with_main(region), self.in_tiles, self.scratch, orderer.hinders)

        found = orderer.region(module.body, "entry", donations(module), judge)
        functions[module.entry] = module.main.with_body(found.region)
        attributes = {
            **module.attributes,
            ORDER_BOUND: max(found.bound - found.measure.output_bytes, 0),
            ORDER_PROOF: found.proof,
        }
        same = all(functions[name] is old for name, old in module.functions.items())
        if not same or attributes != module.attributes:
            module = replace(module, functions=functions, attributes=attributes)
        remember(module, self.in_tiles, found.measure.schedule)
        return module


def donations(module: Module) -> list[tuple[int, int]]:
    """The arguments that a caller gives up, with the results that replace them."""
    if module.signature is None:
        return []
    return [
        (index, argument.aliases)
        for index, argument in enumerate(module.signature.arguments)
        if argument.donated and argument.aliases is not None
    ]


@dataclass(frozen=True)
class Ordered:
    """A region in its best order, the memory of that, what no order can be below, and how that is
    known."""

    region: Region
    measure: Measure
    bound: int
    proof: str


Judge = Callable[[Region], Measure]


class _Orderer:
    def __init__(self, hinders: Hinders, scratch: Scratch | None, work: int) -> None:
        self.hinders, self.scratch, self.work = hinders, scratch, work

    def region(
        self, region: Region, role: Role, pairs: Pairs = (), judge: Judge | None = None
    ) -> Ordered:
        """The best order of a region, the bodies of its control flow first; itself if that is its
        own order."""
        unproven: dict[Op, int] = {}  # bytes by which bodies may be above the best

        def change(op: Op, body: Region) -> Region:
            carries = op.name == "while" and body.result_types == op.result_types
            own = [(index, index) for index in range(len(op.operands))] if carries else []
            found = self.region(body, "loop" if carries else "other", own)
            above = found.measure.total_bytes - found.bound
            unproven[op] = max(unproven.get(op, 0), above)
            return found.region

        ordered = map_bodies(region, change)
        spare = [unproven.get(op, 0) for op in region.ops]
        graph = task_graph(ordered, pairs, self.hinders, self.scratch, role)
        below = {op: above for op, above in zip(ordered.ops, spare, strict=True) if above}

        def turn(region: Region) -> Measure:
            return measure_body(region, role == "loop", self.scratch, self.hinders)

        return self.best(graph, judge or turn, below)

    def best(self, graph: TaskGraph, judge: Judge, unproven: Mapping[Op, int]) -> Ordered:
        """The order of the lowest memory by `judge`; cheap strategies first, and no more of them
        when the bound is met."""
        region = graph.region
        least = _least(graph, unproven)
        certificate = forced_live(least)
        check_order_bound(certified(least), certificate)
        forced = certificate.bytes
        best, lowest = region, judge(region)
        known: list[int] = []

        def judged(order: list[int]) -> None:
            nonlocal best, lowest, known
            peak = graph.peak(order)
            if not known or peak < graph.peak(known):
                known = order
            if peak < lowest.total_bytes:
                ops = graph.ops(order)
                found = Region(region.arguments, ops, region.results)
                measured = judge(found)
                if measured.total_bytes < lowest.total_bytes:
                    best, lowest = found, measured

        for strategy in STRATEGIES:
            if lowest.total_bytes <= forced:
                break
            judged(strategy(graph))
        if lowest.total_bytes == forced:
            return Ordered(best, lowest, forced, BY_BOUND)
        if lowest.total_bytes < forced:  # as written, where it pays not to overwrite an argument
            return Ordered(best, lowest, graph.end_bytes, NOT_PROVEN.format(0))
        floor = forced_live(graph).bytes if unproven else forced
        if graph.peak(known) > floor:
            judged(beam_order(graph, floor))
        stake = graph.peak(known) - floor
        work = self.work // 8 if stake <= floor * LITTLE else self.work
        work = min(work, max(LEAST_WORK, stake // SAVING))
        searched = search(graph, known, floor, work)
        judged(searched.order)
        if lowest.total_bytes == forced:
            return Ordered(best, lowest, forced, BY_BOUND)
        bound = max(forced, searched.bound - max(unproven.values(), default=0))
        if lowest.total_bytes == bound:
            return Ordered(best, lowest, bound, BY_EXHAUSTION)
        if lowest.total_bytes < bound:
            bound = graph.end_bytes
        return Ordered(best, lowest, bound, NOT_PROVEN.format(searched.states))


def _least(graph: TaskGraph, unproven: Mapping[Op, int]) -> TaskGraph:
    """The graph, where bodies of control flow need what they need in any order of theirs."""
    if not unproven:
        return graph
    tasks = [
        task._replace(inside=max(task.inside - unproven.get(task.op, 0), 0)) for task in graph.tasks
    ]
    return replace(graph, tasks=tasks)

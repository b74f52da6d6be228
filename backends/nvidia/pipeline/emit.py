"""A tile function as a kernel of Hopper's roles: one warp group copies, the others multiply."""

from __future__ import annotations

from dataclasses import replace

from ....hlo.deciding import estimating
from ....hlo.graph import Op
from ....optimizer.asynchronous.configuration import PipelineConfiguration
from ....optimizer.asynchronous.fits import fits
from ....optimizer.asynchronous.protocol import Program
from ....optimizer.asynchronous.work import Panel
from ....optimizer.machine import Limitation
from ... import llvm
from ..capabilities import capabilities
from ..frame import Parameter, Unit, barrier
from ..launch import Argument, KernelCode, KernelMemory, KernelTensorMap, tensor_map
from ..layout_code import along, sum_of
from ..target import NvidiaTarget
from . import fragment
from . import instructions as hopper
from .consumer import Consumer
from .decisions import PipelineDecisions
from .epilogue import Epilogue
from .functions import approximate
from .loops import run_loop
from .producer import Producer
from .registers import FragmentEvaluator, ThreadPosition


def code_of(plan: PipelineConfiguration, target: NvidiaTarget) -> KernelCode:
    """The kernel of a configuration."""
    return _PipelineKernel(plan, target).code()


def plan_of(op: Op, target: NvidiaTarget) -> PipelineConfiguration | Limitation:
    """How a kernel_call runs here, or why it does not."""
    return fits(op, capabilities(target.architecture))


def panel_map(panel: Panel, share: int = 1) -> KernelTensorMap:
    """The tensor map of one chunk of a panel, of 1 / `share` of its rows."""
    sizes = [panel.sizes[dim] for dim in panel.order]
    sizes[0] = panel.chunk
    sizes[panel.outer_places[-1]] //= share
    steps = [panel.steps[dim] for dim in panel.order]
    return tensor_map(panel.op.operands[0], panel.slot, panel.order, panel.swizzle, sizes, steps)


class _PipelineKernel:
    def __init__(self, plan: PipelineConfiguration, target: NvidiaTarget) -> None:
        self.plan, self.work = plan, plan.work
        self.programs: list[Program] = []  # of the role that copies, of those that multiply
        self.unit = Unit(target)
        parameters = self.parameters()
        self.entry = self.unit.kernel(
            "pipeline", parameters, plan.threads, minimum_blocks=1, cluster=(plan.cluster, 1, 1)
        )
        self.f = self.entry.function
        values = dict(zip((p.label for p in parameters), self.entry.pointers, strict=True))
        panels = [*plan.work.panels, *(load.panel for load in plan.epilogue_loads)]
        self.maps = {panel: values[f"panel{n}"] for n, panel in enumerate(panels)}
        self.store_maps = {store: values[f"store{n}"] for n, store in enumerate(plan.stores)}
        self.pointers = {slot: values[f"memory{slot}"] for slot in self.direct_slots()}

    def parameters(self) -> list[Parameter]:
        plan = self.plan
        found: list[Parameter] = []
        for number, panel in enumerate(plan.work.panels):
            ring = plan.ring(panel)
            share = ring.shares[ring.panels.index(panel)]
            found.append(Parameter(f"panel{number}", panel_map(panel, share)))
        for number, load in enumerate(plan.epilogue_loads, len(found)):
            found.append(Parameter(f"panel{number}", panel_map(load.panel)))
        for number, (store, staged) in enumerate(plan.stores.items()):
            memory = store.operands[0]
            argument: Argument = tensor_map(
                memory, memory.index, staged.order, staged.swizzle, staged.box
            )
            found.append(Parameter(f"store{number}", argument))
        kernel = self.work.kernel
        written = [value.type for value in kernel.results]
        for slot in self.direct_slots():
            # An operand of a result's type may lie where that is written.
            own = kernel.operands[slot].type if slot < len(kernel.operands) else None
            readonly = own is not None and not any(own is kind for kind in written)
            found.append(Parameter(f"memory{slot}", KernelMemory(slot), readonly, unique=False))
        return found

    def direct_slots(self) -> list[int]:
        """Memories that threads read or write without the copy engine."""
        panels = {panel.op for panel in self.work.panels}
        panels.update(load.panel.op for load in self.plan.epilogue_loads)
        slots: set[int] = set()
        for op in self.work.kernel.regions[0].walk():
            if op.name == "tile_load" and op not in panels:
                slots.add(op.operands[0].index)
            if op.name == "tile_store" and op not in self.plan.stores:
                slots.add(op.operands[0].index)
        return sorted(slots)

    def code(self) -> KernelCode:
        f, plan = self.f, self.plan
        thread = self.entry.thread()
        self.begin(thread)
        group = hopper.uniform(f, f.lshr(thread, 7))
        branch = f.if_else(f.compare("eq", group, 0))
        with branch.then():
            self.produce(thread)
        with branch.otherwise():
            self.consume(thread, f.sub(group, 1))
        if plan.cluster > 1:  # its blocks reach into each other's shared memory until here
            hopper.cluster_arrive(f)
            hopper.cluster_wait(f)
        launch = self.entry.finish(plan.blocks, plan.shared_bytes, persistent=plan.walks)
        kernel = self.work.kernel
        with estimating():
            moved = float(sum(v.tensor.bytes for v in (*kernel.operands, *kernel.results)))
        code = self.unit.code([launch], kernel.definition.flops(kernel), moved)
        named = approximate(kernel.regions[0])
        return replace(code, approximate=named, decided=PipelineDecisions(plan, *self.programs))

    def begin(self, thread: llvm.Value) -> None:
        """One thread starts all barriers; everybody waits for that."""
        f, plan = self.f, self.plan
        with f.if_then(f.compare("eq", thread, 0)):
            for value in (*self.maps.values(), *self.store_maps.values()):
                hopper.prefetch_map(f, value)
            for ring in plan.rings:
                readers = plan.groups * max(ring.shares)
                for number in range(2 * ring.stages):
                    at = hopper.shared(f, ring.barriers + 8 * number)
                    hopper.barrier_start(f, at, 1 if number < ring.stages else readers)
            hopper.barriers_started(f)
        if plan.cluster > 1:
            hopper.cluster_arrive(f, relaxed=True)
            hopper.cluster_wait(f)
        else:
            barrier(f)

    def produce(self, thread: llvm.Value) -> None:
        f, plan = self.f, self.plan
        if plan.budget[0]:
            hopper.give_registers(f, plan.budget[0])
        with f.if_then(f.compare("ult", thread, 32)), f.if_then(hopper.elect(f)):
            evaluator = FragmentEvaluator(f, self.work, self.pointers, None)
            producer = Producer(f, plan, evaluator, 1)
            producer.run(self.maps)
            self.programs.append(producer.recorder.program)

    def consume(self, thread: llvm.Value, group: llvm.Value) -> None:
        f, plan = self.f, self.plan
        if plan.budget[1]:
            hopper.take_registers(f, plan.budget[1])
        own = f.land(thread, hopper.WARPGROUP - 1)
        row, column = (
            sum_of(f, along(fragment.TILE, dim), own, hopper.WARPGROUP) for dim in (0, 1)
        )
        first = f.add(row, f.mul(group, plan.rows))
        place = ThreadPosition(first, column, plan.rows, group, own)
        evaluator = FragmentEvaluator(f, self.work, self.pointers, place)
        leader = f.compare("eq", own, 0)
        consumer = Consumer(f, plan, evaluator, group, leader, own)
        epilogue = Epilogue(consumer, self.store_maps)
        consumer.begin()
        with consumer.each_tile():
            consumer.begin_tile()
            run_loop(consumer)
            epilogue.run()
            consumer.end_tile()
        consumer.end()
        epilogue.drain()
        self.programs.append(consumer.recorder.program)

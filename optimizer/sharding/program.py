"""The network of a program, whose annotations are shardings in types of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...hlo.errors import UserError
from ...hlo.factors import Factors
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.ops import find, known
from ...hlo.ops.manual import axis_of, mesh_of, whole_shardings
from ...hlo.room import OpDefinition
from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding
from ...hlo.types import TensorType
from .constraints import Demand, apply_demands, unite_groups
from .manual import Manual
from .network import ALLOWED, Network, NetworkStep, NetworkTensor, OpPriority, TensorUse, identity
from .parts import without_units

Rule = Callable[[Op], Factors | None]


_OP_PRIORITY = {
    "reshape": OpPriority.PASSAGE,
    "transpose": OpPriority.PASSAGE,
    "edge": OpPriority.PASSAGE,
    "dynamic_slice": OpPriority.SLICE,
    "dynamic_update_slice": OpPriority.SLICE,
    "broadcast_in_dim": OpPriority.BROADCAST,
    "sharding_constraint": OpPriority.ELEMENTWISE,
    "propagation_barrier": OpPriority.ELEMENTWISE,
    "bitcast_convert": OpPriority.OTHER,
}


def op_priority_of(name: str) -> OpPriority:
    """When an operation of that name takes part; a bitcast_convert that keeps its dims is
    elementwise besides."""
    found = _OP_PRIORITY.get(name)
    if found is None:
        elementwise = known(name) and find(name).pattern == "elementwise"
        found = OpPriority.ELEMENTWISE if elementwise else OpPriority.OTHER
    return found


def network_of(
    module: Module, meshes: Mapping[str, Mesh], rule: Rule
) -> tuple[Network, Mapping[Value, NetworkTensor | None]]:
    """Steps and places of the entry's body, and the tensor of each value. UserError for a value
    whose sizes are not known."""
    reader = _ProgramReader(module, meshes, rule)
    return reader.network, reader.tensors


class _ProgramReader:
    def __init__(self, module: Module, meshes: Mapping[str, Mesh], rule: Rule) -> None:
        self.rule = rule
        self.network = Network(meshes)
        self.tensors: dict[Value, NetworkTensor | None] = {}
        self.starts: dict[int, NetworkStep] = {}  # by tensor: the step that begins its block
        self.demands: list[Demand] = []
        self.count = 0
        self.blocks = 0
        body = module.body
        for value in body.arguments:
            self.tensor(value)
        self.results = {
            op for op in body.ops if op.name == "sharding_constraint" and _of_result(op, body)
        }
        self.block(body, body.arguments)
        for value in body.results:
            if value.op in self.results:
                assert value.op is not None
                (operand,) = value.op.operands
                tensor, stated = self.tensors[operand], self.tensors[value]
                if tensor is not None and stated is not None:
                    self.use(operand, None)
                    self.network.results.append((tensor, stated.place))
            else:
                self.use(value, None)
        apply_demands(self.network, self.demands, self.starts)
        unite_groups(self.network, self.starts)
        self.network.finish()

    def tensor(self, value: Value, stated: Sharding | None = None) -> NetworkTensor | None:
        """The tensor of a value that has its own place; None for a value that is none."""
        found = None
        if isinstance(value.type, TensorType):
            if not value.type.is_static:
                op = value.op
                raise UserError(
                    f"{op.place if op is not None else ''}shardings of {value.type} are not "
                    "known before its sizes are; compile for fixed sizes"
                )
            stated = stated or value.type.sharding
            if stated is not None:
                stated = without_units(stated, self.network.meshes[stated.mesh])
            found = NetworkTensor(self.network.place(value.type.dims, stated, value))
        self.tensors[value] = found
        return found

    def block(self, region: Region, arguments: Sequence[Value]) -> int:
        """All operations of a region; its number."""
        number = self.blocks = self.blocks + 1
        start = NetworkStep("start", [], [], None, block=number)
        self.network.steps.append(start)
        for value in arguments:
            self.starts[id(self.tensors[value])] = start
        for op in region.ops:
            self.op(op, number)
        return number

    def use(
        self,
        value: Value,
        step: NetworkStep | None,
        number: int = -1,
        demand: Sharding | None = None,
        block: int = 0,
    ) -> NetworkTensor | None:
        tensor = self.tensors.get(value)
        if tensor is not None:
            self.count += 1
            tensor.uses.append(TensorUse(step, number, demand, block, self.count))
        return tensor

    def op(self, op: Op, block: int) -> None:
        if has_edges(op.definition):
            self.flow(op, block)
            return
        if op in self.results:
            self.tensor(op.results[0])
            return
        results = [self.tensor(value) for value in op.results]
        step = NetworkStep(op.name, [], results, None, op_priority_of(op.name), op, block=block)
        constraint = op.name == "sharding_constraint"
        if constraint or op.name == "propagation_barrier":
            step.constraint = constraint
            step.rule = identity(op.results[0].dims)
            step.allowed = None if constraint else ALLOWED[op.allowed_direction]
        elif op.name == "sharding_group":
            self.network.groupings.append((op.group_id, step))
        elif any(tensor is not None for tensor in results):
            rule = self.rule(op)
            step.rule = None if rule is None else self.network.rule(rule)
        if op.name == "bitcast_convert" and op.operands[0].dims == op.results[0].dims:
            step.op_priority = OpPriority.ELEMENTWISE
        stated = results[0].place.stated if constraint and results[0] is not None else None
        for number, value in enumerate(op.operands):
            step.operands.append(self.use(value, step, number, stated, block))
        step.position = self.count
        for tensor in results:
            if tensor is not None:
                tensor.place.step = step
        if stated is not None and step.operands[0] is not None:
            self.demands.append(Demand(stated, step, results[0]))
        self.network.steps.append(step)

    def flow(self, op: Op, block: int) -> None:
        """Control flow: an edge for each result, and for what a manual computation gets."""
        manual = op.name == "sdy.manual_computation"
        ends: list[NetworkStep] = []
        for number, value in enumerate(op.results):
            border = self.border(op, len(op.operands) + number) if manual else None
            ends.append(self.edge(op, value, border, block))
            if border is not None:  # seen from inside, the manual axes are not there
                ends[-1].inward, ends[-1].outward = border.inside, border.outside
        for body in op.regions:
            self.body(op, body, ends, block)
        if not manual:
            shared = op.operands if op.definition.flow != "branch" else ()
            for number, value in enumerate(op.operands):
                edge = ends[number] if number < len(shared) else None
                self.source(value, edge, block)
        for value, edge in zip(op.results, ends, strict=True):
            tensor = self.tensors[value]
            if tensor is not None:
                edge.rule = identity(tensor.place.dims, len(edge.operands))
                self.network.steps.append(edge)
                tensor.in_order = True

    def body(self, op: Op, body: Region, ends: Sequence[NetworkStep], block: int) -> None:
        starts: list[NetworkStep] = []
        for number, value in enumerate(body.arguments):
            if op.definition.flow == "loop":
                outer = self.tensors[op.results[number]]
                self.tensors[value] = inner = None if outer is None else NetworkTensor(outer.place)
                if outer is not None and inner is not None:
                    outer.place.others += (inner,)
            else:
                border = self.border(op, number)
                edge = self.edge(op, value, border, block)
                edge.inward, edge.outward = border.outside, border.inside
                starts.append(edge)
        position = len(self.network.steps)
        inside = self.block(body, body.arguments)
        for number, value in enumerate(op.operands if starts else ()):
            tensor = self.source(value, starts[number], block, self.border(op, number))
            inner = self.tensors[body.arguments[number]]
            if tensor is not None and inner is not None:
                starts[number].rule = identity(inner.place.dims)
                inner.in_order = True
        self.network.steps[position + 1 : position + 1] = [e for e in starts if e.rule is not None]
        gives = len(body.results) == len(ends) and not _is_condition(op, body)
        for number, value in enumerate(body.results):
            self.source(value, ends[number] if gives else None, inside)

    def border(self, op: Op, number: int) -> Manual:
        """What a manual computation states of one of its operands, then results. Manual axes that
        it does not name there are barred: every device has all of the tensor along them."""
        mesh = mesh_of(op.mesh)
        name = next((n for n, known in self.network.meshes.items() if known == mesh), None)
        if name is None:
            raise UserError(f"{op.place}{op.name}: the module has no mesh {mesh}")
        manual = tuple(axis for axis in mesh.names if axis in op.manual_axes)
        stated = whole_shardings(op)[number]
        if stated is None:
            cuts = (*op.in_shardings, *op.out_shardings)[number]
            stated = Sharding(name, tuple(DimSharding(tuple(map(axis_of, axes))) for axes in cuts))
        stated = without_units(stated, mesh)
        named = {axis.name for axis in stated.axes}
        free = tuple(a for a in manual if a not in named and mesh.size(Axis(a)) > 1)
        barred = sorted(
            (*stated.replicated, *map(Axis, free)),
            key=lambda axis: (mesh.names.index(axis.name), axis.before),
        )
        return Manual(manual, replace(stated, replicated=tuple(barred)))

    def edge(self, op: Op, value: Value, border: Manual | None, block: int) -> NetworkStep:
        """The edge that gives a value its place."""
        stated = None
        if border is not None:
            inner = value.op is None
            stated = border.inside(border.outer) if inner else border.outer
        tensor = self.tensor(value, stated)
        step = NetworkStep(
            "edge", [], [tensor], None, OpPriority.PASSAGE, op, edge=True, block=block
        )
        if tensor is not None:
            tensor.place.step = step
        return step

    def source(
        self, value: Value, edge: NetworkStep | None, block: int, border: Manual | None = None
    ) -> NetworkTensor | None:
        """Note that a value flows into an edge."""
        demand = None if border is None else border.outer
        number = -1 if edge is None else len(edge.operands)
        tensor = self.use(value, edge, number, demand, block)
        if edge is not None:
            edge.operands.append(tensor)
            if demand is not None and tensor is not None:
                self.demands.append(Demand(demand, edge))
        return tensor


def has_edges(definition: OpDefinition) -> bool:
    """Whether the values of such an operation are joined by edges."""
    passage = definition.name in ("optimization_barrier", "sdy.manual_computation")
    return passage or bool(definition.flow)


def _is_condition(op: Op, body: Region) -> bool:
    return op.definition.flow == "loop" and body is op.regions[0]


def _of_result(op: Op, body: Region) -> bool:
    """Whether a constraint is said of the program's result and of nothing else."""
    uses = body.uses.get(op.results[0], ())
    return op.stated == "result" and all(user is None for user, _ in uses)

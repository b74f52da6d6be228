"""Compare propagation with the Shardy dialect's own passes, over its own test files.

    python benchmarks/sharding_propagation.py PATH [NAME...]

PATH is a checkout of openxla/shardy; NAME chooses among its propagation tests. Each program is
prepared and propagated by the passes inside the installed jaxlib, with the options that its file
asks for, and propagated by ours from the same prepared program and the same rules; every value's
sharding is compared: axes, order and sub-axes, not whether a dim is left open. Not compared: the
option `conservative-propagation`, which drops parts of axes, and files about rules alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from girih.hlo.factor_text import parse_factors
from girih.hlo.sharding import DimSharding, Mesh, Sharding, ShardingReader, opened
from girih.optimizer.sharding.basic import propagate_basic
from girih.optimizer.sharding.constraints import unite_groups
from girih.optimizer.sharding.manual import Manual
from girih.optimizer.sharding.network import (
    Network,
    NetworkStep,
    NetworkTensor,
    ShardingPlace,
    TensorUse,
    identity,
)
from girih.optimizer.sharding.parts import without_units
from girih.optimizer.sharding.program import op_priority_of
from girih.optimizer.sharding.propagation import PropagationOrder, ShardingPropagation

TESTS = "shardy/dialect/sdy/transforms/propagation/test"
ID = "girih.id"
IMPORT = (
    "symbol-dce", "sdy-lift-inlined-meshes", "sdy-remove-size-one-axes",
    "sdy-constant-or-scalar-splitter", "symbol-dce",
    "sdy-manual-axes-cleanup", "sdy-add-data-flow-edges", "sdy-flatten-call-graph", "symbol-dce",
    "sdy-import-func-calls", "symbol-dce",
    "sdy-apply-sharding-constraints", "sdy-sharding-group-import", "sdy-pre-order-funcs",
)  # fmt: skip
"""What the propagation pipeline does before it propagates."""

SHARED_CALLS = (
    "symbol-dce", "sdy-lift-inlined-meshes", "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call", "sdy-constant-or-scalar-splitter", "symbol-dce",
    "sdy-manual-axes-cleanup", "sdy-add-data-flow-edges", "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import", "sdy-add-func-data-flow-edges", "sdy-pre-order-funcs",
)  # fmt: skip
"""The same with calls, whose functions are shared; ours are inlined."""

FLOW = {
    "stablehlo.while", "stablehlo.case", "stablehlo.optimization_barrier",
    "sdy.manual_computation", "sdy.named_computation",
}  # fmt: skip
"""Operations whose values are joined by edges."""


class Recipe(NamedTuple):
    """How a file's programs are prepared and propagated."""

    before: tuple[str, ...]
    propagate: str
    order: PropagationOrder


def recipe(run: str) -> Recipe | None:
    """From a file's first line; None where it asks for what is not compared."""
    if "conservative" in run or "op-sharding-rules" in run:
        return None
    edges = ("sdy-add-data-flow-edges",) if "sdy-add-data-flow-edges" in run else ()
    if "sdy-basic-propagate" in run:
        order = PropagationOrder(propagate_basic, stages=False, priorities=False)
        return Recipe(edges, "sdy-basic-propagate", order)
    if "sdy-aggressive-propagate" in run:
        wanted = "sdy-aggressive-propagate{propagation-strategy=aggressive}"
        return Recipe((), wanted, PropagationOrder(stages=False, priorities=False))
    if "sdy-op-priority-propagate" in run:
        return Recipe((), "sdy-op-priority-propagate", PropagationOrder(priorities=False))
    if "dedup-functions-fully" in run:
        return Recipe(SHARED_CALLS, "sdy-user-priority-propagate", PropagationOrder())
    before = IMPORT if "sdy-propagation-pipeline" in run else ()
    return Recipe(before, "sdy-user-priority-propagate", PropagationOrder())


def walk(op: Any) -> Iterator[Any]:
    """An operation and those inside, owners first."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from walk(inner.operation)


def per_value(text: str) -> list[Sharding]:
    """`#sdy.sharding_per_value<[<..>, ..]>`"""
    reader = ShardingReader(text[text.index("[") :])
    reader.expect("[")
    return list(reader.items("]", reader.sharding))


def one(text: str) -> Sharding:
    return ShardingReader(text.removeprefix("#sdy.sharding")).sharding()


def one_of(attributes: Any) -> Sharding | None:
    """What attributes of an argument or a result of a function say."""
    return one(str(attributes["sdy.sharding"])) if "sdy.sharding" in attributes else None


def stated(op: Any) -> list[Sharding | None]:
    """What an operation says of its results."""
    attributes = op.attributes
    if "sharding" in attributes and op.name.startswith("sdy."):
        return [one(str(attributes["sharding"]))]
    if "out_sharding" in attributes and op.name.startswith("sdy."):
        return [one(str(attributes["out_sharding"]))]
    for name in ("sdy.sharding", "out_shardings"):
        if name in attributes:
            found = per_value(str(attributes[name]))
            if len(found) == len(op.results):
                return list(found)
    return [None] * len(op.results)


def dims_of(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(ir.RankedTensorType(value.type).shape)
    except (TypeError, ValueError):
        return None


def known(tensor: NetworkTensor | None) -> NetworkTensor:
    assert tensor is not None
    return tensor


class Reading:
    """The network of one prepared program."""

    def __init__(self, module: Any) -> None:
        self.meshes: dict[str, Mesh] = {}
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                name = ir.StringAttr(op.attributes["sym_name"]).value
                self.meshes[name] = ShardingReader(
                    str(op.attributes["mesh"]).removeprefix("#sdy.mesh")
                ).mesh()
        self.network = Network(self.meshes)
        self.tensors: dict[Any, NetworkTensor | None] = {}
        self.steps: dict[Any, NetworkStep] = {}
        self.edges: dict[Any, Any] = {}  # a value that owns an edge -> the edge's operation
        self.blocks: dict[int, NetworkStep] = {}
        functions = [op for op in module.body.operations if op.operation.name == "func.func"]
        self.functions = {
            ir.StringAttr(f.attributes["sym_name"]).value: f.operation for f in functions
        }
        self.calls = [op for f in functions for op in walk(f.operation) if op.name == "func.call"]
        for function in functions:
            self.function(function.operation)
        for function in functions:
            self.uses(function.operation)
        names = [ir.StringAttr(f.attributes["sym_name"]).value for f in functions]
        main = functions[names.index("main")] if "main" in names else None
        if main is None and len(functions) == 1:
            main = functions[0]
        if main is not None:
            self.results(main.operation)
        unite_groups(self.network, self.blocks)
        self.network.finish()

    def tensor(self, value: Any, stated: Sharding | None) -> NetworkTensor | None:
        dims = dims_of(value)
        if stated is not None and dims is not None:
            stated = without_units(stated, self.meshes[stated.mesh])
            if len(stated.dims) != len(dims):  # on one device: written without dims
                stated = replace(stated, dims=(DimSharding(),) * len(dims))
        found = None if dims is None else NetworkTensor(self.network.place(dims, stated, value))
        self.tensors[value] = found
        return found

    def function(self, function: Any) -> None:
        if not function.regions[0].blocks:
            return
        attributes = function.attributes
        given = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else []
        shardings = [one_of(g) for g in given]
        block = function.regions[0].blocks[0]
        start = NetworkStep("start", [], [], None)
        self.network.steps.append(start)
        for number, argument in enumerate(block.arguments):
            said = shardings[number] if number < len(shardings) else None
            found = self.tensor(argument, said)
            if found is not None:
                self.blocks[id(found)] = start
        for op in block.operations:
            self.op(op.operation)

    def op(self, op: Any) -> None:
        name = op.name
        if name == "sdy.data_flow_edge":
            self.edge(op)
            return
        if name == "sdy.func_data_flow_edge":
            self.call_edge(op)
            return
        results = [self.tensor(r, s) for r, s in zip(op.results, stated(op), strict=True)]
        operands = [self.tensors.get(value) for value in op.operands]
        rule = None
        if "sdy.sharding_rule" in op.attributes:
            rule = parse_factors(str(op.attributes["sdy.sharding_rule"]))
        short = name.split(".", 1)[1]
        step = NetworkStep(short, operands, results, rule, op_priority_of(short), op)
        if short == "bitcast_convert" and dims_of(op.operands[0]) != dims_of(op.results[0]):
            step.op_priority = op_priority_of("")
        if name == "stablehlo.custom_call" and "MoveTo" in str(op.attributes["call_target_name"]):
            step.op_priority = op_priority_of("reshape")
        if name == "sdy.propagation_barrier":
            code = ir.IntegerAttr(op.attributes["allowed_direction"]).value
            step.allowed = {0: 0, 1: 1, 2: 2, 3: 3}[code]
            step.rule = identity(dims_of(op.results[0]) or ())
        if name == "sdy.sharding_group":
            self.network.groupings.append((ir.IntegerAttr(op.attributes["group_id"]).value, step))
        for result in results:
            if result is not None:
                result.place.step = step
        self.steps[op] = step
        self.network.steps.append(step)
        for region in op.regions:
            for block in region.blocks:
                if name in FLOW:
                    self.block(op, block)
                    for inner in block.operations:
                        self.op(inner.operation)

    def block(self, op: Any, block: Any) -> None:
        """Arguments of a body: inside of a loop they share the place of the loop's result."""
        start = NetworkStep("start", [], [], None)
        self.network.steps.append(start)
        ins = (
            per_value(str(op.attributes["in_shardings"])) if "in_shardings" in op.attributes else []
        )
        for number, argument in enumerate(block.arguments):
            if op.name == "stablehlo.while":
                result = self.tensors[op.results[number]]
                shared = None if result is None else NetworkTensor(result.place)
                self.tensors[argument] = shared
                if shared is not None:
                    shared.place.others += (shared,)
                    self.blocks[id(shared)] = start
            else:
                said = ins[number] if number < len(ins) else None
                if said is not None and op.name == "sdy.manual_computation":
                    said = self.manual(op, said).inside(said)
                inner = self.tensor(argument, said)
                if inner is not None:
                    self.blocks[id(inner)] = start

    def manual(self, op: Any, outer: Sharding) -> Manual:
        axes = re.findall(r'"([^"]+)"', str(op.attributes["manual_axes"]))
        return Manual(tuple(axes), outer)

    def edge(self, op: Any) -> None:
        owner = op.operands[0]
        place = known(self.tensors[owner]).place
        said = stated(op)[0]
        if said is not None:
            place.stated = place.sharding = without_units(said, self.meshes[said.mesh])
        tensor = place.tensor = NetworkTensor(place)
        self.tensors[op.results[0]] = tensor
        step = NetworkStep("edge", [], [tensor], None, op_priority_of("edge"), op, edge=True)
        place.step = step
        self.edges[owner] = op
        self.steps[op] = step
        self.network.steps.append(step)
        if place.stated is not None:
            flow = flow_owner(owner)
            if flow.name == "sdy.manual_computation":
                where = "in_shardings" if isinstance(owner, ir.BlockArgument) else "out_shardings"
                number = index_of(owner)
                manual = self.manual(flow, per_value(str(flow.attributes[where]))[number])
                first, second = manual.outside, manual.inside
                if where == "out_shardings":
                    first, second = second, first
                step.inward, step.outward = first, second

    def call_edge(self, op: Any) -> None:
        """What a function gets of its callers, or a call of its function."""
        tensor = self.tensor(op.results[0], stated(op)[0])
        assert tensor is not None
        step = NetworkStep("edge", [], [tensor], None, op_priority_of("edge"), op, edge=True)
        tensor.place.step = step
        self.edges[op.operands[0]] = op
        self.steps[op] = step
        self.network.steps.append(step)

    def call_sources(self, owner: Any) -> list[Any]:
        if isinstance(owner, ir.BlockArgument):
            name = ir.StringAttr(owner.owner.owner.attributes["sym_name"]).value
            return [
                call.operands[owner.arg_number] for call in self.calls if callee_of(call) == name
            ]
        call = flow_owner(owner)
        end = list(self.functions[callee_of(call)].regions[0].blocks[0].operations)[-1].operation
        return [end.operands[index_of(owner)]]

    def uses(self, function: Any) -> None:
        """Who uses what, in the order in which the oracle goes through uses; sources of edges."""
        for op in walk(function):
            if op.name == "sdy.data_flow_edge":
                step, owner = self.steps[op], op.operands[0]
                flow = flow_owner(owner)
                sources = sources_of(flow, owner)
                step.operands = [self.tensors.get(value) for value in sources]
                step.rule = identity(known(step.results[0]).place.dims, len(sources))
            if op.name == "sdy.func_data_flow_edge":
                step = self.steps[op]
                sources = self.call_sources(op.operands[0])
                step.operands = [self.tensors.get(value) for value in sources]
                if sources:
                    step.rule = identity(known(step.results[0]).place.dims, len(sources))
        for value, tensor in self.tensors.items():
            if tensor is None:
                continue
            uses = []
            for use in value.uses:
                user = use.owner.operation
                step = self.steps.get(user)
                edge = self.edge_of_use(user, use.operand_number)
                if edge is not None:
                    step = self.steps[edge]
                uses.append(TensorUse(step, use.operand_number))
                uses.extend(
                    TensorUse(self.steps[e]) for e in self.call_edges(user, use.operand_number)
                )
            tensor.uses, tensor.in_order = uses, True

    def call_edges(self, user: Any, number: int) -> list[Any]:
        """The edges behind a use by a call or by a function's end."""
        owners: list[Any] = []
        if user.name == "func.call":
            owners = [self.functions[callee_of(user)].regions[0].blocks[0].arguments[number]]
        elif user.name == "func.return":
            name = ir.StringAttr(user.parent.attributes["sym_name"]).value
            owners = [call.results[number] for call in self.calls if callee_of(call) == name]
        return [self.edges[owner] for owner in owners if owner in self.edges]

    def edge_of_use(self, user: Any, number: int) -> Any:
        flow = user
        if user.name in ("stablehlo.return", "sdy.return"):
            flow = user.parent
        if flow is None or flow.name not in FLOW:
            return None
        owner = None
        if flow.name in ("sdy.manual_computation", "sdy.named_computation") and flow == user:
            owner = flow.regions[0].blocks[0].arguments[number]
        elif number < len(flow.results):
            owner = flow.results[number]
        return self.edges.get(owner)

    def results(self, function: Any) -> None:
        if "res_attrs" not in function.attributes:
            return
        ends = list(function.regions[0].blocks[0].operations)[-1].operation
        for value, said in zip(ends.operands, function.attributes["res_attrs"], strict=True):
            tensor = self.tensors[value]
            if tensor is not None:
                sharding = one(str(said["sdy.sharding"])) if "sdy.sharding" in said else None
                sharding = (
                    None
                    if sharding is None
                    else without_units(sharding, self.meshes[sharding.mesh])
                )
                place = self.network.place(tensor.place.dims, sharding)
                self.network.results.append((tensor, place))


def callee_of(call: Any) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def flow_owner(value: Any) -> Any:
    owner = value.owner
    return (
        owner.operation
        if isinstance(owner, ir.OpView)
        else (owner if isinstance(owner, ir.Operation) else owner.owner.operation)
    )


def index_of(value: Any) -> int:
    if isinstance(value, ir.BlockArgument):
        return ir.BlockArgument(value).arg_number
    return ir.OpResult(value).result_number


def sources_of(flow: Any, owner: Any) -> list[Any]:
    number = index_of(owner)
    ends = [list(r.blocks[0].operations)[-1].operation for r in flow.regions]
    if isinstance(owner, ir.BlockArgument):
        return [flow.operands[number]]
    if flow.name == "stablehlo.while":
        return [flow.operands[number], ends[1].operands[number]]
    if flow.name == "stablehlo.optimization_barrier":
        return [flow.operands[number]]
    return [end.operands[number] for end in ends]


def gold(module: Any) -> dict[tuple[str, int], Sharding | None]:
    """(id of an operation, number of a result) -> its sharding; arguments by function."""
    found: dict[tuple[str, int], Sharding | None] = {}
    for op in walk(module.operation):
        if ID not in op.attributes:
            continue
        name = ir.StringAttr(op.attributes[ID]).value
        if op.name == "func.func":
            for kind in ("arg_attrs", "res_attrs"):
                if kind in op.attributes:
                    for number, given in enumerate(op.attributes[kind]):
                        said = one(str(given["sdy.sharding"])) if "sdy.sharding" in given else None
                        found[f"{name}.{kind}", number] = said
        else:
            for number, said in enumerate(stated(op)):
                found[name, number] = said
    return found


def cuts(sharding: Sharding | None, rank: int) -> tuple[Any, ...]:
    """What is compared of a sharding."""
    if sharding is None:
        sharding = opened("", rank)
    return tuple(d.axes for d in sharding.dims), sharding.replicated, sharding.unreduced


class Verdict(NamedTuple):
    where: str
    wanted: Sharding | None
    got: Sharding | None
    equal: bool


def compare(text: str, recipe: Recipe, context: Any) -> list[Verdict]:
    module = ir.Module.parse(text)
    for name in recipe.before:
        PassManager.parse(f"builtin.module({name})").run(module.operation)
    for number, op in enumerate(walk(module.operation)):
        if op.name != "builtin.module":
            op.attributes[ID] = ir.StringAttr.get(str(number))
    oracle = ir.Module.parse(str(module))
    PassManager.parse(f"builtin.module({recipe.propagate})").run(oracle.operation)
    wanted = gold(oracle)
    PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(
        module.operation
    )
    reading = Reading(module)
    ShardingPropagation(reading.network, recipe.order).run()
    verdicts: list[Verdict] = []

    def judge(key: tuple[str, int], what: str, place: ShardingPlace) -> None:
        if key not in wanted:
            return  # a dead operation
        left, right = wanted[key], place.sharding
        left = None if left is None else without_units(left, reading.meshes[left.mesh])
        if left is not None and not left.dims:  # on one device
            left = replace(left, dims=(DimSharding(),) * len(place.dims))
        equal = cuts(left, len(place.dims)) == cuts(right, len(place.dims))
        verdicts.append(Verdict(what, left, right, equal))

    for op in walk(module.operation):
        name = ir.StringAttr(op.attributes[ID]).value if ID in op.attributes else ""
        if op.name == "func.func" and op.regions[0].blocks:
            label = ir.StringAttr(op.attributes["sym_name"]).value
            for number, argument in enumerate(op.regions[0].blocks[0].arguments):
                tensor = reading.tensors.get(argument)
                if tensor is not None:
                    judge((f"{name}.arg_attrs", number), f"@{label} %arg{number}", tensor.place)
        elif op in reading.steps and op.name not in FLOW:
            for number, tensor in enumerate(reading.steps[op].results):
                if tensor is not None:
                    judge((name, number), f"{op.name} {str(op)[:100]}", tensor.place)
    return verdicts


def main(path: str, names: list[str]) -> int:
    total = same = 0
    for file in sorted((Path(path) / TESTS).glob("*.mlir")):
        if names and not any(name in file.name for name in names):
            continue
        text = file.read_text()
        run = text.splitlines()[0]
        how = recipe(run)
        if how is None:
            print(f"{file.name}: not compared: {run.split('sdy_opt')[-1].strip()}")
            continue
        equal = count = broken = 0
        for number, program in enumerate(re.split(r"^// -----.*$", text, flags=re.MULTILINE)):
            with make_ir_context() as context:
                try:
                    verdicts = compare(program, how, context)
                except ir.MLIRError as error:
                    broken += 1
                    print(f"  {file.name} #{number}: {str(error).splitlines()[0:3]}")
                    continue
            count += len(verdicts)
            equal += sum(v.equal for v in verdicts)
            for verdict in verdicts:
                if not verdict.equal:
                    print(f"  #{number} {verdict.where}")
                    print(f"    wanted {verdict.wanted}\n    got    {verdict.got}")
        print(f"{file.name}: {equal} of {count} values equal, {broken} programs unread")
        total, same = total + count, same + equal
    print(f"{same} of {total} values equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Write what the Shardy dialect's passes make of our own programs: the gold of the tests.

    python benchmarks/sharding_gold.py COUNT FILE

COUNT random programs, and those of `models/sharded.py`; for each its text, the rule that the oracle
has for each operation, and the sharding that it gives to each value, in the program's order.
Programs on which ours differ are listed; they are written all the same. Of 3,013 these are two:
2291, because a change of what a manual computation gets is seen inside at once, by the oracle in
its next sweep; 1398, because the oracle removes an operation that only a sharding group uses, and
what that is computed from.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from girih.frontends.stablehlo.from_module import tree_of
from girih.frontends.stablehlo.write_text import document_text
from girih.hlo.factor_text import parse_factors
from girih.hlo.factors import Factors
from girih.hlo.graph import Module, Op, Region, Value
from girih.hlo.ops import find, known
from girih.hlo.sharding import DimSharding, Sharding, replicated
from girih.hlo.text import print_module
from girih.optimizer.sharding.program import has_edges
from girih.optimizer.sharding.propagated import Propagated, propagate
from models.sharded import sharded_models
from sharding_programs import program
from sharding_propagation import ID, IMPORT, one_of, stated

RESULTS = ("func.return", "stablehlo.return", "sdy.return")


def order_of(region: Region, everything: bool = True) -> Iterator[Op]:
    """Operations, owners before what is inside; or only those whose values can be cut."""
    for op in region.ops:
        yield op
        for body in op.regions if everything or has_edges(op.definition) else ():
            yield from order_of(body, everything)


def main_of(module: Any) -> Any:
    return next(f.operation for f in module.body.operations if f.operation.name == "func.func")


def numbered(main: Any) -> list[Any]:
    """The operations that the program has had from the start, in its order."""
    found = [op for op in cut_operations(main) if ID in op.attributes]
    return sorted(found, key=lambda op: int(ir.StringAttr(op.attributes[ID]).value))


def cut_operations(main: Any) -> Iterator[Any]:
    """The same of a function of MLIR."""
    for op in main.regions[0].blocks[0].operations:
        yield from _cut(op.operation)


def _cut(op: Any) -> Iterator[Any]:
    if op.name in RESULTS:
        return
    yield op
    name = op.name.removeprefix("stablehlo.")
    if known(name) and has_edges(find(name)):
        for region in op.regions:
            for inner in region.blocks[0].operations:
                yield from _cut(inner.operation)


def is_result(op: Op, body: Region) -> bool:
    uses = body.uses.get(op.results[0], ()) if op.results else ()
    return (
        op.name == "sharding_constraint"
        and op.stated == "result"
        and all(user is None for user, _ in uses)
    )


class Gold(NamedTuple):
    """rules: (name, rule) of each operation, in order; shardings: of arguments, then of results,
    None for those that the oracle has removed."""

    rules: list[tuple[str, Factors | None]]
    shardings: list[Sharding | None]


def closed(sharding: Sharding | None, rank: int) -> Sharding:
    if sharding is None:
        return replicated("mesh", rank)
    dims = tuple(DimSharding(dim.axes) for dim in sharding.dims)
    return Sharding(
        sharding.mesh, dims, sharding.replicated, sharding.unreduced, sharding.reduction
    )


def gold_of(module: Module) -> Gold:
    with make_ir_context(), ir.Location.unknown():
        theirs = ir.Module.parse(document_text(tree_of(module).document))
        names: list[str] = []
        counts: list[int] = []
        for name in IMPORT:
            if name == "sdy-add-data-flow-edges":  # what comes later moves operations
                for number, op in enumerate(cut_operations(main_of(theirs))):
                    counts.append(len(op.results))
                    names.append(op.name.removeprefix("stablehlo.").removeprefix("sdy."))
                    op.attributes[ID] = ir.StringAttr.get(str(number))
            PassManager.parse(f"builtin.module({name})").run(theirs.operation)
        PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(
            theirs.operation
        )
        rules: list[tuple[str, Factors | None]] = [(name, None) for name in names]
        for op in numbered(main_of(theirs)):
            if "sdy.sharding_rule" in op.attributes:
                number = int(ir.StringAttr(op.attributes[ID]).value)
                rules[number] = (
                    names[number],
                    parse_factors(str(op.attributes["sdy.sharding_rule"])),
                )
        PassManager.parse("builtin.module(sdy-user-priority-propagate)").run(theirs.operation)
        main = main_of(theirs)
        shardings: list[Sharding | None] = []
        block = main.regions[0].blocks[0]
        given = [{}] * len(block.arguments)
        if "arg_attrs" in main.attributes:
            given = list(main.attributes["arg_attrs"])
        for argument, said in zip(block.arguments, given, strict=True):
            sharding = one_of(said)
            shardings.append(closed(sharding, len(argument.type.shape)))
        edges = {
            op.operands[0]: stated(op)[0]
            for op in cut_operations(main)
            if op.name == "sdy.data_flow_edge"
        }
        left = {int(ir.StringAttr(op.attributes[ID]).value): op for op in numbered(main)}
        for number, count in enumerate(counts):
            if number not in left:  # nothing used it
                shardings.extend([None] * count)
                continue
            op = left[number]
            for result, sharding in zip(op.results, stated(op), strict=True):
                sharding = edges.get(result, sharding)
                shardings.append(closed(sharding, len(result.type.shape)))
    return Gold(rules, shardings)


def ours_of(module: Module, gold: Gold) -> tuple[Propagated, list[Value]]:
    """What we make of it with the oracle's rules, and the values in the gold's order."""
    asked = iter([(n, r) for n, r in gold.rules])

    def rule(op: Op) -> Factors | None:
        for name, found in asked:
            if name == op.name:
                return found
        raise ValueError(f"the oracle has no further {op.name}")

    found = propagate(module, rule)
    body = found.module.body
    values = list(body.arguments)
    for op in order_of(body, everything=False):
        if not is_result(op, body):
            values.extend(op.results)
    return found, values


def same(one: Sharding, other: Sharding) -> bool:
    """Whether they agree on all that is compared; the mesh's name is not."""
    return str(replace(one, mesh="")) == str(replace(other, mesh=""))


def _number(known: dict[str, int], item: object | None) -> int:
    """The number of its text among all of its kind; -1 for None."""
    return -1 if item is None else known.setdefault(str(item), len(known))


def main(count: int, file: str) -> int:
    modules = [*sharded_models().items(), *((f"random {n}", program(n)) for n in range(count))]
    rules: dict[str, int] = {}
    shardings: dict[str, int] = {}
    programs: list[Any] = []
    differing = total = 0
    for name, module in modules:
        gold = gold_of(module)
        try:
            found, values = ours_of(module, gold)
        except ValueError as error:
            print(name, error)
            continue
        if len(values) != len(gold.shardings):
            raise ValueError(f"{name}: {len(values)} values, the oracle has {len(gold.shardings)}")
        wrong = [
            (value, wanted)
            for value, wanted in zip(values, gold.shardings, strict=True)
            if wanted is not None and not same(found.shardings[value], wanted)
        ]
        total += len(values)
        differing += len(wrong)
        for value, wanted in wrong[:3]:
            print(f"{name}: {value}\n    wanted {wanted}\n    got    {found.shardings[value]}")
        named = [[n, _number(rules, rule)] for n, rule in gold.rules]
        cuts = [_number(shardings, sharding) for sharding in gold.shardings]
        text = print_module(module)
        programs.append({"name": name, "text": text, "rules": named, "shardings": cuts})
    record = {"rules": list(rules), "shardings": list(shardings), "programs": programs}
    Path(file).write_bytes(lzma.compress(json.dumps(record).encode(), preset=9))
    print(f"{len(programs)} programs, {total - differing} of {total} values equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))

"""Our factors beside Shardy's sharding rules: `python benchmarks/sharding_rules.py FILE.mlir`.

FILE is a test file of functions in StableHLO, such as op_sharding_rule_registry.mlir of
openxla/shardy. Each function goes to Shardy's pass inside the installed jaxlib and to our importer;
the rules of operations of the same name are compared, and what differs is printed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager

from girih.frontends.stablehlo import read_stablehlo
from girih.hlo.errors import UserError
from girih.hlo.factors import FactorKind, Factors
from girih.hlo.graph import Module, Op

# A rule without the names and the order of its factors: of each, its size, kind, whether it is
# blocked, and the tensors' dims that hold it, with its place among the dim's factors.
Rule = Counter[tuple[int, str, bool, frozenset[tuple[int, int, int]]]]

KINDS = {
    "reduction": FactorKind.REDUCTION,
    "need_replication": FactorKind.REPLICATE,
    "permutation": FactorKind.PERMUTATION,
}

# Functions of the registry where we say something else on purpose.
DEVIATIONS = {
    "custom_call_eigh": "an eigenvector needs the whole matrix, so its dims do not pass",
    "scatter_inserted_window_dim_is_last_one": "a window as large as the input may be moved",
    "custom_call_layout_constraint": "it is the identity, of which the import leaves nothing",
}


class Compared(NamedTuple):
    """One operation: its name, Shardy's rule as text, ours (None: no factors), and whether both
    say the same."""

    name: str
    theirs: str
    ours: Factors | None
    equal: bool


def oracle(text: str, context: Any = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each function of the module, its text and the names and rules of its operations."""
    with context or mlir.make_ir_context():
        module = ir.Module.parse(text)
        texts = [_printed(function) for function in module.body.operations]
        passes = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(passes).run(module.operation)
        for function, own in zip(module.body.operations, texts, strict=True):
            yield own, list(_rules(function))


def _printed(function: Any) -> str:
    return re.sub(r" loc\(.*?\)", "", str(function))


def _rules(function: Any) -> Iterator[tuple[str, str]]:
    for region in function.operation.regions:
        for block in region:
            for op in block.operations:
                if "sdy.sharding_rule" in op.operation.attributes:
                    rule = str(op.operation.attributes["sdy.sharding_rule"])
                    yield _name(op.operation), rule


def _name(operation: Any) -> str:
    if operation.name == "stablehlo.custom_call":
        return str(ir.StringAttr(operation.attributes["call_target_name"]).value)
    return str(operation.name).removeprefix("stablehlo.")


def parsed(text: str) -> Rule:
    """`#sdy.op_sharding_rule<([i, j])->([i, k]) {i=2, j=4, k=1} permutation={j}>`"""
    operands, results = re.findall(r"\((\[.*?)?\)(?=->| |>|$)", text)[:2]
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", text)}
    special = {
        name: kind
        for word, kind in KINDS.items()
        for group in re.findall(rf" {word}={{(.*?)}}", text)
        for name in group.split(", ")
    }
    blocked = set(re.findall(r"\w+", "".join(re.findall(r"blocked_propagation={(.*?)}", text))))
    held: dict[str, set[tuple[int, int, int]]] = {name: set() for name in sizes}
    tensors = [*re.findall(r"\[(.*?)\]", operands), *re.findall(r"\[(.*?)\]", results)]
    for number, tensor in enumerate(tensors):
        for dim, factors in enumerate(filter(None, tensor.split(", "))):
            names = [n for n in re.findall(r"[a-z](?:_\d+)?", factors) if sizes[n] != 1]
            for place, name in enumerate(names):
                held[name].add((number, dim, place))
    return Counter(
        (size, special.get(name, FactorKind.PASS).value, name in blocked, frozenset(held[name]))
        for name, size in sizes.items()
        if size != 1
    )


def stated(factors: Factors) -> Rule:
    """Ours in the same form."""
    held: list[set[tuple[int, int, int]]] = [set() for _ in factors.factors]
    for number, dims in enumerate(factors.tensors):
        for dim, numbers in enumerate(dims):
            for place, factor in enumerate(numbers):
                held[factor].add((number, dim, place))
    return Counter(
        (factor.size, factor.kind.value, factor.blocked, frozenset(places))
        for factor, places in zip(factors.factors, held, strict=True)
    )


def relevant(rule: Rule) -> Rule:
    """Without what decides nothing: no axis moves along a factor that one dim alone holds, so
    whether it passes, and whether it is blocked, is the same to propagation. (To us such a factor
    of an operand cannot be cut; Shardy says that it passes, or gives the dim a factor of size 1.)
    Nor does one along a factor that is blocked and has to be whole, which Shardy gives to dims of
    different sizes (`mhlo.topk`).
    """
    return Counter({key: count for key, count in rule.items() if _moves(key) or _cut(key)})


def _moves(key: tuple[int, str, bool, frozenset[tuple[int, int, int]]]) -> bool:
    return len(key[3]) > 1 and not (key[2] and key[1] == FactorKind.REPLICATE.value)


def _cut(key: tuple[int, str, bool, frozenset[tuple[int, int, int]]]) -> bool:
    return key[1] == FactorKind.REDUCTION.value


def compare(op: Op, theirs: str) -> Compared:
    ours = op.definition.shard(op)
    equal = ours is not None and relevant(stated(ours)) == relevant(parsed(theirs))
    return Compared(op.name, theirs, ours, equal)


def compared(module: Module, rules: list[tuple[str, str]]) -> Iterator[Compared]:
    """The operations of the module, in order, beside Shardy's of the same name."""
    left: dict[str, list[Op]] = {}
    for op in module.body.ops:
        left.setdefault(op.name, []).append(op)
    for name, theirs in rules:
        ops = left.get(OURS.get(name, name))
        if ops:
            yield compare(ops.pop(0), theirs)
        else:
            yield Compared(name, theirs, None, False)


CONSTANT = "stablehlo.constant"  # for its twin, which Shardy makes of it before it propagates

# Custom calls that we import as operations of another name.
OURS = {
    "mhlo.topk": "chlo.top_k",
    "Eigh": "linalg.eigh",
    "Qr": "linalg.qr",
    "mhlo.erf": "chlo.erf",
}


def main(path: str) -> None:
    text = Path(path).read_text()
    equal = count = left = 0
    for source, rules in oracle(text):
        count += 1
        title = source.partition("@")[2].partition("(")[0]
        program = source.replace(f"@{title}(", "@main(").replace("sdy.constant", CONSTANT)
        try:
            found = list(compared(read_stablehlo(program), rules))
        except UserError as error:
            left += 1
            print(f"{title}: not imported: {str(error).splitlines()[-1].strip()}")
            continue
        differing = [one for one in found if not one.equal]
        equal += not differing
        for one in differing:
            reason = DEVIATIONS.get(title, "no reason is known")
            print(f"{title}: {reason}\n    Shardy  {one.theirs}\n    girih   {one.ours}")
    print(f"{equal} of {count} functions have equal rules, {left} are no programs of ours")


if __name__ == "__main__":
    main(sys.argv[1])

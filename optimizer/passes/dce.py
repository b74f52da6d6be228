"""dce: what nothing needs goes, from operations inside regions to functions and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.graph import Module, Region
from ...hlo.verify import HLO, Level
from ..keys import Keys


@dataclass(frozen=True)
class Dce:
    """HLO -> HLO: no dead operation, no function that is never called, no weight without a use."""

    name: ClassVar[str] = "dce"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = HLO

    def __call__(self, module: Module) -> Module:
        keys = Keys()
        functions = {}
        for name, function in module.functions.items():
            functions[name] = function.with_body(live_region(function.body, keys))
        if any(functions[name] is not old for name, old in module.functions.items()):
            module = module.with_functions(functions)
        called = {
            op.attributes[attribute]
            for op in module.walk()
            for attribute in ("callee", "decomposition")
            if attribute in op.attributes
        }
        called.add(module.entry)
        if any(name not in called for name in module.functions):
            kept = {name: f for name, f in module.functions.items() if name in called}
            module = module.with_functions(kept)
        used = {op.attributes["weight"] for op in module.walk() if op.name == "weight"}
        if any(name not in used for name in module.weights):
            module = module.with_weights({n: w for n, w in module.weights.items() if n in used})
        return module


def live_region(region: Region, keys: Keys) -> Region:
    """The region without dead operations; itself if there are none."""
    wanted = set(region.results)
    kept = []
    for op in reversed(region.ops):
        if not any(value in wanted for value in op.results) and not keys.has_effects(op):
            continue
        regions = [live_region(inner, keys) for inner in op.regions]
        if any(new is not old for new, old in zip(regions, op.regions, strict=True)):
            return _rebuilt(region, keys)
        kept.append(op)
        wanted.update(op.operands)
        for inner in op.regions:
            wanted.update(keys.captures(inner))
    if len(kept) == len(region.ops):
        return region
    return Region(region.arguments, kept[::-1], region.results)


def _rebuilt(region: Region, keys: Keys) -> Region:
    """The same where a nested region loses operations: users of its owner are rebuilt."""
    values = {}
    ops = []
    for op in region.ops:
        regions = [live_region(inner, keys) for inner in op.regions]
        fresh = op.with_operands([values.get(v, v) for v in op.operands], regions)
        for old, new in zip(op.results, fresh.results, strict=True):
            if old is not new:
                values[old] = new
        ops.append(fresh)
    return live_region(
        Region(region.arguments, ops, [values.get(v, v) for v in region.results]), keys
    )

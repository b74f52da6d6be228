"""dce: what nothing needs goes, from operations inside regions to functions and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.graph import Module
from ...hlo.verify import HLO, Level
from ..rewrite import Engine


@dataclass(frozen=True)
class Dce:
    """HLO -> HLO: no dead operation, no function that is never called, no weight without a use."""

    name: ClassVar[str] = "dce"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = HLO

    def __call__(self, module: Module) -> Module:
        functions = {}
        for name, function in module.functions.items():
            engine = Engine(module, merge=False)
            functions[name] = function.with_body(engine.simplify(function.body))
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
        if module.signature is not None:  # initial values of state
            used |= {a.default for a in module.signature.arguments if a.default is not None}
        if any(name not in used for name in module.weights):
            module = module.with_weights({n: w for n, w in module.weights.items() if n in used})
        return module

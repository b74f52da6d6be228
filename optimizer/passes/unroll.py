"""unroll: the functions that `reroll` made are the layers of the program again.

Each copy has its own weights and its own lines. Weights that passes have derived from those of the
function are derived again for each copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...hlo.derivation import weight_of
from ...hlo.graph import Module, Op, Origin, Region, Value, Weight
from ...hlo.verify import FUSED, Level
from ..keys import Keys
from ..repeats import VIEWS
from ..rolled import CALL, WEIGHT_BYTES, fresh_copy, is_rolled, on_values
from . import Pass


@dataclass(frozen=True)
class Unroll:
    """FUSED -> FUSED, also before kernels are made: calls of `Reroll` are their functions again.

    passes: those that went over the functions. They go over the whole program as well where they
    could carry on what they know of the operations around the copies.
    """

    passes: tuple[Pass, ...] = ()
    name: ClassVar[str] = "unroll"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        if not is_rolled(module):
            return module
        copier = _Copier(module)
        values: dict[Value, Value] = {}
        for op in module.body.ops:
            if op.name == CALL:
                results = copier.call(op, [values.get(value, value) for value in op.operands])
            else:
                results = copier.put(on_values(op, values)).results
            values.update((a, b) for a, b in zip(op.results, results, strict=True) if a is not b)
        results = [values.get(value, value) for value in module.body.results]
        main = Region(module.body.arguments, copier.ops, results)
        functions = {module.entry: module.main.with_body(main)}
        used = {op.weight for op in main.walk() if op.name == "weight"}
        if module.signature is not None:  # initial values of state
            used |= {a.default for a in module.signature.arguments if a.default is not None}
        weights = {name: weight for name, weight in copier.weights.items() if name in used}
        attributes = {n: a for n, a in module.attributes.items() if n != WEIGHT_BYTES}
        whole = replace(module, functions=functions, weights=weights, attributes=attributes)
        if _is_open(module):
            for step in self.passes:
                whole = step(whole)
        return whole


def _is_open(module: Module) -> bool:
    """Whether something may be known of a copy's operands, or too little be needed of its results,
    for the function to say the most that can be said: where a call is given a constant, or only
    parts of a result are read."""
    uses = module.body.uses
    for op in module.body.ops:
        if op.name == CALL:
            if any(v.op is not None and v.op.definition.pattern == "source" for v in op.operands):
                return True
            for value in op.results:
                users = [user for user, _ in uses.get(value, ())]
                if all(
                    user is not None and user.definition.moves in ("part", "indexed")
                    for user in users
                ):
                    return True
    return False


class _Copier:
    """Collects a program's operations and weights; a call becomes a copy of its function."""

    def __init__(self, module: Module) -> None:
        self.functions = module.functions
        self.ops: list[Op] = []
        self.weights = dict(module.weights)
        self.keys = Keys()
        self.views: dict[Any, Op] = {}  # those, and sources, that are there, by what they are
        self.sources: dict[Op, Op] = {}  # those that are there, by those of functions
        self.models: dict[str, Op] = {}  # by function, the call that stands where it was taken
        for op in module.body.ops:
            if op.name == CALL and all(inside == here for inside, here in op.weights):
                self.models.setdefault(op.callee, op)

    def put(self, op: Op) -> Op:
        """The operation, or an equal one that is there, where that is a source or a view."""
        if op.definition.pattern == "source" or op.name in VIEWS:
            key = self.keys.op(op)
            if key is not None and key in self.views:
                return self.views[key]
            self.views[key] = op
        self.ops.append(op)
        return op

    def call(self, op: Op, operands: Sequence[Value]) -> list[Value]:
        body = self.functions[op.callee].body
        names: dict[str, str] = dict(op.weights)
        model = self.models.get(op.callee)
        origins: dict[Origin, Origin] = {}
        if model is not None and len(model.origin) == len(op.origin):
            origins = dict(zip(model.origin, op.origin, strict=True))
        values = dict(zip(body.arguments, operands, strict=True))
        for inner in body.ops:
            if inner.name == "weight":
                values[inner.result] = self.weight(inner, names)
                continue
            new = self.sources.get(inner)
            if new is None:
                new = self.put(fresh_copy(inner, values, origins))
            if inner.definition.pattern == "source":  # it is the same in all copies
                self.sources[inner] = new
            values.update(zip(inner.results, new.results, strict=True))
        return [values[value] for value in body.results]

    def weight(self, op: Op, names: dict[str, str]) -> Value:
        """The `weight` operation of this copy, once for each name."""
        name = self.renamed(op.weight, names)
        made = Op(op.definition, (), {"weight": name}, (), op.result_types, op.origin)
        return self.put(made).result

    def renamed(self, name: str, names: dict[str, str]) -> str:
        """The weight that a copy has where the function has `name`: its own, one that is derived
        of its own in the same way, or one that all copies share."""
        if name not in names:
            names[name] = name
            derivation = self.weights[name].derivation
            if derivation is not None:
                found = [self.renamed(source.name, names) for source in derivation.sources]
                if found != [source.name for source in derivation.sources]:
                    names[name] = self.again(self.weights[name], found)
        return names[name]

    def again(self, model: Weight, sources: Sequence[str]) -> str:
        """The name of the weight that follows from other sources as this one does from its own."""
        assert model.derivation is not None
        renamed = {
            old.name: new for old, new in zip(model.derivation.sources, sources, strict=True)
        }
        base = max((old for old in renamed if model.name.startswith(old)), key=len, default="")
        name = renamed.get(base, "") + model.name[len(base) :]
        known = self.weights.get(name)
        if known is not None and (
            known.derivation is None
            or [source.name for source in known.derivation.sources] != list(sources)
        ):
            name += f"[{hashlib.blake2b(repr(sources).encode(), digest_size=6).hexdigest()}]"
        if name not in self.weights:
            inverse = model.inverse
            if inverse is not None:
                inverse = renamed.get(inverse[0], inverse[0]), inverse[1]
            given = [self.weights[source] for source in sources]
            aliases = given[0].aliases if model.aliases else ()
            self.weights[name] = weight_of(name, model.derivation.of(given), aliases, inverse)
        return name

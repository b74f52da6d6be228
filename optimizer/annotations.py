"""Programs without what they say about meshes, for one device."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..hlo.build import Builder
from ..hlo.graph import Function, Module, Op, Value, arguments
from ..hlo.ops.annotation import ANNOTATIONS
from ..hlo.regions import rewritten
from ..hlo.types import unsharded


def without_annotations(module: Module) -> Module:
    """The same program without meshes, shardings of arguments and the operations that annotate
    values, with one note that counts them; itself if it has none."""
    counts: Counter[str] = Counter()

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name not in ANNOTATIONS:
            return False
        counts[op.name.replace("_", " ")] += 1
        operand = op.operands[0]
        mapping.update((result, mapping.get(operand, operand)) for result in op.results)
        return True

    def bare(function: Function) -> Function:
        body = function.body
        types = [unsharded(kind) for kind in body.argument_types]
        annotated = sum(new is not old for new, old in zip(types, body.argument_types, strict=True))
        if not annotated and not any(one.name in ANNOTATIONS for one in body.definitions):
            return function
        if annotated:
            counts["argument"] += annotated
        own = arguments(types) if annotated else body.arguments
        renamed = dict(zip(body.arguments, own, strict=True)) if annotated else {}
        return function.with_body(rewritten(body, renamed, change, own))

    functions = {name: bare(function) for name, function in module.functions.items()}
    if not counts and not module.meshes:
        return module
    module = replace(module, functions=functions, meshes={})
    if not counts:
        return module
    listed = ", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in sorted(counts.items()))
    return module.with_notes(f"shardings are not used on one device: {listed}")

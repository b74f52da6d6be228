"""Programs for the tests of the writer, and how two of them are compared."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from mlir_reference import flat_attributes, tree_facts

from girih.frontends import tree
from girih.frontends.stablehlo.text import read_text
from girih.hlo import wire
from girih.hlo.graph import Module

DATA = Path(__file__).parents[1] / "data" / "readers"
EMPTY = re.compile(r"dense<[^>]*> : (tensor<(?:\d+x)*0x)")


def functions_of(text: str) -> dict[str, str]:
    """Each function as jaxlib prints it, without assertions, which girih does not import."""
    from jaxlib.mlir import ir

    module = ir.Module.parse(text)
    found = {}
    for function in module.body.operations:
        _drop_assertions(function)
        printed = re.sub(r"func\.func (?:public |private )?@[^(]*", "", str(function), count=1)
        name = str(function.attributes["sym_name"]).strip('"')
        found[name] = EMPTY.sub(r"dense<> : \1", printed)
    return found


def _drop_assertions(owner: Any) -> None:
    for region in owner.operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                operation = inner.operation
                target = (
                    "call_target_name" in operation.attributes
                    and (operation.attributes["call_target_name"])
                )
                if "check." in f"{operation.name} {target}":
                    inner.operation.detach_from_parent()
                else:
                    _drop_assertions(inner)


def own_functions(text: str) -> dict[str, Any]:
    """The same by girih's reader: jaxlib's is older than some quantised programs."""
    document = read_text(text)
    found = {}
    for function in document.module.regions[0].operations:
        body = function.regions[0]
        body.operations = [op for op in body.operations if "check." not in spelled(op)]
        name = function.attributes.pop("sym_name")
        function.attributes.pop("sym_visibility", None)
        one = tree.Operation("builtin.module", regions=[tree.Region([], [function])])
        alone = dataclasses.replace(document, module=one)
        found[name] = tree_facts(alone), list(flat_attributes(alone))
    return found


def spelled(operation: tree.Operation) -> str:
    return f"{operation.name} {operation.attributes.get('call_target_name', '')}"


def carried(module: Module) -> Module:
    """The module after a trip over the wire."""
    return wire.decode(wire.encode(module), lambda name, kind: module.weights[name].array)


def main_of(body: str, arguments: str, result: str) -> str:
    return f"""func.func @main({arguments}) -> {result} {{
      {body}
      func.return %0 : {result}
    }}"""


PLAIN = main_of("%0 = stablehlo.add %x, %x : tensor<4xf32>", "%x: tensor<4xf32>", "tensor<4xf32>")
SMALL = main_of("%0 = stablehlo.add %x, %x : tensor<4xi2>", "%x: tensor<4xi2>", "tensor<4xi2>")

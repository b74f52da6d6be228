"""What jaxlib's own MLIR parser sees in a program, in the form the reader tests compare.

jaxlib is a cross-check of the tests only; nothing that is shipped needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from girih.frontends import tree
from girih.frontends.stablehlo.attributes import flatten


class Facts(NamedTuple):
    """One op: its name, where its operands come from, and all types."""

    name: str
    operands: tuple[int, ...]
    results: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]


def quantized_spelling(text: str) -> str:
    """Types with quantised elements compare by meaning, not by spelling."""
    if "quant.uniform" not in text:
        return text
    from girih.frontends.stablehlo.text import parse_type

    return tree.spell(parse_type(text))


def _plain(text: str) -> str:
    text = re.sub(r", #stablehlo\.(bounds|type_extensions)<[^>]*>", "", text)
    return quantized_spelling(text)


def tree_facts(document: tree.Document) -> list[Facts]:
    """The facts of a tree that a reader filled, in file order."""
    numbers: dict[tree.TreeValue, int] = {}
    found: list[Facts] = []

    def visit(operation: tree.Operation) -> None:
        operands = tuple(numbers[value] for value in operation.operands)
        regions = [r for r in operation.regions if r.operations or r.arguments]
        found.append(
            Facts(
                operation.name,
                operands,
                tuple(_plain(tree.spell(value.type)) for value in operation.results),
                tuple(tuple(_plain(tree.spell(v.type)) for v in r.arguments) for r in regions),
            )
        )
        # A region's values come before the op's results, whatever the reader's own order.
        for region in regions:
            for value in region.arguments:
                numbers[value] = len(numbers)
            for inner in region.operations:
                visit(inner)
        for value in operation.results:
            numbers[value] = len(numbers)

    visit(document.module)
    return found


def mlir_facts(module: Any) -> list[Facts]:
    """The facts of a module that jaxlib parsed."""
    numbers: dict[Any, int] = {}
    found: list[Facts] = []

    def visit(operation: Any) -> None:
        operation = operation.operation
        blocks = [b for region in operation.regions for b in region.blocks]
        found.append(
            Facts(
                operation.name,
                tuple(numbers[value] for value in operation.operands),
                tuple(_plain(str(value.type)) for value in operation.results),
                tuple(tuple(_plain(str(a.type)) for a in block.arguments) for block in blocks),
            )
        )
        for block in blocks:
            for value in block.arguments:
                numbers[value] = len(numbers)
            for inner in block.operations:
                visit(inner)
        for value in operation.results:
            numbers[value] = len(numbers)

    visit(module.operation)
    return found


def mlir_context() -> Any:
    """A context with StableHLO, CHLO, sdy and VHLO."""
    from jax._src.interpreters import mlir

    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    return context


def flat_attributes(document: tree.Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and flat attributes of each op; constants by type and bytes."""
    from girih.frontends.stablehlo.literals import read_elements

    def convert(kind: tree.Type) -> str:
        return tree.spell(kind)

    for operation in tree.walk(document.module):
        facts = {}
        for key, value in flatten(operation, convert).items():  # type: ignore[arg-type]
            if isinstance(value, tree.Elements):
                array = read_elements(value)
                value = (tree.spell(value.type), array.tobytes())
            facts[key] = value
        yield operation.name, facts

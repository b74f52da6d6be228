"""Kernels of users inside StableHLO programs: composites and custom calls named "girih.kernel"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hlo.errors import UserError
from ...hlo.graph import Op, Region, arguments
from .. import tree
from ..kernel import payload
from ..kernel.cleanup import without_calls

if TYPE_CHECKING:
    from .convert import Converter


def from_composite(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The kernel in the composite's attributes; its decomposition is the reference."""
    facts = operation.attributes.get("composite_attributes", {})
    text = facts.get("kernel", "") if isinstance(facts, dict) else ""
    name = str(operation.attributes.get("decomposition", ""))
    function = converter.function(name) if name in converter.symbols else None
    reference = None if function is None else without_calls(function.body, converter.functions)
    return _append(converter, operation, built, str(text), reference)


def from_call(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The kernel in the custom call's configuration."""
    text = str(operation.attributes.get("backend_config", ""))
    return _append(converter, operation, built, text, None)


def _append(
    converter: Converter,
    operation: tree.Operation,
    built: list[Op],
    text: str,
    reference: Region | None,
) -> bool:
    origin = converter.locations.origins(operation.location)
    try:
        module = payload.from_text(text)
        op = payload.call_of(module, converter.operands(operation), origin, reference)
    except UserError as error:
        converter.block(operation, str(error), "export the program again", payload.NAME)
        types = converter.leaf_types(operation.results, operation)
        converter.bind(operation.results, arguments(types))
        return True
    built.append(op)
    converter.bind(operation.results, op.results)
    return True

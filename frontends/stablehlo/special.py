"""Ops that mean something else in hlo than their name says: calls, tuples, composites, wrappers.

A handler takes the converter, the tree's op and the list to append to; it returns False where the
op should be converted in the common way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...hlo import ops
from ...hlo.contracts import rule_contract
from ...hlo.factor_text import parse_factors
from ...hlo.graph import Dense, Op, Value, arguments, constant_of
from ...hlo.types import TensorType
from .. import shard_specs, tree
from ..kernel import payload
from . import attributes as attribute_tables
from . import constraints, gspmd, kernels, library_calls, parallel, refine

if TYPE_CHECKING:
    from .convert import Converter

TERMINATORS = ("stablehlo.return", "func.return", "sdy.return", "chlo.return")
_STRUCTURE = (*TERMINATORS, "builtin.module", "func.func", "sdy.mesh")

Handler = Callable[["Converter", tree.Operation, list[Op]], bool]


def hlo_name(operation: tree.Operation) -> str:
    """The op's name in hlo: without `stablehlo.`, other dialects keep theirs."""
    return operation.name.removeprefix("stablehlo.").removeprefix("func.")


def block_unknown(converter: Converter, operation: tree.Operation) -> None:
    """The reader that filled the tree may have said why (`refused`) and what helps (`remedy`)."""
    facts = operation.attributes
    reason = facts.get("refused") or "this operation is not supported"
    remedy = facts.get("remedy") or "replace it in the model, or export the model without it"
    converter.block(operation, str(reason), str(remedy))


def block_all_unknown(converter: Converter, module: tree.Operation) -> None:
    """A blocker for each op that neither a room nor a handler knows."""
    for operation in tree.walk(module):
        name = operation.name
        if name == "stablehlo.custom_call":
            if not _is_known_call(operation):
                _block_call(converter, operation)
        elif not (name in _STRUCTURE or name in HANDLERS or ops.known(hlo_name(operation))):
            block_unknown(converter, operation)


def _constant(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    converter.constant(operation, built)
    return True


def _constant_like(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """One number, in the operand's shape."""
    (like,) = converter.operands(operation)
    facts = attribute_tables.plain(operation.attributes, converter.type)
    kind = TensorType(like.tensor.dims, converter.element(_element_of(operation.results[0])))
    converter.append_constant(operation, Dense.splat(facts.get("value", 0), kind), built)
    return True


def _element_of(value: tree.TreeValue) -> Any:
    return value.type.element if isinstance(value.type, tree.Tensor) else ""


def _tuple(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    converter.bind(operation.results, converter.operands(operation))
    return True


def _get_tuple_element(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    members = converter.use(operation.operands[0])
    index = attribute_tables.plain(operation.attributes.get("index"), converter.type)
    if not isinstance(members, tuple) or not isinstance(index, int) or index >= len(members):
        converter.block(operation, "takes an element that is not there", "correct the index")
        _unsupported(converter, operation)
    else:
        converter.rename(operation.results[0], members[index])
    return True


def _call_to(converter: Converter, operation: tree.Operation, built: list[Op], callee: str) -> bool:
    """`call{callee}` with the op's own operands; a missing or recursive callee blocks."""
    converter.callers.append(operation)
    try:
        return _call_known(converter, operation, built, callee)
    finally:
        converter.callers.pop()


def _call_known(
    converter: Converter, operation: tree.Operation, built: list[Op], callee: str
) -> bool:
    if callee not in converter.symbols:
        converter.block(operation, f"calls @{callee}, which is not in the file", "export it too")
    elif converter.free_shapes and converter.symbols[callee].regions:
        with converter.calling(callee, operation):
            return refine.inlined(converter, operation, built, converter.symbols[callee])
    elif callee in converter.functions and converter.functions[callee] is None:
        converter.block(operation, f"@{callee} calls itself", "use a while loop")
    elif converter.function(callee) is not None:
        converter.emit("call", operation, built, {"callee": callee})
        return True
    _unsupported(converter, operation)
    return True


def _unsupported(converter: Converter, operation: tree.Operation) -> None:
    """After a blocker: values that stand for the op's results, so that the import goes on."""
    if converter.free_shapes:
        converter.raise_blockers()
    types = converter.leaf_types(operation.results, operation)
    converter.bind(operation.results, arguments(types))


def _call(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _call_to(converter, operation, built, str(operation.attributes.get("callee", "")))


def _composite(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The op that the composite names where girih has it, else a call of its decomposition."""
    name = str(operation.attributes.get("name", ""))
    if name == payload.NAME:
        return kernels.from_composite(converter, operation, built)
    if name == shard_specs.NAME:
        return constraints.from_composite(converter, operation, built)
    if name.startswith(("chlo.", "stablehlo.")):
        base = name.removeprefix("stablehlo.")
        inner = operation.attributes.get("composite_attributes", {})
        facts = attribute_tables.laid_flat(attribute_tables.plain(inner, converter.type))
        ragged = facts.get("lhs_ragged_dimensions", ())
        # JAX asks for no group sizes where batches are ragged; chlo.ragged_dot does.
        if ops.known(base) and not {*ragged} & {*facts.get("lhs_batching_dimensions", ())}:
            operation.regions = []
            converter.emit(base, operation, built, facts)
            return True
    operation.regions = []
    decomposition = str(operation.attributes.get("decomposition", ""))
    return _call_to(converter, operation, built, decomposition)


def _identity(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The operands themselves."""
    for operand, result in zip(operation.operands, operation.results, strict=False):
        converter.rename(result, converter.use(operand))
    return len(operation.operands) == len(operation.results)


def _whole_shard(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The operands themselves, where one device has all of them."""
    for operand, result in zip(operation.operands, operation.results, strict=False):
        if operand.type != result.type:
            return False
    return _identity(converter, operation, built)


def _check(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The assertions of StableHLO's own test files compute nothing."""
    converter.notes.append(f"{operation.name} is a test's assertion and was not imported")
    return not operation.results


def _custom_call(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    facts = operation.attributes
    target = str(facts.get("call_target_name", ""))
    if target.startswith("check.") and not operation.results:
        return _check(converter, operation, built)
    if library_calls.convert(converter, operation, built):
        return True
    handler = _CALLS.get(target)
    if handler is not None and handler(converter, operation, built):
        return True
    if target.startswith("mhlo."):
        name = _chlo_name(target)
        if ops.known(name):
            inner = facts.get("mhlo.attributes", {})
            given = attribute_tables.plain(inner, converter.type)
            converter.emit(name, operation, built, attribute_tables.laid_flat(given))
            return True
    if ops.known("custom_call"):
        return False
    _block_call(converter, operation)
    _unsupported(converter, operation)
    return True


def _is_known_call(operation: tree.Operation) -> bool:
    """Whether a custom call is one that `_custom_call` converts."""
    target = str(operation.attributes.get("call_target_name", ""))
    if target in _CALLS or library_calls.is_known(target) or ops.known("custom_call"):
        return True
    if target.startswith("mhlo."):
        return ops.known(_chlo_name(target))
    return target.startswith("check.") and not operation.results


def _chlo_name(target: str) -> str:
    """Older exports call CHLO's ops as `mhlo.erf`."""
    return "chlo." + target.removeprefix("mhlo.")


def _block_call(converter: Converter, operation: tree.Operation) -> None:
    target = str(operation.attributes.get("call_target_name", ""))
    remedy = _REMEDIES.get(target) or library_calls.remedy(target)
    remedy = remedy or "replace it by ordinary operations in the model"
    reason = f"custom call '{target}' is code outside the program"
    rule = operation.attributes.get("sdy.sharding_rule")
    if isinstance(rule, tree.Opaque):
        reason += f", partitioned by the rule {rule.text}"
        contract = rule_contract(parse_factors(rule.text))
        if contract:
            remedy = f"write it as a girih.kernel(sharding='{contract}'), {_OTHERWISE}"
    converter.block(operation, reason, remedy, "stablehlo.custom_call")


def _case(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """A choice by a constant (an export's platform) is made here; others stay."""
    chosen = converter.use(operation.operands[0]) if operation.operands else None
    index = constant_of(chosen) if isinstance(chosen, Value) else None
    if index is None or index.array.size != 1 or not operation.regions:
        return False
    number = int(index.splat_value)
    if not 0 <= number < len(operation.regions):
        number = len(operation.regions) - 1
    results = converter.inline(operation.regions[number], built)
    converter.bind(operation.results, results)
    return True


def _dynamic_reshape(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """StableHLO's operation of that name, which took its place."""
    if not refine.HANDLERS["stablehlo.dynamic_reshape"](converter, operation, built):
        converter.emit("dynamic_reshape", operation, built, {})
    return True


_CALLS: dict[str, Handler] = {
    **constraints.CALLS,
    payload.NAME: kernels.from_call,
    "SPMDFullToShardShape": _whole_shard,
    "SPMDShardToFullShape": _whole_shard,
    "LayoutConstraint": _identity,
    "annotate_device_placement": _identity,
    "shape_assertion": refine.shape_assertion,
    "stablehlo.dynamic_reduce_window": refine.reduce_window,
}
"""Custom calls that are ordinary operations, or annotations."""

_OTHERWISE = "or call it without custom_partitioning, so that girih partitions its operations"
_NO_CALLBACKS = "remove io_callback, pure_callback or debug prints before export"
_REMEDIES = {
    "xla_python_cpu_callback": _NO_CALLBACKS,
    "xla_ffi_python_cpu_callback": _NO_CALLBACKS,
    **dict.fromkeys(
        (gspmd.TO_SHARD, gspmd.TO_FULL), "export the program with Shardy, JAX's partitioner today"
    ),
    "CustomSPMDPartitioning": "how it is partitioned is a callback in the process that exported "
    f"it; write it as a girih.kernel whose sharding= says it, {_OTHERWISE}",
    "tpu_custom_call": "export without Pallas kernels",
    "__gpu$xla.gpu.triton": "export without Pallas kernels",
}

HANDLERS: dict[str, Handler] = {
    **refine.HANDLERS,
    **constraints.HANDLERS,
    **parallel.HANDLERS,
    "stablehlo.constant": _constant,
    "chlo.constant": _constant,
    "chlo.constant_like": _constant_like,
    "chlo.dynamic_reshape": _dynamic_reshape,
    "stablehlo.tuple": _tuple,
    "stablehlo.get_tuple_element": _get_tuple_element,
    "stablehlo.case": _case,
    "stablehlo.composite": _composite,
    "stablehlo.custom_call": _custom_call,
    "check.expect_eq": _check,
    "check.expect_eq_const": _check,
    "check.expect_close": _check,
    "check.expect_almost_eq": _check,
    "check.expect_almost_eq_const": _check,
    "check.expect_serialized_eq": _check,
    "func.call": _call,
    "stablehlo.call": _call,
}

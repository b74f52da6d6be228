"""Programs with free shapes, once the shapes of their inputs are known.

Such a program computes sizes (`get_dimension_size`, small integer arithmetic) and hands them to
`dynamic_*` ops. With fixed inputs all of that is known here: calls are inlined, sizes become
constants, types are inferred by the op rooms, and each `dynamic_*` op becomes its fixed twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hlo import ops
from ...hlo.build import make_op
from ...hlo.errors import GirihError, UserError
from ...hlo.graph import Dense, Op, Value, constant_of
from ...hlo.sizes import Symbol
from ...hlo.symbols import SymbolicDim
from ...hlo.types import TensorType, TupleType, Type
from .. import tree
from . import attributes as attribute_tables
from . import constraints

if TYPE_CHECKING:
    from .convert import Converter

OF_DATA = "depends on the program's data"

MAXIMUM_FOLDED = 64
"""Sizes are computed in integer tensors of at most so many elements."""


def is_free(kind: tree.Type) -> bool:
    """Whether a type has a dimension that is not fixed."""
    if isinstance(kind, tree.Tuple):
        return any(map(is_free, kind.types))
    return isinstance(kind, tree.Tensor) and any(dim < 0 for dim in kind.shape)


Symbols = dict[str, Symbol]


def symbolic_type(kind: tree.Type, symbols: Symbols, fixed: Callable[[tree.Type], Type]) -> Type:
    """The type with a new symbol `d0`, `d1`, ... for each free dimension; `fixed` knows others.

    symbols: gets each new one with its range, whose end is the type's bound.
    """
    if isinstance(kind, tree.Tuple):
        return TupleType([symbolic_type(member, symbols, fixed) for member in kind.types])
    if not isinstance(kind, tree.Tensor):
        return fixed(kind)
    one = fixed(tree.Tensor((1,) * len(kind.shape), kind.element))
    assert isinstance(one, TensorType)
    bounds = _bounds(kind)
    dims: list[Any] = []
    for dim, bound in zip(kind.shape, bounds, strict=True):
        if dim < 0:
            name = f"d{len(symbols)}"
            symbols[name] = Symbol(0, bound)
            dims.append(SymbolicDim(name))
        else:
            dims.append(dim)
    return one.with_dims(dims)


def _bounds(kind: tree.Tensor) -> tuple[int | None, ...]:
    """The bound of each dimension that a type's encoding states."""
    stated = kind.encoding
    if isinstance(stated, tree.Structured) and stated.kind == "bounds":
        found = tuple(stated.fields.get("bounds", ()))
        if len(found) == len(kind.shape):
            return tuple(None if bound < 0 else int(bound) for bound in found)
    return (None,) * len(kind.shape)


def example_types(
    converter: Converter, entry: tree.Operation, examples: Sequence[Any]
) -> dict[int, Type]:
    """The types of the inputs whose shapes are free, as the examples fix them."""
    source = converter.document.source
    inputs = entry.regions[0].arguments
    if len(inputs) != len(examples):
        raise UserError(f"{source}: the program takes {len(inputs)} inputs, got {len(examples)}")
    found: dict[int, Type] = {}
    for index, (value, example) in enumerate(zip(inputs, examples, strict=True)):
        if not isinstance(value.type, tree.Tensor):
            continue
        shape, declared = np.shape(example), value.type.shape
        bounds = _bounds(value.type)
        fits = len(shape) == len(declared) and all(
            size == dim if dim >= 0 else bound is None or size <= bound
            for size, dim, bound in zip(shape, declared, bounds, strict=True)
        )
        if not fits:
            raise UserError(
                f"{source}: example {index} has shape {list(shape)}, the program declares "
                f"{tree.spell(value.type)}"
            )
        if is_free(value.type):
            kind = found[index] = TensorType(shape, converter.element(value.type.element))
            converter.notes.append(f"input {index} is {kind}, as the example is")
    return found


def has_free_shapes(module: tree.Operation) -> bool:
    """Whether any value of the program has a type with free dimensions."""
    known: dict[int, bool] = {}
    for operation in tree.walk(module):
        for value in operation.results:
            kind = value.type
            if id(kind) not in known:
                known[id(kind)] = is_free(kind)
            if known[id(kind)]:
                return True
    return any(
        is_free(value.type)
        for operation in tree.walk(module)
        for region in operation.regions
        for value in region.arguments
    )


def result_types(converter: Converter, draft: Op, operation: tree.Operation) -> Sequence[Type]:
    """The fixed types of an op's results: what the room infers, or the operand's dimensions."""
    declared = [value.type for value in operation.results]
    if not any(map(is_free, declared)):
        return converter.leaf_types(operation.results, operation)
    try:
        draft.definition.check(draft)
        inferred = draft.definition.inferred(draft)
    except (GirihError, LookupError, TypeError, ValueError) as error:
        reason = f"its result shape cannot be derived: {error}"
        converter.block(operation, reason, "export the program with fixed shapes")
        converter.raise_blockers()
        raise
    if inferred is not None:
        return inferred
    # Of the rooms whose result type must be given, the elementwise ones (convert) keep dimensions.
    found: list[Type] = []
    for kind in declared:
        first = draft.operands[0].type if draft.operands else None
        if (
            draft.definition.pattern != "elementwise"
            or not isinstance(kind, tree.Tensor)
            or not isinstance(first, TensorType)
            or first.rank != len(kind.shape)
        ):
            reason = f"the shape of {tree.spell(kind)} {OF_DATA}"
            converter.block(operation, reason, "export the program with fixed shapes")
            converter.raise_blockers()
        else:
            found.append(TensorType(first.dims, converter.element(kind.element)))
    return found


def folded(op: Op) -> Op:
    """The op as a constant where it computes sizes from constants; itself otherwise."""
    if len(op.results) != 1 or op.regions or op.name in ("constant", "weight"):
        return op
    kind = op.results[0].type
    if not isinstance(kind, TensorType) or kind.size > MAXIMUM_FOLDED:
        return op
    if not (kind.element.is_integer or kind.element.is_bool) or op.definition.effects:
        return op
    constants = [constant_of(value) for value in op.operands]
    if any(constant is None for constant in constants):
        return op
    arrays = [constant.array for constant in constants if constant is not None]
    op.definition.check(op)
    with np.errstate(all="ignore"):
        array = np.asarray(op.definition.evaluate(op, *arrays))
    if array.shape != kind.dims:
        return op  # the verifier says what is wrong with it
    dense = Dense(kind, array.astype(kind.dtype, copy=False))
    return Op(ops.find("constant"), (), {"value": dense}, (), (kind,), op.origin)


def constant_numbers(value: Value) -> tuple[Any, ...] | None:
    """The elements of a constant, nested as its dimensions are; None for another value."""
    dense = constant_of(value)
    return None if dense is None else _tuples(dense.array.tolist())


def _tuples(items: Any) -> Any:
    return tuple(map(_tuples, items)) if isinstance(items, list) else items


def _fixed(
    converter: Converter,
    operation: tree.Operation,
    built: list[Op],
    name: str,
    sizes: Mapping[str, int],
    shape: int | None = None,
) -> bool:
    """Emit the twin `name` of a dynamic op.

    sizes: attribute of the twin -> number of the operand that holds it; shape: number of the
    operand that is the result's shape. False where these are not constants.
    """
    operands = converter.operands(operation)
    declared = operation.results[0].type
    if len(operands) <= max([*sizes.values(), shape or 0]):
        return False
    types: list[Type] | None = None
    if shape is not None and isinstance(declared, tree.Tensor):
        dims = declared.shape if not is_free(declared) else constant_numbers(operands[shape])
        if dims is None or any(dim < 0 for dim in dims):
            return False
        types = [TensorType(dims, converter.element(declared.element))]
    facts = attribute_tables.flatten(operation, converter.type)
    for key in ("known_expanding_dimensions", "known_nonexpanding_dimensions"):
        facts.pop(key, None)
    for key, number in sizes.items():
        numbers = constant_numbers(operands[number])
        if numbers is None:
            return False
        facts[key] = numbers
    dropped = {*sizes.values(), shape}
    kept = [value for number, value in enumerate(operands) if number not in dropped]
    converter.emit(name, operation, built, facts, kept, types)
    return True


def _broadcast(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _fixed(converter, operation, built, "broadcast_in_dim", {}, 1)


def _reshape(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _fixed(converter, operation, built, "reshape", {}, 1)


def _iota(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _fixed(converter, operation, built, "iota", {}, 0)


def _slice(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """A `slice`; or, where it moves with the data but has one size, a `dynamic_slice`."""
    sizes = {"start_indices": 1, "limit_indices": 2, "strides": 3}
    if _fixed(converter, operation, built, "slice", sizes):
        return True
    operand, start, limit, strides = converter.operands(operation)
    total = limit.op
    if total is None or total.name != "add" or start not in total.operands:
        return False
    length = constant_numbers(total.operands[1 - total.operands.index(start)])
    if length is None or set(constant_numbers(strides) or ()) != {1}:
        return False
    origin = converter.locations.origins(operation.location)
    scalar = TensorType((), start.element)
    starts: list[Value] = []
    for place in range(len(length)):
        facts = {"start_indices": (place,), "limit_indices": (place + 1,), "strides": (1,)}
        built.append(make_op("slice", (start,), facts, origin=origin))
        built.append(make_op("reshape", built[-1].results, {}, (), (scalar,), origin))
        starts.append(built[-1].result)
    converter.emit("dynamic_slice", operation, built, {"slice_sizes": length}, [operand, *starts])
    return True


def reduce_window(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """JAX's custom call with a function as its body and sizes as operands."""
    operands = converter.operands(operation)
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding")
    inputs = len(operands) - len(names)
    bodies = operation.attributes.get("called_computations", ())
    body = converter.symbols.get(bodies[0]) if bodies else None
    if body is None or not body.regions or inputs < 2:
        return False
    facts: dict[str, Any] = {}
    for name, value in zip(names, operands[inputs:], strict=True):
        found = constant_numbers(value)
        if found is None:
            return False
        facts[name] = found
    operation.regions = [body.regions[0]]
    converter.emit("reduce_window", operation, built, facts, operands[:inputs])
    return True


def _pad(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    sizes = {"edge_padding_low": 2, "edge_padding_high": 3, "interior_padding": 4}
    return _fixed(converter, operation, built, "pad", sizes)


def _gather(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _fixed(converter, operation, built, "gather", {"slice_sizes": 2})


def _convolution(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    return _fixed(converter, operation, built, "convolution", {"padding": 2})


def _dimension_size(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """The size is known: a constant."""
    operands = converter.operands(operation)
    facts = attribute_tables.flatten(operation, converter.type)
    dimension = facts.get("dimension")
    kind = converter.type(operation.results[0].type)
    if len(operands) != 1 or not isinstance(dimension, int) or not isinstance(kind, TensorType):
        return False
    if not 0 <= dimension < operands[0].rank:
        return False
    size = Dense(kind, np.asarray(operands[0].dims[dimension], kind.dtype))
    converter.append_constant(operation, size, built)
    return True


def _set_dimension_size(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """A known size: the first elements, or all of them."""
    operands = converter.operands(operation)
    size = constant_numbers(operands[1]) if len(operands) == 2 else None
    dimension = attribute_tables.flatten(operation, converter.type).get("dimension")
    if not isinstance(size, int) or not isinstance(dimension, int):
        return False
    dims = operands[0].dims
    if not 0 <= dimension < len(dims) or not 0 <= size <= dims[dimension]:
        return False
    limits = tuple(size if d == dimension else whole for d, whole in enumerate(dims))
    facts = {
        "start_indices": (0,) * len(dims), "limit_indices": limits, "strides": (1,) * len(dims),
    }  # fmt: skip
    converter.emit("slice", operation, built, facts, operands[:1])
    return True


def shape_assertion(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """JAX's check of the sizes that a call gives; UserError where it fails, nothing where not."""
    operands = converter.operands(operation)
    holds = constant_of(operands[0]) if operands else None
    if converter.symbolic:
        converter.notes.append("checks of sizes are not made while sizes are free")
    if holds is not None and not bool(np.all(holds.array)):
        message = str(operation.attributes.get("error_message", "a shape is not allowed"))
        numbers = [constant_numbers(value) for value in operands[1:]]
        for place, number in enumerate(numbers):
            message = message.replace(f"{{{place}}}", str(number))
        raise UserError(f"{converter.document.source}: {message}")
    return not operation.results


def inlined(
    converter: Converter, operation: tree.Operation, built: list[Op], callee: tree.Operation
) -> bool:
    """A call becomes the callee's body, so that sizes reach it as constants."""
    region: tree.Region = callee.regions[0]
    if len(region.arguments) != len(operation.operands):
        raise UserError(f"{converter.document.source}: a call does not fit its function")
    for index, parameter in enumerate(region.arguments):
        converter.rename(parameter, converter.use(operation.operands[index]))
        constraints.on_argument(converter, callee, index, parameter, built)
    results = converter.inline(region, built)
    converter.bind(operation.results, constraints.on_results(converter, callee, results, built))
    return True


HANDLERS = {
    "stablehlo.dynamic_broadcast_in_dim": _broadcast,
    "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.dynamic_iota": _iota,
    "stablehlo.real_dynamic_slice": _slice,
    "stablehlo.dynamic_pad": _pad,
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.dynamic_conv": _convolution,
    "stablehlo.get_dimension_size": _dimension_size,
    "stablehlo.set_dimension_size": _set_dimension_size,
}

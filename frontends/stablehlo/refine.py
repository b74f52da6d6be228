"""Programs with free shapes, once the sizes of their inputs are numbers or symbols.

Such a program computes sizes (`get_dimension_size`, small integer arithmetic) and hands them to
`dynamic_*` ops. All of that is known here: calls are inlined, sizes are constants, or expressions
of symbols (`known_integers.py`), types are inferred by the op rooms, and each `dynamic_*` op
becomes its twin, whose sizes are part of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hlo import ops
from ...hlo.build import make_op
from ...hlo.errors import GirihError, UserError
from ...hlo.graph import Dense, Op, Value, constant_of
from ...hlo.interpret import evaluated
from ...hlo.sizes import Symbol
from ...hlo.symbols import SymbolicDim
from ...hlo.types import TensorType, TupleType, Type
from .. import tree
from . import attributes as attribute_tables
from . import constraints, demanded_sizes
from .known_integers import MAXIMUM_KNOWN, OF_DATA, KnownIntegers

if TYPE_CHECKING:
    from .convert import Converter


def is_free(kind: tree.Type) -> bool:
    """Whether a type has a dimension that is not fixed."""
    if isinstance(kind, tree.Tuple):
        return any(map(is_free, kind.types))
    return isinstance(kind, tree.Tensor) and any(dim < 0 for dim in kind.shape)


def symbolic_type(
    kind: tree.Type, known: KnownIntegers, fixed: Callable[[tree.Type], Type]
) -> Type:
    """The type with a new symbol `d0`, `d1`, ... for each free dimension; `fixed` knows others.

    known: gets each new one with its range, whose end is the type's bound.
    """
    if isinstance(kind, tree.Tuple):
        return TupleType([symbolic_type(member, known, fixed) for member in kind.types])
    if not isinstance(kind, tree.Tensor):
        return fixed(kind)
    one = fixed(tree.Tensor((1,) * len(kind.shape), kind.element))
    assert isinstance(one, TensorType)
    bounds = _bounds(kind)
    dims: list[Any] = []
    for dim, bound in zip(kind.shape, bounds, strict=True):
        if dim < 0:
            numbers = itertools.count(len(known.symbols))
            name = next(name for n in numbers if (name := f"d{n}") not in known.symbols)
            known.add_symbol(name, Symbol(0, bound))
            dims.append(SymbolicDim(name))
        else:
            dims.append(dim)
    return one.with_dims(dims)


def open_inputs(converter: Converter, entry: tree.Operation) -> dict[int, Type]:
    """The types of the entry's inputs, with symbols for the sizes that nothing fixes."""
    found = dict(converter.input_types)
    layout = converter.entry_arguments
    for place, value in enumerate(entry.regions[0].arguments):
        index = place if layout is None else layout[place].index
        if is_free(value.type) and index >= 0 and index not in found:
            found[index] = symbolic_type(value.type, converter.known, converter.type)
    return found


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
    if not isinstance(kind, TensorType) or not kind.is_static or kind.size > MAXIMUM_KNOWN:
        return op
    if not (kind.element.is_integer or kind.element.is_bool) or op.definition.effects:
        return op
    constants = [constant_of(value) for value in op.operands]
    if any(constant is None for constant in constants):
        return op
    arrays = [constant.array for constant in constants if constant is not None]
    op.definition.check(op)
    with np.errstate(all="ignore"):
        array = np.asarray(evaluated(op, arrays)[0])
    if array.shape != kind.dims:
        return op  # the verifier says what is wrong with it
    dense = Dense(kind, array.astype(kind.dtype, copy=False))
    return Op(ops.find("constant"), (), {"value": dense}, (), (kind,), op.origin)


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
    operand that is the result's shape. False where these are not known.
    """
    operands = converter.operands(operation)
    declared = operation.results[0].type
    if len(operands) <= max([*sizes.values(), shape or 0]):
        return False
    types: list[Type] | None = None
    if shape is not None and isinstance(declared, tree.Tensor):
        dims: Any = declared.shape
        numbers = converter.known.numbers(operands[shape])
        if is_free(declared):
            if numbers is None or any(isinstance(dim, int) and dim < 0 for dim in numbers):
                return False
            dims = [d if d >= 0 else n for d, n in zip(declared.shape, numbers, strict=True)]
        if numbers is not None:
            demanded_sizes.demand_declared(converter, operation, declared.shape, numbers)
        types = [TensorType(dims, converter.element(declared.element))]
    facts = attribute_tables.flatten(operation, converter.type)
    for key in ("known_expanding_dimensions", "known_nonexpanding_dimensions"):
        facts.pop(key, None)
    for key, number in sizes.items():
        numbers = converter.known.numbers(operands[number])
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
    length = converter.known.numbers(total.operands[1 - total.operands.index(start)])
    if length is None or set(converter.known.numbers(strides) or ()) != {1}:
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
        found = converter.known.numbers(value)
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
    """A size that is a number: a constant."""
    operands = converter.operands(operation)
    facts = attribute_tables.flatten(operation, converter.type)
    dimension = facts.get("dimension")
    kind = converter.type(operation.results[0].type)
    if len(operands) != 1 or not isinstance(dimension, int) or not isinstance(kind, TensorType):
        return False
    if not 0 <= dimension < operands[0].rank or not isinstance(operands[0].dims[dimension], int):
        return False
    size = Dense(kind, np.asarray(operands[0].dims[dimension], kind.dtype))
    converter.append_constant(operation, size, built)
    return True


def _set_dimension_size(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """A known size: the first elements, or all of them."""
    operands = converter.operands(operation)
    size = converter.known.numbers(operands[1]) if len(operands) == 2 else None
    dimension = attribute_tables.flatten(operation, converter.type).get("dimension")
    if not isinstance(size, (int, SymbolicDim)) or not isinstance(dimension, int):
        return False
    dims, facts = operands[0].dims, converter.known.facts
    if not 0 <= dimension < len(dims):
        return False
    if not (facts.at_most(0, size) and facts.at_most(size, dims[dimension])):
        return False
    limits = tuple(size if d == dimension else whole for d, whole in enumerate(dims))
    cut = {
        "start_indices": (0,) * len(dims), "limit_indices": limits, "strides": (1,) * len(dims),
    }  # fmt: skip
    converter.emit("slice", operation, built, cut, operands[:1])
    return True


def shape_assertion(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """JAX's check of the sizes that a call gives: what it demands of symbols is the program's, with
    the check's own message; UserError where it never holds."""
    operands = converter.operands(operation)
    known = converter.known
    holds = known.truth(operands[0]) if operands else None
    message = str(operation.attributes.get("error_message", "a shape is not allowed"))
    for place, value in enumerate(operands[1:]):
        message = message.replace(f"{{{place}}}", str(known.numbers(value)))
    if holds is False:
        raise UserError(f"{converter.document.source}: {message}")
    if isinstance(holds, tuple):
        for claim in holds:
            known.demand(claim._replace(origin=_without_solution(message)))
    elif holds is None:
        converter.notes.append(f"a check of the program's data is not made: {message}")
    return not operation.results


_PREFIX = "Input shapes do not match the polymorphic shapes specification. "
_SPELLED = re.compile(
    r"\. ? ?Using the following polymorphic shapes .*"  # how JAX has solved for its variables
    r"|, but found [^.]*(?=\.)"
    r"| \(= [^)]*\)",
    re.DOTALL,
)


def _without_solution(message: str) -> str:
    """JAX's message without what it tells of the values of one call."""
    return _SPELLED.sub("", message).removeprefix(_PREFIX)


def unchanged(loop: tree.Operation, count: int) -> list[int]:
    """Which of its values the body of a `while` gives on as they are."""
    body = loop.regions[1] if len(loop.regions) == 2 else tree.Region()
    returned = body.operations[-1].operands if body.operations else []
    if not len(body.arguments) == len(returned) == count:
        return []  # tuples are taken apart
    return [n for n, value in enumerate(returned) if value is body.arguments[n]]


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

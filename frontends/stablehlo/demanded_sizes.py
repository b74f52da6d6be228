"""Relations of sizes that operations demand, and arguments that are sizes.

An operation whose operands have free sizes means something only where these fit. What does not
follow from what is known of the symbols becomes a constraint of the program, with the operation's
line, so that a call is checked and code may rely on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...hlo.assumptions import assuming
from ...hlo.build import Builder
from ...hlo.errors import Blocker, ImportBlockers, UserError
from ...hlo.graph import Module, Op, Region, Value, signature_of
from ...hlo.signature import Measured
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.specialize import specialized
from ...hlo.symbols import Dim, SymbolicDim, name_of, symbols_of
from ...hlo.types import TensorType, Type
from .. import tree
from .known_integers import OF_DATA, KnownIntegers

if TYPE_CHECKING:
    from .convert import Converter


def demand_sizes(converter: Converter, operation: tree.Operation, op: Op) -> None:
    """Where the op needs relations of sizes that are not known to hold, a call has to give such."""
    known = converter.known
    if not known.symbols:
        return
    place = converter.locations.place(*(o.location for o in (operation, *converter.callers)))
    origin = f"{op.name} at {place}" if place else op.name
    for value in op.results:
        for dim in value.dims if isinstance(value.type, TensorType) else ():
            if isinstance(dim, SymbolicDim) and not known.is_natural(dim):
                known.demand(SizeConstraint(0, "<=", dim, origin))
    if _holds(known, op):
        return
    relations = [
        SizeConstraint(left, relation, right, origin)
        for left, relation, right in (*_pairs(op, converter.sizes_as_arguments), *_limits(op))
        if _is_unknown(known, left, relation, right)
    ]
    if not _enough(known, op, relations):
        return
    for relation in list(relations):
        others = [other for other in relations if other is not relation]
        if _enough(known, op, others):
            relations = others
    for relation in relations:
        known.demand(relation)


def demand_declared(
    converter: Converter, operation: tree.Operation, declared: Sequence[int], dims: Sequence[Dim]
) -> None:
    """A shape that is computed has to have the sizes that the result's type declares."""
    place = converter.locations.place(*(o.location for o in (operation, *converter.callers)))
    for size, dim in zip(declared, dims, strict=True):
        if size >= 0 and converter.known.facts.is_equal(dim, size) is None:
            origin = f"{operation.name} at {place}" if place else operation.name
            converter.known.demand(SizeConstraint(dim, "==", size, origin))


def _is_unknown(known: KnownIntegers, left: Dim, relation: str, right: Dim) -> bool:
    ask = known.facts.is_equal if relation == "==" else known.facts.at_most
    return ask(left, right) is None


def _enough(known: KnownIntegers, op: Op, relations: Sequence[SizeConstraint]) -> bool:
    """Whether the op's clauses follow from these, too."""
    with known.trying():
        for relation in relations:
            known.demand(relation)
        return _holds(known, op)


def _holds(known: KnownIntegers, op: Op) -> bool:
    """Whether the op's clauses follow from what is known."""
    if all(_is_fixed(value.type) for value in (*op.operands, *op.results)):
        return True
    try:
        with assuming(known.facts, proven=True):
            op.definition.check(op)
    except UserError:  # a clause is not proven, or no sizes are left
        return False
    return True


def _is_fixed(kind: Type) -> bool:
    return not isinstance(kind, TensorType) or kind.is_static


Relation = tuple[Dim, Literal["==", "<="], Dim]


def _pairs(op: Op, one_or_equal: bool) -> Iterator[Relation]:
    """Sizes that the op may need to be equal. one_or_equal: also those of which one may be 1."""
    kinds = [value.type for value in op.operands if isinstance(value.type, TensorType)]
    found: Iterable[tuple[Dim, Dim]]
    if op.name == "dot_general":
        found = [
            (kinds[0].dims[left], kinds[1].dims[right])
            for name in ("batching", "contracting")
            for left, right in zip(
                getattr(op, f"lhs_{name}_dimensions"),
                getattr(op, f"rhs_{name}_dimensions"),
                strict=False,
            )
        ]
    elif op.name == "while":
        found = _of_types([value.type for value in op.operands], op.regions[1].result_types)
    elif op.name in ("if", "case"):
        first, *others = [region.result_types for region in op.regions]
        found = (pair for types in others for pair in _of_types(first, types))
    elif op.name == "reshape":
        found = [(kinds[0].size, op.result.tensor.size)] if one_or_equal else []
    elif op.name == "broadcast_in_dim":
        places = op.broadcast_dimensions if one_or_equal else ()
        found = [
            (kinds[0].dims[dim], op.result.tensor.dims[place]) for dim, place in enumerate(places)
        ]
    else:
        found = (
            pair
            for place, one in enumerate(kinds)
            for other in kinds[place + 1 :]
            for pair in _of_types([one], [other])
        )
    return ((left, "==", right) for left, right in found)


def _of_types(types: Sequence[Type], others: Sequence[Type]) -> Iterator[tuple[Dim, Dim]]:
    for one, other in zip(types, others, strict=False):
        if isinstance(one, TensorType) and isinstance(other, TensorType) and one.rank == other.rank:
            yield from zip(one.dims, other.dims, strict=True)


def _limits(op: Op) -> Iterator[Relation]:
    """Sizes that the op may need to be at most others."""
    found: list[tuple[Sequence[Dim], Sequence[Dim]]] = []
    if op.name in ("gather", "dynamic_slice"):
        found = [(op.slice_sizes, op.operands[0].dims)]
    elif op.name == "dynamic_update_slice":
        found = [(op.operands[1].dims, op.operands[0].dims)]
    elif op.name == "slice":
        starts, ends = op.start_indices, op.limit_indices
        found = [([0] * len(starts), starts), (starts, ends), (ends, op.operands[0].dims)]
    elif op.name == "reduce_window":
        found = [([1] * len(op.window_dimensions), op.window_dimensions)]
    elif op.name == "chlo.top_k":
        found = [([op.k], op.operands[0].dims[-1:])]
    elif op.name == "scatter":
        whole = {*op.inserted_window_dims, *op.input_batching_dims}
        kept = [d for n, d in enumerate(op.operands[0].dims) if n not in whole]
        windows = [op.operands[-1].dims[place] for place in op.update_window_dims]
        found = [(windows, kept), ([1] * op.operands[0].rank, op.operands[0].dims)]
    for left, right in found:
        for low, high in zip(left, right, strict=False):
            yield low, "<=", high


# Arguments that are sizes of other arguments, as JAX's exports had them before 2023.


def is_size(value: tree.TreeValue) -> bool:
    """Whether an argument of this type could be a size."""
    kind = value.type
    return isinstance(kind, tree.Tensor) and not kind.shape and kind.element in ("i32", "i64")


def name_argument_sizes(converter: Converter, entry: tree.Operation) -> None:
    """Each argument that could be a size is a symbol at first."""
    for place, value in enumerate(entry.regions[0].arguments):
        if is_size(value):
            name = f"argument{place}"
            converter.known.add_symbol(name, Symbol())
            (leaf,) = converter.leaves(value)
            converter.known.set(leaf, SymbolicDim(name))
            converter.argument_sizes[name] = place


def with_equal_sizes(converter: Converter, module: Module) -> Module:
    """The module with one symbol for sizes that constraints say to be equal. ImportBlockers where
    an argument is a size that is no size of another one, and no example says it."""
    arguments = dict(converter.argument_sizes)
    first: dict[str, str] = {name: name for name in module.symbols}
    order = {name: (name in arguments, n) for n, name in enumerate(module.symbols)}

    def found(name: str) -> str:
        return name if first[name] == name else found(first[name])

    for constraint in module.constraints:
        for one, other in _equal_symbols(constraint):
            stays, goes = sorted((found(one), found(other)), key=lambda name: order[name])
            first[goes] = stays
    names: dict[str, int | str] = {n: found(n) for n in first if found(n) != n}
    used = {name for op in module.walk() for name in _symbols_of_op(op)}
    used |= {name for constraint in module.constraints for name in constraint.symbols}
    for name in used & set(arguments) - set(names) if converter.examples else ():
        names[name] = int(np.asarray(converter.examples[arguments[name]]).item())
    module = specialized(module, names)
    kept = [c for c in module.constraints if c.relation != "==" or c.left is not c.right]
    left = {name for name in arguments if name not in names or names[name] in arguments}
    if left & used:
        reason = f"a size is argument {arguments[min(left & used)]}, which {OF_DATA}"
        remedy = "export the program with fixed shapes"
        raise ImportBlockers([Blocker("func.func", "", reason, remedy)], converter.document.source)
    symbols = {name: symbol for name, symbol in module.symbols.items() if name not in left}
    notes = [
        f"argument {arguments[name]} is taken to be the size {names[name]}, "
        f"{'as the example is' if isinstance(names[name], int) else 'which operations demand'}"
        for name in arguments
        if name in names
    ]
    module = replace(module, symbols=symbols, constraints=tuple(kept)).with_notes(*notes)
    taken = {arguments[name]: size for name, size in names.items() if name in arguments}
    return _checked(module, {n: size for n, size in taken.items() if size not in arguments})


def _checked(module: Module, taken: Mapping[int, int | str]) -> Module:
    """The module that also computes whether these arguments are the sizes that they are taken to
    be: a call of others is an error."""
    body, signature, b = module.body, signature_of(module), Builder(check=False)
    told = {
        name: (argument, axis)
        for argument in body.arguments
        for axis, dim in enumerate(argument.dims if isinstance(argument.type, TensorType) else ())
        if (name := name_of(dim))
    }
    holding: list[Value] = []
    messages: list[Measured] = []
    for place, size in taken.items():
        argument = body.arguments[place]
        if isinstance(size, int):
            wanted = b.constant(size, argument.tensor)
        else:
            source, axis = told[size]
            count = b("get_dimension_size", source, dimension=axis)
            wanted = b.convert(count, argument.element)
        holding.append(b.compare("EQ", argument, wanted))
        messages.append(Measured(message=f"argument {place} is not {size}, which is a size"))
    if not holding:
        return module
    measured = (*signature.measured, *messages)
    region = Region(body.arguments, [*body.ops, *b.ops], [*body.results, *holding])
    module = module.with_main(region)
    return replace(module, signature=replace(signature, measured=measured))


def _equal_symbols(constraint: SizeConstraint) -> list[tuple[str, str]]:
    """The two symbols that a constraint says to be equal, where it says no more."""
    difference = constraint.left - constraint.right
    factors = difference.affine if isinstance(difference, SymbolicDim) else None
    if constraint.relation != "==" or factors is None or len(factors) != 2:
        return []
    (one, first), (other, second) = factors.items()
    return [] if first + second or difference.constant else [(one, other)]


def _symbols_of_op(op: Op) -> Iterator[str]:
    for value in (*op.operands, *op.results):
        if isinstance(value.type, TensorType):
            for dim in value.type.dims:
                yield from symbols_of(dim)
    yield from _symbols_in(tuple(op.attributes.values()))


def _symbols_in(value: Any) -> Iterator[str]:
    if isinstance(value, SymbolicDim):
        yield from value.symbols
    elif isinstance(value, tuple):
        for item in value:
            yield from _symbols_in(item)

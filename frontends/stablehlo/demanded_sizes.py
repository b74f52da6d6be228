"""Sizes that operations demand to be equal, and arguments that are sizes.

An operation whose operands have free sizes means something only where these fit. What does not
follow from what is known of the symbols becomes a constraint of the program, with the operation's
line, so that a call is checked and code may rely on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...hlo.assumptions import assuming
from ...hlo.errors import Blocker, ImportBlockers, UserError
from ...hlo.graph import Module, Op, Region
from ...hlo.sizes import SizeConstraint, Symbol
from ...hlo.specialize import specialized
from ...hlo.symbols import Dim, SymbolicDim, symbols_of
from ...hlo.types import TensorType, Type
from .. import tree
from .known_integers import OF_DATA, KnownIntegers

if TYPE_CHECKING:
    from .convert import Converter


def demand_equal_sizes(converter: Converter, operation: tree.Operation, op: Op) -> None:
    """Where the op needs sizes to be equal that are not known to be, a call has to give such."""
    known = converter.known
    if not known.symbols or _holds(known, op):
        return
    place = converter.locations.place(*(o.location for o in (operation, *converter.callers)))
    origin = f"{op.name} at {place}" if place else op.name
    added: list[SizeConstraint] = []
    for left, right in _pairs(op, converter.sizes_as_arguments):
        if known.facts.is_equal(left, right) is None:
            added.append(SizeConstraint(left, "==", right, origin))
            known.demand(added[-1])
    needed = bool(added) and _holds(known, op)
    for constraint in added:
        known.without(constraint)
        if needed and not _holds(known, op):
            known.demand(constraint)


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


def _pairs(op: Op, one_or_equal: bool) -> Iterator[tuple[Dim, Dim]]:
    """Sizes that the op may need to be equal. one_or_equal: also those of which one may be 1."""
    kinds = [value.type for value in op.operands if isinstance(value.type, TensorType)]
    if op.name == "dot_general":
        left, right = kinds
        for name in ("batching", "contracting"):
            dims = [getattr(op, f"{side}_{name}_dimensions") for side in ("lhs", "rhs")]
            yield from ((left.dims[a], right.dims[b]) for a, b in zip(*dims, strict=False))
    elif op.name == "while":
        yield from _of_types([value.type for value in op.operands], op.regions[1])
    elif op.name in ("if", "case"):
        for region in op.regions[1:]:
            yield from _of_types(op.regions[0].result_types, region)
    elif op.name in ("broadcast_in_dim", "reshape"):
        if one_or_equal:
            result = op.result.tensor
            if op.name == "reshape":
                yield math.prod(kinds[0].dims), math.prod(result.dims)
            else:
                for dim, place in enumerate(op.broadcast_dimensions):
                    yield kinds[0].dims[dim], result.dims[place]
    else:
        for place, one in enumerate(kinds):
            for other in kinds[place + 1 :]:
                if one.rank == other.rank:
                    yield from zip(one.dims, other.dims, strict=True)


def _of_types(types: Sequence[Type], region: Region) -> Iterator[tuple[Dim, Dim]]:
    for one, other in zip(types, region.result_types, strict=False):
        if isinstance(one, TensorType) and isinstance(other, TensorType) and one.rank == other.rank:
            yield from zip(one.dims, other.dims, strict=True)


# Arguments that are sizes of other arguments, as JAX's exports had them before 2023.


def is_size(value: tree.Value) -> bool:
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


def without_argument_sizes(converter: Converter, module: Module) -> Module:
    """The module with what these symbols are by its constraints; ImportBlockers where one of them
    is no size of an argument."""
    names = dict(converter.argument_sizes)
    found: dict[str, str] = {}
    changed = True
    while changed:
        changed = False
        for constraint in module.constraints:
            for name, other in _equal_symbols(constraint):
                other = found.get(other, other)
                if name in names and name not in found and other not in names:
                    found[name], changed = other, True
    module = specialized(module, found)
    left = set(names) - set(found)
    used = {name for op in module.walk() for name in _symbols_of_op(op)}
    used |= {name for constraint in module.constraints for name in constraint.symbols}
    if left & used:
        reason = f"a size is argument {names[min(left & used)]}, which {OF_DATA}"
        remedy = "export the program with fixed shapes"
        raise ImportBlockers([Blocker("func.func", "", reason, remedy)], converter.document.source)
    symbols = {name: symbol for name, symbol in module.symbols.items() if name not in left}
    notes = [
        f"argument {names[name]} is taken to be the size {size}, which operations demand; calls do "
        "not look at its value"
        for name, size in found.items()
    ]
    return replace(module, symbols=symbols).with_notes(*notes)


def _equal_symbols(constraint: SizeConstraint) -> list[tuple[str, str]]:
    """Both orders of two symbols that a constraint says to be equal."""
    difference = constraint.left - constraint.right
    factors = difference.affine if isinstance(difference, SymbolicDim) else None
    if constraint.relation != "==" or factors is None or len(factors) != 2:
        return []
    (one, first), (other, second) = factors.items()
    if first + second or difference.constant:
        return []
    return [(one, other), (other, one)]


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

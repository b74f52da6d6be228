"""What a program needs of its sizes, so that each of its operations has a meaning.

An importer that has only the types of a trace knows no conditions of sizes: `view(b, n // 2, 32)`
of `[b, n, 16]` means something for even n alone. Clauses of operations ask for them; what does not
follow from what the module says becomes a constraint of it, with the line of the operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .assumptions import Assumptions, assuming
from .errors import UserError, VerifyError
from .graph import Module, Op
from .sizes import SizeConstraint
from .specialize import names_of
from .symbols import Atom, Dim, from_terms, monomial_quotient, symbols_of, terms_of
from .types import TensorType
from .verify import compatible


def with_needed_sizes(module: Module, of_calls: bool = False) -> Module:
    """The module with a constraint for each clause about sizes that does not follow yet; itself
    where all do. UserError with the line where what is said and needed leaves no size.

    of_calls: of sizes that arguments tell alone; those that data decide the program checks itself.
    """
    arguments = module.body.arguments if of_calls else ()
    told = {name for value in arguments for dim in _dims(value.type) for name in symbols_of(dim)}
    known = told if of_calls else set(names_of(module))
    if not known:
        return module
    facts, found = module.assumptions, list(module.constraints)
    for op in module.walk():
        for fact in _asked(op, facts):
            needed = reduced(fact, facts)
            if known.issuperset(needed.symbols) and not is_known(needed, facts):
                found.append(needed._replace(origin=op.place.removesuffix(": ")))
                try:
                    facts = Assumptions(module.symbols, found)
                except UserError as error:
                    raise UserError(f"{op.place}{op.name}: {error}") from None
    if len(found) == len(module.constraints):
        return module
    return replace(module, constraints=tuple(found))


def _asked(op: Op, facts: Assumptions) -> list[SizeConstraint]:
    """What the clauses of an operation, and the types of its results, ask and nobody knows."""
    if not any(symbols_of(d) for value in (*op.operands, *op.results) for d in _dims(value.type)):
        return []
    unknown: list[SizeConstraint | None] = []
    with assuming(facts, unknown=unknown):
        op.definition.check(op)
        inferred = op.definition.inferred(op) or ()
        for wanted, result in zip(inferred, op.results, strict=False):
            if not compatible(wanted, result.type):
                raise VerifyError(f"{op.place}{op.name}: a result must be {wanted}")
    dims = dict.fromkeys(dim for value in op.results for dim in _dims(value.type))
    return [
        *filter(None, unknown),
        *(SizeConstraint(0, "<=", dim) for dim in dims if symbols_of(dim)),
    ]


def _dims(kind: object) -> Sequence[Dim]:
    return kind.dims if isinstance(kind, TensorType) else ()


def is_known(fact: SizeConstraint, facts: Assumptions) -> bool:
    """Whether it is proven."""
    match fact.relation:
        case "==":
            return facts.is_equal(fact.left, fact.right) is True
        case "<=":
            return facts.at_most(fact.left, fact.right) is True
        case _:
            return facts.is_equal(fact.left, fact.right) is False


def reduced(fact: SizeConstraint, facts: Assumptions) -> SizeConstraint:
    """The same without factors of both sides that are surely positive: `2*b*n == 4*b*(n//2)` is
    `n == 2*(n//2)`."""
    difference = fact.right - fact.left
    terms = terms_of(difference)
    if len(terms) < 2:
        return fact
    content = math.gcd(*(coefficient for _, coefficient in terms))
    shared: list[Atom] = []
    for atom in terms[0][0]:
        wanted = [*shared, atom]
        if facts.is_positive(from_terms({(atom,): 1})) and all(
            all(m.count(a) >= wanted.count(a) for a in wanted) for m, _ in terms
        ):
            shared = wanted
    parts = {monomial_quotient(m, shared): c // content for m, c in terms}
    left = from_terms({m: -c for m, c in parts.items() if c < 0})
    right = from_terms({m: c for m, c in parts.items() if c > 0})
    return fact._replace(left=left, right=right)

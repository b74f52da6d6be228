"""For which sizes of its symbols a program is made: a likely call, and what guards leave out.

Code is made for the *hints* (`hlo/deciding.py`) and is right where its guards hold. Where they do
not hold everywhere, another plan is made with hints among the sizes that are left, and so on.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from ..hlo.assumptions import Assumptions
from ..hlo.deciding import Decisions
from ..hlo.errors import UnsupportedError, UserError
from ..hlo.graph import Module
from ..hlo.sizes import SizeConstraint, SizeSolver, Symbol
from ..hlo.stated_sizes import dims_of_arguments
from ..hlo.symbols import symbols_of
from ..hlo.types import TensorType

MOST_PLANS = 8  # of one entry point
EXHAUSTIVE = 4096  # combinations of sizes up to which all are looked at
SAMPLES = 4096
# What is found out about the sizes of a module holds for all likely calls.
_ASSUMPTIONS: WeakKeyDictionary[Module, Assumptions] = WeakKeyDictionary()
_FEW = 64  # values of one symbol that are looked at where there are many combinations


def is_open(module: Module) -> bool:
    """Whether calls decide sizes of the module."""
    kinds = module.body.argument_types
    return any(isinstance(kind, TensorType) and not kind.is_static for kind in kinds)


def decisions_about(module: Module, call: Mapping[str, int] | None = None) -> Decisions | None:
    """What is decided about a program's sizes, for a likely call; None where all are fixed.
    UserError where a symbol has no largest value, or follows from no argument."""
    if not is_open(module):
        return None
    known = _ASSUMPTIONS.get(module)
    if known is None:
        known = _ASSUMPTIONS[module] = _assumptions_of(module)
    return Decisions(known, hints_for(known) if call is None else call)


def _assumptions_of(module: Module) -> Assumptions:
    """What is known of the sizes that calls decide; UserError as above."""
    solver_of(module)
    used = {n for value in module.body.arguments for d in value.tensor.dims for n in symbols_of(d)}
    symbols = {name: module.symbols.get(name, Symbol()) for name in sorted(used)}
    endless = [name for name, said in symbols.items() if said.last is None]
    if endless:
        places: dict[str, str] = {}
        for place, dim in dims_of_arguments(module).items():
            for name in symbols_of(dim):
                places.setdefault(name, place)
        listed = ", ".join(f"{name} ({places[name]})" for name in endless)
        raise UnsupportedError(
            f"the sizes {listed} have no largest value, for which memory is planned: give "
            f"a range, sizes={{'{endless[0]}': (1, 512)}} "
            f"(--size {endless[0]}=1..512), or a number"
        )
    related = [one for one in module.constraints if used.issuperset(one.symbols)]
    return Assumptions(symbols, related)


def solver_of(module: Module) -> SizeSolver:
    """What finds a call's sizes; UserError where no argument tells a symbol."""
    signature = module.signature
    names = (
        [f"input {n}" for n in range(len(module.body.arguments))]
        if signature is None
        else [argument.path for argument in signature.arguments]
    )
    dims = [value.tensor.dims for value in module.body.arguments]
    arguments = list(zip(names, dims, strict=True))
    return SizeSolver(arguments, module.symbols, module.constraints)


def hints_for(assumptions: Assumptions) -> dict[str, int]:
    """A likely call: of each symbol about half of the largest value."""
    hints = {name: _likely(said) for name, said in assumptions.symbols.items()}
    if all(constraint.holds(hints) for constraint in assumptions.constraints):
        return hints
    found = next(_calls(assumptions), None)
    if found is None:
        raise UserError("no sizes satisfy what the program demands of them")
    return found


def _likely(said: Symbol) -> int:
    last = said.first if said.last is None else said.last
    middle = max(said.first, last // 2)
    return middle - (middle - said.residue) % said.modulus if middle > said.first else said.first


def uncovered(
    assumptions: Assumptions, plans: Sequence[Iterable[SizeConstraint]]
) -> dict[str, int] | None:
    """Sizes for which some guard of each plan fails; None where none was found: all are looked at
    where they are few, else edges and a sample."""
    if any(not list(guards) for guards in plans):
        return None
    for values in _calls(assumptions):
        if not any(all(guard.holds(values) for guard in guards) for guards in plans):
            return values
    return None


def _calls(assumptions: Assumptions) -> Iterator[dict[str, int]]:
    """Sizes that are admitted: the largest first, then edges, then all or a sample."""
    names = sorted(assumptions.symbols)
    ranges = [range(s.first, (s.last or s.first) + 1, s.modulus)
              for s in (assumptions.symbols[name] for name in names)]  # fmt: skip
    total = math.prod(map(len, ranges))
    if total <= EXHAUSTIVE:
        every: Iterable[Sequence[int]] = itertools.product(*(reversed(one) for one in ranges))
    else:
        drawn = random.Random(0)
        edges = [sorted({*one[:3], *one[-2:], one[len(one) // 2]}) for one in ranges]
        few = [one if len(one) <= _FEW else drawn.sample(one, _FEW) for one in ranges]
        sample = (tuple(map(drawn.choice, few)) for _ in range(SAMPLES))
        every = itertools.chain(itertools.product(*edges), sample)
    for values in every:
        call = dict(zip(names, values, strict=True))
        if all(constraint.holds(call) for constraint in assumptions.constraints):
            yield call

"""A kernel with programs of itself for parts of its arrays, which a partitioner takes for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...hlo import wire
from ...hlo.contracts import contract_factors, contract_names
from ...hlo.errors import UserError
from ...hlo.factors import Factors
from ...hlo.graph import Function, Module, Op, Region, arguments
from .values import Array

Local = Mapping[str, int | Sequence[int]]


def with_variants(
    module: Module, local: Local, inputs: Sequence[Array], make: Callable[[Sequence[Array]], Module]
) -> Module:
    """The program of one kernel, which has those for parts with it.

    local: dims' names of its contract -> into how many parts they may be cut, one number or
    several; each combination gets a program. make: the program for inputs of other sizes.
    UserError for a name that the contract does not have or never cuts.
    """
    op = module.body.ops[0]
    factors, names = contract_factors(op, op.sharding), contract_names(op, op.sharding)
    choices: list[tuple[int, ...]] = [(1,)] * len(factors.factors)
    for name, given in local.items():
        parts = (given,) if isinstance(given, int) else tuple(given)
        if name not in names:
            known = ", ".join(names)
            raise UserError(
                f"{op.place}kernel '{op.kernel}': local= names '{name}', which is no dim of more "
                f"than one element of its contract; there are {known}"
            )
        if not all(isinstance(n, int) and n >= 2 for n in parts):
            raise UserError(
                f"{op.place}kernel '{op.kernel}': local= has numbers of parts from 2 on, not "
                f"{given!r} for '{name}'"
            )
        choices[names.index(name)] = (1, *parts)
    found: dict[bytes, None] = {}
    for counts in itertools.product(*choices):
        if max(counts) > 1 and all(f.fits(n) for f, n in zip(factors.factors, counts, strict=True)):
            found[wire.encode(make(_parts(factors, counts, inputs)))] = None
    operands = arguments(module.body.argument_types)
    facts: dict[str, Any] = {**op.attributes, "variants": tuple(found)}
    call = Op(op.definition, operands, facts, op.regions, op.result_types, op.origin)
    body = Region(operands, (call,), call.results)
    return Module({"main": Function("main", body)}, name=module.name)


def _parts(factors: Factors, counts: Sequence[int], inputs: Sequence[Array]) -> list[Array]:
    """The inputs of a part: blocks, with their halos."""

    def size(whole: int, held: tuple[int, ...]) -> int:
        for number in held:
            if counts[number] > 1:
                return -(-whole // counts[number]) + sum(factors.factors[number].halo)
        return whole

    return [
        Array(tuple(map(size, array.shape, dims)), array.dtype)
        for array, dims in zip(inputs, factors.operands, strict=True)
    ]

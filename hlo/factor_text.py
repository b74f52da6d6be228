"""Rules of operations from their notation: `parse_factors` is the inverse of `str(factors)`.

([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}
"""

from __future__ import annotations

import re

from .errors import UserError
from .factors import FACTOR_SETS, Dims, Factor, FactorKind, Factors

_RULE = re.compile(r"\((.*?)\)\s*->\s*\((.*?)\)(?:\s*\{([^}]*)\}(.*))?", re.DOTALL)
_FACTOR = re.compile(r"z_\d+|[a-z]")
_SET = re.compile(r"(\w+)\s*=\s*\{([^}]*)\}")


def parse_factors(text: str) -> Factors:
    """What `str` of factors writes, or Shardy's `#sdy.op_sharding_rule<..>`, whose reductions are
    taken for sums; UserError otherwise."""
    match = _RULE.search(text)
    if match is None:
        raise UserError(f"the rule '{text[:120]}' cannot be read")
    sizes = dict(part.replace(" ", "").split("=") for part in (match[3] or "").split(",") if part)
    numbers = {name: number for number, name in enumerate(sizes)}
    sets = {word: _FACTOR.findall(names) for word, names in _SET.findall(match[4] or "")}
    kinds = {name: kind for kind, word in FACTOR_SETS.items() for name in sets.get(word, ())}
    blocked = sets.get("blocked_propagation", ())

    def tensors(part: str) -> tuple[Dims, ...]:
        return tuple(
            tuple(tuple(numbers[n] for n in _FACTOR.findall(dim)) for dim in dims.split(",") if dim)
            for dims in re.findall(r"\[([^\]]*)\]", part)
        )

    try:
        factors = tuple(
            Factor(int(size), kinds.get(name, FactorKind.PASS), name in blocked)
            for name, size in sizes.items()
        )
        return Factors(factors, tensors(match[1]), tensors(match[2]))
    except (KeyError, ValueError) as error:
        raise UserError(f"the rule '{text[:120]}' cannot be read: {error}") from error

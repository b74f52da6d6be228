"""What happens to an operation when its tensors are cut: an einsum over factors, per operation.

    dot_general   ([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}

Each dim of an operand or a result is a product of factors, major to minor (`[ij]`); most are one.
Cutting a factor cuts every dim that holds it; what that means says its kind. The notation is that
of Shardy's op_sharding_rule (openxla/shardy), with the kind of a reduction named besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .sharding import SUM


class FactorKind(Enum):
    """PASS: every device computes its part, without the others. REDUCTION: it gives a value that is
    unreduced over the axes that cut the factor. PERMUTATION: elements are needed of other devices'
    parts (a halo, a shift). REPLICATE: each device needs all of it.
    """

    PASS = "pass"
    REDUCTION = "reduction"
    PERMUTATION = "permutation"
    REPLICATE = "replicate"


class Factor(NamedTuple):
    """`size` elements; `blocked`: propagation does not carry axes along it; `reduction`: of
    REDUCTION, one of sum, max, min."""

    size: int
    kind: FactorKind = FactorKind.PASS
    blocked: bool = False
    reduction: str = SUM


Dims = tuple[tuple[int, ...], ...]  # of one tensor: for each dim its factors, major to minor


@dataclass(frozen=True)
class Factors:
    """The rule of one operation: its factors by number, and which of them each dim holds.

    Operands and results that are no tensors, and dims of size 1 that nothing can cut, hold none.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    @property
    def tensors(self) -> tuple[Dims, ...]:
        """Operands, then results."""
        return self.operands + self.results

    def of_kind(self, kind: FactorKind) -> tuple[int, ...]:
        return tuple(n for n, factor in enumerate(self.factors) if factor.kind is kind)

    def __str__(self) -> str:
        sizes = ", ".join(f"{_name(n)}={f.size}" for n, f in enumerate(self.factors))
        text = f"({_tensors(self.operands)})->({_tensors(self.results)}) {{{sizes}}}"
        for kind, word in _WORDS.items():
            numbers = self.of_kind(kind)
            if numbers:
                text += f" {word}={{{', '.join(map(_name, numbers))}}}"
        blocked = [_name(n) for n, factor in enumerate(self.factors) if factor.blocked]
        if blocked:
            text += f" blocked_propagation={{{', '.join(blocked)}}}"
        return text


_WORDS = {
    FactorKind.REDUCTION: "reduction",
    FactorKind.REPLICATE: "need_replication",
    FactorKind.PERMUTATION: "permutation",
}


def _name(number: int) -> str:
    """i, j, ..., z, then z_1, z_2, ..."""
    return chr(ord("i") + number) if number < 18 else f"z_{number - 17}"


def _tensors(tensors: tuple[Dims, ...]) -> str:
    return ", ".join(
        "[" + ", ".join("".join(map(_name, dim)) for dim in dims) + "]" for dims in tensors
    )

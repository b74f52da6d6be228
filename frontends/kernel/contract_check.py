"""Whether a contract holds: the kernel on whole arrays, and on parts along each factor that may be
cut, put together again as the contract says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.contracts import contract_factors, contract_names, contract_text
from ...hlo.errors import GirihError, UserError
from ...hlo.factors import Dims, Factor, FactorKind
from ...hlo.graph import Op
from ...hlo.sharding import MAX, MIN, SUM

Arrays = Sequence[Any]
Run = Callable[[Arrays], Arrays]
Compare = Callable[[Any, Any], float]
"""(found, wanted) -> the error, above 1 where it is more than the element type explains."""

_FOLDS: Mapping[str, Callable[[list[Any]], Any]] = {
    SUM: sum,
    MAX: np.maximum.reduce,
    MIN: np.minimum.reduce,
}
_PARTS = (2, 3, 4)


def check_cuts(op: Op, run: Run, operands: Arrays, compare: Compare) -> None:
    """UserError, with the name of the dim, where parts do not give what the whole gives.

    op: the kernel's call, with a contract. run: the kernel on arrays of any size.
    """
    text = contract_text(op)
    factors, names = contract_factors(op, text), contract_names(op, text)
    whole = run(operands)
    for number, (name, factor) in enumerate(zip(names, factors.factors, strict=False)):
        if factor.kind is FactorKind.REPLICATE:
            continue
        for parts in _PARTS:
            if parts > factor.size:
                break
            if not factor.fits(parts):
                continue
            blocks = _blocks(factor.size, parts)
            where = f"{op.place}kernel '{op.kernel}': the contract `{text}` is wrong about '{name}'"
            cut = f"cut in {len(blocks)} parts along it"
            try:
                found = [
                    run([*_cut(operands, factors.operands, number, factor, block)])
                    for block in blocks
                ]
                joined = [
                    _joined([one[place] for one in found], dims, number, factor)
                    for place, dims in enumerate(factors.results)
                ]
            except (GirihError, ValueError) as error:
                raise UserError(f"{where}: {cut}, it fails: {error}") from error
            for place, (got, wanted) in enumerate(zip(joined, whole, strict=True)):
                if got.shape != wanted.shape or not compare(got, wanted) <= 1:
                    raise UserError(
                        f"{where}: {cut}, result {place} differs; list it in replicate={{..}}, or "
                        "say how its parts are folded"
                    )


def _blocks(size: int, parts: int) -> list[slice]:
    """Equal parts but for the last one."""
    step = -(-size // parts)
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _cut(
    operands: Arrays, tensors: Sequence[Dims], number: int, factor: Factor, block: slice
) -> Iterator[Any]:
    """The block of each operand, with its halo; zeros beyond the arrays' ends."""
    low, high = factor.halo
    for array, dims in zip(operands, tensors, strict=True):
        edges = [(low, high) if number in held else (0, 0) for held in dims]
        padded = np.pad(array, edges) if low or high else array
        wider = slice(block.start, block.stop + low + high)
        index = tuple(wider if number in held else slice(None) for held in dims)
        yield np.ascontiguousarray(padded[index])


def _joined(found: list[Any], dims: Dims, number: int, factor: Factor) -> Any:
    """One result of its parts."""
    low, high = factor.halo
    for axis, held in enumerate(dims):
        if number in held:
            inner = (slice(None),) * axis
            return np.concatenate(
                [one[(*inner, slice(low, one.shape[axis] - high))] for one in found], axis
            )
    if factor.kind is FactorKind.REDUCTION:
        return np.asarray(_FOLDS[factor.reduction](found))
    return found[0]

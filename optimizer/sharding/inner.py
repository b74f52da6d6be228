"""What the devices send each other inside of an operation whose factors are cut.

The rest of a program's bytes are reshards, which `reshard.py` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from ...hlo.factors import FactorKind, Factors
from ...hlo.graph import Op
from ...hlo.sharding import Axis, Mesh
from .partition.along import reduction_bytes, reduction_halos, top_k_bytes
from .partition.kernels import kernel_bytes, kernel_halos
from .partition.merging import reshape_bytes, reshape_halos
from .partition.reductions import reduce_bytes
from .partition.scattering import scatter_bytes
from .partition.selecting import selection_bytes, selection_halos
from .partition.sorting import first_pairs, sort_bytes, sort_calls
from .partition.transforms import transform_bytes, transform_calls
from .partition.windows import halos, joining_bytes, window_bytes


def inner_bytes(
    o: Op, factors: Factors, axes: Sequence[tuple[Axis, ...]], mesh: Mesh
) -> float | None:
    """Bytes that a device receives inside of `o`, mean over the devices of the mesh; None: it
    cannot be cut so.

    factors: those of the operation. axes: for each factor the axes that cut it, major to minor, in
    every operand and result that holds it. A reduction that is cut costs nothing here, nor does
    what a `dynamic_slice` takes of a cut dim: their results are unreduced.
    """
    price = PRICES.get(o.name)
    if price is not None:
        return price(o, factors, axes, mesh)
    for factor, cut in zip(factors.factors, axes, strict=True):
        if cut and factor.kind not in (FactorKind.PASS, FactorKind.REDUCTION):
            return None
    return 0.0


def shareable(
    o: Op, factors: Factors, axes: Sequence[tuple[Axis, ...]], mesh: Mesh
) -> Mapping[Hashable, float]:
    """Of these bytes those that operations of one region receive once if they fetch the same: what
    that is -> its bytes."""
    found = _SHARED.get(o.name)
    return {} if found is None else found(o, factors, axes, mesh)


def _nothing(o: Op, factors: Factors, axes: Sequence[tuple[Axis, ...]], mesh: Mesh) -> float:
    return 0.0


def inner_calls(o: Op, factors: Factors, axes: Sequence[tuple[Axis, ...]], mesh: Mesh) -> int:
    """How often devices send inside of `o`, each time with what they got the time before."""
    calls = CALLS.get(o.name)
    return 0 if calls is None else calls(o, factors, axes, mesh)


Price = Callable[[Op, Factors, Sequence[tuple[Axis, ...]], Mesh], "float | None"]

CALLS: dict[str, Callable[[Op, Factors, Sequence[tuple[Axis, ...]], Mesh], int]] = {
    "sort": sort_calls,
    "fft": transform_calls,
}

PRICES: dict[str, Price] = {
    "slice": window_bytes,
    "dynamic_slice": _nothing,
    "pad": window_bytes,
    "reverse": window_bytes,
    "reduce_window": reduction_bytes,
    "chlo.top_k": top_k_bytes,
    "reshape": reshape_bytes,
    "reduce": reduce_bytes,
    "scatter": scatter_bytes,
    "select_and_scatter": selection_bytes,
    "sort": sort_bytes,
    "fft": transform_bytes,
    "convolution": window_bytes,
    "concatenate": joining_bytes,
    "kernel_call": kernel_bytes,
    "foreign_call": kernel_bytes,
}

_SHARED = {
    **dict.fromkeys(("slice", "pad", "reverse", "convolution"), halos),
    "reduce_window": reduction_halos,
    "select_and_scatter": selection_halos,
    "sort": first_pairs,
    "reshape": reshape_halos,
    **dict.fromkeys(("kernel_call", "foreign_call"), kernel_halos),
}

"""chlo.top_k: the largest elements and where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import Case, attribute, constraint, operand
from ..types import I32, TensorType, Type
from .clauses import at_most
from .decomposed import Decomposed
from .examples import f32, i32


class TopK(Decomposed, name="chlo.top_k"):
    """values, indices = the k largest elements of each row, largest first, and their positions.

    A NaN is larger than any number; of equal elements the first comes first.
    """

    pattern = "opaque"
    operand = operand()
    k = attribute(int)
    C1 = constraint("rank(operand) >= 1", lambda o: o.operand.rank >= 1)
    C2 = constraint(
        "0 <= k <= last dimension of operand",
        lambda o: o.k >= 0 and (o.operand.rank < 1 or at_most(o.k, o.operand.dims[-1])),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = (*o.operand.dims[:-1], o.k)
        return [o.operand.tensor.with_dims(dims), TensorType(dims, I32)]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        from ..build import build_region  # build imports the table of rooms

        (x,) = values
        last = x.rank - 1
        numbers = b("iota", type=x.tensor.with_element(I32), iota_dimension=last)
        scalars = [TensorType((), e) for e in (x.element, x.element, I32, I32)]
        kind = "TOTALORDER" if x.element.is_float else "NOTYPE"

        def larger(b: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
            return [b("compare", x, y, comparison_direction="GT", compare_type=kind)]

        order = b.op(
            "sort", [x, numbers], {"dimension": last, "is_stable": True},
            [build_region(scalars, larger)],
        )  # fmt: skip
        cut = {
            "start_indices": (0,) * x.rank,
            "limit_indices": (*x.dims[:-1], o.k),
            "strides": (1,) * x.rank,
        }
        return [b("slice", result, **cut) for result in order.results]

    def cases(self) -> Iterator[Case]:
        x = f32([[3, 1, np.nan, 3, -0.0, 0.0], [1, 2, 3, 4, 5, -np.inf]])
        yield Case("top_k_f32", (x,), {"k": 3})
        yield Case("top_k_i32", (i32([5, -1, 5, 7]),), {"k": 2})
        yield Case("top_k_none", (i32([5, -1]),), {"k": 0})


ROOMS = (TopK(),)

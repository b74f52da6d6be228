"""Matrix factorisations as the custom calls that JAX's CPU backend has for them, LAPACK's.

Inverse of `library_calls`: operands and results that only LAPACK knows are added, complex
eigenvalues are made of the two parts that it gives for real matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op
from ...hlo.ops import lapack
from .. import tree

_ROUTINES = {
    "linalg.lu": "getrf", "linalg.qr": "geqrf", "linalg.qr_pivoted": "geqp3",
    "linalg.householder_product": "orgqr", "linalg.householder_multiply": "ormqr",
    "linalg.eigh": "syevd", "linalg.svd": "", "linalg.eig": "geev", "linalg.schur": "gees",
    "linalg.hessenberg": "gehrd", "linalg.tridiagonal": "sytrd",
    "linalg.tridiagonal_solve": "gtsv",
}  # fmt: skip


def is_library_call(op: Op) -> bool:
    """Whether `custom_call` writes the operation."""
    return op.name in _ROUTINES


def custom_call(
    op: Op, operands: Sequence[tree.TreeValue], define: Callable[[Any], tree.TreeValue]
) -> list[tree.Operation]:
    """The call, and what makes the operation's results of its; `define` names each of those."""
    prefix = lapack.PREFIXES[op.operands[0].element.name]
    routine = lapack.routine(_ROUTINES[op.name] or op.algorithm, prefix)
    made = tree.Operation("stablehlo.custom_call", list(operands), [], {}, [])
    following: list[tree.Operation] = []
    first = op.operands[0].tensor
    if op.name == "linalg.svd":
        made.results.append(tree.TreeValue(operands[0].type))
    elif op.name == "linalg.tridiagonal_solve":
        made.results += [tree.TreeValue(value.type) for value in operands[:3]]
    for number, value in enumerate(op.results):
        eigenvalues = number == {"linalg.eig": 0, "linalg.schur": 2}.get(op.name)
        if op.name == "linalg.schur" and number == 3:  # the count of eigenvalues sorted first
            made.results.append(tree.TreeValue(tree.Tensor(value.tensor.dims, "i32")))
        result = define(value)
        if eigenvalues and first.element.is_float:
            kind = tree.Tensor(value.tensor.dims, first.element.name)
            parts = [tree.TreeValue(kind), tree.TreeValue(kind)]
            made.results += parts
            following.append(tree.Operation("stablehlo.complex", parts, [result], {}, []))
        else:
            made.results.append(result)
    rank = max(value.rank for value in op.operands)
    made.attributes = {
        "call_target_name": f"lapack_{routine}_ffi",
        "api_version": tree.Integer(4, "i32"),
        "backend_config": _config(op),
        "operand_layouts": tuple(_layout(value, rank) for value in made.operands),
        "result_layouts": tuple(_layout(value, rank) for value in made.results),
    }
    return [made, *following]


def _layout(value: tree.TreeValue, rank: int) -> tree.Elements:
    """Dims from the innermost on: matrices stand column after column."""
    dims = len(value.type.shape) if isinstance(value.type, tree.Tensor) else 0
    order = list(range(dims))[::-1]
    if dims == rank:
        order[:2] = order[:2][::-1]
    return tree.Elements(tree.Tensor((dims,), "index"), np.array(order, np.int64).tobytes())


def _letter(letter: str) -> tree.Integer:
    return tree.Integer(ord(letter), "ui8")


def _config(op: Op) -> dict[str, Any]:
    """The configuration of the call, as jaxlib's kernels read it."""
    match op.name:
        case "linalg.householder_multiply":
            return {"left": op.left, "transpose": op.transpose}
        case "linalg.eigh":
            return {"mode": _letter("V"), "uplo": _letter("L" if op.lower else "U")}
        case "linalg.svd":
            wanted = "A" if op.full_matrices else "S"
            return {"mode": _letter(wanted if op.compute_uv else "N")}
        case "linalg.eig":
            sides = {"compute_left": op.left, "compute_right": op.right}
            return {name: _letter("V" if wanted else "N") for name, wanted in sides.items()}
        case "linalg.schur":
            return {"mode": _letter("V" if op.vectors else "N"), "sort": _letter("N")}
        case "linalg.hessenberg":
            return {"low": tree.Integer(op.low, "i32"), "high": tree.Integer(op.high, "i32")}
        case "linalg.tridiagonal":
            return {"uplo": _letter("L" if op.lower else "U")}
    return {}

"""Custom calls that JAX's exports contain and that mean something: LAPACK's, top_k, threefry.

Each becomes operations with a meaning of their own. Layouts say how a library wants its operands in
memory and are no part of it. Results that LAPACK leaves undefined must not be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hlo.build import Builder, build_region
from ...hlo.errors import UserError
from ...hlo.graph import Op, Region, Value, arguments
from ...hlo.ops.decomposed import Term
from ...hlo.ops.random import threefry
from ...hlo.types import I32, TensorType, Type
from .. import tree
from ..kernel.cleanup import without_calls
from . import attributes as attribute_tables
from . import refine

if TYPE_CHECKING:
    from .convert import Converter

Facts = Mapping[str, Any]
Build = Callable[[Builder, Sequence[Value], Facts], Sequence[Value]]

_LAPACK = re.compile(r"lapack_[sdcz](\w+)_ffi")
_OLD_LAPACK = re.compile(r"(lapack|blas)_[sdcz](\w+)")
_SAME = {"ungqr": "orgqr", "unmqr": "ormqr", "heevd": "syevd", "hetrd": "sytrd"}


def routine_of(target: str) -> str:
    """`orgqr` for "lapack_zungqr_ffi"; nothing for other targets."""
    match = _LAPACK.fullmatch(target)
    name = _SAME.get(match[1], match[1]) if match else ""
    return name if name in LAPACK else ""


def is_known(target: str) -> bool:
    """Whether `convert` takes custom calls of that target."""
    return bool(routine_of(target)) or target in CALLS


def remedy(target: str) -> str:
    """What to do about a target that is not known; nothing where that cannot be said."""
    if _OLD_LAPACK.fullmatch(target):
        return "export the program again with JAX 0.4.36 or later"
    if target.startswith(("cu", "hip", "roc", "__gpu", "__cudnn", "__cublas", "mosaic_gpu")):
        return "export the program for the CPU: jax.export.export(f, platforms=['cpu'])"
    return ""


def convert(converter: Converter, operation: tree.Operation, built: list[Op]) -> bool:
    """Append what a known custom call means; False where its target is not known."""
    target = str(operation.attributes.get("call_target_name", ""))
    routine = routine_of(target)
    make = LAPACK.get(routine) or CALLS.get(target)
    if make is None:
        return False
    builder = Builder(converter.locations.origins(operation.location))
    try:
        facts = _facts(converter, operation)
        operands = converter.operands(operation)[: facts["inputs"]]
        if routine in _UNDEFINED:
            _check_unused(converter, operation, _UNDEFINED[routine])
        values = list(make(builder, operands, facts))
        _check_types(facts["types"], values)
    except (UserError, KeyError, ValueError, IndexError, TypeError) as error:
        reason = f"custom call '{target}' is malformed: {error}"
        converter.block(operation, reason, "export the program again", "stablehlo.custom_call")
        if converter.free_shapes:
            converter.raise_blockers()
        types = converter.leaf_types(operation.results, operation)
        converter.bind(operation.results, arguments(types))
        return True
    built.extend(builder.ops)
    converter.bind(operation.results, values)
    return True


def _facts(converter: Converter, operation: tree.Operation) -> dict[str, Any]:
    """The call's configuration, wherever it stands, the bodies that it calls, and what tells the
    numbers that an operand holds."""
    given = operation.attributes
    config = given.get("mhlo.backend_config", given.get("backend_config", ""))
    facts = attribute_tables.plain(config, converter.type) or {}
    if isinstance(facts, (str, bytes)):
        text = facts.decode("utf-8", "replace") if isinstance(facts, bytes) else facts
        facts = {"text": text, **dict(_dictionary(text))}
    more = {"rng_algorithm": given.get("rng_algorithm"), **given.get("mhlo.attributes", {})}
    facts = {**facts, **attribute_tables.plain(more, converter.type)}
    names = given.get("called_computations", ())
    functions = [converter.function(str(n)) for n in names if str(n) in converter.symbols]
    facts["bodies"] = [
        without_calls(function.body, converter.functions) for function in functions if function
    ]
    free = any(refine.is_free(value.type) for value in operation.results)
    shapes = attribute_tables.plain(given.get("indices_of_shape_operands"), converter.type)
    places = [] if shapes is None else np.asarray(getattr(shapes, "array", shapes)).tolist()
    facts["inputs"] = min(places, default=len(operation.operands))
    if free:
        facts["types"] = _free_types(converter, operation, places)
    else:
        facts["types"] = converter.leaf_types(operation.results, operation)
    facts["numbers"] = converter.known.numbers
    facts["elements"] = [
        converter.element(value.type.element) if isinstance(value.type, tree.Tensor) else None
        for value in operation.results
    ]
    return facts


def _free_types(
    converter: Converter, operation: tree.Operation, places: Sequence[int]
) -> list[Type | None]:
    """The types of results whose shapes are operands at these places; None where nothing says
    them."""
    found: list[Type | None] = [None] * len(operation.results)
    for number, place in enumerate(places):
        kind = operation.results[number].type
        dims = converter.known.numbers(converter.operands(operation)[place])
        if dims is not None and isinstance(kind, tree.Tensor):
            found[number] = TensorType(dims, converter.element(kind.element))
    return found


def _dictionary(text: str) -> list[tuple[str, Any]]:
    """The entries of `{mode = 65 : ui8, left = true}`."""
    found = re.findall(r"(\w+)\s*=\s*(true|false|-?\d+)\b", text)
    words = {"true": True, "false": False}
    return [(key, words[value] if value in words else int(value)) for key, value in found]


def _check_types(types: Sequence[Type | None], values: Sequence[Value]) -> None:
    if len(values) != len(types):
        raise ValueError(f"{len(values)} results, not {len(types)}")
    for value, wanted in zip(values, types, strict=True):
        if wanted not in (None, value.type):
            raise ValueError(f"a result is {value.type}, not {wanted}")


def _check_unused(
    converter: Converter, operation: tree.Operation, undefined: Sequence[int]
) -> None:
    """ValueError where the program uses results that LAPACK leaves undefined."""
    hidden = {id(operation.results[n]) for n in undefined if n < len(operation.results)}
    for other in tree.walk(converter.document.module):
        if any(id(value) in hidden for value in other.operands):
            raise ValueError("the program uses a result that is only a workspace")


# LAPACK, as `lapack_<type><routine>_ffi`.


def _letter(facts: Facts, key: str, allowed: str) -> str:
    """An enumeration's letter, which travels as its code."""
    letter = chr(facts[key])
    if letter not in allowed:
        raise ValueError(f"{key} is {letter!r}, not one of {', '.join(allowed)}")
    return letter


def _potrf(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    (a,) = operands
    lower = _letter(facts, "uplo", "LU") == "L"
    factor = b("cholesky", a, lower=lower)
    row, column = (Term(b, b("iota", type=a.tensor.with_element(I32), iota_dimension=d))
                   for d in (a.rank - 2, a.rank - 1))  # fmt: skip
    kept = row >= column if lower else row <= column
    result = b("select", kept.value, factor, a)
    if not a.dims[-1]:
        return result, b.constant(0, TensorType(a.dims[:-2], I32))
    batch = a.dims[:-2]
    first = b(
        "slice", factor, start_indices=(0,) * a.rank, limit_indices=(*batch, 1, 1),
        strides=(1,) * a.rank,
    )  # fmt: skip
    pivot = b.reshape(first, batch)
    pivot = b("real", pivot) if pivot.element.is_complex else pivot
    return result, b.convert(b.compare("NE", pivot, pivot), I32)


def _trsm(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    a, right, *alpha = operands
    if alpha:
        right = b("multiply", right, b.broadcast(alpha[0], right.dims, ()))
    forms = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    return [
        b(
            "triangular_solve", a, right,
            left_side=_letter(facts, "side", "LR") == "L",
            lower=_letter(facts, "uplo", "LU") == "L",
            unit_diagonal=_letter(facts, "diag", "NU") == "U",
            transpose_a=forms[_letter(facts, "trans_x", "NTC")],
        )
    ]  # fmt: skip


def _getrf(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return b.op("linalg.lu", operands).results


def _geqrf(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return b.op("linalg.qr", operands).results


def _geqp3(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return b.op("linalg.qr_pivoted", operands).results


def _orgqr(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return b.op("linalg.householder_product", operands).results


def _ormqr(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    sides = {"left": bool(facts["left"]), "transpose": bool(facts["transpose"])}
    return b.op("linalg.householder_multiply", operands, sides).results


def _gesdd(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return _svd(b, operands, facts, "gesdd")


def _gesvd(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return _svd(b, operands, facts, "gesvd")


def _svd(b: Builder, operands: Sequence[Value], facts: Facts, algorithm: str) -> Sequence[Value]:
    mode = _letter(facts, "mode", "ASN")
    full = mode == "A"
    if mode == "N":  # nothing but the shapes of u and vt tells
        u, vt = facts["types"][2:4]
        full = max(u.dims[-1], vt.dims[-2]) > min(operands[0].dims[-2:])
    config = {"full_matrices": full, "compute_uv": mode != "N", "algorithm": algorithm}
    return operands[0], *b.op("linalg.svd", operands, config).results


def _syevd(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    _letter(facts, "mode", "V")
    lower = _letter(facts, "uplo", "LU") == "L"
    return b.op("linalg.eigh", operands, {"lower": lower}).results


def _geev(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    sides = {
        "left": _letter(facts, "compute_left", "NV") == "V",
        "right": _letter(facts, "compute_right", "NV") == "V",
    }
    w, *rest = b.op("linalg.eig", operands, sides).results
    return *_parts(b, operands[0], w), *rest


def _parts(b: Builder, a: Value, w: Value) -> Sequence[Value]:
    """Eigenvalues as LAPACK gives them: of real matrices, real and imaginary parts apart."""
    return [w] if a.element.is_complex else [b("real", w), b("imag", w)]


def _gees(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    _letter(facts, "sort", "N")
    wanted = _letter(facts, "mode", "NV") == "V"
    t, z, w, info = b.op("linalg.schur", operands, {"vectors": wanted}).results
    return t, z, *_parts(b, operands[0], w), b.constant(0, info.tensor), info


def _gehrd(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    bounds = {"low": int(facts["low"]), "high": int(facts["high"])}
    return b.op("linalg.hessenberg", operands, bounds).results


def _sytrd(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    lower = _letter(facts, "uplo", "LU") == "L"
    return b.op("linalg.tridiagonal", operands, {"lower": lower}).results


def _gtsv(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return *operands[:3], *b.op("linalg.tridiagonal_solve", operands).results


LAPACK: dict[str, Build] = {
    "potrf": _potrf, "trsm": _trsm, "getrf": _getrf, "geqrf": _geqrf, "geqp3": _geqp3,
    "orgqr": _orgqr, "ormqr": _ormqr, "gesdd": _gesdd, "gesvd": _gesvd, "syevd": _syevd,
    "geev": _geev, "gees": _gees, "gehrd": _gehrd, "sytrd": _sytrd, "gtsv": _gtsv,
}  # fmt: skip
_UNDEFINED = {"gesdd": (0,), "gesvd": (0,), "gtsv": (0, 1, 2)}
"""Results that hold what is left of the operands."""


# The same factorisations as exports for TPUs name them.


def _lu_decomposition(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    lu, pivots, _ = b.op("linalg.lu", operands).results
    pivots = b("subtract", pivots, b.constant(1, pivots.tensor))
    rows = operands[0].dims[-2]
    return lu, pivots, b("linalg.pivots_to_permutation", pivots, size=rows)


def _eigh(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    lower = not str(facts.get("text", "1")).startswith("0")
    return b.op("linalg.eigh", operands, {"lower": lower}).results[:2]


def _pivots(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return [b("linalg.pivots_to_permutation", *operands, size=facts["types"][0].dims[-1])]


# Others.


def _approximate_top_k(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    """Exact: the operands sorted by the comparator, and the first of them. A comparison of floats
    is meant as a total order, so that NaNs and zeros have their places as in top_k."""
    count = len(facts["types"])
    inputs, axis = operands[:count], int(facts["reduction_dim"])
    if len(operands) > 2 * count:  # the number is computed
        wanted = facts["numbers"](operands[2 * count])
    else:
        wanted = facts["types"][0].dims[axis] if facts["types"][0] else facts["top_k"]
    sort = {"dimension": axis, "is_stable": True}
    body = facts["bodies"][0]
    compared = body.ops[0] if len(body.ops) == 1 and body.ops[0].name == "compare" else None
    if compared is not None and compared.operands == body.arguments[:2]:
        body = _order(body.argument_types, compared.comparison_direction)
    ordered = b.op("sort", inputs, sort, [body]).results
    return [_first(b, value, axis, wanted) for value in ordered]


def _order(types: Sequence[Type], direction: str) -> Region:
    """A comparator by the first two arguments."""

    def before(b: Builder, x: Value, y: Value, *rest: Value) -> Sequence[Value]:
        kind = "TOTALORDER" if x.element.is_float else "NOTYPE"
        return [b("compare", x, y, comparison_direction=direction, compare_type=kind)]

    return build_region(types, before)


def _first(b: Builder, value: Value, axis: int, count: Any) -> Value:
    limits = tuple(count if d == axis else size for d, size in enumerate(value.dims))
    zeros, ones = (0,) * value.rank, (1,) * value.rank
    return b("slice", value, start_indices=zeros, limit_indices=limits, strides=ones)


def _top_k(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    k = facts["types"][0].dims[-1] if facts["types"][0] else None
    if len(operands) == 2:
        k = facts["numbers"](operands[1])
    if facts.get("largest", True):
        return b.op("chlo.top_k", operands[:1], {"k": k}).results
    x = operands[0]
    axis = x.rank - 1
    places = b("iota", type=x.tensor.with_element(I32), iota_dimension=axis)
    scalars = [TensorType((), e) for e in (x.element, x.element, I32, I32)]
    smaller = _order(scalars, "LT")
    ordered = b.op("sort", [x, places], {"dimension": axis, "is_stable": True}, [smaller])
    return [_first(b, value, axis, k) for value in ordered.results]


def _threefry(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    first_key, second_key, x, y = (Term(b, value) for value in operands)
    return [word.value for word in threefry((x, y), (first_key, second_key))]


def _bit_generator(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    dims = facts["numbers"](operands[1])
    if dims is None:
        raise ValueError("the shape is not known")
    types = [operands[0].type, TensorType(dims, facts["elements"][1])]
    config = {"rng_algorithm": facts["rng_algorithm"]}
    return b.op("rng_bit_generator", operands[:1], config, (), types).results


def _buffer(b: Builder, operands: Sequence[Value], facts: Facts) -> Sequence[Value]:
    return [b.constant(0, kind) for kind in facts["types"]]


CALLS: dict[str, Build] = {
    "Qr": _geqrf,
    "ProductOfElementaryHouseholderReflectors": _orgqr,
    "LuDecomposition": _lu_decomposition,
    "Eigh": _eigh,
    "cu_lu_pivots_to_permutation": _pivots,
    "hip_lu_pivots_to_permutation": _pivots,
    "ApproxTopK": _approximate_top_k,
    "stablehlo.dynamic_approx_top_k": _approximate_top_k,
    "TopK": _top_k,
    "mhlo.topk": _top_k,
    "stablehlo.dynamic_top_k": _top_k,
    "cu_threefry2x32_ffi": _threefry,
    "hip_threefry2x32_ffi": _threefry,
    "stablehlo.dynamic_rng_bit_generator": _bit_generator,
    "AllocateBuffer": _buffer,
}
"""Targets by name; with `largest` false, top_k gives the smallest elements."""

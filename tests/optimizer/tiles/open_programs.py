"""Attention whose sizes a call decides, as programs, and what numpy says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from girih.backends import find
from girih.hlo.build import Builder
from girih.hlo.deciding import Decisions, decided_by
from girih.hlo.graph import Function, Module
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import Dim, SymbolicDim
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.coverage import decisions_about
from girih.optimizer.licence import Ledger
from girih.optimizer.pipeline import pipeline_for
from girih.options import Options

Array = Any
BATCH, ROWS, KEYS = map(SymbolicDim, ("batch", "rows", "keys"))
HEADS, DEPTH = 4, 16
SYMBOLS = {"batch": Symbol(1, 64), "rows": Symbol(1, 512), "keys": Symbol(1, 512)}
HINTS = {"batch": 4, "rows": 256, "keys": 256}
SIZES = ((1, 1, 1), (3, 37, 20), (2, 131, 64), (5, 16, 300), (1, 65, 129))


def attention(keys: Dim = KEYS, *, mask: bool = False, causal: bool = False) -> Module:
    """softmax(q k^T + bias) v, with a bias [batch, keys] if `mask`, and only what comes before, if
    `causal`."""
    b = Builder()
    types = [TensorType((BATCH, HEADS, rows, DEPTH), F32) for rows in (ROWS, keys, keys)]
    q, k, v, *bias = b.arguments([*types, *([TensorType((BATCH, keys), F32)] if mask else [])])
    kind = TensorType((BATCH, HEADS, ROWS, keys), F32)
    batching: dict[str, Any] = {
        "lhs_batching_dimensions": (0, 1),
        "rhs_batching_dimensions": (0, 1),
    }
    inner: dict[str, Any] = {
        "lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (3,),
    }  # fmt: skip
    scores = b("dot_general", q, k, type=kind, **batching, **inner)
    scores = b("multiply", scores, b.constant(0.25, kind))
    if mask:
        scores = b("add", scores, b.broadcast(bias[0], kind.dims, (0, 3)))
    if causal:
        places = kind.with_element(I32)
        row, column = (b("iota", type=places, iota_dimension=d) for d in (2, 3))
        scores = b("select", b.compare("GE", row, column), scores, b.constant(-np.inf, kind))
    scalar = TensorType((), F32)
    largest = b.reduce("maximum", scores, b.constant(-np.inf, scalar), (3,))
    power = b("exponential", b("subtract", scores, b.broadcast(largest, kind.dims, (0, 1, 2))))
    total = b.reduce("add", power, b.constant(0, scalar), (3,))
    weights = b("divide", power, b.broadcast(total, kind.dims, (0, 1, 2)))
    inner = {"lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (2,)}
    result = b("dot_general", weights, v, type=types[0], **batching, **inner)
    symbols = {name: SYMBOLS[name] for name in SYMBOLS if name != "keys" or keys is KEYS}
    return Module({"main": Function("main", b.region([result]))}, symbols=symbols)


def inputs_at(batch: int, rows: int, keys: int, mask: bool = False) -> list[Array]:
    rng = np.random.default_rng(batch + rows + keys)
    found = [
        rng.standard_normal((batch, HEADS, n, DEPTH)).astype(np.float32) for n in (rows, keys, keys)
    ]
    if mask:
        found.append(np.where(np.arange(keys) % 3 == 1, -1e9, 0.0)[None].repeat(batch, 0))
        found[-1] = found[-1].astype(np.float32)
    return found


def expected(q: Array, k: Array, v: Array, bias: Array = None, *, causal: bool = False) -> Array:
    scores = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k) * 0.25
    if bias is not None:
        scores = scores + bias[:, None, None, :]
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", power / power.sum(-1, keepdims=True), v)


def lowered(module: Module, numerics: str = "reassociates") -> tuple[Module, Decisions]:
    """The module after all passes for a CPU, and what was decided of its sizes."""
    options = Options(cache="off", numerics=numerics)
    hints = {name: HINTS[name] for name in module.symbols}
    decisions = decisions_about(module, hints)
    assert decisions is not None
    with decided_by(decisions):
        passes = pipeline_for(find("cpu", options, None), options, Ledger())
        return passes.run(module)[1], decisions

"""A against B: one product and one attention with other tiles, stages, clusters and orders of tiles
than the compiler takes. Results have to be right and equal; times say which choice was best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from girih.backends.nvidia.pipeline import emit as pipeline
from girih.backends.nvidia.target import NvidiaTarget
from girih.optimizer.asynchronous.configuration import PipelineConfiguration
from girih.optimizer.machine import Limitation

from .clock import seconds
from .kernels import BF16, attention, call, matmul
from .trial import Array, Ready, Session, Trial, error, made

_SIDE, _SMALL_SIDE = 4096, 256
_HEADS, _LENGTH, _WIDTH, _SMALL_LENGTH = 16, 4096, 128, 256
_ROWS = 32  # of a result that are compared with float64
_TOLERANCE = 2e-2
_COUNT = 20

Variant = tuple[str, Callable[[NvidiaTarget], PipelineConfiguration | Limitation]]


def _product(side: int, rows: int = 128, columns: int = 256) -> Any:
    sizes = {"M": side, "N": side, "K": side, "TM": rows, "TN": columns, "TK": 64}
    return call(matmul, [_array(side, side)] * 2, sizes)


def _array(*dims: int) -> Array:
    """Of this shape, for its type; it has no memory of its own."""
    return np.broadcast_to(np.zeros((), BF16), dims)


def _less(target: NvidiaTarget, **changes: Any) -> NvidiaTarget:
    return replace(target, architecture=replace(target.architecture, **changes))


def products(side: int) -> Iterator[Variant]:
    """The product of two squares; the first is what the compiler takes for the tile."""
    op = _product(side)
    yield "128x256", lambda on: pipeline.plan_of(op, on)
    for rows, columns in ((128, 128), (64, 256), (192, 128), (256, 128), (128, 192)):
        if side % rows == 0 and side % columns == 0 or side == _SIDE:
            other = _product(side, rows, columns)
            yield f"rows {rows}x{columns}", lambda on, other=other: pipeline.plan_of(other, on)
    for stages in (2, 3):
        yield f"stages {stages}", lambda on, stages=stages: _staged(op, on, stages)
    yield "cluster 1", lambda on: pipeline.plan_of(op, _less(on, clusters=False))
    for together in (0, 4, 32):
        yield f"raster {together}", lambda on, together=together: _raster(op, on, together)


def _staged(op: Any, target: NvidiaTarget, stages: int) -> PipelineConfiguration:
    """The configuration with so many stages: as if there were less shared memory."""
    plan = _planned(op, target)
    free = plan.shared_bytes
    while max(ring.stages for ring in plan.rings) > stages:
        free -= 16 << 10
        plan = _planned(op, _less(target, shared_bytes=free))
    return plan


def _planned(op: Any, target: NvidiaTarget) -> PipelineConfiguration:
    plan = pipeline.plan_of(op, target)
    assert isinstance(plan, PipelineConfiguration), plan
    return plan


def _raster(op: Any, target: NvidiaTarget, together: int) -> PipelineConfiguration:
    plan = _planned(op, target)
    return replace(plan, raster=replace(plan.raster, together=together))


def attentions(length: int) -> Iterator[Variant]:
    """Causal attention of several heads."""
    heads = _HEADS if length == _LENGTH else 1
    for rows, keys in ((128, 128), (128, 64), (192, 128), (64, 128)):
        three = [_array(heads, length, _WIDTH)] * 3
        op = call(attention, three, {"causal": True, "TQ": rows, "TK": keys})
        yield f"{rows}x{keys}", lambda on, op=op: pipeline.plan_of(op, on)


def everything(simulated: bool) -> Iterator[tuple[str, Callable[[NvidiaTarget], dict[str, Any]]]]:
    """(name, maker of ready variants)."""
    side, length = (_SMALL_SIDE, _SMALL_LENGTH) if simulated else (_SIDE, _LENGTH)
    heads = 1 if simulated else _HEADS
    yield (
        f"sweep: product of {side}",
        lambda on: {"dims": [(side, side)] * 2, "ready": _ready(products(side), on)},
    )
    yield (
        f"sweep: attention {heads}x{length}x{_WIDTH}",
        lambda on: {"dims": [(heads, length, _WIDTH)] * 3, "ready": _ready(attentions(length), on)},
    )


def _ready(variants: Iterator[Variant], target: NvidiaTarget) -> dict[str, Ready | str]:
    """Each variant's code, or why there is none."""
    found: dict[str, Ready | str] = {}
    for name, plan in variants:
        planned = plan(target)
        if isinstance(planned, Limitation):
            found[name] = planned.reason
            continue
        code = pipeline.code_of(planned, target)
        found[name] = made(name, Trial(code, (), ()), target, with_cubin=True)
    return found


def measure(driver: Any, prepared: dict[str, Any]) -> dict[str, Any]:
    """Each variant's error and seconds, those of the first one first."""
    dims = prepared["dims"]
    random = np.random.default_rng(11)
    inputs = [random.standard_normal(size, np.float32).astype(BF16) for size in dims]
    wanted = _wanted(inputs)
    first: Array | None = None
    rows: dict[str, Any] = {}
    for name, ready in prepared["ready"].items():
        if isinstance(ready, str):
            rows[name] = {"unavailable": ready}
            continue
        result = np.empty(dims[0], BF16)
        ready = replace(ready, inputs=inputs, wanted=[result], tolerance=_TOLERANCE)
        with Session(driver, ready) as session:
            session.launch()
            (found,) = session.results()
            off = error([_sampled(found)], [wanted])
            first = found if first is None else first
            row = {"error": off, "beside_first": error([found], [first])}
            if not off <= _TOLERANCE:
                raise ValueError(f"{name}: the error is {off:.1e}, {_TOLERANCE:.0e} is allowed")
            if not driver.simulated:
                row["seconds"] = seconds(driver, session.stream, session.launch, _COUNT)
            rows[name] = row
    timed = {name: row["seconds"] for name, row in rows.items() if "seconds" in row}
    best = min(timed, key=timed.__getitem__) if timed else None
    return {"variants": rows, "best": best}


def _sampled(result: Array) -> Array:
    """The last rows, which are the longest walks of causal attention."""
    return result[..., -_ROWS:, :]


def _wanted(inputs: list[Array]) -> Array:
    """Those rows of the result in float64."""
    wide = [np.asarray(array, np.float64) for array in inputs]
    if len(wide) == 2:
        return wide[0][-_ROWS:] @ wide[1]
    q, k, v = wide
    length = q.shape[1]
    scores = q[:, -_ROWS:] @ k.transpose(0, 2, 1) * q.shape[2] ** -0.5
    hidden = np.arange(length) > np.arange(length - _ROWS, length)[:, None]
    scores = np.where(hidden, -np.inf, scores)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers @ v / powers.sum(-1, keepdims=True)

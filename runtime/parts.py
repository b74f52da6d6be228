"""What programs are made of, and their arrays: parts in memory, aligned results, comparisons."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .bundle import MemoryParts, Parts, Variant

if TYPE_CHECKING:
    from ..hlo.graph import Module, Weight
    from ..specs.generated import plan_pb2

Array = np.ndarray[Any, Any]
ALIGNMENT = 64
_BYTE = np.dtype(np.uint8)
_from_buffer = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def decode_module(parts: Parts) -> Module:
    """The program's source form, with its weights."""
    from ..hlo.wire import decode

    return decode(parts.program, lambda name, _type: parts.weights[name])


def copied_parts(parts: Parts, **changed: Any) -> MemoryParts:
    """The same parts in memory, but for those that are given."""
    kept = {
        field.name: getattr(parts, field.name)
        for field in fields(MemoryParts)
        if field.name not in ("source", *changed)
    }
    return MemoryParts(**{"source": lambda: parts.program, **kept, **changed})


def variant_of(
    plan: plan_pb2.Plan,
    image: bytes | memoryview,
    weights: Mapping[str, Array] | None = None,
    cubins: Mapping[str, Any] | None = None,
) -> Variant:
    return Variant(
        plan=plan.SerializeToString(deterministic=True),
        image=image,
        weights=dict(weights or {}),
        native=len(image) > 0,
        triple=plan.triple,
        features=tuple(plan.features),
        cubins=dict(cubins or {}),
    )


def encoded(module: Module) -> bytes:
    from ..hlo.wire import encode

    return encode(module)


def weights_by_name(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Weights by all of their names."""
    found: dict[str, Weight] = {}
    for name, weight in weights.items():
        found |= dict.fromkeys((name, *weight.aliases), weight)
    return found


def arrays_by_name(weights: Mapping[str, Weight]) -> dict[str, Array]:
    """The data of weights by all of their names."""
    return {name: weight.array for name, weight in weights_by_name(weights).items()}


def used_weights(plan: plan_pb2.Plan, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The plan's weights, C-contiguous as kernels read them."""
    names = {buffer.weight for buffer in plan.buffers if buffer.weight in weights}
    return {
        name: weights[name]
        if weights[name].flags.c_contiguous
        else np.array(weights[name], order="C")
        for name in sorted(names)
    }


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any], room: int) -> Array:
    """An uninitialised array that starts at a multiple of 64 bytes; `room` = its bytes + 63."""
    raw = np.ndarray(room, _BYTE)
    address = _addressof(_from_buffer(raw))  # pyright: ignore[reportArgumentType]
    return np.ndarray(shape, dtype, raw, -address & (ALIGNMENT - 1))


def relative_error(found: Array, golden: Array) -> float:
    """max |found - golden| / max |golden|; exact types count every difference as infinite."""
    if found.shape != golden.shape or found.dtype != golden.dtype:
        return float("inf")
    if found.dtype.kind in "biu":
        return 0.0 if np.array_equal(found, golden) else float("inf")
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    one, other = found.astype(wide), golden.astype(wide)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0, np.abs(one - other))
    scale = np.max(np.abs(other), initial=0.0, where=np.isfinite(other))
    worst = float(np.max(difference, initial=0.0))
    return worst if worst == 0 else float("inf") if np.isnan(worst) else worst / (scale or 1.0)

"""What programs are made of, and their arrays: parts in memory, aligned results, comparisons."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Mapping
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


def decode_module(parts: Parts, entry: str | None = None) -> Module:
    """The source form of an entry point's program, by default the first one's, with its weights."""
    from ..hlo.wire import decode

    program = parts.program if entry is None else parts.programs[entry]
    return decode(program, lambda name, _type: parts.weights[name])


def decode_modules(parts: Parts) -> dict[str, Module]:
    """The source form of every entry point's program."""
    return {name: decode_module(parts, name) for name in parts.signatures}


def copied_parts(parts: Parts, **changed: Any) -> MemoryParts:
    """The same parts in memory, but for those that are given."""
    kept = {
        field.name: getattr(parts, field.name)
        for field in fields(MemoryParts)
        if field.name not in ("source", "further", *changed)
    }
    first, *others = parts.signatures
    further = {name: functools.partial(_program_of, parts, name) for name in others}
    source = functools.partial(_program_of, parts, first)
    return MemoryParts(**{"source": source, "further": further, **kept, **changed})


def _program_of(parts: Parts, entry: str) -> bytes:
    return parts.programs[entry]


def variant_of(
    plans: Mapping[str, plan_pb2.Plan],
    image: bytes | memoryview,
    weights: Mapping[str, Array] | None = None,
    cubins: Mapping[str, Any] | None = None,
) -> Variant:
    """The variant of these plans, by entry point, which run one image."""
    first, *others = (plan.SerializeToString(deterministic=True) for plan in plans.values())
    plan = next(iter(plans.values()))
    return Variant(
        plan=first,
        image=image,
        weights=dict(weights or {}),
        native=len(image) > 0,
        triple=plan.triple,
        features=tuple(sorted({name for plan in plans.values() for name in plan.features})),
        cubins=dict(cubins or {}),
        further=dict(zip(list(plans)[1:], others, strict=True)),
    )


def encoded(module: Module) -> bytes:
    from ..hlo.wire import encode

    return encode(module)


def weights_by_name(*modules: Module) -> dict[str, Weight]:
    """The weights of modules by all of their names."""
    found: dict[str, Weight] = {}
    for module in modules:
        for name, weight in module.weights.items():
            found |= dict.fromkeys((name, *weight.aliases), weight)
    return found


def module_weights(*modules: Module) -> dict[str, Array]:
    return {name: weight.array for name, weight in weights_by_name(*modules).items()}


def weights_named(plans: Iterable[plan_pb2.Plan]) -> set[str]:
    """The names of the weights that plans read."""
    return {b.weight for plan in plans for b in plan.buffers if b.weight}


def used_weights(plans: Iterable[plan_pb2.Plan], weights: Mapping[str, Array]) -> dict[str, Array]:
    """The plans' weights, C-contiguous as kernels read them."""
    names = weights_named(plans) & weights.keys()
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


def sample(array: Array) -> tuple[Any, ...]:
    """Equal for arrays of equal type and bytes; cheap to make, and seldom equal for others."""
    flat = _bytes(array)
    if flat.size > 4096:
        flat = np.concatenate([flat[:1024], flat[-1024:], flat[:: flat.size // 63]])
    return array.dtype, array.shape, flat.tobytes()


def same_bytes(one: Array, other: Array) -> bool:
    """Whether two arrays have equal type, shape and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return np.array_equal(_bytes(one), _bytes(other))


def _bytes(array: Array) -> Array:
    """The bytes of an array in order; a view where it lies so."""
    return np.ascontiguousarray(array).reshape(-1).view(_BYTE)


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

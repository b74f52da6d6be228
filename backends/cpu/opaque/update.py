"""dynamic_update_slice: a copy (none where operand and result share memory), then the update."""

from __future__ import annotations

from ....hlo.graph import Op
from ..codegen import KernelCode, Target
from ..index import linear
from ..loops.frame import lanes_for_types, steps
from .frame import copy_unless_same, frame_of, nest


def emit(op: Op, target: Target) -> KernelCode:
    """One worker: copies, then writes the window."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    source, update, *starts = op.operands
    result = frame.outputs[0]
    if not source.tensor.size:
        return frame.finish(0, 0.0)
    with scopes.branch(f.compare("slt", frame.begin, frame.end)):
        copy_unless_same(f, scopes, result, frame.pointers[0], source.tensor.bytes)
        if update.tensor.size:
            emitter.base = scopes.depth
            offsets = [
                emitter.clamped(start, (), size - window, 1, None)
                for start, size, window in zip(starts, source.dims, update.dims, strict=True)
            ]
            dims = update.dims or (1,)
            width = lanes_for_types(target, [update.element])
            while width > max(1, dims[-1]):
                width //= 2
            with nest(scopes, dims[:-1]) as outer:
                for j, lanes, _, mask in steps(scopes, target, 0, dims[-1], dims[-1], width, 1):
                    at = (*outer, j)[: update.rank]
                    register = emitter.value(update, at, lanes, mask)
                    place = tuple(a + b for a, b in zip(at, offsets, strict=True))
                    where = linear(place, source.dims)
                    emitter.store(result, register, update.element, where, lanes, mask)
    return frame.finish(1, 0.0, parallel=False)


def copies(op: Op, target: Target) -> KernelCode:
    """Every operand, unchanged."""
    frame, _ = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    with scopes.branch(f.compare("slt", frame.begin, frame.end)):
        for value, source, result in zip(op.operands, frame.pointers, frame.outputs, strict=True):
            copy_unless_same(f, scopes, result, source, value.tensor.bytes)
    return frame.finish(1, 0.0, parallel=False)

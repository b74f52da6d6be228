"""fft: the discrete Fourier transform by its definition, axis after axis, summed in f64."""

from __future__ import annotations

import math

import numpy as np

from ....hlo.errors import UnsupportedError
from ....hlo.graph import Op
from .. import llvm
from ..codegen import KernelCode, Target
from ..elements import Pair
from ..elementwise import ElementEmitter
from ..index import Axis, of_axis
from ..loops.frame import Frame, tile_range
from .frame import frame_of

LONGEST = 1 << 15  # the work grows with the square of the length


def emit(op: Op, target: Target) -> KernelCode:
    """One batch element per tile; two copies of it, as f64 pairs, in scratch."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    lengths = tuple(op.fft_length)
    rank = len(lengths)
    if not op.type.size or not op.operands[0].tensor.size:
        return frame.finish(0, 0.0)
    if max(lengths) > LONGEST:
        place = f"{op.origin[0]}: " if op.origin else ""
        raise UnsupportedError(f"{place}fft: target cpu has no code for lengths above {LONGEST}")
    source, result = op.operands[0], op.result
    before, after = source.dims[source.rank - rank :], result.dims[result.rank - rank :]
    batch = math.prod(source.dims[: source.rank - rank])
    largest = max(math.prod(before), math.prod(after), math.prod(lengths))
    half = 16 * largest
    inverse = op.fft_type in ("IFFT", "IRFFT")
    axes = list(range(rank))
    # Real results come from the last axis at the end, real inputs go through it first.
    order = axes if op.fft_type == "IRFFT" else axes[::-1]
    with tile_range(frame, 0, batch) as (low, high), scopes.loop(low, high, extent=batch) as (
        _, loop,
    ):  # fmt: skip
        buffers = [frame.scratch, f.pointer(frame.scratch, half, "i8")]
        count = math.prod(before)
        with f.for_range(0, count) as each:
            at = f.add(f.mul(loop.index, count), each.index)
            value = _load(emitter, frame, source.element, at, source.tensor.size)
            _put(f, buffers[0], each.index, value)
        dims = list(before)
        for axis in order:
            made = after[axis] if op.fft_type == "RFFT" else lengths[axis]
            _axis(f, buffers, dims, axis, lengths[axis], made, inverse)
            dims[axis] = made
            buffers.reverse()
        count = math.prod(after)
        with f.for_range(0, count) as each:
            value = _get(f, buffers[0], each.index)
            _store(emitter, frame, op, f.add(f.mul(loop.index, count), each.index), value)
    work = 4.0 * batch * largest * sum(lengths)
    return frame.finish(batch, op.definition.flops(op), scratch=2 * half, work=work)


def _axis(
    f: llvm.Function,
    buffers: list[llvm.Value],
    dims: list[int],
    axis: int,
    length: int,
    made: int,
    inverse: bool,
) -> None:
    """buffers[1] = the transform of buffers[0] along one axis, of which `made` outputs are kept."""
    have = dims[axis]
    stride = math.prod(dims[axis + 1 :])
    lines = math.prod(dims) // have
    angles = 2 * np.pi * np.arange(length) / length * (1 if inverse else -1)
    cosines = f.module.data(np.cos(angles).tobytes())
    sines = f.module.data(np.sin(angles).tobytes())
    zero = llvm.constant("double", 0.0)
    with f.for_range(0, lines) as line:
        outer = f.udiv(line.index, stride)
        inner = f.sub(line.index, f.mul(outer, stride))
        source = f.add(f.mul(outer, have * stride), inner)
        target = f.add(f.mul(outer, made * stride), inner)
        with (
            f.for_range(0, made) as k,
            f.for_range(0, length, 1, [zero, zero, llvm.constant("i64", 0)]) as n,
        ):
            real, imaginary, turn = n.carried
            position, flip = n.index, None
            if have < length:
                # Half a spectrum: the other half is its mirrored conjugate.
                flip = f.compare("sge", n.index, have)
                position = f.select(flip, f.sub(length, n.index), n.index)
            x = _get(f, buffers[0], f.add(source, f.mul(position, stride)))
            if flip is not None:
                x = Pair(x.real, f.select(flip, f.neg(x.imaginary), x.imaginary))
            c = f.load("double", f.pointer(cosines, turn, "double"))
            s = f.load("double", f.pointer(sines, turn, "double"))
            real = f.add(real, f.sub(f.mul(x.real, c), f.mul(x.imaginary, s)))
            imaginary = f.add(imaginary, f.add(f.mul(x.real, s), f.mul(x.imaginary, c)))
            turn = f.add(turn, k.index)
            turn = f.select(f.compare("sge", turn, length), f.sub(turn, length), turn)
            n.carry(real, imaginary, turn)
            last = f.compare("eq", n.index, length - 1)
            with f.if_then(last):
                scale = 1.0 / length if inverse else 1.0
                value = Pair(f.mul(real, scale), f.mul(imaginary, scale))
                _put(f, buffers[1], f.add(target, f.mul(k.index, stride)), value)


def _get(f: llvm.Function, base: llvm.Value, at: llvm.Value) -> Pair:
    place = f.mul(at, 2)
    real = f.load("double", f.pointer(base, place, "double"))
    return Pair(real, f.load("double", f.pointer(base, f.add(place, 1), "double")))


def _put(f: llvm.Function, base: llvm.Value, at: llvm.Value, value: Pair) -> None:
    place = f.mul(at, 2)
    f.store(value.real, f.pointer(base, place, "double"))
    f.store(value.imaginary, f.pointer(base, f.add(place, 1), "double"))


def _load(
    emitter: ElementEmitter, frame: Frame, element: object, at: llvm.Value, size: int
) -> Pair:
    f = emitter.function
    axis = of_axis(Axis(at, size, depth=emitter.scopes.depth))
    value = emitter.load(frame.pointers[0], element, axis)
    parts = value if isinstance(value, Pair) else Pair(value, llvm.constant(value.type, 0.0))
    return Pair(*(f.cast("fpext", part, "double") for part in parts))


def _store(emitter: ElementEmitter, frame: Frame, op: Op, at: llvm.Value, value: Pair) -> None:
    f = emitter.function
    element = op.result.element
    axis = of_axis(Axis(at, op.type.size, depth=emitter.scopes.depth))
    kind = "double" if element.itemsize // (2 if element.is_complex else 1) == 8 else "float"
    parts = [f.cast("fptrunc", part, kind) for part in value]
    register = Pair(*parts) if element.is_complex else parts[0]
    emitter.store(frame.outputs[0], register, element, axis)

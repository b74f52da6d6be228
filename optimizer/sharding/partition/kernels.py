"""Kernels whose dims are cut: the kernel of a part, from a variant that the program has with it, or
from the windows of its tile function where the grid walks along these dims.

Along a dim with a halo the part has more elements before and behind it, of which the results are
dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence

from ....hlo import wire
from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Op, Region, Value, arguments
from ....hlo.kernel_windows import walks
from ....hlo.sharding import Mesh
from ....hlo.types import TensorType, Type, unsharded
from ..propagated import retyped
from .halo import (
    Axes,
    DimWindow,
    PartitionedDim,
    kept,
    read_along,
    received,
    routes_of,
    transfers_of,
)
from .partitioner import Partitioner
from .windows import fetch


def kernel_bytes(o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> float | None:
    """Bytes of halos that a device receives, mean over devices; None where it cannot be cut so."""
    for factor, cut in zip(factors.factors, axes, strict=True):
        parts = mesh.parts(cut)
        if parts == 1:
            continue
        if factor.kind is FactorKind.REPLICATE or not factor.fits(parts):
            return None
        if factor.kind is FactorKind.REDUCTION and factor.size % parts:
            return None
    return sum(kernel_halos(o, factors, axes, mesh).values(), 0.0)


def kernel_halos(
    o: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> Mapping[Hashable, float]:
    """What is fetched from other devices -> the bytes of it that a device receives."""
    found: dict[Hashable, float] = {}
    for number, value in enumerate(o.operands):
        lines = _lines(value, number, factors, axes, mesh)
        if all(line.local for line in lines):
            continue
        cuts, routes = tuple(line.axes for line in lines), routes_of(lines)
        lengths = tuple(line.length for line in lines)
        key = value, (), lengths, transfers_of(mesh, cuts, routes)
        found[key] = received(mesh, cuts, routes, value.tensor.dtype.itemsize)
    return found


def _lines(
    value: Value, number: int, factors: Factors, axes: Sequence[Axes], mesh: Mesh
) -> list[PartitionedDim]:
    """What a device reads of an operand."""
    lines: list[PartitionedDim] = []
    for size, held in zip(value.dims, factors.operands[number], strict=True):
        factor = held[0] if held else None
        cut = axes[factor] if factor is not None else ()
        low, high = factors.factors[factor].halo if factor is not None else (0, 0)
        if mesh.parts(cut) > 1 and (low or high):
            window = DimWindow(size, 1 + low + high, low=low)
            lines.append(read_along(mesh, size, window, cut).line)
        else:
            lines.append(kept(mesh, size, cut))
    return lines


def lower_kernel(p: Partitioner, o: Op, operands: list[Value]) -> Sequence[Value]:
    """A kernel's call on blocks; UnsupportedError where the program has no kernel for the part."""
    if o.definition.divide(o) is None:
        types = [p.local(result.type) for result in o.results]
        return p.b.op(o.name, operands, o.attributes, o.regions, types).results
    factors, axes = p.factors(o), p.axes(o)
    blocks = [
        fetch(p, block, _lines(value, number, factors, axes, p.mesh), None)
        for number, (value, block) in enumerate(zip(o.operands, operands, strict=True))
    ]
    cut = [n for n, held in enumerate(axes) if p.mesh.parts(held) > 1]
    halos = {n: factors.factors[n].halo for n in cut if any(factors.factors[n].halo)}
    wanted = [
        _extended(p.local(result.type), held, halos)
        for result, held in zip(o.results, factors.results, strict=True)
    ]
    if cut:
        made = _part(o, factors, cut, blocks, wanted)
        if made is None:
            names = ", ".join(str(value.type) for value in blocks)
            raise p.refuse(
                o, f"there is no kernel '{o.kernel}' for the part {names}, and its windows do not "
                "walk along what is cut", "list that dim in replicate={..}, or give the kernel "
                "local= with the number of parts",
            )  # fmt: skip
    else:
        made = Op(o.definition, blocks, o.attributes, o.regions, wanted, o.origin)
    results = p.b.op(made.name, blocks, made.attributes, made.regions, wanted).results
    return [
        _taken(p, result, o_result, held, halos)
        for result, o_result, held in zip(results, o.results, factors.results, strict=True)
    ]


def _extended(
    kind: Type, held: Sequence[Sequence[int]], halos: Mapping[int, tuple[int, int]]
) -> Type:
    """The type of a part with its halo."""
    if not isinstance(kind, TensorType):
        return kind
    return kind.with_dims(
        size + sum(sum(halos.get(n, (0, 0))) for n in factors)
        for size, factors in zip(kind.dims, held, strict=True)
    )


def _taken(
    p: Partitioner, result: Value, whole: Value, held: Sequence[Sequence[int]],
    halos: Mapping[int, tuple[int, int]],
) -> Value:  # fmt: skip
    """The part alone."""
    if not any(n in halos for factors in held for n in factors):
        return result
    kind = p.local(whole.type)
    assert isinstance(kind, TensorType)
    starts = tuple(sum(halos[n][0] for n in factors if n in halos) for factors in held)
    limits = tuple(start + size for start, size in zip(starts, kind.dims, strict=True))
    return p.b(
        "slice", result, start_indices=starts, limit_indices=limits, strides=(1,) * len(starts)
    )


def _part(
    o: Op, factors: Factors, cut: Sequence[int], blocks: Sequence[Value], wanted: Sequence[Type]
) -> Op | None:
    """The kernel of a part: of the kernel and its variants the first that has the part's sizes but
    where its windows walk. None where there is none."""
    types = [*(value.type for value in blocks), *wanted]
    for base in (*(_decoded(data).ops[0] for data in o.variants), o):
        having = [unsharded(value.type) for value in (*base.operands, *base.results)]
        differing = {
            number
            for dims, one, other in zip(factors.tensors, having, types, strict=True)
            for held, size, part in zip(dims, _dims(one), _dims(other), strict=True)
            if size != part
            for number in held
        }
        if not differing:
            return base
        made = _walked(base, factors, sorted(differing), types) if differing <= {*cut} else None
        if made is not None:
            return made
    return None


def _dims(kind: Type) -> tuple[int, ...]:
    return kind.dims if isinstance(kind, TensorType) else ()


@functools.lru_cache(256)
def _decoded(data: bytes) -> Region:
    """The program of one kernel."""
    return wire.decode(data).body


def _walked(o: Op, factors: Factors, along: Sequence[int], types: Sequence[Type]) -> Op | None:
    """The tile function with fewer tiles; None where its windows do not walk along these factors.

    types: of its operands and results then. A reference, which is for arrays of the whole sizes, is
    left out.
    """
    if o.name != "kernel_call":
        return None
    grid, known = list(o.grid), walks(o)
    for number in along:
        places = {
            memory: held.index((number,))
            for memory, held in enumerate(factors.tensors)
            if (number,) in held
        }
        walk = next((walk for walk in known if walk.places == places), None)
        said = factors.factors[number].halo
        if walk is None or walk.halo[0] > said[0] or walk.halo[1] > said[1]:
            return None
        memory, dim = next(iter(places.items()))
        grid[walk.axis] = -(-_dims(types[memory])[dim] // walk.step)
    body, count = o.regions[0], len(o.operands)
    own = dict(zip(body.arguments, types, strict=True))
    smaller = retyped(body, lambda value: own.get(value, value.type), {})
    facts = {**o.attributes, "grid": tuple(grid)}
    return Op(o.definition, arguments(types[:count]), facts, (smaller,), types[count:], o.origin)

"""Why the shardings of an operation's tensors do not agree; nothing where they do.

They agree where every device can compute its part of the results from its parts of the operands,
by the factors of the operation (`factors.py`): each factor is cut by the same axes in every tensor
that holds it, no axis cuts two factors, a reduction that is cut leaves its results unreduced, and
what is unreduced goes only where the fold may come later. This is a check of what was decided: it
shares no code with what decides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from .factors import Dims, FactorKind, Factors
from .graph import Op, Value, constant_of
from .ops.manual import axis_of, whole_shardings
from .sharding import MAX, MIN, SUM, Axis, Mesh, Sharding
from .types import TensorType

Axes = tuple[Axis, ...]

_MOVING = frozenset(
    ("broadcast", "broadcast_in_dim", "reshape", "reverse", "slice", "transpose")
    + ("optimization_barrier", "propagation_barrier")
)
"""They move elements, and take all of their operands: any fold may come after them."""

_FIRST_MOVED = frozenset(("dynamic_slice", "gather", "torch_index_select"))
"""The same, of their first operand."""

_BOXES = frozenset(("concatenate", "sort", "fft"))
"""Their results may be cut along what is replicated: each part is put together of boxes, of what
comes first of several blocks, of what others have transformed."""

_PARTWISE = frozenset(("dynamic_slice", "chlo.top_k", "reduce"))
"""Their operands may be cut along what is replicated, their results not: what devices find in their
parts is put together."""

_TAKERS = frozenset(("dynamic_slice",))
"""What they take along such a factor is a sum: one device has each element, others zeros."""

_MERGING = frozenset(("reshape",))
"""Dims of several factors may be cut across these, along the first: what lies in other blocks is
sent."""

_LINEAR = frozenset(("negate", "real", "imag", "fft", "chlo.conj"))
_ADDING = frozenset(("add", "subtract", "complex", "concatenate"))
_PRODUCTS = frozenset(("multiply", "dot", "dot_general", "convolution"))
_KEPT_BY = {MAX: ("maximum",), MIN: ("minimum",)}


def conflict(op: Op, mesh: Mesh) -> str:
    """Why no device can compute its part of `op`, one sentence.

    op: outside of control flow's own rules, its tensors with closed shardings over `mesh`, whose
    sizes are known. A reshard, the operation `sharding_constraint`, may change what it likes but
    the fold of axes over which its operand is unreduced.
    """
    if op.name == "sharding_constraint":
        return _of_reshard(op, mesh)
    if op.name == "sharding_group":
        return ""
    if op.name in ("while", "case", "if"):
        return _of_edges(op, mesh)
    if op.name == "sdy.manual_computation":
        return _of_manual(op, mesh)
    factors = op.definition.divide(op)
    if factors is None:
        cut = next((v for v in (*op.operands, *op.results) if _is_cut(v)), None)
        return "" if cut is None else f"{cut.type} is cut, and {op.definition.uncut}"
    try:
        axes = _axes_of_factors(factors, op, mesh)
    except _Conflict as found:
        return str(found)
    return (
        _overlapping(axes, mesh)
        or _wrong_kind(op, factors, axes)
        or _wrong_size(op, factors, axes, mesh)
        or _folds(op, factors, axes, mesh)
    )


class _Conflict(Exception):
    pass


def sharding_of(value: Value) -> Sharding | None:
    """Of a tensor; None of anything else."""
    return value.type.sharding if isinstance(value.type, TensorType) else None


def _is_cut(value: Value) -> bool:
    sharding = sharding_of(value)
    return sharding is not None and bool(sharding.unreduced or any(d.axes for d in sharding.dims))


def _of_reshard(op: Op, mesh: Mesh) -> str:
    source, target = sharding_of(op.operands[0]), sharding_of(op.results[0])
    assert source is not None and target is not None
    for axis in target.unreduced:
        over = [other for other in source.unreduced if mesh.overlap(axis, other)]
        if any(not _within(mesh, axis, other) for other in over):
            return f"{source} cannot become {target}: {axis} is more than it is unreduced over"
        if over and source.reduction != target.reduction:
            return f"{source} cannot become {target}: they are folded in different ways"
    return ""


def _within(mesh: Mesh, axis: Axis, other: Axis) -> bool:
    (a, b), (c, d) = mesh.bounds(axis), mesh.bounds(other)
    return c <= a and b <= d


# Control flow


def _of_edges(op: Op, mesh: Mesh) -> str:
    """Why values that are one on the way through control flow lie in different ways."""
    if op.name == "while":
        cond, body = op.regions
        groups = zip(
            op.operands, cond.arguments, body.arguments, body.results, op.results, strict=True
        )
        decides = cond.results[0]
    else:
        groups = zip(*(body.results for body in op.regions), op.results, strict=True)
        decides = op.operands[0]
    if _is_cut(decides):
        return f"{decides.type} decides which way is taken: every device needs all of it"
    for group in groups:
        kinds = {_placed(value, mesh): value.type for value in group}
        if len(kinds) > 1:
            return f"one value is {' and '.join(map(str, kinds.values()))}"
    return ""


def _of_manual(op: Op, mesh: Mesh) -> str:
    """Why tensors do not lie as the region, which is for one device, says."""
    values = (*op.operands, *op.results)
    for value, said, cuts in zip(
        values, whole_shardings(op), (*op.in_shardings, *op.out_shardings), strict=True
    ):
        having = sharding_of(value)
        if having is None:
            continue
        wanted = [mesh.merged(map(axis_of, axes)) for axes in cuts]
        if [mesh.merged(dim.axes) for dim in having.dims] != wanted:
            return f"{value.type} has to be cut by {wanted}"
        unreduced = said.unreduced if said is not None else ()
        if mesh.merged(having.unreduced) != mesh.merged(unreduced):
            return f"{value.type} has to be unreduced over {list(unreduced)}"
    return ""


def _placed(value: Value, mesh: Mesh) -> Hashable:
    sharding = sharding_of(value)
    if sharding is None:
        return None
    dims = tuple(mesh.merged(dim.axes) for dim in sharding.dims)
    over = dict.fromkeys(sharding.unreduced, sharding.reduction)
    return dims, tuple(_canonical(over, mesh))


# Factors


def _axes_of_factors(factors: Factors, op: Op, mesh: Mesh) -> list[Axes]:
    """The axes that cut each factor; _Conflict where two tensors say different ones."""
    found: list[Axes | None] = [None] * len(factors.factors)
    holders: dict[int, Value] = {}
    shared: list[tuple[TensorType, tuple[int, ...], Axes]] = []
    for value, dims in zip((*op.operands, *op.results), factors.tensors, strict=True):
        sharding = sharding_of(value)
        if sharding is None:
            continue
        windows, own = _projected(factors, dims, value, sharding, mesh, op.name in _MERGING)
        shared += windows
        for number, axes in own.items():
            before = found[number]
            if before is None:
                found[number], holders[number] = axes, value
            elif before != axes and not (_alone(factors, number, value, op) and not axes):
                one, other = holders[number].type, value.type
                raise _Conflict(
                    f"factor {number} of {factors} is cut in two ways, by {one} and {other}"
                )
    for kind, held, axes in shared:
        wanted = [axis for number in held for axis in found[number] or ()]
        if mesh.merged(wanted) != axes:
            raise _Conflict(f"{kind} is cut along a dim of windows, which are cut by {wanted}")
    return [axes or () for axes in found]


def _alone(factors: Factors, number: int, value: Value, op: Op) -> bool:
    """Whether a result may hold the whole of a factor that its operand has cut."""
    replicated = factors.factors[number].kind is FactorKind.REPLICATE
    return replicated and value in op.results and op.name in _PARTWISE


def _projected(
    factors: Factors, dims: Dims, value: Value, sharding: Sharding, mesh: Mesh, merging: bool
) -> tuple[list[tuple[TensorType, tuple[int, ...], Axes]], dict[int, Axes]]:
    """Of a tensor the axes of each factor; and, where a dim has windows, and places in them, the
    factors that share it, with their axes: other tensors hold these factors one by one."""
    found: dict[int, Axes] = {}
    windows: list[tuple[TensorType, tuple[int, ...], Axes]] = []
    kind = value.type
    assert isinstance(kind, TensorType)
    for size, held, said in zip(kind.dims, dims, sharding.dims, strict=True):
        axes = list(said.axes)
        if not held:
            if mesh.merged(axes):
                raise _Conflict(f"{kind} is cut along a dim of size {size}, which holds no factor")
            continue
        sizes = [factors.factors[number].size for number in held]
        walked = any(factors.factors[number].placed for number in held)
        if len(held) > 1 and (walked or math.prod(sizes) != size):
            windows.append((kind, held, mesh.merged(axes)))
            continue
        if len(held) == 1:
            found[held[0]] = mesh.merged(axes)
            continue
        try:
            divided = _divided(list(axes), sizes, mesh, kind)
        except _Conflict:
            if not merging:
                raise
            divided = [axes, *([] for _ in sizes[1:])]  # the dim has blocks of its own
        for number, part in zip(held, divided, strict=True):
            found[number] = mesh.merged(part)
    return windows, found


def _divided(
    axes: list[Axis], sizes: Sequence[int], mesh: Mesh, kind: TensorType
) -> list[list[Axis]]:
    """The axes of a dim dealt out to its factors, of these sizes, major to minor."""
    found: list[list[Axis]] = []
    for size in sizes[:-1]:
        found.append([])
        while axes and size > 1:
            parts = mesh.size(axes[0])
            if size % parts == 0:
                found[-1].append(axes.pop(0))
                size //= parts
            elif parts % size == 0:
                axis = axes[0]
                low, high = mesh.bounds(axis)
                found[-1].append(mesh.part(axis.name, low, low * size))
                axes[0] = mesh.part(axis.name, low * size, high)
                size = 1
            else:
                raise _Conflict(
                    f"{axes[0]} in {kind} cuts across the factors of sizes {list(sizes)}"
                )
    if found and sizes[-1] % mesh.parts(axes):  # the dim has other blocks than its factors
        raise _Conflict(f"{kind} is cut into blocks that are no parts of {list(sizes)}")
    found.append(axes)
    return found


def _overlapping(axes: Sequence[Axes], mesh: Mesh) -> str:
    """Why one axis cuts two factors."""
    everything = [(axis, number) for number, held in enumerate(axes) for axis in held]
    for place, (axis, number) in enumerate(everything):
        for other, another in everything[:place]:
            if mesh.overlap(axis, other):
                return f"{axis} cuts two factors, {another} and {number}"
    return ""


def _wrong_kind(op: Op, factors: Factors, axes: Sequence[Axes]) -> str:
    """Why a factor cannot be cut."""
    for number, (factor, held) in enumerate(zip(factors.factors, axes, strict=True)):
        if not held or factor.kind is not FactorKind.REPLICATE or op.name in _BOXES:
            continue
        cut = op.name not in _PARTWISE
        for value, dims in zip(op.results, factors.results, strict=True):
            sharding = sharding_of(value)
            said = sharding.dims if sharding else ()
            cut |= any(d.axes for d, dim in zip(said, dims, strict=True) if number in dim)
        if cut:
            return f"each device needs all of factor {number} of {factors}, and has a part"
    return ""


def _wrong_size(op: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> str:
    """Why a kernel does not allow parts of that size."""
    if op.definition.pattern != "kernel":
        return ""
    for number, (factor, held) in enumerate(zip(factors.factors, axes, strict=True)):
        parts = math.prod(map(mesh.size, held))
        folded = factor.kind is FactorKind.REDUCTION and factor.size % parts
        if folded or not factor.fits(parts):
            return f"the kernel does not allow {parts} parts of factor {number} of {factors}"
    return ""


# What is unreduced


def _folds(op: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> str:
    """Why the axes over which the results are unreduced are not those that follow."""
    wanted: dict[Axis, str] = {}
    for factor, held in zip(factors.factors, axes, strict=True):
        if factor.kind is FactorKind.REDUCTION:
            wanted.update(dict.fromkeys(held, factor.reduction))
        elif factor.kind is FactorKind.REPLICATE and op.name in _TAKERS:
            wanted.update(dict.fromkeys(held, SUM))
    cut = [axis for held in axes for axis in held]
    pending = _pending(op.operands)
    for axis, kinds in pending.items():
        if any(mesh.overlap(axis, other) for other in cut):
            return f"{axis} cuts a factor, and an operand is unreduced over it"
        if len(set(kinds.values())) > 1:
            return f"its operands are unreduced over {axis} by different folds"
        kind = next(iter(kinds.values()))
        if not _carries(op, kind, frozenset(kinds)):
            return f"an operand is unreduced ({kind}) over {axis}, and {op.name} needs its elements"
        wanted[axis] = kind
    for value in op.results:
        sharding = sharding_of(value)
        if sharding is None:
            continue
        having = dict.fromkeys(sharding.unreduced, sharding.reduction)
        if _canonical(having, mesh) != _canonical(wanted, mesh):
            names = ", ".join(f"{axis} ({kind})" for axis, kind in wanted.items()) or "nothing"
            return f"{value.type} has to be unreduced over {names}"
    return ""


def _pending(values: Sequence[Value]) -> dict[Axis, dict[int, str]]:
    """The axes over which operands are unreduced, which operands, and how they are folded."""
    found: dict[Axis, dict[int, str]] = {}
    for number, value in enumerate(values):
        sharding = sharding_of(value)
        for axis in sharding.unreduced if sharding is not None else ():
            assert sharding is not None
            found.setdefault(axis, {})[number] = sharding.reduction
    return found


def _canonical(axes: Mapping[Axis, str], mesh: Mesh) -> list[tuple[str, str, int, int]]:
    kinds = sorted(set(axes.values()))
    found: list[tuple[str, str, int, int]] = []
    for kind in kinds:
        held = sorted((a for a, k in axes.items() if k == kind), key=lambda a: (a.name, a.before))
        found += [(kind, a.name, *mesh.bounds(a)) for a in mesh.merged(held)]
    return found


def _carries(op: Op, kind: str, which: frozenset[int]) -> bool:
    """Whether folding these operands over an axis may come after the operation, which then takes
    each device's terms, where no other operand is unreduced over the axis."""
    name, all_of_them = op.name, len(which) == len(op.operands)
    if name in _MOVING:
        return True
    if name in _FIRST_MOVED:
        return which == {0}
    if name in ("concatenate", "dynamic_update_slice"):
        return which == set(range(len(op.operands) if name == "concatenate" else 2))
    if name == "select":
        return which == {1, 2}
    if name == "pad":
        return all_of_them or kind == SUM and which == {0} and _is_zero(op.operands[1])
    if kind != SUM:
        return all_of_them and name in _KEPT_BY[kind]
    if name in _LINEAR:
        return True
    if name in _ADDING:
        return all_of_them
    if name in _PRODUCTS:
        return len(which) == 1
    if name == "divide":
        return which == {0} and _is_inexact(op.operands[0])
    if name == "convert":
        return _keeps_sums(op)
    if name == "reduce":
        half = len(op.operands) // 2
        sums = all(inner.name == "add" for inner in op.regions[0].ops)
        return sums and which == set(range(half)) and all(map(_is_zero, op.operands[half:]))
    return False


def _is_zero(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in ("sharding_constraint", "broadcast_in_dim", "convert"):
        op = op.operands[0].op
    found = None if op is None else constant_of(op.results[0])
    return found is not None and not found.array.any()


def _is_inexact(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.element.is_float


def _keeps_sums(op: Op) -> bool:
    """Whether a conversion loses nothing of the terms of a sum that it would keep of the sum."""
    source, target = op.operands[0].tensor.element, op.result.tensor.element
    return source.is_float and target.is_float and target.bits >= source.bits

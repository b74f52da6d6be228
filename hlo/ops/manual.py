"""Programs that are written per device: a body on every device of a mesh, on its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..graph import Op, Region
from ..groups import mesh_groups
from ..room import BuildRegion, Case, OpDefinition, attribute, constraint, variadic
from ..sharding import MAX, MIN, SUM, Axis, Mesh, Sharding, parse_sharding
from ..types import F32, TensorType, TokenType, Type
from .clauses import any_result, same_dim
from .examples import counting

COMBINE = {SUM: "add", MAX: "maximum", MIN: "minimum"}
"""The operation that folds the terms of an unreduced value."""

_COMBINE = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def mesh_record(mesh: Mesh) -> dict[str, Any]:
    """The mesh as an attribute has it."""
    found: dict[str, Any] = {"axes": tuple({"name": n, "size": size} for n, size in mesh.axes)}
    return {**found, "device_ids": mesh.device_ids} if mesh.device_ids else found


def mesh_of(record: Mapping[str, Any]) -> Mesh:
    """The mesh that `mesh_record` gives."""
    axes = tuple((axis["name"], axis["size"]) for axis in record["axes"])
    return Mesh(axes, tuple(record.get("device_ids") or ()))


def axis_text(axis: Axis) -> str:
    """How the attributes name an axis (`x`) or a part of one (`x:(1)2`)."""
    return axis.name if axis.whole else f"{axis.name}:({axis.before}){axis.size}"


def axis_of(text: str) -> Axis:
    """The axis that `axis_text` names; ValueError for a part without numbers."""
    name, mark, rest = text.partition(":(")
    if not mark:
        return Axis(name)
    before, _, size = rest.partition(")")
    return Axis(name, int(before), int(size))


Cuts = Sequence[Sequence[str]]  # axes that cut each dimension, major to minor
Window = tuple[slice, ...]


class GroupPiece(NamedTuple):
    """What the member of a group holds of a whole result: the block at `window`, or, of a value
    that is unreduced, its term number `term`, in the order in which terms are folded."""

    member: int
    term: int
    window: Window


class ManualLayout:
    """Where each device of a mesh stands, and which block of a tensor it holds."""

    def __init__(self, o: Op) -> None:
        self.mesh = mesh_of(o.mesh)
        self.manual = tuple(o.manual_axes)

    @property
    def count(self) -> int:
        return self.mesh.devices

    def cut(self, axes: Sequence[str]) -> list[Axis]:
        """The manual ones among the axes that cut a dimension."""
        return [axis for axis in map(axis_of, axes) if axis.name in self.manual]

    def parts(self, axes: Sequence[str]) -> int:
        return self.mesh.parts(self.cut(axes))

    def index(self, device: int, axes: Sequence[Axis]) -> int:
        """Which of the parts that these axes make the device holds."""
        devices = self.mesh.device_ids
        place = devices.index(device) if devices else device
        return self.mesh.index(axes, self.mesh.coordinates(place))

    def window(self, device: int, cuts: Cuts, shape: Sequence[int]) -> Window:
        """The block of a tensor of that shape that the device holds."""
        found = []
        for size, axes in zip(shape, cuts, strict=True):
            length, rest = divmod(size, self.parts(axes))
            if rest:
                raise ValueError(f"a dimension of {size} is cut into {self.parts(axes)} parts")
            start = self.index(device, self.cut(axes)) * length
            found.append(slice(start, start + length))
        return tuple(found)

    def group(self, device: int) -> tuple[int, ...]:
        """The devices that differ from this one in manual axes only."""
        chosen = [(name, 1, 0) for name in self.mesh.names if name in self.manual]
        if not chosen:
            return (device,)
        axes = [(name, self.mesh.size(Axis(name))) for name in self.mesh.names]
        groups = mesh_groups(axes, self.mesh.device_ids, chosen)
        return next(group for group in groups if device in group)

    def pending(self, sharding: Sharding | None) -> list[Axis]:
        """The manual axes over which a value is unreduced."""
        axes = () if sharding is None else sharding.unreduced
        return [axis for axis in axes if axis.name in self.manual]

    def pieces(
        self, device: int, cuts: Cuts, sharding: Sharding | None, shape: Sequence[int]
    ) -> list[GroupPiece]:
        """What the device's whole result of that shape is put together from: each piece once, from
        the device itself where it holds it, else from the first member of its group that does."""
        pending, pieces = self.pending(sharding), dict[tuple[Any, ...], GroupPiece]()
        terms: dict[Any, int] = {}  # block -> how many terms of it are known
        for member in self.group(device):
            window = self.window(member, cuts, shape)
            place = tuple(axis.start for axis in window)
            key = place, self.index(member, pending)
            if key not in pieces:
                pieces[key] = GroupPiece(member, terms.get(place, 0), window)
                terms[place] = terms.get(place, 0) + 1
            elif member == device:
                pieces[key] = pieces[key]._replace(member=member)
        return list(pieces.values())


def _is_mesh(o: Op) -> bool:
    try:
        layout = ManualLayout(o)
        mesh = layout.mesh
        for axes in (axes for cuts in (*o.in_shardings, *o.out_shardings) for axes in cuts):
            for axis in map(axis_of, axes):
                if mesh.size(Axis(axis.name)) % (axis.before * (axis.size or 1)):
                    return False
    except (AttributeError, KeyError, TypeError, ValueError, UserError):
        return False
    return set(layout.manual) <= set(mesh.names)


def _is_cut(o: Op, whole: Sequence[Type], parts: Sequence[Type], shardings: Sequence[Any]) -> bool:
    """Each of `parts` is the block of its tensor in `whole` that one device holds."""
    if not len(whole) == len(parts) == len(shardings):
        return False
    layout = ManualLayout(o)
    for kind, local, cuts in zip(whole, parts, shardings, strict=True):
        if isinstance(kind, TokenType):
            continue
        if not isinstance(kind, TensorType) or not isinstance(local, TensorType):
            return False
        if kind.element is not local.element or not kind.rank == local.rank == len(cuts):
            return False
        for size, part, axes in zip(kind.dims, local.dims, cuts, strict=True):
            if isinstance(part, int) and not same_dim(size, part * layout.parts(axes)):
                return False
    return True


def cuts_of(sharding: Sharding) -> tuple[tuple[str, ...], ...]:
    """The axes of each dim, as `in_shardings` and `out_shardings` have them."""
    return tuple(tuple(map(axis_text, dim.axes)) for dim in sharding.dims)


def is_plain(sharding: Sharding) -> bool:
    """Whether its cuts say all of it."""
    said = any(dim.open or dim.priority is not None for dim in sharding.dims)
    return not (said or sharding.replicated or sharding.unreduced)


def whole_shardings(o: Op) -> list[Sharding | None]:
    """Of the inputs, then of the results, what `shardings` says; None where that is nothing."""
    stated = o.shardings or ("",) * (len(o.in_shardings) + len(o.out_shardings))
    return [parse_sharding(text) if text else None for text in stated]


def _agree(o: Op) -> bool:
    if not o.shardings:
        return True
    try:
        stated, mesh = whole_shardings(o), mesh_of(o.mesh)
        for sharding, cuts in zip(stated, (*o.in_shardings, *o.out_shardings), strict=True):
            if sharding is not None:
                sharding.check(mesh, len(cuts))
                if cuts_of(sharding) != tuple(map(tuple, cuts)):
                    return False
    except UserError:
        return False
    return True


class ManualComputation(OpDefinition, name="sdy.manual_computation"):
    """results = body on every device of the mesh, each on its blocks of the inputs.

    in_shardings, out_shardings: for each tensor, for each dimension, the axes that cut it.
    shardings: of inputs and results, the whole sharding in Shardy's notation where that says more:
    open dims, priorities, axes that replicate, axes over which the value is unreduced.
    """

    pattern = "control"
    opaque = "the operations inside say what they read"
    uncut = "its values pass along edges between it and its region, which holds parts"
    communicates = True
    since = "1.2"
    regions = ("body",)
    inputs = variadic()
    mesh = attribute(dict)
    manual_axes = attribute(tuple)
    in_shardings = attribute(tuple)
    out_shardings = attribute(tuple)
    shardings = attribute(tuple, (), since="1.4")
    C0 = constraint("manual_axes and shardings name axes of the mesh", _is_mesh)
    C3 = constraint(
        "out_shardings has an entry for each result of body",
        lambda o: len(o.out_shardings) == len(o.regions[0].results),
    )
    C1 = constraint(
        "body takes the blocks of the inputs that in_shardings say",
        lambda o: _is_cut(
            o, [v.type for v in o.operands], o.regions[0].argument_types, o.in_shardings
        ),
    )
    C2 = constraint(
        "body gives the blocks of the results that out_shardings say",
        any_result(
            lambda o: _is_cut(o, o.result_types, o.regions[0].result_types, o.out_shardings)
        ),
    )
    C4 = constraint("shardings are empty or agree with in_shardings and out_shardings", _agree)

    def infer(self, o: Op) -> Sequence[Type]:
        layout, found = ManualLayout(o), []
        for kind, cuts in zip(o.regions[0].result_types, o.out_shardings, strict=False):
            if isinstance(kind, TensorType):
                dims = [d * layout.parts(a) for d, a in zip(kind.dims, cuts, strict=False)]
                kind = kind.with_dims(dims)
            found.append(kind)
        return found

    def devices(self, o: Op) -> int:
        return ManualLayout(o).count

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process, layout = context["process"], ManualLayout(o)
        grid = process.grid
        if (grid.replicas, grid.partitions) == (1, layout.count):
            return self._block(o, layout, arrays, process, context["run"])
        if grid.replicas * grid.partitions > 1:
            raise UserError(
                f"{o.place}{o.name}: its mesh has {layout.count} devices, but the program runs on "
                f"{grid.replicas} x {grid.partitions} processes; run it on one, or on 1 x "
                f"{layout.count}"
            )

        def task(device: Any, run: Any) -> Any:
            return self._block(o, layout, arrays, device, run)

        return context["spread"](layout.count, task)[0]

    def _block(self, o: Op, layout: ManualLayout, arrays: Any, process: Any, run: Any) -> Any:
        """The whole results, from this device's part and those of the others."""
        device = process.number
        stated = whole_shardings(o)
        inputs = []
        for x, cuts, sharding in zip(arrays, o.in_shardings, stated, strict=False):
            if x is not None:
                x = x[layout.window(device, cuts, x.shape)]
                # The first device holds an unreduced sum, the others add nothing to it.
                if sharding is not None and sharding.reduction == SUM:
                    x = np.zeros_like(x) if layout.index(device, layout.pending(sharding)) else x
            inputs.append(x)
        group = layout.group(device)
        parts = process.exchange(o, group, tuple(run(o.regions[0], inputs)))
        by_member = dict(zip(group, parts, strict=True))
        results: list[Any] = []
        for number, (cuts, sharding) in enumerate(
            zip(o.out_shardings, stated[len(o.in_shardings) :], strict=True)
        ):
            local = by_member[device][number]
            if local is None:
                results.append(None)
                continue
            shape = [
                size * layout.parts(axes) for size, axes in zip(local.shape, cuts, strict=True)
            ]
            whole = np.empty(shape, local.dtype)
            combine = COMBINE[SUM if sharding is None else sharding.reduction]
            for piece in layout.pieces(device, cuts, sharding, shape):
                part = by_member[piece.member][number]
                before = whole[piece.window]
                whole[piece.window] = _COMBINE[combine](before, part) if piece.term else part
                if piece.member != device:
                    process.count(o.name, part.nbytes)
            results.append(whole)
        return tuple(results)

    def cases(self) -> Iterator[Case]:
        def regions(build: BuildRegion) -> tuple[Region, ...]:
            return (build([TensorType((2, 3), F32)], lambda b, x: [b("add", x, x)]),)

        mesh = {"axes": ({"name": "x", "size": 1},)}
        cut = ((("x",), ()),)
        facts = {"mesh": mesh, "manual_axes": ("x",), "in_shardings": cut, "out_shardings": cut}
        yield Case("manual_computation", (counting(2, 3),), facts, regions=regions)
        said = ('<@mesh, [{"x", ?}, {?}p1]>', '<@mesh, [{"x"}, {?}], unreduced={"y"}>')
        wide = {"axes": ({"name": "x", "size": 1}, {"name": "y", "size": 1})}
        facts = {**facts, "mesh": wide, "manual_axes": ("x", "y"), "shardings": said}
        yield Case("manual_computation_whole", (counting(2, 3),), facts, regions=regions)


ROOMS: tuple[OpDefinition, ...] = (ManualComputation(),)

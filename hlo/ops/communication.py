"""Channels, streams, asynchronous operations, and programs that are written per device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError, UserError
from ..graph import Op, Region, Value
from ..groups import CROSS_PARTITION, CROSS_REPLICA, device_array, mesh_groups
from ..room import Case, OpDefinition, attribute, constraint, operand, variadic
from ..types import F32, TOKEN, FutureType, TensorType, TokenType, Type
from .clauses import any_result, is_tensor, same_dim, static_dims
from .collectives import zeros
from .control import same_types
from .examples import counting
from .rooted import pair_clauses

DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE = 1, 2, 3


def _checked(o: Op, values: Sequence[Any]) -> tuple[Any, ...]:
    """The payload of a recv or infeed, as its results say it must be; UserError otherwise."""
    kinds = [result.tensor for result in o.results[:-1]]
    arrays = [np.asarray(value) for value in values]
    fit = len(kinds) == len(arrays) and all(
        array.dtype == kind.dtype
        and array.ndim == kind.rank
        and all(map(same_dim, array.shape, kind.dims))
        for array, kind in zip(arrays, kinds, strict=True)
    )
    if not fit:
        got = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays) or "nothing"
        wanted = ", ".join(map(str, kinds)) or "nothing"
        raise UserError(f"{o.place}{o.name}: takes {wanted}, but is given {got}")
    return (*arrays, None)


class Communication(OpDefinition):
    """What operations with a token in and a token out have in common."""

    pattern = "opaque"
    opaque = "it speaks with the world outside"
    uncut = "the world outside has the whole of it"
    effects = True
    communicates = True
    since = "1.2"

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        raise UnsupportedError(
            f"{o.place}{o.name}: compiled programs neither send nor receive while they run; make "
            "the values inputs or results of the program, or interpret it"
        )

    def strategy(self, o: Op) -> str:
        return CROSS_PARTITION if o.channel_id > 0 else CROSS_REPLICA


def _token(o: Op) -> bool:
    """The last operand is a token, those before are tensors."""
    return o.operands[-1].type is TOKEN and all(map(is_tensor, o.operands[:-1]))


def _payload(o: Op) -> bool:
    """The last result is a token, those before are tensors."""
    return (
        len(o.results) > 0 and o.results[-1].type is TOKEN and all(map(is_tensor, o.results[:-1]))
    )


TOKEN_LAST = constraint("tensors, then a token", _token)
PAYLOAD = constraint("results are tensors, then a token", any_result(_payload))


class Send(Communication, name="send"):
    """Put inputs into channel channel_id, for the host or for the paired process."""

    inputs = variadic()
    token = operand()
    channel_id = attribute(int)
    channel_type = attribute(int, DEVICE_TO_DEVICE)
    is_host_transfer = attribute(bool, False)
    source_target_pairs = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1, C2, C3, C4 = pair_clauses()
    C5 = constraint(
        "channel_type is DEVICE_TO_HOST (2) for a host transfer, DEVICE_TO_DEVICE (1) otherwise",
        lambda o: o.channel_type == (DEVICE_TO_HOST if o.is_host_transfer else DEVICE_TO_DEVICE),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [TOKEN]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        context["process"].send(o, self.strategy(o), arrays[:-1])
        return (None,)


class Receive(Communication, name="recv"):
    """results = the next value in channel channel_id, and a token."""

    token = operand()
    channel_id = attribute(int)
    channel_type = attribute(int, DEVICE_TO_DEVICE)
    is_host_transfer = attribute(bool, False)
    source_target_pairs = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1, C2, C3, C4 = pair_clauses()
    C5 = constraint(
        "channel_type is HOST_TO_DEVICE (3) for a host transfer, DEVICE_TO_DEVICE (1) otherwise",
        lambda o: o.channel_type == (HOST_TO_DEVICE if o.is_host_transfer else DEVICE_TO_DEVICE),
    )
    C6 = PAYLOAD

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        found = context["process"].receive(o, self.strategy(o))
        if found is None:
            return (*(zeros(r.tensor, static_dims(r.tensor, o.name)) for r in o.results[:-1]), None)
        return _checked(o, found)


class Infeed(Communication, name="infeed"):
    """results = what the host feeds next, and a token."""

    token = operand()
    infeed_config = attribute(str, "")
    layout = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1 = PAYLOAD

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return _checked(o, context["process"].next_infeed(o))


class Outfeed(Communication, name="outfeed"):
    """Give inputs to the host."""

    inputs = variadic()
    token = operand()
    outfeed_config = attribute(str, "")
    C0 = TOKEN_LAST

    def infer(self, o: Op) -> Sequence[Type]:
        return [TOKEN]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        context["process"].outfeed.append(arrays[:-1])
        return (None,)


ASYNCHRONOUS = frozenset(
    {
        "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
        "collective_reduce", "exchange", "reduce_scatter", "slice", "dynamic_slice",
        "dynamic_update_slice",
    }
)  # fmt: skip


class AsyncStart(OpDefinition, name="async_start"):
    """result = the future of body(inputs), which runs beside what follows."""

    pattern = "control"
    opaque = "the operation inside says what it reads"
    uncut = "operations are cut before they are made asynchronous"
    effects = True
    communicates = True
    since = "1.2"
    regions = ("body",)
    inputs = variadic()
    C1 = constraint("body holds a single operation", lambda o: len(o.regions[0].ops) == 1)
    C2 = constraint(
        "the operation in body is a collective or a slice",
        lambda o: all(op.name in ASYNCHRONOUS for op in o.regions[0].ops),
    )
    C3 = constraint(
        "body takes the inputs, or nothing where it uses them itself",
        lambda o: (
            not o.regions[0].arguments
            or same_types([v.type for v in o.operands], o.regions[0].argument_types)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [FutureType(o.regions[0].result_types)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        run, body = context["run"], o.regions[0]
        inputs = arrays if body.arguments else ()
        return (context["process"].start(lambda: run(body, inputs)),)

    def flops(self, o: Op) -> float:
        return sum(inner.definition.flops(inner) for inner in o.regions[0].ops)


class AsyncDone(OpDefinition, name="async_done"):
    """results = the values of the future, once they are there."""

    pattern = "control"
    opaque = "a future has no elements"
    uncut = "operations are cut before they are made asynchronous"
    effects = True
    communicates = True
    since = "1.2"
    operand = operand()
    C1 = constraint("operand is a future", lambda o: isinstance(o.operands[0].type, FutureType))

    def infer(self, o: Op) -> Sequence[Type]:
        kind = o.operands[0].type
        assert isinstance(kind, FutureType)
        return kind.members

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(context["process"].finish(o, arrays[0]))


# A program written per device


def axes_of(mesh: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(name, size) of the mesh's axes, major to minor."""
    return [(axis["name"], axis["size"]) for axis in mesh["axes"]]


def axis_text(name: str, before: int = 1, size: int = 0) -> str:
    """How a sharding names an axis (`x`) or a part of one (`x:(1)2`)."""
    return f"{name}:({before}){size}" if size else name


def _part(text: str) -> tuple[str, int, int]:
    name, mark, rest = text.partition(":(")
    if not mark:
        return name, 1, 0
    before, _, size = rest.partition(")")
    return name, int(before), int(size)


Sharding = Sequence[Sequence[str]]  # axes that cut each dimension, major to minor


class _Layout:
    """Where each device of a mesh stands, and which block of a tensor it holds."""

    def __init__(self, o: Op) -> None:
        mesh = o.mesh
        self.axes = axes_of(mesh)
        self.sizes = dict(self.axes)
        self.devices = tuple(mesh.get("device_ids") or ())
        self.places = device_array(self.axes, self.devices)
        self.manual = tuple(o.manual_axes)

    @property
    def count(self) -> int:
        return self.places.size

    def cut(self, axes: Sequence[str]) -> list[tuple[str, int, int]]:
        """The manual axes (name, before, size) among those that cut a dimension."""
        parts = [_part(text) for text in axes]
        return [(n, b, s or self.sizes[n]) for n, b, s in parts if n in self.manual]

    def parts(self, axes: Sequence[str]) -> int:
        return math.prod(size for _, _, size in self.cut(axes))

    def block(self, device: int, axes: Sequence[str]) -> int:
        """Which part of a dimension cut by `axes` the device holds."""
        (place,) = np.argwhere(self.places == device)
        number = 0
        for name, before, size in self.cut(axes):
            index = int(place[[axis for axis, _ in self.axes].index(name)])
            below = self.sizes[name] // (before * size)
            number = number * size + index // below % size
        return number

    def window(self, device: int, sharding: Sharding, shape: Sequence[int]) -> tuple[slice, ...]:
        """The block of a tensor of that shape that the device holds."""
        found = []
        for size, axes in zip(shape, sharding, strict=True):
            length, rest = divmod(size, self.parts(axes))
            if rest:
                raise ValueError(f"a dimension of {size} is cut into {self.parts(axes)} parts")
            start = self.block(device, axes) * length
            found.append(slice(start, start + length))
        return tuple(found)

    def group(self, device: int) -> tuple[int, ...]:
        """The devices that differ from this one in manual axes only."""
        chosen = [(name, 1, 0) for name, _ in self.axes if name in self.manual]
        groups = mesh_groups(self.axes, self.devices, chosen) if chosen else ((device,),)
        return next(group for group in groups if device in group)


def _is_mesh(o: Op) -> bool:
    try:
        layout = _Layout(o)
        shardings = [*o.in_shardings, *o.out_shardings]
        for sharding in shardings:
            for axes in sharding:
                for name, before, size in map(_part, axes):
                    if name not in layout.sizes or layout.sizes[name] % (before * (size or 1)):
                        return False
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return set(layout.manual) <= set(layout.sizes)


def _cut(o: Op, whole: Sequence[Type], parts: Sequence[Type], shardings: Sequence[Any]) -> bool:
    """Each of `parts` is the block of its tensor in `whole` that one device holds."""
    if not len(whole) == len(parts) == len(shardings):
        return False
    layout = _Layout(o)
    for kind, local, sharding in zip(whole, parts, shardings, strict=True):
        if isinstance(kind, TokenType):
            continue
        if not isinstance(kind, TensorType) or not isinstance(local, TensorType):
            return False
        if kind.element is not local.element or not kind.rank == local.rank == len(sharding):
            return False
        for size, part, axes in zip(kind.dims, local.dims, sharding, strict=True):
            if isinstance(part, int) and not same_dim(size, part * layout.parts(axes)):
                return False
    return True


class ManualComputation(OpDefinition, name="sdy.manual_computation"):
    """results = body on every device of the mesh, each on its blocks of the inputs.

    in_shardings, out_shardings: for each tensor, for each dimension, the axes that cut it.
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
    C0 = constraint("manual_axes and shardings name axes of the mesh", _is_mesh)
    C3 = constraint(
        "out_shardings has an entry for each result of body",
        lambda o: len(o.out_shardings) == len(o.regions[0].results),
    )
    C1 = constraint(
        "body takes the blocks of the inputs that in_shardings say",
        lambda o: _cut(
            o, [v.type for v in o.operands], o.regions[0].argument_types, o.in_shardings
        ),
    )
    C2 = constraint(
        "body gives the blocks of the results that out_shardings say",
        any_result(lambda o: _cut(o, o.result_types, o.regions[0].result_types, o.out_shardings)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        layout, found = _Layout(o), []
        for kind, sharding in zip(o.regions[0].result_types, o.out_shardings, strict=False):
            if isinstance(kind, TensorType):
                dims = [d * layout.parts(a) for d, a in zip(kind.dims, sharding, strict=False)]
                kind = kind.with_dims(dims)
            found.append(kind)
        return found

    def devices(self, o: Op) -> int:
        return _Layout(o).count

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        process, layout = context["process"], _Layout(o)
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

    def _block(self, o: Op, layout: _Layout, arrays: Any, process: Any, run: Any) -> Any:
        """The whole results, from this device's part and those of the others."""
        device = process.number
        inputs = [
            None if x is None else x[layout.window(device, sharding, x.shape)]
            for x, sharding in zip(arrays, o.in_shardings, strict=True)
        ]
        group = layout.group(device)
        parts = process.exchange(o, group, tuple(run(o.regions[0], inputs)))
        return parts.once(o, lambda: self._assembled(o, layout, group, parts))

    def _assembled(self, o: Op, layout: _Layout, group: Sequence[int], parts: Any) -> Any:
        """The results of the group's members, put together."""
        results: list[Any] = []
        for number, sharding in enumerate(o.out_shardings):
            local = parts[0][number]
            if local is None:
                results.append(None)
                continue
            shape = [
                size * layout.parts(axes) for size, axes in zip(local.shape, sharding, strict=True)
            ]
            whole = np.empty(shape, local.dtype)
            for member, part in zip(group, parts, strict=True):
                whole[layout.window(member, sharding, shape)] = part[number]
            results.append(whole)
        return tuple(results)

    def cases(self) -> Iterator[Case]:
        def regions() -> tuple[Region, ...]:
            from ..build import build_region  # build imports the table of rooms

            return (build_region([TensorType((2, 3), F32)], lambda b, x: [b("add", x, x)]),)

        mesh = {"axes": ({"name": "x", "size": 1},)}
        cut = ((("x",), ()),)
        facts = {"mesh": mesh, "manual_axes": ("x",), "in_shardings": cut, "out_shardings": cut}
        yield Case("manual_computation", (counting(2, 3),), facts, regions=regions)


ROOMS: tuple[OpDefinition, ...] = (
    Send(), Receive(), Infeed(), Outfeed(), AsyncStart(), AsyncDone(), ManualComputation(),
)  # fmt: skip

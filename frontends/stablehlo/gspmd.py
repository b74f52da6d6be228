"""Exports made for XLA's older partitioner: shardings as text, programs per device as calls.

    {devices=[4,1,2]<=[8] last_tile_dim_replicate}

`Spelling` gives the shardings of a module as axes of one mesh, `spell` writes them as that text.
There `shard_map` is a call between custom calls `SPMDFullToShardShape` and `SPMDShardToFullShape`;
`regroup` makes each such call the `sdy.manual_computation` that it would be today, where it
understands the shardings.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding, ShardingReader
from .. import tree
from . import sdy

TO_SHARD, TO_FULL, SHARDING = "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding"
MESH = "gspmd"
"""The name of the mesh that old shardings are said over, or how such names begin."""

_NUMBERS = r"\[(\d+(?:,\d+)*)\]"
_TILED = re.compile(
    rf"\{{devices={_NUMBERS}(?:<={_NUMBERS}(?:T\((\d+(?:,\d+)*)\))?|(\d+(?:,\d+)*))"
    r"(?:( last_tile_dim_replicate)| last_tile_dims=\{(\w+(?:, ?\w+)*)\})?\}"
)
_MAXIMAL = re.compile(r"\{maximal device=(\d+)\}")
_NAMED = re.compile(r"\{mesh(\[[^]]*\])(?:, device_ids=\((?:([\d,]+)|[^)]*)\))?, (\[.*)\}")
_GROUP = re.compile(r" shard_(as|like) (\d+)\}")
MAXIMUM_DEVICES = 4096


class Tiles(NamedTuple):
    """Devices 0, 1, 2, ... in an array of `source` dimensions, which are then in the order
    `permutation`, and then cut into `parts` per tensor dimension. `kinds` says what the last parts
    are instead: replicated, manual or unreduced. `listed`: the devices where they have an order of
    their own."""

    parts: tuple[int, ...]
    source: tuple[int, ...]
    permutation: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    listed: tuple[int, ...] = ()

    @property
    def devices(self) -> int:
        return math.prod(self.source)


class _AxisCut(Exception):
    """An axis of the mesh has to be cut at this stride."""


def read_tiles(text: str) -> Tiles | None:
    """The tiles of `{devices=..}`; none (of no device) of `{replicated}`; None for another text."""
    if text == "{replicated}":
        return Tiles((), (), ())
    match = _TILED.fullmatch(text)
    if match is None:
        return None
    parts, source, order, listed = (_numbers(match[number]) for number in range(1, 5))
    if listed:
        source = (len(listed),)
    order = order or tuple(range(len(source)))
    count = math.prod(source)
    fits = count == math.prod(parts) and sorted(order) == list(range(len(source)))
    if not fits or not 0 < count <= MAXIMUM_DEVICES:
        return None
    natural = tuple(range(len(listed)))
    if listed and sorted(listed) != list(natural):
        return None
    kinds = ("replicated",) if match[5] else tuple(re.findall(r"\w+", match[6] or ""))
    if len(kinds) > len(parts) or not set(kinds) <= {"replicated", "manual", "unreduced"}:
        return None
    return Tiles(parts, source, order, kinds, () if listed == natural else listed)


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


Cuts = tuple[tuple[Axis, ...], ...]  # the axes that cut each part, major to minor


def common_mesh(all_tiles: Sequence[Tiles]) -> tuple[Mesh, list[Cuts]] | None:
    """A mesh whose axes say all these tiles, and for each the axes that cut each of its parts.

    None where there is no such mesh.
    """
    counts = {tiles.devices for tiles in all_tiles if tiles.parts}
    if len(counts) != 1 or any(tiles.listed for tiles in all_tiles):
        return None
    (count,) = counts
    strides = {1, count}
    for tiles in all_tiles:
        strides.update(itertools.accumulate(reversed(tiles.source), lambda a, b: a * b))
    while True:
        try:
            named = [_axes(tiles, sorted(strides)) for tiles in all_tiles]
            break
        except _AxisCut as cut:
            strides.add(cut.args[0])
        except ValueError:
            return None
    bounds = sorted(strides, reverse=True)
    axes = [(_axis(low).name, high // low) for high, low in itertools.pairwise(bounds)]
    return Mesh(tuple(axes)), named


def _axis(stride: int) -> Axis:
    return Axis(f"axis{stride}")


def _axes(tiles: Tiles, strides: Sequence[int]) -> Cuts:
    """The axes of each part, major to minor; _AxisCut where an axis is too large for that."""
    if not tiles.parts:
        return ()
    ends = list(itertools.accumulate(reversed(tiles.source), lambda a, b: a * b))[::-1]
    pending: list[tuple[int, int]] = []  # (stride, size), in the order of the tiles
    for place in tiles.permutation:
        low, high = ends[place] // tiles.source[place], ends[place]
        inside = [s for s in strides if low <= s <= high]
        if any(b % a for a, b in itertools.pairwise(inside)):
            raise ValueError("the axes do not fit")
        pending += [(a, b // a) for a, b in itertools.pairwise(inside)][::-1]
    found: list[tuple[Axis, ...]] = []
    for part in tiles.parts:
        axes: list[Axis] = []
        reached = 1
        while reached < part:
            stride, size = pending.pop(0)
            if reached * size > part:
                taken = part // reached
                if part % reached or size % taken:
                    raise ValueError("the axes do not fit")
                raise _AxisCut(stride * (size // taken))
            axes.append(_axis(stride))
            reached *= size
        found.append(tuple(axes))
    return tuple(found)


class Spelling:
    """The old shardings of one module as axes of meshes; `texts` are all that it has."""

    def __init__(self, texts: Iterable[str], partitions: int) -> None:
        every = {text: read_tiles(_ungrouped(text)) for text in texts}
        tiles = {text: found for text, found in every.items() if found is not None and found.parts}
        made = common_mesh(list(tiles.values()))
        rest = Mesh((("axis1", partitions),)) if partitions > 1 else Mesh(())
        self._replicated = (MESH, made[0] if made else rest)
        self._known: dict[str, tuple[str, Mesh, Cuts]] = {}
        for number, (text, found) in enumerate(tiles.items()):
            if made is not None:
                self._known[text] = (MESH, made[0], made[1][number])
            else:
                self._known[text] = (f"{MESH}_{number}", *_own_mesh(found))

    def sharding(
        self, text: str, rank: int, is_open: Sequence[int] = ()
    ) -> tuple[Sharding, Mesh] | None:
        """The sharding of a tensor of that rank, with its mesh; None for a text that says nothing
        of the kind. `is_open`: dims that propagation may cut further."""
        named = _NAMED.fullmatch(text)
        if named is not None:
            return _named(named)
        maximal = _MAXIMAL.fullmatch(text)
        if maximal is not None:
            device = int(maximal[1])
            dims = (DimSharding(),) * rank
            return Sharding(f"maximal_mesh_{device}", dims), Mesh((), (device,))
        tiles = read_tiles(_ungrouped(text))
        if tiles is None:
            return None
        name, mesh = self._replicated
        cuts: Cuts = ()
        if tiles.parts:
            name, mesh, cuts = self._known[text]
        last = len(cuts) - len(tiles.kinds)
        unreduced = [
            axis
            for kind, axes in zip(tiles.kinds, cuts[last:], strict=True)
            for axis in axes
            if kind == "unreduced"
        ]
        axes_of_dims = (*cuts[:last], *[()] * (rank - last))
        dims = tuple(DimSharding(a, i in is_open) for i, a in enumerate(axes_of_dims))
        return Sharding(name, dims, (), tuple(unreduced)), mesh


def _own_mesh(tiles: Tiles) -> tuple[Mesh, Cuts]:
    """A mesh with an axis for each part, its devices in the order of the tiles."""
    devices = tiles.listed
    if not devices:
        strides = [math.prod(tiles.source[i + 1 :]) for i in range(len(tiles.source))]
        ranges = [range(tiles.source[place]) for place in tiles.permutation]
        ordered = [strides[place] for place in tiles.permutation]
        places = itertools.product(*ranges)
        devices = tuple(sum(i * s for i, s in zip(p, ordered, strict=True)) for p in places)
    axes = tuple((f"axis{number}", size) for number, size in enumerate(tiles.parts))
    cuts = tuple((Axis(name),) if size > 1 else () for name, size in axes)
    return Mesh(axes, devices), cuts


def _named(match: re.Match[str]) -> tuple[Sharding, Mesh]:
    """HLO's `{mesh['a'=2], [{'a'}, {?}], replicated={..}}`: Shardy's notation but for quotes and
    the place of the mesh."""
    axes, devices, dims = match.groups()
    ids = f", device_ids=[{devices}]" if devices else ""
    found: list[Mesh] = []

    def inline(mesh: Mesh) -> str:
        found.append(mesh)
        return sdy.inline_name(mesh)

    reader = ShardingReader(f"<mesh<{axes}{ids}>, {dims}>".replace("'", '"'), inline)
    sharding = reader.sharding()
    reader.end()
    return sharding, found[0]


def _ungrouped(text: str) -> str:
    return _GROUP.sub("}", text)


def group_of(text: str) -> int | None:
    """The number of the group whose shardings are alike, in `{unknown shard_as 2}`."""
    match = _GROUP.search(text)
    return None if match is None else int(match[2])


def is_read(text: str) -> bool:
    """Whether `Spelling.sharding` understands the text."""
    tiled = read_tiles(_ungrouped(text)) is not None
    return tiled or bool(_MAXIMAL.fullmatch(text) or _NAMED.fullmatch(text))


def members(text: str, count: int) -> list[str]:
    """The shardings of `count` results: those of a tuple's members, or one for all of them; with a
    count of 0 as many as there are."""
    if text.startswith("{{"):
        inner, depth, start, found = text[1:-1], 0, 0, []
        for place, mark in enumerate(inner):
            depth += (mark in "{[(") - (mark in "}])")
            if mark == "," and not depth:
                found.append(inner[start:place].strip())
                start = place + 1
        return [*found, inner[start:].strip()]
    return [text] * (count or 1)


def unspecified(text: str) -> tuple[int, ...]:
    """The open dims in a custom call's `unspecified_dims=[0,1]`."""
    match = re.fullmatch(rf"unspecified_dims={_NUMBERS}", text)
    return _numbers(match[1]) if match else ()


def spell(sharding: Sharding, mesh: Mesh) -> str:
    """The sharding in the old text, which has no word for open dims and priorities."""
    if not mesh.axes:
        return f"{{maximal device={mesh.device_ids[0]}}}" if mesh.device_ids else "{replicated}"
    parts = [mesh.parts(dim.axes) for dim in sharding.dims]
    kinds: list[str] = []
    if sharding.unreduced:
        parts.append(mesh.parts(sharding.unreduced))
        kinds.append("unreduced")
    cuts = [axis for dim in sharding.dims for axis in dim.axes] + list(sharding.unreduced)
    if math.prod(parts) == 1:
        return "{replicated}"
    atoms = _atoms(mesh, cuts)
    order = [atom for axis in cuts for atom in atoms if _within(mesh, atom, axis)]
    order += [atom for atom in atoms if atom not in order]
    rest = mesh.devices // math.prod(parts)
    if rest > 1:
        parts.append(rest)
        kinds.append("replicated")
    text = f"devices=[{','.join(map(str, parts))}]{_devices(mesh, atoms, order)}"
    if kinds == ["replicated"]:
        text += " last_tile_dim_replicate"
    elif kinds:
        text += f" last_tile_dims={{{', '.join(kinds)}}}"
    return f"{{{text}}}"


def _atoms(mesh: Mesh, cuts: Sequence[Axis]) -> list[Axis]:
    """The axes of the mesh, major to minor, in the pieces that these cuts make of them."""
    found: list[Axis] = []
    for name in mesh.names:
        size = mesh.size(Axis(name))
        bounds = {1, size}.union(*(mesh.bounds(axis) for axis in cuts if axis.name == name))
        found += [Axis(name, low, high // low) for low, high in itertools.pairwise(sorted(bounds))]
    return found


def _within(mesh: Mesh, atom: Axis, axis: Axis) -> bool:
    (low, high), (first, end) = mesh.bounds(axis), mesh.bounds(atom)
    return atom.name == axis.name and low <= first and end <= high


def _devices(mesh: Mesh, atoms: Sequence[Axis], order: Sequence[Axis]) -> str:
    """`<=[4,2]T(1,0)`, neighbours that stay neighbours as one; the devices themselves where the
    mesh has an order of its own."""
    if mesh.device_ids:
        sizes = [atom.size for atom in atoms]
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        places = itertools.product(*(range(atom.size) for atom in order))
        ordered = [strides[atoms.index(atom)] for atom in order]
        flat = (sum(i * s for i, s in zip(place, ordered, strict=True)) for place in places)
        return ",".join(str(mesh.device_ids[i]) for i in flat)
    runs: list[list[int]] = []
    for place in map(atoms.index, order):
        if runs and runs[-1][-1] + 1 == place:
            runs[-1].append(place)
        else:
            runs.append([place])
    in_order = sorted(runs)
    sizes = [math.prod(atoms[place].size for place in run) for run in in_order]
    text = f"<=[{','.join(map(str, sizes))}]"
    if len(runs) > 1:
        text += f"T({','.join(str(in_order.index(run)) for run in runs)})"
    return text


def regroup(module: tree.Operation) -> None:
    """Make every call between the custom calls a manual computation, in place."""
    regions = [region for op in tree.walk(module) for region in op.regions]
    if any(_target(op) == TO_SHARD for region in regions for op in region.operations):
        for region in regions:
            _regroup_region(region)


def _target(operation: tree.Operation | None) -> str:
    if operation is None or operation.name != "stablehlo.custom_call":
        return ""
    return str(operation.attributes.get("call_target_name", ""))


def _regroup_region(region: tree.Region) -> None:
    made = {value: op for op in region.operations for value in op.results}
    for call in [op for op in region.operations if op.name == "func.call"]:
        if any(_target(made.get(value)) == TO_SHARD for value in call.operands):
            _regroup_call(region, call, made)


def _regroup_call(
    region: tree.Region, call: tree.Operation, made: dict[tree.TreeValue, tree.Operation]
) -> None:
    """Replace the call and what stands around it; leave it where that is not understood."""
    inputs: list[tuple[tree.TreeValue, Tiles | None]] = []
    gone: list[tree.Operation] = [call]
    for value in call.operands:
        entry = made.get(value)
        if entry is None or _target(entry) != TO_SHARD:
            inputs.append((value, read_tiles("{replicated}")))
            continue
        (full,) = entry.operands
        inputs.append((full, _stated(made.get(full))))
        gone.append(entry)
    outputs: list[tuple[tree.TreeValue, Tiles | None]] = []
    for value in call.results:
        chain = list(_chain(region, value))
        if not chain:
            outputs.append((tree.TreeValue(value.type), read_tiles("{replicated}")))
            continue
        gone += chain
        outputs.append((chain[-1].results[0], _stated(chain[-1])))
    tiles = [found for _, found in (*inputs, *outputs)]
    known = [found for found in tiles if found is not None]
    shared = common_mesh(known) if len(known) == len(tiles) else None
    if shared is None:
        return
    mesh, cuts = shared
    name = sdy.inline_name(mesh)
    ranks = [len(getattr(value.type, "shape", ())) for value, _ in (*inputs, *outputs)]
    axes = [
        [DimSharding(cut[:rank][i] if i < len(cut) - len(one.kinds) else ()) for i in range(rank)]
        for cut, rank, one in zip(cuts, ranks, known, strict=True)
    ]
    shardings = [sdy.sharding(Sharding(name, tuple(dims)), {name: mesh}) for dims in axes]
    parameters = [tree.TreeValue(value.type) for value in call.operands]
    results = [tree.TreeValue(value.type) for value in call.results]
    inner = tree.Operation(call.name, list(parameters), results, dict(call.attributes))
    inner.location = call.location
    body = tree.Region(parameters, [inner, tree.Operation("sdy.return", list(results))])
    facts = {
        "manual_axes": sdy.manual_axes(mesh.names),
        "in_shardings": sdy.per_value(shardings[: len(inputs)]),
        "out_shardings": sdy.per_value(shardings[len(inputs) :]),
    }
    whole = tree.Operation(
        "sdy.manual_computation", [v for v, _ in inputs], [v for v, _ in outputs], facts, [body]
    )
    whole.location = call.location
    place = region.operations.index(call)
    region.operations[place] = whole
    region.operations[:] = [op for op in region.operations if op not in gone]


def _stated(operation: tree.Operation | None) -> Tiles | None:
    """The sharding that an annotation states; a value without one says nothing."""
    if operation is None or _target(operation) not in (SHARDING, TO_FULL):
        return None
    return read_tiles(str(operation.attributes.get("mhlo.sharding", "")))


def _chain(region: tree.Region, value: tree.TreeValue) -> Iterator[tree.Operation]:
    """The annotations from a call's result to the custom call that makes it whole."""
    found: list[tree.Operation] = []
    while True:
        users = [op for op in region.operations if value in op.operands]
        if len(users) != 1 or _target(users[0]) not in (SHARDING, TO_FULL):
            return
        found.append(users[0])
        if _target(users[0]) == TO_FULL:
            yield from found
            return
        (value,) = users[0].results

"""Which devices of a mesh hold which part of a tensor, in Shardy's words and grammar.

    mesh      <["data"=2, "model"=?]>
    sharding  <@mesh, [{"data"}, {"model", ?}p1, {}], replicated={"x"}, unreduced={"y":(1)2}>

A mesh has axes, major to minor, whose sizes may be open (`?`). A sharding names for each dim the
axes that cut it, major to minor; `?` says that propagation may append axes (the dim is open), `p1`
when (user priority, 0 first). No axis cuts two dims. `replicated` axes may not be used by
propagation; over `unreduced` axes the value is the sum of what the devices hold (`max{..}`,
`min{..}`: their largest, their least). `"y":(2)4` is a part of an axis: y seen as [2, 4, rest], the
middle one.

The grammar is that of the Shardy dialect's attributes (openxla/shardy); the device at place `i` of
a mesh's grid, row-major, is `i`, unless `device_ids` lists another.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

from .errors import UserError

_Item = TypeVar("_Item")

SUM, MAX, MIN = "sum", "max", "min"
REDUCTIONS = (SUM, MAX, MIN)


class Axis(NamedTuple):
    """A mesh axis, or a part of one: the middle of the axis seen as [before, size, rest].

    `size` is 0 for the whole axis, whatever its size in a mesh.
    """

    name: str
    before: int = 1
    size: int = 0

    @property
    def whole(self) -> bool:
        return self.size == 0

    def __str__(self) -> str:
        return _quoted(self.name) + ("" if self.whole else f":({self.before}){self.size}")

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Mesh:
    """Devices as a grid with named axes, (name, size) each; a size of None is open.

    `device_ids`: the device at each place of the grid in row-major order; empty for 0, 1, 2, ...
    A mesh without axes is one device.
    """

    axes: tuple[tuple[str, int | None], ...]
    device_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        for name, size in self.axes:
            if names.count(name) > 1:
                raise UserError(f"the mesh {self} has two axes '{name}'")
            if size is not None and size < 1:
                raise UserError(f"axis '{name}' of the mesh {self} must have a size of at least 1")
        if self.device_ids and self.axes:
            wanted = self.devices if self.static else len(self.device_ids)
            if sorted(self.device_ids) != list(range(wanted)):
                raise UserError(f"device_ids of the mesh {self} must order {wanted} devices")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def static(self) -> bool:
        """Whether every axis has a size."""
        return all(size is not None for _, size in self.axes)

    @property
    def devices(self) -> int:
        """How many devices it has; UserError while a size is open."""
        return math.prod(self.size(Axis(name)) for name in self.names)

    def size(self, axis: Axis) -> int:
        """How many parts the axis, or the part of one, makes; UserError for a size that is open."""
        if not axis.whole:
            return axis.size
        for name, size in self.axes:
            if name == axis.name:
                if size is None:
                    raise UserError(f"the size of mesh axis '{name}' is open; give it one")
                return size
        raise UserError(f"the mesh {self} has no axis '{axis.name}'{_near(axis.name, self.names)}")

    def parts(self, axes: Iterable[Axis]) -> int:
        """Into how many parts these axes cut together."""
        return math.prod(map(self.size, axes))

    def bounds(self, axis: Axis) -> tuple[int, int]:
        """(before, before * size): its place within the whole axis; (1, size) for a whole one."""
        return axis.before, axis.before * self.size(axis)

    def part(self, name: str, low: int, high: int) -> Axis:
        """The axis between these bounds; the whole one where they are its own."""
        if low == 1 and high == self.size(Axis(name)):
            return Axis(name)
        return Axis(name, low, high // low)

    def merged(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The same axes: neighbours that continue one another joined, parts of size 1 left out."""
        found: list[Axis] = []
        for axis in axes:
            low, high = self.bounds(axis)
            if low == high:
                continue
            if found and found[-1].name == axis.name:
                start, end = self.bounds(found[-1])
                if end == low:
                    found[-1] = self.part(axis.name, start, high)
                    continue
            found.append(self.part(axis.name, low, high))
        return tuple(found)

    def overlap(self, one: Axis, other: Axis) -> bool:
        """Whether they share devices' coordinates: one axis, at bounds that intersect."""
        if one.name != other.name:
            return False
        (a, b), (c, d) = self.bounds(one), self.bounds(other)
        return max(a, c) < min(b, d)

    def coordinates(self, place: int) -> dict[str, int]:
        """Where a place of the grid (row-major) lies along each axis."""
        found: dict[str, int] = {}
        for name in reversed(self.names):
            place, found[name] = divmod(place, self.size(Axis(name)))
        return found

    def index(self, axes: Sequence[Axis], coordinates: dict[str, int]) -> int:
        """Which of the parts that these axes cut the device at these coordinates holds."""
        index = 0
        for axis in axes:
            size = self.size(axis)
            inner = self.size(Axis(axis.name)) // (axis.before * size)
            index = index * size + coordinates[axis.name] // inner % size
        return index

    def __str__(self) -> str:
        axes = ", ".join(f"{_quoted(n)}={'?' if s is None else s}" for n, s in self.axes)
        ids = f", device_ids=[{', '.join(map(str, self.device_ids))}]" if self.device_ids else ""
        return f"<[{axes}]{ids}>"


@dataclass(frozen=True)
class DimSharding:
    """The axes that cut one dim, major to minor; `open`: propagation may append to them."""

    axes: tuple[Axis, ...] = ()
    open: bool = False
    priority: int | None = None

    def __str__(self) -> str:
        parts = [*map(str, self.axes), *(["?"] if self.open else [])]
        priority = "" if self.priority is None else f"p{self.priority}"
        return "{" + ", ".join(parts) + "}" + priority


@dataclass(frozen=True)
class Sharding:
    """How a tensor lies on the mesh that the module has under this name."""

    mesh: str
    dims: tuple[DimSharding, ...]
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    reduction: str = SUM

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise UserError(f"a value is unreduced by one of {', '.join(REDUCTIONS)}")
        whole: dict[str, int] = {}
        for axis in self.axes:
            whole[axis.name] = whole.get(axis.name, 0) + 1
        for axis in self.axes:
            if axis.whole and whole[axis.name] > 1:
                raise UserError(f"the sharding {self} uses axis '{axis.name}' twice")

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.dims, self.replicated, self.unreduced, self.reduction))

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        """All that it names: those of the dims, replicated ones, unreduced ones."""
        cuts = tuple(axis for dim in self.dims for axis in dim.axes)
        return cuts + self.replicated + self.unreduced

    @property
    def rank(self) -> int:
        return len(self.dims)

    def check(self, mesh: Mesh, rank: int) -> None:
        """UserError for axes that the mesh lacks or that overlap, and for another rank."""
        if len(self.dims) != rank:
            raise UserError(f"the sharding {self} has {len(self.dims)} dims, its tensor {rank}")
        for axis in self.axes:
            if axis.name not in mesh.names:
                near = _near(axis.name, mesh.names)
                raise UserError(f"the sharding {self} names no axis of its mesh {mesh}{near}")
            whole = dict(mesh.axes)[axis.name]
            if whole is not None and not axis.whole and whole % (axis.before * axis.size):
                raise UserError(f"{axis} in {self} is no part of an axis of size {whole}")
        if mesh.static:
            for number, axis in enumerate(self.axes):
                if any(mesh.overlap(axis, other) for other in self.axes[:number]):
                    raise UserError(f"the sharding {self} uses axis '{axis.name}' twice")

    def local_dims(self, mesh: Mesh, dims: Sequence[int]) -> tuple[int, ...]:
        """The dims of one device's part, the largest one's where a dim does not divide."""
        return tuple(
            -(-size // mesh.parts(dim.axes)) for size, dim in zip(dims, self.dims, strict=True)
        )

    def __str__(self) -> str:
        text = f"{symbol(self.mesh)}, [{', '.join(map(str, self.dims))}]"
        if self.replicated:
            text += f", replicated={{{', '.join(map(str, self.replicated))}}}"
        if self.unreduced:
            kind = "" if self.reduction == SUM else self.reduction
            text += f", unreduced={kind}{{{', '.join(map(str, self.unreduced))}}}"
        return f"<{text}>"


def replicated(mesh: str, rank: int) -> Sharding:
    """Every device holds all of the tensor."""
    return Sharding(mesh, (DimSharding(),) * rank)


def opened(mesh: str, rank: int) -> Sharding:
    """Nothing is said: propagation may cut every dim."""
    return Sharding(mesh, (DimSharding(open=True),) * rank)


def parse_sharding(text: str) -> Sharding:
    """What `str` of a sharding writes, or Shardy's `#sdy.sharding<..>`; UserError otherwise."""
    reader = ShardingReader(text.removeprefix("#sdy.sharding"))
    found = reader.sharding()
    reader.end()
    return found


def parse_mesh(text: str) -> Mesh:
    """What `str` of a mesh writes, or Shardy's `#sdy.mesh<..>`; UserError otherwise."""
    reader = ShardingReader(text.removeprefix("#sdy.mesh"))
    found = reader.mesh()
    reader.end()
    return found


_STRING = r'"((?:[^"\\]|\\.)*)"'
_TOKEN = re.compile(rf"\s*(?:{_STRING}|(-?\d+)|@{_STRING}|@([\w.$-]+)|([A-Za-z]\w*)|(\S))")
_KINDS = ("string", "number", "symbol", "symbol", "word", "mark")


class ShardingReader:
    """A cursor in Shardy's notation; also for lists of shardings and axes in other attributes.

    `inline`: called with a mesh that stands in a sharding in place of a name; gives its name.
    """

    def __init__(self, text: str, inline: Callable[[Mesh], str] | None = None) -> None:
        self.text, self.inline = text, inline
        self.tokens: list[tuple[str, str]] = []
        for match in _TOKEN.finditer(text):
            if match.lastindex is not None and match[0].strip():
                self.tokens.append((_KINDS[match.lastindex - 1], match[match.lastindex]))
        self.position = 0

    def at(self, mark: str) -> bool:
        here = self.position
        return here < len(self.tokens) and self.tokens[here] in (("mark", mark), ("word", mark))

    def take(self, mark: str) -> bool:
        found = self.at(mark)
        self.position += found
        return found

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self.fail(f"'{mark}'")

    def next(self, kind: str) -> str:
        if self.position >= len(self.tokens) or self.tokens[self.position][0] != kind:
            self.fail(f"a {kind}")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def items(self, close: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """`item, item, ...` up to `close`."""
        found: list[_Item] = []
        while not self.take(close):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)

    def end(self) -> None:
        if self.position < len(self.tokens):
            self.fail("its end")

    def fail(self, wanted: str) -> NoReturn:
        at = self.tokens[self.position][1] if self.position < len(self.tokens) else "its end"
        raise UserError(
            f"the sharding '{self.text[:120]}' cannot be read: {wanted} is wanted at '{at}'"
        )

    def mesh(self) -> Mesh:
        """`<["x"=4, "y"=?], device_ids=[..]>`"""
        self.expect("<")
        self.expect("[")
        axes, devices = self.items("]", self._sized_axis), ()
        if self.take(","):
            self.expect("device_ids")
            self.expect("=")
            self.expect("[")
            devices = self.items("]", lambda: int(self.next("number")))
        self.expect(">")
        return Mesh(axes, devices)

    def _sized_axis(self) -> tuple[str, int | None]:
        name = unquoted(self.next("string"))
        self.expect("=")
        return name, None if self.take("?") else int(self.next("number"))

    def axis(self) -> Axis:
        """`"x"` or `"x":(1)2`"""
        name = unquoted(self.next("string"))
        if not self.take(":"):
            return Axis(name)
        self.expect("(")
        before = int(self.next("number"))
        self.expect(")")
        size = int(self.next("number"))
        if before < 1 or size < 2:
            self.fail("a part of at least 2, of an axis cut by at least 1,")
        return Axis(name, before, size)

    def axes(self) -> tuple[Axis, ...]:
        """`{"x", "y"}`"""
        self.expect("{")
        return self.items("}", self.axis)

    def dim(self) -> DimSharding:
        """`{"x", "y":(1)2, ?}p1`"""
        axes: list[Axis] = []
        self.expect("{")
        opens = False
        while not self.take("}"):
            if opens or axes and not self.take(","):
                self.fail("'}'")
            if self.take("?"):
                opens = True
            else:
                axes.append(self.axis())
        priority = None
        if self.position < len(self.tokens):
            kind, word = self.tokens[self.position]
            if kind == "word" and re.fullmatch(r"p\d+", word):
                self.position, priority = self.position + 1, int(word[1:])
        return DimSharding(tuple(axes), opens, priority)

    def sharding(self) -> Sharding:
        """`<@mesh, [{..}, ..], replicated={..}, unreduced=max{..}>`"""
        self.expect("<")
        if self.inline is not None and self.take("mesh"):
            mesh = self.inline(self.mesh())
        else:
            mesh = unquoted(self.next("symbol"))
        self.expect(",")
        self.expect("[")
        dims = self.items("]", self.dim)
        whole: tuple[Axis, ...] = ()
        pending: tuple[Axis, ...] = ()
        reduction = SUM
        while self.take(","):
            if self.take("replicated"):
                self.expect("=")
                whole = self.axes()
            else:
                self.expect("unreduced")
                self.expect("=")
                if not self.at("{"):
                    reduction = self.next("word")
                pending = self.axes()
        self.expect(">")
        return Sharding(mesh, dims, whole, pending, reduction)


def symbol(name: str) -> str:
    """`@name`, as Shardy's notation names a mesh."""
    plain = re.fullmatch(r"[A-Za-z_][\w$.]*", name, re.ASCII)
    return f"@{name}" if plain else f"@{_quoted(name)}"


def unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _near(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean '{close[0]}'?" if close else f"; it has {', '.join(names) or 'none'}"

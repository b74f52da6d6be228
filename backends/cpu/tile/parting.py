"""The driver's second version of a body, on the parts of tiles that lie inside (parts.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....hlo.deciding import current, decided_by
from ....hlo.graph import Region, Value
from ....hlo.offsets import Offset
from ....hlo.symbols import Atom, Dim, SymbolicDim, symbols_of
from ....optimizer.tiles.steps import BodyBlock, Cutter
from ....optimizer.windows import unshaped
from ... import llvm
from .control import fresh
from .nests import EMITTERS, view_of
from .parts import PartialDim, parts_of
from .scope import BlockScope, Finish, ValuePlace
from .windows import WindowFacts

if TYPE_CHECKING:
    from .driver import Driver


class Undecided(Exception):
    """Code of a part would be for some of its sizes only."""


class Parting:
    """The version of one kernel_call on parts, if there is one."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.f = driver, driver.f
        found = self.found = parts_of(driver.kernel, driver.windows)
        self.values: dict[str, llvm.Value] = {}  # of parts, where the code stands
        if found is None:
            return
        with decided_by(found.decisions):
            self.windows = WindowFacts(found.kernel)
            self.cutter = Cutter(found.kernel, EMITTERS, idle=found.idle)
            self.blocks = {block.region: block for block in _blocks(self.cutter.cut())}
        # Whether whole tiles would save nothing: no window, no mask of parts has to be looked at.
        self.exact = all(
            found.inside.issuperset(accesses) for accesses in self.windows.tests.values()
        ) and all(found.idle.issuperset(masks) for masks in self.windows.masks.values())
        self.windows.tests.clear()
        self.windows.masks.clear()
        self.originals = {new: old for old, new in found.regions.items()}
        old, new = driver.region.arguments, found.kernel.regions[0].arguments
        twins = dict(zip(old, new, strict=True))
        driver.shared |= {(twins[a], twins[b]) for a, b in driver.shared}
        self.memory = twins

    def decides(self, size: Dim) -> bool:
        """Whether a size depends on how much of a tile lies inside."""
        if self.found is None:
            return False
        return any(repr(part.symbol) in symbols_of(size) for part in self.found.parts)

    def enter(self, region: Region, scope: BlockScope) -> None:
        """A region of either version begins: the parts that are known there get their values."""
        if self.found is None:
            return
        old = self.originals.get(region, region)
        for part in self.found.parts:
            if part.home is old:
                self.values[repr(part.symbol)] = self._value(part, scope, old is not region)

    def _value(self, part: PartialDim, scope: BlockScope, twin: bool) -> llvm.Value:
        f, offset = self.f, part.offset
        if twin:
            assert self.found is not None
            values = self.found.values
            terms = tuple((values[variable], factor) for variable, factor in offset.terms)
            offset = Offset(offset.constant, terms)
        left = f.sub(f.constant("i64", part.bound), self.driver.affine(offset, scope))
        return f.min(left, part.size)

    def size(self, size: Dim) -> llvm.Value:
        """A size as i64."""
        f = self.f
        if isinstance(size, int) or not self.decides(size):
            return f.constant("i64", size)
        total = f.constant("i64", 0)
        for monomial, coefficient in size.terms:
            term = f.constant("i64", coefficient)
            for atom in monomial:
                term = f.mul(term, self._atom(atom))
            total = f.add(total, term)
        return total

    def _atom(self, atom: Atom) -> llvm.Value:
        f = self.f
        if not atom.function:
            known = self.values.get(atom.text)
            return known if known is not None else f.constant("i64", SymbolicDim(atom.text))
        first, *others = map(self.size, atom.operands)
        if atom.function == "//":
            return self._floor(first, others[0])
        for other in others:
            first = f.max(first, other) if atom.function == "max" else f.min(first, other)
        return first

    def _floor(self, a: llvm.Value, b: llvm.Value) -> llvm.Value:
        """a // b, rounded down."""
        f = self.f
        quotient = f.div(a, b)
        rest = f.sub(a, f.mul(quotient, b))
        below = f.land(
            f.compare("ne", rest, 0),
            f.compare("ne", f.compare("slt", rest, 0), f.compare("slt", b, 0)),
        )
        return f.sub(quotient, f.cast("zext", below, "i64"))

    def has(self, region: Region) -> bool:
        """Whether the body of a region is there in this version."""
        return self.found is not None and region in self.found.regions

    def suffices(self, region: Region) -> bool:
        """Whether a version of whole tiles beside this one of a region would be no faster."""
        return self.has(region) and self.exact

    def run(self, block: BodyBlock, scope: BlockScope, finish: Finish) -> None:
        """The block in this version; `scope` and `finish` are those of the other one."""
        found, driver = self.found, self.driver
        assert found is not None
        other = self.blocks[found.regions[block.region]]
        inner = self._translated(scope, other)

        def end(inner: BlockScope) -> None:
            for value in block.region.results:
                self._back(value, inner, scope)

        before = driver.windows, driver.cutter
        driver.windows, driver.cutter = self.windows, self.cutter
        driver.memory.update((new, driver.memory[old]) for old, new in self.memory.items())
        with decided_by(found.decisions):
            driver.steps(other, inner, found.inside, False, end)
        driver.windows, driver.cutter = before
        finish(scope)
        self._keep_guards()

    def _keep_guards(self) -> None:
        assert self.found is not None
        decisions = current()
        for guard in self.found.decisions.guards:
            if any(self.decides(SymbolicDim(name)) for name in guard.symbols):
                raise Undecided(f"{guard} ({guard.origin})")
            assert decisions is not None
            decisions.guards.setdefault(guard)

    def _translated(self, scope: BlockScope, other: BodyBlock) -> BlockScope:
        """What is known, under this version's values. Tiles that are there are whole ones: their
        parts are all of them."""
        assert self.found is not None
        values = self.found.values
        inner = BlockScope()
        for old, place in list(scope.places.items()):
            if old in values:
                inner.places[values[old]] = self._seen(old, place, scope)
        for old, register in scope.registers.items():
            if old in values:
                inner.registers[values[old]] = register
        for old, place in scope.wanted.items():
            if old in values and fresh(other, values[old]):
                inner.wanted[values[old]] = place
        return inner

    def _seen(self, old: Value, place: ValuePlace, scope: BlockScope) -> ValuePlace:
        """Where a value lies; a window of memory has this version's sizes."""
        if place.view is None:
            return place
        assert self.found is not None
        window = unshaped(old)
        if window.op is None or window.op.name != "tile_load":
            return ValuePlace(self.driver.dense(old, scope))
        sizes = self.found.values[window].dims
        return place._replace(view=view_of(sizes, window.op.operands[0].dims))

    def _back(self, old: Value, inner: BlockScope, scope: BlockScope) -> None:
        """A result of this version as the other one's."""
        assert self.found is not None
        driver, new = self.driver, self.found.values[old]
        if new in driver.cutter.native:
            scope.registers[old] = driver.scalar(new, inner)
            return
        target = scope.wanted.get(old)
        if target is not None and inner.places.get(new) == target:
            scope.places[old] = target
            return
        source = driver.dense(new, inner)
        if target is None:  # a window has less room behind it than a whole tile needs
            target = ValuePlace(driver.take(new, inner))
        driver.copy(target.pointer, source, new)
        scope.places[old] = target


def _blocks(block: BodyBlock) -> Iterator[BodyBlock]:
    yield block
    for step in block.steps:
        for inner in step.blocks:
            yield from _blocks(inner)

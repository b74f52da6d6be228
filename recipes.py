"""Where the arrays of a kept program come from: weights, operations on them, or the entry's data.

A kept program belongs to a module, not to the data of its weights: what the compiler made of them
is kept as the operations that make it, and made again, for the weights of today, when somebody
first asks for one of these arrays. Only what follows from no weight is kept as data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .hlo.derivation import derived
from .hlo.graph import Function, Module, Weight
from .hlo.wire import decode, encode
from .optimizer.meanwhile import computed

Array = np.ndarray[Any, Any]
Place = tuple[str, Any]  # ("source", name), ("derived", number) or ("kept", key)


class Unknown(Exception):
    """An array of which nobody can tell where it comes from: its program is not kept."""


@dataclass
class Recipes:
    """Collects the places of a program's arrays. `sources`: the weights of the source. `kept`: the
    data of those places that are "kept"."""

    sources: Mapping[str, Weight]
    kept: dict[str, Array] = field(default_factory=dict)
    _numbers: dict[Weight, int] = field(default_factory=dict)
    _sources: list[list[Place]] = field(default_factory=list)
    _functions: dict[str, Function] = field(default_factory=dict)

    def places(
        self, arrays: Mapping[str, Array], made: Mapping[str, Weight]
    ) -> list[tuple[str, Place]]:
        """Each name with the place of its array, which is the data of the weight of that name in
        `made`; Unknown where it is not."""
        found = []
        for name, array in arrays.items():
            weight = made.get(name)
            if weight is None or weight.array is not array:
                raise Unknown(name)
            found.append((name, self._place(weight)))
        return found

    def supply(self, sources: Mapping[str, Weight]) -> Supply:
        """Where the arrays come from, with the weights of another source of this form."""
        return Supply(sources, self.kept, self.document(), self.program())

    def document(self) -> dict[str, Any]:
        """What `Supply` needs beside `kept` and `program`."""
        return {"derived": self._sources}

    def program(self) -> bytes:
        """The operations in the wire form; CompilerBug where that cannot hold them."""
        functions = self._functions
        return encode(Module(functions, next(iter(functions)))) if functions else b""

    def _place(self, weight: Weight) -> Place:
        derivation = weight.derivation
        if derivation is None:
            source = self.sources.get(weight.name)
            if source is None or source.array is not weight.array:
                raise Unknown(weight.name)
            return "source", weight.name
        if not derivation.sources:
            return self._keep(weight.array)
        number = self._numbers.get(weight)
        if number is None:
            sources = [self._place(source) for source in derivation.sources]
            number = self._numbers[weight] = len(self._sources)
            self._sources.append(sources)
            self._functions[str(number)] = Function(str(number), derivation.region)
        return "derived", number

    def _keep(self, array: Array) -> Place:
        for key, known in self.kept.items():
            if known is array:
                return "kept", key
        key = str(len(self.kept))
        self.kept[key] = array
        return "kept", key


class Arrays(Mapping[str, Array]):
    """Arrays by name, each from its place."""

    def __init__(self, places: Sequence[tuple[str, Place]], supply: Supply) -> None:
        self._places = {name: (kind, what) for name, (kind, what) in places}
        self._supply = supply
        supply.require(self._places.values())

    def __getitem__(self, name: str) -> Array:
        return self._supply.array(self._places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Supply:
    """All that the arrays of one kept program are made of. What is derived is computed on first
    demand, all of it at once and on several threads; then its sources are no longer held."""

    def __init__(
        self,
        sources: Mapping[str, Weight],
        kept: Mapping[str, Array],
        document: Mapping[str, Any],
        program: bytes,
    ) -> None:
        self._sources = sources
        self._kept, self._program = kept, program
        self._steps: list[list[Place]] = [
            [(kind, what) for kind, what in places] for places in document["derived"]
        ]
        self._wanted: set[Place] = set()
        self._derived: list[Array] | None = None
        self._lock = threading.Lock()
        for places in self._steps:
            self._check(places)

    def require(self, places: Iterable[Place]) -> None:
        """These places will be asked for; KeyError unless there are such."""
        self._check(places)
        self._wanted.update(places)

    def array(self, place: Place) -> Array:
        """The array at a place that was required."""
        kind, what = place
        if kind == "kept":
            return self._kept[what]
        return self._sources[what].array if kind == "source" else self._all_derived()[what]

    def _check(self, places: Iterable[Place]) -> None:
        known = {"source": self._sources, "kept": self._kept, "derived": range(len(self._steps))}
        for kind, what in places:
            if what not in known[kind]:
                raise KeyError(what)

    def _all_derived(self) -> list[Array]:
        with self._lock:
            if self._derived is None:
                functions = decode(self._program).functions
                made: list[Weight] = []
                for number, places in enumerate(self._steps):
                    given = [self._source(place, made) for place in places]
                    made.append(derived(str(number), given, functions[str(number)].body))
                with computed(made):
                    pass
                self._derived = [weight.array for weight in made]
                wanted = {what for kind, what in self._wanted if kind == "source"}
                self._sources = {name: self._sources[name] for name in sorted(wanted)}
            return self._derived

    def _source(self, place: Place, made: Sequence[Weight]) -> Weight:
        kind, what = place
        if kind == "kept":
            return Weight(what, self._kept[what])
        return self._sources[what] if kind == "source" else made[what]

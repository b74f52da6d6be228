"""What sizes the programs of `girih.jit` and `torch.compile(backend="girih")` leave to their calls.

A program is compiled for a call's sizes and for others like them. Sizes that are equal in a call
are one symbol of its program (the lengths of keys and of values, say, which TorchDynamo keeps
apart), until a call tells them apart. Where nobody says how large a size may become, the program is
planned for some multiple of what the call has; a call of more gets a program of a larger range.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .hlo.graph import Module
from .hlo.sizes import Symbol
from .hlo.symbols import Dim, SymbolicDim, bound
from .hlo.types import TensorType

ROOM = 4  # times what a call has: how large a size may become before another compilation
LEAST = 512  # how large it may become in any case
_PART = 4  # of the machine's memory, that one tensor of the largest sizes may take
_log = logging.getLogger("girih")


class GirihWarning(UserWarning):
    """Something is slower than was asked for: a graph runs in PyTorch because girih cannot compile
    it, or each size is compiled on its own."""


def warn(text: str, stacklevel: int) -> None:
    """A GirihWarning at that caller of the caller."""
    warnings.warn(f"girih: {text}", GirihWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class Chosen:
    """Which of a call's sizes are numbers in a program, and which are its symbols.

    dims: of each size of a call, in an order that the caller keeps to, its number or its symbol;
    ranges: of the symbols.
    """

    dims: tuple[Dim, ...]
    ranges: Mapping[str, Symbol]

    def values(self, sizes: Sequence[int]) -> dict[str, int]:
        """What the symbols stand for in a call that the program is for."""
        return {repr(d): n for d, n in zip(self.dims, sizes, strict=True) if not isinstance(d, int)}

    def admits(self, sizes: Sequence[int]) -> bool:
        """Whether the program is for a call of these sizes."""
        values = self.values(sizes)
        return all(
            (dim if isinstance(dim, int) else values[repr(dim)]) == size
            for dim, size in zip(self.dims, sizes, strict=True)
        ) and all(said.admits(values[name]) for name, said in self.ranges.items())

    def largest(self, number: int) -> int:
        """The largest value of a size, by its number; 0 where nothing is planned yet."""
        dim = self.dims[number]
        return dim if isinstance(dim, int) else self.ranges[repr(dim)].last or 0

    def __str__(self) -> str:
        return ", ".join(f"{name} {said}" for name, said in self.ranges.items()) or "one call"


def fixed(sizes: Sequence[int]) -> Chosen:
    """For calls of these sizes alone."""
    return Chosen(tuple(sizes), {})


def opened(
    said: Sequence[Symbol | None],
    sizes: Sequence[int],
    before: Sequence[Chosen],
    names: Mapping[int, str] | None = None,
) -> Chosen:
    """For calls like this one, and like those that earlier programs are for, which were told apart.

    said: what each size may be, None where it stays the number that it is; names: what the symbols
    of some are called, by number. Ranges without an end have none yet: `bounded` gives them one.
    """
    names = names or {}
    keys: list[Any] = [
        names.get(number) or (size, *(one.dims[number] for one in before))
        for number, size in enumerate(sizes)
    ]
    classes = dict.fromkeys(k for k, known in zip(keys, said, strict=True) if known is not None)
    symbols = {
        key: SymbolicDim(key if isinstance(key, str) else f"n{number}")
        for number, key in enumerate(classes)
    }
    dims: list[Dim] = []
    ranges: dict[str, Symbol] = {}
    for key, known, size in zip(keys, said, sizes, strict=True):
        dims.append(size if known is None else symbols[key])
        if known is None:
            continue
        if size < known.minimum:  # TorchDynamo calls graphs with less than it says
            known = known._replace(minimum=size)
        name = repr(dims[-1])
        ranges[name] = ranges[name].meet(known) if name in ranges else known
    return Chosen(tuple(dims), ranges)


def bounded(
    module: Module, chosen: Chosen, sizes: Sequence[int], before: Sequence[Chosen]
) -> tuple[Module, Chosen]:
    """The module with an end of each range that has none, and what is chosen then. It is as far as
    `ROOM` says, and as the memory of the machine allows."""
    least: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for number, (dim, size) in enumerate(zip(chosen.dims, sizes, strict=True)):
        if isinstance(dim, int):
            continue
        name, earlier = repr(dim), [one.largest(number) for one in before]
        least[name] = max(least.get(name, 0), size, *earlier)
        wanted[name] = max(wanted.get(name, LEAST), ROOM * size, *earlier)
    room = {name: wanted[name] for name, said in chosen.ranges.items() if said.maximum is None}
    tensors = list(_tensors(module))
    while True:
        ranges = {
            name: said._replace(maximum=_power_of_two(room[name])) if name in room else said
            for name, said in chosen.ranges.items()
        }
        largest = {name: said.last or 0 for name, said in ranges.items()}
        if max((bound(one, largest) for one in tensors), default=0) <= _most_bytes():
            break
        smaller = {name: max(size // 2, least[name]) for name, size in room.items()}
        if smaller == room:
            break
        room = smaller
    planned = Chosen(chosen.dims, ranges)
    symbols = {**module.symbols, **{n: s for n, s in ranges.items() if n in module.symbols}}
    _log.info("%s is compiled for calls of %s", module.name or "a program", planned)
    return replace(module, symbols=symbols), planned


def _power_of_two(size: int) -> int:
    """The next one."""
    return 1 << (size - 1).bit_length()


def _most_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PART


def _tensors(module: Module) -> Iterator[Dim]:
    """The bytes of each tensor whose size calls decide."""
    found: dict[Dim, None] = {}
    for op in module.walk():
        for result in op.results:
            if isinstance(result.type, TensorType) and not result.type.is_static:
                found[math.prod(result.type.dims) * result.type.element.itemsize] = None
    yield from found

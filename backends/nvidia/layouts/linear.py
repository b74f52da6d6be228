"""A layout is a linear map over F2 from hardware bits to tensor bits (arXiv 2505.23819).

Inputs are `register`, `lane`, `warp`, `block` (a distributed value) or `offset` (shared memory, in
elements); each input bit stores its image, and the place of an element is the XOR of the images of
the bits set. Outputs are the tensor's dimensions `dim0`, `dim1`, ... or another map's inputs. All
outputs together form one number: for a tensor, its row-major index. An image of 0 means that the
bit holds a copy (broadcast).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .bits import Span, combine, log2

Image = int | Sequence[int]  # a flat number, or coordinates along each dimension


def tensor_outputs(shape: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Outputs of a tensor of powers of two: the last dimension has the lowest bits."""
    return tuple((f"dim{d}", log2(shape[d])) for d in reversed(range(len(shape))))


@dataclass(frozen=True)
class LinearLayout:
    """`inputs`: images of the bits of each input, lowest first; `outputs`: bits of each output,
    the one with the lowest bits first."""

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        limit = 1 << self.output_bits
        if any(not 0 <= image < limit for image in self.images):
            raise ValueError(f"an image lies outside the outputs: {self}")

    def __str__(self) -> str:
        """`register (0,1) (8,0) lane (0,2) ...`: where each bit leads, lowest first."""
        parts = []
        for name, images in self.inputs:
            places = (",".join(map(str, self.split(image))) for image in images)
            if images:
                parts.append(" ".join([name, *(f"({place})" for place in places)]))
        return " ".join(parts)

    # What it is made of.

    @cached_property
    def images(self) -> tuple[int, ...]:
        """Images of all input bits, in the order of the inputs."""
        return tuple(image for _, images in self.inputs for image in images)

    @cached_property
    def _by_name(self) -> dict[str, tuple[int, ...]]:
        return dict(self.inputs)

    def bits(self, name: str) -> tuple[int, ...]:
        """Images of the bits of input `name`; () where there is none."""
        return self._by_name.get(name, ())

    def size(self, name: str) -> int:
        """Values of input `name`: registers of a thread, lanes, warps, offsets."""
        return 1 << len(self.bits(name))

    @cached_property
    def output_bits(self) -> int:
        return sum(count for _, count in self.outputs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the tensor's dimensions, dim0 first."""
        return tuple(1 << count for _, count in reversed(self.outputs))

    @cached_property
    def span(self) -> Span:
        return Span(self.images)

    def copies(self, name: str) -> int:
        """Mask of the bits of `name` whose flips reach another copy of the same element."""
        return sum(1 << index for index, image in enumerate(self.bits(name)) if image == 0)

    # Where elements are.

    def apply(self, **values: Any) -> Any:
        """The flat output of the given inputs (0 where absent): integers or integer arrays."""
        total: Any = 0
        for name, value in values.items():
            for index, image in enumerate(self.bits(name)):
                total = total ^ (value >> index & 1) * image
        return total

    def split(self, flat: Any) -> tuple[Any, ...]:
        """Coordinates of a flat output; the first is dim0's (the last output's)."""
        found = []
        for _, count in self.outputs:
            found.append(flat & ((1 << count) - 1))
            flat = flat >> count
        return tuple(reversed(found))

    def coordinates(self, **values: Any) -> tuple[Any, ...]:
        """Coordinates along each dimension of the element at the given inputs."""
        return self.split(self.apply(**values))

    @cached_property
    def registers(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates of each register's element in the first thread."""
        flat = [0]
        for image in self.bits("register"):
            flat += [one ^ image for one in flat]
        return tuple(map(self.split, flat))

    # Algebra.

    def tensor_dimension(self, dimension: int) -> tuple[int, int]:
        """(lowest bit, number of bits) of a dimension in the flat output."""
        counts = [count for _, count in reversed(self.outputs)]
        dimension = range(len(counts))[dimension]
        return sum(counts[dimension + 1 :]), counts[dimension]

    def with_inputs(self, **inputs: Sequence[int]) -> LinearLayout:
        """The same outputs; the named inputs replaced, added last, or (empty) removed."""
        merged: dict[str, tuple[int, ...]] = {**self._by_name}
        merged.update({name: tuple(images) for name, images in inputs.items()})
        return LinearLayout(tuple((k, v) for k, v in merged.items() if v), self.outputs)

    def __mul__(self, outer: LinearLayout) -> LinearLayout:
        """`self` as a tile, repeated as `outer` says: sizes of dimensions multiply."""
        if [name for name, _ in self.outputs] != [name for name, _ in outer.outputs]:
            raise ValueError(f"outputs differ: {self.outputs} and {outer.outputs}")
        place, start = [], 0
        for (name, low), (_, high) in zip(self.outputs, outer.outputs, strict=True):
            place.append((name, low, high, start))
            start += low + high

        def inner_image(image: int) -> int:
            total = at = 0
            for _, low, _, to in place:
                total |= (image >> at & ((1 << low) - 1)) << to
                at += low
            return total

        def outer_image(image: int) -> int:
            total = at = 0
            for _, low, high, to in place:
                total |= (image >> at & ((1 << high) - 1)) << to + low
                at += high
            return total

        merged: dict[str, tuple[int, ...]] = {
            name: tuple(map(inner_image, images)) for name, images in self.inputs
        }
        for name, images in outer.inputs:
            merged[name] = (*merged.get(name, ()), *map(outer_image, images))
        return LinearLayout(
            tuple(merged.items()), tuple((name, low + high) for name, low, high, _ in place)
        )

    def inverse(self) -> LinearLayout:
        """Output place -> the first inputs that reach it (copies: the lowest)."""
        images = []
        for index in range(self.output_bits):
            which = self.span.solve(1 << index)
            if which is None:
                raise ValueError(f"nothing reaches output bit {index} of {self}")
            images.append(which)
        inputs, at = [], 0
        for name, count in self.outputs:
            inputs.append((name, tuple(images[at : at + count])))
            at += count
        outputs = tuple((name, len(bits)) for name, bits in self.inputs)
        return LinearLayout(tuple(inputs), outputs)

    def places_in(self, other: LinearLayout) -> LinearLayout:
        """Inputs of `self` -> inputs of `other` that hold the same element (a bit whose image is
        the same bit's in `other` stays where it is, so copies are read in place)."""
        if self.outputs != other.outputs:
            raise ValueError(f"outputs differ: {self.outputs} and {other.outputs}")
        starts, at = {}, 0
        for name, images in other.inputs:
            starts[name] = at
            at += len(images)
        inputs = []
        for name, images in self.inputs:
            same = other.bits(name)
            found = []
            for index, image in enumerate(images):
                if index < len(same) and same[index] == image:
                    found.append(1 << starts[name] + index)
                    continue
                which = other.span.solve(image)
                if which is None:
                    raise ValueError(f"{name} bit {index} of {self} has no place in {other}")
                found.append(which)
            inputs.append((name, tuple(found)))
        return LinearLayout(tuple(inputs), tuple((name, len(bits)) for name, bits in other.inputs))

    # Tensor operations that move no data.

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """The same elements in the same places; row-major order is kept."""
        outputs = tensor_outputs(shape)
        if sum(count for _, count in outputs) != self.output_bits:
            raise ValueError(f"{self.shape} has another number of elements than {tuple(shape)}")
        return LinearLayout(self.inputs, outputs)

    def mapped(self, shape: Sequence[int], kept: Sequence[int | None]) -> LinearLayout:
        """Dimension d of the result is dimension kept[d], or one of no extent (None); `shape` are
        its sizes. Bits that move along none of them, or beyond their sizes, hold copies."""

        def moved(image: int) -> int:
            old = self.split(image)
            new = [old[d] if d is not None else 0 for d in kept]
            inside = all(at < n for at, n in zip(new, shape, strict=True))
            return flatten(shape, new) if inside else 0

        inputs = tuple((name, tuple(map(moved, images))) for name, images in self.inputs)
        return LinearLayout(inputs, tensor_outputs(shape))

    def condensed(self) -> tuple[LinearLayout, tuple[int, ...]]:
        """Without register bits that hold copies; and for each register the one of the result
        that has its element."""
        inputs = tuple(
            (name, tuple(i for i in images if i) if name == "register" else images)
            for name, images in self.inputs
        )
        found = LinearLayout(inputs, self.outputs)
        places = iter(range(len(found.bits("register"))))
        bits = [1 << next(places) if image else 0 for image in self.bits("register")]
        return found, tuple(combine(bits, number) for number in range(self.size("register")))

    def resized(self, shape: Sequence[int]) -> LinearLayout:
        """The same places in a tensor of other sizes: bits beyond them hold copies."""
        return self.mapped(shape, range(len(self.shape)))

    def transpose(self, permutation: Sequence[int]) -> LinearLayout:
        """Dimension d of the result is dimension permutation[d]."""
        return self.mapped([self.shape[d] for d in permutation], permutation)

    def slice(self, dimension: int) -> LinearLayout:
        """Without a dimension: places that differed only along it hold copies (a reduction's
        result). Registers that only held copies are gone; lanes, warps, blocks stay."""
        dimension = range(len(self.shape))[dimension]
        kept = [d for d in range(len(self.shape)) if d != dimension]
        return self.mapped([self.shape[d] for d in kept], kept).condensed()[0]


def flatten(shape: Sequence[int], coordinates: Sequence[int]) -> int:
    """The row-major index of coordinates; 0 along a dimension adds nothing."""
    flat = 0
    for size, coordinate in zip(shape, coordinates, strict=True):
        flat = flat * size + coordinate
    return flat


def layout(shape: Sequence[int], **inputs: Sequence[Image]) -> LinearLayout:
    """A layout of a tensor from images that are flat indices or coordinates."""

    def image(value: Image) -> int:
        return value if isinstance(value, int) else flatten(shape, value)

    named: Mapping[str, tuple[int, ...]] = {
        name: tuple(image(value) for value in images) for name, images in inputs.items()
    }
    return LinearLayout(tuple(named.items()), tensor_outputs(shape))


@dataclass(frozen=True)
class Repeated:
    """`tile` repeated over sizes that are no powers of two (`m64n176`): the last repeat along a
    dimension may reach beyond `shape`. Registers: those of a tile, repeats outermost, row major."""

    tile: LinearLayout
    shape: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile.shape, strict=True))

    @property
    def repeats(self) -> tuple[tuple[int, ...], ...]:
        """Origins of the repeats, in order."""
        found: list[tuple[int, ...]] = [()]
        for count, size in zip(self.counts, self.tile.shape, strict=True):
            found = [(*origin, i * size) for origin in found for i in range(count)]
        return tuple(found)

    @property
    def registers(self) -> int:
        return len(self.repeats) * self.tile.size("register")

    def coordinates(self, register: int, **values: Any) -> tuple[Any, ...]:
        repeat, inside = divmod(register, self.tile.size("register"))
        place = self.tile.coordinates(register=inside, **values)
        return tuple(o + x for o, x in zip(self.repeats[repeat], place, strict=True))

"""Tiles in shared memory: swizzles, the widest access, matrix loads and stores, bank conflicts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .bits import Span, combine, independent, intersection, log2
from .linear import LinearLayout, tensor_outputs

BANK_BITS = 5  # 32 banks of 4 bytes
_remembered = functools.lru_cache(maxsize=1024)


def row_major(shape: Sequence[int]) -> LinearLayout:
    """Offsets that are row-major indices."""
    outputs = tensor_outputs(shape)
    count = sum(bits for _, bits in outputs)
    return LinearLayout((("offset", tuple(1 << i for i in range(count))),), outputs)


@_remembered
def swizzled(
    shape: Sequence[int], element_bytes: int, swizzle: int, chunk: int = 16
) -> LinearLayout:
    """A tile as the copy engine and wgmma hold it, from an address of 1024-byte alignment: boxes
    of all rows by `swizzle` bytes (32, 64, 128; 0: whole rows) side by side along the last
    dimension; in each line of 128 bytes the chunks of a period of `swizzle` bytes change places:
    bits of the line's number are added to those of the chunk's. The hardware's chunks have 16
    bytes."""
    element = log2(element_bytes)
    inner = min(log2(swizzle) - element, log2(shape[-1])) if swizzle else log2(shape[-1])
    outputs = tensor_outputs(shape)
    count = sum(bits for _, bits in outputs)
    last = log2(shape[-1])
    # Logical index bits in the order of their addresses before the swizzle.
    order = [*range(inner), *range(last, count), *range(inner, last)]
    images = [1 << order[bit] for bit in range(count)]
    for bit in range(log2(max(1, swizzle // chunk))):
        line, place = bit + 7 - element, bit + log2(chunk) - element
        if line < count:
            images[line] ^= 1 << order[place]
    return LinearLayout((("offset", tuple(images)),), outputs)


@dataclass(frozen=True)
class AddressTerm:
    """`(value & mask) << shift` (`>>` where negative) of input `name`: part of an address."""

    name: str
    mask: int
    shift: int

    def value(self, value: int) -> int:
        part = value & self.mask
        return part << self.shift if self.shift >= 0 else part >> -self.shift


@dataclass(frozen=True)
class SharedAccess:
    """One load or store of each thread: the registers (elements) it moves, lowest address first;
    its byte address is `(terms ^ xor) + add`."""

    registers: tuple[int, ...]
    xor: int
    add: int


@dataclass(frozen=True)
class Addresses:
    """Accesses of a value in registers to a tile in shared memory. A thread's base is the XOR of
    the terms."""

    terms: tuple[AddressTerm, ...]
    accesses: tuple[SharedAccess, ...]
    bytes: int  # of each access

    def base(self, **values: int) -> int:
        total = 0
        for term in self.terms:
            total ^= term.value(values[term.name])
        return total

    def address(self, access: SharedAccess, **values: int) -> int:
        return (self.base(**values) ^ access.xor) + access.add


@dataclass(frozen=True)
class MatrixAccess:
    """ldmatrix / stmatrix of a value: `count` 8x8 matrices at a time, `transposed` or not. Lane l
    gives the address of row `l % 8` of matrix `l / 8` (terms use `lane` and `warp`, ... where lane
    is that of the address, not of the element). Registers of an access: words in order, each of
    32 bits of elements."""

    count: int
    transposed: bool
    addresses: Addresses


def access_elements(value: LinearLayout, tile: LinearLayout, limit: int) -> int:
    """Elements that one access can move: neighbouring offsets in registers of one thread, aligned,
    at most `limit`."""
    where = value.places_in(tile)
    low = _low_register_bits(where, log2(limit))
    return 1 << len(low)


def _low_register_bits(where: LinearLayout, limit: int) -> list[int]:
    """Register bits whose images are offset bits 0, 1, ...; no other input reaches those."""
    registers = where.bits("register")
    found: list[int] = []
    for bit in range(limit):
        if registers.count(1 << bit) != 1:
            break
        others = [image for image in where.images if image >> bit & 1]
        if len(others) != 1:
            break
        found.append(registers.index(1 << bit))
    return found


def _groups(count: int, low: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Register numbers in groups that differ in bits `low` (in that order)."""
    inside = [combine([1 << bit for bit in low], i) for i in range(1 << len(low))]
    mask = sum(1 << bit for bit in low)
    for base in range(1 << count):
        if not base & mask:
            yield tuple(base | i for i in inside)


def terms(images: Sequence[tuple[str, Sequence[int]]]) -> tuple[AddressTerm, ...]:
    """Shifts and masks for the XOR of images (bytes) of the bits of inputs."""
    masks: dict[tuple[str, int], int] = {}
    for name, of_bits in images:
        for index, image in enumerate(of_bits):
            for bit in range(image.bit_length()):
                if image >> bit & 1:
                    key = name, bit - index
                    masks[key] = masks.get(key, 0) | 1 << index
    return tuple(AddressTerm(name, mask, shift) for (name, shift), mask in masks.items())


def _accesses(
    groups: Iterator[tuple[int, ...]], registers: Sequence[int], thread: Sequence[int]
) -> tuple[SharedAccess, ...]:
    """Constants of accesses; bits that no thread bit reaches are added, the others XORed."""
    reached = 0
    for image in thread:
        reached |= image
    found = []
    for group in groups:
        image = combine(registers, group[0])
        found.append(SharedAccess(group, image & reached, image & ~reached))
    return tuple(found)


@_remembered
def addresses(
    value: LinearLayout, tile: LinearLayout, element_bytes: int, limit_bytes: int = 16
) -> Addresses:
    """How each thread reaches its elements of `tile` with ld/st.shared of up to `limit_bytes`."""
    where = value.places_in(tile)
    low = _low_register_bits(where, log2(max(1, limit_bytes // element_bytes)))
    scaled = [(name, [i * element_bytes for i in images]) for name, images in where.inputs]
    registers = next((images for name, images in scaled if name == "register"), [])
    threads = [(name, images) for name, images in scaled if name != "register"]
    thread = [image for _, images in threads for image in images]
    accesses = _accesses(_groups(len(registers), low), registers, thread)
    return Addresses(terms(threads), accesses, element_bytes << len(low))


@_remembered
def matrix_access(
    value: LinearLayout, tile: LinearLayout, element_bytes: int
) -> MatrixAccess | None:
    """ldmatrix (stmatrix) that moves `value` from (to) `tile`, or None where layouts forbid it.

    Plain: each group of 4 lanes holds the 16 bytes of a row, 4 bytes a lane. Transposed (2-byte
    elements only): the 8 elements of a row lie in lanes 4 apart.
    """
    where = value.places_in(tile)
    element = log2(element_bytes)
    registers = [image << element for image in where.bits("register")]
    lanes = [image << element for image in where.bits("lane")]
    if len(lanes) != 5 or element > 2:
        return None
    others = [(n, [i << element for i in images]) for n, images in where.inputs
              if n not in ("register", "lane")]  # fmt: skip
    within = 2 - element  # register bits inside a word
    if within > len(registers):
        return None
    word, outer = registers[:within], registers[within:]
    plain = word == [1 << element + i for i in range(within)] and lanes[:2] == [4, 8]
    if plain:
        transposed, rows = False, lanes[2:]
    elif element == 1 and lanes[2:] == [2, 4, 8]:
        transposed, rows = True, [word[0], *lanes[:2]]
    else:
        return None
    aligned = [*rows, *outer, *(image for _, images in others for image in images)]
    if any(image & 15 for image in aligned):
        return None
    matrices = min(2, len(outer))
    count = 1 << matrices
    lane_images = [*rows, *outer[:matrices]]
    low = list(range(within + matrices))
    thread = [*lane_images, *(image for _, images in others for image in images)]
    accesses = _accesses(_groups(len(registers), low), registers, thread)
    lanes_and_others = terms([("lane", lane_images), *others])
    return MatrixAccess(count, transposed, Addresses(lanes_and_others, accesses, 4 * count))


@_remembered
def wavefronts(
    value: LinearLayout, tile: LinearLayout, element_bytes: int, limit_bytes: int = 16
) -> int:
    """How many wavefronts an access of a warp needs for each that it would need at best: words of
    a phase (32, 16, 8 lanes for 4, 8, 16 bytes) divided by the banks that they lie in."""
    where = value.places_in(tile)
    elements = len(_low_register_bits(where, log2(max(1, limit_bytes // element_bytes))))
    element = log2(element_bytes)
    bytes_bits = elements + element
    lanes = where.bits("lane")[: 5 - max(0, bytes_bits - 2)]
    vector = [1 << bit for bit in range(bytes_bits)]
    return _wavefronts([*vector, *(image << element for image in lanes)])


def matrix_wavefronts(access: MatrixAccess) -> int:
    """The same for ldmatrix / stmatrix, whose phases are the 8 rows of a matrix."""
    rows = [
        access.addresses.base(**{term.name: 0 for term in access.addresses.terms} | {"lane": bit})
        for bit in (1, 2, 4)
    ]
    return _wavefronts([1, 2, 4, 8, *rows])


def _wavefronts(byte_images: Sequence[int]) -> int:
    words = Span(image >> 2 for image in byte_images).rank
    banks = Span(image >> 2 & (1 << BANK_BITS) - 1 for image in byte_images).rank
    return 1 << words - banks


@_remembered
def best_tile(
    writer: LinearLayout, reader: LinearLayout, element_bytes: int, limit_bytes: int = 16
) -> LinearLayout:
    """A shared layout for a conversion: vectors that one side or both have in registers, then
    offset bits such that the lanes of both sides fall into different banks as far as possible
    (after arXiv 2505.23819, section 5.4); also compared with a plain row-major tile."""
    most = log2(max(1, limit_bytes // element_bytes))
    ours, theirs = ([bit for bit in side.bits("register") if bit] for side in (writer, reader))
    common = [bit for bit in ours if bit in theirs]
    vectors = {tuple(bits[:n]) for bits in (common, theirs, ours) for n in range(most + 1)}
    found = [row_major(writer.shape)] if writer.shape else []
    found += [_conflict_free(writer, reader, vector, element_bytes) for vector in sorted(vectors)]

    def cost(tile: LinearLayout) -> float:
        total = 0.0
        for side in (writer, reader):
            width = access_elements(side, tile, 1 << most)
            total += (
                wavefronts(side, tile, element_bytes, limit_bytes)
                * max(1.0, width * element_bytes / 4)
                / width
            )
            total += 0.25 / width  # instructions
        return total

    return min(found, key=cost)


def _conflict_free(
    writer: LinearLayout, reader: LinearLayout, vector: Sequence[int], element_bytes: int
) -> LinearLayout:
    """A tile whose lowest offset bits are `vector`, and whose bits above the banks are none of the
    sums of what a phase of either side touches, as far as possible."""
    dims = writer.output_bits
    unit = [1 << i for i in range(dims)]

    def phase(side: LinearLayout) -> list[int]:
        """What the lanes of one wavefront touch with the vector's part that they hold."""
        own = list(itertools.takewhile(lambda bit: bit in side.bits("register"), vector))
        lanes = side.bits("lane")[: 5 - max(0, log2(element_bytes) + len(own) - 2)]
        return independent([*lanes, *own])

    first, second = phase(writer), phase(reader)
    both = intersection(first, second)
    left, right = independent(first, both), independent(second, both)
    rows = dims - min(dims, BANK_BITS + 2 - log2(element_bytes))  # bits above the banks
    free = independent(unit, [*vector, *first, *second])
    pairs = [a ^ b for a, b in zip(left, right, strict=False)]
    high = independent([*free, *pairs, *right[len(left) :], *left, *unit], vector)[:rows]
    low = independent(unit, [*vector, *high])
    return LinearLayout((("offset", (*vector, *low, *high)),), writer.outputs)


def accesses(
    value: LinearLayout, shared: LinearLayout, size: int
) -> tuple[MatrixAccess | None, Addresses]:
    """How threads get to their elements of `size` bytes: by whole matrices where that is legal."""
    matrices = matrix_access(value, shared, size)
    return matrices, matrices.addresses if matrices else addresses(value, shared, size)

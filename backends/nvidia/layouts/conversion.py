"""From one layout of a value in registers to another: renaming, shuffles, or shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .bits import Span, combine, independent, intersection, kernel, log2
from .linear import LinearLayout

Kind = Literal["none", "registers", "shuffles", "shared"]


@dataclass(frozen=True)
class Swap:
    """Exchange of registers whose numbers differ in `bit`, in lanes where the parity of
    `lane & mask` is odd."""

    bit: int
    mask: int


@dataclass(frozen=True)
class Round:
    """One `shfl.sync.idx`: every lane sends word `send`, reads the lane `plan.lane ^ lane_xor`, and
    keeps what it read as word `keep`."""

    send: int
    lane_xor: int
    keep: int
    moves: bool  # False: every lane would read itself


@dataclass(frozen=True)
class Shuffles:
    """A conversion inside warps. Words: `2 ** packed_bits` registers each. Do `before` on the
    source's words, then the rounds, then `after` on the words kept; destination word d is word
    `words[d]` of those.

    `lanes[i]` is the image of lane bit i: a lane reads the XOR of those of its bits set (and the
    round's `lane_xor`).
    """

    packed_bits: int
    before: tuple[Swap, ...]
    lanes: tuple[int, ...]
    rounds: tuple[Round, ...]
    after: tuple[Swap, ...]
    words: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Instructions, about: a shuffle counts 2, a select 1."""
        moves = sum(round.moves for round in self.rounds)
        return 2 * moves + len(self.rounds) * (len(self.before) + len(self.after))


@dataclass(frozen=True)
class Conversion:
    """How a value changes its layout. `registers` (kind "none" or "registers"): the source's
    register for each of the destination's."""

    kind: Kind
    registers: tuple[int, ...] = ()
    shuffles: Shuffles | None = None


def convert(source: LinearLayout, destination: LinearLayout, element_bits: int = 32) -> Conversion:
    """The cheapest way from `source` to `destination`, which hold the same tensor.

    Raises ValueError where the shapes differ or the source lacks elements.
    """
    where = destination.places_in(source)
    register_bits = len(source.bits("register"))
    lane_bits = len(source.bits("lane"))
    registers = where.bits("register")

    def stays(name: str) -> bool:
        start = 0
        for other, images in source.inputs:
            if other == name:
                break
            start += len(images)
        images = where.bits(name)
        return all(image == 1 << start + index for index, image in enumerate(images))

    starts = [name for name, _ in source.inputs]
    if starts[:1] not in ([], ["register"]) and register_bits:
        raise ValueError(f"registers are the first input of a distributed layout: {source}")
    outer_stay = all(stays(n) for n in ("warp", "block")) and len(source.bits("warp")) >= len(
        destination.bits("warp")
    )
    inside = 1 << register_bits
    if outer_stay and stays("lane") and all(image < inside for image in registers):
        order = tuple(combine(registers, r) for r in range(destination.size("register")))
        same = order == tuple(range(source.size("register")))
        return Conversion("none" if same else "registers", order)
    inside <<= lane_bits
    within_warp = (*registers, *where.bits("lane"))
    if outer_stay and lane_bits == 5 and all(image < inside for image in within_warp):
        shuffles = _shuffles(registers, where.bits("lane"), register_bits, element_bits)
        if shuffles is not None:
            return Conversion("shuffles", shuffles=shuffles)
    return Conversion("shared")


def _packed(registers: tuple[int, ...], lanes: tuple[int, ...], element_bits: int) -> int:
    """Low register bits that stay, so that registers move as words of up to 32 bits."""
    count = 0
    limit = log2(max(1, 32 // element_bits))
    while (
        count < min(limit, len(registers))
        and registers[count] == 1 << count
        and not any(image >> count & 1 for i, image in enumerate(registers) if i != count)
        and not any(image >> count & 1 for image in lanes)
    ):
        count += 1
    return count


def _shuffles(
    registers: tuple[int, ...], lanes: tuple[int, ...], source_registers: int, element_bits: int
) -> Shuffles | None:
    """The plan of rounds. `registers` and `lanes`: the source's place (register bits, then 5 lane
    bits) of each destination bit. None where a lane would have to send two words in one round.

    Destination places form a space D; a round is a coset of a subspace V of D that has each
    destination lane once, and in which no source lane is read at two registers.
    """
    packed = _packed(registers[:source_registers], lanes, element_bits)
    registers = tuple(image >> packed for image in registers[packed:])
    lanes = tuple(image >> packed for image in lanes)
    source_registers -= packed
    low = (1 << source_registers) - 1

    # Registers of the destination that are copies of others are no words of the plan.
    kept: list[int] = []
    span, of_word = Span(), []
    for image in registers:
        which = span.solve(image)
        if which is None:
            which = 1 << len(kept)
            kept.append(image)
            span.add(image)
        of_word.append(which)
    words = tuple(combine(of_word, word) for word in range(1 << len(registers)))

    count = len(kept)
    images = [*kept, *lanes]  # of the unit vectors of D: registers, then lanes
    nothing = kernel(images)
    same_lane = kernel([image >> source_registers for image in images])  # source in lane 0
    own = [1 << i for i in range(count)]
    own_or_nothing = independent([*own, *nothing])
    shared = intersection(same_lane, own_or_nothing)
    left = independent(same_lane, shared)
    right = independent(own, shared)
    if len(left) > len(right):
        return None
    rest = independent((1 << i for i in range(len(images))), [*same_lane, *own_or_nothing])
    space = [*nothing, *(a ^ b for a, b in zip(left, right, strict=False)), *rest]

    lane_part = Span(v >> count for v in space)
    member = []  # the member of V in each unit lane
    for index in range(5):
        which = lane_part.solve(1 << index)
        assert which is not None, "V has every destination lane once"
        member.append(combine(space, which))
    keep_of_lane = [v & ((1 << count) - 1) for v in member]
    place = [combine(images, v) for v in member]
    read = tuple(p >> source_registers for p in place)
    # What a lane sends depends on the lane linearly: A(source lane) = source register.
    send_of_lane = []
    complement = independent((1 << i for i in range(5)), read)
    everyone = Span([*read, *complement])
    sent = [*(p & low for p in place), *(0 for _ in complement)]
    for index in range(5):
        which = everyone.solve(1 << index)
        assert which is not None
        send_of_lane.append(combine(sent, which))

    rounds = []
    for word in range(1 << count):
        image = combine(kept, word)
        lane, register = image >> source_registers, image & low
        send = register ^ combine(send_of_lane, lane)
        moves = lane != 0 or read != (1, 2, 4, 8, 16)
        rounds.append(Round(send, lane, word, moves))
    return Shuffles(
        packed,
        _swaps(send_of_lane, source_registers),
        read,
        tuple(rounds),
        _swaps(keep_of_lane, count),
        words,
    )


def _swaps(of_lane: list[int], count: int) -> tuple[Swap, ...]:
    """Register ^= XOR of `of_lane` over a lane's bits, as one exchange per register bit."""
    found = []
    for bit in range(count):
        mask = sum(1 << lane for lane, image in enumerate(of_lane) if image >> bit & 1)
        if mask:
            found.append(Swap(bit, mask))
    return tuple(found)

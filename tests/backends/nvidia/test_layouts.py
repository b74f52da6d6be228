"""Layouts as linear maps: fragments as the ISA draws them, conversions, shared memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia import layouts as L
from girih.backends.nvidia.layouts import LinearLayout
from girih.backends.nvidia.layouts.bits import combine

LANES = np.arange(32)


def holdings(value: LinearLayout) -> np.ndarray:
    """Flat index of the element that [warp, lane, register] holds."""
    warp, lane, register = np.meshgrid(
        np.arange(value.size("warp")),
        np.arange(value.size("lane")),
        np.arange(value.size("register")),
        indexing="ij",
    )
    return value.apply(register=register, lane=lane, warp=warp)


def matrix_access(value: LinearLayout, tile: LinearLayout, element_bytes: int) -> L.MatrixAccess:
    found = L.matrix_access(value, tile, element_bytes)
    assert found is not None
    return found


# Fragments, by the formulas of the PTX ISA.


@pytest.mark.parametrize(("k", "bits"), [(8, 16), (16, 16), (4, 32), (8, 32), (16, 8), (32, 8)])
def test_mma_a_and_b_follow_the_formulas_of_the_isa(k, bits):
    a, b, per = L.mma_a(16, k, bits), L.mma_b(k, 8, bits), 32 // bits
    words = 16 * k // per // 32
    for lane, word, i in itertools.product(range(32), range(words), range(per)):
        row = lane // 4 + 8 * (word % 2)
        column = lane % 4 * per + i + 4 * per * (word // 2)
        assert a.coordinates(register=word * per + i, lane=lane) == (row, column)
    for lane, word, i in itertools.product(range(32), range(words // 2), range(per)):
        row = lane % 4 * per + i + 4 * per * word
        assert b.coordinates(register=word * per + i, lane=lane) == (row, lane // 4)


def test_mma_accumulators_follow_the_formulas_of_the_isa():
    c, d = L.mma_accumulator(16, 8), L.mma_accumulator(8, 8)
    for lane, i in itertools.product(range(32), range(4)):
        place = (lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2)
        assert c.coordinates(register=i, lane=lane) == place
        if i < 2:
            assert d.coordinates(register=i, lane=lane) == place
    assert L.mma_a(8, 4, 64).coordinates(lane=13) == (3, 1)
    assert L.mma_b(4, 8, 64).coordinates(lane=13) == (1, 3)


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_accumulator_follows_the_formula_of_the_isa(n):
    d = L.wgmma_accumulator(n, warpgroups=2)
    i, thread = np.meshgrid(np.arange(n // 2), np.arange(256))
    row, column = d.coordinates(register=i, lane=thread % 32, warp=thread // 32)
    assert (row == 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)).all()
    assert (column == 8 * (i // 4) + 2 * (thread % 4) + i % 2).all()


def test_odd_widths_repeat_a_power_of_two():
    d = L.wgmma_accumulator_tiles(176)
    assert d.registers == 88 and d.counts == (1, 22)
    for i, thread in itertools.product(range(88), range(128)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        place = d.coordinates(i, lane=thread % 32, warp=thread // 32)
        assert place == (row, 8 * (i // 4) + 2 * (thread % 4) + i % 2)
    ragged = L.Repeated(L.layout((4, 4), register=[(0, 1), (0, 2), (1, 0), (2, 0)]), (6, 9))
    assert ragged.counts == (2, 3) and ragged.repeats[4] == (4, 4)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_of_wgmma_in_registers_is_the_accumulator_packed(bits):
    a = L.wgmma_a(128, bits)
    kind = L.convert(L.wgmma_accumulator(128), a, bits).kind
    assert kind == ("none" if bits == 16 else "shuffles")
    assert sorted(holdings(a).ravel()) == list(range(64 * 128))


def test_blocked_is_coalesced_and_complete():
    value = L.blocked((64, 128), warps=4, vector=8)
    assert [value.coordinates(register=n) for n in range(8)] == [(0, n) for n in range(8)]
    flat = holdings(value)
    assert sorted(flat.ravel()) == list(range(64 * 128))
    first = flat[0, :, 0]
    assert (np.diff(first) == 8).all()  # 32 lanes touch 512 neighbouring bytes


def test_small_tiles_are_held_in_copies():
    value = L.blocked((4, 8), warps=2, vector=4)
    assert value.size("register") == 1 and value.copies("warp") == 1
    tiny = L.blocked((), warps=1, vector=4)
    assert tiny.copies("lane") == 31
    assert L.blocked((16,), 1, 4).copies("lane") == 16


def test_layouts_of_a_product_cover_their_operands():
    a, b, c = L.mma_tiles((64, 32, 32), (16, 8, 16), 16, 16, warps=(2, 2))
    assert a.shape == (64, 32) and b.shape == (32, 32) and c.shape == (64, 32)
    assert a.copies("warp") == 2 and b.copies("warp") == 1 and c.copies("warp") == 0
    for value in (a, b, c):
        assert set(holdings(value).ravel()) == set(range(value.shape[0] * value.shape[1]))
    # A warp's rows of A, columns of B are those of its accumulator.

    def held(value: LinearLayout, dimension: int, warp: int) -> set[int]:
        register = np.arange(value.size("register"))
        place = value.coordinates(register=register, lane=LANES[:, None], warp=warp)
        return set(place[dimension].flat)

    for warp in range(4):
        assert held(a, 0, warp) == held(c, 0, warp)
        assert held(b, 1, warp) == held(c, 1, warp)


# Algebra.


@st.composite
def distributed(draw, bits: int = 8, warps: int = 1, copies: bool = False) -> LinearLayout:
    """A random layout of a vector of 2**bits elements in whole warps."""
    basis = [1 << i for i in range(bits)]
    for _ in range(bits):  # random invertible matrix by row operations
        i, j = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if i != j:
            basis[i] ^= basis[j]
    basis = draw(st.permutations(basis))
    extra = draw(st.integers(0, 2)) if copies else 0
    lane = [*basis[: 5 - extra], *([0] * extra)]
    lane = draw(st.permutations(lane))
    rest = basis[5 - extra :]
    return L.layout((1 << bits,), register=rest[warps:], lane=lane, warp=rest[:warps])


@given(distributed(), distributed())
@settings(max_examples=50, deadline=None)
def test_inverse_and_places(left, right):
    there = left.inverse()
    flat = np.arange(256)
    place = there.apply(dim0=flat)
    register, lane, warp = place & 3, place >> 2 & 31, place >> 7
    assert (left.apply(register=register, lane=lane, warp=warp) == flat).all()
    across = left.places_in(right)
    assert tuple(combine(right.images, image) for image in across.images) == left.images


def test_tensor_operations_keep_elements_in_place():
    value = L.blocked((8, 16), warps=2, vector=4)
    array = np.arange(128).reshape(8, 16)
    flipped = value.transpose((1, 0))
    assert (array.T.ravel()[holdings(flipped)] == array.ravel()[holdings(value)]).all()
    assert value.reshape((2, 4, 16)).shape == (2, 4, 16)
    row = value.slice(1)
    i = np.arange(row.size("lane"))
    assert (row.apply(lane=i, warp=1) == value.coordinates(lane=i, warp=1)[0]).all()
    assert row.reshape((8, 1)).slice(1) == row
    with pytest.raises(ValueError, match="another number of elements"):
        value.reshape((8, 8))


# Conversions.


def swapped(swaps: tuple[L.Swap, ...]) -> np.ndarray:
    """What swaps XOR to register numbers, by lane."""
    return np.array(
        [
            sum((lane & swap.mask).bit_count() % 2 << swap.bit for swap in swaps)
            for lane in range(32)
        ]
    )


def run(source: LinearLayout, destination: LinearLayout, conversion: L.Conversion) -> np.ndarray:
    """What [warp, lane, register] holds after the conversion; starts with element numbers."""
    held = holdings(source)
    if conversion.kind in ("none", "registers"):
        return held[:, :, list(conversion.registers)]
    plan = conversion.shuffles
    assert plan is not None
    pack = 1 << plan.packed_bits
    words = held.reshape(*held.shape[:2], -1, pack)
    lanes = np.arange(32)
    positions = np.arange(words.shape[2])
    before = swapped(plan.before)
    words = words[:, lanes[:, None], positions[None] ^ before[:, None]]
    kept = np.full((held.shape[0], 32, len(plan.rounds), pack), -1)
    source_lane = np.array([combine(plan.lanes, lane) for lane in range(32)])
    for step in plan.rounds:
        lane = source_lane ^ step.lane_xor
        assert step.moves or (lane == lanes).all()
        kept[:, :, step.keep] = words[:, lane, step.send]
    after = swapped(plan.after)
    final = np.array(plan.words)[None] ^ after[:, None]
    return kept[:, lanes[:, None], final].reshape(held.shape[0], 32, -1)


@given(distributed(bits=8, warps=0, copies=True), distributed(bits=8, warps=0, copies=True))
@settings(max_examples=150, deadline=None)
def test_conversions_inside_a_warp(source, destination):
    conversion = L.convert(source, destination)
    if conversion.kind == "shared":
        assert source.copies("lane") or destination.copies("lane")
        return
    assert (run(source, destination, conversion) == holdings(destination)).all()


def test_plans_of_conversions():
    row = L.blocked((16, 16), 1, 8)
    accumulator = L.mma_accumulator(16, 8) * L.layout((1, 2), register=[(0, 1)])
    conversion = L.convert(accumulator, L.mma_a(16, 16, 16), 16)
    assert conversion.kind == "none"
    conversion = L.convert(row, accumulator, 16)
    assert conversion.kind == "shuffles" and conversion.shuffles is not None
    assert conversion.shuffles.packed_bits == 1
    assert len(conversion.shuffles.rounds) == 4
    assert (run(row, accumulator, conversion) == holdings(accumulator)).all()
    swapped_registers = row.with_inputs(register=row.bits("register")[::-1])
    assert L.convert(row, swapped_registers).kind == "registers"
    turned = L.blocked((64, 64), 4, 8).transpose((1, 0))
    assert L.convert(L.blocked((64, 64), 4, 8), turned, 16).kind == "shared"
    assert L.convert(row, row) == L.Conversion("none", tuple(range(8)))
    # Broadcast sources are read in place.
    sliced = L.mma_accumulator(16, 8).slice(1)
    assert L.convert(sliced, sliced).kind == "none"


# Shared memory.


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_swizzled_tiles_follow_the_address_formula(swizzle, element_bytes):
    shape = (32, 256)
    tile = L.swizzled(shape, element_bytes, swizzle)
    width = swizzle // element_bytes
    row, column = np.meshgrid(np.arange(32), np.arange(256), indexing="ij")
    address = (column // width * 32 * width + row * width + column % width) * element_bytes
    address ^= (address >> 7 & swizzle // 16 - 1) << 4
    assert (tile.apply(offset=address // element_bytes) == row * 256 + column).all()


def brute_wavefronts(plan: L.Addresses, lane_of=None) -> int:
    width = plan.bytes
    per = min(32, 128 // width)
    worst = 0
    for access in plan.accesses:
        for start in range(0, 32, per):
            banks: dict[int, set[int]] = {}
            for lane in range(start, start + per):
                values = {"lane": lane, "warp": 0}
                address = plan.address(access, **{t.name: values[t.name] for t in plan.terms})
                for word in range(address // 4, (address + max(4, width)) // 4):
                    banks.setdefault(word % 32, set()).add(word)
            words = sum(len(found) for found in banks.values())
            worst = max(worst, max(len(found) for found in banks.values()) // max(1, words // 32))
    return worst


VALUES = [
    L.blocked((64, 128), 4, 8),
    L.blocked((128, 64), 4, 8).transpose((1, 0)),
    L.wgmma_accumulator(128),
    L.blocked((64, 128), 4, 4),
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "tile", [L.row_major((64, 128)), L.swizzled((64, 128), 2, 128), L.swizzled((64, 128), 2, 32)]
)
def test_addresses_and_conflicts(value, tile):
    plan = L.addresses(value, tile, 2)
    where = tile.inverse()
    for access in plan.accesses[:8]:
        for lane, warp in itertools.product(range(0, 32, 3), range(4)):
            for i, register in enumerate(access.registers):
                flat = value.apply(register=register, lane=lane, warp=warp)
                dim0, dim1 = tile.split(flat)
                wanted = where.apply(dim1=dim1, dim0=dim0) * 2
                assert plan.address(access, lane=lane, warp=warp) + 2 * i == wanted
    assert sorted(r for a in plan.accesses for r in a.registers) == list(
        range(value.size("register"))
    )
    if plan.bytes >= 4:
        assert L.wavefronts(value, tile, 2) == brute_wavefronts(plan)


def test_the_best_tile_has_fewer_conflicts():
    flat = L.row_major((64, 128))
    row, column, accumulator = VALUES[0], VALUES[1], VALUES[2]
    assert L.wavefronts(accumulator, flat, 2) == 8
    tile = L.best_tile(row, accumulator, 2)
    assert L.wavefronts(row, tile, 2) == L.wavefronts(accumulator, tile, 2) == 1
    assert tile.span.rank == len(tile.images) == tile.output_bits
    turned = L.best_tile(row, column, 2)
    assert L.wavefronts(column, turned, 2) + L.wavefronts(row, turned, 2) < (
        L.wavefronts(column, flat, 2) + L.wavefronts(row, flat, 2)
    )


@pytest.mark.parametrize(
    ("value", "tile", "transposed"),
    [
        (L.wgmma_accumulator(128), L.swizzled((64, 128), 2, 128), False),
        (L.mma_a(16, 16, 16), L.row_major((16, 16)), False),
        (L.mma_b(16, 8, 16), L.row_major((16, 8)), True),
        (L.mma_tiles((64, 64, 64), (16, 8, 16), 16, 16, (2, 2))[0],
         L.swizzled((64, 64), 2, 128), False),
        (L.mma_tiles((64, 64, 64), (16, 8, 16), 16, 16, (2, 2))[1],
         L.swizzled((64, 64), 2, 128), True),
        (L.mma_tiles((64, 64, 64), (16, 8, 16), 16, 16, (2, 2))[1],
         L.swizzled((64, 64), 2, 128).transpose((1, 0)), False),
    ],
)  # fmt: skip
def test_matrix_loads_bring_what_the_fragment_holds(value, tile, transposed):
    access = matrix_access(value, tile, 2)
    assert access.transposed == transposed
    plan = access.addresses
    for step, warp in itertools.product(plan.accesses, range(value.size("warp"))):
        for matrix in range(access.count):
            rows = [
                plan.address(step, **{t.name: {"lane": 8 * matrix + row, "warp": warp}[t.name]
                                      for t in plan.terms})
                for row in range(8)
            ]  # fmt: skip
            assert all(row % 16 == 0 for row in rows)
            held = np.array([[tile.apply(offset=a // 2 + i) for i in range(8)] for a in rows])
            if transposed:
                held = held.T
            got = held[(LANES // 4)[:, None], (LANES % 4 * 2)[:, None] + [0, 1]]
            for i in range(2):
                register = step.registers[2 * matrix + i]
                wanted = value.apply(register=register, lane=LANES, warp=warp)
                assert (got[:, i] == wanted).all()


def test_matrix_accesses_need_matching_layouts():
    accumulator = L.wgmma_accumulator(128)
    assert L.matrix_access(accumulator, L.row_major((64, 128)).transpose((0, 1)), 2) is not None
    assert L.matrix_access(L.blocked((64, 128), 4, 8), L.row_major((64, 128)), 2) is None
    access = matrix_access(accumulator, L.swizzled((64, 128), 2, 128), 2)
    assert access.count == 4 and L.matrix_wavefronts(access) == 1
    flat = matrix_access(accumulator, L.row_major((64, 128)), 2)
    assert L.matrix_wavefronts(flat) == 8
    # Bytes: rows of 16 elements, plain only.
    assert matrix_access(L.mma_a(16, 32, 8), L.row_major((16, 32)), 1).count == 4
    assert L.matrix_access(L.mma_b(32, 8, 8), L.row_major((32, 8)), 1) is None


def test_stmatrix_addresses_are_those_of_the_hand_written_epilogue():
    access = matrix_access(L.wgmma_accumulator(256), L.swizzled((64, 256), 2, 128), 2)
    for index, step in enumerate(access.addresses.accesses):
        for warp, lane in itertools.product(range(4), range(32)):
            row = 16 * warp + lane % 16
            chunk = (lane >> 4 ^ lane & 7) << 4 ^ 32 * (index % 4)
            by_hand = index // 4 * 8192 + row * 128 + chunk
            assert access.addresses.address(step, lane=lane, warp=warp) == by_hand

"""Placing buffers: never overlapping, never below the bound, tight where that is easy."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from girih.optimizer.memory import Interval, live_bound, place

intervals = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)).map(
        lambda t: Interval(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(intervals)
def test_live_buffers_never_overlap_and_the_bound_holds(items):
    placement = place(items)
    rounded = [Interval(-(-max(i.bytes, 1) // 64) * 64, i.first, i.last) for i in items]
    assert placement.arena_bytes >= placement.bound_bytes == live_bound(rounded)
    assert placement.live_bytes == live_bound(items) <= placement.bound_bytes
    for (a, x), (b, y) in itertools.combinations(enumerate(rounded), 2):
        if x.first <= y.last and y.first <= x.last:
            begin, other = placement.offsets[a], placement.offsets[b]
            assert begin + x.bytes <= other or other + y.bytes <= begin
    assert all(offset % 64 == 0 for offset in placement.offsets)


def test_a_chain_needs_two_buffers():
    items = [Interval(1024, step, step + 1) for step in range(20)]
    placement = place(items)
    assert placement.arena_bytes == 2048 and placement.proven


def test_nothing_needs_nothing():
    assert place([]).arena_bytes == 0

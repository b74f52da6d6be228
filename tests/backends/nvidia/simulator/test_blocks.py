"""What a launch may touch, and blocks that meet in global memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from girih.backends.nvidia import simulator
from girih.backends.nvidia.simulator.blocks import followed
from girih.backends.nvidia.simulator.launch import program_of
from girih.backends.nvidia.simulator.report import SimulationError
from girih.backends.nvidia.simulator.windows import Window, Windows

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
  .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .b64 %rd<8>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
"""
NUMBER = "mad.lo.u32 %r3, %r2, 32, %r1;"
PLACE = "mul.wide.u32 %rd3, %r3, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;"


def window(address: int, count: int, name: str) -> Window:
    return Window(address, 4 * count, name, f"f32[{count}]", (count,), 4)


def run(body: str, windows: list[tuple[int, int]]) -> np.ndarray:
    """256 floats, of which `windows` (first, count) are x and y; the floats afterwards."""
    module = simulator.parse(HEAD + body + "  ret;\n}\n")
    memory = simulator.GlobalMemory()
    base = memory.allocate(1024)
    memory.write(base, np.arange(256, dtype=np.float32))
    places = [base + 4 * first for first, _ in windows]
    seen = [window(at, n, name) for at, (_, n), name in zip(places, windows, "xy", strict=True)]
    given = [at.to_bytes(8, "little") for at in places]
    simulator.launch(module, "k", (2, 1, 1), (32, 1, 1), given, memory, windows=seen)
    return memory.read(base, np.float32, 256)


COPY = f"{NUMBER} {PLACE} ld.global.b32 %r4, [%rd4]; st.global.b32 [%rd5], %r4;"


def test_a_launch_within_its_arrays():
    found = run(COPY, [(0, 64), (128, 64)])
    np.testing.assert_array_equal(found[128:192], found[:64])


@pytest.mark.parametrize("windows, says", [
    ([(0, 60), (128, 64)], "index [60] of x, f32[60], 0 bytes past its end"),
    ([(0, 64), (128, 60)], "index [60] of y, f32[60], 0 bytes past its end"),
])  # fmt: skip
def test_a_neighbour_is_not_a_kernels_own(windows, says):
    with pytest.raises(SimulationError, match=re.escape(says)) as error:
        run(COPY, windows)
    assert error.value.fault.kind == "bounds"
    assert "block (1, 0, 0) thread (28, 0, 0)" in str(error.value)


def test_an_access_over_an_end():
    body = "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd1+48];"
    run(body, [(0, 16), (32, 4)])
    with pytest.raises(SimulationError, match=r"16 bytes at \S+, over the end of x, f32\[15\]"):
        run(body, [(0, 15), (32, 4)])


RACES = {
    "stores what block (1, 0, 0) stores": "add.u64 %rd5, %rd2, 64; st.global.b32 [%rd5], %r2;",
    "loads what block (0, 0, 0) stored": f"""
      setp.ne.u32 %p1, %r2, 0; {NUMBER} {PLACE}
      @%p1 bra second;
      st.global.b32 [%rd4+128], %r1;
      bra done;
    second: bar.sync 0; ld.global.b32 %r5, [%rd4]; st.global.b32 [%rd5+256], %r5;
    done:""",
    "stores what block (0, 0, 0) loads": f"""{NUMBER} {PLACE} ld.global.b32 %r4, [%rd4+128];
      st.global.b32 [%rd4], %r1;""",
}


@pytest.mark.parametrize("says", RACES)
def test_blocks_that_meet(says):
    with pytest.raises(SimulationError, match=re.escape(says)) as error:
        run(RACES[says], [(0, 160), (160, 90)])
    assert error.value.fault.kind == "race"
    assert "blocks of a launch have no order" in str(error.value)


@pytest.mark.parametrize("body", [
    "st.global.b32 [%rd2+64], 7;",  # the same bits
    # Halves of one word.
    """mul.wide.u32 %rd3, %r2, 2; add.u64 %rd5, %rd2, %rd3; cvt.u16.u32 %h1, %r2;
       st.global.b16 [%rd5], %h1;""",
    "atom.global.add.u32 %r4, [%rd2], 1; st.global.b32 [%rd2+64], %r2;",  # they may agree
    # Masked threads load where the array begins.
    f"""{NUMBER} {PLACE} ld.global.b32 %r4, [%rd1]; setp.eq.u32 %p1, %r3, 0;
        @%p1 st.global.b32 [%rd1], 9;""",
])  # fmt: skip
def test_what_is_no_race(body):
    run(body, [(0, 64), (128, 64)])


def test_granules_are_as_small_as_stores():
    def of(body: str) -> int:
        module = simulator.parse(HEAD + body + "  ret;\n}\n")
        return followed(program_of(module, "k")[0])

    assert of("st.global.b32 [%rd1], %r1;") == 4 and of("ld.global.b32 %r1, [%rd1];") == 0
    assert of("st.global.b32 [%rd1], %r1; st.global.b16 [%rd1], %h1;") == 2
    assert of("st.global.b32 [%rd1], %r1; st.local.b16 [%rd1], %h1;") == 4
    assert of("st.global.b32 [%rd1], %r1; membar.gl;") == 0


def test_names_of_addresses():
    memory = simulator.GlobalMemory()
    base = memory.allocate(64)
    one = Window(base, 48, "a", "f32[4,3]", (4, 3), 4)
    windows = Windows(memory, [one, Window(base + 48, 16, "b", "16 bytes", (), 0)])
    assert windows.name(base + 20) == "index [1, 2] of a, f32[4,3]"
    assert windows.name(base + 50) == "b, 16 bytes"
    assert windows.place(base - 4) == "4 bytes before a, f32[4,3]"
    assert windows.place(base + 70) == "6 bytes past the end of b, 16 bytes"
    assert windows.span(base + 40, 8) is not None and windows.span(base + 40, 16) is None
    assert windows.find(base + 64) is None

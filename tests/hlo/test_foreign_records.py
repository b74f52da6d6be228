"""Records of foreign kernels and the PTX that they hold: what is read back, and what is refused."""

from __future__ import annotations

import contextlib
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo import ptx
from girih.hlo.errors import UserError
from girih.hlo.foreign import (
    BufferAddress,
    DeviceCode,
    DeviceLaunch,
    HostCode,
    Number,
    TensorMap,
    read_codes,
)

HEAD = ".version 8.3\n.target sm_80\n.address_size 64\n"
SCALE = (
    HEAD
    + """
// scales; "quoted // text" and /* comments */ are none
.file 1 "scale.cu"
.extern .shared .align 16 .b8 buffer[];
.global .align 4 .b32 table[2] = {1, 2}, one = 7;
.const .f32 half = 0f3F000000;
.func (.param .b32 out) helper (.param .b32 in);
.extern .func (.param .b32 status) vprintf (.param .b64 text, .param .b64 rest);
.visible .entry scale(
    .param .u64 .ptr .global .align 16 scale_param_0,
    .param .u64 scale_param_1,
    .param .f32 factor,
    .param .align 64 .b8 map[128]
)
.maxntid 128, 1, 1
.minnctapersm 2
{
    .reg .b32 %r<4>;
    .loc 1 3 0
    mov.u32 %r1, table;
    mov.u32 %r2, %tid.x;
    { .reg .pred p; setp.eq.s32 p, %r1, %r2; @p bra $done; }
$done:
    ret;
}
.func (.param .b32 out) helper (.param .b32 in) { ret; }
.section .debug_str { $text: .b8 104, 0 }
"""
)
ARGUMENTS = (
    BufferAddress(0), BufferAddress(1), Number("f32", bytes(4)),
    TensorMap(BufferAddress(0), "f32", (8, 4), (32,), (8, 4), 32),
)  # fmt: skip


def launch(**changes) -> DeviceLaunch:
    facts = {"entry": "scale", "grid": (4, 1, 1), "block": (128, 1, 1), "arguments": ARGUMENTS}
    return DeviceLaunch(**{**facts, **changes})


def test_declarations():
    found = ptx.declared(SCALE)
    assert (found.version, found.target) == ((8, 3), "sm_80")
    assert found.names == {"buffer", "table", "one", "half", "helper", "scale"}
    assert found.outside == {"vprintf"}
    entry = found.entries["scale"]
    assert [str(p) for p in entry.parameters] == [".u64", ".u64", ".f32", ".b8[128]"]
    assert (entry.maximum_block, entry.required_block) == ((128, 1, 1), ())


def test_renaming_touches_the_names_of_the_module_alone():
    text = ptx.renamed(SCALE, "k1_")
    again = ptx.declared(text)
    assert again.names == {f"k1_{name}" for name in ptx.declared(SCALE).names}
    assert again.outside == {"vprintf"}
    assert "mov.u32 %r1, k1_table;" in text and "$done:" in text and "factor" in text
    assert ".loc 1 3 0" in text and text.count(".file") == SCALE.count(".file")
    assert "debug" not in text and "//" not in text
    assert again.entries["k1_scale"] == ptx.declared(SCALE).entries["scale"]


def test_records_survive_their_attributes():
    device = DeviceCode(SCALE, (launch(cluster=(2, 1, 1), shared=64),), 128)
    host = HostCode("f", b"\x7fELF", "x86_64", ("avx2", "fma"), 3, 64)
    text = HostCode("f", "define ...", tiles=2)
    unknown = {"target": "other", "language": "new"}
    codes = (device.as_attribute(), unknown, host.as_attribute(), text.as_attribute())
    assert read_codes(codes) == (device, host, text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"entry": "other"}, "no entry 'other'; it has scale"),
        ({"arguments": ARGUMENTS[:2]}, r"takes 4 parameters \(.u64, .u64, .f32, .b8\[128\]\)"),
        ({"arguments": (Number("f32", bytes(4)), *ARGUMENTS[1:])}, "0 is .u64, .*type f32"),
        (
            {"arguments": (*ARGUMENTS[:2], BufferAddress(0), ARGUMENTS[3])},
            "2 is .f32, .*an address",
        ),
        ({"arguments": (*ARGUMENTS[:2], Number("i32", bytes(4)), ARGUMENTS[3])}, "type i32"),
        ({"arguments": (*ARGUMENTS[:2], Number("f64", bytes(8)), ARGUMENTS[3])}, "type f64"),
        ({"arguments": (*ARGUMENTS[:3], BufferAddress(0))}, r"3 is .b8\[128\]"),
        ({"arguments": (ARGUMENTS[3], *ARGUMENTS[1:])}, "tensor map, which is"),
        ({"block": (256, 1, 1)}, "allows blocks of 128 threads, its launch has 256"),
        ({"block": (2048, 1, 1)}, "the limit is 1024"),
        ({"block": (1, 1, 65)}, "64 along z"),
        ({"grid": (1, 65536, 1)}, "65535 blocks"),
        ({"cluster": (3, 1, 1)}, "do not divide"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, "more than 16"),
    ],
)
def test_launches_are_compared_with_their_entries(change, reason):
    ptx.check(DeviceCode(SCALE, (launch(),)))
    with pytest.raises(UserError, match=reason):
        ptx.check(DeviceCode(SCALE, (launch(**change),)))


def test_required_extents():
    text = SCALE.replace(".maxntid 128, 1, 1", ".reqntid 128\n.reqnctapercluster 2, 1, 1")
    ptx.check(DeviceCode(text, (launch(cluster=(2, 1, 1)),)))
    with pytest.raises(UserError, match=r"requires blocks of \[128, 1, 1\]"):
        ptx.check(DeviceCode(text, (launch(cluster=(2, 1, 1), block=(64, 1, 1)),)))
    with pytest.raises(UserError, match=r"requires clusters of \[2, 1, 1\]"):
        ptx.check(DeviceCode(text, (launch(),)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no PTX"),
        ("int main() {}", "where a declaration should begin"),
        (HEAD + ".visible .entry f(.param .u64 a) {", "ends in the middle"),
        (HEAD + ".visible .entry f(.reg .u64 a) {}", "parameter that is none"),
        (HEAD + ".visible .entry f .maxntid x {}", "no entry"),
        (HEAD.replace("8.3", "eight"), "version 'eight'"),
        (HEAD.replace("64", "32"), "32 bits"),
        (HEAD + ".extern .func cudaMalloc;\n.entry scale () {}", "calls 'cudaMalloc'"),
    ],
)
def test_what_is_no_ptx(text, reason):
    with pytest.raises(UserError, match=reason):
        ptx.check(DeviceCode(text, (launch(),)))


@pytest.mark.parametrize(
    ("wanted", "given", "runs"),
    [
        ("sm_80", "sm_80", True), ("sm_80", "sm_90a", True), ("sm_90", "sm_80", False),
        ("sm_90a", "sm_90a", True), ("sm_90a", "sm_100a", False), ("sm_90a", "sm_90", False),
        ("sm_100f", "sm_103a", True), ("sm_100f", "sm_120a", False), ("sm_80x", "sm_80", False),
    ],
)  # fmt: skip
def test_which_code_runs_where(wanted, given, runs):
    assert ptx.runs_on(wanted, given) is runs


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_ptx_is_refused_or_read(seed):
    """Never anything but a result or a UserError."""
    chance = random.Random(seed)
    tokens = re.findall(r"\s+|\w+|.", SCALE, re.DOTALL)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(tokens))
        pick = chance.choice(("drop", "copy", "swap", "cut"))
        if pick == "drop":
            del tokens[place]
        elif pick == "copy":
            tokens.insert(place, chance.choice(tokens))
        elif pick == "swap":
            other = chance.randrange(len(tokens))
            tokens[place], tokens[other] = tokens[other], tokens[place]
        elif chance.random() < 0.3:
            tokens = tokens[:place] or [""]
    text = "".join(tokens)
    try:
        ptx.check(DeviceCode(text, (launch(),)))
        ptx.declared(ptx.renamed(text, "k_"))
    except UserError:
        pass


FIELDS = ("target", "language", "entry", "code", "features", "tiles", "scratch", "launches")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(FIELDS),
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3),
        st.tuples(st.integers()), st.just(()), st.just(({"entry": 3},)),
    ),
    st.booleans(),
)  # fmt: skip
def test_damaged_records_are_refused_or_read(field, value, device):
    made = DeviceCode(SCALE, (launch(),)) if device else HostCode("f", "text")
    with contextlib.suppress(UserError):
        read_codes(({**made.as_attribute(), field: value},))

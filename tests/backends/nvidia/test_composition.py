"""Kernels that are bodies of one entry compute what they compute alone."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.composition import (
    BlockRange,
    EntryText,
    Remap,
    Row,
    compose,
    entry_of,
    inlined,
)
from girih.backends.nvidia.simulator import GlobalMemory, launch, parse
from girih.backends.nvidia.target import target
from girih.hlo.errors import CompilerBug

# out[block] = the sum over the block's threads t of x[block * threads + t] * scale, by a tree in
# shared memory; blocks are counted along x and y.
_SUM = """
.visible .entry {name}(
	.param .u64 .ptr .global .align 16 {name}_param_0,
	.param .u32 {name}_param_1,
	.param .u64 .ptr .global .align 16 {name}_param_2
)
.maxntid {threads}
{{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<16>;
	.reg .b64 	%rd<8>;
	ld.param.b64 	%rd1, [{name}_param_0];
	ld.param.b32 	%r1, [{name}_param_1];
	ld.param.b64 	%rd2, [{name}_param_2];
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ctaid.y;
	mov.u32 	%r4, %nctaid.x;
	mad.lo.s32 	%r5, %r3, %r4, %r2;
	mov.u32 	%r6, %ntid.x;
	mov.u32 	%r7, %tid.x;
	mad.lo.s32 	%r8, %r5, %r6, %r7;
	mul.wide.u32 	%rd3, %r8, 4;
	add.s64 	%rd4, %rd1, %rd3;
	ld.global.u32 	%r9, [%rd4];
	mul.lo.s32 	%r9, %r9, %r1;
	shl.b32 	%r10, %r7, 2;
	mov.b32 	%r11, shared;
	add.s32 	%r11, %r11, %r10;
	st.shared.u32 	[%r11], %r9;
	mov.b32 	%r12, {half};
$L__BB0_1:
	bar.sync 	0;
	setp.ge.u32 	%p1, %r7, %r12;
	@%p1 bra 	$L__BB0_2;
	shl.b32 	%r13, %r12, 2;
	add.s32 	%r13, %r11, %r13;
	ld.shared.u32 	%r14, [%r13];
	ld.shared.u32 	%r15, [%r11];
	add.s32 	%r15, %r14, %r15;
	st.shared.u32 	[%r11], %r15;
$L__BB0_2:
	shr.u32 	%r12, %r12, 1;
	setp.ne.b32 	%p2, %r12, 0;
	@%p2 bra 	$L__BB0_1;
	setp.ne.b32 	%p1, %r7, 0;
	@%p1 bra 	$L__BB0_3;
	mul.wide.u32 	%rd5, %r5, 4;
	add.s64 	%rd6, %rd2, %rd5;
	st.global.u32 	[%rd6], %r15;
$L__BB0_3:
	ret;
}}
"""
_HEAD = """.version 8.1
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 shared[];
"""
_ROW = Row(0, (0, 8, 16), 64)


def _sum(name: str, threads: int) -> str:
    return _SUM.format(name=name, threads=threads, half=threads // 2)


def _module() -> tuple[str, list[BlockRange]]:
    """Three rows of one kernel, two of another one of other threads: 3 * 4 + 2 * 6 blocks."""
    text = _sum("small$", 64) + _sum("large$", 256)
    first = BlockRange(entry_of(text, "small$"), (4, 1, 1), _ROW, 3)
    second = BlockRange(entry_of(text, "large$"), (2, 3, 1), _ROW._replace(begin=192), 2)
    return _HEAD + text + compose("both$", [first, second], 320), [first, second]


def _run() -> None:
    """Runs all of them as one launch; AssertionError where a sum is wrong."""
    text, ranges = _module()
    memory, rng = GlobalMemory(), np.random.default_rng(0)
    table, wanted = b"", []
    for one in ranges:
        for number in range(one.repeats):
            values = rng.integers(0, 1000, one.each * one.body.threads).astype(np.uint32)
            source, result = memory.allocate(values.nbytes), memory.allocate(4 * one.each)
            memory.write(source, values)
            scale = number + 2
            table += source.to_bytes(8, "little") + scale.to_bytes(8, "little")
            table += result.to_bytes(8, "little") + bytes(40)
            wanted.append((result, values.reshape(one.each, -1).sum(1) * scale))
    blocks = sum(one.blocks for one in ranges)
    report = launch(
        parse(text), "both$", (blocks, 1, 1), (256, 1, 1), [table], memory,
        shared_bytes=1024,
    )  # fmt: skip
    assert not report.faults
    for result, sums in wanted:
        np.testing.assert_array_equal(memory.read(result, np.uint32, sums.size), sums)


def test_bodies_of_several_sizes_and_rows_are_one_launch():
    _run()


def test_barriers_count_the_threads_of_their_body():
    """Threads beyond those of a body have left: what they would have arrived at says so."""
    text, _ = _module()
    body = text[text.index("both$(") :]
    assert len(re.findall(r"bar\.sync\s+0, 64;", body)) == 1
    assert len(re.findall(r"bar\.sync\s+0;", body)) == 1


def test_a_repeated_kernel_is_one_body():
    text, ranges = _module()
    more = compose("both$", [ranges[0]._replace(repeats=64), ranges[1]], 64 * 66)
    assert len(more) < len(compose("both$", ranges, 320)) + 40
    assert text.count("st.global") == 4  # each of both kernels, alone and as a body


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_an_entry_has_as_many_registers_as_its_largest_body():
    usages = assemble(_module()[0], target("sm_90a").architecture).usages
    alone = max(usages["small$"].registers, usages["large$"].registers)
    assert usages["both$"].registers <= alone + 4
    assert not usages["both$"].spill_store_bytes and not usages["both$"].stack_bytes


def test_what_no_body_can_be():
    text = _HEAD + _sum("one$", 64)
    with pytest.raises(CompilerBug, match="no entry other"):
        entry_of(text, "other")
    entry = entry_of(text, "one$")
    to = Remap(("%x", "0", "0"), (1, 1, 1), "%a", (0, 8, 16), 128)
    grows = entry._replace(body="\tsetmaxnreg.dec.sync.aligned.u32 24;\n" + entry.body)
    with pytest.raises(CompilerBug, match="counts on all threads"):
        inlined(grows, to, 0)
    inlined(grows, to._replace(threads=64), 0)
    lost = EntryText(
        entry.name, entry.parameters, entry.directives, "\tmov.b64 %r, {one$_param_0};"
    )
    with pytest.raises(CompilerBug, match="uses a parameter"):
        inlined(lost, to, 0)


_WHERE = """
.visible .entry {name}(
	.param .u64 .ptr .global .align 16 {name}_param_0
)
.maxntid 32
{{
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<4>;
	ld.param.b64 	%rd1, [{name}_param_0];
	mov.u32 	%r1, %clusterid.x;
	mov.u32 	%r2, %nclusterid.x;
	mov.u32 	%r3, %cluster_ctarank;
	mov.u32 	%r4, %ctaid.x;
	mul.wide.u32 	%rd2, %r4, 16;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.v4.u32 	[%rd3], {{%r1, %r2, %r3, %r4}};
	ret;
}}
"""


def test_clusters_are_counted_within_their_body():
    text = _WHERE.format(name="first$") + _WHERE.format(name="second$")
    row = Row(0, (0,), 64)
    ranges = [
        BlockRange(entry_of(text, "first$"), (4, 1, 1), row, 2),
        BlockRange(entry_of(text, "second$"), (6, 1, 1), row._replace(begin=128)),
    ]
    memory = GlobalMemory()
    places = [memory.allocate(16 * count) for count in (4, 4, 6)]
    table = b"".join(place.to_bytes(8, "little") + bytes(56) for place in places)
    module = parse(_HEAD + text + compose("both$", ranges, 192, 2))
    launch(module, "both$", (14, 1, 1), (32, 1, 1), [table], memory, cluster=(2, 1, 1))
    for place, count in zip(places, (4, 4, 6), strict=True):
        wanted = [[block // 2, count // 2, block % 2, block] for block in range(count)]
        found = memory.read(place, np.uint32, 4 * count).reshape(count, 4)
        assert found.tolist() == wanted

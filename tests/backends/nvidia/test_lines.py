"""Lines of the user's program in PTX and machine code, and what the simulator says of them."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import girih
import girih.language as tl
from girih.backends.llvm import places
from girih.backends.nvidia import assemble, build, lines
from girih.backends.nvidia.target import ARCHITECTURES
from girih.hlo.errors import UserError
from girih.hlo.graph import Origin
from girih.options import Options

SOURCE = """
func.func @main(%a: tensor<8x16xf32>) -> tensor<8xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %a : tensor<8x16xf32> loc("{folder}model.py":{line}:1)
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32> loc("{folder}model.py":20:1)
  return %1 : tensor<8xf32>
}}
"""
FRESH = Options(cache="off")


@girih.kernel(
    out=lambda a, b: tl.Array((a.shape[0], b.shape[1]), a.dtype),
    grid=lambda a, b: (a.shape[0] // 64, b.shape[1] // 64),
)
def product(a, b, c):
    i, j = tl.tile_id(0) * 64, tl.tile_id(1) * 64
    total = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 32):
        left = a[i : i + 64, k : k + 32]
        right = b[k : k + 32, j : j + 64]
        total = tl.dot(left, right, total)
    c[i : i + 64, j : j + 64] = total.to(a.dtype)


@girih.kernel(out=lambda x: tl.Array(x.shape, x.dtype), grid=lambda x: (x.shape[0] // 16,))
def overlapping(x, y):
    i = tl.tile_id(0) * 16
    y[i : i + 32] = x[i : i + 32] * (1.0 + tl.tile_id(0).to(tl.float32))


@girih.kernel(
    out=lambda x: tl.Array(x.shape, x.dtype, start="x"), grid=lambda x: (x.shape[0] // 16,)
)
def in_place(x, y):
    i = tl.tile_id(0) * 16
    before = y[i - 1 : i + 15]
    y[i : i + 16] = before * 2.0


def line_of(kernel, text: str) -> int:
    """The line of this file on which a kernel says something."""
    code, first = inspect.getsourcelines(kernel.__wrapped__)
    (found,) = (first + n for n, line in enumerate(code) if text in line)
    return found


def ptx_of(program) -> str:
    (variant,) = program.parts.variants.values()
    return bytes(variant.image).decode()


def named(ptx: str) -> dict[str, set[int]]:
    """The lines that a module names, by file."""
    files = dict(re.findall(r'\.file (\d+) "([^"]*)"', ptx))
    found: dict[str, set[int]] = {}
    for file, line in re.findall(r"\.loc\t(\d+) (\d+)", ptx):
        found.setdefault(files[file], set()).add(int(line))
    return found


def line_above(ptx: str, instruction: str) -> set[int]:
    """Lines of the `.loc` before each instruction of a kind."""
    found, last = set(), 0
    for text in ptx.splitlines():
        match = re.match(r"\t\.loc\t\d+ (\d+)", text)
        last = int(match[1]) if match else last
        if re.search(instruction, text):
            found.add(last)
    return found


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_statements_of_a_kernel(architecture):
    arrays = [np.zeros((128, 128), np.float16)] * 2
    ptx = ptx_of(girih.compile(product, *arrays, target=f"nvidia:{architecture}", options=FRESH))
    copies, products = {
        "sm_80": (r"cp\.async\.c[ag]\.|ld\.global", r"mma\.sync"),
        "sm_90a": (r"cp\.async\.bulk\.tensor\.2d\.shared", r"wgmma\.mma_async"),
    }[architecture]
    loads = {line_of(product, "left ="), line_of(product, "right =")}
    assert line_above(ptx, copies) == loads
    assert line_above(ptx, products) == {line_of(product, "tl.dot")}
    assert set(named(ptx)) == {"test_lines.py"}


def test_equal_kernels_have_lines_of_their_own_programs():
    """The second program's kernels come from the cache of compiled ones."""
    first = ptx_of(girih.compile(SOURCE.format(folder="/a/", line=10), target="nvidia:sm_80"))
    second = ptx_of(
        girih.compile(SOURCE.format(folder="C:\\\\b\\\\", line=11), target="nvidia:sm_80")
    )
    assert named(first) == {"model.py": {10, 20}}
    assert named(second) == {"model.py": {11, 20}}
    assert first.replace(" 10 0\n", " 11 0\n") == second


def test_a_program_without_lines_has_none():
    text = re.sub(r" loc\([^\n]*\)", "", SOURCE.format(folder="", line=1))
    ptx = ptx_of(girih.compile(text, target="nvidia:sm_80"))
    assert ".loc" not in ptx and ".file" not in ptx


def test_comments_become_locations():
    ir = (
        "define ptx_kernel void @f(ptr %a) #0 {\nentry:\n  %v = load i32, ptr %a ;@7\n"
        "  br label %b ;@1, x\nb:\n  ret void ;@7\n}\n!3 = !{}\n"
    )
    found = places.with_places(ir)
    (scope,) = re.findall(r"@f\(ptr %a\) #0 !dbg !(\d+) \{", found)
    (seven,) = set(re.findall(r"(?:ptr %a|ret void), !dbg !(\d+)", found))
    assert f"!{seven} = !DILocation(line: 7, scope: !{scope})" in found
    assert ";@1, x" in found  # no mark: it does not end the line
    numbers = re.findall(r"^!(\d+) = ", found, re.MULTILINE)
    assert len(numbers) == len(set(numbers))
    assert places.with_places("define void @f() {\n}\n") == "define void @f() {\n}\n"


def test_files_of_several_modules_are_numbered_anew():
    files = lines.Files()
    ours = '\t.loc\t1 2 0\n\tret;\n\t.loc\t1 3 0\n\tret;\n\t.file\t1 "kernel"\n'
    origins = [None, None, Origin("/x/b.py", 5), None]
    assert lines.located(ours, origins, files) == "\t.loc\t1 5 0\n\tret;\n\tret;\n"
    theirs = '.file 1 "/u/a.cu"\n.file 2 "b.py"\n\t.loc 2 9 4\n\tret;\n\t.loc 1 8 0\n\tret;\n'
    found = lines.located(theirs, [], files)
    assert found == "\t.loc\t1 9 4\n\tret;\n\t.loc\t2 8 0\n\tret;\n"
    assert files.directives() == ['.file 1 "b.py"', '.file 2 "a.cu"']


@pytest.mark.requires_ptxas
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_lines_change_no_machine_code(architecture, monkeypatch):
    """Registers, shared memory and, where it can be shown, each instruction."""

    def assembled():
        monkeypatch.setattr(build, "CACHE", type(build.CACHE)())
        arrays = [np.zeros((128, 128), np.float16)] * 2
        program = girih.compile(product, *arrays, target=f"nvidia:{architecture}", options=FRESH)
        ptx = ptx_of(program)
        made = assemble.assemble(ptx, ARCHITECTURES[architecture])
        code = re.sub(r"^\s*//.*\n", "", assemble.disassemble(made.cubin) or "", flags=re.MULTILINE)
        return ptx, made.usages, re.findall(r"/\*[0-9a-f]{4}\*/[^\n]*", code)

    ptx, usages, code = assembled()
    monkeypatch.setattr(build, "with_places", lambda text: re.sub(r" ;@\d+$", "", text, flags=re.M))
    plain, plain_usages, plain_code = assembled()
    assert ".loc" in ptx and ".loc" not in plain
    assert usages == plain_usages and code == plain_code


@pytest.mark.parametrize("kernel, text, says", [
    (overlapping, "y[i", r"stores what block \(1, 0, 0\) stores, index \[16\] of argument 1"),
    (in_place, "y[i : i + 16]", r"stores what block \(1, 0, 0\) loads, index \[15\] of argument 1"),
])  # fmt: skip
def test_tiles_that_meet(kernel, text, says):
    program = girih.compile(kernel, np.arange(64, dtype=np.float32), target="ptx-sim:sm_80")
    with pytest.raises(UserError, match=says) as error:
        program(np.arange(64, dtype=np.float32))
    assert str(error.value).startswith(f"test_lines.py:{line_of(kernel, text)}: kernel ")
    assert "result 0 of the program), f32[64]; blocks of a launch have no order" in str(error.value)
    assert "thread (" in str(error.value) and "remedy: put a barrier" in str(error.value)


SCALE = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "/home/me/scale.cu"
.visible .entry scale(.param .u64 x, .param .u64 y)
{
  .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f32 %f1;
  .loc 1 12 0
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
  mad.lo.u32 %r3, %r2, 64, %r1;
  mul.wide.u32 %rd3, %r3, 4;
  add.u64 %rd1, %rd1, %rd3;
  add.u64 %rd2, %rd2, %rd3;
  .loc 1 14 0
  ld.global.f32 %f1, [%rd1];
  .loc 1 15 0
  st.global.f32 [%rd2], %f1;
  ret;
}
"""
LAUNCH = girih.foreign.Launch("scale", grid=2, block=64)
scale = girih.foreign_kernel(
    "scale", inputs=["x"], out=lambda x: x, codes=[girih.foreign.Ptx(SCALE, LAUNCH)]
)


def test_a_missing_mask_of_a_users_own_ptx():
    """Between the arena's arrays there is memory, which is not the kernel's."""
    x = np.ones((10, 10), np.float32)
    program = girih.compile(lambda x: scale(x * 2) + 1, x, target="ptx-sim:sm_80")
    with pytest.raises(UserError, match=r"index \[10, 0\] of argument 0 of the kernel") as error:
        program(x)
    assert str(error.value).startswith("scale.cu:14: kernel foreign_scale_")
    assert "f32[10,10], 0 bytes past its end, block (1, 0, 0) thread (36, 0, 0)" in str(error.value)
    assert "remedy: guard it with a mask" in str(error.value)


def test_counts_by_line():
    a = np.ones((64, 64), np.float16)
    program = girih.compile(product, a, a, target="ptx-sim:sm_80")
    profile = program.profile(a, a)
    counted = profile.lines()
    dot, store = (line_of(product, text) for text in ("tl.dot", "c[i"))
    for text in ("left =", "right ="):  # each brings 64 x 64 halves
        assert counted[f"test_lines.py:{line_of(product, text)}"]["global_sectors_ideal"] == 256
    assert "global_sectors" not in counted[f"test_lines.py:{dot}"]
    assert counted[f"test_lines.py:{store}"]["global_sectors_ideal"] == 256
    (kernel,) = profile.kernels()
    for name, total in kernel.counters.items():
        assert sum(counts.get(name, 0) for counts in counted.values()) == total
    np.testing.assert_array_equal(profile.outputs, a @ a)

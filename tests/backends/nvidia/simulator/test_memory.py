"""Loads, stores, atomics in all spaces; faults of access; counted costs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from girih.backends.nvidia.simulator import GlobalMemory, SimulationError, launch, parse
from girih.hlo.errors import UserError

from .elementwise import HEAD, floats, integers, kernel, pointer, run

COOPERATIVE = "  activemask.b32 %r59;\n"


@pytest.mark.parametrize("type_", ["b8", "s8", "u16", "s16", "b32", "b64", "f32", "f64"])
def test_widths_of_loads(type_: str) -> None:
    size = int(type_[1:]) // 8
    dtype = np.dtype({"s": "i", "f": "f"}.get(type_[0], "u") + str(size))
    a = integers(f"u{size}").view(dtype)
    register, wide = {1: ("%r1", 4), 2: ("%r1", 4), 4: ("%r1", 4), 8: ("%d1", 8)}[size]
    text = kernel(
        f"""
  mad.wide.u32 %d2, %t, {size}, %a0;
  mad.wide.u32 %d3, %t, {wide}, %a1;
  ld.global.{type_} {register}, [%d2];
  st.global.b{8 * wide} [%d3], {register};
""",
        2,
    )
    found, _ = run(text, [a], [(np.dtype(f"u{wide}"), 256)], (8, 1, 1))
    extended = a.astype(f"i{wide}") if type_[0] == "s" else a.view(f"u{size}").astype(f"u{wide}")
    assert (found[0] == extended.view(f"u{wide}")).all()


@pytest.mark.parametrize(
    "count,size", [(2, 2), (4, 2), (2, 4), (4, 4), (2, 8), (8, 4), (4, 8), (4, 1)]
)
def test_vectors(count: int, size: int) -> None:
    letter = {1: "h", 2: "h", 4: "r", 8: "d"}[size]
    registers = ", ".join(f"%{letter}{i + 10}" for i in range(count))
    turned = ", ".join(f"%{letter}{i + 10}" for i in reversed(range(count)))
    text = kernel(
        f"""
  mad.wide.u32 %d2, %t, {count * size}, %a0;
  mad.wide.u32 %d3, %t, {count * size}, %a1;
  ld.global.nc.v{count}.b{8 * size} {{{registers}}}, [%d2];
  st.global.v{count}.b{8 * size} [%d3], {{{turned}}};
""",
        2,
    )
    a = integers(f"u{size}", 64 * count)
    found, _ = run(text, [a], [(a.dtype, a.size)], (2, 1, 1))
    assert (found[0].reshape(-1, count) == a.reshape(-1, count)[:, ::-1]).all()


def test_generic_addresses() -> None:
    """One load that reads global, shared, local and parameter memory, thread by thread."""
    text = kernel(
        """
  .local .align 8 .b8 stack[8];
  mov.b64 %d1, stack;
  cvta.local.u64 %d1, %d1;
  mov.b64 %d2, buffer;
  cvta.shared.u64 %d2, %d2;
  mov.b64 %d3, p0;
  cvta.param.u64 %d3, %d3;
  add.u64 %d3, %d3, 4;
  add.u32 %r1, %t, 1000;
  add.u32 %r2, %t, 2000;
  st.local.u32 [stack+4], %r1;
  mad.wide.u32 %d2, %t, 4, %d2;
  st.u32 [%d2], %r2;
  and.b32 %r3, %t, 3;
  mov.b64 %d4, %a0;
  setp.eq.u32 %p1, %r3, 1;
  @%p1 mov.b64 %d4, %d2;
  setp.eq.u32 %p2, %r3, 2;
  add.u64 %d5, %d1, 4;
  @%p2 mov.b64 %d4, %d5;
  setp.eq.u32 %p3, %r3, 3;
  @%p3 mov.b64 %d4, %d3;
  isspacep.shared %p4, %d4;
  isspacep.local %p5, %d4;
  isspacep.global %p6, %d4;
  ld.u32 %r4, [%d4];
  @%p4 add.u32 %r4, %r4, 10000;
  @%p5 add.u32 %r4, %r4, 20000;
  @%p6 add.u32 %r4, %r4, 30000;
  mad.wide.u32 %d6, %t, 4, %a1;
  st.global.u32 [%d6], %r4;
""",
        2,
        shared=128,
    )
    found, _ = run(text, [np.asarray([42], np.uint32)], [(np.uint32, 32)])
    i = np.arange(32)
    high = GlobalMemory().allocate(1) >> 32  # of the first parameter
    expected = np.choose(i % 4, [np.full(32, 30042), i + 12000, i + 21000, np.full(32, high)])
    assert (found[0] == expected).all()


def test_module_variables() -> None:
    head = """
.global .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
.const .align 4 .f32 scale[3] = {0f3F000000, 0f40000000, 0.25};
.global .align 8 .u64 places[2] = {table+4, generic(table)+8};
.global .align 4 .u32 counter;
"""
    text = kernel(
        """
  ld.global.u32 %r1, [table+12];
  ld.const.f32 %f1, [scale+4];
  ld.const.f32 %f2, [scale+8];
  fma.rn.f32 %f1, %f2, 0f40000000, %f1;
  add.f32 %f1, %f1, 0fBF000000;
  ld.global.u64 %d1, [places+8];
  ld.global.u32 %r2, [%d1];
  cvt.rzi.u32.f32 %r3, %f1;
  add.u32 %r1, %r1, %r2;
  mad.lo.u32 %r1, %r1, 10, %r3;
  atom.global.add.u32 %r4, [counter], 1;
  add.u32 %r1, %r1, %r4;
  mad.wide.u32 %d6, %t, 4, %a0;
  st.global.u32 [%d6], %r1;
""",
        1,
        head=head,
    )
    found, _ = run(text, [], [(np.uint32, 32)])
    assert (found[0] == 72 + np.arange(32)).all()


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    "name,type_",
    [
        *((n, t) for n in ("add", "min", "max", "exch") for t in ("u32", "s32", "u64")),
        *((n, "b32") for n in ("and", "or", "xor")),
        ("inc", "u32"),
        ("dec", "u32"),
        ("add", "f32"),
        ("add", "f64"),
        ("cas", "b32"),
        ("add", "noftz.f16x2"),
        ("add", "noftz.bf16x2"),
        ("max", "noftz.bf16"),
    ],
)
def test_atomics(name: str, type_: str, space: str) -> None:
    """Old values and results, in the order of the threads."""
    kinds = {"f32": np.float32, "f64": np.float64}
    plain = type_.removeprefix("noftz.")
    size = {"f16x2": 4, "bf16x2": 4, "bf16": 2}.get(plain) or int(plain[1:]) // 8
    if plain in kinds:
        values = floats(kinds[plain], 64, 3)
        values = np.where(np.isfinite(values), values, 1).astype(kinds[plain])
    elif "16" in plain:
        half = np.dtype(np.float16 if plain.startswith("f") else ml_dtypes.bfloat16)
        values = np.random.default_rng(0).standard_normal(64 * size // 2).astype(half)
        values = values.view(f"u{size}")
    else:
        values = integers({"s32": "i4", "u64": "u8"}.get(plain, "u4"), 64)
    r, address = {2: "%h", 4: "%r", 8: "%d"}[size], "%d9" if space == "global" else "%d8"
    shown = f"[{address}], {r}11, {r}12" if name == "cas" else f"[{address}], {r}11"
    expected_swap = f"mov.b{8 * size} {r}12, {r}11; and.b32 {r}11, %t, 4;" if name == "cas" else ""
    text = kernel(
        f"""
  mad.wide.u32 %d1, %t, {size}, %a0;
  mad.wide.u32 %d2, %t, {size}, %a2;
  ld.global.b{8 * size} {r}11, [%d1];
  {expected_swap}
  and.b32 %r13, %t, 7;
  mad.wide.u32 %d9, %r13, {size}, %a1;
  mov.b64 %d8, buffer;
  mad.wide.u32 %d8, %r13, {size}, %d8;
  setp.lt.u32 %p1, %t, 8;
  ld.global.b{8 * size} {r}10, [%d9];
  @%p1 st.shared.b{8 * size} [%d8], {r}10;
  bar.sync 0;
  atom.{space}.{name}.{type_} {r}10, {shown};
  st.global.b{8 * size} [%d2], {r}10;
  bar.sync 0;
  @!%p1 ret;
  ld.{space}.b{8 * size} {r}10, [{address}];
  st.global.b{8 * size} [%d9], {r}10;
""",
        3,
        shared=64,
    )
    memory = GlobalMemory()
    places = [memory.allocate(values.nbytes) for _ in range(3)]
    start = np.arange(8).astype(values.dtype) if values.dtype.kind != "f" else values[:8] * 2
    if name == "cas":
        start = np.arange(8, dtype=values.dtype)
    memory.write(places[0], values)
    memory.write(places[1], start)
    launch(parse(text), "k", (1, 1, 1), (64, 1, 1), [pointer(p) for p in places], memory)
    old = memory.read(places[2], values.dtype, 64)
    final = memory.read(places[1], values.dtype, 8)

    def step(before, value, thread):
        if "16" in plain:
            x, y = (np.asarray([v]).view(half).astype(np.float32) for v in (before, value))
            return (x + y if name == "add" else np.fmax(x, y)).astype(half).view(values.dtype)[0]
        if name == "inc":
            return 0 if before >= value else before + 1
        if name == "dec":
            return value if before == 0 or before > value else before - 1
        if name == "cas":
            return value if before == thread & 4 else before
        functions = {
            "add": np.add,
            "min": min,
            "max": max,
            "exch": lambda a, b: b,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }
        return functions[name](before, value)

    state = list(start)
    with np.errstate(all="ignore"):
        for thread in range(64):
            assert old[thread] == state[thread & 7], thread
            state[thread & 7] = values.dtype.type(step(state[thread & 7], values[thread], thread))
    assert (final == state).all()


def test_reductions_without_result() -> None:
    text = kernel(
        "  red.global.add.f32 [%a1], 0f3F800000;\n  red.relaxed.gpu.global.max.u32 [%a0], %t;", 2
    )
    memory = GlobalMemory()
    places = [memory.allocate(4) for _ in range(2)]
    for place in places:
        memory.write(place, np.zeros(1, np.uint32))
    launch(parse(text), "k", (100, 1, 1), (32, 1, 1), [pointer(p) for p in places], memory)
    assert memory.read(places[0], np.uint32, 1)[0] == 3199
    assert memory.read(places[1], np.float32, 1)[0] == 3200


@pytest.mark.parametrize("mode", ["", COOPERATIVE])
@pytest.mark.parametrize(
    "line,message",
    [
        (
            "ld.global.u32 %r1, [%d1+4];",
            r"bounds in 'k' at PTX line \d+.*past the end.*thread \(31",
        ),
        ("ld.global.u32 %r1, [%d1+-4];", r"bounds.*(before all|past the end).*thread \(0"),
        ("st.global.u32 [%d1+1], %r1;", r"alignment in 'k' at PTX line.*4 bytes"),
        ("ld.global.v2.u32 {%r1, %r2}, [%d1];", r"alignment.*8 bytes"),
        ("ld.shared.u32 %r1, [%d1];", r"bounds.*shared access"),
        ("ld.shared.u32 %r1, [buffer+126];", "bounds.*shared access of 4 bytes"),
        ("ld.shared.u32 %r1, [buffer+2];", "alignment.*shared access"),
        ("ld.u32 %r1, [%d3];", "bounds.*access at 0x5"),
        ("atom.global.add.u32 %r1, [%d1+128], 1;", "bounds"),
        ("st.local.u32 [%d3], %r1;", "bounds.*local access"),
    ],
)
def test_faults_of_access(line: str, message: str, mode: str) -> None:
    text = kernel(
        f"{mode}  mad.wide.u32 %d1, %t, 4, %a0;\n  mov.u64 %d3, 5;\n  mov.u32 %r1, 0;\n  {line}\n",
        1,
        shared=128,
    )
    with pytest.raises(SimulationError, match=message):
        run(text, [], [(np.uint32, 32)])


def test_source_lines_of_faults() -> None:
    text = kernel(
        "  .loc 1 17 3\n  mov.u32 %r1, 0;\n  .loc 1 18 3\n  st.global.u32 [%a0+128], %r1;\n", 1
    ).replace(HEAD, HEAD + '.file 1 "model.py"\n')
    with pytest.raises(SimulationError, match=r"\(model.py:18\)") as caught:
        run(text, [], [(np.uint32, 32)])
    assert caught.value.fault.kind == "bounds"
    assert text.splitlines()[caught.value.fault.line - 1].strip().startswith("st.global")


def test_variables_of_functions_and_of_elsewhere() -> None:
    head = """
.extern .global .align 4 .b8 elsewhere[4];
.func tick(.param .b64 where)
{
  .global .align 4 .u32 total = 40;
  .shared .align 4 .b8 place[4];
  .reg .b32 %r<3>;
  .reg .b64 %d<2>;
  ld.param.b64 %d1, [where];
  atom.global.add.u32 %r1, [total], 1;
  st.shared.u32 [place], %r1;
  ld.shared.u32 %r2, [place];
  st.global.u32 [%d1], %r2;
  ret;
}
"""
    call = """  {
    .param .b64 param0;
    st.param.b64 [param0], %a0;
    call.uni tick, (param0);
  }
"""
    for mode in ("", COOPERATIVE):
        found, _ = run(kernel(mode + call * 3, 1, head=head), [], [(np.uint32, 1)], block=(1, 1, 1))
        assert found[0][0] == 42
    with pytest.raises(UserError, match="symbol 'elsewhere' is not known"):
        run(kernel("  ld.global.u32 %r1, [elsewhere];", 1, head=head), [], [(np.uint32, 1)])


def test_arguments_are_checked() -> None:
    text = kernel("", 1)
    memory = GlobalMemory()
    module = parse(text)
    with pytest.raises(UserError, match="1 parameters, 0 arguments"):
        launch(module, "k", (1, 1, 1), (32, 1, 1), [], memory)
    with pytest.raises(UserError, match="has 8 bytes, the argument has 4"):
        launch(module, "k", (1, 1, 1), (32, 1, 1), [b"abcd"], memory)
    with pytest.raises(UserError, match="no entry 'other'; its entries: k"):
        launch(module, "other", (1, 1, 1), (32, 1, 1), [], memory)
    with pytest.raises(UserError, match="cannot start"):
        launch(module, "k", (1, 1, 1), (2048, 1, 1), [pointer(0)], memory)
    limited = parse(text.replace(")\n{", ")\n.maxntid 64\n{"))
    with pytest.raises(UserError, match="at most"):
        launch(limited, "k", (1, 1, 1), (128, 1, 1), [pointer(0)], memory)


def test_freed_memory() -> None:
    memory = GlobalMemory()
    first, second = memory.allocate(100), memory.allocate(100)
    memory.write(second, np.arange(25, dtype=np.uint32))
    memory.free(first)
    assert memory.span(first, 4) is None
    assert (memory.read(second, np.uint32, 25) == np.arange(25)).all()
    for address in (first, second + 4):
        with pytest.raises(UserError, match="no allocation"):
            memory.free(address)
    with pytest.raises(UserError, match="not inside"):
        memory.read(second, np.uint32, 26)


def test_counted_sectors() -> None:
    for stride, sectors in ((4, 4), (8, 8), (32, 32), (128, 32)):
        text = kernel(f"  mad.wide.u32 %d1, %t, {stride}, %a0;\n  ld.global.u32 %r1, [%d1];", 1)
        _, report = run(text, [], [(np.uint32, 2048)], (2, 1, 1), counters=True)
        assert report.counters["global_requests"] == 2
        assert report.counters["global_sectors"] == 2 * sectors
        assert report.counters["global_sectors_ideal"] == 8


@pytest.mark.parametrize(
    "stride,suffix,registers,conflicts",
    [
        (4, "u32", "%r1", 0),
        (8, "u32", "%r1", 1),
        (128, "u32", "%r1", 31),
        (0, "u32", "%r1", 0),
        (8, "v2.u32", "{%r1, %r2}", 0),
        (16, "v4.u32", "{%r1, %r2, %r3, %r4}", 0),
        (32, "v4.u32", "{%r1, %r2, %r3, %r4}", 4),
        (2, "u16", "%h1", 0),
    ],
)
def test_counted_bank_conflicts(stride: int, suffix: str, registers: str, conflicts: int) -> None:
    body = f"""
  mov.b64 %d1, buffer;
  mad.wide.u32 %d1, %t, {stride}, %d1;
  ld.shared.{suffix} {registers}, [%d1];
"""
    _, report = run(kernel(body, 0, shared=4096), [], [], counters=True, checks=False)
    assert report.counters["shared_requests"] == 1
    assert report.counters["bank_conflicts"] == conflicts

"""Runs one PTX instruction (or a few) on arrays: a thread per element."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.backends.nvidia.simulator import GlobalMemory, Report, launch, parse

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def pointer(address: int) -> bytes:
    return address.to_bytes(8, "little")


def run(
    text: str,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[tuple[Any, int]],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    extra: Sequence[bytes] = (),
    entry: str = "k",
    **options: Any,
) -> tuple[list[np.ndarray], Report]:
    """Launches `entry` of `text` with pointers to copies of `arrays`, then to the outputs."""
    memory = GlobalMemory()
    addresses = []
    for array in arrays:
        addresses.append(memory.allocate(array.nbytes))
        memory.write(addresses[-1], array)
    places = [memory.allocate(np.dtype(d).itemsize * n) for d, n in outputs]
    arguments = [pointer(a) for a in (*addresses, *places)] + list(extra)
    report = launch(parse(text), entry, grid, block, arguments, memory, **options)
    return [memory.read(p, d, n) for p, (d, n) in zip(places, outputs, strict=True)], report


def kernel(body: str, parameters: int, shared: int = 0, head: str = "") -> str:
    """An entry `k` whose 64-bit parameters p0.. are loaded into %a0..; %t is the thread's number
    in the grid."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "\n".join(f"  ld.param.u64 %a{i}, [p{i}];" for i in range(parameters))
    memory = f"  .shared .align 16 .b8 buffer[{shared}];\n" if shared else ""
    return f"""{HEAD}{head}
.visible .entry k({listed})
{{
  .reg .pred %p<20>;
  .reg .b16 %h<40>;
  .reg .b32 %r<60>;
  .reg .f32 %f<40>;
  .reg .b64 %d<60>;
  .reg .f64 %g<40>;
  .reg .b64 %a<{parameters + 1}>;
  .reg .b32 %t, %n, %c;
{memory}{loads}
  mov.u32 %t, %tid.x;
  mov.u32 %n, %ntid.x;
  mov.u32 %c, %ctaid.x;
  mad.lo.u32 %t, %c, %n, %t;
{body}
  ret;
}}
"""


_REGISTERS = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}


def element_kernel(lines: str, dtypes: Sequence[Any], results: Sequence[Any]) -> str:
    """`lines` name sources {0}, {1}, .. and results {d0}, {d1}, ..."""
    names, body = {}, []
    for number, dtype in enumerate([*dtypes, *results]):
        size = np.dtype(dtype).itemsize
        register = f"{_REGISTERS[size]}{number + 1}"
        names[str(number) if number < len(dtypes) else f"d{number - len(dtypes)}"] = register
        body.append(f"  mad.wide.u32 %d{30 + number}, %t, {size}, %a{number};")
        if number < len(dtypes):
            kind = "u8" if size == 1 else f"b{8 * size}"
            body.append(f"  ld.global.{kind} {register}, [%d{30 + number}];")
    for key, register in names.items():
        lines = lines.replace("{" + key + "}", register)
    body.append("  " + lines)
    for number, dtype in enumerate(results, len(dtypes)):
        size = np.dtype(dtype).itemsize
        kind = "u8" if size == 1 else f"b{8 * size}"
        body.append(f"  st.global.{kind} [%d{30 + number}], {_REGISTERS[size]}{number + 1};")
    return kernel("\n".join(body), len(dtypes) + len(results))


def apply(lines: str, sources: Sequence[np.ndarray], *results: Any) -> Any:
    """The results of `lines` on arrays of one length.

    They are also computed from values that are the same for all threads, which the simulator
    keeps as scalars.
    """
    count = sources[0].size
    text = element_kernel(lines, [s.dtype for s in sources], results)
    outputs = [(r, count) for r in results]
    found, _ = run(text, sources, outputs, (count // 32, 1, 1), (32, 1, 1))
    if not any(name in lines for name in ("%t", ".sync", "activemask")):
        uniform = re.sub(r"(ld\.global\.\w+ %\w+), \[%d(\d+)\]", _same_place, text)
        one, _ = run(uniform, sources, [(r, 32) for r in results], (1, 1, 1), (32, 1, 1))
        for many, single in zip(found, one, strict=True):
            plain = f"u{many.itemsize}"
            assert (single.view(plain) == many[:1].view(plain)).all(), (single, many[:1])
    return found[0] if len(found) == 1 else found


def _same_place(match: re.Match[str]) -> str:
    return f"{match.group(1)}, [%a{int(match.group(2)) - 30}]"


def integers(dtype: Any, count: int = 256, seed: int = 0) -> np.ndarray:
    """Random bits, small numbers and the ends of the range."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    bits = rng.integers(0, 256, (count, np.dtype(dtype).itemsize), np.uint8)
    values = bits.view(dtype).reshape(-1).copy()
    special = np.asarray([0, 1, 2, 3, info.max, info.min, info.max - 1, info.min + 1], dtype)
    part = count // 4
    values[:part] = rng.choice(special, part)
    values[part : 2 * part] = rng.integers(0, 40, part).astype(dtype)
    return rng.permutation(values)


def floats(dtype: Any, count: int = 256, seed: int = 0) -> np.ndarray:
    """Random bits, ordinary numbers, and all that is special."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    plain = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    values = integers(plain, count, seed + 1).view(dtype)
    values[: count // 2] = rng.standard_normal(count // 2).astype(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 100.0]
    values[: count // 8] = rng.choice(np.asarray(special, dtype), count // 8)
    return rng.permutation(values)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; any NaN for a NaN."""
    expected = np.asarray(expected, found.dtype)
    if found.dtype.kind == "f":
        plain = f"u{found.dtype.itemsize}"
        wrong = (found.view(plain) != expected.view(plain)) & ~(
            np.isnan(found) & np.isnan(expected)
        )
    else:
        wrong = found != expected
    if wrong.any():
        first = np.nonzero(wrong)[0][:5]
        raise AssertionError(f"{wrong.sum()} wrong at {first}: {found[first]} != {expected[first]}")

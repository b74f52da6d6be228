"""Kernels that were written elsewhere: LLVM IR or objects of the plain ABI join the image.

The code is the user's, so everything that is wrong with it is a UserError here, before it is
linked: an object's tables are checked, LLVM IR is compiled in a process of its own.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

from ...hlo.errors import CompilerBug, UnsupportedError, UserError
from ...hlo.foreign import HostCode, read_codes
from ...hlo.graph import Op
from ..llvm.target import KernelCode
from .codegen import Target, compile_object
from .image import link

_SECONDS = 120
_ELF_HEADER, _SECTION_HEADER, _SYMBOL = 64, 64, 24
_SYMTAB, _NOBITS, _ALLOC = 2, 8, 2
_LARGEST_ALIGNMENT = 4096
_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF's header
_UNDEFINED = re.compile(r"undefined symbol '(\w+)'")
_MATHEMATICS = re.compile(
    r"(a?(cos|sin|tan)h?|atan2|cbrt|ceil|erfc?|exp(10|2|m1)?|fabs|fdim|floor|fma|fmax|fmin|fmod|"
    r"frexp|hypot|ldexp|lgamma|log(10|1p|2)?|modf|nearbyint|pow|remainder|rint|round|sincos|sqrt|"
    r"tgamma|trunc)f?"
)
_DAMAGE = (struct.error, LookupError, MemoryError, OverflowError, ValueError)
_HELPERS = """
define hidden ptr @memcpy(ptr %a, ptr %b, i64 %c) { ret ptr %a }
define hidden ptr @memmove(ptr %a, ptr %b, i64 %c) { ret ptr %a }
define hidden ptr @memset(ptr %a, i32 %b, i64 %c) { ret ptr %a }
"""


def lacks(op: Op, target: Target) -> str:
    """Why no code of a foreign_call runs on the target; "" if one does."""
    reasons = []
    for code in read_codes(op.codes):
        if isinstance(code, HostCode):
            reason = _misfit(code, target)
            if not reason:
                return ""
            reasons.append(reason)
    return "; ".join(reasons) or "it has no code for target cpu"


def _misfit(code: HostCode, target: Target) -> str:
    if code.architecture and code.architecture != target.architecture:
        return f"its code is for {code.architecture}, not {target.architecture}"
    missing = sorted(set(code.features) - set(target.features))
    return f"its code needs {', '.join(missing)}" if missing else ""


def emit(op: Op, target: Target) -> KernelCode:
    """The first code that fits; UnsupportedError if there is none, UserError for a wrong one."""
    reason = lacks(op, target)
    if reason:
        raise UnsupportedError(f"{_place(op)}: {reason}")
    codes = [code for code in read_codes(op.codes) if isinstance(code, HostCode)]
    code = next(code for code in codes if not _misfit(code, target))
    try:
        made = _object(code, target)
        _link(made, code.entry, target)
    except UserError as error:
        raise UserError(f"{_place(op)}: {error}") from error
    moved = float(sum(value.tensor.bytes for value in (*op.operands, *op.results)))
    flops = sum(inner.definition.flops(inner) for region in op.regions for inner in region.ops)
    return KernelCode(
        "", code.entry, code.tiles, code.scratch, flops, moved, code.tiles > 1, object=made
    )


def _place(op: Op) -> str:
    return f"{op.place}kernel '{op.kernel}'"


def _link(data: bytes, entry: str, target: Target) -> None:
    """UserError where the object cannot become part of an image."""
    try:
        link([_helpers(target), renamed(data, entry, entry)])
    except CompilerBug as error:
        raise UserError(_explained(str(error).removeprefix("image: "))) from error
    except _DAMAGE as error:
        raise UserError(f"its object is damaged: {error}") from error


def _explained(reason: str) -> str:
    """With what to do about a function of C's library of mathematics."""
    found = _UNDEFINED.search(reason)
    if found is None or not _MATHEMATICS.fullmatch(found[1]):
        return reason
    return (
        f"it calls {found[1]} of C's library, which no image is linked with: define it in the "
        "source (`static`), or use what compilers make instructions of, such as sqrtf, fabsf and "
        "fmaf; girih.kernel has exp, log, tanh, erf, sin and cos"
    )


@functools.lru_cache(maxsize=8)
def _helpers(target: Target) -> bytes:
    """Stands for what the executor's object has."""
    return compile_object(_HELPERS, target)


def _object(code: HostCode, target: Target) -> bytes:
    if isinstance(code.code, bytes):
        (machine,) = struct.unpack_from("<H", code.code.ljust(_ELF_HEADER, b"\0"), 18)
        if code.code[:4] == b"\x7fELF" and machine != _MACHINES[target.architecture]:
            known = {number: name for name, number in _MACHINES.items()}
            found = known.get(machine, f"machine {machine} of ELF's list")
            raise UserError(
                f"its object is for {found}, the program for {target.architecture}; compile its "
                "source for that, or declare its architecture and give a reference"
            )
        return code.code
    return _compiled(code.code, code.entry, target)


@functools.lru_cache(maxsize=64)
def _compiled(text: str, entry: str, target: Target) -> bytes:
    wanted = {
        "text": text, "entry": entry, "triple": target.triple,
        "cpu": "generic" if target.architecture == "aarch64" else "x86-64",
        "features": ",".join(f"+{name}" for name in target.features),
    }  # fmt: skip
    script = Path(__file__).with_name("foreign_compile.py")
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(script)], input=json.dumps(wanted).encode(),
            capture_output=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"its LLVM IR cannot be compiled: {error}") from error
    if done.returncode == 0:
        return done.stdout
    reason = done.stderr.decode(errors="replace").strip()[-2000:]
    if done.returncode == 2:
        raise UserError(f"its LLVM IR is refused: {reason}")
    raise UserError(f"LLVM cannot compile its LLVM IR (status {done.returncode}): {reason}")


def renamed(data: bytes, entry: str, symbol: str) -> bytes:
    """The object with `entry` called `symbol` and every other name of its own local, so that no two
    kernels meet; UserError, or one of `_DAMAGE`, for an object without it or that is none."""
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < _ELF_HEADER:
        raise UserError("its object is no little-endian ELF64 file")
    made = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + _SECTION_HEADER * i) for i in range(count)
    ]
    for _, kind, flags, _, offset, size, link_to, _, alignment, _ in sections:
        if kind == _NOBITS and flags & _ALLOC and size:
            raise UserError("its object has variables that change (.bss), which images cannot hold")
        if kind != _NOBITS and offset + size > len(data):
            raise ValueError("a section reaches past its end")
        if alignment > _LARGEST_ALIGNMENT or link_to >= count:
            raise ValueError("a section's header means nothing")
    if names >= count:
        raise ValueError("its section names are missing")
    tables = [(i, section) for i, section in enumerate(sections) if section[1] == _SYMTAB]
    if len(tables) != 1:
        raise ValueError(f"it has {len(tables)} tables of symbols")
    _, (_, _, _, _, offset, size, strings, *_) = tables[0]
    text = data[sections[strings][4] : sections[strings][4] + sections[strings][5]]
    new_text = text + symbol.encode() + b"\0"
    found = False
    for at in range(offset, offset + size - size % _SYMBOL, _SYMBOL):
        name, info, other, section, *_ = struct.unpack_from("<IBBHQQ", data, at)
        label = text[name : text.index(b"\0", name)].decode()
        if label == entry and section and info >> 4:
            found = True
            struct.pack_into("<IBBH", made, at, len(text), info, other, section)
        elif section and info >> 4:
            struct.pack_into("<IBBH", made, at, name, info & 15, other, section)
    if not found:
        raise UserError(f"its object defines no function '{entry}'")
    place = table + _SECTION_HEADER * strings
    struct.pack_into("<QQ", made, place + 24, len(made), len(new_text))
    return bytes(made) + new_text

"""The mini-linker: calls between objects, constants, both architectures, and what it refuses."""

from __future__ import annotations

import ctypes
import struct

import pytest

from girih.backends import llvm
from girih.backends.cpu import codegen, executor
from girih.backends.cpu.image import link
from girih.hlo.errors import CompilerBug, UserError
from girih.runtime.devices.cpu import map_image

HOST = codegen.host_target()
ARM = codegen.make_target("aarch64-unknown-linux-gnu", {"neon"})
NUMBERS = [3.5, -1.25, 1e30, 0.1]


def caller(target: codegen.Target) -> bytes:
    """look_up(i) = 2 * element(i), which is in another object."""
    module = target.module()
    module.declare("element", "declare hidden float @element(i64)")
    f = module.function("look_up", [("i64", "i")], "float")
    value = f.call("element", "float", f.arguments[0])
    f.ret(f.mul(value, 2.0))
    return codegen.compile_object(module.text(), target)


def callee(target: codegen.Target) -> bytes:
    module = target.module()
    table = module.table("numbers", "float", NUMBERS)
    f = module.function("element", [("i64", "i")], "float", linkage="hidden")
    f.ret(f.load("float", f.pointer(table, f.arguments[0], "float")))
    return codegen.compile_object(module.text(), target)


@pytest.mark.parametrize("order", [0, 1])
def test_linked_code_runs(order: int) -> None:
    objects = [caller(HOST), callee(HOST)]
    image = link(objects[::-1] if order else objects)
    mapping = map_image(image.data)
    look_up = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(
        mapping.address + image.symbols["look_up"]
    )
    for index, number in enumerate(NUMBERS):
        assert look_up(index) == pytest.approx(2 * number)


def test_aarch64_addresses() -> None:
    """The branch reaches `element`, and its page and low bits name the table."""
    image = link([caller(ARM), callee(ARM)])
    words = struct.unpack(f"<{len(image.data) // 4}I", image.data)
    start = image.symbols["look_up"] // 4
    calls = [i for i in range(start, len(words)) if words[i] >> 26 in (0x25, 0x05)]
    distance = words[calls[0]] & 0x3FFFFFF
    distance -= (distance & 0x2000000) << 1
    assert 4 * (calls[0] + distance) == image.symbols["element"]
    table = image.data.index(struct.pack("<4f", *NUMBERS))
    at = image.symbols["element"] // 4
    page = next(i for i in range(at, len(words)) if words[i] & 0x9F000000 == 0x90000000)
    high = (words[page] >> 5 & 0x7FFFF) << 2 | words[page] >> 29 & 3
    low = next(w >> 10 & 0xFFF for w in words[page + 1 :] if w & 0xFFC00000 == 0x91000000)
    assert ((4 * page >> 12) + high << 12) + low == table


@pytest.mark.parametrize("target", [HOST, ARM], ids=["host", "aarch64"])
def test_executor_links_alone(target: codegen.Target) -> None:
    image = link([codegen.compile_object(executor.emit(target), target)])
    assert {executor.RUN_SYMBOL, executor.WORKER_SYMBOL, "memcpy", "memset"} <= set(image.symbols)
    assert len(image.data) % 64 == 0
    same = link([codegen.compile_object(executor.emit(target), target)])
    assert same == image


def test_memory_routines() -> None:
    image = link([codegen.compile_object(executor.emit(HOST), HOST)])
    mapping = map_image(image.data)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    memory = ctypes.create_string_buffer(bytes(range(256)) * 2)
    base = ctypes.addressof(memory)
    expected = bytearray(memory.raw)
    for name, target, source, count in (
        ("memmove", 3, 0, 200), ("memmove", 0, 5, 301), ("memcpy", 300, 10, 129),
        ("memset", 7, 9, 99),
    ):  # fmt: skip
        routine = kind(mapping.address + image.symbols[name])
        if name == "memset":
            routine(base + target, source, count)
            expected[target : target + count] = bytes([source]) * count
        else:
            routine(base + target, base + source, count)
            expected[target : target + count] = bytes(expected[source : source + count])
        assert memory.raw == bytes(expected), name


def test_undefined_symbols_are_named() -> None:
    with pytest.raises(CompilerBug, match="undefined symbol 'element'"):
        link([caller(HOST)])
    with pytest.raises(CompilerBug, match="'element' is defined twice"):
        link([callee(HOST), callee(HOST)])


def test_absolute_addresses_are_refused() -> None:
    text = "@table = constant [1 x ptr] [ptr @g]\ndefine hidden void @g() { ret void }\n"
    with pytest.raises(CompilerBug, match="only PC-relative"):
        link([codegen.compile_object(text, HOST, optimize=False)])


def test_wrong_code_is_a_bug_of_the_compiler() -> None:
    with pytest.raises(CompilerBug, match="does not verify"):
        codegen.compile_object("define i32 @f() { ret i64 0 }", HOST)
    with pytest.raises(CompilerBug, match="ELF64"):
        link([b"not an object"])


def test_targets() -> None:
    assert codegen.make_target("x86_64-pc-linux-gnu", set()).vector_bits == 128
    with pytest.raises(UserError, match="sparc"):
        codegen.make_target("sparc-sun-solaris", set())
    with pytest.raises(UserError, match="unknown level 'avx3'"):
        codegen.make_target("x86_64-pc-linux-gnu", set(), "avx3")


def test_constants_are_exact() -> None:
    assert llvm.literal("float", 0.1) == "0x3FB99999A0000000"
    assert llvm.literal("double", 0.1) == "0x3FB999999999999A"
    assert llvm.literal("float", float("inf")) == "0x7FF0000000000000"
    assert llvm.literal("half", 1.5) == "0xH3E00"
    assert llvm.literal("bfloat", 1.00390625) == "0xR3F80"  # a tie goes to even

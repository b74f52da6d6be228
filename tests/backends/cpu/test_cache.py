"""The kernel cache: never another result, never a wrong, damaged or foreign entry."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.backends import cache as room
from girih.backends.cache import CompiledKernel, DiskCache, Key, key_of, open_cache
from girih.backends.cpu import build as build_room
from girih.backends.cpu import codegen
from girih.backends.cpu.codegen import host_target, level_target
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.optimizer.plan import KernelFacts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's")

MATRIX = TensorType((48, 32), F32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing is known in memory; the sources count as unchanged."""
    monkeypatch.setattr(build_room, "CACHE", build_room.KernelCache())
    for place in (room, build_room):
        monkeypatch.setattr(place, "compiler_digest", lambda: "c0ffee")


def model(factor=2.0):
    def body(b, x):
        y = b("multiply", x, b.constant(factor, MATRIX))
        return [b("tanh", y), b("transpose", x, permutation=(1, 0))]

    return build_module([MATRIX], body)


def compiled(cache, module=None) -> girih.Program:
    """Compiled as in a new process: only the disk remembers."""
    build_room.CACHE.kernels.clear()
    return girih.compile(module or model(), options=girih.Options(cache=str(cache)))


def kernel(code=b"code", symbol="kernel_1"):
    return CompiledKernel(symbol, KernelFacts(7, 64, 1.5, 2.25, False, ("slow",)), code)


def key(operation="(f32[4])\n%1 = tanh(%0)", target="here", compiler="1"):
    return Key(operation, target, compiler)


def test_entries_of_other_versions_are_listed(monkeypatch):
    """They have facts that this one does not know, and lack some that it does."""
    facts = {"tiles": 7, "notes": ["slow"], "colour": "red"}
    monkeypatch.setattr(KernelFacts, "_asdict", lambda self: facts)
    data = room._encode(key(), kernel())
    monkeypatch.undo()
    found = room._decode(data)
    assert found is not None and found[1].facts == KernelFacts(7, notes=("slow",))


def test_cold_warm_and_off_give_equal_bundles(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        codegen,
        "compile_object",
        lambda text, target, real=codegen.compile_object: made.append(1) or real(text, target),
    )
    bundles = []
    for name, cache in (("off", "off"), ("cold", tmp_path / "c"), ("warm", tmp_path / "c")):
        before = len(made)
        compiled(cache).save(tmp_path / name)
        bundles.append((tmp_path / name).read_bytes())
        assert (len(made) == before) == (name == "warm")
    assert bundles[0] == bundles[1] == bundles[2]
    x = np.linspace(-1, 1, 48 * 32, dtype=np.float32).reshape(48, 32)
    np.testing.assert_allclose(compiled(tmp_path / "c")(x)[0], np.tanh(2 * x), rtol=1e-5)


def test_layers_and_programs_share_entries(tmp_path):
    compiled(tmp_path / "c")
    count = len(DiskCache(tmp_path / "c").entries())
    compiled(tmp_path / "c", model(2.0))
    assert len(DiskCache(tmp_path / "c").entries()) == count
    compiled(tmp_path / "c", model(3.0))  # one kernel is another, the transpose is not
    assert len(DiskCache(tmp_path / "c").entries()) == count + 1


def test_what_is_stored_is_loaded(tmp_path):
    cache = DiskCache(tmp_path / "c")
    assert cache.load(key()) is None
    cache.store(key(), kernel())
    assert DiskCache(tmp_path / "c").load(key()) == kernel()
    for other in (key("x"), key(target="there"), key(compiler="2")):
        assert cache.load(other) is None
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    (entry,) = cache.entries()
    assert entry.path.stat().st_mode & 0o777 == 0o600
    assert list(entry.path.parent.iterdir()) == [entry.path]


@pytest.mark.parametrize("place", [0, 20, 60, -1])
def test_a_damaged_entry_is_deleted_and_noted(tmp_path, place):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    path = cache.entries()[0].path
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.load(key()) is None
    assert not path.exists()


@pytest.mark.parametrize("length", [0, 5, 70])
def test_a_truncated_entry_is_deleted(tmp_path, length):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    path = cache.entries()[0].path
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.load(key()) is None


def test_an_entry_under_another_name_is_not_taken(tmp_path):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    cache.store(key("other"), kernel(b"other"))
    mine, other = (cache._path(k.digest) for k in (key(), key("other")))
    mine.write_bytes(other.read_bytes())
    assert cache.load(key()) is None


def test_files_that_others_could_write_are_not_read(tmp_path):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    path = cache.entries()[0].path
    path.chmod(0o660)
    assert cache.load(key()) is None
    path.chmod(0o600)
    assert cache.load(key()) == kernel()
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.load(key()) is None


def test_a_folder_that_others_could_write_is_not_used(tmp_path):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    (tmp_path / "c").chmod(0o777)
    assert cache.load(key()) is None
    cache.store(key("new"), kernel())
    assert len(cache.entries()) == 1


def test_a_foreign_owner_is_not_trusted(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path / "c")
    cache.store(key(), kernel())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.load(key()) is None


def test_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    program = compiled(tmp_path / "file" / "below")
    x = np.ones((48, 32), np.float32)
    np.testing.assert_allclose(program(x)[0], np.tanh(2 * x), rtol=1e-5)


def test_a_read_only_folder_is_read(tmp_path, monkeypatch):
    compiled(tmp_path / "c")

    def refuse(*_arguments, **_keywords):
        raise PermissionError("read-only")

    with monkeypatch.context() as patch:  # modes do not stop a superuser
        patch.setattr(os, "replace", refuse)
        patch.setattr(os, "utime", refuse)
        patch.setattr(codegen, "compile_object", refuse)
        compiled(tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        compiled(tmp_path / "c", model(5.0))
    names = [path.name for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert names and not [name for name in names if name.startswith(".")]


def test_the_oldest_entries_go(tmp_path):
    cache = DiskCache(tmp_path / "c", capacity=10_000)
    keys = [key(str(number)) for number in range(12)]
    for number, one in enumerate(keys):
        cache.store(one, kernel(bytes(1000)))
        os.utime(cache._path(one.digest), (number, number))
        if number > 3:
            assert cache.load(keys[0]) is not None  # used: it stays
    assert sum(entry.bytes for entry in cache.entries()) <= 10_000
    assert cache.load(keys[0]) is not None and cache.load(keys[-1]) is not None
    assert cache.load(keys[1]) is None


def test_many_threads_write_and_read(tmp_path):
    keys = [key(str(number)) for number in range(6)]
    wrong = []

    def work(seed):
        cache = DiskCache(tmp_path / "c", capacity=6_000)
        for number in range(60):
            one = keys[(seed + number) % len(keys)]
            cache.store(one, kernel(one.operation.encode() * 1000))
            found = cache.load(one)
            if found is not None and found.object != one.operation.encode() * 1000:
                wrong.append(one)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_explain_names_the_part_that_differs(tmp_path):
    cache = DiskCache(tmp_path / "c")
    assert "empty" in cache.explain(key())
    cache.store(key(), kernel())
    assert cache.explain(key()) == "hit"
    assert "another version" in cache.explain(key(compiler="2"))
    found = cache.explain(key(target="Target(a, b)"))
    assert "another target" in found and "+ Target(a," in found.replace("+T", "+ T")
    found = cache.explain(key("(f32[8])\n%1 = tanh(%0)"))
    assert "-(f32[4])" in found and "+(f32[8])" in found and "tanh" not in found


def test_every_part_of_the_target_is_in_the_key():
    base = level_target("baseline")
    texts = {key_of("x", base).digest}
    import dataclasses

    for change in ({"triple": "x86_64-other"}, {"features": ("avx",)}, {"vector_bits": 64}):
        texts.add(key_of("x", dataclasses.replace(base, **change)).digest)
    assert len(texts) == 4


def test_off_means_no_cache():
    assert open_cache("off") is None
    assert open_cache(None) is not None


def test_a_changed_source_turns_the_cache_off(monkeypatch):
    monkeypatch.undo()
    room.compiler_digest.cache_clear()
    monkeypatch.setattr(room, "_process_start", lambda: 0.0)
    assert room.compiler_digest() is None
    room.compiler_digest.cache_clear()
    monkeypatch.setattr(room, "_process_start", lambda: 1e11)
    assert room.compiler_digest() is not None
    room.compiler_digest.cache_clear()


def test_another_process_finds_the_kernels(tmp_path):
    """Keys do not depend on the process: hashes of strings differ between processes."""
    script = (
        "from girih.backends import cache\n"
        "from girih.backends.cpu.codegen import level_target\n"
        "cache.compiler_digest = lambda: 'c0ffee'\n"
        "print(cache.key_of('some text', level_target('avx2')).digest)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path("/")
    )
    assert found.stdout.strip() == key_of("some text", level_target("avx2")).digest


def test_a_folder_is_listed_once_in_a_process(tmp_path, monkeypatch):
    DiskCache(tmp_path / "kernels").store(key("first"), kernel())
    monkeypatch.setattr(DiskCache, "entries", lambda self: pytest.fail("listed again"))
    DiskCache(tmp_path / "kernels").store(key("second"), kernel())
    monkeypatch.undo()
    assert len(DiskCache(tmp_path / "kernels").entries()) == 2


def test_the_executor_is_compiled_once():
    target = host_target()
    made = build_room.begin_executor(target, None).result()
    again = build_room.begin_executor(target, None)
    assert again.done() and again.result() is made


def test_a_child_of_a_process_that_compiled_compiles(tmp_path):
    script = """
import os, sys, numpy as np, girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType

def run(name):
    module = build_module([TensorType((8,), F32)], lambda b, x: [b(name, x)])
    return girih.compile(module, options=girih.Options(cache="off"))(np.ones(8, np.float32))

run("tanh")
child = os.fork()
if not child:
    os._exit(0 if np.allclose(run("exponential"), np.e) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=120)

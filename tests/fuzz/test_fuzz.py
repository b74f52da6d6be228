"""No reader dies of damaged input, hangs, or takes more memory than its input is worth.

Here each reader sees a few hundred mutants, and all that were finds once; `tests/fuzz/run.py` tries
as many as there is time for. Children are forked from a process that holds no threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Mutants per reader: what takes a second or two.
COUNTS = {
    "stablehlo": 500, "text": 300, "wire": 300, "bytecode": 200, "exported": 500, "archive": 150,
    "bundle": 150, "plan": 300, "machine": 300, "tuning": 300, "payload": 300, "hlo_protobuf": 100,
    "hlo_text": 150, "ptx": 150,
}  # fmt: skip


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("reader", COUNTS)
def test_mutants_are_refused_or_read(reader):
    count = COUNTS[reader]
    out = run(
        "-m", "tests.fuzz.run", reader, "--mutants", str(count), "--minutes", "3", "--seed", "7"
    )
    assert f" {count} mutants" in out and "0 finds" in out
    accepted = int(out.split(" accepted")[0].rpartition(" ")[2])
    assert accepted > 0, "no mutant came past the reader, so nothing behind it was tried"


def test_every_reader_is_fuzzed():
    assert set(run("-c", "from tests.fuzz.readers import READERS; print(*READERS)").split()) == set(
        COUNTS
    )


def test_what_was_found_once():
    run("-m", "tests.fuzz.run", "--replay")


HARNESS = """
import ctypes
from girih.hlo.errors import UserError
from tests.fuzz import harness
from tests.fuzz.readers import Reader

def read(data):
    if data == b"hang":
        while True: pass
    if data == b"memory": bytearray(1 << 33)
    if data == b"die": ctypes.string_at(0)
    if data == b"deep": read(data)
    if data == b"wrong": raise KeyError("x")
    if data.startswith(b"refused"): raise UserError("no")

harness.SECONDS = 0.3
reader = Reader(read, list, lambda rng, data, others: data)
for name in ("hang", "memory", "die", "deep", "wrong", "refused", "read"):
    found = harness.failure(reader, name.encode())
    print(name, found and found.kind.split()[-1])
marked = reader._replace(read=lambda data: read(b"wrong") if b"!" in data else None)
find = harness.failure(marked, b"something! with a fault")
print(harness.minimise(marked, b"something! with a fault", find).decode())
"""


def test_the_harness_notices():
    """It tells a crash, a hang, a blow-up and a wrong exception from a refusal."""
    assert run("-c", HARNESS).split("\n")[:8] == [
        "hang SIGPROF", "memory MemoryError", "die SIGSEGV", "deep RecursionError",
        "wrong KeyError", "refused None", "read None", "!",
    ]  # fmt: skip

"""Workers: how many there are, where they run, and that nothing but speed depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.runtime.devices import cores, workers

MATRIX = TensorType((512, 512), F32)
LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="reads Linux's /proc")


def model():
    """Two products with a function between them: work enough for several workers."""

    def body(b, x):
        sides = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
            "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        }  # fmt: skip
        y = b("tanh", b("dot_general", x, x, **sides))
        return [b("dot_general", y, x, **sides)]

    return build_module([MATRIX], body)


@pytest.fixture(scope="module")
def x():
    return (np.random.default_rng(0).standard_normal(MATRIX.dims) / 32).astype(np.float32)


@pytest.fixture(scope="module")
def expected(x):
    return girih.compile(model(), options=girih.Options(threads=1))(x)[0]


def groups(root, lines, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:memory:/a\n2:cpu,cpuacct:/a/b\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("lines", "files", "cpus"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/../../x\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, None),
        ("0::/a\n", {}, None),
        (
            V1,
            {
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (V1, {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, None),
        (V1, {"memory/a/cpu.cfs_quota_us": "1", "memory/a/cpu.cfs_period_us": "1"}, None),
    ],
)
def test_quotas_of_control_groups(tmp_path, lines, files, cpus):
    found = cores.quota(groups(tmp_path, lines, files))
    assert found == cpus if cpus is not None else found > 1000


def test_no_control_groups(tmp_path):
    assert cores.quota(tmp_path) > 1000


def test_the_quota_and_the_affinity_bound_the_threads(monkeypatch):
    monkeypatch.setattr(cores, "_siblings", lambda cpu: str(cpu // 2))  # two threads on a core
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [0, 1, 2, 3, 4, 6])
    monkeypatch.setattr(cores, "quota", lambda: 100)
    assert cores.default_threads() == 4
    monkeypatch.setattr(cores, "quota", lambda: 3)
    assert cores.default_threads() == 3
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [5])
    assert cores.default_threads() == 1


def test_pinned_workers_take_physical_cores_first(monkeypatch):
    monkeypatch.setattr(cores, "_siblings", lambda cpu: str(cpu // 2))
    assert cores.worker_cpus(2, [0, 1, 2, 3]) == [0, 2]
    assert cores.worker_cpus(4, [0, 1, 2, 3]) == [0, 2, 1, 3]
    assert cores.worker_cpus(5, [0, 1, 2, 3]) == []


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("pin", [False, True])
def test_the_options_change_no_bit(x, expected, tmp_path, threads, pin):
    options = girih.Options(threads=threads, pin=pin)
    program = girih.compile(model(), options=options)
    np.testing.assert_array_equal(program(x)[0], expected)
    program.save(tmp_path / "m.girih")
    loaded = girih.load(tmp_path / "m.girih", threads=threads, pin=pin, allow_native=True)
    for _ in range(20):
        np.testing.assert_array_equal(loaded(x)[0], expected)


def test_compiling_for_fewer_threads_gives_the_same_bundle(tmp_path):
    for threads in (1, 2):
        options = girih.Options(threads=threads, pin=threads == 2)
        girih.compile(model(), options=options).save(tmp_path / str(threads))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_programs_share_the_workers(x, expected):
    before = len(workers._retired)
    programs = [girih.compile(model(), options=girih.Options(threads=2)) for _ in range(4)]
    for program in programs:
        np.testing.assert_array_equal(program(x)[0], expected)
    assert len(workers._retired) <= before + 1


def test_calls_from_many_threads(x, expected):
    program = girih.compile(model(), options=girih.Options(threads=2))
    other = girih.compile(model(), options=girih.Options(threads=2))
    wrong = []

    def work(which):
        for _ in range(15):
            if not np.array_equal(which(x)[0], expected):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(p,)) for p in (program, other) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


SCRIPT = """
import os, sys, threading
import numpy as np
import girih

x = np.load(sys.argv[1])
expected = np.load(sys.argv[2])
program = girih.load(sys.argv[3], threads=2, pin="pin" in sys.argv, allow_native=True)


def right():
    return all(np.array_equal(program(x)[0], expected) for _ in range(20))
"""


def in_own_process(tmp_path, x, expected, code, *arguments):
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", expected)
    girih.compile(model()).save(tmp_path / "m.girih")
    script = SCRIPT + code
    files = [tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "m.girih"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, files), *arguments],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@LINUX
def test_cores_that_are_taken_away(tmp_path, x, expected):
    code = """
assert right()
one = min(os.sched_getaffinity(0))
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {one})
assert right()
print("right")
"""
    assert in_own_process(tmp_path, x, expected, code) == ["right"]


@LINUX
def test_a_forked_child_has_workers_of_its_own(tmp_path, x, expected):
    code = """
def tasks():
    return len(os.listdir("/proc/self/task"))

def forked():
    child = os.fork()
    if child == 0:
        alone = tasks()
        good = right() and tasks() > alone
        os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert right()
assert forked() == 0
calling = threading.Thread(target=right)
calling.start()
assert forked() == 0  # while another thread may be using the workers
calling.join()
assert right()
print("right")
"""
    assert in_own_process(tmp_path, x, expected, code) == ["right"]


@LINUX
@pytest.mark.skipif(len(cores.allowed_cpus()) < 2, reason="needs two CPUs")
def test_pinned_workers_stay_on_one_core(tmp_path, x, expected):
    code = """
before = set(os.listdir("/proc/self/task"))
assert right()
new = set(os.listdir("/proc/self/task")) - before
print(len(new), *(len(os.sched_getaffinity(int(task))) for task in new))
print(len(os.sched_getaffinity(0)))
"""
    count, affinity, own = map(int, in_own_process(tmp_path, x, expected, code, "pin"))
    assert (count, affinity) == (1, 1) and own >= 2
    count, affinity, _ = map(int, in_own_process(tmp_path, x, expected, code))
    assert count == 1 and affinity >= 2

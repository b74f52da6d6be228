"""What ends a job of several processes: with a message that names who, where and why, and soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import girih

from . import rooms
from .launch import PYTHON, command, environment, launched, launcher, needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]

SOON = (
    60  # seconds: far from the minutes that a process that hangs would take, also on a busy machine
)
PATIENT = "500"  # a deadline that no test waits for

RANK = """
import os, signal, sys, time
import numpy as np
import girih
from girih.runtime.distributed.started import the_world

what, when, *bundles = sys.argv[1:]
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
x = np.ones((3, 24), np.float32)


def event():
    if what == "forever":
        with open(f"{when}.{rank}", "w") as file:
            file.write(str(os.getpid()))
        while True:
            program(x)
    if rank != 1:
        return
    if what == "raise":
        raise ValueError("the second one gives up")
    if what == "exit":
        sys.exit(3)
    if what == "sleep":
        time.sleep(400)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "work":
        time.sleep(5 * wait)
        print("worked")


wait = float(os.environ["WAIT"])

if when == "before":
    event()
the_world()
program = girih.load(bundles[rank % len(bundles)], threads=1, comm_timeout=wait)
if when == "loaded":
    event()
program(x)
if when not in ("loaded", "at the end"):
    event()
program(x)
if when == "at the end":
    event()
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "reduce.girih"
    girih.compile(rooms.program("all_reduces", 2)).save(path)
    return path


def ran(
    what: str, when: str, *bundles: Path, count: int = 2, start: str = PATIENT, wait: str = PATIENT
) -> subprocess.CompletedProcess[str]:
    """The job; start, wait: seconds that its processes wait for the start of MPI, and then."""
    script = bundles[0].parent / "rank.py"
    script.write_text(RANK)
    names = (script, what, when, *bundles)
    return launched(count, *names, timeout=SOON, GIRIH_COMM_TIMEOUT=start, WAIT=wait)


@pytest.mark.parametrize("when", ["before", "loaded", "after a call", "at the end"])
def test_an_exception_of_one_ends_all(bundle, when):
    done = ran("raise", when, bundle)
    assert done.returncode != 0
    assert "the second one gives up" in done.stderr


@pytest.mark.parametrize("when", ["loaded", "after a call"])
def test_an_end_of_one_ends_all(bundle, when):
    done = ran("exit", when, bundle)
    assert done.returncode != 0
    assert "process 0 waits for process 1, which has ended" in done.stderr


@pytest.mark.parametrize("when", ["loaded", "after a call"])
def test_who_does_not_answer_in_time_is_named(bundle, when):
    done = ran("sleep", when, bundle, wait="1")
    assert done.returncode != 0
    assert "process 0 waited 1 s for process 1" in done.stderr
    if when == "after a call":
        assert "all_reduce: process 0 waited" in done.stderr
    else:
        assert "the comparison of plans before the first step" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGSTOP")
def test_who_stops_when_the_others_have_ended_ends_all(bundle):
    done = ran("stop", "at the end", bundle, wait="1")
    assert done.returncode != 0
    assert "process 0 waited 1 s for a word from process 1" in done.stderr


def test_who_has_something_to_do_at_the_end_is_waited_for(bundle):
    done = ran("work", "at the end", bundle, wait="1")
    assert done.returncode == 0, done.stderr
    assert "worked" in done.stdout


def test_who_does_not_start_in_time_ends_all(bundle):
    done = ran("sleep", "before", bundle, start="1")
    assert done.returncode != 0
    assert "waited 1 s for the others to start MPI" in done.stderr or (
        "the start of the processes: process 0 waited 1 s for process 1" in done.stderr
    )


def test_different_bundles_are_refused(bundle, tmp_path):
    other = tmp_path / "other.girih"
    girih.compile(rooms.program("permutes", 2)).save(other)
    done = ran("run", "never", bundle, other)
    assert done.returncode != 0
    assert "process 0 has another bundle than process 1" in done.stderr


def test_different_plans_are_refused(tmp_path):
    """Programs that each process has compiled itself: there are no bundles to compare."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\n"
        "import numpy as np\n"
        "import girih\n"
        "from girih.runtime.distributed.started import the_world\n"
        "source = sys.argv[1 + the_world().rank]\n"
        "girih.compile(girih.import_model(source))(np.ones((3, 24), np.float32))\n"
    )
    paths = [tmp_path / "a.girih", tmp_path / "b.girih"]
    for path, name in zip(paths, ("all_reduces", "permutes"), strict=True):
        girih.compile(rooms.program(name, 2)).save(path)
    done = launched(2, script, *paths, timeout=SOON)
    assert done.returncode != 0
    assert "process 0 has another plan than process 1" in done.stderr


def test_a_wrong_number_of_processes_is_refused_with_the_command(bundle):
    done = ran("run", "never", bundle, count=3)
    assert done.returncode != 0
    assert "is for 2 processes, and 3 run it; start it as: mpiexec -n 2" in done.stderr


def test_another_order_of_calls_is_no_result(bundle, tmp_path):
    """Although the messages of both programs have the same sizes."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\n"
        "import numpy as np\n"
        "import girih\n"
        "programs = [girih.load(path, threads=1, comm_timeout=20) for path in sys.argv[1:]]\n"
        "x = np.ones((3, 24), np.float32)\n"
        "for program in programs:\n"
        "    program(x)\n"
        "for program in programs[:: 1 - 2 * programs[0].rank]:\n"
        "    program(x)\n"
    )
    done = launched(2, script, bundle, bundle, timeout=SOON)
    assert done.returncode != 0
    assert "waited 20 s for process" in done.stderr


def test_another_size_of_a_message_is_refused(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        "import numpy as np\n"
        "from girih.runtime.distributed.started import the_world\n"
        "world = the_world()\n"
        "mine, theirs = np.zeros(8 + 8 * world.rank, np.uint8), np.zeros(16, np.uint8)\n"
        "other = 1 - world.rank\n"
        "world.exchange([(other, mine)], [(other, theirs)], 'model.py:7: all_gather', 5.0)\n"
    )
    done = launched(2, script, timeout=SOON)
    assert done.returncode != 0
    said = "model.py:7: all_gather: process 1 got 8 bytes from process 0, and needs 16"
    assert said in done.stderr


@contextmanager
def running(bundle: Path, wait: str = PATIENT) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A job that calls a program for ever, and the numbers of its processes."""
    script, data = bundle.parent / "rank.py", bundle.parent / "process"
    script.write_text(RANK)
    job = subprocess.Popen(
        command(2, script, "forever", data, bundle),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"GIRIH_COMM_TIMEOUT": PATIENT, "WAIT": wait}),
        stdin=subprocess.DEVNULL,
    )
    numbers: list[int] = []
    try:
        files = [Path(f"{data}.{rank}") for rank in range(2)]
        deadline = time.monotonic() + SOON
        while not all(file.exists() and file.read_text() for file in files):
            assert job.poll() is None and time.monotonic() < deadline, "the job did not begin"
            time.sleep(0.05)
        numbers += [int(file.read_text()) for file in files]
        yield job, numbers
    finally:
        for number in numbers:
            if is_alive(number):
                os.kill(number, signal.SIGKILL)
        job.kill()
        job.wait()


def is_alive(number: int) -> bool:
    """Whether a process runs; one that has ended and whom nobody has asked for it does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def gone(numbers: list[int]) -> bool:
    deadline = time.monotonic() + SOON
    while any(map(is_alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, numbers))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_process_ends_all(bundle):
    with running(bundle) as (job, numbers):
        os.kill(numbers[1], signal.SIGKILL)
        job.communicate(timeout=SOON)
        assert job.returncode != 0
        assert gone(numbers)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_process_ends_all_at_the_deadline(bundle):
    with running(bundle, wait="2") as (job, numbers):
        os.kill(numbers[1], signal.SIGSTOP)
        _, said = job.communicate(timeout=SOON)
        assert job.returncode != 0
        assert "all_reduce: process 0 waited 2 s for process 1" in said
        assert gone(numbers)


def test_the_command_takes_a_deadline_and_ends_all_where_it_fails(bundle, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 24), np.float32))
    run = ("-m", "girih", "run", bundle, tmp_path / "x.npy", "--comm-timeout")
    done = launched(2, *run, "20", timeout=SOON)
    assert done.returncode == 0, done.stderr
    done = launched(2, *run, "0", timeout=SOON)
    assert done.returncode != 0
    assert "comm_timeout must be a number of seconds above 0, not 0.0" in done.stderr


def test_a_command_that_fails_alone_ends_all(bundle, tmp_path):
    """The first process has no such file; the second would wait for it for ever."""
    script = tmp_path / "rank.sh"
    script.write_text(
        'rank="${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"\n'
        f'if [ "$rank" = 0 ]; then file=missing.girih; else file={bundle}; fi\n'
        f'exec {PYTHON} -m girih run "$file" --random\n'
    )
    done = subprocess.run(
        [*launcher(), "-n", "2", "sh", str(script)],
        capture_output=True,
        text=True,
        timeout=SOON,
        env=environment({"GIRIH_COMM_TIMEOUT": PATIENT}),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode != 0
    assert "missing.girih" in done.stderr

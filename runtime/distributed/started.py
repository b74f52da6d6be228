"""The processes that a launcher has started: found, and MPI started, when they are first needed."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import Any

from ...hlo.errors import UserError
from .launch import end_together, launched, place_without_mpi
from .store import StoreWorld
from .world import TIMEOUT, Processes, World, abort_all, comm_timeout

_ENDING = 10.0  # seconds in which the others start MPI, where this process fails before it has
_starting = threading.Lock()


_worlds: list[Processes] = []  # none, or the one that there is


def the_world(seconds: float | None = None) -> Processes:
    """The launcher's processes; UserError without mpi4py or an MPI that it finds, or without torch
    where torchrun or Slurm has started them, or where not all of them start in so many seconds."""
    with _starting:
        if not _worlds:
            limit = comm_timeout(seconds)
            place = place_without_mpi()
            if place is not None:
                world = StoreWorld(*place, limit)
            else:
                world = World(_started_mpi(limit), limit)
            if world.size > 1:
                world.meet()
                end_together(end_all_processes)
                atexit.register(_leave, world, os.getpid())
            _worlds.append(world)
        return _worlds[0]


def _started_mpi(seconds: float) -> Any:
    """mpi4py's MPI. Its own start would hold Python's lock while it waits for the other processes,
    so that no deadline could end it."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"a program of several processes needs MPI, and mpi4py cannot be used ({error}); "
            "pip install girih[mpi]"
        ) from error
    if not MPI.Is_initialized():
        watch = threading.Timer(seconds, _end_late_start, (seconds,))
        watch.daemon = True
        watch.start()
        provided = ctypes.c_int()
        library = ctypes.CDLL(MPI.__file__)  # it finds the functions of the library behind it
        failed = library.MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided))
        watch.cancel()
        if failed:
            raise UserError(f"MPI cannot be started: {MPI.Get_error_string(failed)}")
    return MPI


def _end_late_start(seconds: float) -> None:
    print(
        f"girih: process {os.getpid()} waited {seconds:g} s for the others to start MPI; look at "
        f"what they wrote, or wait longer: --comm-timeout SECONDS or {TIMEOUT}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def end_all_processes() -> None:
    """Where this process runs with others, or was started to, end all of them: it failed, and they
    would wait for it."""
    if not _worlds and launched() == 1:
        return
    if _worlds:
        world = _worlds[0]
        if world.size > 1:
            print(f"process {world.rank} of {world.size} failed and ends all", file=sys.stderr)
            world.abort()
        return
    if place_without_mpi() is not None:
        return  # its launcher sees that it has failed
    try:
        mpi = _started_mpi(_ENDING)
    except UserError:
        return  # it never ran with others
    rank, size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if size > 1:
        print(f"process {rank} of {size} failed and ends all", file=sys.stderr)
        abort_all(mpi)


def joined_world(count: int, seconds: float | None = None) -> Processes:
    """The launcher's processes, which are so many; UserError otherwise, or where they do not start
    in so many seconds. From here on a failure of one ends all."""
    world = the_world(seconds)
    world.seconds = comm_timeout(seconds)
    if world.size != count:
        raise UserError(
            f"the program is for {count} processes, and {world.size} "
            f"{'runs' if world.size == 1 else 'run'} it; start it as: mpiexec -n {count} "
            "girih run FILE, or mpiexec -n "
            f"{count} python SCRIPT"
        )
    return world


def own_rank() -> int:
    """This process's number among those; 0 where it is alone."""
    return the_world().rank if launched() > 1 else 0


def _leave(world: Processes, process: int) -> None:
    if os.getpid() == process:  # not a child of it
        world.leave()

"""How a process waits for messages, on a communicator that answers when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from girih import UserError
from girih.runtime.distributed import world
from girih.runtime.distributed.world import World

BYTES = 1 << 20


class Request:
    """Done at its turn number `turns`; never, where that is negative."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        self.turns -= 1
        return self.turns == -1


def joined(turns: int) -> World:
    """One of two processes, whose messages take so many turns."""
    everyone = SimpleNamespace(
        Get_rank=lambda: 0,
        Get_size=lambda: 2,
        Irecv=lambda array, peer, tag: Request(turns),
        Isend=lambda array, peer, tag: Request(0),
    )
    mpi = SimpleNamespace(
        COMM_WORLD=everyone,
        Get_library_version=lambda: "library",
        Status=lambda: SimpleNamespace(Get_count=lambda kind: BYTES),
        Exception=ValueError,
        BYTE=None,
    )
    return World(mpi, 60.0)


def message() -> list[tuple[int, np.ndarray]]:
    return [(1, np.zeros(BYTES, np.uint8))]


def test_a_process_gives_its_core_away_while_bytes_are_moving(monkeypatch):
    given: list[int] = []
    monkeypatch.setattr(world, "_SLOWEST", 1.0)  # bytes a second: these move for days
    monkeypatch.setattr(world, "_PATIENCE", 0.0)
    monkeypatch.setattr(world, "_give_way", lambda: given.append(1))
    monkeypatch.setattr(world.time, "sleep", lambda pause: pytest.fail("it paused"))
    joined(50).exchange(message(), message(), "exchange", 60.0)
    assert len(given) == 49


def test_it_pauses_once_they_should_have_come(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(world, "_SLOWEST", 1e30)
    monkeypatch.setattr(world, "_PATIENCE", 0.0)
    monkeypatch.setattr(world.time, "sleep", pauses.append)
    joined(50).exchange(message(), message(), "exchange", 60.0)
    assert len(pauses) >= 48 and pauses == sorted(pauses)


def test_a_deadline_holds_however_many_bytes_are_moving(monkeypatch):
    monkeypatch.setattr(world, "_SLOWEST", 1e-3)
    with pytest.raises(UserError, match=r"waited 0\.05 s for process 1"):
        joined(-1).exchange(message(), message(), "exchange", 0.05)

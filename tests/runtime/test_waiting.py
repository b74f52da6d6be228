"""How long exchanges on a GPU's stream may take, on a GPU that does its work late or never."""

from __future__ import annotations

from typing import Any

import pytest

from girih import UserError
from girih.runtime.devices.waiting import Waiting


class Late:
    """Events come after so many questions, the first of a pair at once. `log` has what was done."""

    def __init__(self, *questions: int) -> None:
        self.left = list(questions)
        self.made, self.log = 0, list[str]()

    def record(self, stream: Any) -> int:
        self.made += 1
        return self.made - 1

    def has_come(self, event: int) -> bool:
        if event % 2 == 0:
            return True
        self.left[event // 2] -= 1
        return self.left[event // 2] < 0

    def settle(self, event: int) -> None:
        self.log.append(f"settle {event}")

    def synchronize(self, stream: Any) -> None:
        self.log.append("synchronize")

    def destroy_event(self, event: int) -> None:
        self.log.append(f"destroy {event}")


class Carrier:
    """A communicator that fails at its n-th check."""

    def __init__(self, fails: int = -1) -> None:
        self.fails, self.aborted = fails, False

    def check(self, what: str) -> None:
        self.fails -= 1
        if self.fails == 0:
            raise UserError(f"{what}: NCCL failed")

    def abort(self) -> None:
        self.aborted = True


def posted(driver: Late, carrier: Carrier, seconds: float, *names: str) -> Waiting:
    waiting = Waiting(driver, carrier, seconds)  # pyright: ignore[reportArgumentType]
    for name in names:
        with waiting.posted(name, 7):
            driver.log.append(f"post {name}")
    return waiting


def test_nothing_is_waited_for_while_exchanges_are_posted():
    driver = Late(1000, 1000)
    posted(driver, Carrier(), 60.0, "a", "b")
    assert driver.log == ["post a", "post b"]


def test_events_are_given_back_once_they_have_come():
    driver = Late(0, 5)
    waiting = posted(driver, Carrier(), 60.0, "a", "b")  # posting b sees that a is done
    assert driver.log == ["post a", "destroy 0", "destroy 1", "post b"]
    waiting.synchronize(7)
    assert driver.log[4:] == ["settle 2", "destroy 2", "destroy 3", "synchronize"]


def test_who_takes_too_long_is_named_and_all_is_aborted():
    """The first exchange comes, the second never does."""
    driver, carrier = Late(3, 10**9), Carrier()
    waiting = posted(driver, carrier, 0.05, "model.py:3: all_gather", "model.py:7: all_reduce")
    with pytest.raises(UserError, match=r"model\.py:7: all_reduce: this process waited 0\.05 s"):
        waiting.synchronize(7)
    assert carrier.aborted and "synchronize" not in driver.log


def test_kernels_before_an_exchange_have_no_deadline():
    """Its time begins when the stream has come to it."""
    driver = Late(5)
    waiting = posted(driver, Carrier(), 1e-9, "a")
    driver.left[0] = 0  # it takes no time itself
    waiting.synchronize(7)
    assert "synchronize" in driver.log


def test_a_failure_ends_the_wait():
    driver = Late(10**9)
    waiting = posted(driver, Carrier(fails=3), 60.0, "model.py:3: all_gather")
    with pytest.raises(UserError, match=r"model\.py:3: all_gather: NCCL failed"):
        waiting.synchronize(7)


def test_an_event_that_has_come_needs_no_exchange_behind_it():
    driver = Late(10**9)
    waiting = posted(driver, Carrier(), 0.01, "a")
    waiting.settle(4)
    assert driver.log[-1] == "settle 4"


def test_what_cannot_be_posted_is_not_waited_for():
    driver: Any = Late()
    waiting = Waiting(driver, Carrier(), 1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="no"), waiting.posted("a", 7):
        raise UserError("no")
    assert driver.log == ["destroy 0"]
    waiting.synchronize(7)
    assert driver.log[-1] == "synchronize"

"""Streams and memory of a driver that are given back when nobody refers to them any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .driver import Driver


class Stream:
    """A stream of its own."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.handle = driver, driver.create_stream()
        finally_do(self, driver, driver.destroy_stream, self.handle)


class DeviceMemory:
    """Memory of a device, from when the stream's earlier work is done until its later work is;
    OutOfMemory."""

    def __init__(self, stream: Stream, size: int) -> None:
        self.stream, self.size = stream, size
        self.address = stream.driver.allocate(max(size, 1), stream.handle)
        self._readers: list[Any] = []
        finally_do(self, stream.driver, _release, stream, self.address, self._readers)

    def read_by(self, stream: Any) -> None:
        """It is not given back before the work that this stream, a `Stream` or the handle of
        another library's, has then."""
        if stream not in self._readers:
            self._readers.append(stream)


class Moment:
    """When the work is done that a stream has now."""

    def __init__(self, driver: Driver, stream: Any) -> None:
        self.event = driver.record(stream)
        finally_do(self, driver, driver.destroy_event, self.event)


def order(driver: Driver, first: Any, second: Any) -> None:
    """What the second stream does from now on comes after what the first one has now."""
    event = driver.record(first)
    driver.wait(second, event)
    driver.destroy_event(event)


def _release(stream: Stream, address: int, readers: list[Any]) -> None:
    driver = stream.driver
    for reader in readers:
        try:
            order(driver, reader.handle if isinstance(reader, Stream) else reader, stream.handle)
        except Exception:  # another library's stream that is gone; its work may be under way
            driver.drain()
    driver.free(address, stream.handle)


def finally_do(owner: Any, driver: Driver, function: Callable[..., Any], *arguments: Any) -> None:
    """Call it when `owner` is gone; not at the end of the process, which gives all back, and
    without a word where the device is gone."""
    weakref.finalize(owner, _quietly, driver, function, arguments).atexit = False


def _quietly(driver: Driver, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with suppress(Exception), driver:
        function(*arguments)

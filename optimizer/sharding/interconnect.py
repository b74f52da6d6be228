"""What moving bytes between devices costs, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Link:
    """Seconds that begin a call, that each message of it adds, and that each byte takes.

    A byte is one that a device receives. The default is a round figure of a network of servers
    (10 us, 1 us, 50 GB/s), measured on none.
    """

    call: float = 10e-6
    message: float = 1e-6
    byte: float = 1 / 50e9


@dataclass(frozen=True)
class Interconnect:
    """The link along each axis of a mesh; `usual` along those that `links` does not name."""

    links: tuple[tuple[str, Link], ...] = ()
    usual: Link = Link()

    def link(self, axis: str) -> Link:
        return dict(self.links).get(axis, self.usual)


USUAL = Interconnect()


def slowest(links: Iterable[Link]) -> Link:
    """The link of a call that goes along several axes."""
    return _each(max, links)


def quickest(links: Iterable[Link]) -> Link:
    """What no call along any of these takes less than."""
    return _each(min, links)


def _each(choose: Callable[[Iterable[float]], float], links: Iterable[Link]) -> Link:
    found = list(links) or [Link(0.0, 0.0, 0.0)]
    return Link(
        choose(link.call for link in found),
        choose(link.message for link in found),
        choose(link.byte for link in found),
    )


def seconds(link: Link, messages: float, size: float) -> float:
    """What one call takes in which a device gets that many messages, of `size` bytes in all."""
    return link.call + messages * link.message + size * link.byte

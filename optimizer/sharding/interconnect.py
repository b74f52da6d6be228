"""What moving bytes between devices costs, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..machine import Machine


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


def interconnect_of(machine: Machine | None, processes: int) -> Interconnect:
    """What sending costs between so many processes, as `girih machine --calibrate` measured it
    under a launcher; USUAL where it did not."""
    one = machine and machine.communication("exchange", processes, "girih")
    if machine is None or one is None:
        return USUAL
    many = machine.communication("all_to_all", processes, "girih")
    more = many.processes - 2 if many is not None else 0  # messages beside the first
    message = max(0.0, many.call - one.call) / more if many is not None and more > 0 else 0.0
    return Interconnect(
        usual=Link(call=one.call - min(message, one.call), message=message, byte=one.byte)
    )


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

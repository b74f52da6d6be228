"""Channels, streams and asynchronous operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError, UserError
from ..graph import Op, Value
from ..groups import CROSS_PARTITION, CROSS_REPLICA, Groups, process_groups
from ..room import OpDefinition, attribute, constraint, operand, variadic
from ..types import TOKEN, FutureType, Type
from .clauses import any_result, is_tensor, same_dim, static_dims
from .collectives import zeros
from .control import same_types
from .rooted import pair_clauses, paired_traffic

DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE = 1, 2, 3


def _checked(o: Op, values: Sequence[Any]) -> tuple[Any, ...]:
    """The payload of a recv or infeed, as its results say it must be; UserError otherwise."""
    kinds = [result.tensor for result in o.results[:-1]]
    arrays = [np.asarray(value) for value in values]
    fit = len(kinds) == len(arrays) and all(
        array.dtype == kind.dtype
        and array.ndim == kind.rank
        and all(map(same_dim, array.shape, kind.dims))
        for array, kind in zip(arrays, kinds, strict=True)
    )
    if not fit:
        got = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays) or "nothing"
        wanted = ", ".join(map(str, kinds)) or "nothing"
        raise UserError(f"{o.place}{o.name}: takes {wanted}, but is given {got}")
    return (*arrays, None)


class CommunicationOperation(OpDefinition):
    """What operations with a token in and a token out have in common."""

    pattern = "opaque"
    opaque = "it speaks with the world outside"
    uncut = "the world outside has the whole of it"
    effects = True
    communicates = True
    since = "1.2"

    def alone(self, b: Any, o: Op, *values: Value) -> Sequence[Value]:
        raise UnsupportedError(
            f"{o.place}{o.name}: compiled programs neither send nor receive while they run; make "
            "the values inputs or results of the program, or interpret it"
        )

    def strategy(self, o: Op) -> str:
        return CROSS_PARTITION if o.channel_id > 0 else CROSS_REPLICA


def _token(o: Op) -> bool:
    """The last operand is a token, those before are tensors."""
    return o.operands[-1].type is TOKEN and all(map(is_tensor, o.operands[:-1]))


def _payload(o: Op) -> bool:
    """The last result is a token, those before are tensors."""
    return (
        len(o.results) > 0 and o.results[-1].type is TOKEN and all(map(is_tensor, o.results[:-1]))
    )


TOKEN_LAST = constraint("tensors, then a token", _token)
PAYLOAD = constraint("results are tensors, then a token", any_result(_payload))


class Send(CommunicationOperation, name="send"):
    """Put inputs into channel channel_id, for the host or for the paired process."""

    inputs = variadic()
    token = operand()
    channel_id = attribute(int)
    channel_type = attribute(int, DEVICE_TO_DEVICE)
    is_host_transfer = attribute(bool, False)
    source_target_pairs = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1, C2, C3, C4 = pair_clauses()
    C5 = constraint(
        "channel_type is DEVICE_TO_HOST (2) for a host transfer, DEVICE_TO_DEVICE (1) otherwise",
        lambda o: o.channel_type == (DEVICE_TO_HOST if o.is_host_transfer else DEVICE_TO_DEVICE),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [TOKEN]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        context["process"].send(o, self.strategy(o), arrays[:-1])
        return (None,)


class Receive(CommunicationOperation, name="recv"):
    """results = the next value in channel channel_id, and a token."""

    token = operand()
    channel_id = attribute(int)
    channel_type = attribute(int, DEVICE_TO_DEVICE)
    is_host_transfer = attribute(bool, False)
    source_target_pairs = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1, C2, C3, C4 = pair_clauses()
    C5 = constraint(
        "channel_type is HOST_TO_DEVICE (3) for a host transfer, DEVICE_TO_DEVICE (1) otherwise",
        lambda o: o.channel_type == (HOST_TO_DEVICE if o.is_host_transfer else DEVICE_TO_DEVICE),
    )
    C6 = PAYLOAD

    def partners(self, o: Op, partitions: int) -> Groups:
        return process_groups(self.strategy(o), o.source_target_pairs, 1, partitions)

    def traffic(self, o: Op, partitions: int) -> float:
        kinds = [result.tensor for result in o.results[:-1]]
        return paired_traffic(self.partners(o, partitions), kinds, partitions)

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        found = context["process"].receive(o, self.strategy(o))
        if found is None:
            return (*(zeros(r.tensor, static_dims(r.tensor, o.name)) for r in o.results[:-1]), None)
        return _checked(o, found)


class Infeed(CommunicationOperation, name="infeed"):
    """results = what the host feeds next, and a token."""

    token = operand()
    infeed_config = attribute(str, "")
    layout = attribute(tuple, ())
    C0 = TOKEN_LAST
    C1 = PAYLOAD

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return _checked(o, context["process"].next_infeed(o))


class Outfeed(CommunicationOperation, name="outfeed"):
    """Give inputs to the host."""

    inputs = variadic()
    token = operand()
    outfeed_config = attribute(str, "")
    C0 = TOKEN_LAST

    def infer(self, o: Op) -> Sequence[Type]:
        return [TOKEN]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        context["process"].outfeed.append(arrays[:-1])
        return (None,)


ASYNCHRONOUS = frozenset(
    {
        "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
        "collective_reduce", "exchange", "reduce_scatter", "slice", "dynamic_slice",
        "dynamic_update_slice",
    }
)  # fmt: skip


class AsyncStart(OpDefinition, name="async_start"):
    """result = the future of body(inputs), which runs beside what follows."""

    pattern = "control"
    opaque = "the operation inside says what it reads"
    uncut = "operations are cut before they are made asynchronous"
    effects = True
    communicates = True
    since = "1.2"
    regions = ("body",)
    inputs = variadic()
    C1 = constraint("body holds a single operation", lambda o: len(o.regions[0].ops) == 1)
    C2 = constraint(
        "the operation in body is a collective or a slice",
        lambda o: all(op.name in ASYNCHRONOUS for op in o.regions[0].ops),
    )
    C3 = constraint(
        "body takes the inputs, or nothing where it uses them itself",
        lambda o: (
            not o.regions[0].arguments
            or same_types([v.type for v in o.operands], o.regions[0].argument_types)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [FutureType(o.regions[0].result_types)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        run, body = context["run"], o.regions[0]
        inputs = arrays if body.arguments else ()
        return (context["process"].start(lambda: run(body, inputs)),)

    def flops(self, o: Op) -> float:
        return sum(inner.definition.flops(inner) for inner in o.regions[0].ops)


class AsyncDone(OpDefinition, name="async_done"):
    """results = the values of the future, once they are there."""

    pattern = "control"
    opaque = "a future has no elements"
    uncut = "operations are cut before they are made asynchronous"
    effects = True
    communicates = True
    since = "1.2"
    operand = operand()
    C1 = constraint("operand is a future", lambda o: isinstance(o.operands[0].type, FutureType))

    def infer(self, o: Op) -> Sequence[Type]:
        kind = o.operands[0].type
        assert isinstance(kind, FutureType)
        return kind.members

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(context["process"].finish(o, arrays[0]))


ROOMS: tuple[OpDefinition, ...] = (
    Send(), Receive(), Infeed(), Outfeed(), AsyncStart(), AsyncDone(),
)  # fmt: skip

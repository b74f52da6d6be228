"""Buffers of a model, which come back from a call as the next one takes them."""

from __future__ import annotations

from ...hlo.build import Builder
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Region, Value
from ...hlo.ops.annotation import RESULT
from ...hlo.sharding import Sharding
from .propagated import Propagated, propagate

_TURNS = 4  # of constraints that bring axes to buffers


def states_as_taken(found: Propagated) -> Propagated:
    """The program with a constraint on each new value of a buffer that would lie otherwise than the
    buffer, propagated again; `found` itself where there is none. UnsupportedError where these
    constraints change again and again how buffers lie."""
    module, turns = found.module, 0  # with the constraints of the last turn alone
    while wrong := _wrong(found):
        if turns == _TURNS:
            names = ", ".join(sorted(name for name, _ in wrong.values()))
            raise UnsupportedError(
                f"the buffers {names} lie otherwise after a call than before it; say how they lie, "
                "as shardings={'NAME': (...)}"
            )
        turns += 1
        body, b = module.body, Builder(check=False)
        results = list(body.results)
        for number, (_, sharding) in wrong.items():
            results[number] = _constrained(b, results[number], sharding)
        found = propagate(module.with_main(Region(body.arguments, [*body.ops, *b.ops], results)))
    return found


def _wrong(found: Propagated) -> dict[int, tuple[str, Sharding]]:
    """By a result's number, the buffer's name and how it lies, where the result lies otherwise."""
    signature, body = found.module.signature, found.module.body
    if signature is None:
        return {}
    taken = {
        argument.state: found.shardings.get(value)
        for argument, value in zip(signature.arguments, body.arguments, strict=True)
        if argument.state is not None
    }
    wrong: dict[int, tuple[str, Sharding]] = {}
    for number, (result, value) in enumerate(zip(signature.results, body.results, strict=True)):
        sharding = taken.get(result.state or "")
        if sharding is not None and found.shardings.get(value) != sharding:
            wrong[number] = str(result.state), sharding
    return wrong


def _constrained(b: Builder, value: Value, sharding: Sharding) -> Value:
    with b.at(() if value.op is None else value.op.origin):
        kind = value.tensor.with_sharding(sharding)
        return b.op("sharding_constraint", [value], {"stated": RESULT}, (), (kind,)).result

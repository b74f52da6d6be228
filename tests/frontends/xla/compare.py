"""Whether two instruction trees say the same, whatever their order and what they leave out."""

from __future__ import annotations

from typing import Any

import numpy as np

from girih.frontends.xla.program import Computation, Instruction, Shape, XlaProgram

_DEFAULTS: dict[str, Any] = {
    "feature_group_count": 1,
    "batch_group_count": 1,
    "api_version": "API_VERSION_ORIGINAL",
    "result_accuracy": "default",
    "fft_type": "FFT",
    "algorithm": "rng_default",
    "padding_type": "padding_valid",
}
_IGNORED = ("constrain_layout", "remedy")


def differences(first: XlaProgram, second: XlaProgram) -> list[str]:
    """What the two programs say differently; computations are compared as they are called."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    pending = [(first.entry, second.entry)]
    while pending:
        left, right = pending.pop()
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        found += _computation(left, right, pending)
    for key in ("aliases", "donors"):
        if sorted(getattr(first, key)) != sorted(getattr(second, key)):
            found.append(f"{key} differ")
    if first.attributes.get("frontend_attributes") != second.attributes.get("frontend_attributes"):
        found.append("frontend attributes differ")
    return found


def _computation(left: Computation, right: Computation, pending: list[Any]) -> list[str]:
    ours = _reachable(left)
    theirs = _reachable(right)
    place = f"{left.name}/{right.name}"
    if [_key(p.shape) for p in left.parameters] != [_key(p.shape) for p in right.parameters]:
        return [f"{place}: parameters differ"]
    # Both walks start at the roots and follow operands in order.
    if len(ours) != len(theirs):
        return [f"{place}: {len(ours)} and {len(theirs)} instructions"]
    number = {instruction: index for index, instruction in enumerate(ours)}
    other = {instruction: index for index, instruction in enumerate(theirs)}
    found: list[str] = []
    for a, b in zip(ours, theirs, strict=True):
        name = f"{place}.{a.name}"
        if a.opcode != b.opcode or _key(a.shape) != _key(b.shape) or a.number != b.number:
            found.append(f"{name}: {a.opcode} {a.shape!r}, {b.opcode} {b.shape!r}")
        if [number[o] for o in a.operands] != [other[o] for o in b.operands]:
            found.append(f"{name}: operands differ")
        if len(a.calls) != len(b.calls):
            found.append(f"{name}: calls {len(a.calls)} and {len(b.calls)}")
        pending += zip(a.calls, b.calls, strict=False)
        one, two = _facts(a), _facts(b)
        for key in {*one, *two}:
            if not _equal(one.get(key), two.get(key)):
                found.append(f"{name}: {key} {one.get(key)!r}, {two.get(key)!r}")
    return found


def _key(shape: Shape) -> Any:
    """What a shape says; a missing layout is the row-major one."""
    return (
        shape.element,
        shape.dims,
        shape.dynamic,
        shape.major_to_minor,
        shape.tiled,
        tuple(map(_key, shape.members)),
    )


def _reachable(computation: Computation) -> list[Instruction]:
    order: dict[Instruction, None] = {}
    pending = [computation.root, *computation.parameters]
    while pending:
        instruction = pending.pop(0)
        if instruction not in order:
            order[instruction] = None
            pending += instruction.operands
    return list(order)


def _facts(instruction: Instruction) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key, value in instruction.attributes.items():
        if isinstance(value, np.ndarray):
            facts[key] = value
        elif key == "operand_layout_constraints":
            facts[key] = tuple(map(_key, value))
        elif (
            key not in _IGNORED
            and value not in (_DEFAULTS.get(key, ()), 0, "", (), {})
            or key == "literal"
        ):
            facts[key] = value
    if facts.get("type") != "TOTALORDER":
        facts.pop("type", None)
    return facts


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and _bits(one) == _bits(two)
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return False
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return bool(one == two)


def _bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()

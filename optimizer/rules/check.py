"""The automatic check of a rule: on each of its examples both sides must compute the same.

"The same" is what the rule's licence says: equal bits (NaN payloads apart), equal up to the sign of
zeros, equal on small dyadic values, equal where inputs and results are finite. Rules that need
REASSOCIATES are run on small dyadic values, infinities and NaN; all others on hostile ones.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ...hlo.errors import GirihError
from ...hlo.graph import Function, Module, Region
from ...hlo.interpret import interpret
from ...hlo.types import ElementType, TensorType
from ..licence import ASSUMES_FINITE, BITWISE, IGNORES_ZERO_SIGN, REASSOCIATES, Licence
from ..rewrite import Engine
from ..rule import Example, Rule
from . import RULES
from .hostile import programs
from .neighbours import neighbours

ALL = IGNORES_ZERO_SIGN | REASSOCIATES | ASSUMES_FINITE
DYADIC = (0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.0, 3.0, -4.0, 0.25)
INFINITE = (np.inf, -np.inf, np.nan)


def check_rule(rule: Rule, rounds: int = 2) -> list[str]:
    """What is wrong with a rule, one sentence each; empty if nothing is.

    Beside its own examples it is run on their neighbours, on the examples of all structural rules
    and on hostile programs, where it may fire or not.
    """
    problems = []
    fired = 0
    for example in programs_for(rule):
        fired += bool(example.fires)
        problem = check_example(rule, example, rounds if example.fires else 1)
        if problem:
            problems.append(f"{rule.name}: {example.name}: {problem}")
            if len(problems) == 3:
                break
    if not fired:
        problems.append(f"{rule.name}: no example makes it fire")
    return problems


def check_example(rule: Rule, example: Example, rounds: int = 2) -> str:
    """The first difference between an example and what the rule makes of it; "" if none."""
    module = Module({"main": Function("main", example.region)})
    engine = Engine(module, [rule], ALL, check=True)
    try:
        region = engine.simplify(example.region)
    except GirihError as error:
        return f"cannot be rewritten: {error}"
    hits = engine.ledger.hits[rule.name]
    if engine.ledger.exhausted:
        return "the rule does not terminate"
    if example.fires is not None and bool(hits) is not example.fires:
        return "fires, but must not" if hits else "does not fire"
    if not hits:
        return ""
    left = tuple(op.name for op in region.ops)
    if example.makes is not None and left != example.makes:
        return f"makes {', '.join(left)}; that is not {', '.join(example.makes)}"
    if rule.lowers == "operations":
        before, count = _count(example.region), _count(region)
        if count > before or (count == before and example.fires and before):
            return f"makes {count} operations of {before}"
    after = module.with_main(region)
    licence = rule.licence if _has_floats(example.region) else BITWISE
    if _zero_sign_is_open(example.region):
        licence |= IGNORES_ZERO_SIGN
    for number in range(rounds):
        inputs = example.inputs
        if inputs is None:
            values = licence | REASSOCIATES | ASSUMES_FINITE if rule.sums else licence
            inputs = draw(example.region, values, f"{rule.name} {example.name} {number}")
        with np.errstate(all="ignore"):
            expected, found = interpret(module, inputs), interpret(after, inputs)
        for one, other in zip(expected, found, strict=True):
            problem = difference(one, other, licence, rule.ulps)
            if problem:
                return problem
    return ""


# Programs.


def programs_for(rule: Rule) -> Iterator[Example]:
    """All programs that a rule is checked on: its own examples first."""
    yield from rule.examples()
    yield from _used_elsewhere(rule)
    if not rule.made_from:  # the examples of formulas say all that there is
        yield from _near(rule.examples)
    yield from _others(rule)


def _used_elsewhere(rule: Rule, most: int = 6) -> Iterator[Example]:
    """Examples of a `single` rule, with the operations that it wants to be alone as results."""
    for example in rule.examples() if rule.single else ():
        roots = [op for op in example.region.ops if op.name in rule.roots]
        if not example.fires or not roots or not most:
            continue
        inner = [v for v in roots[-1].operands if v.op is not None and v.op.operands]
        results = (*example.region.results, *inner)
        region = Region(example.region.arguments, example.region.ops, results)
        yield Example(f"{example.name}, used elsewhere", region, example.inputs, fires=False)
        most -= 1


@functools.cache
def _near(examples: Callable[[], Iterable[Example]]) -> tuple[Example, ...]:
    return tuple(near for example in examples() for near in neighbours(example))


def _others(rule: Rule) -> Iterator[Example]:
    """Programs of others that have an operation which the rule looks at."""
    for example, names in _programs():
        if "*" in rule.roots or not names.isdisjoint(rule.roots):
            yield example


@functools.cache
def _programs() -> list[tuple[Example, frozenset[str]]]:
    found = [
        example._replace(name=f"{rule.name}, {example.name}", fires=None, makes=None)
        for rule in RULES
        if not rule.made_from
        for example in rule.examples()
    ]
    return [
        (
            example,
            frozenset(op.name for op in example.region.walk()),
        )
        for example in (*found, *programs())
    ]


def _has_floats(region: Region) -> bool:
    values = [value for op in region.walk() for value in (*op.operands, *op.results)]
    kinds = {value.tensor.element.kind for value in values if isinstance(value.type, TensorType)}
    return bool(kinds & {"float", "complex"})


def _count(region: Region) -> int:
    """How many operations compute or move something that is used."""
    needed = set(region.results)
    count = 0
    for op in reversed(region.ops):
        if not needed.isdisjoint(op.results):
            empty = all(getattr(value.type, "size", 1) == 0 for value in op.results)
            count += op.name != "constant" and not empty
            needed.update(op.operands)
    return count


def _zero_sign_is_open(region: Region) -> bool:
    """Whether a maximum or minimum is reduced over, where a zero's sign is open."""
    return any(
        inner.name in ("maximum", "minimum")
        for op in region.walk()
        for body in op.regions
        for inner in body.ops
    )


# Inputs.


def telling_values(element: ElementType, licence: Licence) -> np.ndarray[Any, Any]:
    """The values of an element type on which a rule of that licence is tried."""
    if element.is_bool:
        return np.array([False, True])
    if element.is_integer:
        high = (1 << (element.bits - (element.kind == "int"))) - 1
        low = -high - 1 if element.kind == "int" else 0
        values = [0, 1, 2, 3, 5, high, high - 1, low, low + 1, *((-1, -2) if low else ())]
        return np.array(sorted(set(values))).astype(element.dtype)
    if element.is_complex:
        return np.array([0, 1, -1, 1j, 0.5 + 2j, -3 + 0.25j]).astype(element.dtype)
    floats = list(DYADIC)
    if not licence & REASSOCIATES:
        limits = {16: (6e4, 6e-5, 6e-8), 64: (1.7e308, 2.3e-308, 5e-324)}.get(
            element.bits, (3.4e38, 1.2e-38, 1e-45)
        )
        floats += [*limits, -limits[0], -limits[2], 3.1415926, 1e-3, -7.25]
    if not licence & ASSUMES_FINITE:
        floats += INFINITE
    with np.errstate(all="ignore"):
        return np.array(floats).astype(element.dtype)


def draw(region: Region, licence: Licence, seed: str) -> tuple[Any, ...]:
    """Arguments of hostile values; several equally large ones meet in all combinations."""
    generator = np.random.default_rng(zlib.crc32(seed.encode()))
    types = [value.tensor for value in region.arguments]
    inputs = []
    for position, type in enumerate(types):
        values = telling_values(type.element, licence)
        size = type.size
        if size >= 64:
            number = np.arange(size) // len(values) ** position
            picks = np.where(generator.random(size) < 0.9, number, generator.integers(0, 99, size))
        else:
            picks = generator.integers(0, 1 << 30, size)
        inputs.append(values[picks % len(values)].reshape(type.dims))
    return tuple(inputs)


# Comparison.


def difference(
    expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], licence: Licence, ulps: int = 0
) -> str:
    """What differs beyond what the licence permits; "" if nothing does."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{expected.dtype}{expected.shape} became {found.dtype}{found.shape}"
    if expected.size == 0:
        return ""
    if expected.dtype.kind in "biu":
        bad = expected != found
    else:
        bad = _different_floats(expected, found, licence, ulps)
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0])
    was, now = np.atleast_1d(expected)[place], np.atleast_1d(found)[place]
    return f"at {list(place)} {was!r} became {now!r}"


def _different_floats(expected: Any, found: Any, licence: Licence, ulps: int) -> Any:
    if expected.dtype.kind == "c":
        parts = [(expected.real, found.real), (expected.imag, found.imag)]
        return np.logical_or(*(_different_floats(a, b, licence, ulps) for a, b in parts))
    bits = expected.dtype.itemsize * 8
    precision = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}.get(expected.dtype.itemsize, 2.0**-3)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    both_nan = np.isnan(a) & np.isnan(b)
    with np.errstate(all="ignore"):
        same = a == b
        if licence & REASSOCIATES:
            allowed = (ulps + (1 if bits == 16 else 0)) * precision
            same |= np.abs(a - b) <= allowed * np.maximum(np.abs(a), np.abs(b))
            same |= (np.abs(a) < 2.0**-120) & (np.abs(b) < 2.0**-120) & (bits > 16)
    if not licence & IGNORES_ZERO_SIGN:
        same &= ~((a == 0) & (b == 0)) | (np.signbit(a) == np.signbit(b))
    bad = ~(same | both_nan)
    if licence & ASSUMES_FINITE:
        bad &= np.isfinite(a)
    return bad

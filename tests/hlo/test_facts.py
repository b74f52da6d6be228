"""What rooms state of their operations, held against `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from girih.hlo.cases import Example, example
from girih.hlo.interpret import interpret
from girih.hlo.ops import DEFINITIONS
from girih.hlo.ops.elementwise import Binary

PLAIN = {np.dtype(name) for name in ("f4", "f8", "i4", "i8", "c8")}
BINARY = [one for one in DEFINITIONS if isinstance(one, Binary) and "int" in one.kinds]


def examples(fact: str) -> Iterator[Any]:
    """Cases on plain numbers of the operations that state something."""
    for definition in DEFINITIONS:
        for case in definition.cases() if getattr(definition, fact) else ():
            made = example(definition, case)
            if all(x.dtype in PLAIN for x in made.inputs if x.ndim) and not case.input_types:
                yield pytest.param(made, id=made.name)


def small(made: Example, seed: int) -> list[np.ndarray[Any, Any]]:
    """Inputs of small integers, which products and sums are exact on."""
    generator = np.random.default_rng(seed)
    return [np.asarray(generator.integers(0, 4, x.shape)).astype(x.dtype) for x in made.inputs]


@pytest.mark.parametrize("made", [*examples("moves")])
def test_moves(made: Example) -> None:
    first, *rest = made.inputs
    numbers = (np.arange(first.size) + 1).reshape(first.shape).astype(first.dtype)
    (result,) = interpret(made.module, [numbers, *rest])
    found = set(np.asarray(result).ravel().tolist())
    assert found <= set(numbers.ravel().tolist())
    if made.definition.moves == "whole" and np.size(result):
        assert found == set(numbers.ravel().tolist())
    if made.definition.strided:
        for axis in range(result.ndim):
            steps = np.unique(np.diff(result.real, axis=axis))
            assert len(steps) <= 1 and (steps > 0).all()


@pytest.mark.parametrize("definition", BINARY, ids=lambda one: one.name)
def test_associative_and_idempotent(definition: Any) -> None:
    """Both where they are stated and where they are not."""
    x, y, z = (each.ravel() for each in np.meshgrid(*[np.arange(-3, 4, dtype=np.int32)] * 3))

    def of(left: Any, right: Any) -> Any:
        return definition.evaluate(None, left, right)

    assert definition.idempotent == np.array_equal(of(x, x), x)
    associates = np.array_equal(of(of(x, y), z), of(x, of(y, z)))
    assert definition.associative == associates


@pytest.mark.parametrize("made", [*examples("views")])
def test_views(made: Example) -> None:
    """Elements stand in the order of the operand's; as many of them, or some repeated."""
    assert made.definition.moves == "whole"
    (x, *_), (result,) = made.inputs, interpret(made.module, made.inputs)
    assert made.definition.views == "repeated" or np.size(result) == x.size
    numbers = np.arange(x.size).reshape(x.shape).astype(x.dtype)
    (found,) = interpret(made.module, [numbers])
    for axis in range(found.ndim):
        assert (np.diff(found.real, axis=axis) >= 0).all()


NEUTRAL = {
    "zero": lambda kind: kind(0), "one": lambda kind: kind(1), "ones": lambda kind: ~kind(0),
    "lowest": lambda kind: np.iinfo(kind).min, "highest": lambda kind: np.iinfo(kind).max,
}  # fmt: skip


@pytest.mark.parametrize("definition", BINARY, ids=lambda one: one.name)
def test_neutral(definition: Any) -> None:
    """Stated of all that are associative, and true."""
    assert bool(definition.neutral) == definition.associative
    if definition.neutral:
        x = np.arange(-3, 4, dtype=np.int32)
        number = np.full_like(x, NEUTRAL[definition.neutral](np.int32))
        for pair in ((x, number), (number, x)):
            np.testing.assert_array_equal(definition.evaluate(None, *pair), x)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: one.name)
def test_predicates(definition: Any) -> None:
    """Booleans of operands that are none."""
    if definition.pattern == "elementwise":
        made = [example(definition, case).module.body.results[0] for case in definition.cases()]
        kinds = [(v.op.operands[0].element, v.element) for v in made if v.op and v.op.operands]
        given = [result for operand, result in kinds if not operand.is_bool]
        assert definition.predicate == (bool(given) and all(one.is_bool for one in given))
    else:
        assert not definition.predicate


def test_loops() -> None:
    assert {one.name for one in DEFINITIONS if one.loops} == {"while", "tile_for", "chlo.scan"}
    assert all(one.loops for one in DEFINITIONS if one.flow == "loop")


@pytest.mark.parametrize("made", [*examples("linear")])
def test_linear(made: Example) -> None:
    one, other = small(made, 0), small(made, 1)
    count = len(one)
    alone = made.definition.linear == "separately"
    for group in [{n} for n in range(count)] if alone else [set(range(count))]:
        left = [x if n in group else y for n, (x, y) in enumerate(zip(one, other, strict=True))]
        both = [x + y if n in group else y for n, (x, y) in enumerate(zip(one, other, strict=True))]
        parts = [interpret(made.module, given)[0] for given in (left, other)]
        assert np.array_equal(interpret(made.module, both)[0], parts[0] + parts[1])

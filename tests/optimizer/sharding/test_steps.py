"""One operation at a time: projection to factors, and what goes along them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from girih.hlo.factor_text import parse_factors
from girih.hlo.sharding import Mesh, Sharding, parse_sharding
from girih.optimizer.sharding.aggressive import propagate_aggressive
from girih.optimizer.sharding.basic import (
    BACKWARD,
    BOTH,
    FORWARD,
    NONE,
    propagate_basic,
)
from girih.optimizer.sharding.projection import project, unproject
from girih.optimizer.sharding.propagation import common_mesh, step_changes

MESHES = {
    "m": Mesh((("x", 4), ("y", 2), ("z", 2))),
    "in_order": Mesh((("x", 4), ("y", 2), ("z", 2)), tuple(reversed(range(16)))),
    "same": Mesh((("x", 4), ("y", 2), ("z", 2))),
}
DOT = "([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}"
ADD = "([i, j], [i, j])->([i, j]) {i=8, j=16}"
SPLIT = "([ij])->([i, j]) {i=2, j=4}"
MERGE = "([i, j])->([ij]) {i=2, j=4}"


def sharding(text: str | None) -> Sharding | None:
    return None if text is None else parse_sharding(f"<@m, {text}>")


def after(
    rule: str,
    given: Sequence[str | None],
    strategy: object = propagate_aggressive,
    direction: int = BOTH,
    elementwise: bool = False,
) -> list[str | None]:
    """The dims of each tensor after one step."""
    factors = parse_factors(rule)
    shardings = [sharding(text) for text in given]
    directions = (direction,) * len(factors.factors)
    found = list(shardings)
    for change in step_changes(factors, directions, elementwise, shardings, MESHES, strategy):  # type: ignore[arg-type]
        found[change.tensor] = change.sharding
    return [None if s is None else str(s).removeprefix("<@m, ").removesuffix(">") for s in found]


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        (SPLIT, '[{"x", "y", ?}]'),
        (SPLIT, '[{"y"}]'),
        (SPLIT, '[{"x":(1)2, "y"}]'),
        ("([ij])->([i, j]) {i=3, j=4}", '[{"x", "y", ?}]'),
        ("([ijk])->([i]) {i=2, j=3, k=4}", '[{"y", "x"}]'),
    ],
)
def test_projection_keeps_all(dims: str, said: str) -> None:
    rule = parse_factors(dims)
    sizes = [factor.size for factor in rule.factors]
    stated = sharding(said)
    found = project(rule.operands[0], stated, sizes, MESHES["m"])
    again = unproject(rule.operands[0], found, stated, sizes, MESHES["m"], "m")
    assert again == stated


def test_axes_are_split_among_factors() -> None:
    assert after(SPLIT, ['[{"x", "y"}]', None]) == [
        '[{"x", "y"}]', '[{"x":(1)2, ?}, {"x":(2)2, "y", ?}]',
    ]  # fmt: skip
    assert after(MERGE, ['[{"x":(1)2}, {"x":(2)2, "y"}]', None])[1] == '[{"x", "y", ?}]'


def test_a_factor_that_is_not_used_up_ends_its_dim() -> None:
    assert after(MERGE, ['[{?}, {"y"}]', None])[1] is None


def test_axes_that_do_not_divide_go_no_further() -> None:
    three = "([ij])->([i, j]) {i=3, j=4}"
    assert after(three, ['[{"x"}]', None]) == ['[{"x"}]', None]


def test_a_product_gets_its_operands_axes() -> None:
    assert after(DOT, ['[{"x"}, {}]', '[{}, {"y"}]', None])[2] == '[{"x", ?}, {"y", ?}]'
    assert after(DOT, ['[{}, {"x"}]', None, None])[1:] == ['[{"x", ?}, {?}]', None]


def test_directions() -> None:
    given = ['[{"x"}, {?}]', None, '[{?}, {"y"}]']
    assert after(ADD, given, propagate_basic, FORWARD) == [
        '[{"x"}, {?}]', '[{"x", ?}, {?}]', '[{"x", ?}, {"y"}]',
    ]  # fmt: skip
    assert after(ADD, given, propagate_basic, BACKWARD)[:2] == [
        '[{"x"}, {"y", ?}]',
        '[{?}, {"y", ?}]',
    ]
    assert after(ADD, given, propagate_basic, NONE) == given


def test_basic_takes_what_fits_all_and_aggressive_what_fits_each() -> None:
    given = ['[{"x", ?}, {?}]', '[{?}, {"x", ?}]', None]
    assert after(ADD, given, propagate_basic) == given
    assert after(ADD, given, elementwise=True)[2] == '[{"x", ?}, {?}]'
    # The second operand is cut by x already; of the two factors the first one wins in the result.
    assert after(ADD, given, elementwise=True)[:2] == given[:2]


def test_the_larger_tensor_wins() -> None:
    given = ['[{"x", ?}, {?}]', '[{?}, {"x", ?}]', None]
    assert after(DOT, given)[2] == '[{?}, {"x", ?}]'  # 32 x 16 against 8 x 32


def test_the_longer_cut_wins_in_elementwise_operations() -> None:
    given = ['[{"y", ?}, {?}]', '[{?}, {"y", "x", ?}]', None]
    assert after(ADD, given, elementwise=True)[2] == '[{?}, {"y", "x", ?}]'


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ("[{?}, {?}]", '[{"x", ?}, {?}]'),
        ("[{}, {?}]", "[{}, {?}]"),
        ('[{?}, {?}], replicated={"x":(2)2}', '[{"x":(1)2, ?}, {?}], replicated={"x":(2)2}'),
        ('[{?}, {?}], unreduced={"x"}', '[{?}, {?}], unreduced={"x"}'),
        ('[{?}, {"x", ?}]', '[{?}, {"x", ?}]'),
    ],
)
def test_what_a_tensor_does_not_take(result: str, wanted: str) -> None:
    given = ['[{"x"}, {}]', '[{"x"}, {}]', result]
    assert after(ADD, given, elementwise=True)[2] == wanted


def test_blocked_factors_carry_nothing() -> None:
    from girih.hlo.factors import FactorKind
    from girih.optimizer.sharding.network import OpPriority
    from girih.optimizer.sharding.propagation import direction

    assert direction(OpPriority.ELEMENTWISE, FactorKind.PASS, crowded=True, stage=0) == NONE
    assert direction(OpPriority.ELEMENTWISE, FactorKind.PASS, crowded=True, stage=1) == BOTH
    assert direction(OpPriority.SLICE, FactorKind.REPLICATE, crowded=False, stage=0) == FORWARD
    assert direction(OpPriority.OTHER, FactorKind.REDUCTION, crowded=False, stage=2) == NONE
    assert direction(OpPriority.OTHER, FactorKind.PASS, crowded=False, stage=2) == BOTH
    assert direction(OpPriority.BROADCAST, FactorKind.PASS, crowded=False, stage=3) == BACKWARD
    assert direction(OpPriority.BROADCAST, FactorKind.PASS, crowded=False, stage=4) == BOTH


def test_one_mesh_by_whatever_name() -> None:
    def on(mesh: str) -> Sharding:
        return parse_sharding(f"<@{mesh}, [{{?}}]>")

    meshes = {**MESHES, "none": Mesh(()), "single": Mesh((), (3,))}
    assert common_mesh([on("m"), None, on("same")], meshes) == ("m", MESHES["m"])
    assert common_mesh([on("none"), on("m")], meshes) == ("m", MESHES["m"])
    assert common_mesh([on("m"), on("in_order")], meshes) is None
    assert common_mesh([on("single")], meshes) is None
    assert common_mesh([None], meshes) is None

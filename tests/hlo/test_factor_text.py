"""Rules are read from the notation that they are written in."""

from __future__ import annotations

import pytest

from girih.hlo.errors import UserError
from girih.hlo.factor_text import parse_factors
from girih.hlo.factors import Factor, FactorKind, Factors

RULES = (
    "([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}",
    "([ij])->([i, j]) {i=2, j=4}",
    "([i, j], [])->([i]) {i=8, j=3} need_replication={j} blocked_propagation={j}",
    "([i], [j])->([j]) {i=8, j=3} permutation={i, j}",
)


@pytest.mark.parametrize("text", RULES)
def test_what_is_written_is_read(text: str) -> None:
    assert str(parse_factors(text)) == text


def test_the_oracle_s_form_is_read() -> None:
    found = parse_factors("#sdy.op_sharding_rule<([i, z_1])->([z_1]) {i=2, z_1=3}, custom>")
    assert found == Factors(
        (Factor(2), Factor(3)), (((0,), (1,)),), (((1,),),)
    )  # fmt: skip
    assert parse_factors("#sdy.op_sharding_rule<([], [])->([])>") == Factors((), ((), ()), ((),))
    assert parse_factors(RULES[0]).of_kind(FactorKind.REDUCTION) == (2,)


@pytest.mark.parametrize("text", ("", "([i])", "([i])->([j]) {i=2}", "([i])->([i]) {i=x}"))
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        parse_factors(text)

"""Contracts of kernels: what they say, and what they may not say."""

from __future__ import annotations

import pytest

from girih.hlo.build import Builder, build_region
from girih.hlo.contracts import require_contract, rule_contract
from girih.hlo.errors import UserError
from girih.hlo.factor_text import parse_factors
from girih.hlo.factors import Factors
from girih.hlo.foreign import HostCode
from girih.hlo.graph import Op
from girih.hlo.ops.foreign import TWICE
from girih.hlo.types import F32, TensorType


def call(contract: str) -> Op:
    """A product of 4 x 6 and 6 x 8 as a foreign call."""
    kinds = [TensorType(dims, F32) for dims in ((4, 6), (6, 8))]
    facts = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    reference = build_region(kinds, lambda b, x, y: [b("dot_general", x, y, **facts)])
    b = Builder()
    code = HostCode("twice", TWICE, tiles=4).as_attribute()
    attributes = {"kernel": "product", "codes": (code,), "sharding": contract}
    return b.op("foreign_call", b.arguments(kinds), attributes, [reference])


def factors(contract: str) -> Factors | None:
    o = call(contract)
    return o.definition.shard(o)


def test_what_contracts_say() -> None:
    assert str(factors("m k, k n -> m n; reduction={k}")) == (
        "([i, j], [j, k])->([i, k]) {i=4, j=6, k=8} reduction={j}"
    )
    assert str(factors("m k, k _ -> m _; replicate={k}")) == (
        "([i, j], [j, k])->([i, l]) {i=4, j=6, k=8, l=8} need_replication={j, k, l} "
        "blocked_propagation={k, l}"
    )
    largest = factors("m k, k n -> m n; reduction=max{k}")
    assert largest is not None and largest.factors[1].reduction == "max"
    kept = factors("m k, k n -> m n; reduction={k}; replicate={m, n}")
    assert kept is not None and len(kept.of_kind(kept.factors[0].kind)) == 2


@pytest.mark.parametrize(
    ("rule", "contract"),
    [
        ("([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}",
         "i k, k j -> i j; reduction={k}"),
        ("([i, j])->([i, j]) {i=8, j=8} need_replication={j}", "i j -> i j; replicate={j}"),
        ("([i, j], [])->([i]) {i=8, j=8}", "i j,  -> i; replicate={j}"),
        ("([i, j])->([i]) {i=8, j=8} permutation={j}", "i j -> i; replicate={j}"),
        ("([ij])->([i, j]) {i=8, j=8}", ""),
    ],
)  # fmt: skip
def test_rules_as_contracts(rule: str, contract: str) -> None:
    assert rule_contract(parse_factors(rule)) == contract


def test_without_a_contract_nothing_is_known() -> None:
    assert factors("") is None
    require_contract(call("m k, k n -> m n; reduction={k}"))
    with pytest.raises(UserError, match="kernel 'product' has no contract.*give it sharding="):
        require_contract(call(""))


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        ("rows", "it is names of operands' dims"),
        ("m k -> m n", "it has 1 operands, the call 2"),
        ("m k, k n -> m", "`m` is 1 dims of f32[4,8]"),
        ("m k, k n -> m n", "no result holds 'k': list it in reduction or replicate"),
        ("m k, k n -> n m; reduction={k}", "'n' is 8 and 4"),
        ("m m, k n -> m n", "'m' is two dims of one array"),
        ("m k!, k n -> m n", "'k!' is no name of a dim"),
        ("m k, k n -> m n; halo={k}", "`halo={k}` is not reduction={k}"),
        ("m k, k n -> m n; reduction=product{k}", "'product' is none of sum, max, min"),
        ("m k, k n -> m n; reduction={z}", "'z' is no dim; there are m, k, n"),
        ("m k, k n -> m n; reduction={k}; replicate={k}", "'k' is listed twice"),
        ("m k, k n -> m n; reduction={m, k}", "a result holds 'm', which is said to be folded"),
    ],
)
def test_what_contracts_may_not_say(contract: str, reason: str) -> None:
    with pytest.raises(UserError) as error:
        factors(contract)
    assert reason in str(error.value) and "'product': the contract" in str(error.value)

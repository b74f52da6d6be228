"""What rooms say of being cut is what Shardy's rules say, but where we say something else on
purpose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings

from girih.frontends.stablehlo.write import write_text
from girih.hlo.cases import Example, example
from girih.hlo.errors import UserError
from girih.hlo.ops import DEFINITIONS, find
from girih.hlo.room import Case

from .indexing_cases import gathers, scatters
from .test_access import convolutions, paddings, reshapes, slices, windows

pytest.importorskip("jax")
from jax._src.interpreters import mlir  # noqa: E402

import sharding_rules  # noqa: E402  (it is in benchmarks/, and imports jax)

NO_FOLD = "no unreduced value is a product, or what a body of several operations gives"
SHIFT = "padding that keeps a size moves elements all the same"
FIRST_ALONE = "operands of other sizes than the first's have factors of their own"
DEVIATIONS = {
    "reduce_multiply": NO_FOLD,
    "reduce_argmax": NO_FOLD,
    "scatter_multiply": NO_FOLD,
    "pad_negative": SHIFT,
    "all_gather_two": FIRST_ALONE,
    "all_to_all_two": FIRST_ALONE,
}


@pytest.fixture(scope="module")
def context() -> Any:
    return mlir.make_ir_context()


def compared(made: Example, context: Any) -> sharding_rules.Compared | None:
    """The operation beside Shardy's; None where it cannot be written, or Shardy has no rule."""
    try:
        text = write_text(made.module).text
        functions = list(sharding_rules.oracle(text, context))
    except (UserError, sharding_rules.ir.MLIRError):
        return None
    rules = [rule for _, rules in functions for name, rule in rules if name == made.op.name]
    return sharding_rules.compare(made.op, rules[0]) if len(rules) == 1 else None


def test_cases_agree_with_shardy(context: Any) -> None:
    differ, count = {}, 0
    for room in DEFINITIONS:
        for case in room.cases():
            one = compared(example(room, case), context)
            count += one is not None
            if one and not one.equal:
                differ[case.name] = f"{one.theirs}\n{one.ours}"
    assert set(differ) == set(DEVIATIONS), "\n".join(map(str, differ.items()))
    assert count >= 650  # what is written as another operation is not compared


def _moves(case: Case) -> bool:
    """Whether a padding shifts a dim of which it changes no size."""
    facts, dims = case.attributes, case.inputs[0].shape
    pads = zip(
        dims, facts["edge_padding_low"], facts["edge_padding_high"], facts["interior_padding"],
        strict=True,
    )  # fmt: skip
    return any(
        low + high + (size - 1) * gap == 0 and (low or high) for size, low, high, gap in pads
    )


def _spreads(case: Case) -> bool:
    """Whether elements are spread along a dim over which nothing is folded."""
    facts = case.attributes
    keys = ("window_dimensions", "window_strides", "padding", "base_dilations")
    dims = zip(*(facts[key] for key in keys), strict=True)
    return any((size, step, pad) == (1, 1, (0, 0)) and gap > 1 for size, step, pad, gap in dims)


@pytest.mark.parametrize(
    "name", ["reshape", "pad", "slice", "reduce_window", "convolution", "gather"]
)
def test_random_operations_agree_with_shardy(name: str, context: Any) -> None:
    made = {
        "reshape": reshapes, "pad": paddings, "slice": slices, "reduce_window": windows,
        "convolution": convolutions, "gather": gathers,
    }[name]()  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(made)
    def run(case: Case) -> None:
        try:
            one = example(find(name), case)
        except UserError:
            assume(False)
            return
        assume(0 not in one.op.results[0].dims)
        assume(name != "pad" or not _moves(case))  # SHIFT
        assume(name != "reduce_window" or not _spreads(case))  # as well, and Shardy says it passes
        found = compared(one, context)
        assert found is not None
        assert found.equal, f"{case.attributes}\n{found.theirs}\n{found.ours}"

    run()


@settings(max_examples=60, deadline=None)
@given(scatters())
def test_random_scatters_agree_with_shardy(context: Any, case: Case) -> None:
    facts, dims, updates = case.attributes, case.inputs[0].shape, case.inputs[2].shape
    gone = (*facts["inserted_window_dims"], *facts["input_batching_dims"])
    kept = [d for d in range(len(dims)) if d not in gone]
    windows = zip(kept, facts["update_window_dims"], strict=True)
    whole = [d for d, axis in windows if dims[d] == updates[axis] != 1]
    # Shardy takes a window as large as the input for one that does not move.
    assume(not set(whole) & set(facts["scatter_dims_to_operand_dims"]))
    found = compared(example(find("scatter"), case), context)
    assert found is not None
    assert found.equal, f"{facts}\n{found.theirs}\n{found.ours}"


def test_rules_of_the_same_meaning_are_equal() -> None:
    """Names, order and dims of size 1 say nothing; sizes, kinds and places do."""
    rule = sharding_rules.parsed
    one = rule("#sdy.op_sharding_rule<([i, jk])->([jk, i]) {i=2, j=3, k=4} permutation={k}>")
    assert one == rule("#<([k, ij])->([ij, k]) {k=2, i=3, j=4} permutation={j}>")
    assert one == rule("#<([k, ij])->([ijl, k]) {k=2, i=3, j=4, l=1} permutation={j}>")
    for other in (
        "#<([i, kj])->([kj, i]) {i=2, j=3, k=4} permutation={k}>",
        "#<([i, jk])->([jk, i]) {i=2, j=3, k=4} reduction={k}>",
        "#<([i, jk])->([jk, i]) {i=2, j=3, k=4} permutation={k} blocked_propagation={i}>",
        "#<([i, jk])->([jk, i]) {i=2, j=3, k=8} permutation={k}>",
    ):
        assert one != rule(other)

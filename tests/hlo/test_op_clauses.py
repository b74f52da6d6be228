"""Every clause of every room has a call that breaks it and is told so by its number."""

from __future__ import annotations

import pytest

from girih.hlo.build import make_op
from girih.hlo.errors import VerifyError
from girih.hlo.graph import arguments
from girih.hlo.ops import DEFINITIONS

from . import clause_calls, clause_calls_programs

CALLS = {**clause_calls.CALLS, **clause_calls_programs.CALLS}
CLAUSES = {
    f"{room.name}.{clause.clause}": clause for room in DEFINITIONS for clause in room.constraints
}


def test_every_clause_has_a_call_that_breaks_it() -> None:
    assert set(CALLS) == set(CLAUSES)


@pytest.mark.parametrize("clause", sorted(CALLS))
def test_clause_is_named_by_the_error(clause: str) -> None:
    call = CALLS[clause]
    name, _, _ = clause.rpartition(".")
    with pytest.raises(VerifyError) as caught:
        make_op(name, arguments(call.types), call.attributes, call.regions(), call.results)
    assert f"{clause}: {CLAUSES[clause].text}" in str(caught.value)

"""How results of frameworks are compared, and what is read back from docs/support.md."""

from __future__ import annotations

import numpy as np
import pytest

from .outcomes import compare, failures, failures_of, markdown_rows, rows_of


@pytest.mark.parametrize(("off", "agrees"), [(1e-9, True), (1e-6, False)])
def test_float64_is_compared_by_its_own_rounding(off: float, agrees: bool) -> None:
    wanted = [np.linspace(0.5, 1.0, 4)]
    assert (compare([wanted[0] + off], wanted).verdict == "agrees") == agrees
    assert compare([wanted[0] + off], wanted, single=True).verdict == "agrees"
    assert compare([wanted[0] + 1e-2], wanted, single=True).verdict == "differs"


def test_a_section_is_read_back() -> None:
    rows = [("float32", "the cpu", "7"), ("int64", "a saved file, interpreted", "0")]
    reasons = {"`torch.rand`: size (u0), see 1)": ["int64 on the cpu"], "`a.b`: c": ["bool"]}
    text = "Words.\n\n" + markdown_rows(("dtype", "runs on", "errors"), *rows) + failures(reasons)
    assert rows_of(text) == rows
    assert failures_of(text) == reasons
    assert failures({}) == ""

"""Loops that end, branch and recurse as their data say run to their end in one native call, equal
to the interpreter, however many workers there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import control_flow
import girih

jax = pytest.importorskip("jax")

CASES: dict[str, Callable[[], control_flow.Made]] = {
    "beam search": partial(control_flow.beam_search, words=512, steps=8),
    "newton": partial(control_flow.newton, 16),
    "machine": partial(control_flow.machine, 40),
    "tree": partial(control_flow.tree, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_interpreter_in_one_native_call(name: str) -> None:
    function, given = CASES[name]()
    module = girih.import_model(jax.jit(function), *given)
    expected = girih.interpret(module, given)
    for threads in (1, 2, 3):
        program = girih.compile(module, options=girih.Options(threads=threads, cache="off"))
        kinds = {step.WhichOneof("action") for step in program.plan.steps}
        assert kinds <= {"run", "jump", "branch_if_false", "switch"}  # which native code does
        for _ in range(10):
            found = program(*given)
            found = found if isinstance(found, tuple | list) else [found]
            for left, right in zip(found, expected, strict=True):
                if np.issubdtype(right.dtype, np.integer):
                    np.testing.assert_array_equal(left, right)
                else:
                    np.testing.assert_allclose(left, right, rtol=2e-4, atol=1e-5)

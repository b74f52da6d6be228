"""Random programs on the CPU: the bits of the interpreter, at any number of threads.

Only the sign of a zero may differ where a program reduces with maximum or minimum: it is open there
(specs/numerics.md).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function
from girih.hlo.types import F32, TensorType

from . import test_random_programs as programs


def exact_program(chance: random.Random) -> tuple[girih.Module, list[np.ndarray[Any, Any]]]:
    """A random program of operations that have one right result."""
    functions = programs.FLOATING
    programs.FLOATING = ("floor", "sqrt")
    try:
        return programs.program(chance, sums=False)
    finally:
        programs.FLOATING = functions


def same(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any], signs: bool) -> bool:
    """Equal bits; NaNs of any payload, and zeros of any sign unless `signs`."""
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return False
    if wanted.dtype.kind in "biu":
        return bool((wanted == found).all())
    w, f = wanted.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        equal = (w == f) & ((np.signbit(w) == np.signbit(f)) | (not signs))
    return bool((equal | (np.isnan(w) & np.isnan(f))).all())


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_cpu_gives_the_bits_of_the_interpreter(chance: random.Random) -> None:
    module, inputs = exact_program(chance)
    wanted = programs.results_of(module, inputs)
    names = [op.name for op in module.body.ops]
    # What is divided by such a zero may be either infinity: such programs are left out.
    assume(not ("reduce" in names and "divide" in names))
    for threads in (1, 2):
        options = girih.Options(numerics="bitwise", threads=threads)
        found = girih.compile(module, options=options)(*inputs)
        for index, (w, f) in enumerate(zip(wanted, found, strict=True)):
            assert same(w, np.asarray(f), "reduce" not in names), (
                f"result {index}, {threads} threads: {f} instead of {w}"
            )


def test_maximum_with_a_zero_keeps_the_positive_one() -> None:
    zeros = np.array([0.0, -0.0] * 9, np.float32)
    for name in ("maximum", "minimum"):
        for number in (0.0, -0.0):
            b = Builder()
            (x,) = b.arguments([TensorType((18,), F32)])
            region = b.region([b(name, x, b.constant(number, x.tensor))])
            module = girih.Module({"main": Function("main", region)})
            (wanted,) = girih.interpret(module, [zeros])
            (found,) = girih.compile(module)(zeros)
            assert same(wanted, np.asarray(found), signs=True), (name, number)

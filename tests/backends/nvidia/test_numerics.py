"""Under `bitwise` PTX computes what the plain formulas say: nothing approximate, nothing flushed,
nothing fused that was not; under the default the target's table of formulas holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import girih
from girih.backends.nvidia.pipeline.functions import FORMULAS, FUNCTIONS
from girih.backends.nvidia.target import ARCHITECTURES, DEFAULT
from girih.hlo.cases import Example, all_examples
from girih.hlo.errors import UserError
from girih.options import Options

from .sass import counts, instructions, machine_code, requires_nvdisasm

BF16 = ml_dtypes.bfloat16
EPS = 2.0**-24
BITWISE = Options(numerics="bitwise", cache="off")
FAMILIES = ("sm_80", "sm_90a")
STEP = 8  # of examples that an ordinary run compiles for the other architectures

_ARITHMETIC = re.compile(
    r"(?<![\w.])(?:add|sub|mul|fma|mad|div|rcp|sqrt)\.(?:\w+\.)*b?f\d+(?:x2)?\b"
)
_ROUNDED = re.compile(r"\.r[nzmp]\.")


def ptx_of(source: Any, *inputs: Any, gpu: str = DEFAULT, options: Options = BITWISE) -> str:
    program = girih.compile(source, *inputs, target=f"ptx-sim:{gpu}", options=options)
    (variant,) = program.parts.variants.values()
    return bytes(variant.image).decode()


def faults(ptx: str) -> list[str]:
    """Instructions that are approximate, flush, or that the assembler may fuse."""
    found = re.findall(r"\b\w+\S*\.(?:approx|ftz)\b\S*", ptx)
    return found + [one for one in _ARITHMETIC.findall(ptx) if not _ROUNDED.search(one)]


def test_faults_are_found() -> None:
    assert faults("ex2.approx.ftz.f32 %r1, %r2;") and faults("mul.f32 %r1, %r2, %r3;")
    assert faults("fma.rn.ftz.f32 %r1, %r2;") and faults("add.bf16x2 %r1, %r2, %r3;")
    assert not faults("add.rn.f64 %r1, %r2;\nmul.lo.s32 %r1, %r2, %r3;\nmul.rn.f16x2 %r1, %r2;")


def check_examples(examples: list[Example], gpu: str) -> int:
    """How many of them the target has code for."""
    count = 0
    for example in examples:
        try:
            ptx = ptx_of(example.module, gpu=gpu)
        except (UserError, girih.CompilerBug):  # no code on a GPU, or an operation inside kernels
            continue
        count += 1
        assert not faults(ptx), (example.name, faults(ptx)[:3])
    return count


def share(gpu: str) -> list[Example]:
    """What an ordinary run compiles: products and convolutions for both families of emitters
    (matrix instructions of warps, and of warp groups), every other example for one of the two, and
    others for each of the other architectures. GIRIH_THOROUGH=1: all for each."""
    examples = list(all_examples())
    if os.environ.get("GIRIH_THOROUGH"):
        return examples
    if gpu in FAMILIES:
        turn = FAMILIES.index(gpu)
        return [
            one for number, one in enumerate(examples)
            if number % len(FAMILIES) == turn or one.op.definition.pattern == "contract"
        ]  # fmt: skip
    return examples[[*ARCHITECTURES].index(gpu) :: STEP]


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES)
def test_every_operation(gpu: str) -> None:
    examples = share(gpu)
    assert check_examples(examples, gpu) > 0.7 * len(examples)


def product(x: Any, w: Any) -> Any:
    return jnp.dot(x, w, preferred_element_type=jnp.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    p = jax.nn.softmax(product(q, k.T) * 0.125, -1).astype(q.dtype)
    return product(p, v)


def layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def zeros(*dims: int, dtype: Any = BF16) -> np.ndarray:
    return np.zeros(dims, dtype)


SQUARE, ROWS = zeros(256, 256), zeros(256, dtype=np.float32)
IMAGE, TAPS = zeros(1, 16, 16, 32, dtype=np.float32), zeros(3, 3, 32, 32, dtype=np.float32)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "product, divided by a row, tanh": (
        lambda x, w, r: jnp.tanh(product(x, w) / r[:, None]), (SQUARE, SQUARE, ROWS),
    ),
    "scaled product less a row": (
        lambda x, w, r: jnp.exp(product(x, w) * 0.3 - r[:, None]), (SQUARE, SQUARE, ROWS),
    ),
    "attention": (attention, (SQUARE,) * 3),
    "gelu": (lambda x, w: jax.nn.gelu(product(x, w)).astype(x.dtype), (SQUARE, SQUARE)),
    "sigmoid": (lambda x, w: jax.nn.sigmoid(x @ w), (SQUARE, SQUARE)),
    "silu, gated": (lambda x, w, g: jax.nn.silu(x @ w) * (x @ g), (SQUARE,) * 3),
    "softmax": (lambda x: jax.nn.softmax(x, -1), (SQUARE.astype(np.float32),)),
    "layer norm": (layer_norm, (SQUARE.astype(np.float32),)),
    "3 x 3 convolution": (
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (IMAGE, TAPS),
    ),
}  # fmt: skip
USE_APPROXIMATIONS = ("product, divided by a row, tanh", "gelu", "sigmoid", "silu, gated")


@pytest.mark.parametrize("gpu", ARCHITECTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, gpu: str) -> None:
    function, inputs = PROGRAMS[name]
    assert not faults(ptx_of(function, *inputs, gpu=gpu))


@pytest.mark.parametrize("name", USE_APPROXIMATIONS)
def test_what_bitwise_leaves_out_is_there_by_default(name: str) -> None:
    function, inputs = PROGRAMS[name]
    assert ".approx" in ptx_of(function, *inputs, options=Options(cache="off"))


@pytest.mark.parametrize("numerics, taken", [("bitwise", ()), ("reassociates", ("divide", "tanh"))])
def test_strict_takes_what_is_licensed(numerics: str, taken: tuple[str, ...]) -> None:
    """The plan says it, and not as a note."""
    function, inputs = PROGRAMS["product, divided by a row, tanh"]
    options = Options(numerics, strict=True, cache="off")
    program = girih.compile(function, *inputs, target=f"ptx-sim:{DEFAULT}", options=options)
    (kernel,) = program.plan.kernels
    assert tuple(kernel.approximate) == taken and not kernel.notes


@pytest.mark.requires_ptxas
@requires_nvdisasm
def test_the_assembler_fuses_no_product_with_a_sum() -> None:
    lines = (zeros(4096, dtype=np.float32),) * 3
    ptx = ptx_of(lambda x, y, z: x * y + z, *lines)
    code = counts(instructions(machine_code(ptx, ARCHITECTURES[DEFAULT]))[0])
    assert code["FMUL"] and code["FADD"] and "FFMA" not in code


# Numbers: a product by the unit matrix gives its left operand in the registers of the pipeline.

UNIT = np.eye(64, dtype=BF16)
LEFT = (np.random.default_rng(7).standard_normal((128, 64)) * 6).astype(BF16)
LEFT[0, :8] = [0.0, -0.0, 1e-30, -1e-3, 0.5, 0.59, 80.0, -80.0]
ROW = (np.random.default_rng(8).standard_normal(128) * 3).astype(np.float32)
X = LEFT.astype(np.float64)
RESULTS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "exponential": (lambda x, w, r: jnp.exp(product(x, w)), np.exp(X)),
    "logistic": (lambda x, w, r: jax.lax.logistic(product(x, w)), 1 / (1 + np.exp(-X))),
    "tanh": (lambda x, w, r: jnp.tanh(product(x, w)), np.tanh(X)),
    "divide": (lambda x, w, r: product(x, w) / r[:, None], X / ROW[:, None]),
    "subtract": (
        lambda x, w, r: product(x, w) * 0.3 - r[:, None],
        X * float(np.float32(0.3)) - ROW[:, None],
    ),
}
BOUNDS: dict[str, Any] = {
    "exponential": 4 * EPS + 2 * EPS * np.abs(X),
    "logistic": 6 * EPS + 2 * EPS * np.abs(X),
    "tanh": 14 * EPS,
    "divide": 2 * EPS,
    "subtract": EPS,
}


def run(name: str, numerics: str) -> np.ndarray:
    options = Options(numerics, strict=True, cache="off")
    program = girih.compile(
        RESULTS[name][0], LEFT, UNIT, ROW, target=f"ptx-sim:{DEFAULT}", options=options
    )
    (variant,) = program.parts.variants.values()
    assert b"wgmma" in bytes(variant.image)
    return np.asarray(program(LEFT, UNIT, ROW))


@pytest.mark.parametrize("name", BOUNDS)
def test_approximate_formulas_keep_their_bounds(name: str) -> None:
    found, right = run(name, "reassociates"), RESULTS[name][1]
    assert (np.abs(found - right) <= BOUNDS[name] * np.abs(right)).all()


@pytest.mark.parametrize("name", ["exponential", "logistic", "tanh"])
def test_plain_functions_keep_the_table(name: str) -> None:
    """The errors that specs/numerics.md says, of one unit in the last place of the true value."""
    (most,) = re.findall(rf"^\| {name} \| f32 \| ([\d.]+) ", PAGE, re.MULTILINE)
    found, right = run(name, "bitwise"), RESULTS[name][1]
    unit = np.spacing(np.abs(right).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - right) <= (float(most) + 0.01) * unit).all()


def test_plain_arithmetic_is_rounded_after_each_operation() -> None:
    x = LEFT.astype(np.float32)
    np.testing.assert_array_equal(run("divide", "bitwise"), x / ROW[:, None])
    twice = x * np.float32(0.3) - ROW[:, None]
    np.testing.assert_array_equal(run("subtract", "bitwise"), twice)
    assert (run("subtract", "reassociates") != twice).any()


PAGE = (resources.files("girih") / "specs" / "numerics.md").read_text("utf-8")


def test_the_page_shows_the_table_of_formulas() -> None:
    rows = [
        f"| {one.op} | {', '.join(kind.name for kind in one.elements)} | `REASSOCIATES` "
        f"| {one.text} | {one.error} |"
        for one in FORMULAS
    ]
    assert "\n".join(rows) in PAGE
    assert {one.op for one in FORMULAS} == set(BOUNDS) >= set(FUNCTIONS)

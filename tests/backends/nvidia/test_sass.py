"""Machine code of what programs spend their time in: wide accesses, fed matrix units, no spills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import girih
from girih.backends.nvidia.target import ARCHITECTURES
from girih.options import Options

from .sass import counts, instructions, loops, machine_code, requires_nvdisasm

pytestmark = [pytest.mark.requires_ptxas, requires_nvdisasm]

BF16 = ml_dtypes.bfloat16


def compiled(function: Callable[..., Any], *arrays: Any, gpu: str) -> str:
    """The machine code of a function's kernels."""
    program = girih.compile(function, *arrays, target=f"nvidia:{gpu}", options=Options())
    (variant,) = program.parts.variants.values()
    return machine_code(bytes(variant.image).decode(), ARCHITECTURES[gpu])


def zeros(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(dims, dtype)


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


MEMORY_BOUND = {
    "elementwise": (lambda x, y: jnp.tanh(x) * y + x, (zeros(1 << 20), zeros(1 << 20))),
    "bf16": (lambda x, y: x * y, (zeros(1 << 20, dtype=BF16), zeros(1 << 20, dtype=BF16))),
    "softmax": (lambda x: jax.nn.softmax(x, -1), (zeros(4096, 1024),)),
    "layer norm": (layer_norm, (zeros(4096, 1024), zeros(1024), zeros(1024))),
    "sum of rows": (lambda x: x.sum(-1), (zeros(4096, 4096),)),
}


@pytest.mark.parametrize(
    "name, gpu", [*((name, "sm_90a") for name in MEMORY_BOUND), ("softmax", "sm_80")]
)
def test_memory_bound_kernels_move_16_bytes_at_a_time(name, gpu):
    function, arrays = MEMORY_BOUND[name]
    code, _ = instructions(compiled(function, *arrays, gpu=gpu))
    full = counts(code, full=True)
    loads = {opcode: n for opcode, n in full.items() if opcode.startswith("LDG")}
    stores = {opcode: n for opcode, n in full.items() if opcode.startswith("STG")}
    assert loads and all(".128" in opcode for opcode in loads), full
    if name != "sum of rows":  # which stores one number a row
        assert stores and all(".128" in opcode for opcode in stores), full
    assert not any(one.name in ("LDL", "STL") for one in code)
    # Several loads are on their way before the first of them is waited for.
    first = next(n for n, one in enumerate(code) if one.name == "LDG")
    used = code[first].operands.partition(",")[0].strip()
    ahead = 0
    for one in code[first + 1 :]:
        ahead += one.name == "LDG"
        if used in one.operands.partition(",")[2].replace(".", " ").replace(",", " ").split():
            break
    assert ahead >= 1, "one load at a time"


def test_transposes_are_wide_on_both_sides():
    code, _ = instructions(compiled(lambda x: x.T + 1, zeros(1024, 1024), gpu="sm_90a"))
    wide = counts(code, full=True)
    for kind in ("LDG", "STG"):
        moves = [n for opcode, n in wide.items() if opcode.startswith(kind)]
        assert moves and all(".128" in o for o in wide if o.startswith(kind)), wide


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_the_loop_of_a_product_on_ampere(dtype):
    """Asynchronous copies, `ldmatrix` and matrix instructions, and nothing that a thread copies
    by itself."""
    arrays = zeros(2048, 2048, dtype=dtype), zeros(2048, 2048, dtype=dtype)
    text = compiled(lambda a, b: a @ b, *arrays, gpu="sm_80")
    (loop,) = [one for one in loops(text) if counts(one)["HMMA"]]
    found = counts(loop)
    assert found["LDGSTS"] and found["LDSM"] and found["HMMA"]
    assert all(".128" in one.opcode for one in loop if one.name == "LDGSTS")
    assert all(one.opcode.endswith("88.4") for one in loop if one.name == "LDSM")
    assert not {"LDG", "STS", "LDS", "LDL", "STL", "BRX", "CALL"} & set(found), found
    assert found["HMMA"] >= 2 * found["LDSM"]
    assert found["HMMA"] >= len(loop) // 3, f"{found['HMMA']} of {len(loop)} instructions"
    assert not {"LDL", "STL"} & set(counts(instructions(text)[0]))


def test_the_loop_of_attention_on_ampere():
    def attention(q, k, v):
        scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32) * 0.125
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1).astype(q.dtype), v)

    heads = zeros(8, 1024, 64, dtype=np.float16)
    text = compiled(attention, heads, heads, heads, gpu="sm_80")
    (loop,) = [one for one in loops(text) if counts(one)["HMMA"]]
    found = counts(loop)
    assert found["LDGSTS"] and found["LDSM"] and not {"LDL", "STL", "LDG"} & set(found), found

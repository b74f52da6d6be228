"""jax functions through HLO: protobuf, text, and what XLA's CPU compiler makes of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest

import girih
from girih.frontends.xla import read_hlo, read_program
from girih.hlo.interpret import interpret
from girih.hlo.verify import verify
from girih.tests.differential import (  # noqa: F401 - fill CASES
    elementwise,
    indexing,
    products,
    programs,
    reductions,
)
from girih.tests.differential.catalogue import CASES, Case, difference, leaves

from .compare import differences
from .reference import text_of

FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# Every seventh function of the catalogue.
SELECTED = [name for name in sorted(CASES) if not CASES[name].long][2::7]


def flat_inputs(entry: Case) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(jax.numpy.asarray(leaf)) for leaf in jax.tree.leaves(entry.inputs)]


def check(entry: Case, wanted: list[Any], source: str | bytes) -> None:
    module = read_hlo(source)
    verify(module)
    found = interpret(module, flat_inputs(entry))
    reports = [difference(w, f, entry.loose) for w, f in zip(wanted, found, strict=True)]
    assert not any(reports), reports


@pytest.mark.parametrize("name", SELECTED)
def test_same_numbers_as_jax(name: str) -> None:
    entry = CASES[name]
    with jax.enable_x64(True) if entry.wide else nullcontext():
        lowered: Any = jax.jit(entry.function, keep_unused=True).lower(*entry.inputs)
        compiled: Any = lowered.compile(FAST_COMPILE)
        wanted = leaves(compiled(*entry.inputs))
        module = lowered.compiler_ir("hlo").get_hlo_module()
        data = module.as_serialized_hlo_module_proto()
        check(entry, wanted, data)
        for short in (False, True):
            assert not differences(read_program(data), read_program(text_of(module, short)))
        optimized = compiled.runtime_executable().hlo_modules()[0]
        check(entry, wanted, optimized.as_serialized_hlo_module_proto())
        check(entry, wanted, text_of(optimized))


def test_compiled_for_the_cpu() -> None:
    def f(state: dict[str, Any], x: Any) -> Any:
        hidden = jax.nn.gelu(x @ state["w"])
        return {"w": state["w"] - 0.1 * x.T @ hidden}, jax.numpy.sort(hidden, axis=1)

    state = {"w": np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)}
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    lowered: Any = jax.jit(f, donate_argnums=0).lower(state, x)
    module = lowered.compiler_ir("hlo").get_hlo_module()
    wanted = leaves(lowered.compile()(jax.tree.map(jax.numpy.array, state), x))
    for source in (module.as_serialized_hlo_module_proto(), text_of(module)):
        program = girih.compile(source)
        assert [a.path for a in program.signature.arguments] == ["state['w']", "x"]
        assert program.signature.arguments[0].donated
        found = leaves(program(state["w"].copy(), x))
        assert not any(difference(w, f) for w, f in zip(wanted, found, strict=True))

"""The ledger of rewrites: in the bundle, always the same, and no rule fires beyond its licence."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import girih
from girih.cli.app import app
from girih.hlo.build import build_region
from girih.hlo.errors import CompilerBug
from girih.hlo.graph import EXACT
from girih.hlo.types import F32, TensorType
from girih.optimizer import rewrite
from girih.optimizer.licence import ASSUMES_FINITE, BITWISE, REASSOCIATES, Ledger
from girih.optimizer.rule import Rule

X = np.ones((8, 8), np.float32)
MODEL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0 = stablehlo.negate %x : tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  %2 = stablehlo.multiply %1, %z : tensor<4xf32>
  %3 = stablehlo.tanh %1 : tensor<4xf32>
  %4 = stablehlo.add %2, %3 : tensor<4xf32>
  return %4 : tensor<4xf32>
}
"""
_SAVE = """
import sys, girih
girih.compile(sys.argv[1], target="null", options=girih.Options(cache="off")).save(
    sys.argv[2], seal=False)
"""


def rewrites(numerics: str) -> dict:
    program = girih.compile(MODEL, target="null", options=girih.Options(numerics=numerics))
    return program.parts.provenance["rewrites"]


def model(x):
    return jnp.where(x * 1 > 0, x / 3, jnp.maximum(x, -jnp.inf)).sum(0)


def test_the_bundle_holds_rules_hits_lines_and_licences(tmp_path):
    path = tmp_path / "model.girih"
    girih.compile(jax.jit(model), X).save(path)
    result = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    rewrites = json.loads(result.output)["provenance"]["rewrites"]
    rule = rewrites["rules"]["maximum-lowest"]
    assert rule["hits"] >= 1 and "test_ledger.py:" in rule["lines"][0]
    assert "REASSOCIATES" in rewrites["licences"]  # x / 3 is x * (1 / 3)
    shown = CliRunner().invoke(app, ["inspect", str(path)]).output
    assert "maximum-lowest" in shown and shown.count("licences used") == 1
    shown = CliRunner().invoke(app, ["inspect", str(path), "--rules"]).output
    assert "maximum-lowest" in shown and shown.count("licences used") == 1


def test_a_rule_that_fires_beyond_its_licence_fails_the_build(monkeypatch):
    def needs(rule, op):  # a rule that passes as harmless, and is found out when it is recorded
        return REASSOCIATES if rule.name == "maximum-lowest" else BITWISE

    monkeypatch.setattr(Rule, "needs", needs)
    with pytest.raises(
        CompilerBug, match="rule 'maximum-lowest' has rewritten maximum.*needs REAS"
    ):
        girih.compile(jax.jit(model), X, options=girih.Options(numerics="bitwise"))


def test_lines_are_in_a_fixed_order():
    (op,) = build_region([TensorType((2,), F32)], lambda b, x: [b("sine", x)]).ops
    one, other = Ledger(), Ledger()
    for ledger, names in ((one, "abcab"), (other, "baacb")):
        for name in names:
            ledger.record(name, BITWISE, op)
    assert json.dumps(one.report()) == json.dumps(other.report())
    assert list(one.report()["rules"]) == ["a", "b", "c"]


def test_wider_licences_let_more_rules_fire(tmp_path):
    narrow, wide = rewrites("bitwise"), rewrites("assumes-finite")
    assert narrow["licences"] == "BITWISE" and "ASSUMES_FINITE" in wide["licences"]
    assert set(narrow["rules"]) < set(wide["rules"])
    for rule in wide["rules"].values():
        assert rule["hits"] >= 1 and 1 <= len(rule["lines"]) <= 3
    path = tmp_path / "m.girih"
    girih.compile(MODEL, target="null").save(path)
    assert girih.load(path, target="null").parts.provenance["rewrites"] == rewrites("reassociates")


def test_a_rule_that_is_offered_beyond_its_licence_fails_the_build(monkeypatch):
    """The engine offers what no option allows: the ledger refuses it."""
    offered = rewrite._by_root

    def careless(rules, licences):
        return offered(rules, licences | ASSUMES_FINITE)

    monkeypatch.setattr(rewrite, "_by_root", careless)
    with pytest.raises(CompilerBug, match=r"rule '.*' has rewritten .*ASSUMES_FINITE"):
        rewrites("reassociates")
    assert rewrites("assumes-finite")["rules"]


def test_what_is_exact_takes_no_licence():
    op = next(girih.import_model(MODEL).walk())
    exact: Any = SimpleNamespace(attributes={EXACT: True}, origin=(), place="", name=op.name)
    ledger = Ledger(allowed=REASSOCIATES)
    ledger.record("fine", REASSOCIATES, op)
    ledger.record("fine", BITWISE, exact)
    with pytest.raises(CompilerBug, match="allows BITWISE"):
        ledger.record("wrong", REASSOCIATES, exact)
    with pytest.raises(CompilerBug, match="'wrong'"):
        dataclasses.replace(ledger, allowed=BITWISE).record("wrong", REASSOCIATES, op)


def test_same_input_same_ledger_for_every_hash_seed(tmp_path):
    written = set()
    for run in range(5):
        out = tmp_path / f"{run}.girih"
        environment = {**os.environ, "PYTHONHASHSEED": str(run % 2)}
        command = [sys.executable, "-c", _SAVE, MODEL, str(out)]
        subprocess.run(command, check=True, env=environment, timeout=120)
        written.add(out.read_bytes())
    assert len(written) == 1
    json.dumps(rewrites("assumes-finite"))

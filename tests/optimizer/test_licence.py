"""The ledger of rewrites: kept in the bundle, always the same, and no rule beyond its licence."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import girih
from girih.hlo.errors import CompilerBug
from girih.hlo.graph import EXACT
from girih.optimizer import rewrite
from girih.optimizer.licence import ASSUMES_FINITE, BITWISE, REASSOCIATES, Ledger

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


def test_the_bundle_says_which_rules_fired_and_under_which_licences(tmp_path):
    narrow, wide = rewrites("bitwise"), rewrites("assumes-finite")
    assert narrow["licences"] == "BITWISE" and "ASSUMES_FINITE" in wide["licences"]
    assert set(narrow["rules"]) < set(wide["rules"])
    for rule in wide["rules"].values():
        assert rule["hits"] >= 1 and 1 <= len(rule["lines"]) <= 3
    path = tmp_path / "m.girih"
    girih.compile(MODEL, target="null").save(path)
    assert girih.load(path, target="null").parts.provenance["rewrites"] == rewrites("reassociates")


def test_a_rule_beyond_its_licence_fails_the_build(monkeypatch):
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

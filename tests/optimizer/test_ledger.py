"""What rewrote a program is in its bundle, and nothing fires beyond its licence."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import girih
from girih.cli.app import app
from girih.hlo.build import build_region
from girih.hlo.errors import CompilerBug
from girih.hlo.types import F32, TensorType
from girih.optimizer.licence import BITWISE, REASSOCIATES, Ledger
from girih.optimizer.rule import Rule

X = np.ones((8, 8), np.float32)


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


def test_bitwise_programs_use_no_licence():
    program = girih.compile(jax.jit(model), X, options=girih.Options(numerics="bitwise"))
    assert program.parts.provenance["rewrites"]["licences"] == "BITWISE"


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

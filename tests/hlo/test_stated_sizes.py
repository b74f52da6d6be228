"""Sizes that a user states: narrowed, named, fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError
from girih.hlo.graph import Module
from girih.hlo.parse import parse_module
from girih.hlo.signature import Signature
from girih.hlo.sizes import Symbol
from girih.hlo.specialize import names_of
from girih.hlo.stated_sizes import (
    entries_with_stated_sizes,
    read_stated_sizes,
    with_stated_sizes,
)

TEXT = """girih 1.0 module "" entry @main {
  symbol s0 1 64 by "model.py:3"
  symbol seq 2 *
  constraint "s0*seq <= 4096" by "model.py:9"
  function @main(%0: f32[s0,seq], %1: f32[2*seq,4]) {
    %2 = negate(%0) : f32[s0,seq]
    return %2
  }
}
"""


def program() -> Module:
    module = parse_module(TEXT)
    arguments = [(("s0", "seq"), "f32"), (("2*seq", 4), "f32")]
    signature = Signature.plain(arguments, [(("s0", "seq"), "f32")], ["tokens", "table"])
    return Module(
        module.functions, symbols=module.symbols, constraints=module.constraints,
        signature=signature,
    )  # fmt: skip


def test_sizes_are_narrowed_named_and_fixed():
    module = with_stated_sizes(
        program(), {"tokens.0": "batch", "batch": (1, 32), "seq": range(16, 513, 16)}
    )
    assert module.symbols == {
        "batch": Symbol(1, 32, origin="sizes"), "seq": Symbol(16, 512, 16, 0, "sizes"),
    }  # fmt: skip
    assert str(module.body.arguments[0].type) == "f32[batch,seq]"
    assert module.signature is not None and module.signature.arguments[0].dims == ("batch", "seq")
    fixed = with_stated_sizes(module, {"batch": 8, "seq": (32, 32)})
    assert not names_of(fixed) and not fixed.constraints
    assert str(fixed.body.arguments[1].type) == "f32[64,4]"
    assert with_stated_sizes(module, {}) is module
    assert with_stated_sizes(module, {"table.1": 4}) is module
    assert with_stated_sizes(module, {"batch": (1, None)}) is module


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"length": 8}, r"no size 'length'; it has s0, seq, tokens.0 = s0, tokens.1"),
        ({"s0": 65}, r"s0 is to be 65, but the program needs from 1 to 64 \(model.py:3\)"),
        ({"s0": (70, 90)}, "s0 is to be from 70 to 90, but"),
        ({"s0": range(4, 4)}, "has no sizes"),
        ({"s0": (9, 3)}, "has no sizes"),
        ({"s0": (-4, 3)}, "negative sizes"),
        ({"s0": 2.5}, "a number, a pair"),
        ({"s0": True}, "a number, a pair"),
        ({"s0": (1, 2, 3)}, "a number, a pair"),
        ({"s0": "2x"}, "cannot be called '2x'"),
        ({"table.0": 8}, r"table.0 is 2\*seq; say what seq is"),
        ({"table.1": 8}, "table.1 is 4 in this program; export it with an open size"),
        ({"s0": 64, "seq": 100}, r"s0\*seq <= 4096 does not hold for s0 = 64, seq = 100 "),
        ({"s0": (60, 64), "seq": (100, 200)}, r"no sizes are admitted: s0\*seq <= 4096 \("),
        ([("s0", 8)], "a dict such as"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_said(sizes: Any, reason: str):
    with pytest.raises(UserError, match=reason):
        with_stated_sizes(program(), sizes)


def test_entry_points_have_the_sizes_that_they_know():
    other = parse_module(TEXT.replace("seq", "past"))
    sizes = {"s0": "batch", "batch": 4, "seq": 16, "past": (2, 64)}
    found = entries_with_stated_sizes({"prefill": program(), "decode": other}, sizes)
    assert not names_of(found["prefill"])
    assert found["decode"].symbols == {"past": Symbol(2, 64, origin="sizes")}
    with pytest.raises(UserError, match="no size 'length'"):
        entries_with_stated_sizes({"prefill": program(), "decode": other}, {"length": 8})


def test_texts():
    assert read_stated_sizes(
        ["batch=1..64", "seq=16..512:16", "n=2..", "k=8", "tokens.0=batch", "x['a'][0].1=t"]
    ) == {
        "batch": (1, 64), "seq": range(16, 513, 16), "n": (2, None), "k": 8, "tokens.0": "batch",
        "x['a'][0].1": "t",
    }  # fmt: skip
    for text in ("batch", "=8", "batch=", "seq=1..8:0"):
        with pytest.raises(UserError, match="--size: "):
            read_stated_sizes([text])
    with pytest.raises(UserError, match="given twice"):
        read_stated_sizes(["b=1", "b=2"])


def test_a_fixed_program_compiles_and_an_open_one_says_how():
    x, table = np.ones((8, 16), np.float32), np.ones((32, 4), np.float32)
    compiled = girih.compile(program(), sizes={"tokens.0": 8, "seq": 16}, target="cpu")
    np.testing.assert_array_equal(compiled(x, table)[0], -x)
    with pytest.raises(girih.UnsupportedError, match=r"sizes seq \(tokens.1\) .*--size"):
        girih.compile(program(), sizes={"s0": 8})
    module = girih.import_model(program(), sizes={"s0": 8})
    (found,) = girih.interpret(module, [x, table])
    np.testing.assert_array_equal(found, -x)

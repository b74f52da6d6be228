"""Operations become those that their rooms explain them by."""

from __future__ import annotations

from girih.hlo.build import build_module
from girih.optimizer.passes.decompose import Decompose, decomposable

from .modules import LINE, f32, names, same


def test_decompose_replaces_what_has_a_decomposition() -> None:
    assert "broadcast" in decomposable()
    module = build_module([LINE], lambda b, x: [b("broadcast", x, broadcast_sizes=(3,))])
    after = Decompose()(module)
    assert names(after) == ["broadcast_in_dim"]
    assert same(module, after, f32([1, 2, 3, 4]))
    assert Decompose()(after) is after


def test_decompose_keeps_what_it_is_told() -> None:
    module = build_module([LINE], lambda b, x: [b("broadcast", x, broadcast_sizes=(3,))])
    assert Decompose(keep=frozenset({"broadcast"}))(module) is module

"""note-slow: a note for each reason, with the number of operations and the place of the first."""

from __future__ import annotations

from typing import Any

from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Op, Origin
from girih.hlo.types import F32, TensorType
from girih.optimizer.passes.note_slow import NoteSlow


def body(b: Builder, x: Any) -> list[Any]:
    with b.at((Origin("model.py", 7, ""),)):
        y = b("tanh", x)
    return [b("sine", b("negate", b("tanh", y)))]


def slow(op: Op) -> str:
    return {"tanh": "it has no tanh", "sine": "it has no sine"}.get(op.name, "")


def test_notes() -> None:
    module = build_module([TensorType((4,), F32)], body)
    assert NoteSlow(lambda op: "")(module) is module
    after = NoteSlow(slow)(module)
    assert after.functions == module.functions
    assert after.notes == (
        "model.py:7: tanh: it has no tanh (2 operations)",
        "sine: it has no sine",
    )

"""Equal layers become one function between passes."""

from __future__ import annotations

from girih.hlo.build import Builder
from girih.hlo.graph import Value
from girih.hlo.parse import parse_module
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.reroll import Reroll
from girih.optimizer.passes.unroll import Unroll

from .layered import INPUTS, LAYERS, both, calls, layer, stack, texts
from .modules import same


def test_equal_layers_become_one_function() -> None:
    module = stack()
    rolled = Reroll()(module)
    verify(rolled, INLINED)
    assert set(rolled.functions) == {"main", "repeated_0"}
    assert rolled.functions["repeated_0"].attributes == {"copies": LAYERS - 2}
    assert len(calls(rolled)) == LAYERS - 2
    assert same(module, rolled, INPUTS)
    again = parse_module(str(rolled), lambda name, type: rolled.weights[name].array)
    assert str(again) == str(rolled)
    unrolled = Unroll()(rolled)
    assert texts(unrolled) == texts(module) and set(unrolled.weights) == set(module.weights)
    assert same(module, unrolled, INPUTS)


def test_a_rolled_program_stays_as_it_is() -> None:
    rolled = Reroll()(stack())
    assert Reroll()(rolled) is rolled
    module = stack(layers=3)
    assert Reroll()(module) is module and Unroll()(module) is module


def test_layers_are_cut_where_nothing_is_lost() -> None:
    """A layer ends in a negation that the next one begins with: they cancel out."""

    def turned(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
        return b("negate", layer(b, b("negate", x), w, v, y))

    rolled, plain = both(stack(turned))
    assert texts(rolled) == texts(plain)
    assert sum(op.name == "negate" for op in rolled.body.ops) <= 2


def test_notes_of_functions_say_for_how_many_parts_they_stand() -> None:
    rolled, _ = both(stack())
    assert any(note.startswith(f"in {LAYERS - 2} equal parts each: ") for note in rolled.notes)

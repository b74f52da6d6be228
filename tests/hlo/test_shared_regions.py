"""A region that several operations share: one object in memory, one for each in every form."""

from __future__ import annotations

import numpy as np

from girih.hlo.build import build_module
from girih.hlo.graph import Module, Op, Region
from girih.hlo.interpret import interpret
from girih.hlo.parse import parse_module
from girih.hlo.text import canonical_op, print_module
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import verify
from girih.hlo.wire import decode, encode
from girih.optimizer.passes.fuse import Fuse

X = TensorType((3, 4), F32)


def twice_the_same() -> Module:
    """Two fusions in a row that have one region."""
    module = Fuse()(build_module([X], lambda b, x: [b("tanh", b("add", x, x))]))
    (fusion,) = [op for op in module.body.ops if op.name == "fusion"]
    again = Op(
        fusion.definition, fusion.results, fusion.attributes, fusion.regions, fusion.result_types
    )
    body = Region(module.body.arguments, [*module.body.ops, again], again.results)
    return module.with_main(body)


def test_every_form_keeps_it():
    module = twice_the_same()
    verify(module)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(X.dims)
    wanted = interpret(module, [x])[0]
    for other in (decode(encode(module)), parse_module(print_module(module))):
        verify(other)
        one, two = [op for op in other.body.ops if op.name == "fusion"]
        assert one.regions[0] is not two.regions[0]
        assert canonical_op(one) == canonical_op(two)
        np.testing.assert_array_equal(interpret(other, [x])[0], wanted)


def test_names_in_text_stay_apart():
    text = print_module(twice_the_same())
    defined = [line.split(" = ")[0].strip() for line in text.splitlines() if " = " in line]
    assert len(defined) == len(set(defined))


def test_operations_that_regions_share_have_names_of_their_own_in_each():
    constant = build_module([], lambda b: [b.constant(2.0, X)]).body.ops[0]

    def with_shared(fusion: Op) -> Op:
        (old,) = fusion.regions
        body = Region(old.arguments, [constant, *old.ops], old.results)
        return Op(
            fusion.definition, fusion.operands, fusion.attributes, (body,), fusion.result_types
        )

    module = twice_the_same()
    first = with_shared(module.body.ops[0])
    second = with_shared(module.body.ops[0].with_operands(first.results))
    whole = module.with_main(Region(module.body.arguments, [first, second], second.results))
    text = print_module(whole)
    assert text == print_module(parse_module(text))
    assert canonical_op(first) == canonical_op(second)

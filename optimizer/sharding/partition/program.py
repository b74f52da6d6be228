"""partition: the program of one device from a program at level SHARDED.

    local = partition(decided)
    results = interpret_parallel(local, [...])

Types are those of blocks. What an argument and a result of the entry are blocks of is said by its
attribute `girih.whole`: the tensor's type, with its sharding on a mesh of the module. Weights that
are cut are arguments behind those of the program, and `girih.weight` is their name; `bound` puts
the weights of one device in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ....hlo.call_order import check_call_order
from ....hlo.errors import UserError
from ....hlo.graph import Attribute, Module, Region, Value, arguments
from ....hlo.placement import WHOLE
from ....hlo.sharding import Mesh
from ....hlo.types import TensorType
from ....hlo.verify import INLINED, verify
from ..interconnect import USUAL, Interconnect
from .local import lower_local
from .partitioner import Partitioner
from .table import LOWERINGS

WEIGHT = "girih.weight"


def partition(decided: Module, interconnect: Interconnect = USUAL) -> Module:
    """The program of one device; `mhlo.num_partitions` says for how many.

    decided: every tensor has a sharding, all on one mesh, and each operation but
    `sharding_constraint` can be computed from its operands' blocks (factor by factor, the same
    axes in all tensors). UserError without a mesh; UnsupportedError for what cannot be lowered.
    """
    body = decided.body
    mesh = _mesh(decided)
    p = Partitioner(decided, mesh, LOWERINGS, lower_local, interconnect)
    own = arguments([p.local(value.type) for value in body.arguments])
    p.values.update(zip(body.arguments, own, strict=True))
    p.run(body)
    results = [p.values[value] for value in body.results]
    stored = tuple({WHOLE: kind, WEIGHT: name} for name, kind in p.weights)
    function = replace(
        decided.main,
        body=Region([*own, *p.weights.values()], [*p.start.ops, *p.b.ops], results),
        argument_attributes=_placed(decided.main.argument_attributes, body.arguments) + stored,
        result_attributes=_placed(decided.main.result_attributes, body.results),
    )
    facts = {"mhlo.num_replicas": 1, "mhlo.num_partitions": mesh.devices}
    found = replace(
        decided,
        signature=None,  # that of the whole program says what arguments are blocks of
        functions={decided.entry: function},
        attributes={**decided.attributes, **facts},
    )
    verify(found, INLINED)
    check_call_order(found)
    return found


def _mesh(module: Module) -> Mesh:
    values: Iterable[Value] = (
        *module.body.arguments,
        *(result for op in module.body.ops for result in op.results),
    )
    for value in values:
        if isinstance(value.type, TensorType) and value.type.sharding is not None:
            return module.meshes[value.type.sharding.mesh]
    raise UserError("the program has no shardings; nothing says how to partition it")


def _placed(
    attributes: Sequence[Mapping[str, Attribute]], values: Sequence[Value]
) -> tuple[Mapping[str, Attribute], ...]:
    """The attributes of arguments or results, with what each is a block of."""
    known = [*attributes, *([{}] * (len(values) - len(attributes)))]
    return tuple(
        {**facts, WHOLE: value.type} if isinstance(value.type, TensorType) else facts
        for facts, value in zip(known, values, strict=True)
    )

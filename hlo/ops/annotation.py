"""What a program says about how its values lie on meshes: the identity, to every evaluation.

They have effects, so that no pass removes, merges or moves them before a program is partitioned;
compiled for one device, a program loses them (`optimizer/annotations.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..access import Access, elementwise
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..sharding import Axis, DimSharding, Mesh, Sharding
from ..types import F32, TensorType, Type
from .clauses import any_result, is_tensor, same_dims, same_element
from .examples import counting

ARGUMENT, CONSTRAINT, OPERATION, RESHARD, RESULT = (
    "argument", "constraint", "operation", "reshard", "result",
)  # fmt: skip
STATED = (ARGUMENT, CONSTRAINT, OPERATION, RESHARD, RESULT)
"""Where the source states a constraint: at a function's argument, by an operation of its own, at
the operation that computes the value, as an explicit reshard, at a function's result. All mean the
same; exports say it where it was said."""

DIRECTIONS = ("NONE", "FORWARD", "BACKWARD", "BOTH")


class _Annotation(OpDefinition):
    """Says something about one tensor."""

    effects = True
    since = "1.4"
    operand = operand()
    C0 = constraint("operand is a tensor", lambda o: is_tensor(o.operands[0]))


class _Identity(_Annotation):
    """Gives the tensor back as it is."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return arrays[0]

    def access(self, o: Op) -> Access | None:
        return elementwise(o.results[0].dims, [value.rank for value in o.operands])


def _as_operand(o: Op) -> bool:
    kind, result = o.operands[0].tensor, o.results[0].tensor
    return same_element(kind.element, result.element) and same_dims(kind.dims, result.dims)


class ShardingConstraint(_Identity, name="sharding_constraint"):
    """result = operand, which lies on its mesh as the type of the result says."""

    stated = attribute(str, CONSTRAINT)
    C1 = constraint("the result has the operand's dims and element type", any_result(_as_operand))
    C2 = constraint(
        "the type of the result has a sharding",
        any_result(lambda o: o.results[0].tensor.sharding is not None),
    )
    C3 = constraint(f"stated is one of {', '.join(STATED)}", lambda o: o.stated in STATED)

    def cases(self) -> Iterator[Case]:
        sharding = Sharding("mesh", (DimSharding((Axis("x"),)), DimSharding(open=True)))
        yield Case(
            "sharding_constraint", (counting(4, 3),),
            result_types=(TensorType((4, 3), F32, sharding),),
            meshes={"mesh": Mesh((("x", 2), ("y", 4)))},
        )  # fmt: skip


class PropagationBarrier(_Identity, name="propagation_barrier"):
    """result = operand; propagation passes in `allowed_direction` only."""

    allowed_direction = attribute(str)
    C1 = constraint(
        f"allowed_direction is one of {', '.join(DIRECTIONS)}",
        lambda o: o.allowed_direction in DIRECTIONS,
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operands[0].type]

    def cases(self) -> Iterator[Case]:
        facts = {"allowed_direction": "FORWARD"}
        yield Case("propagation_barrier", (counting(4, 3),), facts)


class ShardingGroup(_Annotation, name="sharding_group"):
    """Operands of all groups with one group_id have one sharding; there are no results."""

    opaque = "it has no results"
    uncut = "its operand lies as those of its group, whatever it is"
    group_id = attribute(int)
    C1 = constraint("0 <= group_id", lambda o: o.group_id >= 0)

    def infer(self, o: Op) -> Sequence[Type]:
        return []

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return ()


ROOMS: tuple[OpDefinition, ...] = (ShardingConstraint(), PropagationBarrier(), ShardingGroup())
ANNOTATIONS = frozenset(room.name for room in ROOMS)

"""Single operations as kernels: how they are told apart, and what none of them computes."""

from __future__ import annotations

from ...hlo.build import Builder
from ...hlo.deciding import without_code
from ...hlo.errors import CompilerBug, UnsupportedError
from ...hlo.graph import Op, Region, arguments, symbols_in
from ...hlo.types import TensorType
from ..llvm import arithmetic

# Operations that no kernel computes, and why.
LIMITATIONS = {
    "uniform_quantize": "quantised values are integers before kernels are made",
    "uniform_dequantize": "quantised values are integers before kernels are made",
    "get_dimension_size": "static sizes are folded before kernels are made",
    "set_dimension_size": "sizes that change at run time have no kernels yet",
    "dynamic_reshape": "shapes must be constants",
    "dynamic_broadcast_in_dim": "shapes must be constants",
    "dynamic_iota": "shapes must be constants",
    "sharding_constraint": "annotations are removed before kernels are made",
    "propagation_barrier": "annotations are removed before kernels are made",
}


def check(op: Op, target: str) -> None:
    """UnsupportedError unless all values are tensors of known sizes."""
    for value in (*op.operands, *op.results):
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(
                f"{op.place}{op.name}: target {target} needs static tensors, not {value.type}"
            )


def as_region(op: Op) -> Region:
    """The operation alone in a region."""
    own = arguments([value.type for value in op.operands])
    single = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    return Region(own, (single,), single.results)


def single(op: Op) -> Op:
    """The operation itself, or the only one inside a fusion."""
    if op.name != "fusion":
        # Each operand is an argument of the kernel, also where one value stands twice.
        return as_region(op).ops[0]
    ops = op.regions[0].ops
    if len(ops) != 1 or ops[0].operands != op.regions[0].arguments:
        raise CompilerBug(f"an opaque kernel must hold one operation, not {len(ops)}")
    return ops[0]


def explained(op: Op) -> Region | None:
    """The region of simpler operations that the room gives for this one."""
    builder = Builder()
    values = builder.arguments([value.type for value in op.operands])
    found = op.definition.decompose(builder, op, *values)
    return None if found is None else builder.region(found)


def missing(op: Op, target: str) -> UnsupportedError:
    """The error for an operation that no kernel computes."""
    reason, error = LIMITATIONS.get(op.name), arithmetic.unsupported(op, target)
    if op.name.startswith("linalg.") and target != "cpu":
        reason = "LAPACK computes it on target cpu"
    names = symbols_in(op)
    if names:
        said = reason or "what it becomes at fixed sizes depends on them"
        return without_code(f"{op.place}{op.name}", names, said)
    return UnsupportedError(f"{error}: {reason}" if reason else str(error))

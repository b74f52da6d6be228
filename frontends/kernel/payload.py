"""A kernel as a string that travels inside an export, and back: `to_text`, `from_text`.

The string is a program of one `kernel_call` or `foreign_call` on the wire (specs/hlo.proto), in
base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from ...hlo import wire
from ...hlo.errors import UserError
from ...hlo.graph import Function, Module, Op, Origin, Region, Value, arguments
from ...hlo.verify import verify

NAME = "girih.kernel"
CALLS = ("kernel_call", "foreign_call")


def to_text(module: Module) -> str:
    """The kernel's string; equal kernels have equal strings."""
    return base64.b64encode(wire.encode(module)).decode("ascii")


def from_text(text: str) -> Module:
    """The program of `to_text`'s string; UserError for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the kernel in the export is damaged: it is no base64") from None
    module = wire.decode(data)
    ops = module.body.ops
    if len(ops) != 1 or ops[0].name not in CALLS or module.body.results != ops[0].results:
        raise UserError("the kernel in the export is damaged: it is no single kernel")
    verify(module)
    return module


def described(text: str) -> str:
    """What a message about a kernel's string begins with: "model.py:41: kernel 'scale'"."""
    op = from_text(text).body.ops[0]
    line = f"{op.origin[0].file}:{op.origin[0].line}: " if op.origin else ""
    return f"{line}kernel '{op.kernel}'"


def call_of(
    module: Module,
    operands: Sequence[Value],
    origin: tuple[Origin, ...],
    reference: Region | None = None,
) -> Op:
    """The kernel's operation on other operands, with a reference if there is one.

    UserError if the operands have other types than the kernel was made for.
    """
    op = module.body.ops[0]
    wanted, given = module.body.argument_types, tuple(value.type for value in operands)
    if wanted != given:
        raise UserError(
            f"kernel '{op.kernel}' was made for {list(wanted)}, its call has {list(given)}"
        )
    regions = op.regions if reference is None else (*_own(op), reference)
    return Op(op.definition, operands, op.attributes, regions, op.result_types, origin or op.origin)


def of_op(op: Op) -> str:
    """The string of the kernel that an operation is, without its reference where it has code."""
    operands = arguments([value.type for value in op.operands])
    regions = op.regions if op.attributes.get("codes") == () else _own(op)
    call = Op(op.definition, operands, op.attributes, regions, op.result_types, op.origin)
    body = Region(operands, (call,), call.results)
    return to_text(Module({"main": Function("main", body)}, name=op.kernel))


def with_reference(module: Module, reference: Region) -> Module:
    """The kernel's program with one more region, which computes the same by ordinary operations."""
    op = call_of(module, module.body.arguments, module.body.ops[0].origin, reference)
    body = Region(module.body.arguments, (op,), op.results)
    return Module({"main": Function("main", body)}, name=module.name)


def reference_of(op: Op) -> Region | None:
    """The reference that a kernel's operation has with it."""
    return op.regions[-1] if len(op.regions) > len(_own(op)) else None


def _own(op: Op) -> tuple[Region, ...]:
    """The regions that are the kernel itself."""
    return tuple(op.regions[:1]) if op.name == "kernel_call" else ()

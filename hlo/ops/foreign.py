"""Kernels that were written elsewhere: PTX, CUDA, Triton, C, LLVM IR, beside a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..contracts import call_factors
from ..errors import UserError
from ..factors import Factors
from ..foreign import BufferAddress, HostCode, TensorMap, read_codes
from ..graph import Op, Region
from ..room import BuildRegion, Case, OpDefinition, attribute, constraint, variadic
from ..types import F32, TensorType, Type, unsharded
from .examples import counting


def _are_codes(o: Op) -> bool:
    try:
        read_codes(o.codes)
    except UserError:
        return False
    return True


def _buffers_exist(o: Op) -> bool:
    """Whether every argument of every launch is an operand, a result, or scratch."""
    slots = len(o.operands) + len(o.result_types or o.regions[0].result_types)
    for code in read_codes(o.codes):
        if isinstance(code, HostCode):
            continue
        for launch in code.launches:
            for argument in launch.arguments:
                buffer = argument.buffer if isinstance(argument, TensorMap) else argument
                if isinstance(buffer, BufferAddress) and buffer.slot >= slots:
                    return False
                if (
                    isinstance(buffer, BufferAddress)
                    and buffer.slot < 0
                    and buffer.offset > code.scratch
                ):
                    return False
    return True


class ForeignCall(OpDefinition, name="foreign_call"):
    """results = what the code of the target computes from the inputs (specs/foreign_kernels.md).

    The region, if there is one, is the reference: the same results from ordinary operations. It is
    what the operation means, and what targets run that `codes` has nothing for. `sharding` is the
    contract by which a partitioner may split the call, "" for none; `variants` are programs of the
    same kernel for parts of its arrays, on the wire.
    """

    pattern = "kernel"
    isolated = True
    sealed = True
    since = "1.3"
    opaque = "its code is not girih's, so nobody knows what it reads"
    uncut = "without a contract nobody knows what cutting it means"
    regions = ("*",)
    inputs = variadic()
    kernel = attribute(str)
    codes = attribute(tuple)
    sharding = attribute(str, "")
    variants = attribute(tuple, (), since="1.4")
    C1 = constraint("at most 1 region, the reference", lambda o: len(o.regions) <= 1)
    C2 = constraint(
        "the reference takes the inputs and returns the results",
        lambda o: (
            not o.regions
            or o.regions[0].argument_types == tuple(unsharded(v.type) for v in o.operands)
            and (
                not o.results or o.regions[0].result_types == tuple(map(unsharded, o.result_types))
            )
        ),
    )
    C3 = constraint("there is a code, or a reference", lambda o: bool(o.codes or o.regions))
    C4 = constraint("each code has what specs/foreign_kernels.md says of it", _are_codes)
    C5 = constraint("arguments of launches are inputs, results or scratch", _buffers_exist)

    def infer(self, o: Op) -> Sequence[Type] | None:
        return o.regions[0].result_types if o.regions else None

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        if not o.regions:
            raise UserError(
                f"kernel '{o.kernel}' was written elsewhere and has no reference=, so only a "
                "target that its code is for can run it"
            )
        return tuple(context["run"](o.regions[0], list(arrays)))

    def shard(self, o: Op) -> Factors | None:
        return call_factors(o)

    def cases(self) -> Iterator[Case]:
        x = counting(5)

        def regions(build: BuildRegion) -> tuple[Region, ...]:
            return (build([TensorType((5,), F32)], lambda b, v: [b("add", v, v)]),)

        code = HostCode("twice", TWICE, tiles=5).as_attribute()
        yield Case("foreign_code", (x,), {"kernel": "twice", "codes": (code,)}, None, regions)


# LLVM IR of the example: every element, twice.
TWICE = """define void @twice(ptr %arguments, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %place = getelementptr ptr, ptr %arguments, i64 1
  %from = load ptr, ptr %arguments
  %to = load ptr, ptr %place
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %source = getelementptr float, ptr %from, i64 %i
  %target = getelementptr float, ptr %to, i64 %i
  %x = load float, ptr %source
  %y = fadd float %x, %x
  store float %y, ptr %target
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

ROOMS = (ForeignCall(),)

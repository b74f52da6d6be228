"""The plan of a variant, read and compared with what this runtime understands."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ..hlo.errors import UserError
from ..specs.generated import plan_pb2
from .bundle import MAIN, Variant

NEWEST = (1, 8)  # format of plans that this runtime executes, and all before it


def parse_plan(variant: Variant, label: str = "the program", entry: str = MAIN) -> plan_pb2.Plan:
    """The variant's plan of an entry point; UserError if its bytes are not one."""
    try:
        plan = plan_pb2.Plan.FromString(variant.plan_of(entry))
        plan_version(plan)
    except (DecodeError, ValueError) as error:
        raise UserError(f"{label}: the plan is malformed ({error}); compile it again") from error
    return plan


def plan_version(plan: plan_pb2.Plan) -> tuple[int, int]:
    """The plan's format; ValueError where it states none."""
    major, _, minor = plan.format_version.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and len(plan.format_version) < 12):
        raise ValueError(f"its format version is {plan.format_version[:40]!r}")
    return int(major), int(minor)


def check_version(plan: plan_pb2.Plan) -> None:
    """UserError where the plan is newer than this runtime."""
    if plan_version(plan) > NEWEST:
        newest = "{}.{}".format(*NEWEST)
        raise UserError(
            f"its plan has format {plan.format_version}, this girih executes up to {newest}; "
            "install a newer girih"
        )

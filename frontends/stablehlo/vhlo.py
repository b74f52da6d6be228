"""A VHLO op of any version becomes the StableHLO op it stands for, in one step."""

from __future__ import annotations

import re
from typing import Any

from .. import tree
from .vhlo_table import ALGORITHM, ATTRIBUTES

_BASES = {form: re.sub(r"_v\d+$", "", form) for form in ATTRIBUTES}
_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_broadcast",
    "collective_permute",
    "collective_reduce",
    "reduce_scatter",
)


def stablehlo_form(operation: tree.Operation, parent: str) -> None:
    """Rename the op and its attributes in place; what an older form lacks is left out."""
    form = operation.name[len("vhlo.") :]
    base = _BASES[form]
    attributes = operation.attributes
    if base == "func":
        operation.name = "func.func"
        for key in ("sym_visibility", "arg_attrs", "res_attrs"):
            if not any(attributes.get(key, ())):  # "" or a list of empty dictionaries
                attributes.pop(key, None)
        return
    if base == "call":
        operation.name = "func.call"
        return
    if base == "return":
        operation.name = "func.return" if parent == "func.func" else "stablehlo.return"
        return
    operation.name = "stablehlo." + base
    if form == "dynamic_conv_v1":
        attributes.pop("padding", None)  # an operand says it
    if base in _COLLECTIVES and _number(attributes.get("channel_id")) == 0:
        attributes.pop("channel_id", None)
    if attributes.get("lhs_precision_type") == "none":
        for key in ALGORITHM:
            attributes.pop(key, None)


def _number(value: Any) -> Any:
    return value.value if isinstance(value, tree.Integer) else value

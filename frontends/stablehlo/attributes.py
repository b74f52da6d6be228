"""An op's attributes in one flat form, whichever reader they come from.

StableHLO's records (`#stablehlo.dot<...>`, `#stablehlo.conv<...>`) become single attributes with
VHLO's names; integer tensors become (nested) tuples; attributes that depend on the op's rank and
were left out are filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Dense
from ...hlo.types import TensorType
from .. import tree
from .literals import element_of, read_elements

_MERGED = ("dot", "gather", "scatter", "conv", "ragged_dot")
_RANKED_OPS = ("convolution", "dynamic_conv", "reduce_window", "select_and_scatter")
_DROPPED = ("mhlo.layout_mode", "mhlo.memory_kind", "use_list")


ACCURACY: dict[str, Any] = {"atol": 0.0, "rtol": 0.0, "ulps": 0, "mode": "DEFAULT"}
"""What a result_accuracy says where it says nothing."""

MAXIMUM_ITEMS = 1_000_000
"""An attribute that is a longer list of numbers than this is no program's."""

# (op or "*", attribute) -> the value that StableHLO leaves out.
_DEFAULTS: dict[tuple[str, str], Any] = {
    ("cholesky", "lower"): False,
    ("compare", "compare_type"): "NOTYPE",
    ("composite", "version"): 0,
    ("composite", "composite_attributes"): {},
    ("custom_call", "api_version"): 1,
    ("custom_call", "has_side_effect"): False,
    ("custom_call", "called_computations"): (),
    ("custom_call", "operand_layouts"): (),
    ("custom_call", "output_operand_aliases"): (),
    ("custom_call", "result_layouts"): (),
    ("custom_call", "result_tilings"): (),
    ("dynamic_broadcast_in_dim", "known_expanding_dimensions"): (),
    ("dynamic_broadcast_in_dim", "known_nonexpanding_dimensions"): (),
    ("infeed", "infeed_config"): "",
    ("infeed", "layout"): (),
    ("outfeed", "outfeed_config"): "",
    ("recv", "is_host_transfer"): False,
    ("recv", "source_target_pairs"): (),
    ("send", "is_host_transfer"): False,
    ("send", "source_target_pairs"): (),
    ("scatter", "unique_indices"): False,
    ("sort", "dimension"): -1,
    ("sort", "is_stable"): False,
    ("*", "has_dynamic_root"): False,
    ("*", "indices_are_sorted"): False,
    ("*", "use_global_device_ids"): False,
}


def _is_default(name: str, key: str, value: Any) -> bool:
    if key == "precision_config":
        return all(item == "DEFAULT" for item in value)
    if key == "backend_config" and not value:
        return True  # older forms have "", newer ones {}
    for owner in (name, "*"):
        if (owner, key) in _DEFAULTS:
            default = _DEFAULTS[owner, key]
            return type(value) is type(default) and value == default
    return False


def plain(value: Any, convert_type: Callable[[tree.Type], Any]) -> Any:
    """An attribute value of a tree as one of an `hlo.Op`; types go through `convert_type`."""
    match value:
        case bool() | str() | None:
            # A scalar type is a string in the tree, and stays its spelling here.
            return value
        case tree.Integer() | tree.Float():
            return value.value
        case tree.Elements():
            return elements_value(value, convert_type)
        case tree.Structured(kind, fields):
            inner = {key: plain(item, convert_type) for key, item in fields.items()}
            return {"record": kind, **inner}
        case tuple():
            return tuple(plain(item, convert_type) for item in value)
        case dict():
            return {key: plain(item, convert_type) for key, item in value.items()}
        case int() | float() | bytes():
            return value
        case tree.Opaque(name, text):
            return f"#{name}{text}"
    return tree.spell(value)


def elements_value(value: tree.Elements, convert_type: Callable[[tree.Type], Any]) -> Any:
    """Integer and boolean tensors as nested tuples, others as `Dense`."""
    array = read_elements(value)
    if array.size > MAXIMUM_ITEMS:
        raise UserError(f"an attribute of type {tree.spell(value.type)} is too long")
    if element_of(value.type.element).kind in ("int", "uint", "bool"):
        return _nested(array.tolist())
    kind = convert_type(value.type)
    assert isinstance(kind, TensorType)
    return Dense(kind, array)


def _nested(items: Any) -> Any:
    return tuple(map(_nested, items)) if isinstance(items, list) else items


def unpacked(operation: tree.Operation) -> dict[str, Any]:
    """The attributes of an op with StableHLO's records laid flat, named as VHLO does."""
    name = operation.name.partition(".")[2]
    flat: dict[str, Any] = {}
    for key, value in operation.attributes.items():
        if key in _DROPPED:
            continue
        if isinstance(value, tree.Structured) and value.kind in (*_MERGED, "dot_algorithm"):
            flat.update(value.fields)
        elif isinstance(value, tree.Structured) and value.kind == "channel_handle":
            flat["channel_id"] = value.fields.get("handle", 0)
            if name in ("send", "recv"):
                flat["channel_type"] = value.fields.get("type", 0)
        else:
            flat[key] = value
    return flat


RAGGED = (
    "lhs_batching_dimensions",
    "rhs_batching_dimensions",
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
    "lhs_ragged_dimensions",
    "rhs_group_dimensions",
)
"""What `ragged_dot_dimension_numbers` says, in the order in which composites list it."""


def laid_flat(facts: dict[str, Any]) -> dict[str, Any]:
    """A composite's attributes with the lists of its dimension numbers under VHLO's names."""
    lists = facts.get("ragged_dot_dimension_numbers")
    if not isinstance(lists, tuple) or len(lists) != len(RAGGED):
        return facts
    others = {k: v for k, v in facts.items() if k != "ragged_dot_dimension_numbers"}
    return {**others, **dict(zip(RAGGED, lists, strict=True))}


def flatten(operation: tree.Operation, convert_type: Callable[[tree.Type], Any]) -> dict[str, Any]:
    """The attributes of an op, flat, named as VHLO does; `value` of a constant is left alone."""
    name = operation.name.partition(".")[2]
    flat: dict[str, Any] = {}
    for key, value in unpacked(operation).items():
        if isinstance(value, tree.Structured) and value.kind == "result_accuracy":
            given = {k: plain(v, convert_type) for k, v in value.fields.items()}
            accuracy = {**ACCURACY, **given}
            if accuracy["mode"] != "DEFAULT":
                flat[key] = accuracy
        elif key == "value" and name == "constant":
            flat[key] = value
        elif isinstance(value, tree.Structured):
            flat[key] = {k: plain(v, convert_type) for k, v in value.fields.items()}
        else:
            flat[key] = plain(value, convert_type)
    flat = {key: value for key, value in flat.items() if not _is_default(name, key, value)}
    if name in _RANKED_OPS:
        _fill_windows(name, operation, flat)
    elif name in ("gather", "dynamic_gather", "scatter", "dot_general"):
        for key in LISTS[name]:
            flat.setdefault(key, ())
        if name != "dot_general":
            flat.setdefault("index_vector_dim", 0)
    return flat


_GATHER = (
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
)
LISTS = {
    "gather": _GATHER,
    "dynamic_gather": _GATHER,
    "scatter": (
        "update_window_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "scatter_dims_to_operand_dims",
    ),
    "dot_general": (
        "lhs_batching_dimensions",
        "rhs_batching_dimensions",
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
    ),
}
"""Lists that StableHLO's text leaves out where they are empty."""


def _fill_windows(name: str, operation: tree.Operation, flat: dict[str, Any]) -> None:
    """Window attributes that were left out: strides and dilations 1, padding 0, no reversal."""
    convolution = name in ("convolution", "dynamic_conv")
    if convolution:
        rank = len(flat.get("input_spatial_dimensions", ()))
        ones = ("window_strides", "lhs_dilation", "rhs_dilation")
        flat.setdefault("window_reversal", (False,) * rank)
    else:
        windows = flat.get("window_dimensions")
        first = operation.operands[0].type if operation.operands else None
        rank = len(first.shape) if isinstance(first, tree.Tensor) else 0
        if windows is None and name == "select_and_scatter":
            flat["window_dimensions"] = (1,) * rank
        ones = ("window_strides",)
        if name == "reduce_window":
            ones = ("window_strides", "base_dilations", "window_dilations")
    for key in ones:
        flat.setdefault(key, (1,) * rank)
    if name != "dynamic_conv":
        padding = flat.setdefault("padding", ((0, 0),) * rank)
        if not isinstance(padding, tuple) or any(
            not isinstance(pair, tuple) or len(pair) != 2 for pair in padding
        ):
            raise UserError(f"the padding of {operation.name} must be pairs of (low, high)")

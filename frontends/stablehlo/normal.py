"""The attributes of an op in normal form: VHLO's names, one kind of value each, defaults known.

`facts_of(operation)` brings what any reader or `lowered` left in a tree's op into this form; both
writers start from it. Kinds: `i64` and `i32` are `tree.Integer`, `f32` is `tree.Float`, `ints` and
`bools` are tuples, `matrix` and `elements` are `tree.Elements`, `enum` and `symbol` are strings,
`enums` and `symbols` tuples of them; `any` is whatever `tree` describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from ...hlo.graph import Dense
from ...hlo.types import QuantizedType
from .. import tree
from .attributes import ACCURACY, LISTS, unpacked
from .literals import read_elements
from .versions import FORMS
from .vhlo_table import ALGORITHM

_KIND_WORDS = """
i64: all_gather_dim batch_dims batch_group_count channel_id channel_type concat_dimension dim
    dimension feature_group_count feature_index index_vector_dim input_batch_dimension
    input_feature_dimension iota_dimension kernel_input_feature_dimension
    kernel_output_feature_dimension output_batch_dimension output_feature_dimension
    scatter_dimension split_count split_dimension lhs_component_count rhs_component_count
    num_primitive_operations
i32: index exponent_bits mantissa_bits api_version version
f32: epsilon
bool: use_global_device_ids has_dynamic_root has_side_effect indices_are_sorted unique_indices
    is_host_transfer is_stable left_side lower unit_diagonal allow_imprecise_accumulation
ints: base_dilations broadcast_dimensions broadcast_sizes collapsed_slice_dims dimensions
    edge_padding_high edge_padding_low fft_length input_batching_dims input_spatial_dimensions
    inserted_window_dims interior_padding kernel_spatial_dimensions known_expanding_dimensions
    known_nonexpanding_dimensions lhs_batching_dimensions lhs_contracting_dimensions lhs_dilation
    limit_indices offset_dims operand_batching_dims output_spatial_dimensions permutation
    rhs_batching_dimensions rhs_contracting_dimensions rhs_dilation scatter_dims_to_operand_dims
    scatter_indices_batching_dims slice_sizes start_index_map start_indices
    start_indices_batching_dims strides update_window_dims window_dilations window_dimensions
    window_strides
bools: window_reversal
matrix: padding replica_groups source_target_pairs
elements: value
type: lhs_precision_type rhs_precision_type accumulation_type
enum: compare_type comparison_direction fft_type rng_algorithm rng_distribution transpose_a
enums: precision_config
string: call_target_name einsum_config infeed_config name outfeed_config sym_name sym_visibility
symbol: callee decomposition
symbols: called_computations
accuracy: result_accuracy
aliases: output_operand_aliases
layouts: operand_layouts result_layouts
any: arg_attrs backend_config composite_attributes function_type layout res_attrs result_tilings
"""


def _read_kinds() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _KIND_WORDS.strip().replace("\n    ", " ").splitlines():
        kind, _, names = line.partition(":")
        found.update(dict.fromkeys(names.split(), kind))
    return found


KINDS: dict[str, str] = _read_kinds()
"""Attribute -> the kind of its value."""

ENUMS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "comparison_direction": ("comparison_direction", 3, ("EQ", "NE", "GE", "GT", "LE", "LT")),
    "compare_type": (
        "comparison_type",
        4,
        ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    ),
    "fft_type": ("fft_type", 7, ("FFT", "IFFT", "RFFT", "IRFFT")),
    "precision_config": ("precision", 11, ("DEFAULT", "HIGH", "HIGHEST")),
    "rng_algorithm": ("rng_algorithm", 12, ("DEFAULT", "THREE_FRY", "PHILOX")),
    "rng_distribution": ("rng_distribution", 13, ("", "UNIFORM", "NORMAL")),
    "transpose_a": (
        "transpose",
        16,
        ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    ),
    "mode": ("result_accuracy_mode", 19, ("DEFAULT", "HIGHEST", "TOLERANCE")),
}
"""Attribute -> its enumeration's name in text, its code in VHLO's bytecode, and the words."""

_ACCURACY = tree.Structured("result_accuracy", ACCURACY)


class Facts(NamedTuple):
    """`known` has every attribute of the op's newest form, `given` names those that differ from
    their defaults, `extra` has the attributes that are not the operation's own."""

    known: dict[str, Any]
    given: tuple[str, ...]
    extra: dict[str, Any]


def facts_of(operation: tree.Operation) -> Facts:
    """The op's attributes in normal form; UserError for one that is missing or of another kind."""
    base = operation.name.partition(".")[2]
    names = FORMS[base][-1].attributes if base in FORMS else ()
    flat = unpacked(operation)
    if base in ("dot_general",):
        _drop_no_algorithm(flat)
    known: dict[str, Any] = {}
    given: list[str] = []
    for name in names:
        default = _default(base, name, operation, flat)
        raw = flat.pop(name, None)
        if raw is None or (name == "backend_config" and raw in ("", {}, ())):
            if default is _REQUIRED:
                raise UserError(f"{operation.name} lacks its attribute '{name}'")
            known[name] = default
            continue
        known[name] = normal(name, raw)
        # MLIR's verifier wants the windows of select_and_scatter, whatever they are.
        wanted = default is _REQUIRED or name == "window_dimensions"
        if wanted or not _same(known[name], default):
            given.append(name)
    if base == "dynamic_conv":
        flat.pop("padding", None)  # an operand says it
    return Facts(known, tuple(given), flat)


def _drop_no_algorithm(flat: dict[str, Any]) -> None:
    """`none` types mean that no algorithm is given."""
    if flat.get("accumulation_type") in (None, "none"):
        for name in ALGORITHM:
            flat.pop(name, None)


def normal(name: str, value: Any) -> Any:
    """A value of the attribute `name` in its normal form."""
    kind = KINDS.get(name, "any")
    try:
        return _NORMAL[kind](value) if kind in _NORMAL else value
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"the attribute '{name}' cannot be {value!r:.80}") from None


def _number(value: Any) -> int:
    if isinstance(value, tree.Integer):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _array(value: Any) -> Any:
    """The numbers of `tree.Elements`, `Dense` or nested tuples as nested lists."""
    if isinstance(value, tree.Elements):
        return read_elements(value).tolist()
    if isinstance(value, Dense):
        return value.array.tolist()
    return [_number(item) if not isinstance(item, (tuple, bool)) else item for item in value]


def _float(value: Any) -> tree.Float:
    return tree.Float(float(getattr(value, "value", value)), "f32")


def _matrix(value: Any) -> Any:
    if isinstance(value, (tree.Elements, tree.Structured, tree.Opaque)):
        return value
    if isinstance(value, Mapping):
        groups = restored(value)
        mesh = groups.fields["mesh"].fields
        if mesh.get("device_ids"):
            mesh["device_ids"] = integers(mesh["device_ids"])
        return groups
    if isinstance(value, str):
        return _opaque(value)
    array = np.asarray(value, np.int64)
    if array.ndim != 2:
        array = array.reshape(len(array), -1) if array.size else np.zeros((0, 2), np.int64)
    return integers(array)


def integers(array: Any) -> tree.Elements:
    """An i64 tensor."""
    array = np.ascontiguousarray(array, "<i8")
    return tree.Elements(tree.Tensor(array.shape, "i64"), array.tobytes())


def _layouts(value: Any) -> tuple[Any, ...]:
    """The orders of the dimensions of each operand or result, index tensors."""
    return tuple(item if isinstance(item, tree.Elements) else _index(item) for item in value)


def _index(order: Any) -> tree.Elements:
    array = np.asarray(order, "<i8").reshape(-1)
    return tree.Elements(tree.Tensor(array.shape, "index"), array.tobytes())


def elements_of(dense: Dense) -> tree.Elements:
    """A constant with its bytes; of quantised ones, the stored integers."""
    element = dense.type.element
    if isinstance(element, QuantizedType):
        element = element.storage
    splat = dense.is_splat
    array = np.asarray(dense.splat_value) if splat else np.ascontiguousarray(dense.array)
    kind = tree.Tensor(tuple(dense.type.dims), scalar_of(element))
    if splat and element.is_bool:
        return tree.Elements(kind, b"\xff" if array else b"\0")
    return tree.Elements(kind, array.reshape(-1).view(np.uint8).data)


def scalar_of(element: Any) -> tree.Type:
    """The tree's type of an `hlo` element type that is not quantised."""
    if element.is_complex:
        return tree.Complex(element.name[len("complex<") : -1])
    return element.name


def _accuracy(value: Any) -> tree.Structured:
    fields = value.fields if isinstance(value, tree.Structured) else value
    found = dict(ACCURACY)
    for key, item in fields.items():
        if key in found:
            found[key] = getattr(item, "value", item)
    return tree.Structured("result_accuracy", found)


def restored(value: Any) -> Any:
    """A value of an `hlo.Op`'s attribute as a tree's: records and constants get their classes."""
    if isinstance(value, Mapping):
        fields = {key: restored(item) for key, item in value.items() if key != "record"}
        return tree.Structured(value["record"], fields) if "record" in value else fields
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(restored, value))
    if isinstance(value, Dense):
        if value.type.rank == 0:
            return _scalar(value)
        return elements_of(value)
    if isinstance(value, str) and value.startswith("#"):
        return _opaque(value)
    return value


def _scalar(value: Dense) -> Any:
    """A number with its type."""
    kind = scalar_of(value.type.element)
    if value.type.element.is_float:
        return tree.Float(float(value.array), kind)
    return tree.Integer(int(value.array), kind)


def _opaque(text: str) -> tree.Opaque:
    name, mark, rest = text.removeprefix("#").partition("<")
    return tree.Opaque(name, mark + rest)


_NORMAL: dict[str, Any] = {
    "i64": lambda value: tree.Integer(_number(value), "i64"),
    "i32": lambda value: tree.Integer(_number(value), "i32"),
    "f32": _float,
    "bool": _bool,
    "ints": lambda value: tuple(map(_number, _array(value))),
    "bools": lambda value: tuple(bool(item) for item in _array(value)),
    "matrix": _matrix,
    "elements": lambda value: elements_of(value) if isinstance(value, Dense) else value,
    "accuracy": _accuracy,
    "symbols": lambda value: tuple(map(str, value)),
    "aliases": restored,
    "layouts": _layouts,
    "any": restored,
}

# Defaults

_REQUIRED = object()
_DEFAULTS: dict[str, Any] = {
    "arg_attrs": (),
    "api_version": tree.Integer(1, "i32"),
    "backend_config": "",
    "called_computations": (),
    "channel_id": tree.Integer(0, "i64"),
    "compare_type": "NOTYPE",
    "composite_attributes": {},
    "has_dynamic_root": False,
    "has_side_effect": False,
    "indices_are_sorted": False,
    "infeed_config": "",
    "is_host_transfer": False,
    "is_stable": False,
    "known_expanding_dimensions": (),
    "known_nonexpanding_dimensions": (),
    "layout": (),
    "lower": False,
    "operand_layouts": (),
    "outfeed_config": "",
    "output_operand_aliases": (),
    "res_attrs": (),
    "result_accuracy": _ACCURACY,
    "result_layouts": (),
    "result_tilings": (),
    "sym_visibility": "",
    "unique_indices": False,
    "use_global_device_ids": False,
    "version": tree.Integer(0, "i32"),
}
_DEFAULTS.update(dict.fromkeys(ALGORITHM, "none"))
_ONES = ("base_dilations", "lhs_dilation", "rhs_dilation", "window_dilations", "window_strides")
_WINDOWED = ("convolution", "dynamic_conv", "reduce_window", "select_and_scatter")


def _default(base: str, name: str, operation: tree.Operation, flat: dict[str, Any]) -> Any:
    if name in _DEFAULTS:
        if name == "channel_id" and base in ("send", "recv"):
            return _REQUIRED
        if name == "lower" and base != "cholesky":
            return _REQUIRED
        if name == "backend_config" and _typed_call(flat):
            return {}
        return _DEFAULTS[name]
    if name == "precision_config":
        return ("DEFAULT",) * 2
    if name == "dimension" and base == "sort":
        return tree.Integer(-1, "i64")
    if name == "source_target_pairs" and base in ("send", "recv"):
        return tree.Elements(tree.Tensor((0,), "i64"), b"")
    if name in _EMPTY.get(base, ()):
        return ()
    if name == "index_vector_dim":
        return tree.Integer(0, "i64")
    if base in _WINDOWED:
        rank = _rank(operation) - (2 if base in ("convolution", "dynamic_conv") else 0)
        if name in _ONES or (name == "window_dimensions" and base == "select_and_scatter"):
            return (1,) * rank
        if name == "padding":
            return integers(np.zeros((rank, 2), np.int64))
        if name == "window_reversal":
            return (False,) * rank
    return _REQUIRED


_SPATIAL = (
    "input_spatial_dimensions",
    "kernel_spatial_dimensions",
    "output_spatial_dimensions",
)
_EMPTY = {**LISTS, "convolution": _SPATIAL, "dynamic_conv": _SPATIAL}
"""Lists that text leaves out where they are empty."""


def _typed_call(flat: dict[str, Any]) -> bool:
    version = flat.get("api_version", 1)
    return getattr(version, "value", version) == 4


def _rank(operation: tree.Operation) -> int:
    kind = operation.operands[0].type if operation.operands else None
    return len(kind.shape) if isinstance(kind, tree.Tensor) else 0


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, tree.Elements) and isinstance(default, tree.Elements):
        if 0 in value.type.shape and 0 in default.type.shape:
            return True
        left, right = read_elements(value), read_elements(default)
        return left.shape == right.shape and bool(np.array_equal(left, right))
    if default == ("DEFAULT",) * 2:
        return all(item == "DEFAULT" for item in value)
    return type(value) is type(default) and value == default

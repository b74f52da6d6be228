"""The fields of an HloInstructionProto that become attributes, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UnsupportedError
from . import devices, messages
from .program import ConvolutionLabels, WindowDimension
from .wire import Damaged

if TYPE_CHECKING:
    from .protobuf import ProtobufReader


def frontend_attributes(facts: Mapping[str, Any]) -> dict[str, str]:
    return {item.get("key", ""): item.get("value", "") for item in facts.get("map", ())}


# Each takes the reader, the attributes so far and the field's value.

_Attributes = dict[str, Any]
_Convert = Callable[["ProtobufReader", _Attributes, Any], None]


def _plain(name: str) -> _Convert:
    """A number, truth value or text."""

    def convert(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
        facts[name] = value

    return convert


def _numbers(name: str) -> _Convert:
    def convert(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
        facts[name] = tuple(value)

    return convert


def _word(name: str, words: tuple[str, ...]) -> _Convert:
    """One of the words of an enumeration."""

    def convert(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
        facts[name] = _of(words, value, name)

    return convert


def _truth(name: str) -> _Convert:
    """A value that may also be left open: 1 is true, 2 is false."""

    def convert(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
        facts[name] = value == 1

    return convert


def _of(words: tuple[str, ...], value: int, name: str) -> str:
    if not 0 <= value < len(words):
        raise Damaged(f"{name} is {value}, which is not known")
    return words[value]


def _merged(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    """The message's fields are attributes of their own names."""
    for key, item in value.items():
        facts[key] = tuple(item) if isinstance(item, list) else item


def _window(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["window"] = tuple(
        WindowDimension(
            dim.get("size", 0),
            dim.get("stride", 0),
            dim.get("padding_low", 0),
            dim.get("padding_high", 0),
            dim.get("base_dilation", 0),
            dim.get("window_dilation", 0),
            dim.get("window_reversal", False),
        )
        for dim in value.get("dimensions", ())
    )


def _labels(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    def part(name: str, first: str, second: str) -> tuple[int, ...]:
        return (
            value.get(f"{name}_{first}_dimension", 0),
            value.get(f"{name}_{second}_dimension", 0),
            *value.get(f"{name}_spatial_dimensions", ()),
        )

    facts["dim_labels"] = ConvolutionLabels(
        part("input", "batch", "feature"),
        part("kernel", "input_feature", "output_feature"),
        part("output", "batch", "feature"),
    )


def _slice(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["slice"] = tuple(
        (item.get("start", 0), item.get("limit", 0), item.get("stride", 0)) for item in value
    )


def _padding(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["padding"] = tuple(
        (item.get("low", 0), item.get("high", 0), item.get("interior", 0))
        for item in value.get("dimensions", ())
    )


def _precision(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    words = [
        _of(messages.PRECISIONS, item, "operand_precision")
        for item in value.get("operand_precision", ())
    ]
    if any(word != "default" for word in words):
        facts["operand_precision"] = tuple(words)
    if value.get("algorithm"):
        facts["algorithm"] = _of(messages.DOT_ALGORITHMS, value["algorithm"], "algorithm")


def _ragged(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    _merged(reader, facts, value.pop("dot_dimension_numbers", {}))
    _merged(reader, facts, value)


def _triangular(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts.update(value)
    facts["transpose_a"] = _of(messages.TRANSPOSES, value.get("transpose_a", 0), "transpose_a")


def _sharding(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["sharding"] = devices.spell_sharding(value)


def _frontend(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if value:
        facts["frontend_attributes"] = frontend_attributes(value)


def _literal(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    try:
        facts["literal"] = reader.literal(value)
    except UnsupportedError as error:
        facts["refused"] = str(error)


def _groups(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["replica_groups"] = tuple(tuple(group.get("replica_ids", ())) for group in value)


def _device_list(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if "iota_replica_group_list" in value:
        _iota_groups(reader, facts, value["iota_replica_group_list"])
    else:
        _groups(reader, facts, value.get("replica_groups", ()))


def _iota_groups(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    dims = (value.get("num_replica_groups", 0), value.get("num_devices_per_group", 0))
    facts["replica_groups"] = devices.iota_groups(
        dims, value.get("iota_reshape_dims", ()), value.get("iota_transpose_perm", ())
    )


def _mesh_groups(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["replica_groups"] = devices.mesh_groups(value.get("mesh", {}), value.get("axes", ()))


def _pairs(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["source_target_pairs"] = tuple(
        (item.get("source", 0), item.get("target", 0)) for item in value
    )


def _operand_layouts(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if any(isinstance(item, int) for item in value):
        raise Damaged("an operand's layout is no shape")
    facts["operand_layout_constraints"] = tuple(reader.shape(item) for item in value)


def _aliasing(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    facts["output_to_operand_aliasing"] = tuple(
        (
            tuple(item.get("output_shape_index", ())),
            item.get("operand_index", 0),
            tuple(item.get("operand_shape_index", ())),
        )
        for item in value
    )


def _accuracy(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if "tolerance" in value:
        facts["result_accuracy"] = {"atol": 0.0, "rtol": 0.0, "ulps": 0, **value["tolerance"]}
    elif value.get("mode"):
        facts["result_accuracy"] = _of(messages.ACCURACIES, value["mode"], "result_accuracy")


def _payload(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if value.get("value"):
        facts["backend_config"] = str(value["value"], "utf-8", "surrogateescape")
    elif value:
        facts["refused"] = "its configuration stands elsewhere in the file"


def _channel(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
    if value > 0:
        facts["channel_id"] = value


def _refused(reason: str) -> _Convert:
    """A feature that no operation of girih has."""

    def convert(reader: ProtobufReader, facts: _Attributes, value: Any) -> None:
        if len(value):
            facts["refused"] = reason

    return convert


ATTRIBUTES: dict[str, _Convert] = {
    **{
        name: _plain(name)
        for name in (
            "exponent_bits",
            "mantissa_bits",
            "outfeed_config",
            "epsilon",
            "feature_index",
            "infeed_config",
            "custom_call_target",
            "backend_config",
            "is_host_transfer",
            "feature_group_count",
            "batch_group_count",
            "is_stable",
            "custom_call_has_side_effect",
            "delta",
            "indices_are_sorted",
            "unique_indices",
            "use_global_device_ids",
            "k",
            "largest",
            "is_composite",
            "constrain_layout",
            "is_reverse",
            "num_carries",
        )
    },
    "is_associative": _truth("is_associative"),
    "comparison_direction": _plain("direction"),
    "comparison_type": _plain("type"),
    "tuple_index": _plain("index"),
    **{name: _numbers(name) for name in ("dimensions", "dynamic_slice_sizes", "fft_length")},
    "gather_slice_sizes": _numbers("slice_sizes"),
    "fft_type": _word("fft_type", messages.FFT_TYPES),
    "distribution": _word("distribution", messages.DISTRIBUTIONS),
    "rng_algorithm": _word("algorithm", messages.ALGORITHMS),
    "padding_type": _word("padding_type", messages.PADDING_TYPES),
    "custom_call_api_version": _word("api_version", messages.API_VERSIONS),
    "window": _window,
    "convolution_dimension_numbers": _labels,
    "slice_dimensions": _slice,
    "padding_config": _padding,
    "dot_dimension_numbers": _merged,
    "gather_dimension_numbers": _merged,
    "scatter_dimension_numbers": _merged,
    "cholesky_options": _merged,
    "precision_config": _precision,
    "ragged_dot_dimension_numbers": _ragged,
    "triangular_solve_options": _triangular,
    "sharding": _sharding,
    "frontend_attributes": _frontend,
    "literal": _literal,
    "replica_groups": _groups,
    "collective_device_list": _device_list,
    "iota_collective_device_list": _iota_groups,
    "mesh_axes_replica_group_list": _mesh_groups,
    "source_target_pairs": _pairs,
    "operand_shapes_with_layout": _operand_layouts,
    "output_operand_aliasing": _aliasing,
    "result_accuracy": _accuracy,
    "backend_config_payload": _payload,
    "channel_id": _channel,
    "all_reduce_id": _channel,
    "dot_sparsity": _refused("sparse operands are not supported"),
    "sparsity_config": _refused("sparse operands are not supported"),
}

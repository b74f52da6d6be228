"""The attributes behind an instruction of HLO text, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .device_text import DeviceReader
from .program import Computation, ConvolutionLabels, Instruction, WindowDimension
from .scanner import PATTERN

_IGNORED = (
    "statistics", "parameter_replication", "control-predecessors", "origin", "original_value",
    "schedule", "async_execution_thread", "execution_thread", "inferred_dimension",
    "cross_program_prefetch_index", "is_cross_program_prefetch", "outfeed_shape", "domain",
    "mode", "kind", "convolution_kind", "constrain_layout",
)  # fmt: skip
"""Attributes that say nothing about what the program computes."""

_REFUSED = {
    "sparsity": "sparse operands are not supported",
    "literal": "a constant inside a custom call is not supported",
}
_CALLS = ("to_apply", "calls", "condition", "body", "select", "scatter")
_MODULE_IGNORED = (
    "is_scheduled", "alias_passthrough_params", "entry_computation_layout",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output", "origin_recovery_table",
)  # fmt: skip


class AttributeReader(DeviceReader):
    """Reads what follows a module's, a computation's or an instruction's main part."""

    def __init__(self, text: str, name: str):
        super().__init__(text, name)
        self.source = name
        self.computations: dict[str, Computation] = {}
        self.ignored: list[str] = []

    def name_or_string(self) -> str:
        return self.string() if self.at('"') else self.identifier()

    # Modules and computations

    def header(self) -> dict[str, Any]:
        """The attributes of `HloModule name, key=value, ...`"""
        facts: dict[str, Any] = {}
        while self.accept(","):
            key = self.attribute_name()
            if key in ("replica_count", "num_partitions"):
                value = self.integer()
                if value > 1:
                    facts[key] = value
            elif key == "frontend_attributes":
                facts[key] = self.frontend_attributes()
            elif key == "input_output_alias":
                facts[key] = self.sequence("{", "}", self._alias)
            elif key == "buffer_donor":
                facts[key] = self.sequence("{", "}", self._donor)
            else:
                self.skip_value()
                if key not in _MODULE_IGNORED:
                    self.ignored.append(key)
        return facts

    def _alias(self) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        """`{output index}: (parameter, {index}, kind)`"""
        output = self.numbers()
        self.expect(":")
        self.expect("(")
        number = self.integer()
        self.expect(",")
        index = self.numbers()
        if self.accept(","):
            self.word()
        self.expect(")")
        return output, number, index

    def _donor(self) -> tuple[int, tuple[int, ...]]:
        self.expect("(")
        number = self.integer()
        self.expect(",")
        index = self.numbers()
        self.expect(")")
        return number, index

    def computation_attributes(self) -> None:
        """`, execution_thread="..."`"""
        while self.accept(","):
            self.attribute_name()
            self.skip_value()

    def skip_value(self) -> None:
        """A value of any form: a group, a string, or what stands up to the next comma."""
        character = self.peek()
        if character in ("{", "[", "("):
            self.brackets(character)
        elif character == '"':
            self.string()
        elif self.at_shape():
            self.shape()
        else:
            self.read(PATTERN, "a value")

    # Instructions

    def attributes(self, instruction: Instruction) -> None:
        """`, key=value, ...`; computations become the instruction's calls, in the proto's order."""
        calls: dict[str, list[Computation]] = {}
        facts = instruction.attributes
        while self.accept(","):
            start = self.skip()
            key = self.attribute_name()
            if key in _CALLS or key in ("true_computation", "false_computation"):
                calls[key] = [self._called()]
            elif key in ("branch_computations", "called_computations"):
                calls[key] = list(self.list_of(self._called))
            elif key == "metadata":
                begin = self.skip()
                self.braces()
                facts[key] = (begin, self.position)
            elif key in _REFUSED:
                self.skip_refused()
                facts["refused"] = _REFUSED[key]
            elif (read := _READERS.get(key)) is not None:
                try:
                    facts[key] = read(self)
                except ValueError as error:
                    self.fail(str(error), start)
            elif key in _IGNORED:
                self.skip_value()
            else:
                self.fail(f"the attribute '{key}' is not known to this version", start)
        if "iota_dimension" in facts:
            facts["dimensions"] = (facts.pop("iota_dimension"),)
        order = ("body", "condition") if "body" in calls else tuple(calls)
        if "true_computation" in calls:
            order = ("true_computation", "false_computation")
        elif "select" in calls:
            order = ("select", "scatter")
        if instruction.opcode in ("async-update", "async-done"):
            order = ()  # what was started says it already
        for key in order:
            instruction.calls += calls.get(key, [])

    def inner_computation(self) -> Computation:
        """A computation that stands where its name could."""
        raise NotImplementedError

    def _called(self) -> Computation:
        start = self.skip()
        if self.at("{"):
            return self.inner_computation()
        name = self.identifier()
        found = self.computations.get(name)
        if found is None:
            self.fail(f"the computation '{name}' is not defined before", start)
        return found

    def skip_refused(self) -> None:
        """A literal with its shape, or a value without brackets."""
        if self.at("("):
            self.brackets("(")
        elif self.at_shape():
            self.shape()
            if self.at("{"):
                self.braces()
            else:
                self._until_comma()
        else:
            self._until_comma()

    def _until_comma(self) -> None:
        """Over what stands on the rest of the line, up to a comma."""
        end = self.text.find("\n", self.position)
        comma = self.text.find(",", self.position)
        ends = [position for position in (end, comma) if position >= 0]
        self.position = min(ends, default=len(self.text))

    # Values

    def frontend_attributes(self) -> dict[str, str]:
        """`{key="text",key={...}}`"""

        def item() -> tuple[str, str]:
            key = self.attribute_name()
            return key, self.string() if self.at('"') else self.braces()

        return dict(self.sequence("{", "}", item))

    def backend_config(self) -> str:
        return self.string() if self.at('"') else self.braces()

    def integer_fields(self) -> dict[str, int]:
        """`{key=1 key=2}`"""
        self.expect("{")
        fields: dict[str, int] = {}
        while not self.accept("}"):
            key = self.attribute_name()
            fields[key] = self.integer()
            self.accept(",")
        return fields

    def metadata_fields(self) -> dict[str, Any]:
        """`{op_name="..." source_line=1}`"""
        self.expect("{")
        fields: dict[str, Any] = {}
        while not self.accept("}"):
            key = self.attribute_name()
            if self.at('"'):
                fields[key] = self.string()
            elif self.at("{"):
                self.braces()
            else:
                fields[key] = self.integer()
            self.accept(",")
        return fields

    def separated(self, separator: str = "x") -> list[int]:
        """`1x2x3`"""
        text = self.read(PATTERN, "numbers")
        parts = text.split(separator)
        if not all(part.lstrip("-").isdecimal() and len(part) < 20 for part in parts):
            raise ValueError(f"'{text}' is no list of numbers")
        return [int(part) for part in parts]

    def pads(self) -> list[list[int]]:
        """`0_0x1_1` or `0_0_0x1_1_1`"""
        text = self.read(PATTERN, "padding")
        try:
            return [[int(item) for item in part.split("_")] for part in text.split("x")]
        except ValueError:
            raise ValueError(f"'{text}' is no padding") from None

    def window(self) -> tuple[WindowDimension, ...]:
        """`{size=1x2 stride=2x2 pad=0_0x1_1 lhs_dilate=1x2 rhs_dilate=1x1 rhs_reversal=0x1}`"""
        self.expect("{")
        parts: dict[str, Any] = {}
        while not self.accept("}"):
            key = self.attribute_name()
            if key not in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"):
                raise ValueError(f"a window has no '{key}'")
            parts[key] = self.pads() if key == "pad" else self.separated()
        sizes = parts.get("size", [])
        rank = len(sizes)
        pads = parts.get("pad", [[0, 0]] * rank)
        if any(len(part) != rank for part in parts.values()) or any(len(p) != 2 for p in pads):
            raise ValueError("the parts of a window have different lengths")
        ones = [1] * rank
        return tuple(
            WindowDimension(size, stride, low, high, base, dilation, reversal == 1)
            for size, stride, (low, high), base, dilation, reversal in zip(
                sizes,
                parts.get("stride", ones),
                pads,
                parts.get("lhs_dilate", ones),
                parts.get("rhs_dilate", ones),
                parts.get("rhs_reversal", [0] * rank),
                strict=True,
            )
        )

    def padding(self) -> tuple[tuple[int, int, int], ...]:
        pads = self.pads()
        if any(len(pad) not in (2, 3) for pad in pads):
            raise ValueError("padding is low_high or low_high_interior")
        return tuple((pad[0], pad[1], pad[2] if len(pad) == 3 else 0) for pad in pads)

    def slice_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """`{[0:4], [1:9:2]}`"""

        def item() -> tuple[int, int, int]:
            self.expect("[")
            numbers = [self.integer()]
            while self.accept(":"):
                numbers.append(self.integer())
            self.expect("]")
            if len(numbers) not in (2, 3):
                raise ValueError("a range is [start:limit] or [start:limit:stride]")
            return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 1

        return self.list_of(item)

    def dim_labels(self) -> ConvolutionLabels:
        """`b01f_01io->b01f`; dimensions marked "?" are in none of the lists."""
        text = self.read(PATTERN, "dimension labels")
        left, arrow, output = text.partition("->")
        first, line, kernel = left.partition("_")
        if not arrow or not line:
            raise ValueError(f"'{text}' names no dimensions of a convolution")
        return ConvolutionLabels(
            _labelled(first, "bf"), _labelled(kernel, "io"), _labelled(output, "bf")
        )

    def pairs(self) -> tuple[tuple[int, ...], ...]:
        found = self.list_of(self.numbers)
        if any(len(pair) != 2 for pair in found):
            raise ValueError("pairs of source and target are needed")
        return found

    def words(self) -> tuple[str, ...]:
        return self.list_of(self.word)

    def precision(self) -> tuple[str, ...]:
        return tuple(word.lower() for word in self.words())

    def sizes(self) -> tuple[Any, ...]:
        """`{1,2}`, or `{{1},{2}}` of a collective-permute"""
        return self.list_of(lambda: self.numbers() if self.at("{") else self.integer())

    def aliasing(self) -> tuple[Any, ...]:
        return self.list_of(self._alias_of_operand)

    def _alias_of_operand(self) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        """`{output index}: (operand, {index})`"""
        output = self.numbers()
        self.expect(":")
        return output, *self._donor()

    def result_accuracy(self) -> Any:
        """`{mode=highest}` or `{tolerance={atol=0,rtol=0,ulps=2}}`"""
        self.expect("{")
        kind = self.attribute_name()
        value: Any
        if kind == "mode":
            value = self.word()
        else:
            value = {"atol": 0.0, "rtol": 0.0, "ulps": 0}

            def item() -> None:
                key = self.attribute_name()
                value[key] = self.integer() if key == "ulps" else self.real()

            self.sequence("{", "}", item)
        self.expect("}")
        return value

    def epsilon(self) -> float:
        """A float32 number, which is what HLO stores."""
        value = self.real()
        with np.errstate(over="ignore"):
            return value if math.isinf(value) else float(np.float32(value))


def _labelled(text: str, letters: str) -> tuple[int, ...]:
    """Positions of the two letters, then of the digits 0, 1, ... in a dimension label."""
    known = [letter for letter in text if letter != "?"]
    rank = len(known) - len(letters)
    expected = [*letters, *map(str, range(rank))]
    if sorted(known) != sorted(expected):
        raise ValueError(f"'{text}' does not name each dimension of a convolution once")
    return tuple(text.index(letter) for letter in expected)


_Read = Callable[[AttributeReader], Any]
_READERS: dict[str, _Read] = {
    **dict.fromkeys(
        (
            "channel_id",
            "feature_group_count",
            "batch_group_count",
            "feature_index",
            "index_vector_dim",
            "iota_dimension",
            "index",
            "k",
            "delta",
            "exponent_bits",
            "mantissa_bits",
            "num_carries",
        ),
        AttributeReader.integer,
    ),
    **dict.fromkeys(
        (
            "use_global_device_ids",
            "is_stable",
            "is_host_transfer",
            "is_composite",
            "custom_call_has_side_effect",
            "left_side",
            "lower",
            "unit_diagonal",
            "indices_are_sorted",
            "unique_indices",
            "largest",
            "is_reverse",
            "is_associative",
        ),
        AttributeReader.boolean,
    ),
    **dict.fromkeys(
        (
            "direction",
            "type",
            "fft_type",
            "distribution",
            "algorithm",
            "transpose_a",
            "padding_type",
            "api_version",
        ),
        AttributeReader.word,
    ),
    **dict.fromkeys(
        (
            "dimensions",
            "fft_length",
            "dynamic_slice_sizes",
            "lhs_contracting_dims",
            "rhs_contracting_dims",
            "lhs_batch_dims",
            "rhs_batch_dims",
            "lhs_ragged_dims",
            "rhs_group_dims",
            "offset_dims",
            "collapsed_slice_dims",
            "start_index_map",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "update_window_dims",
            "inserted_window_dims",
            "scatter_dims_to_operand_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
        ),
        AttributeReader.numbers,
    ),
    **dict.fromkeys(
        ("custom_call_target", "infeed_config", "outfeed_config"), AttributeReader.string
    ),
    "slice_sizes": AttributeReader.sizes,
    "window": AttributeReader.window,
    "dim_labels": AttributeReader.dim_labels,
    "padding": AttributeReader.padding,
    "slice": AttributeReader.slice_ranges,
    "sharding": AttributeReader.sharding,
    "frontend_attributes": AttributeReader.frontend_attributes,
    "backend_config": AttributeReader.backend_config,
    "replica_groups": AttributeReader.replica_groups,
    "source_target_pairs": AttributeReader.pairs,
    "operand_precision": AttributeReader.precision,
    "operand_layout_constraints": lambda reader: reader.list_of(reader.shape),
    "output_to_operand_aliasing": AttributeReader.aliasing,
    "result_accuracy": AttributeReader.result_accuracy,
    "epsilon": AttributeReader.epsilon,
}

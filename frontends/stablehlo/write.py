"""A module as StableHLO text in MLIR's generic form, for other compilers and for comparison.

Inverse of the reader: the attributes that the readers lay flat are packed again (`dot_general`,
`convolution`, `gather`, `scatter`), a `weight` becomes an argument of the entry function, a
`fusion` is written as its parts. Source places are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hlo.errors import UnsupportedError
from ...hlo.graph import Dense, Function, Module, Op, Region, Value
from ...hlo.room import REQUIRED
from ...hlo.types import TensorType, TokenType, TupleType, Type


@dataclass(frozen=True)
class Written:
    """StableHLO text. Its `main` takes the module's arguments, then the named weights in order."""

    text: str
    weights: tuple[str, ...]


def write_text(module: Module) -> Written:
    """`module` as StableHLO; UnsupportedError for what StableHLO cannot say."""
    writer = _Writer(module)
    others = [f for f in module.functions.values() if f.name != module.entry]
    parts = [writer.main(module.main), *(writer.function(f, "private") for f in others)]
    body = "\n".join(parts)
    return Written(f"module @{_symbol(module.name or 'main')} {{\n{body}\n}}\n", writer.weights)


_ENUMS = {
    "comparison_direction": "comparison_direction",
    "compare_type": "comparison_type",
    "rng_distribution": "rng_distribution",
    "rng_algorithm": "rng_algorithm",
    "fft_type": "fft_type",
    "transpose_a": "transpose",
}
"""attribute -> the enumeration's name in `#stablehlo<name VALUE>`."""

_SMALL = {"exponent_bits", "mantissa_bits", "index", "api_version"}
"""Integer attributes of 32 bits; all others have 64."""

_PACKED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dot_general": (
        "dot_dimension_numbers",
        "dot",
        (
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ),
    ),
    "gather": (
        "dimension_numbers",
        "gather",
        (
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
            "index_vector_dim",
        ),
    ),
    "scatter": (
        "scatter_dimension_numbers",
        "scatter",
        (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ),
    ),
}
_PACKED["dynamic_gather"] = _PACKED["gather"]
"""operation -> (packed attribute, its kind, the flat attributes in it)."""

_ALGORITHM = (
    "lhs_precision_type",
    "rhs_precision_type",
    "accumulation_type",
    "lhs_component_count",
    "rhs_component_count",
    "num_primitive_operations",
    "allow_imprecise_accumulation",
)


class _Writer:
    """Text of one module; values are numbered as they are met."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names: dict[Value, str] = {}
        self.weights: tuple[str, ...] = ()

    def main(self, function: Function) -> str:
        ops = [op for op in function.body.walk() if op.name == "weight"]
        self.weights = tuple(dict.fromkeys(op.attributes["weight"] for op in ops))
        arguments = []
        for number, name in enumerate(self.weights):
            arguments.append(f"%w{number}: {type_text(self.module.weights[name].type)}")
        return self.function(function, "public", arguments)

    def function(self, function: Function, visibility: str, extra: Sequence[str] = ()) -> str:
        if visibility == "private" and any(op.name == "weight" for op in function.body.walk()):
            raise UnsupportedError(f"function '{function.name}' uses a weight; inline it first")
        body = function.body
        arguments = [f"{self.define(v)}: {type_text(v.type)}" for v in body.arguments]
        name = "main" if visibility == "public" else _symbol(function.name)
        results = ", ".join(map(type_text, body.result_types))
        lines = [
            f"func.func {visibility} @{name}({', '.join([*arguments, *extra])}) -> ({results}) {{"
        ]
        lines += self.block(body, "func.return")
        return "\n".join([*lines, "}"])

    def define(self, value: Value) -> str:
        name = self.names[value] = f"%{len(self.names)}"
        return name

    def block(self, region: Region, terminator: str) -> Iterable[str]:
        for op in region.ops:
            yield from self.operation(op)
        names = ", ".join(self.names[value] for value in region.results)
        types = ", ".join(map(type_text, region.result_types))
        yield f'"{terminator}"({names}) : ({types}) -> ()'

    def operation(self, op: Op) -> Iterable[str]:
        if op.name == "weight":
            self.names[op.result] = f"%w{self.weights.index(op.attributes['weight'])}"
            return
        if op.name == "fusion":
            inner = op.regions[0]
            for argument, operand in zip(inner.arguments, op.operands, strict=True):
                self.names[argument] = self.names[operand]
            for part in inner.ops:
                yield from self.operation(part)
            for result, value in zip(op.results, inner.results, strict=True):
                self.names[result] = self.names[value]
            return
        operands = ", ".join(self.names[value] for value in op.operands)
        regions = [self.region(region) for region in op.regions]
        types = ", ".join(type_text(value.type) for value in op.operands)
        outs = ", ".join(map(type_text, op.result_types))
        results = ", ".join(self.define(value) for value in op.results)
        yield "".join(
            [
                f"{results} = " if results else "",
                f'"{_full_name(op)}"({operands})',
                f" ({', '.join(regions)})" if regions else "",
                f" {{{', '.join(attributes_text(op))}}}",
                f" : ({types}) -> ({outs})",
            ]
        )

    def region(self, region: Region) -> str:
        arguments = [f"{self.define(v)}: {type_text(v.type)}" for v in region.arguments]
        head = f"^bb0({', '.join(arguments)}):\n" if arguments else ""
        return "{\n" + head + "\n".join(self.block(region, "stablehlo.return")) + "\n}"


def _full_name(op: Op) -> str:
    if op.name == "call":
        return "func.call"
    return op.name if "." in op.name else f"stablehlo.{op.name}"


def _symbol(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def type_text(kind: Type) -> str:
    """`tensor<4x?xf32>`, `!stablehlo.token`, `tuple<...>`."""
    if isinstance(kind, TensorType):
        dims = "".join(f"{d if isinstance(d, int) else '?'}x" for d in kind.dims)
        return f"tensor<{dims}{kind.element.name}>"
    if isinstance(kind, TokenType):
        return "!stablehlo.token"
    assert isinstance(kind, TupleType)
    return f"tuple<{', '.join(map(type_text, kind.members))}>"


def attributes_text(op: Op) -> list[str]:
    """`key = value` of each attribute, packed as StableHLO wants them."""
    specs = op.definition.attributes.items()
    given = {key: spec.default for key, spec in specs if spec.default is not REQUIRED}
    given.update(op.attributes)
    given.pop("result_accuracy", None)
    texts = []
    if op.name in ("convolution", "dynamic_conv"):
        texts.append(f"dimension_numbers = {_convolution(given)}")
    if op.name in _PACKED:
        key, kind, members = _PACKED[op.name]
        fields = [f"{name} = {_plain(given.pop(name, ()))}" for name in members]
        fields = [field for field in fields if not field.endswith("= []")]
        texts.append(f"{key} = #stablehlo.{kind}<{', '.join(fields)}>")
    if op.name == "dot_general":
        algorithm = {name: given.pop(name, None) for name in _ALGORITHM}
        if algorithm["accumulation_type"] is not None:
            fields = [f"{name} = {_algorithm_text(value)}" for name, value in algorithm.items()]
            texts.append(f"algorithm = #stablehlo.dot_algorithm<{', '.join(fields)}>")
    # an empty tuple where that is the default means "one per dimension": StableHLO leaves it out
    said = {
        key: value
        for key, value in given.items()
        if value is not None and value != "" and (value != () or not _may_be_empty(op, key))
    }
    texts += [f"{key} = {_attribute(key, value, op)}" for key, value in said.items()]
    return texts


def _may_be_empty(op: Op, key: str) -> bool:
    spec = op.definition.attributes.get(key)
    return spec is not None and spec.default == ()


def _convolution(given: dict[str, Any]) -> str:
    """`#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>`."""

    def side(prefix: str, first: tuple[str, str], second: tuple[str, str]) -> str:
        places = {
            given.pop(f"{prefix}_{name}_dimension"): letter for name, letter in (first, second)
        }
        spatial = given.pop(f"{prefix}_spatial_dimensions")
        places.update({place: str(number) for number, place in enumerate(spatial)})
        return f"[{', '.join(places[place] for place in sorted(places))}]"

    data = side("input", ("batch", "b"), ("feature", "f"))
    kernel = side("kernel", ("output_feature", "o"), ("input_feature", "i"))
    result = side("output", ("batch", "b"), ("feature", "f"))
    return f"#stablehlo.conv<{data}x{kernel}->{result}>"


def _plain(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _algorithm_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _attribute(key: str, value: Any, op: Op) -> str:
    if key in _ENUMS:
        return f"#stablehlo<{_ENUMS[key]} {value}>"
    if key == "precision_config":
        return f"[{', '.join(f'#stablehlo<precision {item}>' for item in value)}]"
    if key == "callee":
        return f"@{_symbol(value)}"
    if key == "padding":
        pairs = np.asarray(value, np.int64).reshape(-1, 2)
        return f"dense<{pairs.tolist()}> : tensor<{len(pairs)}x2xi64>"
    if key == "window_reversal":
        return f"array<i1{_items(str(bool(item)).lower() for item in value)}>"
    if isinstance(value, Dense):
        return dense_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : {'i32' if key in _SMALL else 'i64'}"
    if isinstance(value, float):
        bits = int(np.float32(value).view(np.uint32))
        return f"0x{bits:08X} : f32"
    if isinstance(value, str):
        return _symbol(value)
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return f"array<i64{_items(map(str, value))}>"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_attribute(k, v, op)}" for k, v in value.items()) + "}"
    raise UnsupportedError(f"{op.name}: attribute '{key}' = {value!r} has no StableHLO text")


def _items(texts: Iterable[str]) -> str:
    joined = ", ".join(texts)
    return f": {joined}" if joined else ""


def dense_text(value: Dense) -> str:
    """`dense<"0x...">`, one element where all are equal; booleans as words."""
    array = np.asarray(value.splat_value) if value.is_splat else np.ascontiguousarray(value.array)
    kind = type_text(value.type)
    if array.size == 0:
        return f"dense<> : {kind}"
    if array.dtype == np.bool_:
        return f"dense<{str(array.tolist()).lower()}> : {kind}"
    return f'dense<"0x{array.tobytes().hex().upper()}"> : {kind}'

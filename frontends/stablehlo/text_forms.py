"""The pretty spellings of StableHLO's ops: one common form, and the ops that have their own.

A form is a function of the reader, which stands behind the op's name, and that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import tree
from .scanner import IDENTIFIER, NUMBER, SKIP, VALUE

if TYPE_CHECKING:
    from .text import TextReader

_FORMAT = re.compile(r"e(\d+)m(\d+)")
_VALUE_OR_OTHER = re.compile(SKIP + r"(%[\w$.\-]+(?:#\d+)?|[A-Za-z_$][\w$.]*|.)", re.S)

KEYWORDS: dict[tuple[str, str], str] = {
    ("iota", "dim"): "iota_dimension",
    ("dynamic_iota", "dim"): "iota_dimension",
    ("get_dimension_size", "dim"): "dimension",
    ("set_dimension_size", "dim"): "dimension",
    ("concatenate", "dim"): "dimension",
    ("broadcast_in_dim", "dims"): "broadcast_dimensions",
    ("dynamic_broadcast_in_dim", "dims"): "broadcast_dimensions",
    ("reverse", "dims"): "dimensions",
    ("transpose", "dims"): "permutation",
    ("broadcast", "sizes"): "broadcast_sizes",
    ("dynamic_slice", "sizes"): "slice_sizes",
    ("pad", "low"): "edge_padding_low",
    ("pad", "high"): "edge_padding_high",
    ("pad", "interior"): "interior_padding",
    ("fft", "type"): "fft_type",
    ("fft", "length"): "fft_length",
    ("rng", "distribution"): "rng_distribution",
    ("rng_bit_generator", "algorithm"): "rng_algorithm",
    ("einsum", "config"): "einsum_config",
    ("unary_einsum", "config"): "einsum_config",
}
"""(op, word before `=`) -> attribute."""

_ENUMS = ("fft_type", "rng_distribution", "rng_algorithm")
_WINDOW = {
    "stride": "window_strides",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
}


def common_form(reader: TextReader, name: str) -> tree.Operation:
    """`%operand, (operands), @symbol, word, word = value, {attributes} : types`, in any order."""
    operation = tree.Operation(name)
    base = name.partition(".")[2]
    operands, attributes = operation.operands, operation.attributes
    words: list[str] = []
    start = reader.position
    while True:
        token = reader.read(_VALUE_OR_OTHER, "':' and types")
        first = token[0]
        if first == "%":
            reader.position -= len(token)
            operands.append(reader.use())
        elif first == ":":
            break
        elif first == ",":
            continue
        elif first == "(":
            reader.position -= 1
            _parenthesis(reader, base, operation)
        elif first == "{":
            reader.position -= 1
            attributes.update(reader.dictionary())
        elif first == '"':
            reader.position -= 1
            words.append(reader.string())
        elif first == "@":
            reader.position -= 1
            words.append(reader.symbol())
        elif first == "[":
            reader.position -= 1
            _bracket(reader, base, attributes)
        elif first == "<" and base in ("sharding_constraint", "reshard"):
            reader.position -= 1
            attributes["sharding"] = tree.Opaque("sdy.sharding", reader.balanced())
        elif not (first.isalpha() or first in "_$"):
            reader.fail(f"unexpected '{first}' in {name}", reader.position - 1)
        elif reader.accept("="):
            _keyword(reader, base, token, attributes)
        else:
            words.append(token)
    _place_words(reader, base, operation, words)
    operation.results = [
        tree.TreeValue(kind) for kind in _result_types(reader, base, operation, start)
    ]
    return operation


def _parenthesis(reader: TextReader, base: str, operation: tree.Operation) -> None:
    """`(%a, %b)`, the regions of a composite, or `(%a, k = 8)` of top_k."""
    if re.compile(r"\(" + SKIP + r"\{").match(reader.text, reader.position):
        operation.regions += reader.sequence("(", ")", reader.region)
        return

    def item() -> None:
        if reader.at("%"):
            operation.operands.append(reader.use())
        else:
            key = reader.identifier()
            reader.expect("=")
            _keyword(reader, base, key, operation.attributes)

    reader.sequence("(", ")", item)


def _bracket(reader: TextReader, base: str, attributes: dict[str, Any]) -> None:
    """`[0:4, 1:7:2]` of a slice, `[0]` of get_tuple_element."""
    if base == "slice":

        def bounds() -> tuple[int, int, int]:
            start = reader.integer()
            reader.expect(":")
            limit = reader.integer()
            return start, limit, reader.integer() if reader.accept(":") else 1

        ranges = reader.sequence("[", "]", bounds)
        for number, key in enumerate(("start_indices", "limit_indices", "strides")):
            attributes[key] = tuple(item[number] for item in ranges)
    elif base == "get_tuple_element":
        reader.expect("[")
        attributes["index"] = tree.Integer(reader.integer(), "i32")
        reader.expect("]")
    else:
        reader.fail(f"unexpected '[' in {base}")


def _integers(reader: TextReader) -> tuple[int, ...]:
    return tuple(reader.sequence("[", "]", reader.integer))


def _keyword(reader: TextReader, base: str, word: str, attributes: dict[str, Any]) -> None:
    """The value behind `word =`."""
    key = KEYWORDS.get((base, word), word)
    if base in ("dot_general", "dot") and word in ("batching_dims", "contracting_dims"):
        kind = word.removesuffix("_dims")
        attributes[f"lhs_{kind}_dimensions"] = _integers(reader)
        reader.expect("x")
        attributes[f"rhs_{kind}_dimensions"] = _integers(reader)
    elif word == "precision":
        attributes["precision_config"] = tuple(reader.sequence("[", "]", reader.identifier))
    elif word == "algorithm" and base == "dot_general":
        reader.expect("<")
        attributes["algorithm"] = tree.Structured("dot_algorithm", reader.fields())
        reader.expect(">")
    elif word == "dim_numbers":
        attributes.update(reader.convolution_dimensions())
    elif word == "window":
        _window(reader, attributes)
    elif word == "format":
        text = reader.identifier()
        match = _FORMAT.fullmatch(text)
        if match is None:
            reader.fail(f"'{text}' is no floating-point format, which is written e5m10")
        attributes["exponent_bits"] = tree.Integer(int(match[1]), "i32")
        attributes["mantissa_bits"] = tree.Integer(int(match[2]), "i32")
    elif key in _ENUMS or word == "allowed_direction":
        attributes[key] = reader.identifier()
    elif reader.at("["):
        attributes[key] = _integers(reader)
    elif reader.at('"'):
        attributes[key] = reader.string()
    elif (number := NUMBER.match(reader.text, reader.position)) and "." in number[1]:
        reader.position = number.end()
        attributes[key] = tree.Float(float(number[1]), "f64")
    elif number:
        # Typed by the op: a `:` behind the number starts the op's types.
        attributes[key] = tree.Integer(reader.integer(), "i64")
    else:
        attributes[key] = reader.attribute()


def _window(reader: TextReader, attributes: dict[str, Any]) -> None:
    """`{stride = [..], pad = [[l, h]], lhs_dilate = [..], rhs_dilate = [..], reverse = [..]}`"""

    def entry() -> None:
        word = reader.identifier()
        reader.expect("=")
        if word == "pad":
            pairs = reader.sequence("[", "]", lambda: _integers(reader))
            attributes["padding"] = tuple(pairs)
        elif word == "reverse":
            flags = reader.sequence("[", "]", reader.boolean)
            attributes["window_reversal"] = tuple(flags)
        elif word in _WINDOW:
            attributes[_WINDOW[word]] = _integers(reader)
        else:
            reader.fail(f"a window has no '{word}'")

    reader.sequence("{", "}", entry)


def _place_words(
    reader: TextReader, base: str, operation: tree.Operation, words: list[str]
) -> None:
    """Words without `=` mean something in four ops; nothing is dropped silently elsewhere."""
    attributes = operation.attributes
    if base == "compare" and 1 <= len(words) <= 2:
        attributes["comparison_direction"] = words[0]
        if len(words) == 2:
            attributes["compare_type"] = words[1]
    elif base == "custom_call" and len(words) == 1:
        attributes["call_target_name"] = words[0]
    elif base == "composite" and len(words) == 1:
        attributes["name"] = words[0]
    elif words:
        reader.fail(f"unexpected '{words[0]}' in {operation.name}")


def _result_types(
    reader: TextReader, base: str, operation: tree.Operation, start: int
) -> list[tree.Type]:
    """After the `:` of a pretty form: the types of the results."""
    if reader.at("("):
        types = reader.sequence("(", ")", reader.type)
        if reader.accept("->"):
            reader.check_types(operation.operands, types, start)
            return reader.types()
        return types
    types = [reader.type()]
    while reader.accept(","):
        types.append(reader.type())
    if reader.accept("->"):
        reader.check_types(operation.operands, types, start)
        return reader.types()
    if base == "optimization_barrier":
        return types
    if len(types) == 1 and base in SAME_TYPES:
        reader.check_types(operation.operands, types * len(operation.operands), start)
    return types[-1:]


_SAME_TYPE_NAMES = """
    add and atan2 cbrt ceil cosine count_leading_zeros divide exponential exponential_minus_one
    floor log log_plus_one logistic maximum minimum multiply negate not or popcnt power remainder
    reverse round_nearest_afz round_nearest_even rsqrt shift_left shift_right_arithmetic
    shift_right_logical sign sine sqrt subtract tan tanh xor
"""
SAME_TYPES = frozenset(_SAME_TYPE_NAMES.split())
"""Ops whose one written type is also every operand's."""


def _module(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name)
    if reader.at("@"):
        operation.attributes["sym_name"] = reader.symbol()
    if reader.accept_word("attributes"):
        operation.attributes.update(reader.dictionary())
    operation.regions = [reader.region(isolated=True)]
    return operation


def _function(reader: TextReader, name: str) -> tree.Operation:
    """`func.func public @name(%a: t {attrs}) -> (t {attrs}) attributes {..} { ... }`"""
    operation = tree.Operation(name)
    attributes = operation.attributes
    for visibility in ("public", "private", "nested"):
        if reader.accept_word(visibility):
            attributes["sym_visibility"] = visibility
    attributes["sym_name"] = reader.symbol()
    arguments: list[tuple[str, tree.TreeValue]] = []
    argument_attributes: list[dict[str, Any]] = []

    def argument() -> None:
        label = ""
        if reader.at("%"):
            label = reader.read(VALUE, "an argument")
            reader.expect(":")
        value = tree.TreeValue(reader.type(), label)
        argument_attributes.append(reader.dictionary() if reader.at("{") else {})
        value.location = reader.location_handle()
        arguments.append((label, value))

    reader.sequence("(", ")", argument)
    types: list[tree.Type] = []
    result_attributes: list[dict[str, Any]] = []

    def result() -> None:
        types.append(reader.type())
        result_attributes.append(reader.dictionary() if reader.at("{") else {})

    if reader.accept("->"):
        if reader.at("("):
            reader.sequence("(", ")", result)
        else:
            types.append(reader.type())
            result_attributes.append({})
    if reader.accept_word("attributes"):
        attributes.update(reader.dictionary())
    inputs = tuple(value.type for _, value in arguments)
    attributes["function_type"] = tree.FunctionType(inputs, tuple(types))
    if any(argument_attributes):
        attributes["arg_attrs"] = tuple(argument_attributes)
    if any(result_attributes):
        attributes["res_attrs"] = tuple(result_attributes)
    if reader.at("{"):
        operation.regions = [reader.region(arguments, isolated=True)]
    else:
        operation.regions = []  # a declaration
    return operation


def _return(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name)
    start = reader.position
    while reader.at("%"):
        operation.operands.append(reader.use())
        if not reader.accept(","):
            break
    reader.attributes_into(operation)
    if operation.operands:
        reader.expect(":")
        types = [reader.type()]
        while reader.accept(","):
            types.append(reader.type())
        reader.check_types(operation.operands, types, start)
    return operation


def _call(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name, attributes={"callee": reader.symbol()})
    start = reader.position
    operation.operands = reader.sequence("(", ")", reader.use)
    reader.attributes_into(operation)
    reader.signature(operation, start)
    return operation


def _constant(reader: TextReader, name: str) -> tree.Operation:
    """`dense<..> : type`, attributes before the value, or the generic form without quotes."""
    operation = tree.Operation(name)
    if reader.at("("):
        reader.expect("(")
        reader.expect(")")
        if reader.accept("<"):
            operation.attributes.update(reader.dictionary())
            reader.expect(">")
        reader.attributes_into(operation)
        reader.signature(operation, reader.position)
        return operation
    reader.attributes_into(operation)
    start = reader.position
    value = reader.attribute()
    if not isinstance(value, tree.Elements):
        reader.fail("a constant is written dense<...> : type", start)
    operation.attributes["value"] = value
    kind: tree.Type = value.type
    if reader.accept("->"):
        kind = reader.type()
    operation.results = [tree.TreeValue(kind)]
    return operation


def _while(reader: TextReader, name: str) -> tree.Operation:
    """`(%it = %init, ..) : types attributes {..} cond { } do { }`; both regions take the names."""
    operation = tree.Operation(name)
    names: list[str] = []
    start = reader.position

    def carried() -> None:
        names.append(reader.read(VALUE, "a name"))
        reader.expect("=")
        operation.operands.append(reader.use())

    reader.sequence("(", ")", carried)
    types: list[tree.Type] = []
    if reader.accept(":"):
        types.append(reader.type())
        while reader.accept(","):
            types.append(reader.type())
    reader.check_types(operation.operands, types, start)
    if reader.accept_word("attributes"):
        operation.attributes.update(reader.dictionary())
    for word in ("cond", "do"):
        reader.expect_word(word)
        arguments = [(n, tree.TreeValue(t, n)) for n, t in zip(names, types, strict=True)]
        operation.regions.append(reader.region(arguments))
    operation.results = [tree.TreeValue(kind) for kind in types]
    return operation


def _reduce(reader: TextReader, name: str) -> tree.Operation:
    """`(%x init: %i), .. applies op across dimensions = [..]`, or with `reducer(..) {..}` last."""
    operation = tree.Operation(name)
    start = reader.position
    inputs: list[tree.TreeValue] = []
    initial: list[tree.TreeValue] = []
    while reader.accept("("):
        inputs.append(reader.use())
        reader.expect_word("init")
        reader.expect(":")
        initial.append(reader.use())
        reader.expect(")")
        reader.accept(",")
    operation.operands = inputs + initial
    applied = None
    if reader.accept_word("applies"):
        applied = reader.string() if reader.at('"') else reader.read(IDENTIFIER, "an operation")
    reader.expect_word("across")
    reader.expect_word("dimensions")
    reader.expect("=")
    operation.attributes["dimensions"] = _integers(reader)
    reader.attributes_into(operation)
    reader.signature(operation, start)
    if applied is not None:
        operation.location = reader.location_handle()
        operation.regions = [_applied_body(reader, applied, inputs, operation.location)]
        return operation
    reader.expect_word("reducer")
    first: list[tuple[str, tree.TreeValue]] = []
    second: list[tuple[str, tree.TreeValue]] = []
    while reader.accept("("):
        for side in (first, second):
            label = reader.read(VALUE, "an argument")
            reader.expect(":")
            value = tree.TreeValue(reader.type(), label)
            value.location = reader.location_handle()
            side.append((label, value))
            reader.accept(",")
        reader.expect(")")
    operation.regions = [reader.region(first + second)]
    return operation


def _applied_body(
    reader: TextReader, applied: str, inputs: list[tree.TreeValue], location: Any
) -> tree.Region:
    """The body that `applies stablehlo.add` is short for: scalars of the input's element type."""
    if len(inputs) != 1 or not isinstance(inputs[0].type, tree.Tensor):
        reader.fail("'applies' takes one tensor")
    scalar = tree.Tensor((), inputs[0].type.element)
    left, right, result = (tree.TreeValue(scalar) for _ in range(3))
    body = tree.Operation(applied, [left, right], [result])
    end = tree.Operation("stablehlo.return", [result])
    body.location = end.location = location
    return tree.Region([left, right], [body, end])


def _scan(reader: TextReader, name: str) -> tree.Operation:
    """`(%a, ..) inits(%b, ..) dimension = 0 attributes {..} { body } : (..) -> ..`"""
    operation = tree.Operation(name)
    start = reader.position
    operation.operands = reader.sequence("(", ")", reader.use)
    reader.expect_word("inits")
    operation.operands += reader.sequence("(", ")", reader.use)
    reader.expect_word("dimension")
    reader.expect("=")
    operation.attributes["dimension"] = tree.Integer(reader.integer(), "i64")
    if reader.accept_word("attributes"):
        operation.attributes.update(reader.dictionary())
    operation.regions = [reader.region()]
    reader.signature(operation, start)
    return operation


def _check(reader: TextReader, name: str) -> tree.Operation:
    """`check.expect_eq %a, %b : t`, `check.expect_eq_const %a, dense<..> : t` of test files."""
    operation = tree.Operation(name)
    while reader.at("%"):
        operation.operands.append(reader.use())
        reader.accept(",")
    while not reader.at(":"):
        if reader.at("dense"):
            operation.attributes["value"] = reader.attribute()
            reader.attributes_into(operation)
            return operation
        word = reader.identifier()
        reader.expect("=")
        _keyword(reader, "check", word, operation.attributes)
        reader.accept(",")
    reader.attributes_into(operation)
    if reader.accept(":"):
        reader.type()
        while reader.accept(","):
            reader.type()
    return operation


def _mesh(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name, attributes={"sym_name": reader.symbol()})
    reader.expect("=")
    operation.attributes["mesh"] = tree.Opaque("sdy.mesh", reader.balanced())
    reader.attributes_into(operation)
    return operation


def _manual_computation(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name)
    start = reader.position
    operation.operands = reader.sequence("(", ")", reader.use)
    _shardings_into(reader, operation)
    reader.expect_word("manual_axes")
    reader.expect("=")
    axes = f"<manual_axes{reader.balanced()}>"
    operation.attributes["manual_axes"] = tree.Opaque("sdy", axes)
    return _computation(reader, operation, start)


def _named_computation(reader: TextReader, name: str) -> tree.Operation:
    operation = tree.Operation(name)
    reader.expect("<")
    operation.attributes["name"] = reader.string()
    reader.expect(">")
    start = reader.position
    operation.operands = reader.sequence("(", ")", reader.use)
    _shardings_into(reader, operation)
    return _computation(reader, operation, start)


def _shardings_into(reader: TextReader, operation: tree.Operation) -> None:
    """`in_shardings=[..] out_shardings=[..]`, or one of them, or none."""
    for word in ("in_shardings", "out_shardings"):
        if reader.accept_word(word):
            reader.expect("=")
            text = f"<{reader.balanced()}>"
            operation.attributes[word] = tree.Opaque("sdy.sharding_per_value", text)


def _computation(reader: TextReader, operation: tree.Operation, start: int) -> tree.Operation:
    """`(%b: tensor<2xf32>) { .. } : (..) -> ..` of an operation whose operands begin at `start`."""
    arguments: list[tuple[str, tree.TreeValue]] = []

    def argument() -> None:
        label = reader.read(VALUE, "an argument")
        reader.expect(":")
        arguments.append((label, tree.TreeValue(reader.type(), label)))
        reader.location_handle()

    reader.sequence("(", ")", argument)
    operation.regions = [reader.region(arguments)]
    reader.attributes_into(operation)
    reader.signature(operation, start)
    return operation


FORMS: dict[str, Callable[[TextReader, str], tree.Operation]] = {
    "builtin.module": _module,
    "func.func": _function,
    "func.return": _return,
    "stablehlo.return": _return,
    "sdy.return": _return,
    "func.call": _call,
    "stablehlo.constant": _constant,
    "stablehlo.while": _while,
    "stablehlo.reduce": _reduce,
    "chlo.scan": _scan,
    "check.expect_eq": _check,
    "check.expect_eq_const": _check,
    "check.expect_close": _check,
    "check.expect_almost_eq": _check,
    "check.expect_almost_eq_const": _check,
    "check.expect_serialized_eq": _check,
    "sdy.mesh": _mesh,
    "sdy.manual_computation": _manual_computation,
    "sdy.named_computation": _named_computation,
}
"""Ops that have a spelling of their own; every other one has the common form."""

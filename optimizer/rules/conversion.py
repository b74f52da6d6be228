"""Rules for conversions between element types."""

from __future__ import annotations

from collections.abc import Iterator

from ...hlo.graph import Op, Value
from ...hlo.types import BF16, F16, F32, F64, I1, I8, I32, I64, UI8, ElementType, TensorType
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by

# mantissa bits (with the hidden one) and the range of exponents, for the types that nest plainly
_FLOATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127),
           "f64": (53, -1022, 1023)}  # fmt: skip


def holds(wide: ElementType, narrow: ElementType) -> bool:
    """Whether every value of `narrow` is exactly a value of `wide`."""
    if wide is narrow:
        return True
    if narrow.is_bool:
        return wide.is_integer or wide.name in _FLOATS
    if narrow.is_integer:
        bits = narrow.bits - (narrow.kind == "int")
        if wide.is_integer:
            signed_fits = wide.kind == "int" or narrow.kind == "uint"
            return signed_fits and wide.bits - (wide.kind == "int") >= bits
        return wide.name in _FLOATS and _FLOATS[wide.name][0] >= bits and wide.name != "f16"
    if narrow.name in _FLOATS and wide.name in _FLOATS:
        a, b = _FLOATS[narrow.name], _FLOATS[wide.name]
        # Subnormals: the wide type must reach the narrow one's last bit.
        return b[0] >= a[0] and b[2] >= a[2] and b[1] - b[0] <= a[1] - a[0]
    return False


def _line(element: ElementType) -> TensorType:
    return TensorType((64,), element)


def _identity_examples() -> Iterator[Example]:
    yield example("same", [_line(F32)], lambda b, x: b("negate", b("convert", x, type=_line(F32))))
    yield example("other", [_line(F32)], lambda b, x: b.convert(x, F16), fires=False)


@structural("convert-identity", "convert", examples=_identity_examples)
def convert_identity(op: Op, b: Rewriter) -> Value | None:
    """convert x -> x [same type]"""
    return op.operands[0] if op.operands[0].type is op.results[0].type else None


def _pair_examples() -> Iterator[Example]:
    for first, second, third in (
        (BF16, F32, BF16), (F16, F32, F16), (F32, F64, F32), (I8, F32, I8), (UI8, I32, UI8),
        (I1, F32, I1), (I32, F64, I32), (BF16, F32, F64), (I8, I32, F32), (I1, I32, F32),
        (UI8, I32, I64), (F16, F32, F64), (I8, I32, I64),
    ):  # fmt: skip
        yield example(
            f"{first} {second} {third}",
            [_line(first)],
            lambda b, x, second=second, third=third: b(
                "abs" if third.kind in ("float", "int") else "not",
                b.convert(b.convert(x, second), third),
            ),
        )
    lossy = ((F32, BF16, F32), (I32, F32, I32), (I32, I8, I32), (F64, F32, F16), (I8, F32, UI8))
    for first, second, third in lossy:
        yield example(
            f"{first} {second} {third}",
            [_line(first)],
            lambda b, x, second=second, third=third: b.convert(b.convert(x, second), third),
            fires=False,
        )


@structural("convert-of-convert", "convert", examples=_pair_examples)
def convert_of_convert(op: Op, b: Rewriter) -> Value | None:
    """convert(convert(x, U), V) -> convert(x, V) [U holds every value of x]"""
    inner = made_by(op.operands[0], "convert")
    if inner is None:
        return None
    source = inner.operands[0]
    first, second, third = source.element, inner.type.element, op.type.element
    if not holds(second, first):
        return None
    if (first.is_float or second.is_float) and third.is_integer and not holds(third, first):
        return None  # floats out of range become the nearest integer, integers wrap around
    return b.convert(source, third)


def _bitcast_examples() -> Iterator[Example]:
    ints = _line(I32)
    yield example(
        "there and back",
        [_line(F32)],
        lambda b, x: b(
            "abs", b("bitcast_convert", b("bitcast_convert", x, type=ints), type=x.type)
        ),
    )
    yield example("same", [ints], lambda b, x: b("negate", b("bitcast_convert", x, type=ints)))


@structural("bitcast-convert-pair", "bitcast_convert", examples=_bitcast_examples)
def bitcast_convert_pair(op: Op, b: Rewriter) -> Value | None:
    """bitcast(bitcast x) -> bitcast x; bitcast x -> x [same type]"""
    source = op.operands[0]
    if source.type is op.results[0].type:
        return source
    inner = made_by(source, "bitcast_convert")
    if inner is None:
        return None
    if inner.operands[0].type is op.results[0].type:
        return inner.operands[0]
    return None


def _predicate_examples() -> Iterator[Example]:
    for element in (F32, I32, UI8):
        for direction in ("NE", "EQ"):
            for number in (0, 1):
                yield example(
                    f"{direction} {number} {element}",
                    [_line(I1)],
                    lambda b, p, e=element, d=direction, n=number: b.compare(
                        d, b.convert(p, e), b.constant(n, _line(e))
                    ),
                )
    yield example(
        "other number",
        [_line(I1)],
        lambda b, p: b.compare("EQ", b.convert(p, F32), b.constant(2, _line(F32))),
        fires=False,
    )


@structural("compare-of-converted-predicate", "compare", examples=_predicate_examples)
def compare_of_converted_predicate(op: Op, b: Rewriter) -> Value | None:
    """convert p != 0, convert p == 1 -> p; the opposites -> not p"""
    if op.comparison_direction not in ("EQ", "NE"):
        return None
    inner = made_by(op.operands[0], "convert")
    if inner is None or not inner.operands[0].element.is_bool:
        return None
    number = b.scalar(op.operands[1])
    if number is None or (number != 0 and number != 1):
        return None
    predicate = inner.operands[0]
    if predicate.type is not op.results[0].type:
        return None
    plain = (op.comparison_direction == "NE") == bool(number == 0)
    return predicate if plain else b("not", predicate)


def _rounded_examples() -> Iterator[Example]:
    for name in ("floor", "ceil", "round_nearest_even", "round_nearest_afz"):
        yield example(name, [_line(I8)], lambda b, x, name=name: b(name, b.convert(x, F32)))
    yield example("float", [_line(F16)], lambda b, x: b("floor", b.convert(x, F32)), fires=False)


@structural(
    "rounding-of-integer", "floor", "ceil", "round_nearest_even", "round_nearest_afz",
    examples=_rounded_examples,
)  # fmt: skip
def rounding_of_integer(op: Op, b: Rewriter) -> Value | None:
    """floor(convert integer) -> convert integer"""
    inner = made_by(op.operands[0], "convert")
    if inner is None or inner.operands[0].element.kind not in ("int", "uint", "bool"):
        return None
    return op.operands[0]


def _compare_type_examples() -> Iterator[Example]:
    for element, kind in ((F32, "FLOAT"), (I32, "SIGNED"), (UI8, "UNSIGNED")):
        yield example(
            kind,
            [_line(element)] * 2,
            lambda b, x, y, kind=kind: b(
                "compare", x, y, comparison_direction="LT", compare_type=kind
            ),
        )
    yield example(
        "total order",
        [_line(F32)] * 2,
        lambda b, x, y: b("compare", x, y, comparison_direction="LT", compare_type="TOTALORDER"),
        fires=False,
    )


@structural("compare-type-implied", "compare", examples=_compare_type_examples,
            lowers="attributes")  # fmt: skip
def compare_type_implied(op: Op, b: Rewriter) -> Value | None:
    """compare without the type of comparison that the element type implies"""
    if op.attributes.get("compare_type", "NOTYPE") in ("NOTYPE", "TOTALORDER"):
        return None
    return b.compare(op.comparison_direction, *op.operands)


RULES: tuple[Rule, ...] = (
    convert_identity,
    convert_of_convert,
    bitcast_convert_pair,
    compare_type_implied,
    compare_of_converted_predicate,
    rounding_of_integer,
)

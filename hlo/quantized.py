"""What quantised values mean: programs on them become programs on their stored integers.

    real = scale * (stored - zero point)
    stored = round_nearest_even(clamp(minimum, real / scale + zero point, maximum))

`legalized` writes both formulas out as plain operations in the expressed type, as the
specification has them (`dequantize_op_quantize`), with two exceptions, which are exact where those
round: products and convolutions sum integers (of real rows and quantised columns: unscaled ones),
and operations that choose between values of one quantisation (maximum, compare, ...) choose between
stored integers. The interpreter and every backend run the legalised module, so there is one
arithmetic of quantised values. Inputs and results of the program are the stored integers; its
signature keeps the quantisation of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .build import Builder
from .deciding import is_decided
from .errors import UserError
from .graph import EXACT, Dense, Module, Op, Region, Value, Weight
from .ops import contraction, convolution
from .ops.annotation import ANNOTATIONS
from .signature import Signature
from .types import (
    F32,
    F64,
    I8,
    I32,
    I64,
    UI8,
    QuantizedType,
    TensorType,
    TupleType,
    Type,
)

# Sources of real numbers.
_REAL = frozenset({"iota", "dynamic_iota"})
# Operations that move stored integers, beside those whose pattern or bodies say so.
_MOVES = frozenset(
    {"select", "optimization_barrier", "custom_call", "all_gather", "all_to_all",
     "collective_broadcast", "collective_permute", "send", "recv", "infeed", "outfeed",
     "chlo.top_k", *ANNOTATIONS}
)  # fmt: skip
_CHOOSE = frozenset({"maximum", "minimum", "clamp", "compare"})
_INT32 = 1 << 31


def is_quantized(module: Module) -> bool:
    """Whether any value of the module is quantised."""
    return any(map(_of, module.types))


def legalized(module: Module) -> Module:
    """The same program on stored integers; itself if nothing in it is quantised."""
    if not is_quantized(module):
        return module
    functions = {
        name: function.with_body(_region(function.body, {}))
        for name, function in module.functions.items()
    }
    weights = {name: _stored_weight(weight) for name, weight in module.weights.items()}
    signature = _signature(module)
    return replace(module, functions=functions, weights=weights, signature=signature)


def _of(type: Type) -> bool:
    """Whether a type holds quantised values."""
    if isinstance(type, TupleType):
        return any(map(_of, type.members))
    return isinstance(type, TensorType) and isinstance(type.element, QuantizedType)


def stored_type(type: Type) -> Type:
    """The type of what is in memory for a value of `type`."""
    if isinstance(type, TupleType):
        return TupleType(map(stored_type, type.members))
    if isinstance(type, TensorType) and isinstance(type.element, QuantizedType):
        stored = type.with_element(type.element.storage)
        return stored.with_sharding(type.sharding)
    return type


def _stored_weight(weight: Weight) -> Weight:
    if not _of(weight.type):
        return weight
    kind = stored_type(weight.type)
    assert isinstance(kind, TensorType)
    return Weight(weight.name, lambda: weight.array, kind, weight.aliases, weight.inverse)


def _signature(module: Module) -> Signature | None:
    """The signature with storage types, and beside them what they stand for."""
    body = module.body
    if not any(_of(value.type) for value in (*body.arguments, *body.results)):
        return module.signature
    signature = module.signature or Signature.plain(_faces(body.arguments), _faces(body.results))
    return replace(
        signature,
        arguments=tuple(map(_stored_leaf, signature.arguments, body.arguments)),
        results=tuple(map(_stored_leaf, signature.results, body.results)),
    )


def _faces(values: Sequence[Value]) -> list[tuple[Sequence[Any], str]]:
    return [(value.tensor.dims, value.element.name) for value in values]


def _stored_leaf(leaf: Any, value: Value) -> Any:
    kind = value.tensor.element
    if not isinstance(kind, QuantizedType):
        return leaf
    return replace(leaf, element=kind.storage.name, quantization=kind.name)


def _region(region: Region, outer: Mapping[Value, Value]) -> Region:
    b = Builder(check=False)
    fresh = b.arguments([stored_type(value.type) for value in region.arguments])
    values = {**outer, **dict(zip(region.arguments, fresh, strict=True))}
    for op in region.ops:
        with b.at(op.origin):
            results = _operation(b, op, [values[value] for value in op.operands], values)
        values.update(zip(op.results, results, strict=True))
    return b.region([values[value] for value in region.results])


def _operation(
    b: Builder, op: Op, operands: Sequence[Value], values: Mapping[Value, Value]
) -> Sequence[Value]:
    """The results of an operation on stored operands."""
    if any(_of(value.type) for value in (*op.operands, *op.results)):
        legalize = _LEGALIZE.get(op.name)
        if legalize is not None:
            return legalize(b, op, operands)
        if not _moves(op):
            return _through_reals(b, op, operands)
        _require_one_quantization(op)
    attributes = dict(op.attributes)
    if op.name == "constant" and _of(op.type):
        dense = op.attributes["value"]
        attributes["value"] = Dense(op.type.with_element(op.type.element.storage), dense.array)
    regions = [_region(region, values) for region in op.regions]
    types = [stored_type(value.type) for value in op.results]
    return b.op(op.name, operands, attributes, regions, types).results


def _moves(op: Op) -> bool:
    """Whether an operation gives integers that it was given, or what its bodies make of them."""
    if op.name in _REAL:
        return False
    patterns = ("index", "control", "source")
    return bool(op.regions) or op.name in _MOVES or op.definition.pattern in patterns


def _require_one_quantization(op: Op) -> None:
    """UserError where an operation that moves values would give them another meaning."""
    if op.definition.pattern not in ("elementwise", "index") or op.name == "bitcast_convert":
        return
    kinds = [value.element for value in (*op.operands, *op.results) if _of(value.type)]
    if len({(kind.storage, *_parameters(kind)) for kind in kinds}) > 1:
        listed = ", ".join(dict.fromkeys(map(str, kinds)))
        raise UserError(
            f"{op.place}{op.name}: operands and results must have one quantisation, got {listed}; "
            "change it with uniform_quantize"
        )


def _parameters(kind: QuantizedType) -> tuple[Any, ...]:
    """Scales and zero points; one pair where all along the axis are the same."""
    pairs = tuple(zip(kind.scales, kind.zero_points, strict=True))
    return pairs[:1] if len(set(pairs)) == 1 else pairs


# Real numbers and back.


def _exactly(b: Builder, name: str, *operands: Value) -> Value:
    """An operation whose rounding decides which integer comes out: no licence may change it."""
    return b.op(name, operands, {EXACT: True}).result


def _spread(b: Builder, numbers: Sequence[Any], like: Value, axis: int | None) -> Value:
    """One number everywhere, or one for each position along an axis, of the dims of `like`."""
    kind = like.tensor
    if len(set(numbers)) == 1:
        if is_decided(kind):
            return b.constant(numbers[0], kind)
        row, places = b.constant(numbers[0], TensorType((), kind.element)), ()
    else:
        assert axis is not None
        vector = np.asarray(numbers, np.float64 if kind.element.is_float else np.int64)
        row, places = b.constant(vector, TensorType((len(numbers),), kind.element)), (axis,)
    if is_decided(kind):
        return b.broadcast(row, kind.dims, places)
    sizes = [b.reshape(b("get_dimension_size", like, dimension=d), (1,)) for d in range(kind.rank)]
    shape = b("concatenate", *sizes, dimension=0)
    return b("dynamic_broadcast_in_dim", row, shape, type=kind, broadcast_dimensions=places)


def dequantized(b: Builder, value: Value, kind: QuantizedType) -> Value:
    """(stored - zero point) * scale in the expressed type."""
    real = b.convert(_shifted(b, value, kind), kind.expressed)
    return b("multiply", real, _spread(b, kind.scales, real, kind.axis))


def _shifted(b: Builder, value: Value, kind: QuantizedType) -> Value:
    """stored - zero point, exactly, in the expressed type if that can hold it."""
    expressed = kind.expressed
    if not any(kind.zero_points):
        return value
    digits = ml_dtypes.finfo(expressed.dtype).nmant + 1
    if kind.storage.bits <= digits:
        value = b.convert(value, expressed)
    else:
        value = b.convert(value, I32 if kind.storage.bits < 32 else I64)
    return b("subtract", value, _spread(b, kind.zero_points, value, kind.axis))


def quantized(b: Builder, real: Value, kind: QuantizedType) -> Value:
    """round_nearest_even(clamp(minimum, real / scale + zero point, maximum)) as storage."""
    real = b.convert(real, kind.expressed)
    steps = _exactly(b, "divide", real, _spread(b, kind.scales, real, kind.axis))
    if any(kind.zero_points):
        steps = _exactly(b, "add", steps, _spread(b, kind.zero_points, real, kind.axis))
    scalar = TensorType((), kind.expressed)
    low, high = b.constant(kind.minimum, scalar), b.constant(kind.maximum, scalar)
    whole = b("round_nearest_even", b("clamp", low, steps, high))
    return b.convert(whole, kind.storage)


def _as_real(b: Builder, value: Value, kind: Any) -> Value:
    return dequantized(b, value, kind) if isinstance(kind, QuantizedType) else value


def _as_declared(b: Builder, real: Value, wanted: TensorType) -> Value:
    kind = wanted.element
    return quantized(b, real, kind) if isinstance(kind, QuantizedType) else real


def _real_type(type: Type) -> Type:
    if _of(type):
        assert isinstance(type, TensorType)
        return type.with_element(type.element.expressed)
    return type


def _through_reals(b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    """Dequantise, compute, quantise."""
    if op.name in _CHOOSE and len({value.element for value in _quantizable(op)}) == 1:
        types = [stored_type(value.type) for value in op.results]
        attributes = {key: v for key, v in op.attributes.items() if key != "compare_type"}
        return b.op(op.name, operands, attributes, (), types).results
    reals = [
        _as_real(b, value, old.element) for value, old in zip(operands, op.operands, strict=True)
    ]
    types = [_real_type(value.type) for value in op.results]
    results = b.op(op.name, reals, {**op.attributes, EXACT: True}, (), types).results
    wanted = [value.tensor for value in op.results]
    return [_as_declared(b, real, kind) for real, kind in zip(results, wanted, strict=True)]


def _quantizable(op: Op) -> Sequence[Value]:
    """The values of an operation that chooses, but for the truth that compare gives."""
    return op.operands if op.name == "compare" else (*op.operands, *op.results)


def _quantize(b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    real = _as_real(b, operands[0], op.operands[0].element)
    return [quantized(b, real, op.type.element)]


def _dequantize(b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    return [dequantized(b, operands[0], op.operands[0].element)]


def _bitcast(b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    kind = stored_type(op.type)
    if kind is operands[0].type:
        return operands
    return b.op(op.name, operands, op.attributes, (), [kind]).results


# Sums of products.


class _Side(NamedTuple):
    """One operand of a product: stored integers of at most 8 bits, and what they stand for."""

    value: Value
    kind: QuantizedType

    @property
    def largest(self) -> int:
        """The largest magnitude of stored - zero point."""
        kind = self.kind
        edges = (kind.minimum, kind.maximum)
        return max(abs(edge - zero) for edge in edges for zero in kind.zero_points)


def _contraction(b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    """dot_general and convolution: integer sums where both sides have at most 8 bits."""
    kinds = [value.element for value in op.operands]
    if _scales_last(op):
        whole = b.convert(_shifted(b, operands[1], kinds[1]), op.type.element)
        sums = b.op(op.name, [operands[0], whole], op.attributes, (), [op.type]).result
        return [b("multiply", sums, _spread(b, kinds[1].scales, sums, _column_dim(op)[1]))]
    sides = [
        _Side(_octets(b, value), kind)
        for value, kind in zip(operands, kinds, strict=True)
        if isinstance(kind, QuantizedType) and kind.storage.bits <= 8
    ]
    column = _column_dim(op)
    depth = _depth(op)
    if (
        len(sides) < 2
        or kinds[0].axis is not None
        or (kinds[1].axis is not None and kinds[1].axis != column[0])
        or not op.operands[0].tensor.is_static
        or not op.operands[1].tensor.is_static
        or depth * sides[0].largest * sides[1].largest >= _INT32
    ):
        return _through_reals(b, op, operands)
    total = (_dot_sum if op.name == "dot_general" else _convolution_sum)(b, op, *sides)
    left, right = kinds
    scales = [left.scales[0] * scale for scale in right.scales]
    result = op.type.element
    if isinstance(result, QuantizedType) and _counts_in(result, scales, column[1]):
        return [_as_counted(b, total, result)]
    expressed = result.expressed if isinstance(result, QuantizedType) else result
    real = b.convert(total, expressed)
    real = _exactly(b, "multiply", real, _spread(b, scales, real, column[1]))
    return [_as_declared(b, real, op.type)]


def _scales_last(op: Op) -> bool:
    """Whether real rows meet quantised columns, whose scales are factors of the result.

    Behind the sum they round once, and the stored integers are read as they are.
    """
    left, right = (value.element for value in op.operands)
    result = op.type.element
    return (
        left is result
        and result in (F32, F64)
        and isinstance(right, QuantizedType)
        and right.expressed is result
        and right.axis in (None, _column_dim(op)[0])
    )


def _octets(b: Builder, value: Value) -> Value:
    """Stored integers in whole bytes."""
    if value.element.bits == 8:
        return value
    return b.convert(value, UI8 if value.element.kind == "uint" else I8)


def _column_dim(op: Op) -> tuple[int, int]:
    """The dim of the right side that may have scales of its own, and its place in the result."""
    if op.name == "convolution":
        return op.kernel_output_feature_dimension, op.output_feature_dimension
    kind = op.operands[1].element
    free = contraction.free_dims(op, "rhs")
    if isinstance(kind, QuantizedType) and kind.axis in free:
        place = op.type.rank - len(free) + free.index(kind.axis)
        return kind.axis, place
    return -1, -1


def _depth(op: Op) -> int:
    """How many products a sum has; 0 where a dimension is not fixed."""
    rhs = op.operands[1].tensor
    if not rhs.is_static:
        return 0
    if op.name == "convolution":
        return rhs.size // max(1, rhs.dims[op.kernel_output_feature_dimension])
    return int(np.prod([rhs.dims[d] for d in op.rhs_contracting_dimensions], dtype=np.int64))


def _counts_in(result: QuantizedType, scales: Sequence[float], column: int) -> bool:
    """Whether the sum of integer products is the stored result already, but for the zero point."""
    if result.axis not in (None, column):
        return False
    wanted = [np.float32(scale) for scale in result.scales]
    found = [np.float32(scale) for scale in scales]
    return wanted == found or (len(set(wanted)) == 1 and set(wanted) == set(found))


def _as_counted(b: Builder, total: Value, kind: QuantizedType) -> Value:
    if any(kind.zero_points):
        total = b("add", total, _spread(b, kind.zero_points, total, kind.axis))
    if (kind.minimum, kind.maximum) != (-_INT32, _INT32 - 1):
        scalar = TensorType((), I32)
        low, high = max(kind.minimum, -_INT32), min(kind.maximum, _INT32 - 1)
        total = b("clamp", b.constant(low, scalar), total, b.constant(high, scalar))
    return b.convert(total, kind.storage)


def _corrected(
    b: Builder,
    product: Value,
    left: _Side,
    right: _Side,
    column: int,
    depth: int,
    sums: tuple[Callable[[], Value], Callable[[], Value]],
) -> Value:
    """sum (l - zl)(r - zr) from sum l r; `sums` give sum r and sum l, spread over the result."""
    (zero,), zeros = left.kind.zero_points, right.kind.zero_points
    kind = product.tensor
    if zero:
        scaled = b("multiply", sums[0](), b.constant(zero, kind))
        product = b("subtract", product, scaled)
    if any(zeros):
        scaled = b("multiply", sums[1](), _spread(b, zeros, product, column))
        product = b("subtract", product, scaled)
    if zero and any(zeros):
        constants = [depth * zero * other for other in zeros]
        product = b("add", product, _spread(b, constants, product, column))
    return product


def _sum(b: Builder, value: Value, gone: Sequence[int]) -> Value:
    """The sum over dims, as a product with ones: known beforehand where the value is a weight."""
    kept = [d for d in range(value.rank) if d not in gone]
    ones = b.constant(1, TensorType([value.dims[d] for d in gone], value.element))
    return b(
        "dot_general", value, ones, type=TensorType([value.dims[d] for d in kept], I32),
        lhs_contracting_dimensions=tuple(gone), rhs_contracting_dimensions=tuple(range(len(gone))),
    )  # fmt: skip


def _dot_sum(b: Builder, op: Op, left: _Side, right: _Side) -> Value:
    kind = op.type.with_element(I32)
    product = b("dot_general", left.value, right.value, type=kind, **op.attributes)
    count = len(op.lhs_batching_dimensions)
    rows = contraction.free_dims(op, "lhs")

    def over(side: str, value: Value, places: Sequence[int]) -> Value:
        """The sum over the contracting dims, where it stands in the result."""
        gone = getattr(op, f"{side}_contracting_dimensions")
        batch = getattr(op, f"{side}_batching_dimensions")
        free = contraction.free_dims(op, side)
        total = _sum(b, value, gone)
        kept = [d for d in range(value.rank) if d not in gone]
        place = {d: i for i, d in enumerate(batch)} | dict(zip(free, places, strict=True))
        order = sorted(range(len(kept)), key=lambda i: place[kept[i]])
        total = b.transpose(total, order)
        return b.broadcast(total, kind.dims, [place[kept[i]] for i in order])

    first = count + len(rows)
    return _corrected(
        b, product, left, right, _column_dim(op)[1], _depth(op),
        (
            lambda: over("rhs", right.value, range(first, kind.rank)),
            lambda: over("lhs", left.value, range(count, first)),
        ),
    )  # fmt: skip


def _convolution_sum(b: Builder, op: Op, left: _Side, right: _Side) -> Value:
    """The convolution of integers; what pads the image stands for the real number zero."""
    attributes = dict(op.attributes)
    image = left.value
    _, padding, base, _, _ = convolution.window_attributes(op)
    (zero,) = left.kind.zero_points
    if zero and (any(map(any, padding)) or any(step > 1 for step in base)):
        edges: list[list[int]] = [[0] * image.rank for _ in range(3)]
        for axis, d in enumerate(op.input_spatial_dimensions):
            edges[0][d], edges[1][d] = padding[axis]
            edges[2][d] = base[axis] - 1
        fill = b.constant(zero, TensorType((), image.element))
        low, high, interior = map(tuple, edges)
        image = b(
            "pad", image, fill, edge_padding_low=low, edge_padding_high=high,
            interior_padding=interior,
        )  # fmt: skip
        attributes = {k: v for k, v in attributes.items() if k not in ("padding", "lhs_dilation")}
    kind = op.type.with_element(I32)
    product = b("convolution", image, right.value, type=kind, **attributes)
    feature, output = op.kernel_output_feature_dimension, op.output_feature_dimension

    def kernels() -> Value:
        gone = tuple(d for d in range(right.value.rank) if d != feature)
        total = _sum(b, right.value, gone)
        return b.broadcast(total, kind.dims, (output,))

    def windows() -> Value:
        """A convolution with one kernel of ones per group."""
        groups = max(op.feature_group_count, op.batch_group_count)
        dims = list(right.value.dims)
        each, dims[feature] = dims[feature] // groups, groups
        ones = b.constant(1, TensorType(dims, right.value.element))
        some = list(kind.dims)
        some[output] = groups
        total = b("convolution", image, ones, type=TensorType(some, I32), **attributes)
        split = (*some[: output + 1], each, *some[output + 1 :])
        places = [d + (d > output) for d in range(kind.rank)]
        return b.reshape(b.broadcast(total, split, places), kind.dims)

    return _corrected(b, product, left, right, output, _depth(op), (kernels, windows))


_LEGALIZE: dict[str, Callable[[Builder, Op, Sequence[Value]], Sequence[Value]]] = {
    "uniform_quantize": _quantize,
    "uniform_dequantize": _dequantize,
    "bitcast_convert": _bitcast,
    "dot_general": _contraction,
    "convolution": _contraction,
}

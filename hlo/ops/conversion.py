"""Operations that change the element type: convert, bitcast_convert, complex parts, quantising."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..access import Access, IterationKind, Space, identity
from ..factors import FactorBuilder, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..types import (
    BF16,
    C64,
    C128,
    F8E4M3FN,
    F8E5M2,
    F16,
    F32,
    F64,
    I1,
    I4,
    I8,
    I32,
    I64,
    UI8,
    UI32,
    QuantizedType,
    TensorType,
    Type,
    real_type,
    tensor_of,
)
from . import numerics
from .clauses import any_result, result_element, same_dims
from .examples import hostile, i8


class Convert(OpDefinition, name="convert"):
    """result = operand in the result's element type; rounds to nearest even, saturates, wraps."""

    pattern = "elementwise"
    operand = operand()
    C1 = constraint(
        "operand and result have the same dimensions",
        any_result(lambda o: same_dims(o.operand.dims, o.result.dims)),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.asarray(numerics.convert(arrays[0], o.result.element))

    def cases(self) -> Iterator[Case]:
        kinds = (I1, I4, I8, I32, I64, UI8, UI32, BF16, F16, F32, F64, F8E5M2, F8E4M3FN, C64)
        for source in kinds:
            (values,) = hostile(source, 1)
            for target in kinds:
                result = (tensor_of(values).with_element(target),)
                name = f"convert_{source.name}_to_{target.name}"
                yield Case(name, (values,), result_types=result)
        halfway = np.array([1 + 2**-8 + 2**-30, 1 + 2**-8, -(1 + 2**-8 + 2**-30)])
        yield Case(
            "convert_rounds_once", (halfway,), result_types=(tensor_of(halfway).with_element(BF16),)
        )


class BitcastConvert(OpDefinition, name="bitcast_convert"):
    """result = operand's bits as another type; a narrower type adds a last dimension."""

    pattern = "elementwise"
    operand = operand()
    C1 = constraint(
        "dimensions agree, but for a last one that holds the ratio of the widths",
        any_result(lambda o: _bitcast_fits(o)),
    )
    C2 = constraint(
        "operand and result are both complex or both not complex",
        any_result(lambda o: o.operand.element.is_complex == o.result.element.is_complex),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        (x,) = arrays
        source, target = o.operand.element, o.result.element
        if source.bits == target.bits:
            return x.view(target.dtype) if source.bits >= 8 else _regroup(x, source, target)
        return _regroup(x, source, target)

    def access(self, o: Op) -> Access | None:
        operand, result = o.operand.tensor, o.type
        space = Space(result.dims)
        if operand.rank > result.rank:  # a last dim of parts becomes one element
            parts = space.inner(operand.dims[-1], IterationKind.GATHER)
            return space.access((*identity(result.rank), parts))
        return space.access(identity(operand.rank))

    def shard(self, o: Op) -> Factors | None:
        return FactorBuilder(o).batch(min(o.operand.rank, o.type.rank)).build()

    def cases(self) -> Iterator[Case]:
        (floats,) = hostile(F32, 1)
        for target in (I32, UI32):
            result = (tensor_of(floats).with_element(target),)
            yield Case(f"bitcast_f32_to_{target.name}", (floats,), result_types=result)
        narrower = (TensorType((len(floats), 4), I8),)
        yield Case("bitcast_f32_to_i8", (floats,), result_types=narrower)
        bytes_ = np.arange(8, dtype=np.int8).reshape(2, 4)
        yield Case("bitcast_i8_to_i32", (bytes_,), result_types=(TensorType((2,), I32),))
        yield Case("bitcast_i8_to_i4", (bytes_,), result_types=(TensorType((2, 4, 2), I4),))


def _bitcast_fits(o: Op) -> bool:
    operand, result = o.operand.tensor, o.result.tensor
    wide, narrow = operand.element.bits, result.element.bits
    if wide == narrow:
        return same_dims(operand.dims, result.dims)
    if wide > narrow:
        return same_dims((*operand.dims, wide // narrow), result.dims)
    return same_dims(operand.dims, (*result.dims, narrow // wide))


def _regroup(x: Any, source: Any, target: Any) -> Any:
    """Bits of `source` elements, least significant first, cut into `target` elements."""
    octets = np.ascontiguousarray(x).reshape(*x.shape, 1).view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., : source.bits]
    if source.bits >= target.bits:
        groups = bits.reshape(*x.shape, source.bits // target.bits, target.bits)
        dims = groups.shape[:-1] if source.bits > target.bits else x.shape
    else:
        groups = bits.reshape(*x.shape[:-1], target.bits)
        dims = x.shape[:-1]
    stored = np.packbits(groups, axis=-1, bitorder="little")
    return np.ascontiguousarray(stored).view(target.dtype).reshape(dims)


class ReducePrecision(OpDefinition, name="reduce_precision"):
    """result = operand rounded to a float with so many exponent and mantissa bits, and back."""

    pattern = "elementwise"
    operand = operand()
    exponent_bits = attribute(int)
    mantissa_bits = attribute(int)
    C2 = constraint("1 <= exponent_bits", lambda o: o.exponent_bits >= 1)
    C3 = constraint("0 <= mantissa_bits", lambda o: o.mantissa_bits >= 0)
    C4 = constraint("operand is a float tensor", lambda o: o.operand.element.is_float)

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return reduced_precision(arrays[0], o.exponent_bits, o.mantissa_bits)

    def cases(self) -> Iterator[Case]:
        for element in (F32, F64, F16, BF16):
            (values,) = hostile(element, 1)
            for exponent, mantissa in ((5, 10), (5, 7), (8, 7), (4, 3), (3, 0), (11, 52)):
                attributes = {"exponent_bits": exponent, "mantissa_bits": mantissa}
                yield Case(f"reduce_e{exponent}m{mantissa}_{element.name}", (values,), attributes)


def reduced_precision(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Rounds to nearest even; too large becomes infinite, too small a signed zero."""
    if x.dtype.itemsize == 1:
        # Such a float has no more exponents than its own, and f32 holds what it has.
        own = ml_dtypes.finfo(x.dtype).nexp
        wide = reduced_precision(
            numerics.wide(x), 8 if exponent_bits >= own else exponent_bits, mantissa_bits
        )
        return numerics.narrow(wide, x.dtype)
    limits = _layout(x.dtype)
    total, source_exponent, source_mantissa = limits
    kind = np.dtype(f"u{total // 8}")
    bits = np.ascontiguousarray(x).view(kind).reshape(x.shape).astype(np.uint64)
    sign = np.uint64(1 << (total - 1))
    exponent_mask = np.uint64(((1 << source_exponent) - 1) << source_mantissa)
    not_a_number = (bits & ~sign & np.uint64((1 << total) - 1)) > exponent_mask
    result = bits
    if mantissa_bits < source_mantissa:
        cut = source_mantissa - mantissa_bits
        last = (result >> np.uint64(cut)) & np.uint64(1)
        result = result + last + np.uint64((1 << (cut - 1)) - 1)
        result = result & ~np.uint64((1 << cut) - 1)
    if exponent_bits < source_exponent:
        bias, reduced = (1 << (source_exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = result & exponent_mask
        too_large = exponent > np.uint64((bias + reduced) << source_mantissa)
        too_small = exponent <= np.uint64((bias - reduced) << source_mantissa)
        result = np.where(too_large, (result & sign) | exponent_mask, result)
        result = np.where(too_small, result & sign, result)
    # without a mantissa there is no NaN, it becomes infinite
    kept = bits if mantissa_bits else (bits & sign) | exponent_mask
    result = np.where(not_a_number, kept, result)
    return result.astype(kind).view(x.dtype).reshape(x.shape)


def _layout(dtype: np.dtype[Any]) -> tuple[int, int, int]:
    """Total, exponent and mantissa bits of a float type."""
    if dtype == BF16.dtype:
        return 16, 8, 7
    if dtype.kind == "f":
        mantissa = np.finfo(dtype).nmant
    else:
        mantissa = ml_dtypes.finfo(dtype).nmant
    total = dtype.itemsize * 8
    return total, total - 1 - mantissa, mantissa


class Complex(OpDefinition, name="complex"):
    """result = lhs + i * rhs."""

    pattern = "elementwise"
    lhs = operand()
    rhs = operand()
    C1 = constraint(
        "lhs and rhs have the same type",
        lambda o: same_dims(o.lhs.dims, o.rhs.dims) and o.lhs.element is o.rhs.element,
    )
    C2 = constraint("the element type is f32 or f64", lambda o: o.lhs.element in (F32, F64))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.lhs.tensor.with_element(C64 if o.lhs.element is F32 else C128)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        real, imaginary = arrays
        shape = np.broadcast_shapes(real.shape, imaginary.shape)
        result = np.empty(shape, C64.dtype if real.dtype == F32.dtype else C128.dtype)
        result.real, result.imag = real, imaginary
        return result

    def cases(self) -> Iterator[Case]:
        yield Case("complex_f32", hostile(F32, 2))
        yield Case("complex_f64", hostile(F64, 2))


class ComplexPart(OpDefinition):
    """One part of a complex number; a real operand is its own real part."""

    pattern = "elementwise"
    linear = "together"
    operand = operand()
    C0 = constraint(
        "operand is a float or complex tensor",
        lambda o: o.operand.element.kind in ("float", "complex"),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_element(real_type(o.operand.element))]

    def cases(self) -> Iterator[Case]:
        yield Case(f"{self.name}_complex", hostile(C64, 1))
        yield Case(f"{self.name}_float", hostile(F32, 1, "finite"))


class Real(ComplexPart, name="real"):
    """result = real part of operand."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        (x,) = arrays
        return np.array(x.real) if x.dtype.kind == "c" else x


class Imag(ComplexPart, name="imag"):
    """result = imaginary part of operand; zero for a real operand."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        (x,) = arrays
        return np.array(x.imag) if x.dtype.kind == "c" else zeros(x)


def zeros(x: Any) -> Any:
    """Zero in each element; what a type without one has for it."""
    return numerics.narrow(np.zeros(x.shape, np.float32), x.dtype)


class Abs(OpDefinition, name="abs"):
    """result = |operand|; the modulus of a complex number; the minimum integer is its own."""

    pattern = "elementwise"
    operand = operand()
    C0 = constraint(
        "operand is a signed integer, float or complex tensor",
        lambda o: o.operand.element.kind in ("int", "float", "complex", "quantized"),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        element = o.operand.element
        if isinstance(element, QuantizedType):
            return [o.operand.tensor.with_element(result_element(o, element))]
        return [o.operand.tensor.with_element(real_type(element))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dtype = o.results[0].tensor.dtype
        return numerics.elementwise(np.abs, arrays, dtype)

    def cases(self) -> Iterator[Case]:
        for element in (F32, F64, F16, BF16, C64, I32, I8, I4):
            yield Case(f"abs_{element.name}", hostile(element, 1))


class UniformQuantize(OpDefinition, name="uniform_quantize"):
    """result = round(operand / scale + zero point), clamped to the storage's bounds; see
    `hlo/quantized.py`, which says it in plain operations."""

    pattern = "elementwise"
    operand = operand()
    C1 = constraint(
        "operand and result have the same dimensions",
        any_result(lambda o: same_dims(o.operand.dims, o.result.dims)),
    )
    C2 = constraint(
        "the result is quantised", any_result(lambda o: isinstance(o.result.element, QuantizedType))
    )

    def cases(self) -> Iterator[Case]:
        (values,) = hostile(F32, 1, "finite")
        result = (TensorType(values.shape, QuantizedType(I8, F32, None, (0.5,), (3,), -128, 127)),)
        yield Case("uniform_quantize", (values,), result_types=result)


class UniformDequantize(OpDefinition, name="uniform_dequantize"):
    """result = (operand - zero point) * scale; `hlo/quantized.py` says it in plain operations."""

    pattern = "elementwise"
    operand = operand()
    C1 = constraint("operand is quantised", lambda o: isinstance(o.operand.element, QuantizedType))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.tensor.with_element(o.operand.element.expressed)]

    def cases(self) -> Iterator[Case]:
        stored = i8([-128, -1, 0, 3, 127])
        for name, axis, scales, zeros in (
            ("tensor", None, (0.5,), (3,)),
            ("axis", 1, (0.5, 2.0), (3, -1)),
        ):
            x = stored if axis is None else np.stack([stored, stored], 1)
            kind = QuantizedType(I8, F32, axis, scales, zeros, -128, 127)
            yield Case(f"uniform_dequantize_{name}", (x,), input_types=(TensorType(x.shape, kind),))


ROOMS = (
    Convert(), BitcastConvert(), ReducePrecision(), Complex(), Real(), Imag(), Abs(),
    UniformQuantize(), UniformDequantize(),
)  # fmt: skip

"""Samples of jax.numpy and jax.numpy.fft."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .table import (
    ALL,
    BITS,
    FLOATS,
    INEXACT,
    INTEGERS,
    NUMBERS,
    REAL,
    SINGLE,
    Table,
    f,
    i,
    n,
    p,
    rising,
    truth,
    u,
    w,
)

numpy = Table("jax.numpy")
t = numpy
FEW = ("float32", "int32", "bool", "complex64")

# Elementwise.
t("abs absolute conj conjugate negative positive sign square real imag angle isfinite isinf isnan "
  "isreal iscomplex logical_not nan_to_num copy array asarray", n(3, 4))  # fmt: skip
t("sin cos tan sinh cosh tanh asinh arcsinh exp exp2 expm1 atan arctan sinc", n(3, 4))
t("asin arcsin acos arccos atanh arctanh", u(3, 4))
t("acosh arccosh log log2 log10 log1p sqrt reciprocal cbrt i0", p(3, 4))
t("ceil floor trunc fix rint round around deg2rad rad2deg degrees radians fabs signbit isneginf "
  "isposinf spacing frexp modf", n(3, 4), types=REAL)  # fmt: skip
t("round around", n(3, 4), 1, types=NUMBERS)
t("invert bitwise_not bitwise_invert bitwise_count", n(3, 4), types=BITS)
t("add subtract multiply maximum minimum equal not_equal less less_equal greater greater_equal "
  "logical_and logical_or logical_xor isclose", n(3, 4), n(4))  # fmt: skip
t("divide true_divide floor_divide mod remainder fmod divmod power pow float_power arctan2 atan2 "
  "hypot heaviside copysign nextafter fmax fmin logaddexp logaddexp2", p(3, 4), p(4))  # fmt: skip
t("floor_divide mod remainder fmod divmod arctan2 copysign fmax fmin logaddexp logaddexp2 hypot",
  n(3, 4), p(3, 1), types=REAL)  # fmt: skip
t("power pow", n(3, 4), 3)
t("power", p(3, 4), 0.5, types=INEXACT)
t("gcd lcm", n(3, 4), n(4), types=INTEGERS)
t("bitwise_and bitwise_or bitwise_xor", n(3, 4), n(4), types=BITS)
t("left_shift right_shift bitwise_left_shift bitwise_right_shift", n(3, 4), w(4, low=0, high=5),
  types=INTEGERS)  # fmt: skip
t("ldexp", n(3, 4), i(4), types=FLOATS)
t("clip", n(3, 4), -0.5, 1, types=FLOATS)
t("clip", n(3, 4), n(4), n(4), types=REAL)
t("where", truth(3, 4), n(4), n(3, 1))
t("unwrap", n(3, 6), types=REAL)

# Reductions.
t("sum prod max min amax amin mean all any argmax argmin count_nonzero nansum nanprod nanmax "
  "nanmin nanmean nanargmax nanargmin std var nanstd nanvar median nanmedian ptp",
  n(3, 4))  # fmt: skip
t("sum prod max min amax amin mean all any argmax argmin count_nonzero nansum nanprod nanmax "
  "nanmin nanmean nanargmax nanargmin std var nanstd nanvar median nanmedian ptp cumsum cumprod "
  "nancumsum nancumprod", n(3, 4), axis=0)  # fmt: skip
t("sum max", n(3, 4), initial=2, where=truth(3, 4), types=REAL)
t("mean std var nanstd", n(3, 4), axis=1, keepdims=True, where=truth(3, 4), types=INEXACT)
t("std var nanvar", n(3, 4), axis=1, ddof=1)
t("cumsum cumprod nancumsum nancumprod", n(3, 4))
t("cumulative_sum cumulative_prod", n(3, 4), axis=1)
t("cumulative_sum cumulative_prod", n(4), include_initial=True)
t("average", n(3, 4))
t("average", n(3, 4), axis=1, weights=p(4), returned=True)
t("percentile nanpercentile", n(3, 5), f(2, kind="unit"), types=REAL)
t("percentile nanpercentile", n(3, 5), 30.0, axis=1, types=REAL)
for method in ("lower", "higher", "nearest", "midpoint"):
    t("quantile nanquantile", n(3, 5), 0.3, axis=0, method=method, types=REAL)
t("quantile", n(3, 5), f(2, kind="positive"), axis=1, types=SINGLE)
t("allclose array_equal array_equiv", n(3, 4), n(3, 4))
t("corrcoef cov", n(3, 6), types=NUMBERS)
t("cov", n(3, 6), n(2, 6), rowvar=True, ddof=0, types=INEXACT)
t("trapezoid", n(3, 5))
t("trapezoid", n(3, 5), rising(5), types=FLOATS)

# Shapes.
t("atleast_1d atleast_2d atleast_3d ravel ndim size shape transpose matrix_transpose squeeze "
  "fliplr flipud flip rot90 iscomplexobj isrealobj isscalar", n(3, 4))  # fmt: skip
t("matrix_transpose flip", n(2, 3, 4))
t("reshape", n(3, 4), (2, -1))
t("reshape", n(3, 4), (2, 6), order="F")
t("ravel", n(3, 4), order="F")
t("resize", n(3, 4), (5, 3))
t("transpose permute_dims", n(2, 3, 4), (2, 0, 1))
t("moveaxis swapaxes", n(2, 3, 4), 0, 2)
t("rollaxis", n(2, 3, 4), 2)
t("roll", n(3, 4), 2)
t("roll", n(3, 4), (1, -2), (0, 1))
t("rot90", n(3, 4, 2), 3, (1, 2))
t("expand_dims", n(3, 4), (0, 2))
t("squeeze", n(1, 3, 1, 4), 2)
t("broadcast_to", n(3, 1), (2, 3, 4))
t("broadcast_arrays", n(3, 1), n(4))
t("concatenate concat hstack vstack dstack column_stack block stack", [n(3, 4), n(3, 4)])
t("concatenate concat stack", [n(3, 4), n(3, 4)], axis=1)
t("append", n(3, 4), n(2, 4), 0)
t("append", n(3, 4), n(2))
t("array_split", n(3, 5), 3, 1)
t("split", n(4, 3), 2)
t("split", n(5, 3), [1, 3])
t("hsplit vsplit", n(4, 6), 2)
t("dsplit", n(2, 3, 4), 2)
t("unstack", n(3, 4), axis=1)
t("tile", n(3, 4), (2, 1, 2))
t("repeat", n(3, 4), 3, 1)
t("repeat", n(3, 4), i(3, high=3), 0, total_repeat_length=5)
t("pad", n(3, 4), ((1, 2), (0, 1)))
for mode in ("edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "minimum",
             "mean"):  # fmt: skip
    kinds = ALL if mode in ("edge", "wrap") else ("float32", "int32")
    t("pad", n(3, 4), 2, mode=mode, types=kinds)
t("pad", n(3, 4), 1, mode="median", types=REAL)
t("pad", n(3, 4), 2, mode="reflect", reflect_type="odd", types=("float32", "int32"))
t("delete", n(5, 4), 1, axis=0)
t("delete", n(5, 4), np.array([0, 2]), axis=0)
t("insert", n(5, 4), 1, n(4), axis=0)
t("insert", n(5), np.array([0, 2]), 1)
t("diag diagonal diagflat tril triu trace", n(4, 4))
t("diag diagflat", n(4), 1)
t("diagonal trace tril triu", n(3, 4, 5), 1)
t("diagonal trace", n(3, 4, 5), -1, 2, 0)
t("fill_diagonal", n(4, 4), n(4), inplace=False)
t("fill_diagonal", n(4, 3), 2, inplace=False)
t("apply_over_axes", jnp.sum, n(2, 3, 4), [0, 2])
t("apply_along_axis", jnp.sort, 0, n(3, 4))
t.by("vectorize", lambda x, y: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(x, y), n(3, 4), n(4))
t.by("vectorize", lambda x, y: jnp.vectorize(lambda a, b: a + b)(x, y), n(3, 4), n(4))
t.by("frompyfunc ufunc", lambda x: jnp.frompyfunc(lambda a, b: a * b, 2, 1, identity=1).reduce(x),
     n(5), types=("float32", "int32"))  # fmt: skip
t.by("frompyfunc ufunc", lambda x: jnp.frompyfunc(lambda a, b: a * b + 1, 2, 1).accumulate(x),
     n(5), types=("float32", "int32"))  # fmt: skip
t.by("ufunc", lambda x, y: (jnp.add.reduce(x), jnp.add.at(x, jnp.array([0, 1]), y, inplace=False),
                            jnp.multiply.outer(x, y), jnp.add.accumulate(x),
                            jnp.add.reduceat(x, jnp.array([0, 2]))),
     n(4), n(2), types=("float32", "int32"))  # fmt: skip
t("astype", n(3, 4), jnp.float32, types=REAL)
t("astype", n(3, 4), jnp.int8, types=REAL)
t("astype", n(3, 4), jnp.bool_)

# Creation.
t("ones_like zeros_like empty_like", n(3, 4))
t("full_like", n(3, 4), 2)
t("full", (2, 3), n(3))
t("eye identity tri", 4, types=SINGLE)
t("eye tri", 3, 5, 1, types=SINGLE)
t("ones zeros empty", (2, 3), types=SINGLE)
t("arange", 1, 9, 2, types=SINGLE)
t("arange", 0.5, 3, 0.25, types=SINGLE)
t("linspace", n(3), n(3), 5, types=REAL)
t("linspace", n(), n(), 5, endpoint=False, retstep=True, types=REAL)
t("logspace", u(3), u(3), 5, types=FLOATS)
t("geomspace", p(3), p(3), 5, types=INEXACT)
t("meshgrid", n(3), n(4))
t("meshgrid", n(3), n(4), indexing="ij", sparse=True)
t("indices", (2, 3), types=SINGLE)
t("bartlett blackman hamming hanning", 7, types=SINGLE)
t("kaiser", 7, 3.0, types=SINGLE)
t("vander", n(4), types=NUMBERS)
t("vander", n(4), 3, increasing=True, types=NUMBERS)
t.by("fromfunction", lambda: jnp.fromfunction(lambda a, b: a * 2 + b, (3, 4)), types=SINGLE)
t("diag_indices tril_indices triu_indices", 4, types=SINGLE)
t("mask_indices", 4, jnp.triu, size=10, types=SINGLE)
t("diag_indices_from tril_indices_from triu_indices_from", n(4, 4))
t("ix_", w(3, low=0), w(2, low=0), types=INTEGERS)
t.by("frombuffer", lambda: jnp.frombuffer(b"12345678", "int16"), types=SINGLE)
t.by("from_dlpack fromiter fromstring", lambda: jnp.fromstring("1 2 3", "float32", sep=" "),
     types=SINGLE)  # fmt: skip

# Products.
t("dot matmul", n(3, 4), n(4, 5))
t("dot matmul", n(4), n(4))
t("matmul", n(2, 1, 3, 4), n(5, 4, 2))
t("matmul", n(3, 4), n(4, 2), preferred_element_type=jnp.float32, types=("bfloat16", "float16"))
t("inner outer", n(4), n(4))
t("inner", n(2, 3), n(4, 3))
t("vdot vecdot", n(3, 4), n(3, 4))
t("matvec", n(2, 3, 4), n(2, 4))
t("vecmat", n(2, 3), n(2, 3, 4))
t("kron", n(2, 3), n(3, 2))
t("cross", n(4, 3), n(4, 3), types=NUMBERS)
t("cross", n(4, 2), n(4, 2), types=("float32",))
t("tensordot", n(3, 4, 2), n(4, 3, 5), axes=([0, 1], [1, 0]))
t("tensordot", n(3, 4), n(4, 5), 1)
t("einsum", "bij,bjk->bik", n(2, 3, 4), n(2, 4, 5))
t("einsum", "ij,jk,kl->li", n(3, 4), n(4, 5), n(5, 2))
t("einsum", "ii->i", n(4, 4))
t("einsum", "i...,i...->...", n(3, 4, 2), n(3, 4, 1))
t("convolve correlate", n(8), n(3))
t("convolve correlate", n(8), n(3), mode="same", types=NUMBERS)
t("convolve correlate", n(3), n(8), mode="valid", types=NUMBERS)

# Polynomials.
t("polyadd polysub polymul", n(4), n(3))
t("polyval", n(4), n(3))
t("polyder polyint", n(5), types=NUMBERS)
t("polyder polyint", n(5), 2, types=INEXACT)
t("poly", n(4), types=NUMBERS)
t("polydiv", n(5), p(2), types=INEXACT)
t("polyfit", rising(8), n(8), 2, types=("float32", "float64", "complex64"))
t("polyfit", rising(8), n(8), 2, w=p(8), cov=True, types=SINGLE)
t("roots", n(5), strip_zeros=False, types=("float32", "float64", "complex64"))

# Sorting, searching, counting, sets.
t("sort argsort lexsort", n(3, 6))
t("sort argsort", n(3, 6), axis=0, descending=True)
t("sort argsort", n(3, 6), axis=None)
t("lexsort", (w(6), n(6)))
t("sort_complex", n(6))
t("partition argpartition", n(3, 6), 2)
t("searchsorted", rising(7), n(4), types=ALL)
for method in ("scan", "scan_unrolled", "sort", "compare_all"):
    t("searchsorted", rising(7), n(2, 4), side="right", method=method, types=("float32", "int32"))
t("digitize", n(5), rising(4), types=REAL)
t("digitize", n(5), rising(4), right=True, types=REAL)
t("bincount", i(8, high=5), length=6, types=SINGLE)
t("bincount", i(8, high=5), n(8), length=6, types=REAL)
t("histogram histogram_bin_edges", n(12), 5, types=REAL)
t("histogram", n(12), 5, (-1.0, 2.0), weights=n(12), density=True, types=FLOATS)
t("histogram", n(12), rising(4), types=REAL)
t("histogram2d", n(12), n(12), 4, types=REAL)
t("histogramdd", n(12, 3), 3, types=REAL)
t("nonzero flatnonzero argwhere", w(3, 4, low=0, high=2), size=5)
t("nonzero flatnonzero", w(3, 4, low=0, high=2), size=5, fill_value=-1)
t("where", w(3, 4, low=0, high=2), size=5)
t("unique", w(8, low=0, high=4), size=6)
t("unique", w(8, low=0, high=4), size=6, return_index=True, return_inverse=True,
  return_counts=True, fill_value=0)  # fmt: skip
t("unique", w(5, 2, low=0, high=2), size=4, axis=0)
t("unique_all unique_counts unique_inverse unique_values", w(8, low=0, high=4), size=6)
t("intersect1d union1d setdiff1d", w(6, low=0, high=4), w(5, low=0, high=5), size=6)
t("intersect1d", w(6, low=0, high=4), w(5, low=0, high=5), size=4, return_indices=True)
t("setxor1d", w(6, low=0, high=4), w(5, low=0, high=5), size=6)
t("isin", w(3, 4), w(5))
t("extract", truth(3, 4), n(3, 4), size=5)
t("compress", truth(4), n(3, 4), axis=1, size=2)

# Indexing.
t("take", n(5, 4), i(2, 3), axis=0)
t("take", n(5, 4), i(6, high=9))
for mode in ("wrap", "clip", "fill"):
    t("take", n(5, 4), i(3, low=-7, high=9), axis=1, mode=mode, types=FEW)
t("take_along_axis", n(3, 4), i(3, 2), axis=1)
t("put_along_axis", n(3, 4), i(3, 1), n(3, 1), axis=1, inplace=False)
t("put", n(3, 4), i(2), n(2), inplace=False)
t("place", n(3, 4), truth(3, 4), n(3), inplace=False)
t("choose", i(4, high=3), [n(4), n(4), n(4)], mode="clip")
t("choose", i(4, low=-2, high=6), [n(4), n(4), n(4)], mode="wrap", types=FEW)
t("select", [truth(4), truth(4)], [n(4), n(4)], 2)
t.by(
    "piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [lambda v: -v, 3, 0]), n(6), types=REAL
)
t("ravel_multi_index", (i(5), i(5)), (4, 4), mode="clip", types=SINGLE)
t("ravel_multi_index", (i(5, high=9), i(5)), (4, 4), mode="wrap", types=SINGLE)
t("unravel_index", i(5, high=12), (3, 4), types=SINGLE)
t("packbits unpackbits", w(3, 11, low=0, high=2), types=("uint8",))
t("packbits", w(3, 11, low=0, high=2), axis=0, bitorder="little", types=("uint8", "bool"))
t("unpackbits", w(3, 2, low=0, high=255), axis=1, count=11, types=("uint8",))

# Differences and interpolation.
t("diff", n(3, 6))
t("diff", n(3, 6), 2, axis=0, prepend=n(1, 6))
t("ediff1d", n(6), types=NUMBERS)
t("ediff1d", n(6), to_end=n(2), to_begin=n(1), types=NUMBERS)
t("gradient", n(4, 5), types=INEXACT)
t("gradient", n(6), p(), types=INEXACT)
t("interp", n(5), rising(4), n(4), types=REAL)
t("interp", n(5), rising(4), n(4), left=0.0, right="extrapolate", types=("float32", "float64"))
t("interp", n(5), rising(4), n(4), period=2.0, types=("float32", "float64"))

t("float16 float32 int8 int16 int32 uint8 uint16 uint32 complex64 bool_ bfloat16 single csingle",
  n(3, 4), types=REAL)  # fmt: skip
t("float64 double float_ int64 uint64 complex128 cdouble complex_ int_ uint", n(3, 4),
  types=("float64", "int64"))  # fmt: skip
t("float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
  "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn", p(3, 4),
  types=("float32", "bfloat16"))  # fmt: skip
t("int2 int4 uint2 uint4", w(3, 4, low=0, high=2), types=("int32", "float32"))
t("int1 uint1 float6_e2m3fn float6_e3m2fn", w(3, 4, low=0, high=2), types=("int32",))

t.none("a class of types, or a question about types",
       "ComplexWarning bool character complexfloating dtype finfo flexible floating generic iinfo "
       "inexact integer issubdtype ndarray number object_ promote_types result_type can_cast "
       "signedinteger unsignedinteger broadcast_shapes einsum_path isdtype iterable")  # fmt: skip
t.none("reads, writes or prints",
       "array_repr array_str fromfile get_printoptions load printoptions save savez "
       "set_printoptions")  # fmt: skip
t.none("its size depends on data, and JAX does not trace it", "trim_zeros")

fft = Table("jax.numpy.fft", ("float32", "float64", "complex64"))
t = fft
t("fft ifft", n(3, 8))
t("fft ifft", n(3, 8), n=6, axis=0, norm="ortho")
t("fft2 ifft2 fftn ifftn", n(2, 4, 6))
t("fftn ifftn", n(2, 4, 6), s=(3, 8), axes=(0, 2), norm="forward")
t("rfft ihfft", n(3, 8))
t("rfft ihfft", n(3, 8), n=5, norm="ortho")
t("rfft2 rfftn", n(2, 4, 6))
t("irfft hfft", n(3, 5))
t("irfft hfft", n(3, 5), n=7)
t("irfft2 irfftn", n(2, 4, 5))
t("fftshift ifftshift", n(3, 5), types=("float32", "int32", "complex64"))
t("fftshift ifftshift", n(3, 5), axes=1)
t("fftfreq rfftfreq", 9, d=0.5, types=SINGLE)

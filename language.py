"""Names for the bodies of kernels: `import girih.language as tl` (specs/kernel_language.md).

@girih.kernel(out=lambda x, y: x, grid=lambda x, SIZE: girih.cdiv(x.size, SIZE))
def add(x, y, out, *, SIZE=1024):
    i = tl.tile_id(0) * SIZE
    out[i : i + SIZE] = x[i : i + SIZE] + y[i : i + SIZE]
"""

from __future__ import annotations

from .frontends.kernel.names import abs_ as abs  # noqa: A004 - names as in numpy
from .frontends.kernel.names import all_ as all  # noqa: A004
from .frontends.kernel.names import any_ as any  # noqa: A004
from .frontends.kernel.names import (
    arange,
    argmax,
    argmin,
    bfloat16,
    bitcast,
    bool_,
    broadcast_to,
    cast,
    cdiv,
    ceil,
    clamp,
    concatenate,
    cos,
    cumsum,
    dot,
    erf,
    exp,
    expand_dims,
    expm1,
    float16,
    float32,
    float64,
    floor,
    full,
    gather,
    int8,
    int16,
    int32,
    int64,
    isfinite,
    isnan,
    load,
    log,
    log1p,
    maximum,
    mean,
    minimum,
    ones,
    reshape,
    rsqrt,
    scatter,
    sigmoid,
    sign,
    sin,
    sqrt,
    static_range,
    store,
    tanh,
    tile_count,
    tile_id,
    transpose,
    uint8,
    uint16,
    uint32,
    uint64,
    where,
    zeros,
)
from .frontends.kernel.names import max_ as max  # noqa: A004
from .frontends.kernel.names import min_ as min  # noqa: A004
from .frontends.kernel.names import round_ as round  # noqa: A004
from .frontends.kernel.names import sum_ as sum  # noqa: A004
from .frontends.kernel.values import Array

__all__ = [
    "Array", "abs", "all", "any", "arange", "argmax", "argmin", "bfloat16", "bitcast", "bool_",
    "broadcast_to", "cast", "cdiv", "ceil", "clamp", "concatenate", "cos", "cumsum", "dot", "erf",
    "exp", "expand_dims", "expm1", "float16", "float32", "float64", "floor", "full", "gather",
    "int8", "int16", "int32", "int64", "isfinite", "isnan", "load", "log", "log1p", "max",
    "maximum", "mean", "min", "minimum", "ones", "reshape", "round", "rsqrt", "scatter", "sigmoid",
    "sign", "sin", "sqrt", "static_range", "store", "sum", "tanh", "tile_count", "tile_id",
    "transpose", "uint8", "uint16", "uint32", "uint64", "where", "zeros",
]  # fmt: skip

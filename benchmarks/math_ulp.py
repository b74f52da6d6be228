"""How far the CPU's vector math is from the true value, in units of the last place.

    python benchmarks/math_ulp.py            # the table of specs/numerics.md
    python benchmarks/math_ulp.py --samples 100000 --json

f32 results are compared with numpy's (or scipy's) f64 functions on random bit patterns, dense
ranges and edges; f64 results with mpmath on fewer points. An error counts in units of the last
place of the true value, rounded to the type (the smallest subnormal below the normal numbers).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, F64, TensorType

Array = Any
SEED = 7

# name -> (true value in f64, in mpmath, arguments, range of the dense samples)
FUNCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., Any], int, tuple[float, float]]] = {
    "exponential": (np.exp, mpmath.exp, 1, (-104.0, 89.0)),
    "exponential_minus_one": (np.expm1, mpmath.expm1, 1, (-20.0, 20.0)),
    "log": (np.log, mpmath.log, 1, (0.0, 10.0)),
    "log_plus_one": (np.log1p, mpmath.log1p, 1, (-1.0, 10.0)),
    "logistic": (
        lambda x: 1 / (1 + np.exp(-x)), lambda x: 1 / (1 + mpmath.exp(-x)), 1, (-30.0, 30.0),
    ),
    "tanh": (np.tanh, mpmath.tanh, 1, (-10.0, 10.0)),
    "chlo.erf": (lambda x: _special("erf")(x), mpmath.erf, 1, (-5.0, 5.0)),
    "chlo.erfc": (lambda x: _special("erfc")(x), mpmath.erfc, 1, (-5.0, 10.0)),
    "sine": (np.sin, mpmath.sin, 1, (-100.0, 100.0)),
    "cosine": (np.cos, mpmath.cos, 1, (-100.0, 100.0)),
    "tan": (np.tan, mpmath.tan, 1, (-100.0, 100.0)),
    "sqrt": (np.sqrt, mpmath.sqrt, 1, (0.0, 100.0)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), 1, (0.0, 100.0)),
    "cbrt": (np.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), 1, (-100.0, 100.0)),
    "atan2": (np.arctan2, mpmath.atan2, 2, (-10.0, 10.0)),
    "power": (np.power, mpmath.power, 2, (0.0, 20.0)),
}  # fmt: skip


def _special(name: str) -> Callable[[Array], Array]:
    import scipy.special

    return getattr(scipy.special, name)


def samples(dtype: Any, count: int, low: float, high: float, generator: Any) -> Array:
    """Random bit patterns, a dense range, both signs of small numbers, and edges."""
    bits = generator.integers(0, 2 ** (8 * dtype.itemsize), count, dtype=f"u{dtype.itemsize}")
    dense = generator.uniform(low, high, count).astype(dtype)
    scale = 2.0 ** generator.uniform(-30, 1, count)
    small = (generator.uniform(-1, 1, count) * scale).astype(dtype)
    edges = np.array([0.0, -0.0, 1.0, -1.0, low, high, np.finfo(dtype).tiny], dtype)
    return np.concatenate([bits.view(dtype), dense, small, edges])


def run(name: str, arguments: Sequence[Array]) -> Array:
    """The CPU kernel's values."""
    element = F32 if arguments[0].dtype == np.float32 else F64
    kind = TensorType(arguments[0].shape, element)
    module = build_module([kind] * len(arguments), lambda b, *xs: [b(name, *xs)])
    (result,) = girih.compile(module)(*arguments)
    return np.asarray(result)


def true_values(name: str, arguments: Sequence[Array]) -> Array:
    """f32 arguments: f64 values. f64 arguments: mpmath's numbers."""
    in_numpy, in_mpmath, _, _ = FUNCTIONS[name]
    if arguments[0].dtype == np.float32:
        with np.errstate(all="ignore"):
            return in_numpy(*(x.astype(np.float64) for x in arguments))
    with mpmath.workprec(160):
        points = zip(*arguments, strict=True)
        return np.array([in_mpmath(*map(mpmath.mpf, point)) for point in points])


def errors(got: Array, true: Array) -> Array:
    """|got - true| in units of the last place of true."""
    dtype = got.dtype
    rounded = np.array([float(t) for t in true]) if true.dtype == object else true
    size = np.maximum(np.abs(rounded), np.finfo(dtype).tiny)
    unit = np.exp2(np.floor(np.log2(size)) - np.finfo(dtype).nmant)
    if true.dtype == object:
        pairs = zip(map(float, got), true, strict=True)
        difference = np.array([float(abs(mpmath.mpf(value) - t)) for value, t in pairs])
    else:
        difference = np.abs(got.astype(np.float64) - true)
    return difference / unit


def measure(name: str, dtype: Any, count: int) -> dict[str, Any]:
    """Largest and mean error, the point of the largest, and whether special values agree."""
    _, _, operands, (low, high) = FUNCTIONS[name]
    generator = np.random.default_rng(SEED)
    arguments = [samples(dtype, count, low, high, generator) for _ in range(operands)]
    if dtype == np.float64:
        finite = np.all([np.isfinite(x) & (np.abs(x) < 1e15) for x in arguments], axis=0)
        # mpmath has its own conventions for domains; f64 is compared where all values are real.
        if name in ("log", "sqrt", "rsqrt", "power"):
            finite &= arguments[0] > 0
        if name == "log_plus_one":
            finite &= arguments[0] > -1
        if name == "atan2":
            finite &= arguments[0] != 0
        arguments = [x[finite] for x in arguments]
    got, true = run(name, arguments), true_values(name, arguments)
    plain = np.array([float(t) for t in true]) if true.dtype == object else true
    with np.errstate(all="ignore"):
        expected = plain.astype(dtype)
        regular = np.isfinite(expected) & np.isfinite(got)
        special = ~regular
        agree = np.array_equal(got[special], expected[special], equal_nan=True)
        found = errors(got[regular], true[regular])
    worst = int(np.argmax(found))
    return {
        "function": name.removeprefix("chlo."),
        "type": "f32" if dtype == np.float32 else "f64",
        "points": len(got),
        "largest": float(found[worst]),
        "mean": float(np.mean(found)),
        "at": [float(x[regular][worst]) for x in arguments],
        "special values agree": bool(agree),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=300_000, help="per kind of sample, f32")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("functions", nargs="*", help="names; default all")
    options = parser.parse_args()
    rows = []
    for name in FUNCTIONS:
        if options.functions and name.removeprefix("chlo.") not in options.functions:
            continue
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            count = options.samples if dtype == np.float32 else max(500, options.samples // 300)
            rows.append(measure(name, dtype, count))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("| function | type | largest error (ulp) | mean (ulp) | worst at | inf, NaN as IEEE |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        place = ", ".join(f"{x:.9g}" for x in row["at"])
        agree = "yes" if row["special values agree"] else "no"
        largest, mean = f"{row['largest']:.2f}", f"{row['mean']:.3f}"
        print(f"| {row['function']} | {row['type']} | {largest} | {mean} | {place} | {agree} |")


if __name__ == "__main__":
    main()

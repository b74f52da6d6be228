"""A program on XLA:CPU, the interpreter and the cpu backend, and how far results may differ.

Roundings differ between engines, and a program may magnify them. How much it does is measured: the
interpreter runs it again with small random errors after each operation that rounds, and what moves
by that may differ by as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import girih
from girih.frontends.stablehlo.write import write_text
from girih.hlo.graph import Function, Module, Op, Region, Value, arguments
from girih.hlo.interpret import Interpreter

Arrays = Sequence[np.ndarray[Any, Any]]

_ULPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-51}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_EXACT = frozenset((
    "constant", "iota", "reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "pad",
    "reverse", "dynamic_slice", "dynamic_update_slice", "gather", "select", "compare", "sort",
    "chlo.top_k", "negate", "abs", "sign", "floor", "ceil", "round_nearest_even",
    "round_nearest_afz", "clamp", "maximum", "minimum", "complex", "real", "imag", "is_finite",
    "rng_bit_generator",
))  # fmt: skip
_LIMITS = frozenset(
    (
        "clamp",
        "maximum",
        "minimum",
        "reduce",
        "reduce_window",
        "scatter",
    )
)  # of two zeros of different sign, either may be the larger
_NOISES = 8  # noisy runs
_FACTOR = 6.0  # how many times the largest move is allowed


class _Noisy(Interpreter):
    """Interprets with an error of a few units in the last place after each rounding operation."""

    def __init__(self, module: Module, seed: int) -> None:
        super().__init__(module)
        self.generator = np.random.default_rng(seed)
        self.nan = {0: -np.nan, 1: np.nan}.get(seed, 0.0)  # 0: each of its own sign

    def evaluate(self, op: Op, arrays: Sequence[Any], values: Any) -> Sequence[Any]:
        results = super().evaluate(op, arrays, values)
        if op.name in _LIMITS:
            results = [self.any_zeros(np.asarray(result)) for result in results]
        if op.name in _EXACT or op.definition.pattern == "control":
            return results
        if op.name == "fft" and not np.isfinite(arrays[0]).all():  # nobody says what that gives
            return [self.generator.standard_normal(r.shape).astype(r.dtype) for r in results]
        scale = max((_largest(a) for a in arrays), default=0.0) if _adds(op) else 0.0
        return [self.moved(np.asarray(result), scale) for result in results]

    def any_zeros(self, x: np.ndarray[Any, Any]) -> Any:
        """Zeros of either sign."""
        if x.dtype.name not in _ULPS:
            return x
        signs = self.generator.choice([-1.0, 1.0], x.shape).astype(x.dtype)
        return np.where(x == 0, np.copysign(np.zeros_like(x), signs), x)

    def moved(self, x: np.ndarray[Any, Any], scale: float) -> Any:
        ulp = _ULPS.get(str(_COMPLEX.get(x.dtype.name, x.dtype.name)))
        if ulp is None:
            return x
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            noise: Any = self.generator.uniform(-4, 4, x.shape)
            if wide is np.complex128:
                noise = noise + 1j * self.generator.uniform(-4, 4, x.shape)
            values = x.astype(wide) * (1 + ulp * noise) + ulp * scale * noise
            if wide is np.float64:  # and a NaN has any sign
                nan = self.nan if self.nan else np.copysign(np.nan, noise)
                values = np.where(np.isnan(values), nan, values)
            else:
                values = np.where(np.isfinite(x), values, x)
            found = values.astype(x.dtype)
            return _flushed(found) if self.generator.random() < 0.5 else found


def _adds(op: Op) -> bool:
    """Whether an operation may cancel what it sums."""
    return op.name in (
        "reduce", "reduce_window", "dot_general", "convolution", "fft", "batch_norm_inference",
        "scatter", "select_and_scatter", "add", "subtract", "divide", "multiply", "sine", "cosine",
        "tan", "power",
    ) or op.name.startswith("chlo.")  # fmt: skip


def _largest(x: Any) -> float:
    array = np.asarray(x)
    if array.dtype.kind not in "fcV" or not array.size:
        return 0.0
    with np.errstate(all="ignore"):
        size = np.abs(array.astype(np.complex128))
    return float(np.max(size[np.isfinite(size)], initial=0.0))


def _flushed(x: np.ndarray[Any, Any]) -> Any:
    """Subnormal numbers are zero, as on XLA:CPU."""
    name = str(_COMPLEX.get(x.dtype.name, x.dtype.name))
    if x.dtype.kind == "c" or name not in _ULPS:
        return x
    tiny = {"float16": 6.1e-5, "bfloat16": 1.2e-38, "float32": 1.2e-38, "float64": 2.3e-308}[name]
    with np.errstate(all="ignore"):
        return np.where(np.abs(x.astype(np.float64)) < tiny, x * x.dtype.type(0), x)


@functools.cache
def xla() -> Callable[[str, Arrays], list[np.ndarray[Any, Any]]]:
    """A function that runs StableHLO text on XLA:CPU; 64-bit types need jax.enable_x64."""
    import jax
    from jaxlib import xla_client  # type: ignore[attr-defined]

    backend = jax.local_devices(backend="cpu")[0].client
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    options = xla_client.CompileOptions()
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0

    def run(text: str, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        with jax.enable_x64(True):
            loaded = backend.compile_and_load(text, devices, options)
            arrays = [jax.device_put(x) for x in inputs]
            results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
            return [np.asarray(shards[0]) for shards in results]

    return run


def allowed(module: Module, inputs: Arrays) -> tuple[Arrays, list[Any]]:
    """The interpreter's results, and how far another engine's may be from them: an array for each,
    infinite where anything may stand."""
    with np.errstate(all="ignore"):
        clean = [np.asarray(r) for r in Interpreter(module).run(module.body, inputs)]
        bounds = [_base(result) for result in clean]
        for seed in range(_NOISES):
            noisy = _Noisy(module, seed)
            for place, moved in enumerate(noisy.run(module.body, inputs)):
                far = _distance(clean[place], np.asarray(moved))
                bounds[place] = np.maximum(bounds[place], _FACTOR * far)
                exact = clean[place].dtype.kind in "biu"
                if exact:
                    bounds[place] = np.where(far > 0, np.inf, bounds[place])
    return clean, bounds


def _base(result: np.ndarray[Any, Any]) -> Any:
    """What always is allowed: some units in the last place, and subnormal numbers."""
    ulp = _ULPS.get(str(_COMPLEX.get(result.dtype.name, result.dtype.name)))
    if ulp is None:
        return np.zeros(result.shape)
    with np.errstate(all="ignore"):
        size = np.abs(result.astype(np.complex128))
    tiny = 7e-5 if result.dtype.name == "float16" else 1.2e-38
    return np.where(np.isfinite(size), 16 * ulp * size + tiny, 0.0)


def _distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Any:
    """|a - b|; 0 for equal infinities and NaNs, infinite where only one is one of those."""
    if a.dtype.kind in "biu":
        far = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return np.where(a == b, 0.0, np.maximum(far, 1.0))  # large integers round to one number
    x, y = (v.astype(np.complex128) for v in (a, b))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    return np.where(same, 0.0, np.where(finite, np.abs(x - y), np.inf))


def differences(clean: Arrays, bounds: Sequence[Any], found: Sequence[Any], name: str) -> list[str]:
    """Where `found` is farther from the interpreter's results than it may be."""
    reports = []
    for number, (wanted, bound, result) in enumerate(zip(clean, bounds, found, strict=True)):
        result = np.asarray(result)
        if result.shape != wanted.shape or result.dtype != wanted.dtype:
            reports.append(f"result {number}, {name}: {result.dtype}{result.shape} instead of "
                           f"{wanted.dtype}{wanted.shape}")  # fmt: skip
            continue
        with np.errstate(all="ignore"):
            distance = _distance(wanted, result)
            exact = wanted.dtype.kind in "biu"
            wrong = (wanted != result) & ~np.isinf(bound) if exact else ~(distance <= bound)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            reports.append(
                f"result {number}, {name}: {int(wrong.sum())} of {wrong.size} differ, at {at} "
                f"{result[at]!r}, interpreter {wanted[at]!r}"
            )
    return reports


def check(module: Module, inputs: Arrays) -> list[str]:
    """Reports of where the engines disagree; empty for a program that all agree about."""
    clean, bounds = allowed(module, inputs)
    reports = differences(clean, bounds, xla()(write_text(module).text, inputs), "XLA")
    program = girih.compile(module, options=girih.Options(cache="off"))
    found = program(*inputs)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    return reports + differences(clean, bounds, found, "cpu")


def culprits(module: Module, inputs: Arrays) -> list[str]:
    """Single operations whose results differ, each on what XLA gave for its operands."""
    body = module.body
    every = [v for op in body.ops for v in op.results]
    whole = Module({"main": Function("main", Region(body.arguments, body.ops, every))})
    results = xla()(write_text(whole).text, inputs)
    known: dict[Value, Any] = dict(zip(every, results, strict=True))
    known.update(zip(body.arguments, inputs, strict=True))
    reports = []
    for op in body.ops:
        if any(region.captures() for region in op.regions) or op.name == "constant":
            continue
        own = arguments([value.type for value in op.operands])
        alone = Op(op.definition, own, op.attributes, op.regions, op.result_types)
        single = Module({"main": Function("main", Region(own, (alone,), alone.results))})
        arrays = [known[value] for value in op.operands]
        clean, bounds = allowed(single, arrays)
        wrong = differences(clean, bounds, [known[v] for v in op.results], "XLA")
        found = girih.compile(single, options=girih.Options(cache="off"))(*arrays)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        wrong += differences(clean, bounds, found, "cpu")
        reports += [f"{op} {dict(op.attributes)} on {arrays}: {report}" for report in wrong]
    return reports

"""Every room's cases on the interpreter, and beside XLA where jax is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.frontends.stablehlo.write import write_text
from girih.hlo.build import Builder
from girih.hlo.cases import Example, example
from girih.hlo.expansion import expansion
from girih.hlo.graph import Function, Module, Value
from girih.hlo.interpret import Interpreter, evaluated, interpret
from girih.hlo.ops import DEFINITIONS
from girih.hlo.room import OpDefinition
from girih.hlo.tiling import TILE_OPS
from girih.hlo.types import QuantizedType, TensorType, tensor_of
from girih.hlo.verify import HLO, verify

WITHOUT_CASES = {
    "weight": "needs a module with a weight; test_interpret has one",
    "call": "needs a module with two functions; test_interpret has one",
    "call_with_weights": "stands between two passes; tests/optimizer/passes/test_reroll.py has it",
    "composite": "needs a module with two functions; test_interpret has one",
    "tuple": "only at the edge of a program; test_interpret has one",
    "get_tuple_element": "only at the edge of a program; test_interpret has one",
    "after_all": "tokens have no value",
    "create_token": "tokens have no value",
    **dict.fromkeys(("send", "recv", "infeed", "outfeed"), "tests/hlo/test_distributed.py has it"),
    "async_start": "futures have no value; tests/hlo/test_distributed.py has it",
    "async_done": "futures have no value; tests/hlo/test_distributed.py has it",
    "sharding_group": "has no results; tests/hlo/test_annotation.py has it",
    **dict.fromkeys(sorted(TILE_OPS), "only inside a kernel_call, whose cases have it"),
}
ROOMS = [room for room in DEFINITIONS if room.name not in WITHOUT_CASES]
NAMES = [room.name for room in ROOMS]

# Where XLA cannot run a case, or gives other numbers; each with the reason why ours are right.
XLA_CANNOT = {
    "uniform_quantize": "no quantised types in HLO",
    "uniform_dequantize": "no quantised types in HLO",
    "dynamic_pad": "not translated",
    "real_dynamic_slice": "not translated",
    "dynamic_gather": "not translated",
    "dynamic_conv": "not translated",
    "collective_broadcast": "XLA:CPU has no code for it",
    "collective_reduce": "younger than the StableHLO that jaxlib reads",
    "exchange": "an operation of our own",
    "foreign_call": "an operation of our own",
    "fusion": "an operation of our own",
    "propagation_barrier": "XLA:CPU has no code for it",
    "sharding_constraint": "its mesh has more devices than one",
    "kernel_call": "an operation of our own",
    "chlo.scan": "the text writer does not say operand segments",
    "chlo.ragged_dot": "the text writer does not pack its dimension numbers",
    "rng": "the numbers are left open",
    "unary_einsum": "not translated",
    "linalg.pivots_to_permutation": "a call of libraries for GPUs",
}
XLA_DIFFERS = {
    "lu_no_rows": "jaxlib divides by the number of rows",
    "all_to_all_two": "XLA wants operands of one shape",
    "reduce_window_padded_from_two": "XLA leaves padding out; StableHLO says initial values",
    "power_complex<f32>": "0 to a complex power is 0 there NaN",
    "power_i32": "XLA stops squaring early for huge exponents",
    "power_ui8": "XLA stops squaring early for huge exponents",
    "power_ui32": "XLA stops squaring early for huge exponents",
    "maximum_complex<f32>": "the specification compares complex numbers lexicographically",
    "minimum_complex<f32>": "the specification compares complex numbers lexicographically",
    "atan2_complex<f32>": "another branch of the square root of a negative number",
    "cbrt_complex<f32>": "not supported",
    "popcnt_i4": "XLA counts bits of the byte that holds an i4",
    "convert_rounds_once": "XLA rounds f64 to f32 and then to bf16",
    "reduce_e3m0_f32": "without mantissa bits a NaN becomes infinite",
    "reduce_e3m0_f64": "without mantissa bits a NaN becomes infinite",
    "reduce_e3m0_f16": "without mantissa bits a NaN becomes infinite",
    "reduce_e3m0_bf16": "without mantissa bits a NaN becomes infinite",
}

# Vectors that were not asked for, and results where a factorisation failed, may be anything.
PARTLY_OPEN = (
    "singular_values_", "eig_pairs", "eigenvalues", "eig_infinite", "schur_form_", "schur_infinite",
)  # fmt: skip


def examples(room: OpDefinition) -> list[Example]:
    return [example(room, case) for case in room.cases()]


def test_every_operation_has_cases() -> None:
    without = {room.name for room in DEFINITIONS if not list(room.cases())}
    assert without == set(WITHOUT_CASES)


def test_case_names_are_unique() -> None:
    names = [made.name for room in ROOMS for made in examples(room)]
    assert len(names) == len(set(names))


def test_every_room_says_what_it_means() -> None:
    for room in DEFINITIONS:
        assert room.__doc__ and room.__doc__.strip().endswith((".", ";")), room.name
        assert room.pattern in {
            "elementwise", "index", "reduce", "contract", "source", "control", "opaque", "kernel",
                "tile",
        }  # fmt: skip


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_results_have_the_declared_types(room: OpDefinition) -> None:
    for made in examples(room):
        verify(made.module, None if room.name == "fusion" else HLO)
        first, second = (interpret(made.module, made.inputs) for _ in range(2))
        for result, again, value in zip(first, second, made.op.results, strict=True):
            assert tensor_of(result) == stored(value.tensor), made.name
            assert result.tobytes() == again.tobytes(), made.name
        flops = room.flops(made.op)
        assert isinstance(flops, (int, float)) and flops >= 0


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_decomposition_agrees(room: OpDefinition) -> None:
    """The simpler operations give what evaluate gives (where evaluate is not just their run)."""
    for made in examples(room):
        region = expansion(made.op)
        if region is None:
            continue
        assert region.result_types == made.op.result_types, made.name
        got = Interpreter(made.module).run(region, made.inputs)
        for left, right in zip(got, interpret(made.module, made.inputs), strict=True):
            close(made, left, right)


def stored(kind: TensorType) -> TensorType:
    """The type of the array that holds such a value."""
    element = kind.element
    return kind.with_element(element.storage if isinstance(element, QuantizedType) else element)


def close(made: Example, got: Any, wanted: Any) -> None:
    """Same type, integers equal, floats within the case's tolerance, signs of zeros equal."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, made.name
    if got.dtype.kind in "biu" or got.dtype.name.startswith(("int", "uint")):
        assert np.array_equal(got, wanted), made.name
        return
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        left, right = got.astype(wide), wanted.astype(wide)
        np.testing.assert_allclose(
            left, right, made.tolerance, made.tolerance * 1e-2, err_msg=made.name
        )
        if wide is np.float64:
            zeros = (left == 0) & (right == 0)
            assert np.array_equal(np.signbit(left[zeros]), np.signbit(right[zeros])), made.name


@pytest.fixture(scope="module")
def xla() -> Any:
    """A function that runs StableHLO text on XLA:CPU."""
    jax = pytest.importorskip("jax")
    from jaxlib import lapack, xla_client  # type: ignore[attr-defined]

    lapack.prepare_lapack_call("getrf_ffi", np.dtype(np.float32))  # finds scipy's LAPACK

    with jax.enable_x64(True):
        backend = jax.local_devices(backend="cpu")[0].client
        devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))

        def run(text: str, inputs: Any) -> list[Any]:
            loaded = backend.compile_and_load(text, devices, xla_client.CompileOptions())
            arrays = [jax.device_put(x) for x in inputs]
            results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
            return [np.asarray(shards[0]) for shards in results]

        yield run


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_agrees_with_xla(room: OpDefinition, xla: Any) -> None:
    if room.name in XLA_CANNOT or room.name.startswith("chlo.broadcast_"):
        pytest.skip("XLA has no such operation")
    compared = [
        made for made in examples(room)
        if made.name not in XLA_DIFFERS and not made.name.startswith(PARTLY_OPEN)
    ]  # fmt: skip
    wanted = iter(xla(write_text(together(compared)).text, [x for e in compared for x in e.inputs]))
    for made in compared:
        for result in interpret(made.module, made.inputs):
            close(made, result, next(wanted))


def together(compared: list[Example]) -> Module:
    """One module that does all the examples: XLA compiles it once."""
    b = Builder()
    values = iter(b.arguments([a.type for e in compared for a in e.module.body.arguments]))
    results: list[Value] = []
    for made in compared:
        op, operands = made.op, [next(values) for _ in made.op.operands]
        again = b.op(op.name, operands, op.attributes, op.regions, op.result_types)
        results += again.results
    return Module({"main": Function("main", b.region(results))})


SPECIAL = {
    "chlo.erf": ("erf", 4e-16, 4e-7),
    "chlo.erfc": ("erfc", 2e-15, 5e-6),
    "chlo.erf_inv": ("erfinv", 5e-14, 2e-6),
    "chlo.lgamma": ("gammaln", 2e-14, 1e-5),
    "chlo.digamma": ("digamma", 2e-13, 1e-5),
    "chlo.bessel_i1e": ("i1e", 1e-14, 2e-6),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_are_accurate(name: str) -> None:
    """Relative errors (absolute below one for the gamma family) on dense points."""
    special = pytest.importorskip("scipy.special")
    reference, f64_bound, f32_bound = SPECIAL[name]
    limit = 0.9999 if name == "chlo.erf_inv" else 8.97
    points = np.linspace(-limit, limit, 1000)  # an even count: no zero, no pole
    for dtype, bound in ((np.float64, f64_bound), (np.float32, f32_bound)):
        x = points.astype(dtype)
        b = Builder()
        made = b(name, *b.arguments([tensor_of(x)])).op
        assert made is not None
        got = np.asarray(evaluated(made, [x])[0], np.float64)
        wanted = getattr(special, reference)(x.astype(np.float64))
        scale = np.maximum(np.abs(wanted), 1.0 if "gamma" in name else 1e-300)
        assert np.max(np.abs(got - wanted) / scale) <= bound

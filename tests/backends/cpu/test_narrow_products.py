"""Products of bf16, f16 and 8-bit numbers against the interpreter, on every feature level here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.cpu import codegen
from girih.backends.cpu.contract.group_lines import LineGroups
from girih.backends.cpu.contract.grouped import engine_for
from girih.backends.cpu.contract.lines import WindowLines
from girih.backends.cpu.contract.packing import _Panels
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Value, Weight
from girih.hlo.interpret import interpret
from girih.hlo.types import BF16, F16, F32, I8, I32, UI8, TensorType
from girih.options import Options

from ...levels import levels

pytestmark = pytest.mark.usefixtures("each_level")
RANDOM = np.random.default_rng(3)


def numbers(type: TensorType) -> np.ndarray[Any, Any]:
    if type.element.is_float:
        return RANDOM.standard_normal(type.dims).astype(type.dtype)
    limits = np.iinfo(type.dtype)
    return RANDOM.integers(limits.min, limits.max + 1, type.dims).astype(type.dtype)


def compiled(module: Module, *inputs: Any, level: str | None, **options: Any) -> Any:
    program = girih.compile(module, options=Options(cpu_level=level, **options))
    result = program(*inputs)
    return np.asarray(result[0] if isinstance(result, (list, tuple)) else result)


def agree(module: Module, *inputs: Any, level: str | None, **options: Any) -> None:
    """The compiled program gives the interpreter's numbers: integers exactly, floats as far as the
    order of f32 sums allows."""
    expected = interpret(module, list(inputs))[0]
    found = compiled(module, *inputs, level=level, **options)
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected)
        return
    scale = np.abs(expected.astype(np.float64)).max()
    tolerance = 1e-2 if found.dtype.itemsize == 2 else 5e-6
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
    assert error <= tolerance * scale


def product(
    left: TensorType, right: TensorType, out: Any, batch: int = 0, transposed: bool = False,
    after: str = "", weight: bool = False, widened: Any = None,
) -> Module:  # fmt: skip
    """dot_general over [batch..., rows, depth] and [batch..., depth, columns] (or transposed), of
    which the right side may be a weight, converted to `widened`; then `after`."""
    b = Builder()
    x, *rest = b.arguments([left] if weight else [left, right])
    y: Value = b("weight", type=right, weight="w") if weight else rest[0]
    if widened is not None:
        y = b.convert(y, widened)
    rows, columns = left.dims[-2], right.dims[-2 if transposed else -1]
    result = b(
        "dot_general", x, y, type=TensorType((*left.dims[:-2], rows, columns), out),
        lhs_batching_dimensions=tuple(range(batch)), rhs_batching_dimensions=tuple(range(batch)),
        lhs_contracting_dimensions=(batch + 1,),
        rhs_contracting_dimensions=(batch + transposed,),
    )  # fmt: skip
    if after:
        result = b(after, result, *([result] if after == "add" else []))
    module = Module({"main": Function("main", b.region([result]))})
    return module.with_weights({"w": Weight("w", numbers(right))}) if weight else module


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows, depth, columns", [(64, 64, 64), (33, 70, 45), (5, 3, 7)])
def test_bf16(level: str, rows: int, depth: int, columns: int, transposed: bool) -> None:
    left = TensorType((rows, depth), BF16)
    right = TensorType((columns, depth) if transposed else (depth, columns), BF16)
    module = product(left, right, F32, transposed=transposed)
    agree(module, numbers(left), numbers(right), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("transposed", [False, True])
def test_batches_and_epilogues(level: str, transposed: bool) -> None:
    left = TensorType((2, 3, 37, 66), BF16)
    right = TensorType((2, 3, 50, 66) if transposed else (2, 3, 66, 50), BF16)
    module = product(left, right, BF16, 2, transposed, after="add")
    agree(module, numbers(left), numbers(right), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("left", [I8, UI8])
@pytest.mark.parametrize("right", [I8, UI8])
def test_bytes_are_summed_exactly(level: str, left: Any, right: Any) -> None:
    x, y = TensorType((35, 70), left), TensorType((45, 70), right)
    agree(product(x, y, I32, transposed=True), numbers(x), numbers(y), level=level)
    x, y = TensorType((20, 129), left), TensorType((129, 40), right)
    agree(product(x, y, I32, after="add"), numbers(x), numbers(y), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("element, out", [(BF16, F32), (I8, I32)])
def test_packed_weights(level: str, rows: int, element: Any, out: Any) -> None:
    for depth, columns in ((256, 128), (192, 100), (200, 96)):
        left, right = TensorType((rows, depth), element), TensorType((columns, depth), element)
        agree(product(left, right, out, transposed=True, weight=True), numbers(left), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("stored", [I8, UI8, BF16, F16])
def test_narrow_weights_are_widened_in_registers(level: str, rows: int, stored: Any) -> None:
    left, right = TensorType((rows, 200), F32), TensorType((150, 200), stored)
    module = product(left, right, F32, transposed=True, weight=True, widened=F32)
    agree(module, numbers(left), level=level)


@pytest.mark.parametrize("level", [row[0] for rows in codegen._LEVELS.values() for row in rows])
@pytest.mark.parametrize("element, out", [(BF16, F32), (I8, I32), (UI8, I32)])
def test_code_is_made_for_every_level_anywhere(level: str, element: Any, out: Any) -> None:
    left, right = TensorType((40, 192), element), TensorType((100, 192), element)
    module = product(left, right, out, transposed=True, weight=True)
    program = girih.compile(module, target=f"cpu:{level}")
    assert tuple(program.plan.features) == codegen.level_target(level).features


def test_a_narrow_weight_stays_narrow() -> None:
    left, right = TensorType((1, 512), F32), TensorType((512, 512), I8)
    module = product(left, right, F32, transposed=True, weight=True, widened=F32, after="tanh")
    program = girih.compile(module)
    assert len(program.plan.kernels) == 1
    assert program.memory.constant_bytes <= 512 * 512 + 4096


def test_any_number_of_workers_gives_the_same_bits() -> None:
    left, right = TensorType((70, 300), BF16), TensorType((300, 90), BF16)
    module, inputs = product(left, right, F32), (numbers(left), numbers(right))
    found = {compiled(module, *inputs, level=None, threads=n).tobytes() for n in (1, 2, 3)}
    assert len(found) == 1


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("features_last", [True, False])
@pytest.mark.parametrize(
    "features, outputs, kernel, step, groups, dilation",
    [
        (32, 48, 3, 1, 1, 1),
        (5, 20, 3, 2, 1, 1),
        (64, 64, 1, 1, 1, 1),
        (64, 128, 3, 1, 2, 1),  # whole panels in a group
        (24, 48, 3, 2, 3, 1),  # none
        (16, 64, 4, 1, 1, 2),  # transposed: each phase reads every other tap
    ],
)
def test_convolutions(
    level: str, features_last: bool, features: int, outputs: int, kernel: int, step: int,
    groups: int, dilation: int,
) -> None:  # fmt: skip
    size, pad = 9, kernel // 2
    dims = (2, size, size, features) if features_last else (2, features, size, size)
    feature, first = (3, 1) if features_last else (1, 2)
    weight = TensorType((outputs, features // groups, kernel, kernel), BF16)
    out = ((size - 1) * dilation + 1 + 2 * pad - kernel) // step + 1
    result = (2, out, out, outputs) if features_last else (2, outputs, out, out)
    b = Builder()
    (x,) = b.arguments([TensorType(dims, BF16)])
    y = b(
        "convolution", x, b("weight", type=weight, weight="w"), type=TensorType(result, F32),
        window_strides=(step, step), padding=((pad, pad), (pad, pad)),
        lhs_dilation=(dilation, dilation), rhs_dilation=(1, 1),
        window_reversal=(dilation > 1, dilation > 1), input_batch_dimension=0,
        input_feature_dimension=feature, input_spatial_dimensions=(first, first + 1),
        kernel_output_feature_dimension=0, kernel_input_feature_dimension=1,
        kernel_spatial_dimensions=(2, 3), output_batch_dimension=0,
        output_feature_dimension=feature, output_spatial_dimensions=(first, first + 1),
        feature_group_count=groups, batch_group_count=1,
    )  # fmt: skip
    module = Module({"main": Function("main", b.region([y]))})
    module = module.with_weights({"w": Weight("w", numbers(weight))})
    agree(module, numbers(TensorType(dims, BF16)), level=level)


def test_windows_of_packed_weights() -> None:
    """Panels of a tile are windows of a packed weight; so are steps of its depth, unless kernels
    may read behind the last one."""
    type = TensorType((4, 6, 1), BF16)
    for whole in (False, True):
        panels = _Panels((1,), (0, 2), 2, type.dims, 2, whole=whole)
        windows = panels.packing.windows
        assert windows is not None
        assert windows.steps == ((0, 2), None if whole else (1, 2), None, None)
    taps = _Panels((2, 3, 1), (0,), 32, (64, 16, 3, 3), 2).packing.windows
    assert taps is not None
    assert taps.steps == ((0, 32), None, None, None)
    assert _Panels((1,), (0,), 32, (64, 16), 2, 32).packing.windows is None


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("numerics", ["bitwise", "ignores-zero-sign"])
def test_subnormal_operands_and_sums_are_numbers(level: str, numerics: str) -> None:
    left, right = TensorType((64, 64), BF16), TensorType((64, 64), BF16)
    x = np.zeros((64, 64), left.dtype)
    x[:, 0], x[:, 1] = 1e-39, 1.5e-30
    y = np.zeros((64, 64), right.dtype)
    y[0], y[1] = 2.0, 1e-10
    module = product(left, right, F32)
    (expected,) = interpret(module, [x, y])
    assert expected.min() > 0 and expected.max() < np.finfo(np.float32).tiny
    found = compiled(module, x, y, level=level, numerics=numerics)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", levels())
def test_results_are_rounded_to_nearest_even(level: str) -> None:
    """Single products of bf16 are f32, half of them between two bf16, many in the middle."""
    left, right = TensorType((64, 2), BF16), TensorType((2, 64), BF16)
    x, y = np.zeros(left.dims, left.dtype), np.zeros(right.dims, right.dtype)
    x[:, 0], y[0] = 1 + np.arange(64) / 64, 1 + np.arange(64) / 128
    x[5, 0], x[6, 0], x[7, 0] = np.inf, np.nan, 3e38
    module = product(left, right, BF16)
    (expected,) = interpret(module, [x, y])
    with np.errstate(invalid="ignore"):
        found = compiled(module, x, y, level=level)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("level", ["amx", "avx512-bf16"])
def test_instructions_that_flush_are_left_out(level: str) -> None:
    """Those of integers stay, on every machine's view of a level."""
    present = {feature for _, required, _ in codegen._LEVELS["x86_64"] for feature in required}
    target = codegen.make_target("x86_64-unknown-linux-gnu", present, level)
    assert engine_for(target, BF16, BF16, "float") is not None
    kept = target.without_flushes
    assert engine_for(kept, BF16, BF16, "float") is None
    assert engine_for(kept, I8, I8, "i32") == engine_for(target, I8, I8, "i32") is not None
    assert kept.without_flushes is kept


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("columns", [256, 270])
def test_sums_and_what_they_are_narrowed_to_are_one_kernel(level: str, columns: int) -> None:
    types = [TensorType((512, 70), BF16), TensorType((70, columns), BF16)]
    b = Builder()
    x, y = b.arguments(types)
    sums = b(
        "dot_general", x, y, type=TensorType((512, columns), F32), lhs_contracting_dimensions=(1,),
        rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(), rhs_batching_dimensions=(),
    )  # fmt: skip
    module = Module({"main": Function("main", b.region([sums, b.convert(sums, BF16)]))})
    inputs = [numbers(type) for type in types]
    program = girih.compile(module, options=Options(cpu_level=level))
    assert len(program.plan.kernels) == 1
    wide, narrow = (np.asarray(value) for value in program(*inputs))
    expected = interpret(module, inputs)[0]
    assert np.abs(wide - expected).max() <= 5e-6 * np.abs(expected).max()
    np.testing.assert_array_equal(narrow, wide.astype(narrow.dtype))


def convolution(
    image: TensorType, kernel: TensorType, out: Any, strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...], dilation: tuple[int, ...], features_last: bool = True,
    result_last: bool = True,
) -> Module:  # fmt: skip
    """An image [batch, spatial..., features], or [batch, features, spatial...], and a weight
    [outputs, features, taps...]; the result's features are last, or behind the batch."""
    rank = len(strides)
    sizes = image.dims[1:-1] if features_last else image.dims[2:]
    results = [
        (size + sum(pad) - (taps - 1) * apart - 1) // step + 1
        for size, pad, taps, apart, step in zip(
            sizes, padding, kernel.dims[2:], dilation, strides, strict=True
        )
    ]
    last, behind = tuple(range(1, rank + 1)), tuple(range(2, rank + 2))
    shape = (*results, kernel.dims[0]) if result_last else (kernel.dims[0], *results)
    b = Builder()
    (x,) = b.arguments([image])
    y = b(
        "convolution", x, b("weight", type=kernel, weight="w"),
        type=TensorType((image.dims[0], *shape), out),
        window_strides=strides, padding=padding, lhs_dilation=(1,) * rank,
        rhs_dilation=dilation, window_reversal=(False,) * rank, input_batch_dimension=0,
        input_feature_dimension=rank + 1 if features_last else 1,
        input_spatial_dimensions=last if features_last else behind,
        kernel_output_feature_dimension=0, kernel_input_feature_dimension=1,
        kernel_spatial_dimensions=behind, output_batch_dimension=0,
        output_feature_dimension=rank + 1 if result_last else 1,
        output_spatial_dimensions=last if result_last else behind,
        feature_group_count=1, batch_group_count=1,
    )  # fmt: skip
    module = Module({"main": Function("main", b.region([y]))})
    return module.with_weights({"w": Weight("w", numbers(kernel))})


LINES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 84, 16), (48, 16, 3, 3), {}),
    ((1, 5, 84, 12), (32, 12, 3, 3), {"padding": ((2, 0), (1, 1))}),
    ((1, 9, 168, 24), (40, 24, 3, 3), {"strides": (2, 2), "padding": ((1, 1), (1, 0))}),
    ((1, 24, 84, 12), (32, 12, 3, 3), {"padding": ((8, 8), (4, 4)), "dilation": (8, 4)}),
    ((1, 168, 12), (32, 12, 5), {"padding": ((2, 2),)}),
    ((1, 2, 3, 84, 16), (32, 16, 3, 3, 3), {}),
    # Whole lines, which the windows of several share.
    ((2, 9, 28, 16), (48, 16, 3, 3), {}),
    ((1, 23, 84, 8), (32, 8, 5, 3), {"strides": (2, 2), "padding": ((3, 1), (1, 1))}),
    ((1, 70, 42, 12), (64, 12, 4, 3), {"padding": ((0, 2), (1, 1))}),
    ((2, 3, 7, 28, 16), (32, 16, 3, 3, 3), {}),
]  # fmt: skip
"""Lines of a length that panels of 14 and 12 rows divide."""


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("left, right", [(BF16, BF16), (I8, I8), (UI8, I8), (I8, UI8)])
@pytest.mark.parametrize("case", range(len(LINES)))
def test_lines_that_neighbours_share(
    level: str, case: int, left: Any, right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims, kernel, options = LINES[case]
    rank, packed = len(kernel) - 2, []
    pack = WindowLines.pack
    monkeypatch.setattr(WindowLines, "pack", lambda *a: packed.append(a) or pack(*a))
    chosen = {
        "strides": (1,) * rank, "padding": ((1, 1),) * rank, "dilation": (1,) * rank, **options,
    }  # fmt: skip
    image, weight = TensorType(dims, left), TensorType(kernel, right)
    module = convolution(image, weight, F32 if left is BF16 else I32, **chosen)
    agree(module, numbers(image), level=level, cache="off")
    if level == "avx512-bf16" and case < 6:
        assert packed


COLUMNS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 5, 64), (3, 8, 3, 3), {}),
    ((1, 12, 9, 66), (20, 12, 5, 3), {"padding": ((0, 3), (0, 0)), "strides": (2, 1)}),
    ((1, 4, 7, 96), (5, 4, 3, 3), {"padding": ((2, 2), (9, 9)), "dilation": (2, 9)}),
    ((2, 4, 160), (3, 4, 7), {"padding": ((6, 0),)}),
    ((1, 4, 3, 4, 32), (3, 4, 3, 3, 3), {}),
    ((1, 6, 4, 64), (3, 6, 3, 3), {}),
    ((1, 8, 4, 48), (3, 8, 3, 3), {}),
]  # fmt: skip
"""Lines that column groups of 32 divide, of features that groups of 2 and 4 divide; the last ones
not."""


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("left, right", [(BF16, BF16), (I8, I8), (UI8, I8), (I8, UI8)])
@pytest.mark.parametrize("case", range(len(COLUMNS)))
def test_lines_of_pixels_as_columns(
    level: str, case: int, left: Any, right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims, kernel, options = COLUMNS[case]
    rank, opened = len(kernel) - 2, []
    bring = LineGroups.open
    monkeypatch.setattr(LineGroups, "open", lambda *a: opened.append(a) or bring(*a))
    chosen = {
        "strides": (1,) * rank, "padding": ((1, 1),) * rank, "dilation": (1,) * rank, **options,
    }  # fmt: skip
    image, weight = TensorType(dims, left), TensorType(kernel, right)
    out = F32 if left is BF16 else I32
    module = convolution(image, weight, out, **chosen, features_last=False, result_last=False)
    agree(module, numbers(image), level=level, cache="off", disable=("channels-last",))
    if level == "avx512-bf16":
        fits = case < 5 or case == 5 and left is BF16
        assert bool(opened) == fits


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("element, out", [(BF16, F32), (I8, I32)])
@pytest.mark.parametrize("features_last", [True, False])
@pytest.mark.parametrize("features, taps", [(3, 7), (4, 4), (5, 16)])
def test_runs_of_few_features(
    level: str, features: int, taps: int, features_last: bool, element: Any, out: Any
) -> None:
    dims = (1, 30, 33, features) if features_last else (1, features, 30, 33)
    image, weight = TensorType(dims, element), TensorType((32, features, taps, taps), element)
    padding, dilation = ((3, 3), (2, 4)), (1, 1)
    module = convolution(image, weight, out, (2, 2), padding, dilation, features_last)
    agree(module, numbers(image), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("element, out, depth", [(BF16, F32, 2048), (I8, I32, 4096)])
def test_rows_that_crowd_a_cache(level: str, element: Any, out: Any, depth: int) -> None:
    left, right = TensorType((49, depth), element), TensorType((160, depth), element)
    agree(product(left, right, out, transposed=True, weight=True), numbers(left), level=level)


@pytest.mark.parametrize("level", [row[0] for rows in codegen._LEVELS.values() for row in rows])
@pytest.mark.parametrize("element, out", [(BF16, F32), (I8, I32)])
def test_code_of_windows_is_made_for_every_level_anywhere(
    level: str, element: Any, out: Any
) -> None:
    padding = ((1, 1), (1, 1))
    for dims, features_last in (((1, 5, 84, 16), True), ((1, 3, 21, 84), False)):
        features = dims[3] if features_last else dims[1]
        image, weight = TensorType(dims, element), TensorType((32, features, 3, 3), element)
        module = convolution(image, weight, out, (1, 1), padding, (1, 1), features_last)
        program = girih.compile(module, target=f"cpu:{level}")
        assert tuple(program.plan.features) == codegen.level_target(level).features


@pytest.mark.parametrize("element, out", [(BF16, F32), (I8, I32)])
def test_workers_of_lines_give_the_same_bits(element: Any, out: Any) -> None:
    image, weight = TensorType((1, 12, 84, 16), element), TensorType((96, 16, 3, 3), element)
    module = convolution(image, weight, out, (1, 1), ((1, 1), (1, 1)), (1, 1))
    inputs = numbers(image)
    found = {compiled(module, inputs, level=None, threads=n).tobytes() for n in (1, 2, 3)}
    assert len(found) == 1

"""Plans of ranges and of hot sizes, what keeps buffers apart at all sizes, calls of many sizes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.cpu.machines import typical
from girih.cli.app import app
from girih.cli.inspecting import describe
from girih.hlo.assumptions import Assumptions
from girih.hlo.errors import CompilerBug
from girih.hlo.sizes import Symbol
from girih.optimizer import size_ranges
from girih.optimizer.certify import check_plan
from girih.optimizer.passes.connect import Tilings
from girih.optimizer.shared import Shared
from girih.optimizer.size_ranges import Range, choose
from girih.optimizer.tiles.nodes import KnownGroups
from girih.runtime.bundle import Bundle
from girih.runtime.devices.work import OpenWork
from girih.runtime.sizes import KEPT
from girih.specs.generated import plan_pb2

from .optimizer.tiles.open_programs import ROWS, attention, expected, inputs_at

SIZES = ((1, 37), (1, 1), (2, 8), (3, 9), (1, 32), (2, 33), (5, 130), (64, 3), (2, 512))


@pytest.fixture(scope="module")
def program() -> girih.Program:
    hot = ({"batch": 1, "rows": 37},)
    return girih.compile(attention(ROWS), options=girih.Options(cache="off"), hot=hot)


def test_every_plan_gives_what_the_reference_gives(program: girih.Program, tmp_path: Path) -> None:
    assert 2 < len(program.plans) <= 4
    program.save(tmp_path / "a.girih")
    loaded = girih.load(tmp_path / "a.girih")
    taken = set()
    for batch, rows in SIZES:
        given = inputs_at(batch, rows, rows)
        np.testing.assert_allclose(loaded(*given)[0], expected(*given), atol=2e-5)
        taken.add(len(loaded.at(batch=batch, rows=rows).plan.kernels))
    assert len(taken) > 1


def test_lowerings_that_share_passes_give_the_same_plans(
    program: girih.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def nothing(*given: Any) -> None:
        asked.append(given)

    monkeypatch.setattr(Shared, "reached", nothing)
    monkeypatch.setattr(Shared, "tilings_of", lambda self, module: Tilings())
    monkeypatch.setattr(KnownGroups, "equal", lambda self, group: group)
    hot = ({"batch": 1, "rows": 37},)
    anew = girih.compile(attention(ROWS), options=girih.Options(cache="off"), hot=hot)
    assert len(asked) > 2
    assert [p.SerializeToString(deterministic=True) for p in anew.plans] == [
        p.SerializeToString(deterministic=True) for p in program.plans
    ]


def test_a_call_at_a_new_size_makes_no_signature(program: girih.Program) -> None:
    sized = program.at(batch=2, rows=19)
    sized(*inputs_at(2, 19, 19))
    assert "_signature" not in vars(sized)


def test_a_program_with_checks_has_all_plans(program: girih.Program) -> None:
    checked = program.with_checks(inputs_at(3, 9, 9), inputs_at(1, 37, 37))
    assert len(checked.plans) == len(program.plans)
    assert all(error <= tolerance for error, tolerance in checked.run_checks())


def test_hot_sizes_have_code_of_fixed_sizes(program: girih.Program) -> None:
    hot = program.plans[0]
    assert [guard.text for guard in hot.guards] == ["batch == 1", "rows == 37"]
    assert not hot.formulas and "hot" in hot.notes[-1]
    assert not program.plans[-1].guards and program.plans[-1].formulas
    assert len(program.at(batch=1, rows=37).plan.formulas) == 0
    assert len(program.at(batch=1, rows=38).plan.formulas) > 0


@pytest.mark.parametrize(
    ("hot", "message"),
    [
        ({"batch": 65}, "hot: batch = 65, but it must be from 1 to 64"),
        ({"length": 1}, "no entry point has all the sizes of length=1; open sizes are batch, rows"),
    ],
)
def test_hot_sizes_are_checked(hot: dict[str, int], message: str) -> None:
    with pytest.raises(girih.UserError, match=message):
        girih.compile(attention(ROWS), options=girih.Options(cache="off", size_plans=1), hot=[hot])


def test_the_options_of_sizes() -> None:
    assert girih.Options(hot=("a=1, b=2",)).hot_sizes == {"a=1, b=2": {"a": 1, "b": 2}}
    wrong: tuple[dict[str, Any], ...] = (
        {"hot": ("a",)}, {"hot": ("a=b",)}, {"hot": ("a=1;b=2",)}, {"size_plans": 0},
    )  # fmt: skip
    for settings in wrong:
        with pytest.raises(girih.UserError, match="hot|size_plans"):
            girih.Options(**settings)
    with pytest.raises(girih.UserError, match="hot: a dict"):
        girih.compile("", hot=["a=1"])  # pyright: ignore[reportArgumentType]


def test_inspect_says_which_plan_is_for_which_sizes(program: girih.Program, tmp_path: Path) -> None:
    path = tmp_path / "a.girih"
    program.save(path)
    found = describe(Bundle(path))
    sizes = found["entries"]["main"]["sizes"]
    assert sizes["rows"]["values"] == "from 1 to 512"
    assert sizes["rows"]["dims"] == ["input[0].2", "input[1].2", "input[2].2"]
    plan = found["variants"]["cpu"]
    assert plan["guards"] == ["batch == 1", "rows == 37"]
    *ranges, last = plan["others"]
    assert all(one["guards"] for one in ranges) and not last["guards"]
    assert any("predicted" in note for one in plan["others"] for note in one["notes"])
    json.dumps(found["entries"])


def test_the_command_line_takes_hot_sizes(tmp_path: Path, capsys: Any) -> None:
    text = "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  return %x : tensor<?xf32>\n}\n"
    (tmp_path / "a.mlir").write_text(text)
    name = str(girih.import_model(text).body.arguments[0].dims[0])
    out = tmp_path / "a.girih"
    command = ["compile", str(tmp_path / "a.mlir"), "-o", str(out), "--size", f"{name}=1..9"]
    app([*command, "--hot", f"{name}=4"], standalone_mode=False)
    plan = describe(Bundle(out))["variants"]["cpu"]
    assert plan["guards"] == [f"{name} == 4"] and len(plan["others"]) == 1


def living(plan: Any) -> list[tuple[int, int]]:
    """Buffers of the arena that live together."""
    arena = [n for n, b in enumerate(plan.buffers) if b.place == plan_pb2.ARENA]
    pairs = []
    for one, other in itertools.combinations(arena, 2):
        a, b = plan.buffers[one], plan.buffers[other]
        if a.first_step <= b.last_step and b.first_step <= a.last_step:
            pairs.append((one, other))
    return pairs


def unordered(plan: Any) -> list[tuple[int, int]]:
    """Buffers of the arena of which one is written by a step while another may be in use."""
    pairs, pending = [], list[tuple[int, bool]]()
    for step in plan.steps:
        arguments = [a.buffer for a in step.run.arguments]
        touched = [(n, place >= step.run.operands) for place, n in enumerate(arguments)]
        touched = [t for t in touched if plan.buffers[t[0]].place == plan_pb2.ARENA]
        pending = [] if step.run.wait else pending
        pairs += [(a, b) for a, w in touched for b, v in pending if w or v]
        pending += touched
    return pairs


BRANCHES = """
func.func @main(%x: tensor<?x64xf32>, %w: tensor<64x64xf32>) -> tensor<?x64xf32> {
  %0 = stablehlo.reverse %x, dims = [1] : tensor<?x64xf32>
  %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  %2 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  %3 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1]
    : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  %4 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1]
    : (tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>
  %5 = stablehlo.subtract %3, %4 : tensor<?x64xf32>
  return %5 : tensor<?x64xf32>
}
"""


@pytest.fixture(scope="module")
def branches() -> girih.Program:
    module = girih.import_model(BRANCHES)
    ranges = dict.fromkeys(module.symbols, (0, 300))
    options = girih.Options(cache="off", size_plans=1, disable=("connect",))
    return girih.compile(module, options=options, sizes=ranges)


def test_buffers_are_apart_at_all_sizes(branches: girih.Program) -> None:
    (name,) = branches.sizes
    largest = branches.memory.arena_bytes
    for size in (0, 1, 2, 15, 16, 17, 100, 299, 300):
        plan = branches.at(**{name: size}).plan
        assert plan.memory.arena_bytes <= largest
        assert unordered(plan)  # some steps need not wait
        for one, other in {*living(plan), *unordered(plan)}:
            a, b = plan.buffers[one], plan.buffers[other]
            assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert max(a.offset + a.bytes, b.offset + b.bytes) <= plan.memory.arena_bytes
        x = np.random.default_rng(size).normal(size=(size, 64)).astype(np.float32)
        w = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
        wanted = (x.astype(float) @ w - x[:, ::-1].astype(float) @ w) @ w.T
        np.testing.assert_allclose(branches(x, w)[0], wanted, atol=2e-3)


def test_a_limit_names_sizes_that_fit(branches: girih.Program) -> None:
    (name,) = branches.sizes
    at = {size: branches.at(**{name: size}).memory.allocated_bytes for size in (123, 124)}
    assert at[123] < at[124]
    options = girih.Options(
        cache="off", size_plans=1, disable=("connect",), max_memory=at[124] - 1,
    )  # fmt: skip
    ranges = dict.fromkeys(girih.import_model(BRANCHES).symbols, (0, 300))
    with pytest.raises(girih.UserError, match=f"--size {name}=0..123 fits"):
        girih.compile(BRANCHES, options=options, sizes=ranges)
    girih.compile(BRANCHES, options=options, sizes={**ranges, name: (0, 123)})


def test_what_does_not_keep_buffers_apart_is_rejected(branches: girih.Program) -> None:
    (plan,) = branches.plans
    results = {n: len(s.run.arguments) - s.run.operands for n, s in enumerate(plan.steps)}
    check_plan(plan, results)
    for number, buffer in enumerate(plan.buffers):
        for place in range(len(buffer.above)):
            changed = plan_pb2.Plan()
            changed.CopyFrom(plan)
            del changed.buffers[number].above[place]
            with pytest.raises(CompilerBug, match="nothing keeps buffers"):
                check_plan(changed, results)
    for number, step in enumerate(plan.steps):
        if step.run.wait:
            changed = plan_pb2.Plan()
            changed.CopyFrom(plan)
            changed.steps[number].run.wait = False
            with pytest.raises(CompilerBug, match="wait|apart"):
                check_plan(changed, results)


def test_sizes_are_kept_up_to_a_bound(branches: girih.Program) -> None:
    (name,) = branches.sizes
    w = np.eye(64, dtype=np.float32)
    first = branches.at(**{name: 250})
    blocks = first._device.context.__self__.blocks.free
    branches(np.zeros((250, 64), np.float32), w)
    memory = {id(block) for block in blocks}
    for size in range(1, 200):
        x = np.full((size, 64), size, np.float32)
        np.testing.assert_allclose(branches(x, w)[0], 0, atol=1e-5)
    known = branches._sizes
    assert known is not None
    assert len(known._programs) == len(known._known) == KEPT
    assert branches.at(**{name: 199}) is branches.at(**{name: 199})
    assert branches.at(**{name: 250}) is not first
    assert {id(block) for block in blocks} == memory  # nothing was allocated since


def predicted(monkeypatch: pytest.MonkeyPatch, times: dict[int, Any]) -> None:
    """Kernels are the value of n that they are made for; times[n](n of a call) is their time."""

    class Predictor:
        def __init__(self, assumptions: Any, machine: Any, sample: Any) -> None:
            self.sample = sample

        def __call__(self, judged: Any) -> Any:
            return np.array([times.get(judged[0], times[0])(one["n"]) for one in self.sample])

    monkeypatch.setattr(size_ranges, "_Predictor", Predictor)


def chosen(most: int = 2) -> Any:
    assumptions = Assumptions({"n": Symbol(1, 256)})
    lower: Any = lambda hints: [hints["n"]]  # noqa: E731
    return choose(assumptions, {"n": 128}, typical("avx2"), lower, most)


def test_a_range_is_worth_a_plan_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted(monkeypatch, {0: lambda n: 1.0, 4: lambda n: 0.5 if n <= 8 else 2.0})
    choice = chosen()
    assert choice.hints == {"n": 128}
    (one,) = choice.ranges
    assert one.bounds == {"n": (1, 8)} and one.hints == {"n": 4} and one.gain == pytest.approx(0.5)
    assert list(map(str, one.conditions)) == ["1 <= n", "n <= 8"]
    assert "from 1 to 8: predicted to take 50 % less" in str(one)
    assert chosen(most=0).ranges == ()


def test_little_gain_and_short_calls_get_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted(monkeypatch, {0: lambda n: 1.0, 4: lambda n: 0.99})
    assert chosen().ranges == ()
    short = 2 * size_ranges.SECONDS_PER_CALL
    predicted(monkeypatch, {0: lambda n: short, 4: lambda n: short / 9})
    assert chosen().ranges == ()


def test_the_plan_for_all_sizes_is_for_large_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = lambda n: 0.2 if n <= 16 else 3  # noqa: E731
    predicted(monkeypatch, {0: lambda n: 1.0, 4: small, 256: lambda n: 0.5})
    choice = chosen()
    assert choice.hints == {"n": 256}
    assert [one.hints for one in choice.ranges] == [{"n": 4}]


def test_ranges_begin_where_sizes_do() -> None:
    values = size_ranges._values
    assert values(Symbol(0, 100), 3) == [1, 6, 100]
    assert values(Symbol(16, 512, 16, 0), 9) == [16, 32, 64, 128, 256, 512]
    assert values(Symbol(0, 0), 9) == [0] and values(Symbol(7, 7), 9) == [7]


def test_a_range_of_one_value_is_an_equation() -> None:
    one = Range({"n": (3, 3), "m": (1, 2)})
    assert list(map(str, one.conditions)) == ["n == 3", "1 <= m", "m <= 2"]


def test_steps_and_calls_have_workers_where_they_are_worth_it() -> None:
    plan = plan_pb2.Plan(formulas=["4*n"])
    plan.buffers.add(place=plan_pb2.ARENA, bytes=4_000_000, bytes_formula=1)
    plan.buffers.add(place=plan_pb2.WEIGHT, bytes=1000)
    run = plan.steps.add().run
    run.parallel, run.flops, run.bytes, run.wait = True, 1e7, 101_000, True
    run.arguments.add(buffer=0)
    run.arguments.add(buffer=1)
    work = OpenWork(plan)
    assert work.rows == ([0],)
    assert work.at([40]) == ([False], True)  # 40 of 100,000 bytes, so 4,000 operations
    assert work.at([100_000]) == ([True], False)
    assert work.at([4000]) == ([True], True)

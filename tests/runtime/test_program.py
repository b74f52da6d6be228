"""Calls: structure, errors that name the argument, foreign arrays, threads, donation, profiles."""

from __future__ import annotations

import json
import threading
import timeit
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import girih
from girih import UserError
from girih.hlo.signature import Argument, Signature
from girih.hlo.trees import Tree
from girih.runtime.inputs import Leaf
from girih.runtime.profile import module_path
from girih.runtime.program import Program
from girih.specs.generated import plan_pb2

from .fakes import FLAT, NESTED, AddingVariant, adding_program, plan_for

ONES = np.ones((2, 3), np.float32)


def one(element="f32", dims=(), **changes) -> Program:
    """A program of one argument `x`, whose result is that argument."""
    signature = Signature.plain([(dims, element)], [(dims, element)], names=["x"])
    return adding_program(signature, **changes)


def refusal(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flat_programs_give_a_list():
    program = adding_program()
    (result,) = program(ONES, 2 * ONES)
    assert isinstance(program(ONES, ONES), list)
    assert result.tolist() == (3 * ONES).tolist()
    assert result.ctypes.data % 64 == 0
    assert result.flags.writeable


def test_nested_structure_and_keywords():
    program = adding_program(NESTED)
    x = np.arange(3, dtype=np.float32)
    params = {"w": [x, x], "b": None}
    for result in (
        program(params, x),
        program(params, x=x),
        program(x=x, params=params),
        program({"b": None, "w": (x, x)}, x),
    ):
        assert list(result) == ["loss", "more"]
        assert isinstance(result["more"], tuple) and isinstance(result["more"][1], list)
        assert result["more"][1][0].tolist() == [0, 3, 6]


def test_what_a_model_writes_of_its_inputs_comes_beside_the_outputs():
    signature = Signature.build(
        Tree.flat(1), [((2,), "f32")], Tree.leaf(), [((2,), "f32")] * 2, state=["input[0]"]
    )
    program = adding_program(signature)
    assert program(np.ones(2, np.float32)).tolist() == [1, 1]
    output, state = program.stateless(np.ones(2, np.float32))
    assert output.tolist() == state["input[0]"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((ONES,), "inputs: the program takes 2 positional inputs (input[0]: f32[2,3], "),
        ((ONES, ONES, ONES), "got 3"),
        ((ONES, ONES.T), "input[1]: expected float32[2,3], got float32[3,2]"),
        ((ONES.astype("f8"), ONES), "input[0]: expected float32[2,3], got float64[2,3]; types"),
        ((ONES, ONES.astype(">f4")), "foreign byte order"),
        ((ONES, [[1.0] * 3] * 2), "input[1]: expected float32[2,3], got a list of 2"),
        ((ONES, None), "input[1]: expected float32[2,3], got None"),
        ((ONES, 1.0), "input[1]: expected float32[2,3], got the scalar 1.0"),
        ((ONES, "abc"), "input[1]: expected float32[2,3], got str"),
        ((ONES, np.ma.masked_array(ONES)), "masked array"),
        ((ONES, ONES.astype(object)), "got object[2,3]"),
    ],
)
def test_wrong_arguments(inputs, words):
    assert words in refusal(lambda: adding_program()(*inputs))


def test_errors_name_the_path():
    x = np.ones(3, np.float32)
    bad = {"w": [x, x[:2]], "b": None}
    assert "params['w'][1]: expected float32[3]" in refusal(lambda: adding_program(NESTED)(bad, x))


@pytest.mark.parametrize(
    ("element", "value", "stored"),
    [
        ("f32", 2, 2.0),
        ("f32", 0.1, np.float32(0.1)),
        ("f32", np.float32(3), 3.0),
        ("f64", float("inf"), float("inf")),
        ("bf16", 1.5, 1.5),
        ("i32", 7, 7),
        ("i4", -8, -8),
        ("ui8", 255, 255),
        ("i1", True, True),
        ("complex<f32>", 1 + 2j, 1 + 2j),
        ("complex<f32>", 3, 3),
    ],
)
def test_scalars(element, value, stored):
    assert one(element)(value)[0] == stored


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("i32", 1.0),
        ("i32", True),
        ("i1", 1),
        ("f32", True),
        ("f32", 1j),
        ("i8", 128),
        ("ui8", -1),
        ("i4", 8),
        ("f32", 2**24 + 1),
        ("f32", 1e300),
        ("f32", np.float64(1)),
    ],
)
def test_scalars_that_would_be_cast(element, value):
    assert refusal(lambda: one(element)(value)).startswith("x: expected ")


def test_arrays_that_are_copied_are_counted():
    program = one(dims=(3, 2))
    wide = np.ones((3, 4), np.float32)
    shifted = np.ones(25, np.uint8)[1:].view(np.float32).reshape(3, 2)
    for array in (ONES.T, wide[:, ::2], shifted):
        before = program.copies
        program(array)
        assert program.copies == before + 1
    program(np.ones((3, 2), np.float32))
    assert program.copies == 3


class Exporter:
    """Speaks DLPack alone, as a tensor of some other library does."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        return self.array.__dlpack__()


def test_dlpack_is_not_copied(monkeypatch):
    seen = []
    accept = Leaf.accept

    def watched(self, value, giving=False):
        seen.append(accept(self, value)[0])
        return seen[-1], False

    monkeypatch.setattr(Leaf, "accept", watched)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert one(dims=(2, 3))(Exporter(array))[0].tolist() == array.tolist()
    assert np.shares_memory(seen[0], array)
    assert one(dims=(3, 2))(Exporter(array.T))[0].tolist() == array.T.tolist()
    assert one(dims=(0, 3))(Exporter(array[:0]))[0].shape == (0, 3)
    assert one()(Exporter(array[0, 1:2].reshape(())))[0] == 1


def test_dlpack_keeps_its_owner_alive():
    array, _ = Leaf(Argument("x", (1 << 16,), "f32")).accept(Exporter(np.ones(1 << 16, np.float32)))
    junk = [np.zeros(1 << 16, np.float32) for _ in range(20)]
    assert array.sum() == 1 << 16 and junk


def test_arrays_elsewhere():
    words = refusal(lambda: one(dims=(2, 3))(Exporter(ONES, (2, 1))))
    assert "x: " in words and "cuda:1" in words and "runs on the CPU" in words


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    program = one("bf16", (2, 3))
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    (result,) = program(tensor)
    assert result.dtype == ml_dtypes.bfloat16 and program.copies == 0
    assert result.astype(np.float32).tolist() == tensor.float().tolist()
    (result,) = one(dims=(3,))(torch.ones(3, requires_grad=True))
    assert result.tolist() == [1, 1, 1]


def test_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    for dtype, element in ((jnp.bfloat16, "bf16"), (jnp.float32, "f32"), (jnp.bool_, "i1")):
        array = jnp.arange(3).astype(dtype)
        assert np.array_equal(one(element, (3,))(array)[0], np.asarray(array))


def test_concurrent_calls():
    program = adding_program()
    AddingVariant.contexts_made = 0
    failures = []

    def work(number: int) -> None:
        x = np.full((2, 3), number, np.float32)
        for _ in range(200):
            if program(x, ONES)[0][0, 0] != number + 1:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert AddingVariant.contexts_made <= 8


def test_a_context_is_used_again():
    program = adding_program()
    AddingVariant.contexts_made = 0
    for _ in range(5):
        program(ONES, ONES)
    assert AddingVariant.contexts_made == 1


def donating(replaces: bool = True) -> Program:
    """f(a donated, b): the result replaces a; in older plans it is a."""
    signature = FLAT.donating({0: 0})
    plan = plan_for(signature)
    if replaces:
        plan.buffers[plan.outputs[0]].replaces = 0
    else:
        plan.outputs[0] = plan.inputs[0]
    return Program.from_parts(b"", signature, {"adding": (plan, b"")})


OLD_AND_NEW = pytest.mark.parametrize("replaces", [True, False])


@OLD_AND_NEW
def test_donated_memory_is_the_result(replaces):
    a = np.ones((2, 3), np.float32)
    (result,) = donating(replaces).donate(a, ONES)
    assert np.shares_memory(result, a) and a[0, 0] == 2


@OLD_AND_NEW
def test_a_plain_call_never_writes_an_input(replaces):
    a = np.ones((2, 3), np.float32)
    program = donating(replaces)
    for _ in range(2):
        (result,) = program(a, ONES)
        assert result[0, 0] == 2 and a[0, 0] == 1 and not np.shares_memory(result, a)
    assert program(a, a)[0][0, 0] == 2


@pytest.mark.parametrize("argument", [1, 7])
def test_a_result_that_replaces_what_it_cannot(argument):
    signature = Signature.plain([((2, 3), "f32"), ((3,), "f32")], [((2, 3), "f32")])
    plan = plan_for(signature)
    plan.buffers[plan.outputs[0]].replaces = argument
    words = refusal(lambda: Program.from_parts(b"", signature, {"adding": (plan, b"")}))
    assert "result 0 replaces no argument of its size" in words


def test_donated_but_read_only_is_copied():
    program = donating()
    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    (result,) = program.donate(a, ONES)
    assert result[0, 0] == 2 and a[0, 0] == 1 and program.copies == 1


def test_donated_but_not_used_may_be_read_only():
    program = adding_program(FLAT.donating({0: None, 1: 0}))
    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    assert program.donate(a, a)[0][0, 0] == 2 and program.copies == 0


def test_donated_and_passed_twice():
    a = np.ones((2, 3), np.float32)
    words = refusal(lambda: donating().donate(a, a))
    assert words.startswith("input[0] is donated and") and "input[1]" in words


def test_results_without_a_buffer_of_their_own():
    signature = Signature.plain([((2,), "f32")], [((2,), "f32")] * 3)
    plan = plan_for(signature)
    plan.buffers.add(place=plan_pb2.WEIGHT, weight="w", bytes=8)
    plan.outputs[:] = [plan.inputs[0], plan.outputs[1], len(plan.buffers) - 1]
    weights = {"w": np.array([5, 6], np.float32)}
    x = np.array([1, 2], np.float32)
    same, computed, weight = Program.from_parts(b"", signature, {"adding": (plan, b"")}, weights)(x)
    assert same.tolist() == computed.tolist() == [1, 2] and weight.tolist() == [5, 6]
    assert not np.shares_memory(same, x) and not np.shares_memory(weight, weights["w"])


def test_a_result_that_is_an_argument_in_another_shape():
    signature = Signature.plain([((2, 3), "f32")], [((6,), "f32"), ((3, 2), "i32")])
    plan = plan_for(signature)
    plan.outputs[:] = [plan.inputs[0]] * 2
    program = Program.from_parts(b"", signature, {"adding": (plan, b"")})
    program._device = program._device._replace(run=lambda *_: [])  # no step has anything to do
    flat, bits = program(ONES)
    assert flat.tolist() == [1.0] * 6
    assert bits.tolist() == np.ones(6, np.float32).view(np.int32).reshape(3, 2).tolist()


def test_a_default_stands_for_what_is_left_out():
    signature = Signature.build(
        Tree.flat(1), [((2,), "f32")] * 2, Tree.leaf(), [((2,), "f32")], (), Tree.of({"cache": 0})
    )
    arguments = (signature.arguments[0], replace(signature.arguments[1], default="cache.0"))
    signature = replace(signature, arguments=arguments)
    program = adding_program(signature, weights={"cache.0": np.full(2, 10, np.float32)})
    x = np.ones(2, np.float32)
    assert program(x).tolist() == [11, 11]
    assert program(x, cache=x).tolist() == [2, 2]


def test_plan_and_signature_must_agree():
    signature = Signature.plain([((2,), "f32")], [((2,), "f32")])
    plan = plan_for(signature)
    plan.inputs.append(0)
    words = refusal(lambda: Program.from_parts(b"", signature, {"adding": (plan, b"")}))
    assert "plan takes 2 arguments" in words


def test_symbolic_sizes_without_a_range_are_refused():
    assert "what its sizes may be" in refusal(lambda: one(dims=("n",)))


def test_null_target():
    program = Program.from_parts(b"", FLAT, {"null": (plan_for(FLAT, "null"), b"")})
    assert program.memory.arena_bytes == 512 and program.plan.kernels[0].name == "add_0"
    assert "target 'null'" in refusal(lambda: program(ONES, ONES))


def test_unknown_target():
    """Its device may be elsewhere, with a package that is not here: a call says so."""
    program = Program.from_parts(b"", FLAT, {"abacus": (plan_for(FLAT, "abacus"), b"")})
    assert "'abacus'" in refusal(lambda: program(ONES, ONES))


def test_profile(tmp_path):
    profile = adding_program().profile(ONES, ONES)
    assert profile.outputs[0][0, 0] == 2
    (kernel,) = profile.kernels()
    assert (kernel.kernel, kernel.time, kernel.origin) == ("add_0", 3.0, "model.py:41")
    assert profile.duration == 3.5 and "add_0" in str(profile)
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [(e["name"], e["tid"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("add_0", 0, 2.0),
        ("add_0", 1, 3.0),
    ]


def test_profiles_say_whether_they_were_warm():
    program = adding_program()
    first, second = program.profile(ONES, ONES), program.profile(ONES, ONES)
    assert not first.warm and "the first call" in str(first)
    assert second.warm and "a warm call" in str(second)
    warmed = adding_program().profile(ONES, ONES, warmup=1)
    assert warmed.warm and warmed.trace()["otherData"] == {"warm": True}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("encoder.layer.3", "encoder.layer.3"),
        ("jit(step)/encoder/block/tanh", "encoder/block"),
        ("jit(step)/jvp(net)/add", ""),
        ("jit(step)", ""),
        ("", ""),
    ],
)
def test_module_paths(name, path):
    assert module_path(name) == path


def test_golden_checks():
    program = adding_program().with_checks([ONES, ONES])
    assert program.run_checks() == [(0.0, 1e-3)]
    biased = adding_program(weights={"bias": np.float32(1).reshape(())})
    assert biased.with_golden(program.parts.checks).run_checks()[0][0] == pytest.approx(0.5)


def test_the_quick_way_is_quick():
    """The quick way for flat arrays; a bound far above what is measured, for busy machines."""
    program = adding_program()
    best = min(timeit.repeat(lambda: program(ONES, ONES), number=200, repeat=5)) / 200
    baseline = min(timeit.repeat(lambda: ONES + ONES, number=200, repeat=5)) / 200
    assert best < 100e-6 + 20 * baseline


def test_load_needs_a_bundle(tmp_path):
    (tmp_path / "x.pt2").write_bytes(b"PK\3\4" + bytes(100))
    refusal(lambda: girih.load(tmp_path / "x.pt2"))
    refusal(lambda: girih.load(b""))


def test_a_prepared_call_reads_and_writes_the_same_memory():
    program = adding_program()
    x, y = ONES.copy(), ONES.copy()
    call = program.prepare(x, y)
    (first,) = call()
    assert first.tolist() == (2 * ONES).tolist()
    x *= 5
    (second,) = call()
    assert second is first and first.tolist() == (6 * ONES).tolist()


def test_a_prepared_call_writes_into_given_arrays():
    program = adding_program(NESTED)
    x = np.arange(3, dtype=np.float32)
    outputs = [np.empty_like(result) for result in _leaves(program({"w": [x, x], "b": None}, x))]
    call = program.prepare({"w": [x, x], "b": None}, x=x, outputs=outputs)
    result = call()
    assert list(result) == ["loss", "more"]
    assert all(a is b for a, b in zip(_leaves(result), outputs, strict=True))
    assert outputs[-1].tolist() == [0, 3, 6]


def _leaves(result):
    if isinstance(result, dict):
        return [leaf for item in result.values() for leaf in _leaves(item)]
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _leaves(item)]
    return [result]


def test_a_prepared_call_leaves_donated_inputs_alone():
    a = ONES.copy()
    call = donating().prepare(a, ONES)
    for _ in range(3):
        assert call()[0].tolist() == (2 * ONES).tolist()
        assert a.tolist() == ONES.tolist()


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ((ONES,), None, "inputs: the program takes 2"),
        ((np.ones((3, 2), np.float32).T, ONES), None, "input[0]: expected float32[2,3], the array"),
        ((ONES, ONES), [], "gives 1 results, got 0"),
        ((ONES, ONES), [np.empty((3, 2), np.float32)], "outputs[0]: expected float32[2,3], got"),
        ((ONES, ONES), [np.empty((2, 3), np.float64)], "outputs[0]: expected float32[2,3], got"),
        ((ONES, ONES), [np.empty((3, 2), np.float32).T], "outputs[0]: it must be C-contiguous"),
        ((ONES, ONES), [ONES], "outputs[0] lies in the memory of another array"),
        ((ONES, ONES), [None], "outputs[0]: expected float32[2,3], got NoneType"),
    ],
)
def test_what_cannot_be_bound_is_refused(inputs, outputs, words):
    program = adding_program()
    assert words in refusal(lambda: program.prepare(*inputs, outputs=outputs))


def test_a_prepared_call_runs_once_at_a_time(monkeypatch):
    program = adding_program()
    call = program.prepare(ONES, ONES)
    nested = []
    real = call._run

    def run():
        nested.append(refusal(call))
        real()

    monkeypatch.setattr(call, "_run", run)
    call()
    assert "running in another thread" in nested[0]
    monkeypatch.undo()
    assert call()[0].tolist() == (2 * ONES).tolist()

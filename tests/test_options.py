"""What options mean, and that a wrong one is an error and never ignored."""

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType

MATRIX = TensorType((4, 4), F32)


def model():
    return build_module([MATRIX], lambda b, x: [b("add", x, b.constant(0.0, MATRIX))])


def test_an_unknown_pass_is_an_error():
    with pytest.raises(girih.UserError, match="no pass 'fusee' to disable; there are .*fuse"):
        girih.compile(model(), target="null", options=girih.Options(disable=("fusee",)))


def test_a_disabled_pass_does_not_run():
    def kernels(**options):
        program = girih.compile(model(), target="null", options=girih.Options(**options))
        return [op for kernel in program.plan.kernels for op in kernel.ops]

    assert "add" not in kernels()
    assert "add" in kernels(disable=("simplify",))
    assert "add" in kernels(numerics="bitwise")  # -0.0 + 0.0 is +0.0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"numerics": "fast"}, "numerics must be one of"), ({"threads": 0}, "at least 1"),
        ({"disable": "simplify"}, "a tuple of names, such as .* not 'simplify'"),
        ({"disable": 5}, "a tuple of names"), ({"threads": 2.5}, "a whole number or None, not 2.5"),
        ({"measure": "3"}, "a whole number, not '3'"), ({"measure": True}, "not True"),
        ({"measure": -1}, "measure must be at least 0"), ({"fold_bytes": -1}, "at least 0"),
        ({"strict": "yes"}, "a bool, True or False, not 'yes'"), ({"cache": 5}, "a text or None"),
        ({"numerics": None}, "numerics is a text, not None"),
    ],
)  # fmt: skip
def test_bad_values(options, message):
    for kind in (ValueError, girih.UserError):
        with pytest.raises(kind, match=message):
            girih.Options(**options)


def test_values_of_numpy_and_paths_are_values(tmp_path):
    values: dict[str, Any] = {"threads": np.int64(1), "cache": tmp_path, "disable": ["simplify"]}
    options = girih.Options(**values)
    assert girih.compile(model(), options=options).parts.variants


def test_what_is_no_tuning(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY" + bytes(60))
    options = girih.Options(tuning=str(tmp_path / "x.npy"))
    with pytest.raises(girih.UserError, match="this is an array of numpy .*; name a bundle that"):
        girih.compile(model(), options=options)


def test_unknown_targets_and_sources():
    with pytest.raises(girih.UserError, match="no target 'tpu'; targets are cpu .*nvidia"):
        girih.compile(model(), target="tpu")
    with pytest.raises(girih.UserError, match="cannot import a int; a source is"):
        girih.import_model(3)
    with pytest.raises(girih.UserError, match="there is no file 'nowhere.mlir'"):
        girih.import_model("nowhere.mlir")
    with pytest.raises(girih.UserError, match="example inputs are for functions"):
        girih.import_model("module {\n}", x=np.zeros(3))


def test_strict_turns_notes_into_errors():
    program = girih.compile(model(), options=girih.Options(strict=True))
    assert not program.plan.notes


def test_bitwise_keeps_a_negative_zero_apart():
    x = np.full((4, 4), -0.0, np.float32)
    exact = girih.compile(model(), options=girih.Options(numerics="bitwise"))(x)[0]
    assert not np.signbit(exact).any()

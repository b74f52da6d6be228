"""What options mean, and that a wrong one is an error and never ignored."""

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
    [({"numerics": "fast"}, "numerics must be one of"), ({"threads": 0}, "at least 1")],
)
def test_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        girih.Options(**options)


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

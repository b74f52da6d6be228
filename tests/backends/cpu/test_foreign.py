"""Objects and LLVM IR of users in the CPU's image."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

import girih
from girih import foreign
from girih.backends.cpu import foreign as backend
from girih.backends.cpu.codegen import host_target, level_target
from girih.frontends.kernel.toolchains import c_to_object
from girih.hlo.build import make_op
from girih.hlo.errors import UnsupportedError, UserError
from girih.hlo.foreign import HostCode
from girih.hlo.graph import Op, arguments
from girih.hlo.types import F32, TensorType

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
X = np.linspace(-1, 1, 4096, dtype=np.float32)
SOURCE = r"""
#include <stdint.h>
#include <string.h>
float factor(void) { return FACTOR; }
void scale(const void *const *arguments, int64_t begin, int64_t end, void *scratch) {
  float *copy = scratch;
  const float table[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  for (int64_t tile = begin; tile < end; ++tile) {
    memcpy(copy, (const float *)arguments[0] + tile * 64, 64 * sizeof(float));
    for (int i = 0; i < 64; ++i)
      ((float *)arguments[1])[tile * 64 + i] = copy[i] * factor() * table[i & 3];
  }
}
"""


def scale(factor: float, **options) -> foreign.ForeignKernel:
    code = foreign.C(
        SOURCE, "scale", tiles=64, scratch=256, options=(f"-DFACTOR={factor}.0f",), **options
    )
    return girih.foreign_kernel("scale", out=lambda x: x, codes=[code], inputs=["x"])


def call(*codes: HostCode) -> Op:
    kind = TensorType((4096,), F32)
    facts = {"kernel": "scale", "codes": tuple(code.as_attribute() for code in codes)}
    return make_op("foreign_call", arguments([kind]), facts, (), (kind,))


def test_names_of_two_objects_never_meet():
    pytest.importorskip("jax")
    twice, thrice = scale(2), scale(3)
    program = girih.compile(lambda x: thrice(twice(x)), X)
    np.testing.assert_allclose(np.asarray(program(X)), 6 * X, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 4])
def test_tiles_are_shared_among_workers(threads):
    program = scale(2).program(X, options=girih.Options(threads=threads))
    np.testing.assert_array_equal(program(X)[0], 2 * X)
    (kernel,), (step,) = program.plan.kernels, program.plan.steps
    assert kernel.scratch_bytes == 256 and step.run.tiles == 64


def test_the_first_code_that_fits_is_taken():
    data, architecture = c_to_object(SOURCE, ("-DFACTOR=2",), ())
    target = host_target(None)
    other = HostCode("scale", data, "other")
    new = HostCode("scale", data, architecture, ("never",))
    fits = HostCode("scale", data, architecture, (), 64, 256)
    assert backend.lacks(call(other, new, fits), target) == ""
    assert backend.emit(call(other, new, fits), target).tiles == 64
    reason = backend.lacks(call(other, new), target)
    assert "is for other, not" in reason and "needs never" in reason
    with pytest.raises(UnsupportedError, match="kernel 'scale': its code is for other"):
        backend.emit(call(other, new), target)


def test_an_object_for_another_processor_is_refused():
    """Also where nothing is declared: its header says it."""
    data, _ = c_to_object(SOURCE, ("-DFACTOR=2",), ())
    for level, name in (("baseline", "aarch64"), ("neon", "x86_64")):
        machine = {"aarch64": 183, "x86_64": 62}[name]
        other = data[:18] + machine.to_bytes(2, "little") + data[20:]
        with pytest.raises(UserError, match=f"its object is for {name}, the program for"):
            backend.emit(call(HostCode("scale", other)), level_target(level))
    strange = data[:18] + b"\xf3\x00" + data[20:]
    with pytest.raises(UserError, match="its object is for machine 243 of ELF's list"):
        backend.emit(call(HostCode("scale", strange)), host_target())


def test_damaged_objects_are_refused():
    """Whatever bytes they have: a result that is never run, or a UserError."""
    chance = random.Random(5)
    data, architecture = c_to_object(SOURCE, ("-DFACTOR=2",), ())
    refused = 0
    for _ in range(400):
        made = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.choice((chance.randrange(64), chance.randrange(len(made))))
            made[at] = chance.choice((0, 255, made[at] ^ 1 << chance.randrange(8)))
        if chance.random() < 0.2:
            del made[chance.randrange(len(made)) :]
        code = HostCode("scale", bytes(made), architecture, (), 64, 256)
        try:
            backend.emit(call(code), host_target(None))
        except UserError:
            refused += 1
    assert refused > 50

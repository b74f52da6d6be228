"""A tour of girih: one small model on its way from a JAX function to a file that runs alone.

    python docs/tour.py

Read it from the top; every step runs, and what it claims is asserted. You need JAX (where the model
comes from) and llvmlite (which turns the program into machine code), and at the end neither.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import girih


def title(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}")


# --------------------------------------------------------------------------------------------------
# 1. A model
#
# One layer and a softmax, with weights that the function closes over. Some of it is careless on
# purpose: a transposed weight, a multiplication by one, a sum of constants.

generator = np.random.default_rng(0)
weights = (generator.standard_normal((128, 64)) / 8).astype(np.float32)
bias = generator.standard_normal(128).astype(np.float32)


def model(x: jax.Array) -> dict[str, jax.Array]:
    scores = (x @ jnp.transpose(weights)) * 1.0 + jnp.add(bias, 2.0)
    return {"probabilities": jax.nn.softmax(scores, axis=-1), "best": scores.max(axis=-1)}


example = generator.standard_normal((4, 64)).astype(np.float32)
expected = jax.jit(model)(example)


# --------------------------------------------------------------------------------------------------
# 2. The program
#
# A frontend turns the export into a module: operations named as in StableHLO, in an order in which
# every value is defined before it is used. Large arrays that the function closed over are no part
# of the program's text: they are weights, kept by name.

title("2. The program as it was imported")
module = girih.import_model(model, example)
print(module)
assert module.weights, "the matrix is a weight"
assert module.signature is not None  # the caller's view: {"probabilities": ..., "best": ...}


# Every operation knows where it comes from, so whatever goes wrong later can name *your* line.

product = next(op for op in module.walk() if op.name == "dot_general")
print("the product comes from", product.origin[0])
assert product.origin[0].file.endswith("tour.py")


# --------------------------------------------------------------------------------------------------
# 3. What it means
#
# One room per operation (hlo/ops/) holds its types, its numbered constraints and its only
# arithmetic, `evaluate`. The interpreter does nothing but call it; so do the constant folder, the
# rule checker and the tests of every backend.

title("3. The interpreter's answer")
flat = girih.interpret(module, [example])
print([array.shape for array in flat])
best, probabilities = flat  # in the order of JAX's trees: keys sorted
np.testing.assert_allclose(probabilities, expected["probabilities"], rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(best, expected["best"], rtol=1e-5)


# A program that breaks a constraint is refused by its clause, never run.

from girih.hlo.build import Builder  # noqa: E402
from girih.hlo.types import F32, TensorType  # noqa: E402

builder = Builder()
left, right = builder.arguments([TensorType((2, 3), F32), TensorType((2, 4), F32)])
try:
    builder("add", left, right)
except girih.UserError as error:
    print("refused:", str(error).splitlines()[0])
else:
    raise AssertionError("an addition of different shapes must be refused")


# --------------------------------------------------------------------------------------------------
# 4. The two forms
#
# Text for people and protobuf for files; both give the same module back.

from girih.hlo import wire  # noqa: E402
from girih.hlo.parse import parse_module  # noqa: E402


def data(name: str, kind: TensorType) -> Any:
    """Where the readers of both forms get a weight from."""
    return module.weights[name].array


assert str(parse_module(str(module), data)) == str(module)
assert str(wire.decode(wire.encode(module), data)) == str(module)


# --------------------------------------------------------------------------------------------------
# 5. Rewriting
#
# A rule is data: a name, two patterns, a numeric licence. `x * 1 -> x` keeps every bit. A pass
# takes a module and gives a module, and "nothing to do" is the very same object.

from girih.optimizer.licence import Ledger  # noqa: E402
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline  # noqa: E402

title("5. After the rules")
ledger = Ledger()
passes = simplify_pipeline(ledger=ledger)
simple = run_pipeline(module, passes)
print(simple)
print(ledger.table())
assert sum(1 for _ in simple.walk()) < sum(1 for _ in module.walk())
assert run_pipeline(simple, passes) is simple
np.testing.assert_allclose(girih.interpret(simple, [example])[0], best, rtol=1e-5)


# The transpose is gone: the product contracts the weight's other dimension instead. The ledger says
# which rule did what for which line of the model.

assert not any(op.name == "transpose" for op in simple.walk())


# --------------------------------------------------------------------------------------------------
# 6. Fusing
#
# Operations that are better computed together become one `fusion`, still plain HLO inside: the
# interpreter runs it unchanged, which is how fusion is tested.

from girih.optimizer.passes.fuse import Fuse  # noqa: E402

title("6. What is computed together")
fused = Fuse()(simple)
for op in fused.body.ops:
    if op.name == "fusion":
        print(f"{op.kind:9s}", ", ".join(inner.name for inner in op.regions[0].ops))
np.testing.assert_allclose(girih.interpret(fused, [example])[0], best, rtol=1e-5)


# --------------------------------------------------------------------------------------------------
# 7. Machine code
#
# `girih.compile` does all of the above, then gives every buffer a place, compiles each kernel once
# and links the code. The plan says what runs; the memory is known to the byte beforehand.

title("7. The compiled program")
program = girih.compile(model, example)
for kernel in program.plan.kernels:
    print(f"{kernel.name:30s} {kernel.kind:9s} {', '.join(kernel.ops)[:60]}")
print(f"{len(program.plan.steps)} steps;", program.memory)
answer = program(example)
assert sorted(answer) == ["best", "probabilities"]  # the structure of JAX's result
np.testing.assert_allclose(answer["best"], expected["best"], rtol=1e-5)


# A wrong input is one sentence with the argument's name.

try:
    program(example[:, :32])
except girih.UserError as error:
    print("refused:", error)


# --------------------------------------------------------------------------------------------------
# 8. One file
#
# The bundle holds the program, the plan, the code and the weights, and the same input gives the
# same bytes. The process below has neither JAX nor llvmlite, and no compiler of any kind.

title("8. In a process of its own")
ALONE = """
import sys
for name in ("jax", "jaxlib", "torch", "llvmlite"):
    sys.modules[name] = None          # importing it fails from here on
import girih, numpy as np
program = girih.load(sys.argv[1])
result = program(np.load(sys.argv[2]))
print("probabilities add up to", result["probabilities"].sum(axis=-1))
np.save(sys.argv[3], result["best"])
"""

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    program.save(here / "model.girih")
    girih.compile(model, example).save(here / "again.girih")
    assert (here / "model.girih").read_bytes() == (here / "again.girih").read_bytes()
    np.save(here / "x.npy", example)
    arguments = [str(here / name) for name in ("model.girih", "x.npy", "best.npy")]
    subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True)
    np.testing.assert_allclose(np.load(here / "best.npy"), expected["best"], rtol=1e-5)

# That is the whole way. docs/architecture.md says why the rooms are cut as they are; compiler.py is
# the same list in twenty lines; a good next file is any room in hlo/ops/.
print("\nThe tour is over.")
assert jnp.isfinite(answer["best"]).all()

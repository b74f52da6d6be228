"""Every error of the kernel language: the message, the user's line, and what the caret marks."""

# pyright: reportAttributeAccessIssue=false, reportUndefinedVariable=false, reportCallIssue=false
# The kernels here are wrong on purpose.

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import girih
import girih.language as tl

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
X = np.ones((8, 6), np.float32)
CASES = []


def wrong(reason, marked):
    """A kernel whose line ending in `# here` is refused; the caret stands under `marked`."""

    def wrap(function):
        CASES.append((girih.kernel(out=lambda x: x, grid=(2,))(function), reason, marked))
        return function

    return wrap


@wrong("there is no|has no attribute|no attribute 'dott'", "tl.dott")
def unknown_function(x, out):
    out[...] = tl.dott(x[...], x[...])  # here


@wrong("'y' has no value here", "y")
def unknown_name(x, out):
    out[...] = x[...] + y  # noqa: F821  # here


@wrong(r"tiles of \[8, 6\] and \[6, 8\] do not broadcast", "tile + tile.T")
def shapes(x, out):
    tile = x[...]
    out[...] = tile + tile.T  # here


@wrong(r"dot cannot multiply f32\[8,6\] by f32\[8,6\]", "tl.dot(x[...], x[...])")
def products(x, out):
    out[...] = tl.dot(x[...], x[...])  # here


@wrong(
    r"the product is f32\[8,8\], acc is f32\[6,6\]", "tl.dot(x[...], x[...].T, tl.zeros((6, 6)))"
)
def accumulator(x, out):
    out[...] = tl.dot(x[...], x[...].T, tl.zeros((6, 6)))  # here


@wrong("takes f32, the value is i32", "out[...]")
def stores(x, out):
    out[...] = x[...].to(tl.int32)  # here


@wrong("is an input; kernels write to their outputs alone", "x[0]")
def inputs(x, out):
    x[0] = 1.0  # here


@wrong("read a window of it first", "x + 1")
def memory_is_no_tile(x, out):
    out[...] = x + 1  # here


@wrong("the size of this window is not a constant", "x[0:i]")
def window_sizes(x, out):
    i = tl.tile_id(0)
    out[...] = x[0:i]  # here


@wrong("windows have no steps", "x[0:8:2]")
def window_steps(x, out):
    out[...] = x[0:8:2]  # here


@wrong("not counted from the end", "x[0:-1]")
def window_ends(x, out):
    out[...] = x[0:-1]  # here


@wrong("has 2 dims, the window names 3", "x[0, 0, 0]")
def window_dims(x, out):
    out[...] = x[0, 0, 0]  # here


@wrong("index 9 is outside of a dim of 8", "x[9]")
def window_index(x, out):
    out[...] = x[9]  # here


@wrong("None adds a dim to tiles", "x[None]")
def window_none(x, out):
    out[...] = x[None]  # here


@wrong(r"has 2 dims; 1 offsets and 2 sizes given", "tl.load(x, 0, (2, 2))")
def load_dims(x, out):
    out[...] = tl.load(x, 0, (2, 2))  # here


@wrong("fill is a constant number", "tl.load(x, (0, 0), (8, 6), fill=tl.zeros(1))")
def fills(x, out):
    out[...] = tl.load(x, (0, 0), (8, 6), fill=tl.zeros(1))  # here


@wrong("a mask is a tile of truth values", "tl.load(x, (0, 0), (8, 6), mask=x[...])")
def masks(x, out):
    out[...] = tl.load(x, (0, 0), (8, 6), mask=x[...])  # here


@wrong("combine is one of", 'tl.store(out, (0, 0), x[...], combine="multiply")')
def combines(x, out):
    tl.store(out, (0, 0), x[...], combine="multiply")  # here


@wrong(r"memory is changed by \+= alone", "out[...] *= 2.0")
def in_place(x, out):
    out[...] *= 2.0  # here


@wrong("only memory is changed in place", "tile[0]")
def tiles_do_not_change(x, out):
    tile = x[...]
    tile[0] = 1.0  # here


@wrong("the grid has 1 axes, there is no axis 1", "tl.tile_id(1)")
def grid_axes(x, out):
    out[...] = x[...] + tl.tile_id(1)  # here


@wrong(
    r"'total' is 0.0, so f32\[\] before the loop and f32\[6\] after", "for i in range(8):  # here"
)
def carried(x, out):
    total = 0.0
    for i in range(8):  # here
        total = total + x[i]
    out[...] = total


@wrong("'tile' is set only inside the loop of line", "tile")
def loop_locals(x, out):
    for i in range(8):
        tile = x[i]
    out[...] = tile  # here


@wrong("the step of range is a constant of at least 1", "range(8, 0, -1)")
def steps(x, out):
    for i in range(8, 0, -1):  # here
        out[i] = x[i]


@wrong("a loop goes over range, tl.static_range or a tuple", "x[...]")
def loops(x, out):
    for row in x[...]:  # here
        out[...] = row


@wrong("break cannot leave a loop over range", "break")
def breaks(x, out):
    for i in range(8):
        out[i] = x[i]
        break  # here


@wrong("return cannot leave an if on a value", "return")
def returns(x, out):
    if tl.tile_id(0) == 0:
        return  # here
    out[...] = x[...]


@wrong("a kernel returns nothing", "return x[...]")
def results(x, out):
    return x[...]  # here


@wrong("'value' has not the same type on both sides", "value")
def branches(x, out):
    if tl.tile_id(0) == 0:
        value = x[0]
    else:
        value = x[...]
    out[...] = value  # here


@wrong(r"is no scalar: combine tiles by", "x[...] > 0")
def tile_conditions(x, out):
    if x[...] > 0:  # here
        out[...] = x[...]


@wrong(r"is no scalar", "x[...] < 1")
def tile_conjunctions(x, out):
    held = x[...] > 0 and x[...] < 1  # here
    out[...] = tl.where(held, 1.0, 0.0)


@wrong("while is not part of the kernel language", "while True:  # here")
def whiles(x, out):
    while True:  # here
        out[...] = x[...]


@wrong("a list comprehension is not part", "[x[i] for i in range(2)]")
def comprehensions(x, out):
    rows = [x[i] for i in range(2)]  # here
    out[...] = rows[0]


@wrong("try is not part of the kernel language", "try:  # here")
def tries(x, out):
    try:  # here
        out[...] = x[...]
    finally:
        pass


@wrong("'exp' does not take tiles; the functions of girih.language do", "np.exp(x[...])")
def numpy_functions(x, out):
    out[...] = np.exp(x[...])  # here


@wrong("a kernel cannot print", 'print("x")')
def prints(x, out):
    print("x")  # here


@wrong("ZeroDivisionError: division by zero", "1 / SIZE")
def arithmetic(x, out, *, SIZE=0):
    out[...] = x[...] * (1 / SIZE)  # here


@wrong("the assertion does not hold: too wide", 'assert x.shape[1] < 4, "too wide"')
def assertions(x, out):
    assert x.shape[1] < 4, "too wide"  # here


@wrong("assert checks constants", "tl.tile_id(0) < 4")
def computed_assertions(x, out):
    assert tl.tile_id(0) < 4  # here


@wrong("this needs floating point", "tl.exp(tl.arange(6))")
def integer_functions(x, out):
    out[...] = tl.exp(tl.arange(6))  # here


@wrong("300 does not fit into i8", "tl.full((8, 6), 300, tl.int8)")
def ranges(x, out):
    out[...] = tl.full((8, 6), 300, tl.int8)  # here


@wrong("i32 and ui32 do not meet", "whole + natural")
def promotions(x, out):
    whole, natural = x[...].to(tl.int32), x[...].to(tl.uint32)
    out[...] = whole + natural  # here


@wrong("'nothing' is not an element type", 'x[...].to("nothing")')
def types(x, out):
    out[...] = x[...].to("nothing")  # here


@wrong("bit operations need integers", "x[...] & 1")
def bits(x, out):
    out[...] = x[...] & 1  # here


@wrong("does not reshape to", "x[...].reshape(5, 5)")
def reshapes(x, out):
    out[...] = x[...].reshape(5, 5)  # here


@wrong("there is no axis 2", "x[...].sum(2)")
def axes(x, out):
    out[...] = x[...].sum(2)  # here


@wrong("a tile has no attribute 'mass'", "x[...].mass")
def attributes(x, out):
    out[...] = x[...].mass  # here


@wrong(r"missing 1 required positional argument", "tl.where(x[...] > 0, 1.0)")
def arguments(x, out):
    out[...] = tl.where(x[...] > 0, 1.0)  # here


@wrong("parts of a tile are constant", "tile[tl.tile_id(0)]")
def tile_parts(x, out):
    tile = x[...]
    out[...] = tile[tl.tile_id(0)]  # here


@wrong("write a product of matrices as tl.dot", "x[...] @ x[...].T")
def operators(x, out):
    out[...] = x[...] @ x[...].T  # here


@wrong("arange takes constant bounds", "tl.arange(tl.tile_id(0))")
def constants(x, out):
    out[...] = tl.arange(tl.tile_id(0))  # here


@wrong("a kernel cannot call a kernel", "CASES[0][0](x[...])")
def kernels(x, out):
    out[...] = CASES[0][0](x[...])  # here


def helper(x):
    return x + x[:2]  # here


@wrong(r"tiles of \[8, 6\] and \[2, 6\] do not broadcast", "x + x[:2]")
def helpers(x, out):
    out[...] = helper(x[...])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].definition.name)
def test_error(case):
    kernel, reason, marked = case
    with pytest.raises(girih.UserError) as caught:
        kernel.text(X)
    message = str(caught.value)
    first, source, caret = message.splitlines()
    place = re.match(r"(.*):(\d+): kernel '(\w+)': (.*)", first)
    assert place and place[1] == __file__, message
    line = LINES[int(place[2]) - 1]
    assert line.endswith("# here") and line.strip() == source.strip(), message
    assert re.search(reason, place[4]), message
    start = caret.index("^")
    assert source[start : start + caret.count("^")] == marked, message


def plain(x, out, *, SIZE):
    out[...] = x[...]


DECLARATIONS = {
    "a size without a value": (lambda: girih.kernel(out=lambda x: x)(plain)(X), "needs a value"),
    "an unknown constant": (
        lambda: girih.kernel(out=lambda x: x)(plain)(X, SIZE=1, TM=2), "has no constant 'TM'",
    ),
    "too many inputs": (
        lambda: girih.kernel(out=lambda x: x)(plain)(X, X, SIZE=1), r"takes 1 inputs \(x\), got 2",
    ),
    "out is no array": (
        lambda: girih.kernel(out=lambda x: 3)(plain)(X, SIZE=1), "out gives tl.Array",
    ),
    "out asks for too much": (
        lambda: girih.kernel(out=lambda z: z)(plain)(X, SIZE=1), "out asks for 'z'",
    ),
    "out fails": (
        lambda: girih.kernel(out=lambda x: x.shapes)(plain)(X, SIZE=1), "out failed: Attribute",
    ),
    "the grid is not of integers": (
        lambda: girih.kernel(out=lambda x: x, grid=lambda x: 1.5)(plain)(X, SIZE=1), "the grid has",
    ),
    "an output starts as no input": (
        lambda: girih.kernel(out=lambda x: tl.Array(x.shape, x.dtype, start="y"))(plain)(X, SIZE=1),
        "there is no input 'y'",
    ),
    "a constant that cannot be a key": (
        lambda: girih.kernel(out=lambda x: x)(plain)(X, SIZE=[1]), "is not hashable",
    ),
    "a default of an array": (
        lambda: girih.kernel(out=lambda x: x)(lambda x, out=None: None), "which has no default",
    ),
    "any number of arrays": (
        lambda: girih.kernel(out=lambda x: x)(lambda *x: None), "named one by one",
    ),
    "no function": (lambda: girih.kernel(out=lambda x: x)(np.exp), "is for plain functions"),
    "no source": (
        lambda: girih.kernel(out=lambda x: x)(eval("lambda x, out: None"))(X),
        "source is not at hand",
    ),
    "text as an array": (
        lambda: girih.kernel(out=lambda x: x)(plain)(np.array(["a"]), SIZE=1),
        "is not an element type",
    ),
    "a name outside of a kernel": (lambda: tl.tile_id(0), "inside a kernel only"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARATIONS)
def test_declaration(name):
    call, reason = DECLARATIONS[name]
    with pytest.raises(Exception, match=reason) as caught:
        call()
    assert isinstance(caught.value, girih.UserError)


@girih.kernel(out=lambda x: x, grid=lambda x, T: girih.cdiv(x.shape[0], T))
def overlapping(x, out, *, T, STEP):
    i = tl.tile_id(0) * STEP
    out[i : i + T] = x[i : i + T]


@girih.kernel(out=lambda x: x, grid=2)
def reads_its_neighbour(x, out):
    i = tl.tile_id(0) * 4
    out[i : i + 4] = x[i : i + 4]
    out[i : i + 4] = out[0:4] + x[i : i + 4]


@girih.kernel(out=lambda x: x)
def combines_with_nothing(x, out):
    out[...] += x[...]


def test_the_interpreter_sees_races_and_gaps():
    np.testing.assert_array_equal(overlapping.interpret(X, T=2, STEP=2), X)
    with pytest.raises(girih.UserError, match="two tiles store to one place of result 0"):
        overlapping.interpret(X, T=4, STEP=2)
    with pytest.raises(girih.UserError, match="12 elements of result 0 are stored by no tile"):
        overlapping.interpret(X, T=4, STEP=6)
    with pytest.raises(girih.UserError, match="a tile reads what another stores"):
        reads_its_neighbour.interpret(X)
    with pytest.raises(girih.UserError, match="combined with what nobody stored"):
        combines_with_nothing.interpret(X)


def test_counts():
    counts = overlapping.counts(X, T=3, STEP=3)
    assert (counts.tiles, counts.outside, counts.faults) == (3, 2, [])
    assert counts.loaded_bytes == counts.stored_bytes == X.nbytes
    assert counts.compulsory_bytes == 2 * X.nbytes

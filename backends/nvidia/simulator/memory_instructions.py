"""ld, st, atom, red, fences: spaces, vectors, widths; `access` does the work at run time."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import access, numerics
from .conversions import join
from .packed import decode, encode, lower, upper
from .semantics import is_global, semantics
from .syntax import SIZES, Address, Instruction, Operand, Sink, Symbol, Vector
from .table import effect
from .translate import Emitter, kind_of, unsigned

_SPACES = ("global", "shared", "local", "param", "const")


def _space(e: Emitter, i: Instruction, address: Address) -> str:
    space = next((p.partition("::")[0] for p in i.parts if p.startswith(_SPACES)), "")
    if space == "param":
        base = address.base
        if isinstance(base, Symbol) and base.name in e.program.call_parameters:
            return "local"
    return space


def _place(e: Emitter, i: Instruction, operand: Operand) -> tuple[str, str, int]:
    """Space, source of the base, constant offset."""
    if not isinstance(operand, Address):
        raise e.error(i, "an address in brackets is missing")
    base, offset = e.address(operand)
    return _space(e, i, operand), base, offset


_PLAIN = frozenset(
    (
        *("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "unified"),
        *("cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "noftz"),
        *("v2", "v4", "v8"),
    )
)


def _kind(e: Emitter, i: Instruction) -> tuple[str, int]:
    """Kind of an element and how many of them."""
    for part in i.parts[1:-1]:
        if part not in _PLAIN and not part.startswith((*_SPACES, "L1::", "L2::")):
            raise e.error(i, f"modifier .{part} is not simulated")
    type_ = i.parts[-1]
    count = next((int(p[1:]) for p in i.parts if p in ("v2", "v4", "v8")), 1)
    if type_ == "b128":
        raise e.error(i, "elements of 128 bits are not simulated")
    kind = kind_of(type_)
    return kind, count


def _natural(e: Emitter, operand: Operand, kind: str) -> str:
    """The kind in which the register of a load or store lives, where it has the same width."""
    number = getattr(operand, "number", None)
    if number is not None and e.program.kinds[number][1:] == kind[1:]:
        return e.program.kinds[number]
    return kind


@effect("ld", "ldu")
def load(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    d = i.operands[0]
    kind, count = _kind(e, i)
    if count == 1 and isinstance(d, Vector) and len(d.items) == 1:
        (d,) = d.items  # as Triton writes it
    space, base, offset = _place(e, i, i.operands[1])
    size = int(kind[1:])
    number = e.node.number
    strong = is_global(i) and semantics(i).strong
    one = e.helper(access.strong_load if strong else access.load)
    if count == 1:
        kind = _natural(e, d, kind)
        place = f"{space!r}, {base}, {offset}, {kind!r}, {size}"
        e.define(d, kind, f"{one}(S, A, {number}, {place})")
        return
    if not isinstance(d, Vector) or len(d.items) != count:
        raise e.error(i, f"{count} registers are needed")
    if strong:  # elements in no order
        values = [e.fresh() for _ in d.items]
        for position, value in enumerate(values):
            place = f"{space!r}, {base}, {offset + position * size}, {kind!r}, {size}"
            e.line(f"{value} = {one}(S, A, {number}, {place})")
        for item, value in zip(d.items, values, strict=True):
            if not isinstance(item, Sink):
                e.define(item, kind, value)
        return
    kinds = {_natural(e, item, kind) for item in d.items if not isinstance(item, Sink)}
    kind = kinds.pop() if len(kinds) == 1 else kind
    result = e.fresh()
    e.line(
        f"{result} = {e.helper(access.load_vector)}(S, A, {number}, {space!r}, {base}, {offset}, "
        f"{kind!r}, {size * count}, {count})"
    )
    for position, item in enumerate(d.items):
        if not isinstance(item, Sink):
            e.define(item, kind, f"{result}[{position}]")


@effect("st", results=0)
def store(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    kind, count = _kind(e, i)
    space, base, offset = _place(e, i, i.operands[0])
    value = i.operands[1]
    items = value.items if isinstance(value, Vector) else (value,)
    if len(items) != count:
        raise e.error(i, f"{count} registers are needed")
    if kind[0] == "i":
        kind = unsigned(kind)
    kinds = {_natural(e, item, kind) for item in items}
    kind = kinds.pop() if len(kinds) == 1 else kind
    if is_global(i) and semantics(i).strong:  # elements in no order
        size = int(kind[1:])
        for position, item in enumerate(items):
            place = f"{space!r}, {base}, {offset + position * size}, {kind!r}, {size}"
            value = e.use(item, kind)
            e.line(f"{e.helper(access.strong_store)}(S, A, {e.node.number}, {place}, [{value}])")
        return
    values = ", ".join(e.use(item, kind) for item in items)
    e.line(
        f"{e.helper(access.store)}(S, A, {e.node.number}, {space!r}, {base}, {offset}, {kind!r}, "
        f"{int(kind[1:]) * count}, [{values}])"
    )


# ---------------------------------------------------------------- atomics


def exchange(old: Any, new: Any) -> Any:
    return new


def compare_and_swap(old: Any, expected: Any, new: Any) -> Any:
    return np.where(old == expected, new, old)


def increment(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def decrement(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _pairwise(half: str, function: Any) -> Any:
    def on_pairs(old: Any, value: Any) -> Any:
        low = encode(function(lower(old, half), lower(value, half)), half)
        high = encode(function(upper(old, half), upper(value, half)), half)
        return join(low, high)

    on_pairs.__name__ = f"{function.__name__}_{half}x2"
    return on_pairs


def _single(half: str, function: Any) -> Any:
    def on_halves(old: Any, value: Any) -> Any:
        return encode(function(decode(old, half), decode(value, half)), half)

    on_halves.__name__ = f"{function.__name__}_{half}"
    return on_halves


_FUNCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": exchange,
    "cas": compare_and_swap,
    "inc": increment,
    "dec": decrement,
}
_HALF = {
    (name, half, pair): (_pairwise if pair else _single)(half, function)
    for half in ("f16", "bf16")
    for pair in (False, True)
    for name, function in (
        ("add", np.add),
        ("min", numerics.minimum),
        ("max", numerics.maximum),
    )
}


def _atomic(e: Emitter, i: Instruction, result: Operand | None, rest: tuple[Operand, ...]) -> None:
    assert e.node is not None
    address, *values = rest
    type_ = i.parts[-1]
    name = next((p for p in i.parts[1:] if p in _FUNCTIONS), None)
    for part in i.parts[1:-1]:
        if part not in _PLAIN and part != name and not part.startswith((*_SPACES, "L1::", "L2::")):
            raise e.error(i, f"modifier .{part} is not simulated")
    if name is None:
        raise e.error(i, "this atomic operation is not known")
    half = type_.removesuffix("x2")
    if half in ("f16", "bf16"):
        function = _HALF.get((name, half, type_ != half))
        kind = "u4" if type_ != half else "u2"
    else:
        function, kind = _FUNCTIONS[name], kind_of(type_)
        if kind[0] == "f" and name not in ("add", "exch"):
            function = {"min": numerics.minimum, "max": numerics.maximum}.get(name)
    if function is None:
        raise e.error(i, "this atomic operation is not simulated")
    cached = [v for v in values if not _is_policy(e, v, kind)][: 2 if name == "cas" else 1]
    vectors = [v.items if isinstance(v, Vector) else (v,) for v in cached]
    count = len(vectors[0])
    space, base, offset = _place(e, i, address)
    size = int(kind[1:])
    outputs = result.items if isinstance(result, Vector) else (result,) * count
    for position in range(count):
        sources = ", ".join(e.use(vector[position], kind) for vector in vectors)
        wanted = outputs[position] is not None and not isinstance(outputs[position], Sink)
        call = (
            f"{e.helper(access.atomic)}(S, A, {e.node.number}, {space!r}, {base}, "
            f"{offset + position * size}, {kind!r}, {size}, {e.helper(function)}, [{sources}], "
            f"{wanted})"
        )
        output = outputs[position]
        if output is None or isinstance(output, Sink):
            e.line(call)
        else:
            e.define(output, kind, call)


def _is_policy(e: Emitter, operand: Operand, kind: str) -> bool:
    """A cache policy stands in a 64-bit register behind the values."""
    type_ = getattr(operand, "type", "")
    return kind in ("u4", "f4", "i4", "u2") and bool(type_) and SIZES[type_] == 8


@effect("atom")
def atom(e: Emitter, i: Instruction) -> None:
    _atomic(e, i, i.operands[0], i.operands[1:])


@effect("red", results=0)
def red(e: Emitter, i: Instruction) -> None:
    _atomic(e, i, None, i.operands)


# ---------------------------------------------------------------- fences


@effect(
    "membar", "fence.acq_rel", "fence.sc", "fence.acquire", "fence.release", results=0
)  # fmt: skip
def fence(e: Emitter, i: Instruction) -> None:
    assert e.node is not None
    e.line(f"{e.helper(access.fence)}(S, A, {e.node.number})")

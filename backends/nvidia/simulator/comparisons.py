"""setp, set, selp, slct, and logic on predicates."""

from __future__ import annotations

from . import numerics
from .packed import lower, upper
from .syntax import Instruction, Negated, Operand, Pair
from .table import expression
from .translate import Emitter, kind_of, unsigned

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "!=", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}


def _value(e: Emitter, operand: Operand, type_: str, parts: tuple[str, ...]) -> str:
    if type_ == "bf16":
        return f"{e.helper(numerics.from_bfloat)}({e.use(operand, 'u2')})"
    source = e.use(operand, kind_of(type_))
    if "ftz" in parts and type_ == "f32":
        return f"{e.helper(numerics.flush)}({source})"
    return source


def comparison(e: Emitter, i: Instruction, type_: str, a: Operand, b: Operand) -> str:
    """Source of the truth of `a <op> b`, where the operator stands in the opcode."""
    operator = i.parts[1]
    floating = type_ in ("f16", "bf16", "f32", "f64")
    x, y = _value(e, a, type_, i.parts), _value(e, b, type_, i.parts)
    if operator == "num":
        return f"~(np.isnan({x}) | np.isnan({y}))"
    if operator == "nan":
        return f"(np.isnan({x}) | np.isnan({y}))"
    if operator in _SIGNS:
        if floating and operator == "ne":  # ordered: false where one is NaN
            return f"(({x} < {y}) | ({x} > {y}))"
        return f"({x} {_SIGNS[operator]} {y})"
    if operator in _UNSIGNED:
        return f"({x} {_UNSIGNED[operator]} {y})"
    if operator == "equ":
        return f"~(({x} < {y}) | ({x} > {y}))"
    if operator in _UNORDERED:
        return f"~({x} {_UNORDERED[operator]} {y})"
    raise e.error(i, f"comparison .{operator} is not known")


def _predicate(e: Emitter, operand: Operand) -> str:
    return e.use(operand, "b1")


@expression("setp")
def setp(e: Emitter, i: Instruction) -> None:
    e.only(i, *_SIGNS, *_UNSIGNED, *_UNORDERED, *_LOGIC, "equ", "num", "nan", "ftz")
    d, a, b = i.operands[:3]
    if i.parts[-1] in ("f16x2", "bf16x2"):
        return _setp_pair(e, i)
    truth = comparison(e, i, i.parts[-1], a, b)
    combine = _LOGIC.get(i.parts[2], "")
    if not isinstance(d, Pair) and not combine:
        return e.define(d, "b1", truth)
    name, c = e.fresh(), _predicate(e, i.operands[3]) if combine else ""
    e.line(f"{name} = {truth}")
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    other = e.fresh()
    if second is not None:
        e.line(f"{other} = (~{name}) {combine} {c}" if combine else f"{other} = ~{name}")
    e.define(first, "b1", f"{name} {combine} {c}" if combine else name)
    if second is not None:
        e.define(second, "b1", other)


def _setp_pair(e: Emitter, i: Instruction) -> None:
    d, a, b = i.operands[:3]
    half = i.parts[-1][:-2]
    x, y = e.use(a, "u4"), e.use(b, "u4")
    signs = {**_SIGNS, **_UNORDERED}
    operator = i.parts[1]
    if operator not in signs or (len(i.operands) > 3) or not isinstance(d, Pair):
        raise e.error(i, "this form is not simulated")
    names = []
    for part in (lower, upper):
        p, q = (f"{e.helper(part)}({v}, {half!r})" for v in (x, y))
        name = e.fresh()
        if operator == "ne":
            e.line(f"{name} = ({p} < {q}) | ({p} > {q})")
        elif operator == "equ":
            e.line(f"{name} = ~(({p} < {q}) | ({p} > {q}))")
        else:
            e.line(f"{name} = {'~' if operator in _UNORDERED else ''}({p} {signs[operator]} {q})")
        names.append(name)
    e.define(d.first, "b1", names[0])
    e.define(d.second, "b1", names[1])


@expression("set")
def set_(e: Emitter, i: Instruction) -> None:
    target, source = i.parts[-2], i.parts[-1]
    if target in ("f16x2", "bf16x2") or source in ("f16x2", "bf16x2"):
        raise e.error(i, "this form is not simulated")
    truth = comparison(e, i, source, i.operands[1], i.operands[2])
    combine = _LOGIC.get(i.parts[2])
    if combine:
        truth = f"({truth} {combine} {_predicate(e, i.operands[3])})"
    if target in ("f32", "f16", "bf16"):
        kind, one = {"f32": ("f4", 0x3F800000), "f16": ("f2", 0x3C00), "bf16": ("u2", 0x3F80)}[
            target
        ]
    else:
        kind, one = unsigned(kind_of(target)), -1
    e.define(i.operands[0], kind, f"where({truth}, {e.constant(kind, one)}, {e.constant(kind, 0)})")


@expression("selp")
def selp(e: Emitter, i: Instruction) -> None:
    d, a, b, p = i.operands
    kind = kind_of(i.parts[-1])
    if kind not in ("f4", "f8"):
        kind = unsigned(kind)
    e.define(d, kind, f"where({_predicate(e, p)}, {e.use(a, kind)}, {e.use(b, kind)})")


@expression("slct")
def slct(e: Emitter, i: Instruction) -> None:
    """a where c >= 0, else b."""
    d, a, b, c = i.operands
    kind = kind_of(i.parts[-2])
    choice = kind_of(i.parts[-1])
    truth = f"({e.use(c, choice)} >= {e.constant(choice, 0)})"
    e.define(d, kind, f"where({truth}, {e.use(a, kind)}, {e.use(b, kind)})")


@expression("and.pred", "or.pred", "xor.pred")
def predicate_logic(e: Emitter, i: Instruction) -> None:
    d, a, b = i.operands
    e.define(d, "b1", f"{_predicate(e, a)} {_LOGIC[i.parts[0]]} {_predicate(e, b)}")


@expression("not.pred")
def predicate_not(e: Emitter, i: Instruction) -> None:
    d, a = i.operands
    source = e.use(a.register, "b1") if isinstance(a, Negated) else f"~{_predicate(e, a)}"
    e.define(d, "b1", source)

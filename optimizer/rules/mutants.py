"""Mutants of rules: a condition dropped, operands flipped, a constant changed. Checks catch them.

A rule of formulas gets other formulas. Of a structural rule the function itself is changed, one
place at a time, in its syntax tree: what the check does not notice is either not tested by any
example or does not matter.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...hlo.graph import Function, Module
from ...hlo.ops import find
from ...hlo.text import print_module
from ..rewrite import Engine
from ..rule import Example, Rule
from .check import ALL, check_rule, programs_for
from .formula import (
    Apply,
    FormulaNode,
    Literal,
    Variable,
    false,
    neg_one,
    one,
    true,
    two,
    variables,
    zero,
)
from .language import rule

OTHER_COMPARISON = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip
OTHER_SIGN = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}


def mutants(rule: Rule) -> Iterator[Rule]:
    """Wrong twins of a rule, with its examples and its licence; some may be right by chance."""
    return _of_formula(rule) if rule.made_from else _of_function(rule)


def is_caught(mutant: Rule) -> bool:
    """Whether the check of rules refuses a mutant; one that cannot even run is refused as well."""
    try:
        return bool(check_rule(mutant, rounds=1))
    except Exception:  # any: what a wrong rule does is not known
        return True


def alters(mutant: Rule, given: Rule) -> bool:
    """Whether a mutant does something else than its rule on any program of the check.

    What does not is a condition that others imply, or one that no program gets to.
    """
    return any(
        _outcome(mutant, example) != outcome
        for example, outcome in zip(programs_for(given), _outcomes(given), strict=True)
    )


@functools.lru_cache(maxsize=1)
def _outcomes(given: Rule) -> list[str]:
    return [_outcome(given, example) for example in programs_for(given)]


def _outcome(rule: Rule, example: Example) -> str:
    module = Module({"main": Function("main", example.region)})
    try:
        region = Engine(module, [rule], ALL).simplify(example.region)
    except Exception as error:  # any, as above
        return f"{type(error).__name__}"
    return print_module(module.with_main(region))


# Rules of formulas.


def _of_formula(given: Rule) -> Iterator[Rule]:
    made = dict(given.made_from)
    pattern, replacement = made.pop("pattern"), made.pop("replacement")

    def twin(name: str, wrong: FormulaNode, **changed: Any) -> Iterator[Rule]:
        try:
            found = rule(f"{given.name}: {name}", pattern, wrong, **{**made, **changed})
        except ValueError:
            return  # refused when it is written: its sides have no common type
        yield replace(found, examples=given.examples, single=given.single)

    for key in ("where", "single"):
        if made[key]:
            yield from twin(
                f"{key} dropped", replacement, **{key: None if key == "where" else False}
            )
    for number, wrong in enumerate(_other_formulas(replacement, pattern)):
        yield from twin(f"replacement {number + 1} {wrong}", wrong)


def _other_formulas(node: FormulaNode, pattern: FormulaNode) -> Iterator[FormulaNode]:
    """The formula with operands flipped, a literal changed, or another variable, at one place."""
    if isinstance(node, Literal):
        if node.name in (true.name, false.name):
            yield false if node.name == true.name else true
        else:
            yield from (other for other in (zero, one, two, neg_one) if other.name != node.name)
        return
    if isinstance(node, Variable):
        for other in variables(pattern):
            if other.name != node.name and other.kind == node.kind:
                yield other
        if isinstance(pattern, Apply) and node.kind not in ("predicate", "constant", "static"):
            yield Apply("negate", (node,))
        return
    assert isinstance(node, Apply)
    commutes = find(node.operation).commutative or _is_symmetric(node)
    if len(node.children) == 2 and not commutes:
        if node.children[0] != node.children[1]:
            yield Apply(node.operation, node.children[::-1], node.attributes)
    elif node.operation == "select":
        condition, left, right = (node.children[i] for i in range(3))
        yield Apply("select", (condition, right, left), node.attributes)
    for place, child in enumerate(node.children):
        for other in _other_formulas(child, pattern):
            children = (*node.children[:place], other, *node.children[place + 1 :])
            yield Apply(node.operation, children, node.attributes)


def _is_symmetric(node: Apply) -> bool:
    return node.operation == "compare" and dict(node.attributes)["comparison_direction"] in (
        "EQ", "NE"
    )  # fmt: skip


# Structural rules.


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(sys.modules[module])))


def _of_function(given: Rule) -> Iterator[Rule]:
    function: Any = given.rewrite
    name = function.__name__
    tree = _tree(function.__module__)
    (own,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    made_by_name = function.__code__.co_freevars
    if made_by_name:
        return  # made by a function for several rules
    for number, (what, wrong) in enumerate(_other_functions(own)):
        wrong.decorator_list = []
        unit = ast.Module([wrong], [])
        scope = dict(vars(sys.modules[function.__module__]))
        exec(compile(ast.fix_missing_locations(unit), f"<{name} {what}>", "exec"), scope)
        yield replace(given, name=f"{given.name}: {number + 1} {what}", rewrite=scope[name])


def _other_functions(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(what was changed, the changed function), one place at a time."""
    for index, node in enumerate(ast.walk(function)):
        for what, change in _changes(node):
            wrong = copy.deepcopy(function)
            place = next(n for i, n in enumerate(ast.walk(wrong)) if i == index)
            change(place)
            yield f"line {getattr(node, 'lineno', 0)}: {what}", wrong


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.If) and _leaves(node.body) and not node.orelse:
        tests = _disjuncts(node.test)
        for number, test in enumerate(tests):
            text = ast.unparse(test)
            if ".is_static" in text.replace("b.is_static(", ""):
                continue  # other programs are refused before any rule sees them
            yield f"dropped `{ast.unparse(test)}`", functools.partial(_drop, number=number)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in OTHER_COMPARISON:
            yield f"turned `{ast.unparse(node)}`", _turn
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_SIGN:
        yield f"other sign in `{ast.unparse(node)}`", _other_sign
    elif isinstance(node, ast.Call) and _flippable(node):
        yield f"flipped `{ast.unparse(node)[:60]}`", _flip
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 8:
        yield f"{node.value} became {node.value + 1}", _count_up


def _disjuncts(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return test.values
    return [test]


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch says that the rule does not apply (here)."""
    (last,) = body if len(body) == 1 else (None,)
    if isinstance(last, ast.Return):
        return last.value is None or (
            isinstance(last.value, ast.Constant) and last.value.value is None
        )
    return isinstance(last, ast.Continue)


def _drop(node: Any, number: int) -> None:
    if len(_disjuncts(node.test)) > 1:
        node.test.values[number] = ast.Constant(False)
    else:
        node.test = ast.Constant(False)


def _turn(node: Any) -> None:
    node.ops = [OTHER_COMPARISON[type(node.ops[0])]()]


def _other_sign(node: Any) -> None:
    node.op = OTHER_SIGN[type(node.op)]()


def _flippable(node: ast.Call) -> bool:
    """Whether it builds an operation whose operands do not commute."""
    function = node.func
    if not isinstance(function, ast.Name) or function.id != "b" or len(node.args) != 3:
        return False
    first = node.args[0]
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    return not find(first.value).commutative


def _flip(node: Any) -> None:
    node.args[1], node.args[2] = node.args[2], node.args[1]


def _count_up(node: Any) -> None:
    node.value += 1

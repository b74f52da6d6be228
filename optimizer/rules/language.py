"""The little language of elementwise rules: two formulas over variables, and a licence.

    rule("add-zero", x + zero, x, licence=IGNORES_ZERO_SIGN)

A name used twice matches one value only. Operands of commutative operations match in either order.
Building a rule checks it: every name of the replacement is bound, and both sides have one type.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...hlo.graph import Op, Value
from ...hlo.types import unsharded
from ..licence import BITWISE, Licence
from ..rewrite import Rewriter
from ..rule import Example, Rule
from .formula import (
    REAL,
    Apply,
    FormulaNode,
    Types,
    Variable,
    literals,
    names_in,
    operations,
    variable_type,
    variables,
)
from .generated import examples_of
from .matching import (
    Bindings,
    Condition,
    Match,
    alone,
    build,
    makers_of,
    match_all,
    same_attributes,
    variants_of,
)


def _check(name: str, pattern: FormulaNode, replacement: FormulaNode) -> None:
    unbound = sorted(names_in(replacement) - names_in(pattern))
    if unbound:
        raise ValueError(f"rule '{name}': {', '.join(unbound)} is not bound by its pattern")
    types = Types()
    try:
        left = types.infer(pattern)
        bound = [variable_type(variable) for variable in variables(pattern)]
        types.rigid = {types.find(item) for item in ("predicate", *bound)}
        right = types.infer(replacement)
        types.unify(left, right)
    except ValueError as error:
        raise ValueError(f"rule '{name}': {error}") from None


def rule(
    name: str,
    pattern: FormulaNode,
    replacement: FormulaNode,
    licence: Licence = BITWISE,
    kinds: frozenset[str] = REAL,
    where: Condition | None = None,
    ulps: int = 0,
    lowers: str = "",
    single: bool = False,
) -> Rule:
    """A rule from two formulas.

    `kinds`: element kinds that the data may have; `where`: a condition on the match; `single`: the
    operations inside the pattern must have no other user, so that they disappear. `lowers`: as in
    `Rule`; where it is not said, the operations, or as many of them for cheaper ones.
    """
    if not isinstance(pattern, Apply):
        raise ValueError(f"rule '{name}': its pattern must be an operation")
    _check(name, pattern, replacement)
    variants = [(one, makers_of(one)) for one in variants_of(pattern) if isinstance(one, Apply)]
    fewer = operations(replacement) < operations(pattern)
    lowers = lowers or ("operations" if fewer else "costlier operations")
    data = [v for v in variables(pattern) if v.kind != "predicate"]
    makes_constants = bool(literals(replacement))

    def admissible(bindings: Bindings, root: Op, b: Rewriter) -> bool:
        element = bindings[data[0].name].element if data else root.results[0].element
        if getattr(element, "kind", "") not in kinds or (element.is_float and element.bits < 16):
            return False
        return where is None or where(Match(bindings, b))

    def attempt(variant: Apply, root: Op, b: Rewriter) -> Value | None:
        if variant.attributes and not same_attributes(variant.attributes, root):
            return None
        bindings: Bindings = {}
        if not match_all(variant.children, root.operands, bindings, b):
            return None
        if not admissible(bindings, root, b) or (single and not alone(variant, root, b)):
            return None
        result = root.results[0].tensor
        if makes_constants and not result.is_static:
            return None
        if isinstance(replacement, Variable):
            given = bindings[replacement.name].type
            if unsharded(given) is not unsharded(result):
                return None  # a scalar predicate of a select, say
        return build(replacement, bindings, b, result)

    def rewrite(root: Op, b: Rewriter) -> Value | None:
        operands = root.operands
        for variant, makers in variants:
            for index, name in makers:
                owner = operands[index].owner
                if not isinstance(owner, Op) or owner.definition.name != name:
                    break
            else:
                found = attempt(variant, root, b)
                if found is not None:
                    return found
        return None

    def examples() -> Iterator[Example]:
        return examples_of(pattern, kinds, where)

    text = f"{pattern} -> {replacement}"
    every = all(makers for _, makers in variants)
    made = frozenset(made for _, makers in variants for _, made in makers if every)
    made_from = {
        "pattern": pattern, "replacement": replacement, "licence": licence, "kinds": kinds,
        "where": where, "ulps": ulps, "lowers": lowers, "single": single,
    }  # fmt: skip
    return Rule(
        name, (pattern.operation,), rewrite, licence, examples, lowers, ulps, text, makers=made,
        single=single, made_from=made_from,
    )  # fmt: skip

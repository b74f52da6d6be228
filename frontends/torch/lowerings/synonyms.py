"""Operators that PyTorch has under a second name."""

from __future__ import annotations

from ..context import Lowering

_NAMES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh",
    "concatenate": "cat", "divide": "div", "fix": "trunc", "linalg_matmul": "matmul",
    "moveaxis": "movedim", "multiply": "mul", "negative": "neg", "special_digamma": "digamma",
    "special_erf": "erf", "special_erfc": "erfc", "special_erfinv": "erfinv",
    "special_exp2": "exp2", "special_expit": "sigmoid", "special_expm1": "expm1",
    "special_gammaln": "lgamma", "special_i0": "i0", "special_log1p": "log1p",
    "special_logit": "logit", "special_logsumexp": "logsumexp", "special_psi": "digamma",
    "special_sinc": "sinc", "subtract": "sub",
}  # fmt: skip


def synonyms(table: dict[str, Lowering]) -> dict[str, Lowering]:
    """The second names of the operators in `table`, each overload like its model."""
    found: dict[str, Lowering] = {}
    for second, first in _NAMES.items():
        for target, lowering in table.items():
            if target.startswith(f"aten.{first}."):
                found[target.replace(f".{first}.", f".{second}.")] = lowering
    for name in ("softmax", "log_softmax"):
        found[f"aten.special_{name}.default"] = table[f"aten.{name}.int"]
    return found

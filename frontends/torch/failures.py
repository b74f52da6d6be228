"""What a user is told where torch.export fails: his line, his module, a reason in his words."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any

from ..user_line import user_line

_SYMBOL = re.compile(r"\b[suz]\d+\b")  # PyTorch's names of sizes and of values that are not known
_REPRESENTATION = re.compile(r"\b(?:FakeTensor|FunctionalTensor|SymInt|SymBool|SymFloat)\b")


def export_failure(error: BaseException) -> str:
    """The first line of PyTorch's reason, without the names of its own insides."""
    if type(error).__name__ in ("GuardOnDataDependentSymNode", "UserError") and (
        "data-dependent" in str(error)
    ):
        return (
            "it decides by a value of a tensor, which is known only when the program runs (use "
            "torch.where or torch.cond; torch._check says what a size may be)"
        )
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    reason = _SYMBOL.sub("a symbolic size", reason)
    return _REPRESENTATION.sub("tensor", reason)


def user_place(error: BaseException, model: Any) -> str:
    """`model.py:41 (encoder.layer.3): ` of the user's innermost line and module, else ""."""
    line = user_line(error)
    if not line:
        return ""
    names = {id(module): name for name, module in model.named_modules()}
    path = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        path = names.get(id(frame.f_locals.get("self")), path)
    return f"{line.removesuffix(': ')} ({path}): " if path else line


def operation_name(target: str) -> str:
    """An operator as users write it, its own name behind it: "torch.linalg.eig
    (aten.linalg_eig.default)"; that alone where PyTorch is not loaded or has no such function."""
    parts, torch = target.split("."), sys.modules.get("torch")
    if torch is None or len(parts) < 2 or parts[0] != "aten":
        return target
    name = parts[1]
    if name.startswith("_"):  # of PyTorch's own use: _unique2
        name = name.strip("_").rstrip("0123456789")
    family, _, rest = name.partition("_")
    rooms = (
        (f"torch.{family}.{rest}", getattr(torch, family, None), rest),
        (f"torch.nn.functional.{name}", torch.nn.functional, name),
        (f"torch.{name}", torch, name),
        (f"Tensor.{name}", torch.Tensor, name),
    )
    known = (path for path, room, own in rooms if own and callable(getattr(room, own, None)))
    found = next(known, "")
    return f"{found} ({target})" if found else target

"""What a user is told where torch.export fails: his line, his module, a reason in his words."""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from ..user_line import user_line
from .origins import user_frame

_SYMBOL = re.compile(r"\b[suz]\d+\b")  # PyTorch's names of sizes and of values that are not known
_OPERATOR = re.compile(r"aten\.\w+(\.\w+)?")
_UNKNOWN = re.compile(
    r"Found <class '(?P<output>.+?)'> in output, which|"
    r"Unsupported input type <class '(?P<input>.+?)'>"
)
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
    if reason.startswith(".numpy() is not supported"):
        return "it takes a tensor to numpy, whose values are known only when the program runs"
    if _OPERATOR.fullmatch(reason):
        return f"PyTorch cannot trace {operation_name(reason)}"
    if found := _UNKNOWN.match(reason):
        kind, where = found["output"] or found["input"], "result" if found["output"] else "input"
        if kind == "numpy.ndarray":
            return "an input is a numpy array (pass torch.from_numpy(x))"
        return (
            f"its {where} holds a {kind}, which PyTorch's exports do not know (use tensors, "
            "numbers, texts and containers of these; torch.export.register_dataclass, or "
            "torch.utils._pytree.register_pytree_node, tells PyTorch a class)"
        )
    if "missing nn_module_stack" in reason:
        return "it exchanges its buffers, which PyTorch cannot follow (give them values by copy_)"
    reason = _SYMBOL.sub("a symbolic size", reason)
    return _REPRESENTATION.sub("tensor", reason)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Leaves out of the standard error what PyTorch prints there of a graph that it did not end."""
    said, graph = io.StringIO(), ""
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        text = said.getvalue()
        sys.stderr.write(text.replace(f"{graph}\n", "") if graph else text)


def graph_place(error: BaseException) -> str:
    """`model.py:41: ` of the operation at which an interpretation of a graph failed, else ""."""
    file, line = user_frame(str(error))
    return f"{file}:{line}: " if file else ""


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


_WRITTEN = {  # what users write where the operator has another name, or no function
    "_to_copy": "Tensor.to", "_unsafe_view": "Tensor.view", "_local_scalar_dense": "Tensor.item",
    "slice": "Tensor[begin:end]", "select": "Tensor[index]", "index": "Tensor[index]",
    "index_put": "Tensor[index] = value", "lift_fresh_copy": "torch.tensor",
    "_assert_scalar": "assert", "_assert_async": "torch._assert_async",
}  # fmt: skip


def operation_name(target: str) -> str:
    """An operator as users write it, its own name behind it: "torch.linalg.eig
    (aten.linalg_eig.default)"; that alone where PyTorch is not loaded or has no such function."""
    parts, torch = target.split("."), sys.modules.get("torch")
    if torch is None or len(parts) < 2 or parts[0] != "aten":
        return target
    name = parts[1]
    if name in _WRITTEN:
        return f"{_WRITTEN[name]} ({target})"
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

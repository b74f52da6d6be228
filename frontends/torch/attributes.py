"""What a model changes of itself in forward besides its buffers: an export leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PLAIN = (bool, int, float, str, type(None))


@contextmanager
def watched(model: Any) -> Iterator[list[str]]:
    """While the model is traced: the names of attributes that it changes (numbers, texts, tensors,
    lists and dicts of them). They are as before afterwards."""
    import torch

    found: list[str] = []
    every = vars(torch.nn.Module()).keys()  # what all modules have
    before: list[tuple[str, dict[str, Any], str, Any, Any]] = []

    def look(*_: Any) -> None:
        before.clear()
        for path, module in model.named_modules():
            own = vars(module)
            for name in own.keys() - every:
                full = f"{path}.{name}" if path else name
                before.append((full, own, name, own[name], _content(own[name])))

    def compare(*_: Any) -> None:
        found.extend(
            full
            for full, own, name, value, content in before
            if not _same(value, own.get(name)) or not _same(content, _content(value))
        )

    hooks = [
        model.register_forward_pre_hook(look, prepend=True),
        model.register_forward_hook(compare),
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        for full, own, name, value, content in before:
            if full not in found:
                continue
            own[name] = value
            if isinstance(value, list):
                value[:] = content
            elif isinstance(value, dict):
                value.clear()
                value.update(content)


def _content(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict) else None


def _same(one: Any, other: Any) -> bool:
    """Whether what a forward may change is what it was; other values are not looked at."""
    if one is other:
        return True
    if isinstance(one, _PLAIN) or isinstance(other, _PLAIN):
        return type(one) is type(other) and one == other
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return not hasattr(one, "untyped_storage")

"""What a user says of a program's sizes: `sizes={"batch": (1, 64), "seq": range(16, 513, 16)}`.

A key is a symbol, or a dimension of an argument ("tokens.1"). A number fixes the size, a pair or a
range narrows it, a name is what the symbol is called from now on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from .errors import UserError
from .graph import Module
from .sizes import Symbol, symbol_of_range
from .specialize import names_of, specialized
from .symbols import Dim, SymbolicDim
from .types import TensorType

Stated = int | tuple[int, int | None] | range | str
ORIGIN = "sizes"  # who demands it


def with_stated_sizes(module: Module, sizes: Mapping[str, Stated]) -> Module:
    """The module with these sizes; itself where they say nothing new. UserError for a key that it
    does not have, for values that are no sizes, and for sizes that it does not admit."""
    if not isinstance(sizes, Mapping):
        raise UserError(f"sizes: a dict such as {{'batch': (1, 64)}}, not {sizes!r}")
    named = {key: _name(key, value) for key, value in sizes.items() if isinstance(value, str)}
    module = specialized(module, {_symbol(module, key) or key: new for key, new in named.items()})
    symbols, fixed = dict(module.symbols), dict[str, int | str]()
    for key, value in sizes.items():
        if isinstance(value, str):
            continue
        said = symbol_of_stated(key, value)
        name = _symbol(module, key, said)
        if name is None:
            continue  # the size is what was said
        old = symbols.get(name, Symbol())
        try:
            met = said.meet(old)
        except UserError:
            origin = f" ({old.origin})" if old.origin else ""
            raise UserError(
                f"sizes: {key} is to be {said}, but the program needs {old}{origin}"
            ) from None
        if met._replace(origin=old.origin) != old:
            symbols[name] = met
        if met.first == met.last:
            fixed[name] = met.first
    if symbols != module.symbols:
        module = replace(module, symbols=symbols)
    module.assumptions  # noqa: B018 - UserError where what is left contradicts constraints
    return specialized(module, fixed)


def entries_with_stated_sizes(
    modules: Mapping[str, Module], sizes: Mapping[str, Stated]
) -> dict[str, Module]:
    """The entry points of a program with these sizes, each with those that it has; UserError for
    one that none has, and otherwise as `with_stated_sizes`."""
    if not isinstance(sizes, Mapping):
        raise UserError(f"sizes: a dict such as {{'batch': (1, 64)}}, not {sizes!r}")
    found: dict[str, Module] = {}
    used: set[Any] = set()
    for name, module in modules.items():
        known = {*names_of(module), *dims_of_arguments(module)}
        known |= {value for key, value in sizes.items() if key in known and isinstance(value, str)}
        used |= known
        own = {key: value for key, value in sizes.items() if key in known}
        found[name] = with_stated_sizes(module, own)
    for key in sizes:
        if key not in used:
            _symbol(next(iter(modules.values())), key)
    return found


def _symbol(module: Module, key: Any, said: Symbol | None = None) -> str | None:
    """The symbol that a key means; None where it is a size that is fixed to what is said."""
    names = names_of(module)
    if key in names:
        return key
    dims = dims_of_arguments(module)
    size = dims.get(key)
    if isinstance(size, SymbolicDim):
        if list(size.affine or ()) == [repr(size)]:
            return repr(size)
        raise UserError(
            f"sizes: {key} is {size}; say what {' and '.join(size.symbols)} is, from which it "
            "follows"
        )
    if size is not None and said is not None and said.first == said.last == size:
        return None
    if size is not None:
        raise UserError(f"sizes: {key} is {size} in this program; export it with an open size")
    places = (f"{place} = {dim}" for place, dim in dims.items() if isinstance(dim, SymbolicDim))
    known = ", ".join([*names, *places]) or "none: all sizes are fixed"
    raise UserError(f"sizes: the program has no size '{key}'; it has {known}")


def dims_of_arguments(module: Module) -> dict[str, Dim]:
    """ "tokens.1" -> size, of each dimension of each argument."""
    signature = module.signature
    found: dict[str, Dim] = {}
    for index, argument in enumerate(module.body.arguments):
        path = signature.arguments[index].path if signature is not None else f"input[{index}]"
        if isinstance(argument.type, TensorType):
            found.update({f"{path}.{axis}": dim for axis, dim in enumerate(argument.dims)})
    return found


def _name(key: str, name: str) -> str:
    try:
        return repr(SymbolicDim(name))
    except ValueError:
        raise UserError(f"sizes: {key} cannot be called '{name}': use letters and digits") from None


def symbol_of_stated(key: str, value: Any) -> Symbol:
    """The values that a user admits by a number, a pair or a range; UserError for others."""
    if isinstance(value, range):
        found = symbol_of_range(value, ORIGIN) if len(value) else None
    elif isinstance(value, tuple) and len(value) == 2:
        low, high = value
        if not _is_number(low) or not (high is None or _is_number(high)):
            raise _unreadable(key, value)
        found = None if high is not None and high < low else Symbol(low, high, origin=ORIGIN)
    elif _is_number(value):
        found = Symbol(value, value, origin=ORIGIN)
    else:
        raise _unreadable(key, value)
    if found is None:
        raise UserError(f"sizes: {key} = {value} has no sizes")
    if found.first < 0:
        raise UserError(f"sizes: {key} = {value} has negative sizes")
    return found


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _unreadable(key: str, value: Any) -> UserError:
    return UserError(
        f"sizes: {key} is a number, a pair (first, last), a range or a name, not {value!r}"
    )


_RANGE = re.compile(r"(\d+)\.\.(?:(\d+)(?::(\d+))?)?$", re.ASCII)


def read_stated_sizes(texts: Sequence[str]) -> dict[str, Stated]:
    """`batch=1..64`, `seq=16..512:16` (in steps of 16), `n=2..` (no end), `batch=8`,
    `tokens.0=batch` (a name), as `--size` has them; UserError for other texts."""
    found: dict[str, Stated] = {}
    for text in texts:
        key, equals, value = text.rpartition("=")
        match = _RANGE.match(value)
        if not equals or not key or not value:
            raise UserError(f"--size: write NAME=SIZE, such as batch=1..64, not '{text}'")
        if key in found:
            raise UserError(f"--size: {key} is given twice")
        if match is not None:
            low, high, step = match.groups()
            if step is not None and not int(step):
                raise UserError(f"--size: {text} has steps of 0")
            last = None if high is None else int(high)
            found[key] = (int(low), last)
            if step is not None and last is not None:
                found[key] = range(int(low), last + 1, int(step))
        elif value.isascii() and value.isdigit():
            found[key] = int(value)
        else:
            found[key] = value
    return found

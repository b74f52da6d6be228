"""State by name: arguments that live between calls, and the results that replace them.

    with_states({"decode": module}, {"cache": "output[1]"})

A key names arguments by path, `cache` with all that it holds, `layers.*.k` with `*` for any text;
`cache['k']` and `cache.k` are the same. Its value names the results that replace them likewise, the
stars in the order of the key's:

    "output[1]"                                 in every entry point that has them
    {"prefill": "output[1]", "decode": None}    by entry point; None: it reads the state alone
    ("output[1]", 0.5)                          and what the state begins with; zeros by default
    0.5                                         what it begins with; the result is the one that the
                                                source donates the argument for

An array is the initial value of one state, a number that of all elements. A state is called as its
argument is, `cache.k`. An entry point that makes it and does not read it, as a prefill may, names
the result alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .annotate import dotted
from .hlo.build import Builder
from .hlo.errors import UnsupportedError, UserError
from .hlo.graph import Module, Op, Region, Value, Weight, arguments, signature_of
from .hlo.regions import rewritten
from .hlo.signature import Argument, Result, Signature
from .hlo.trees import Tree
from .hlo.types import TensorType
from .runtime.entries import nearest

Array = np.ndarray[Any, Any]
_REST = r"(?P<rest>(?:\..*)?)"


class Kept(NamedTuple):
    """A state of one entry point: its name, the argument that it is (None: nothing reads it), the
    result that replaces it (None: nothing changes it), and the weight that it begins with."""

    name: str
    argument: int | None
    result: int | None
    initial: Weight


def with_states(modules: Mapping[str, Module], states: Mapping[str, Any]) -> dict[str, Module]:
    """The modules of entry points with these arguments as state. UserError for a name that no entry
    point has, a result that is not there or of another type, and an initial value that does not
    fit."""
    if not isinstance(states, Mapping):
        raise UserError("state: give {argument: the result that replaces it}")
    kept: dict[str, list[Kept]] = {entry: [] for entry in modules}
    splats: dict[Any, Array] = {}
    for key, value in states.items():
        said = _Said.of(key, value, tuple(modules))
        initial = _Initial(said, splats)
        found = {entry: said.pairs(entry, module) for entry, module in modules.items()}
        read = {
            name for some in found.values() for name, argument, _ in some if argument is not None
        }
        if not read:
            raise UserError(f"state: no argument is called '{key}'{_choice(key, modules)}")
        for entry, pairs in found.items():
            for name in [name for name, *_ in pairs if name not in read]:
                raise UserError(
                    f"state '{name}': the entry point '{entry}' makes it, and none has an argument "
                    f"of that name; it is one of {', '.join(sorted(read))}"
                )
        for entry, pairs in found.items():
            for name, argument, result in pairs:
                kind = _type_of(modules[entry], argument, result, name, entry)
                kept[entry].append(Kept(name, argument, result, initial.weight(name, kind)))
    return {entry: _keeping(modules[entry], some, entry) for entry, some in kept.items()}


def as_state(module: Module, weights: Mapping[str, str]) -> Module:
    """The module, of which these weights are state that it reads: arguments behind all others, of
    these names."""
    body = module.body
    elsewhere = {
        op.weight
        for name, function in module.functions.items()
        if name != module.entry
        for op in function.body.walk()
        if op.name == "weight" and op.weight in weights
    }
    if elsewhere:
        raise UnsupportedError(
            f"state '{weights[next(iter(elsewhere))]}' is read inside of a function of an entry "
            "point that does not change it; read it in the entry point"
        )
    kinds = [module.weights[name].type for name in weights]
    fresh = arguments(kinds, len(body.arguments))
    values = dict(zip(weights, fresh, strict=True))

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name != "weight" or op.weight not in values:
            return False
        mapping[op.result] = values[op.weight]
        return True

    own = (*body.arguments, *fresh)
    region = rewritten(body, {}, change, own)
    main = module.main
    signature = _signature_of(module)
    added = tuple(
        Argument(state, kind.dims, kind.element.name, default=weight, state=state)
        for (weight, state), kind in zip(weights.items(), kinds, strict=True)
    )
    facts = main.argument_attributes
    function = replace(
        main, body=region, argument_attributes=(*facts, *[{}] * len(added)) if facts else facts
    )
    return replace(
        module,
        functions={**module.functions, module.entry: function},
        signature=replace(signature, arguments=(*signature.arguments, *added)),
    )


# What was said.


@dataclass(frozen=True)
class _Said:
    """One key of `state=`: the pattern of arguments, that of results in each entry point ("": the
    one that the source donates for), and what the state begins with."""

    key: str
    results: Mapping[str, str | None]
    initial: Any

    @staticmethod
    def of(key: Any, value: Any, entries: Sequence[str]) -> _Said:
        if not isinstance(key, str) or not key:
            raise UserError(f"state: names are texts, such as 'cache', not {key!r}")
        initial: Any = 0
        if isinstance(value, tuple):
            if len(value) != 2:
                raise UserError(f"state '{key}': (result, what it begins with), not {value!r}")
            value, initial = value
        elif not isinstance(value, (str, Mapping)):
            value, initial = "", value
        if isinstance(value, Mapping):
            for entry, result in value.items():
                if entry not in entries:
                    raise UserError(
                        f"state '{key}': there is no entry point {entry!r}"
                        f"{nearest(entry, entries)}; there are {', '.join(entries)}"
                    )
                if result is not None and not isinstance(result, str):
                    raise UserError(f"state '{key}': a result is named by its path, not {result!r}")
            return _Said(key, dict(value), initial)
        if not isinstance(value, str) or initial is None:
            raise UserError(f"state '{key}': name the result that replaces it, such as 'output[1]'")
        return _Said(key, dict.fromkeys(entries, value), initial)

    def pairs(self, entry: str, module: Module) -> list[tuple[str, int | None, int | None]]:
        """(state, its argument, the result that replaces it) of one entry point."""
        if entry not in self.results:
            return []
        pattern, signature = self.results[entry], _signature_of(module)
        stateless = [n for n, one in enumerate(signature.arguments) if one.state is None]
        taken = {
            dotted(signature.arguments[n].path): n
            for n in stateless
            if _match(self.key, signature.arguments[n].path) is not None
        }
        results = {
            dotted(one.path): n for n, one in enumerate(signature.results) if one.state is None
        }
        if pattern is None:
            return [(name, number, None) for name, number in taken.items()]
        found: list[tuple[str, int | None, int | None]] = []
        for name, number in taken.items():
            argument = signature.arguments[number]
            if pattern:
                wanted = _filled(pattern, _match(self.key, argument.path))
                result = results.pop(wanted, None)
            else:
                wanted, result = "that it is donated for", argument.aliases
            if result is None:
                raise UserError(
                    f"state '{argument.path}': the entry point '{entry}' has no result {wanted} "
                    f"that replaces it{nearest(wanted, list(results))}; it gives "
                    f"{', '.join(one.path for one in signature.results)}"
                )
            found.append((name, number, result))
        for path, number in results.items() if pattern else ():
            if (parts := _match(pattern, path)) is not None:
                found.append((_filled(self.key, parts), None, number))
        return found


def _match(pattern: str, path: str) -> tuple[str, ...] | None:
    """What the stars of a pattern stand for in a path, then the rest behind it; None where it names
    something else."""
    text = "(.*?)".join(re.escape(part) for part in dotted(pattern).split("*"))
    found = re.fullmatch(text + _REST, dotted(path))
    return None if found is None else found.groups()


def _filled(pattern: str, parts: tuple[str, ...] | None) -> str:
    """The pattern with what stars stand for and the rest in their places."""
    *stars, rest = parts or ("",)
    pieces = dotted(pattern).split("*")
    if len(pieces) != len(stars) + 1:
        raise UserError(f"state: '{pattern}' has not as many stars as the name on the other side")
    return "".join(piece + star for piece, star in zip(pieces, [*stars, ""], strict=True)) + rest


class _Initial:
    """What the states of one key begin with."""

    def __init__(self, said: _Said, splats: dict[Any, Array]) -> None:
        self.said, self.splats = said, splats
        self.made: dict[str, Weight] = {}

    def weight(self, name: str, kind: TensorType) -> Weight:
        known = self.made.get(name)
        if known is None or known.type is not kind:  # another type is an error of the entry points
            known = self.made[name] = Weight(f"initial {name}", self.array(name, kind), kind)
        return known

    def array(self, name: str, kind: TensorType) -> Array:
        value, given = self.said.initial, np.asarray(self.said.initial)
        if not kind.is_static:
            raise UserError(f"state '{name}': {kind} has sizes that are not fixed; fix them")
        if given.ndim == 0 and isinstance(value, (bool, int, float, complex, np.generic)):
            with np.errstate(over="ignore"):
                one = given.astype(kind.dtype)
            rounds = isinstance(value, float) and kind.element.kind in ("float", "complex")
            exact = rounds or one == given
            if not exact or (given.dtype.kind == "c" and kind.dtype.kind != "c"):
                raise UserError(f"state '{name}': {kind} cannot begin with {value!r}")
            # States of one type and number are views of one element, and are stored once.
            whole = self.splats.setdefault((one.tobytes(), kind.dtype), one)
            return np.broadcast_to(whole, kind.dims)
        if given.dtype != kind.dtype or given.shape != kind.dims:
            raise UserError(
                f"state '{name}': it is {kind}, what it begins with is "
                f"{given.dtype.name}{list(given.shape)}"
            )
        if self.made:
            raise UserError(
                f"state '{self.said.key}' is {name} and {next(iter(self.made))}: an array is what "
                "one state begins with; name each"
            )
        return given


def _type_of(
    module: Module, argument: int | None, result: int | None, name: str, entry: str
) -> TensorType:
    """The type of a state; UserError where argument and result have others."""
    body = module.body
    kinds = [body.arguments[argument].type] if argument is not None else []
    kinds += [body.results[result].type] if result is not None else []
    if any(kind is not kinds[0] for kind in kinds):
        raise UserError(
            f"state '{name}': in the entry point '{entry}' it is {kinds[0]}, the result that "
            f"replaces it is {kinds[1]}"
        )
    if not isinstance(kinds[0], TensorType):
        raise UserError(f"state '{name}': it is {kinds[0]}, which is no array")
    return kinds[0]


def _choice(key: str, modules: Mapping[str, Module]) -> str:
    paths = dict.fromkeys(
        one.path for m in modules.values() for one in _signature_of(m).arguments if not one.state
    )
    roots = [re.split(r"[.\[]", path)[0] for path in paths]
    return f"{nearest(key, [*roots, *paths])}; arguments are {', '.join(list(paths)[:8]) or 'none'}"


# What it makes of a module.


def _keeping(module: Module, kept: Sequence[Kept], entry: str) -> Module:
    """The module with these states: their arguments and results stand behind all others."""
    if not kept:
        return module
    names = [one.name for one in kept]
    signature = _signature_of(module)
    for name in names:
        if names.count(name) > 1 or name in signature.buffers:
            raise UserError(f"state '{name}': it is named twice in the entry point '{entry}'")
    body, main = module.body, module.main
    moved = {one.argument for one in kept if one.argument is not None}
    given = {one.result for one in kept if one.result is not None}
    # The order of arguments and of results, as numbers of the old ones; None is a new argument.
    taken: list[int | None] = [n for n in range(len(body.arguments)) if n not in moved]
    taken += [one.argument for one in kept]
    seen = range(len(signature.results))
    results = [n for n in seen if n not in given]
    results += [one.result for one in kept if one.result is not None]
    own = arguments([
        body.arguments[n].type if n is not None else _result_type(body, kept[at - len(taken)])
        for at, n in enumerate(taken)
    ])  # fmt: skip
    values = {body.arguments[n]: v for n, v in zip(taken, own, strict=True) if n is not None}
    region = rewritten(body, values, lambda b, op, mapping: False, own)
    measured = region.results[len(seen) :]
    region = Region(own, region.ops, [*(region.results[n] for n in results), *measured])
    function = replace(
        main,
        body=region,
        argument_attributes=_reordered(main.argument_attributes, taken),
        result_attributes=_reordered(
            main.result_attributes, [*results, *range(len(seen), len(body.results))]
        ),
    )
    return replace(
        module,
        functions={**module.functions, module.entry: function},
        weights={**module.weights, **{one.initial.name: one.initial for one in kept}},
        signature=_with_state(signature, kept, taken, results),
    )


def _result_type(body: Region, one: Kept) -> Any:
    assert one.result is not None
    return body.results[one.result].type


def _reordered(facts: Sequence[Any], order: Iterable[int | None]) -> tuple[Any, ...]:
    return tuple({} if n is None else facts[n] for n in order) if facts else ()


def _with_state(
    signature: Signature, kept: Sequence[Kept], taken: Sequence[int | None], results: Sequence[int]
) -> Signature:
    """The signature with arguments and results in this order, the last ones state."""
    place = {old: new for new, old in enumerate(results)}
    own = {one.result for one in kept}

    def plain(argument: Argument) -> Argument:
        if argument.aliases is None or (argument.aliases in own and argument.state is None):
            return replace(argument, donated=False, aliases=None) if argument.donated else argument
        return replace(argument, aliases=place[argument.aliases])

    found = [
        plain(signature.arguments[n]) for n in taken[: len(taken) - len(kept)] if n is not None
    ]
    for one in kept:
        typed = signature.arguments[one.argument] if one.argument is not None else None
        if typed is None:
            assert one.result is not None
            result = signature.results[one.result]
            typed = Argument(one.name, result.dims, result.element, key=result.key)
        alias = None if one.result is None else place[one.result]
        found.append(
            replace(
                typed, path=one.name, donated=alias is not None, aliases=alias,
                default=one.initial.name, state=one.name,
            )
        )  # fmt: skip
    names = {one.result: one.name for one in kept if one.result is not None}
    given: list[Result] = [
        replace(signature.results[n], state=names[n], path=names[n])
        if n in names
        else signature.results[n]
        for n in results
    ]
    leaves = iter(range(len(signature.arguments)))
    moved = {one.argument for one in kept}
    inputs = _without(signature.inputs, lambda: next(leaves) in moved, drop=False)
    keywords = _without(signature.keywords, lambda: next(leaves) in moved, drop=True)
    numbers = iter(range(len(signature.results)))
    outputs = _without(signature.outputs, lambda: next(numbers) in names, drop=True)
    if outputs.kind == "tuple" and len(outputs.children) == 1 < len(signature.outputs.children):
        outputs = outputs.children[0]
    return Signature(
        inputs, tuple(found), outputs, tuple(given), keywords, signature.names,
        measured=signature.measured,
    )  # fmt: skip


def _without(tree: Tree, is_state: Callable[[], bool], drop: bool) -> Tree:
    """The tree without the leaves that are state, which are None in it; `drop`: children of which
    nothing is left are no children any more."""
    if tree.kind == "leaf":
        return Tree.none() if is_state() else tree
    children = [
        _without(child, is_state, drop and tree.kind != "namedtuple") for child in tree.children
    ]
    pairs = list(zip(tree.children, children, strict=True))
    kept = [
        number
        for number, (old, new) in enumerate(pairs)
        if not drop or tree.kind in ("namedtuple", "custom") or new.leaf_count or not old.leaf_count
    ]
    keys = tuple(tree.keys[n] for n in kept) if tree.keys else ()
    return replace(tree, children=tuple(children[n] for n in kept), keys=keys)


def _signature_of(module: Module) -> Signature:
    return signature_of(module)

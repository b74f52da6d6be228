"""Several entry points of one program: their sources, and what they have in common.

    {"prefill": (model.prefill, (tokens, count)), "decode": "decode.pt2"}

Weights of equal data are one weight, whatever each source calls them, and state of one name is one
buffer. So what is compiled behind this names equal things alike, and keeps them once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .frontends.source import read_all, read_source
from .hlo.build import Builder
from .hlo.errors import CompilerBug, SeveralEntries, UserError
from .hlo.graph import Module, Op, Value, Weight
from .hlo.regions import rewritten
from .hlo.stated_sizes import Stated, entries_with_stated_sizes
from .runtime.bundle import ENTRY_NAME
from .runtime.parts import same_bytes, sample
from .runtime.session import Session
from .states import as_state, with_states

Modules = dict[str, Module]
_FORMS = (
    "an entry point is a source, (source, example inputs as a tuple), or (source, inputs, keywords "
    "as a dict)"
)


def read_entries(
    source: Any,
    examples: Sequence[Any],
    keywords: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Stated] | None = None,
) -> Modules:
    """The modules of a program's entry points by name: of a dict of sources, or of all that one
    source has; equal weights are one. state, sizes: as for `compile`."""
    if isinstance(source, Mapping):
        if examples or keywords:
            raise UserError(f"example inputs stand at each entry point: {_FORMS}")
        modules = {_checked(name): _read(name, value) for name, value in source.items()}
        if not modules:
            raise UserError(f"there are no entry points: give {{name: source}}; {_FORMS}")
    else:
        modules = read_all(source, examples, keywords)
    if sizes is not None:
        modules = entries_with_stated_sizes(modules, sizes)
    if state is not None:
        modules = with_states(modules, state)
    return _united(modules) if len(modules) > 1 else modules


def _checked(name: Any) -> str:
    """The name of an entry point; UserError where it cannot be one."""
    if not isinstance(name, str) or not ENTRY_NAME.fullmatch(name):
        raise UserError(
            f"entry point {name!r}: a name is letters, digits and _, and begins with a letter"
        )
    if hasattr(Session, name):
        raise UserError(
            f"entry point '{name}': sessions have a '{name}' of their own; call it otherwise"
        )
    return name


def _read(name: str, value: Any) -> Module:
    """The module of an entry point's source."""
    source, inputs, keywords = value, (), {}
    if isinstance(value, (tuple, list)):
        if not 1 <= len(value) <= 3:
            raise UserError(f"entry point '{name}': {_FORMS}, not a tuple of {len(value)}")
        source, (inputs, keywords) = value[0], _given(name, value[1:])
    try:
        return read_source(source, *inputs, **keywords)
    except UserError as error:
        if type(error) not in (UserError, SeveralEntries):  # it has more to say than its text
            error.add_note(f"in entry point '{name}'")
            raise
        raise UserError(f"entry point '{name}': {error}") from error


def _given(name: str, values: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    inputs: Any = values[0] if values else ()
    keywords: Any = values[1] if len(values) > 1 else {}
    if not isinstance(inputs, (tuple, list)) or not isinstance(keywords, Mapping):
        kind = type(inputs if not isinstance(inputs, (tuple, list)) else keywords).__name__
        raise UserError(f"entry point '{name}': {_FORMS}; got a {kind}")
    return inputs, keywords


def hardest_first(modules: Mapping[str, Module]) -> list[str]:
    """The entry points, those with most multiply-adds first: they decide how weights lie that
    others read as well."""
    if len(modules) == 1:
        return list(modules)
    return sorted(modules, key=lambda name: -_products(modules[name]))


def _products(module: Module) -> float:
    """About how many numbers its products and convolutions read, times how often each is read."""
    return sum(
        float(op.operands[1].tensor.size) * op.result.tensor.size
        for op in module.walk()
        if op.definition.pattern == "contract" and op.result.tensor.is_static
    )


def with_equal_weights(*modules_of: Mapping[str, Module]) -> list[Modules]:
    """The same modules, in which weights of one name are one object, whose data is made once."""
    known: dict[str, Weight] = {}
    for modules in modules_of:
        for module in modules.values():
            for name, weight in module.weights.items():
                if known.setdefault(name, weight).type is not weight.type:
                    raise CompilerBug(f"entry points have different weights of the name '{name}'")
    return [
        {name: m.with_weights({n: known[n] for n in m.weights}) for name, m in modules.items()}
        for modules in modules_of
    ]


# What the sources of entry points have in common.


def _united(modules: Modules) -> Modules:
    """The modules with one weight for equal data, and one state for each name."""
    modules = _with_read_state(modules)
    states = _initial_weights(modules)
    pool = _WeightPool()
    found: Modules = {}
    for entry, module in modules.items():
        renamed: dict[str, str] = {}
        weights: dict[str, Weight] = {}
        for name, weight in module.weights.items():
            state = states.get((entry, name))
            one = pool.weight(entry, weight) if state is None else pool.state(entry, weight, state)
            renamed[name] = one.name
            weights[one.name] = one
        found[entry] = _renamed(module, renamed).with_weights(weights)
    return found


class _WeightPool:
    """The weights of the entry points so far, by name, by place in memory and by content."""

    def __init__(self) -> None:
        self.by_name: dict[str, Weight] = {}
        self.by_place: dict[Any, Weight] = {}
        self.by_content: dict[Any, list[tuple[str, Weight]]] = {}
        self.of_state: dict[str, tuple[str, Weight]] = {}  # with the entry that named it first

    def weight(self, entry: str, weight: Weight) -> Weight:
        """The weight of the pool that holds this one's data."""
        array, place = weight.array, _place(weight.array)
        known = self.by_name.get(weight.name)
        if known is not None and _equal(known, weight):
            return known
        if place in self.by_place:
            return self.by_place[place]
        alike = self.by_content.setdefault(sample(array), [])
        for other, one in alike:  # what one source keeps apart stays apart
            if other != entry and same_bytes(one.array, array):
                return one
        if known is not None:
            weight = Weight(self.free(f"{entry}.{weight.name}"), array, weight.type)
        alike.append((entry, weight))
        self.by_place[place] = weight
        return self.named(weight)

    def state(self, entry: str, weight: Weight, state: str) -> Weight:
        """What a state begins with, which is one for all entry points."""
        first = self.of_state.get(state)
        if first is not None:
            other, known = first
            if not _equal(known, weight):
                raise UserError(
                    f"state '{state}' begins with other values in the entry point '{entry}' than "
                    f"in '{other}'; export both of the same model"
                )
            return known
        if weight.name in self.by_name:
            weight = Weight(self.free(f"{entry}.{weight.name}"), weight.array, weight.type)
        self.of_state[state] = entry, weight
        return self.named(weight)

    def named(self, weight: Weight) -> Weight:
        self.by_name[weight.name] = weight
        return weight

    def free(self, name: str) -> str:
        number, tried = 2, name
        while tried in self.by_name:
            tried, number = f"{name}.{number}", number + 1
        return tried


def _equal(one: Weight, other: Weight) -> bool:
    """Whether two weights have the same data."""
    if one.type is not other.type:
        return False
    return _place(one.array) == _place(other.array) or same_bytes(one.array, other.array)


def _place(array: np.ndarray[Any, Any]) -> Any:
    """Equal for arrays of the same memory and type."""
    if not array.size:
        return id(array)
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def _initial_weights(modules: Modules) -> dict[tuple[str, str], str]:
    """(entry point, weight) -> the state that begins with it. UserError where entry points mean
    other types by one name."""
    first: dict[str, tuple[str, Any]] = {}
    found: dict[tuple[str, str], str] = {}
    for entry, module in modules.items():
        for argument in module.signature.arguments if module.signature is not None else ():
            if argument.state is None:
                continue
            other, known = first.setdefault(argument.state, (entry, argument))
            if (known.dims, known.element) != (argument.dims, argument.element):
                raise UserError(
                    f"state '{argument.state}' is {_typed(argument)} in the entry point '{entry}', "
                    f"and {_typed(known)} in '{other}': give them one type, or other names"
                )
            if argument.default is not None:
                found[entry, argument.default] = argument.state
    return found


def _typed(argument: Any) -> str:
    return str(argument).removeprefix(f"{argument.path}: ")


def _with_read_state(modules: Modules) -> Modules:
    """The modules, of which those that read a buffer that another one changes have it as state:
    for their own exports, which know nothing of others, it is a weight."""
    states: dict[str, str] = {}  # all names of what a state begins with -> the state
    for module in modules.values():
        for argument in module.signature.arguments if module.signature is not None else ():
            weight = module.weights.get(argument.default or "")
            if argument.state is not None and weight is not None:
                states |= dict.fromkeys((weight.name, *weight.aliases), argument.state)
    found: Modules = {}
    for entry, module in modules.items():
        own = set() if module.signature is None else set(module.signature.buffers)
        read = {
            name: states[name]
            for name in module.weights
            if name in states and states[name] not in own
        }
        found[entry] = as_state(module, read) if read else module
    return found


def _renamed(module: Module, names: Mapping[str, str]) -> Module:
    """The module with other names of weights."""
    changed = {old: new for old, new in names.items() if old != new}
    if not changed:
        return module

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name != "weight" or op.weight not in changed:
            return False
        facts = {**op.attributes, "weight": changed[op.weight]}
        made = b.append(Op(op.definition, (), facts, (), op.result_types, op.origin))
        mapping[op.result] = made.result
        return True

    functions = {
        name: function.with_body(rewritten(function.body, {}, change, function.body.arguments))
        for name, function in module.functions.items()
    }
    signature = module.signature
    if signature is not None:
        arguments = tuple(
            replace(one, default=changed.get(one.default or "", one.default))
            for one in signature.arguments
        )
        signature = replace(signature, arguments=arguments)
    return replace(module, functions=functions, signature=signature)

"""A program's face: the structure of its inputs and outputs, a readable path for every leaf.

Frontends fill a `Signature`, the bundle stores it as JSON, the runtime checks calls against it.
This module imports nothing of the compiler, so a bundle runs without it.

The flat arguments of a program are the leaves of `Signature.inputs` (a tuple, one child per
positional input), the leaves of `Signature.keywords` (a dict, one child per keyword-only input),
and then the state: an argument for each buffer of the model that a call changes. The flat results
are the leaves of `Signature.outputs`, followed by those whose `state` names the buffer, or the
input, of which they are the new value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import UserError
from .size_text import parse_dim
from .sizes import SizeConstraint, SizeSolver, Symbol, parse_constraint
from .symbols import bound, largest, symbols_of
from .trees import StructureError, Tree, expect

Dim = int | str  # an open size is written as its expression, "batch" or "2*n"

GENERATOR = "generator"
"""The state of a program that draws random numbers: ui64[2], a seed and how many calls there have
been. Where a model has something of that name, it ends in an underscore."""


@dataclass(frozen=True)
class Argument:
    """One flat input: an array of `dims` and `element` ("f32", as StableHLO spells it) at `path`.

    `donated`: the caller gives its memory up, so a result may be written into it; `aliases` is the
    index of that result. `default` names the weight that is taken when a keyword is left out.
    `quantization` is the quantised type that the integers of a quantised input are stored for.
    `state` names the buffer of the model that the argument is; its default is the exported value.
    `given` is the element type that the framework converts to `element` on its own. `key`: the
    integers are those of a random key of JAX's, of this kind.
    """

    path: str
    dims: tuple[Dim, ...]
    element: str
    donated: bool = False
    aliases: int | None = None
    default: str | None = None
    quantization: str | None = None
    state: str | None = None
    given: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {spell(self.quantization or self.element, self.dims)}"


@dataclass(frozen=True)
class Result:
    """One flat output; `state` names the buffer of the model, or is the path of the input, of which
    it is the new value.

    `quantization` is the quantised type that the integers of a quantised output are stored for;
    `key` is the kind of random key of JAX's that they are.
    """

    path: str
    dims: tuple[Dim, ...]
    element: str
    state: str | None = None
    quantization: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {spell(self.quantization or self.element, self.dims)}"


@dataclass(frozen=True)
class Measured:
    """A scalar that a program computes behind its results, and that callers do not see: the value
    of a size that data decide (`size`, an i32), at most `bound`; or whether what the program needs
    of its data holds (an i1; `size` is ""), with the `message` of the error where it does not.
    """

    size: str = ""
    bound: Dim = 0
    message: str = ""

    @property
    def result(self) -> Result:
        """The scalar as one more flat result."""
        named = f"the size {self.size}" if self.size else f"the check '{self.message}'"
        return Result(named, (), "i32" if self.size else "i1")


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program, as the user sees them and flat.

    `names` are the parameter names of the positional inputs, where known: they may then also be
    passed by keyword. There is one argument per leaf of `inputs`, then of `keywords`, then one for
    each buffer that is state; the results without a `state` are the leaves of `outputs`, in order,
    before all results with one.

    `symbols` and `constraints` say what the sizes in dims may be. In a module they are the module's
    own; a bundle's signature has them.

    Where data decide sizes of results ("u0" in their dims), the compiled program computes results
    of the largest sizes, and behind all of them what `measured` describes, by which `settled` cuts
    them.
    """

    inputs: Tree
    arguments: tuple[Argument, ...]
    outputs: Tree
    results: tuple[Result, ...]
    keywords: Tree = Tree("dict")
    names: tuple[str, ...] = ()
    symbols: tuple[tuple[str, Symbol], ...] = ()
    constraints: tuple[SizeConstraint, ...] = ()
    measured: tuple[Measured, ...] = ()

    def __post_init__(self) -> None:
        expect(self.inputs.kind == "tuple", "a signature's inputs are a tuple")
        expect(self.keywords.kind == "dict", "a signature's keywords are a dict")
        leaves = self.inputs.leaf_count + self.keywords.leaf_count
        given = [argument.state is None for argument in self.arguments]
        expect(
            given == [True] * leaves + [False] * len(self.buffers),
            f"the input trees have {leaves} leaves, but there are {sum(given)} arguments, or state "
            "does not come last",
        )
        plain = [result.state is None for result in self.results]
        expect(
            plain == [True] * self.outputs.leaf_count + [False] * len(self.state),
            f"the output tree has {self.outputs.leaf_count} leaves, but {sum(plain)} of the "
            "results are not state, or state results do not come last",
        )

    @functools.cached_property
    def sizes(self) -> SizeSolver:
        """Finds what symbols are in a call (`sizes.solve(shapes)`); UserError where one cannot be
        told from the arguments."""
        arguments = [
            (argument.path, [parse_dim(str(dim)) for dim in argument.dims])
            for argument in self.arguments
        ]
        return SizeSolver(arguments, dict(self.symbols), self.constraints)

    @functools.cached_property
    def computed(self) -> tuple[Result, ...]:
        """What the program computes: the results at the bounds of sizes that data decide, and what
        is measured."""
        if not self.measured:
            return self.results
        bounds = {one.size: parse_dim(str(one.bound)) for one in self.measured if one.size}
        return (
            *(
                replace(result, dims=tuple(_stated(largest(d, bounds)) for d in dims))
                if any(not bounds.keys().isdisjoint(symbols_of(d)) for d in dims)
                else result
                for result, dims in zip(self.results, self._result_dims, strict=True)
            ),
            *(one.result for one in self.measured),
        )

    @functools.cached_property
    def _result_dims(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(parse_dim(str(dim)) for dim in r.dims) for r in self.results)

    def settled(self, values: Sequence[Any]) -> list[Any]:
        """The results of a call, from all that it has computed: cut to the sizes that its data have
        decided, contiguous; UserError where a check does not hold."""
        count = len(self.results)
        shapes = self._shapes(values[count:])
        found = list(values[:count])
        for number, shape in shapes.items():
            found[number] = np.ascontiguousarray(found[number][tuple(map(slice, shape))])
        return found

    def settled_on_device(self, values: Sequence[Any]) -> list[Any]:
        """`settled` of arrays of a GPU's memory, whose first dim alone can be cut there; UserError
        where data decide another one. The scalars come to the host."""
        count = len(self.results)
        shapes = self._shapes([value.numpy() for value in values[count:]])
        for number, shape in shapes.items():
            if shape[1:] != tuple(values[number].shape[1:]):
                raise UserError(
                    f"{self.results[number]}: data decide a size behind the first one, to which "
                    "nothing is cut on the device; call the program instead of on_device"
                )
            values[number].shape = shape
        return list(values[:count])

    def _shapes(self, scalars: Sequence[Any]) -> dict[int, tuple[int, ...]]:
        """The true shapes of the results that data decide, by number; UserError where a check does
        not hold."""
        sizes: dict[str, int] = {}
        for one, value in zip(self.measured, scalars, strict=True):
            if one.size:
                sizes[one.size] = int(value)
            elif not bool(value):
                raise UserError(one.message)
        return {
            number: tuple(bound(dim, sizes) for dim in dims)
            for number, dims in enumerate(self._result_dims)
            if any(not sizes.keys().isdisjoint(symbols_of(dim)) for dim in dims)
        }

    @functools.cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that are arguments: the state that a session keeps."""
        return tuple(a.state for a in self.arguments if a.state is not None)

    @functools.cached_property
    def generator(self) -> str | None:
        """The name of the state that random draws follow from; None where there are none."""
        found = [
            argument.state
            for argument in self.arguments
            if argument.state is not None
            and argument.state.rstrip("_") == GENERATOR
            and (argument.dims, argument.element) == ((2,), "ui64")
        ]
        return max(found, key=len, default=None)

    @functools.cached_property
    def state(self) -> tuple[str, ...]:
        """Names of the buffers and inputs whose new values follow the outputs in `results`."""
        return tuple(result.state for result in self.results if result.state is not None)

    @staticmethod
    def build(
        inputs: Tree,
        argument_types: Sequence[tuple[Sequence[Dim], str]],
        outputs: Tree,
        result_types: Sequence[tuple[Sequence[Dim], str]],
        names: Sequence[str] = (),
        keywords: Tree | None = None,
        state: Sequence[str] = (),
        buffers: Mapping[str, str] | None = None,
    ) -> Signature:
        """The signature of trees and (dims, element) pairs in flat order; paths are derived.

        The last len(state) results are the new values of these buffers and inputs. buffers: those
        of them that are arguments, the last ones, with the weights that hold the exported values.
        """
        keywords = keywords or Tree("dict")
        roots = names or [f"input[{i}]" for i in range(len(inputs.children))]
        paths = inputs.paths("input", roots) + keywords.paths("", tuple(map(str, keywords.keys)))
        buffers = dict(buffers or {})
        plain = len(argument_types) - len(buffers)
        arguments = tuple(
            Argument(path, tuple(dims), element)
            for path, (dims, element) in zip(paths, argument_types[:plain], strict=True)
        )
        first = outputs.leaf_count
        arguments += tuple(
            Argument(
                name, tuple(dims), element, True, first + state.index(name), weight, state=name
            )
            for (name, weight), (dims, element) in zip(
                buffers.items(), argument_types[plain:], strict=True
            )
        )
        result_paths = (*outputs.paths("output"), *state)
        states = (*[None] * outputs.leaf_count, *state)
        results = tuple(
            Result(path, tuple(dims), element, name)
            for path, name, (dims, element) in zip(result_paths, states, result_types, strict=True)
        )
        return Signature(inputs, arguments, outputs, results, keywords, tuple(names))

    @staticmethod
    def plain(
        arguments: Sequence[tuple[Sequence[Dim], str]],
        results: Sequence[tuple[Sequence[Dim], str]],
        names: Sequence[str] = (),
    ) -> Signature:
        """The signature of a plain module: a tuple of leaves in, a flat list out."""
        inputs, outputs = Tree.flat(len(arguments)), Tree.flat(len(results), "list")
        return Signature.build(inputs, arguments, outputs, results, names)

    def donating(self, donations: Mapping[int, int | None]) -> Signature:
        """The same signature with arguments donated: index -> index of the aliased result."""
        arguments = tuple(
            replace(argument, donated=True, aliases=donations[index])
            if index in donations
            else argument
            for index, argument in enumerate(self.arguments)
        )
        return replace(self, arguments=arguments)

    def flatten(
        self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Flat arguments of a call; an argument with a default that is left out becomes None.

        StructureError, which names the path, if the call does not have this signature's structure.
        """
        keywords = dict(keywords or {})
        positional = list(inputs)
        fixed = [not child.leaf_count for child in self.inputs.children]
        if len(positional) == fixed.count(False) and keywords.keys().isdisjoint(self.names):
            given = iter(positional)  # all that the export fixed is left out
            positional = [None if is_fixed else next(given) for is_fixed in fixed]
        while len(positional) < len(fixed):
            at = len(positional)
            if at < len(self.names) and self.names[at] in keywords:
                positional.append(keywords.pop(self.names[at]))
            elif fixed[at]:
                positional.append(None)
            else:
                break
        if len(positional) != len(self.inputs.children):
            missing = self.names[len(positional) : len(positional) + 1]
            reason = self._count_reason(len(positional))
            if missing:
                raise StructureError(missing[0], f"this input is missing; {reason}")
            raise StructureError("inputs", reason)
        roots = self.names or tuple(f"input[{i}]" for i in range(len(positional)))
        leaves = self.inputs.flatten(tuple(positional), "input", roots)
        unknown = [key for key in keywords if key not in self.keywords.keys]
        if unknown:
            known = ", ".join(map(str, (*self.names, *self.keywords.keys))) or "none"
            raise StructureError(str(unknown[0]), f"no such keyword argument; known are: {known}")
        for key, child in zip(self.keywords.keys, self.keywords.children, strict=True):
            start = len(leaves)
            if key in keywords:
                leaves.extend(child.flatten(keywords[str(key)], str(key)))
            elif all(a.default for a in self.arguments[start : start + child.leaf_count]):
                leaves.extend([None] * child.leaf_count)
            else:
                raise StructureError(str(key), "this keyword argument is missing")
        return leaves

    def _count_reason(self, count: int) -> str:
        expected = len(self.inputs.children)
        arguments = self.arguments[: self.inputs.leaf_count]
        listed = ", ".join(map(str, arguments[:4])) + (", ..." if len(arguments) > 4 else "")
        noun = "input" if expected == 1 else "inputs"
        fixed = sum(not child.leaf_count for child in self.inputs.children)
        besides = f", of which {fixed} fixed by the export may be left out" if fixed else ""
        return (
            f"the program takes {expected} positional {noun} ({listed or 'none'}){besides}, "
            f"got {count}"
        )

    def unflatten(self, results: Sequence[Any]) -> Any:
        """What a call returns, without state."""
        return self.outputs.unflatten(results[: self.outputs.leaf_count])

    def states(self, results: Sequence[Any]) -> dict[str, Any]:
        """The new values of buffers and inputs by name."""
        return dict(zip(self.state, results[self.outputs.leaf_count :], strict=True))

    def to_json(self) -> dict[str, Any]:
        """A JSON object, described by `Signature` in specs/bundle.proto."""
        data: dict[str, Any] = {
            "inputs": self.inputs.to_json(),
            "outputs": self.outputs.to_json(),
            "arguments": [_argument_json(argument) for argument in self.arguments],
            "results": [_result_json(result) for result in self.results],
        }
        if self.keywords.children:
            data["keywords"] = self.keywords.to_json()
        if self.names:
            data["names"] = list(self.names)
        if self.symbols:
            data["symbols"] = {name: _symbol_json(symbol) for name, symbol in self.symbols}
        if self.constraints:
            data["constraints"] = [
                {"text": f"{c.left} {c.relation} {c.right}", "origin": c.origin}
                for c in self.constraints
            ]
        if self.measured:
            data["measured"] = [
                {"size": one.size, "bound": one.bound} if one.size else {"message": one.message}
                for one in self.measured
            ]
        return data

    @staticmethod
    def from_json(data: Any) -> Signature:
        """The signature of a value from `to_json`; ValueError if it is not one."""
        expect(isinstance(data, dict), "a signature is a JSON object")
        return Signature(
            inputs=Tree.from_json(data.get("inputs")),
            arguments=tuple(
                Argument(
                    *_typed(item),
                    donated=bool(item.get("donated", False)),
                    aliases=item.get("aliases"),
                    default=item.get("default"),
                    quantization=item.get("quantization"),
                    state=item.get("state"),
                    given=item.get("given"),
                    key=item.get("key"),
                )
                for item in data.get("arguments", ())
            ),
            outputs=Tree.from_json(data.get("outputs")),
            results=tuple(
                Result(
                    *_typed(item),
                    state=item.get("state"),
                    quantization=item.get("quantization"),
                    key=item.get("key"),
                )
                for item in data.get("results", ())
            ),
            keywords=Tree.from_json(data.get("keywords", {"kind": "dict"})),
            names=tuple(map(str, data.get("names", ()))),
            symbols=_symbols(data.get("symbols", {})),
            constraints=tuple(map(_constraint, data.get("constraints", ()))),
            measured=tuple(map(_measured, data.get("measured", ()))),
        )


def spell(element: str, dims: Sequence[Dim]) -> str:
    """A tensor type for people: `f32[2,3]`."""
    return f"{element}[{','.join(map(str, dims))}]"


def _argument_json(argument: Argument) -> dict[str, Any]:
    data = _typed_json(argument)
    if argument.donated:
        data["donated"] = True
    if argument.aliases is not None:
        data["aliases"] = argument.aliases
    for name in ("default", "state", "given", "key"):
        if getattr(argument, name) is not None:
            data[name] = getattr(argument, name)
    return data


def _result_json(result: Result) -> dict[str, Any]:
    data = _typed_json(result)
    for name in ("state", "key"):
        if getattr(result, name) is not None:
            data[name] = getattr(result, name)
    return data


def _symbol_json(symbol: Symbol) -> dict[str, Any]:
    """Without what a symbol has by default."""
    default = Symbol()
    return {
        name: value
        for name, value in symbol._asdict().items()
        if name == "minimum" or value != getattr(default, name)
    }


def _symbols(data: Any) -> tuple[tuple[str, Symbol], ...]:
    expect(isinstance(data, dict), "symbols are a JSON object")
    return tuple((name, _symbol(name, item)) for name, item in data.items())


def _constraint(data: Any) -> SizeConstraint:
    expect(isinstance(data, dict), "a constraint is a JSON object")
    return parse_constraint(str(data.get("text")), str(data.get("origin", "")))


def _measured(data: Any) -> Measured:
    expect(isinstance(data, dict), "what is measured is a JSON object")
    size, bound, message = data.get("size", ""), data.get("bound", 0), data.get("message", "")
    expect(isinstance(size, str) and isinstance(message, str), "it has a size or a message")
    expect(type(bound) is str or (type(bound) is int and bound >= 0), f"{size} has a bound")
    if isinstance(bound, str):
        parse_dim(bound)
    return Measured(size, bound, message)


def _stated(dim: Any) -> Dim:
    """A size as signatures have it."""
    return dim if isinstance(dim, int) else str(dim)


def _symbol(name: str, data: Any) -> Symbol:
    expect(isinstance(data, dict), f"{name}: a symbol is a JSON object")
    kinds = {"minimum": int, "maximum": int, "modulus": int, "residue": int, "origin": str}
    for key, kind in kinds.items():
        expect(type(data.get(key, kind())) is kind, f"{name}: its {key} is no {kind.__name__}")
    found = Symbol(**{key: data[key] for key in kinds if key in data})
    expect(found.modulus > 0 and not found.is_empty, f"{name} has no sizes")
    return found


def _typed_json(item: Argument | Result) -> dict[str, Any]:
    data: dict[str, Any] = {"path": item.path, "dims": list(item.dims), "element": item.element}
    if item.quantization is not None:
        data["quantization"] = item.quantization
    return data


def _typed(data: Any) -> tuple[str, tuple[Dim, ...], str]:
    expect(isinstance(data, dict), "an argument or result is a JSON object")
    path, dims, element = data.get("path"), data.get("dims", []), data.get("element")
    expect(isinstance(path, str) and isinstance(element, str), "it has a path and an element type")
    expect(
        isinstance(dims, list) and all(type(d) is str or (type(d) is int and d >= 0) for d in dims),
        f"{path}: dimensions are integers >= 0 or expressions",
    )
    for dim in dims:
        if isinstance(dim, str):
            parse_dim(dim)
    return path, tuple(dims), element

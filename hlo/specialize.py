"""Programs whose symbols get values: `specialized(module, {"batch": 8, "seq": "length"})`.

A number fixes a symbol, a name renames it, everywhere: in types, attributes, called functions,
nested regions and the signature. A function that is called with several sizes becomes several.
Results whose sizes nothing said before are inferred from operands that are fixed now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from .errors import GirihError, UserError
from .graph import Function, Module, Op, Region, Value, arguments
from .signature import Signature
from .size_text import parse_dim
from .sizes import Symbol
from .symbols import Dim, SymbolicDim, substituted, symbols_of
from .types import FutureType, TensorType, TupleType, Type

KEPT = 16  # specialised modules of one module

Scope = dict[str, Dim]
_kept: WeakKeyDictionary[Module, OrderedDict[Any, Module]] = WeakKeyDictionary()


def specialized(module: Module, values: Mapping[str, int | str]) -> Module:
    """The module with symbols fixed (a number) or renamed (a name); itself where it has none of
    them. Renaming to a symbol that is there makes both one. UserError for sizes that the module
    does not admit. The last ones of each module are kept."""
    known = {name: value for name, value in values.items() if name in names_of(module)}
    if not known:
        return module
    kept = _kept.setdefault(module, OrderedDict())
    key = tuple(sorted(known.items(), key=lambda item: item[0]))
    found = kept.pop(key, None)
    if found is None:
        sizes = {n: v if isinstance(v, int) else SymbolicDim(v) for n, v in known.items()}
        found = _Specializer(module, sizes).module()
    kept[key] = found
    if len(kept) > KEPT:
        kept.popitem(last=False)
    return found


def names_of(module: Module) -> list[str]:
    """The symbols of a module: those that it says something of, and those in arguments."""
    names = dict.fromkeys(module.symbols)
    for argument in module.body.arguments:
        names.update(dict.fromkeys(symbols_of_type(argument.type)))
    return list(names)


def symbols_of_type(kind: Type) -> list[str]:
    if isinstance(kind, TensorType):
        return [name for dim in kind.dims for name in symbols_of(dim)]
    if isinstance(kind, (TupleType, FutureType)):
        return [name for member in kind.members for name in symbols_of_type(member)]
    return []


class _Specializer:
    def __init__(self, old: Module, sizes: Scope) -> None:
        self.old, self.sizes = old, sizes
        self.functions: dict[str, Function] = {}
        self.made: dict[Any, str] = {}  # (function, sizes of its arguments) -> its name now

    def module(self) -> Module:
        """The whole module; the entry keeps its name."""
        old = self.old
        symbols = self.symbols()
        self.function(old.entry, ())
        for name in old.functions:
            if not any(key[0] == name for key in self.made):
                self.function(name, ())
        functions = {name: self.functions[name] for name in old.functions}
        functions.update(self.functions)
        return replace(
            old, functions=functions, symbols=symbols, constraints=self.constraints(),
            signature=None if old.signature is None else self.signature(old.signature),
        )  # fmt: skip

    def symbols(self) -> dict[str, Symbol]:
        found: dict[str, Symbol] = {}
        for name, symbol in self.old.symbols.items():
            value = self.sizes.get(name)
            if isinstance(value, int):
                if not symbol.admits(value):
                    raise UserError(
                        f"the size {name} cannot be {value}: it must be {symbol}"
                        + (f" ({symbol.origin})" if symbol.origin else "")
                    )
                continue
            new = name if value is None else repr(value)
            found[new] = found[new].meet(symbol) if new in found else symbol
        return found

    def constraints(self) -> tuple[Any, ...]:
        kept: dict[Any, None] = {}
        for constraint in self.old.constraints:
            changed = constraint.renamed(self.sizes)
            if changed.symbols:
                kept[changed] = None
            elif not changed.holds({}):
                said = ", ".join(f"{n} = {self.sizes[n]}" for n in constraint.symbols)
                origin = f" ({constraint.origin})" if constraint.origin else ""
                raise UserError(f"{constraint} does not hold for {said}{origin}")
        return tuple(kept)

    def signature(self, old: Signature) -> Signature:
        body = self.functions[self.old.entry].body

        def stated(size: int | str) -> int | str:
            dim = substituted(parse_dim(str(size)), self.sizes)
            return dim if isinstance(dim, int) else str(dim)

        def dims(sizes: Sequence[int | str], kind: Type) -> tuple[int | str, ...]:
            changed = [substituted(parse_dim(str(size)), self.sizes) for size in sizes]
            if any(not measured.isdisjoint(symbols_of(dim)) for dim in changed):
                return tuple(map(stated, sizes))  # the program computes the largest ones
            if isinstance(kind, TensorType) and kind.rank == len(changed):
                # what only operands told is known by now
                changed = [
                    b if isinstance(b, int) else a for a, b in zip(changed, kind.dims, strict=True)
                ]
            return tuple(dim if isinstance(dim, int) else str(dim) for dim in changed)

        measured = {one.size for one in old.measured}
        arguments_of = zip(old.arguments, body.argument_types, strict=True)
        results_of = zip(old.results, body.result_types[: len(old.results)], strict=True)
        return replace(
            old,
            arguments=tuple(replace(a, dims=dims(a.dims, kind)) for a, kind in arguments_of),
            results=tuple(replace(r, dims=dims(r.dims, kind)) for r, kind in results_of),
            symbols=(),  # the module's are others now
            constraints=(),
            measured=tuple(replace(one, bound=stated(one.bound)) for one in old.measured),
        )

    def function(self, name: str, given: Sequence[Type]) -> str:
        """The name of the function for operands of these types."""
        old = self.old.functions[name]
        scope = dict(self.sizes)
        if given:
            _learn_all(old.body, given, scope)
        key = name, tuple(with_sizes(a.type, scope) for a in old.body.arguments)
        known = self.made.get(key)
        if known is not None:
            return known
        new, count = name, 1
        while new in self.functions:
            new, count = f"{name}.{count}", count + 1
        self.made[key] = new
        self.functions[new] = old  # the name is taken
        body = self.region(old.body, scope, {}, given)
        self.functions[new] = replace(old, name=new, body=body)
        return new

    def region(
        self, region: Region, scope: Scope, values: dict[Value, Value], given: Sequence[Type]
    ) -> Region:
        if len(given) == len(region.arguments):
            _learn_all(region, given, scope)
        own = arguments([with_sizes(argument.type, scope) for argument in region.arguments])
        values.update(zip(region.arguments, own, strict=True))
        ops: list[Op] = []
        for op in region.ops:
            new = self.op(op, scope, values)
            values.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Region(own, ops, [values[result] for result in region.results])

    def op(self, op: Op, scope: Scope, values: dict[Value, Value]) -> Op:
        operands = [values[operand] for operand in op.operands]
        given = [operand.type for operand in operands]
        inner: dict[Value, Value] = {} if op.definition.isolated else values
        regions = [self.region(region, scope, inner, given) for region in op.regions]
        attributes = {key: _attribute(value, scope) for key, value in op.attributes.items()}
        types: Sequence[Type] = [with_sizes(result.type, scope) for result in op.results]
        for key in ("callee", "decomposition"):
            if attributes.get(key) in self.old.functions:
                attributes[key] = self.function(attributes[key], given)
                body = self.functions[attributes[key]].body
                types = [_meet(t, r, scope) for t, r in zip(types, body.result_types, strict=True)]
        new = Op(op.definition, operands, attributes, regions, types, op.origin)
        if all(not symbols_of_type(kind) for kind in types):
            return new
        try:
            inferred = op.definition.inferred(new)
        except GirihError:  # it needs fixed sizes
            inferred = None
        if inferred is None or len(inferred) != len(types):
            return new
        types = [_meet(kind, better, scope) for kind, better in zip(types, inferred, strict=True)]
        return Op(op.definition, operands, attributes, regions, types, op.origin)


def _learn_all(region: Region, given: Sequence[Type], scope: Scope) -> None:
    """What the symbols in a region's arguments stand for, by the types that it is given."""
    for argument, kind in zip(region.arguments, given, strict=False):
        if isinstance(argument.type, TensorType) and isinstance(kind, TensorType):
            _learn(argument.type, kind, scope)


def _learn(said: TensorType, kind: TensorType, scope: Scope) -> None:
    if said.rank != kind.rank:
        return
    for dim, size in zip(said.dims, kind.dims, strict=True):
        dim = substituted(dim, scope)
        if isinstance(dim, int) or not isinstance(size, int):
            continue
        factors = dim.affine or {}
        if len(factors) == 1:
            ((name, factor),) = factors.items()
            value, rest = divmod(size - dim.constant, factor)
            if not rest:
                scope[name] = value


def _meet(said: Type, better: Type, scope: Scope) -> Type:
    """The declared type, with the sizes that are only known by another one."""
    if not isinstance(said, TensorType) or not isinstance(better, TensorType):
        return said
    if said.rank != better.rank:
        return said
    _learn(said, better, scope)
    dims = [
        b if isinstance(b, int) and not isinstance(a, int) else a
        for a, b in zip(with_sizes(said, scope).dims, better.dims, strict=True)  # type: ignore[union-attr]
    ]
    return TensorType(dims, said.element, said.sharding)


def with_sizes(kind: Type, scope: Mapping[str, Dim]) -> Type:
    """The type of other sizes; UserError where one becomes negative."""
    if isinstance(kind, TensorType):
        if kind.is_static:
            return kind
        dims = [substituted(dim, scope) for dim in kind.dims]
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            raise UserError(f"{kind} has a negative size where {_said(kind, scope)}")
        return TensorType(dims, kind.element, kind.sharding)
    if isinstance(kind, (TupleType, FutureType)):
        return type(kind)([with_sizes(member, scope) for member in kind.members])
    return kind


def _said(kind: TensorType, scope: Mapping[str, Dim]) -> str:
    names = dict.fromkeys(symbols_of_type(kind))
    return ", ".join(f"{name} = {scope[name]}" for name in names if name in scope)


def _attribute(value: Any, scope: Mapping[str, Dim]) -> Any:
    if isinstance(value, SymbolicDim):
        return value.substitute(scope)
    if isinstance(value, (TensorType, TupleType, FutureType)):
        return with_sizes(value, scope)
    if isinstance(value, tuple):
        return tuple(_attribute(member, scope) for member in value)
    if isinstance(value, dict):
        return {key: _attribute(member, scope) for key, member in value.items()}
    return value


def with_inferred_sizes(module: Module) -> Module:
    """The module in which results have the sizes that their operations infer, where the source has
    left them open: every `?` of StableHLO is a symbol of its own at first."""
    known = {
        name
        for argument in module.body.arguments
        if isinstance(argument.type, TensorType)
        for dim in argument.type.dims
        for name in symbols_of(dim)
    }
    names: dict[str, int | str] = {}
    for op in module.body.ops:
        kinds = [k for k in op.result_types if isinstance(k, TensorType) and not k.is_static]
        inferred = op.definition.infer(op) if kinds else None
        if not inferred:
            continue
        for declared, found in zip(op.result_types, inferred, strict=True):
            if not isinstance(declared, TensorType) or not isinstance(found, TensorType):
                continue
            for dim, size in zip(declared.dims, found.dims, strict=False):
                own, other = symbols_of(dim), symbols_of(size)
                if dim is size or len(own) != 1 or repr(dim) != own[0] or own[0] in known:
                    continue
                if isinstance(size, int):
                    names.setdefault(own[0], size)
                elif repr(size) == other[0] and other[0] != own[0]:
                    names.setdefault(own[0], names.get(other[0], other[0]))
    return specialized(module, names) if names else module

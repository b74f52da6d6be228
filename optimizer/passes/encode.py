"""encode: weights are stored in the order in which contraction kernels read them.

An encoding is plain HLO. The backend says how a contraction wants an operand to lie (`Packing`: a
forward and an inverse function of ordinary reshapes, transposes and pads); the weight goes through
`forward` when the program is compiled, and the fusion reads it through `inverse`, which the kernel
emitter recognises. So the meaning never changes and the interpreter needs to know nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from ...hlo.build import Builder, build_region
from ...hlo.derivation import derived
from ...hlo.graph import Function, Module, Op, Region, Value, Weight, arguments
from ...hlo.offsets import Offset, Offsets
from ...hlo.ops.tile_examples import INDEX
from ...hlo.regions import inline, rename, rewritten
from ...hlo.symbols import SymbolicDim
from ...hlo.types import TensorType
from ...hlo.verify import FUSED, Level

Move = Callable[[Builder, Value], Value]


class Packing(NamedTuple):
    """How operand number `operand` of a contraction should lie. `name` tells packings apart."""

    operand: int
    name: str
    forward: Move
    inverse: Move
    windows: PackedWindows | None = (
        None  # None: windows of an operand that lies so do not lie so, too
    )


class PackedWindows(NamedTuple):
    """How windows of a packed operand lie: each is packed like the operand, for its own dims.

    steps: for each dim of the packed operand, of which dim of the operand how many elements are
    one step along it; None: all of that dim is in each window.
    of: the packing, by the same name, of an operand of other dims, of which this one is a window.
    """

    steps: tuple[tuple[int, int] | None, ...]
    of: Callable[[tuple[int, ...]], Packing]


@dataclass(frozen=True)
class Encode:
    """FUSED -> FUSED; `packing` gives the order that a contraction wants, or None.

    alike: weights, with the name of the packing in which another entry point of the program has
    them: a contraction that `shared` gives that packing for reads them so, too, so that they are
    stored once.
    """

    packing: Callable[[Op], Packing | None]
    shared: Callable[[Op], Packing | None] | None = None
    alike: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = "encode"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        encoder = _Encoder(module, self.chosen)
        functions = {
            name: function.with_body(encoder.region(function.body))
            for name, function in module.functions.items()
        }
        if not encoder.made:
            return module
        changed = module.with_functions(functions)
        used = used_weights(functions.values())
        weights = {name: w for name, w in module.weights.items() if name in used}
        weights.update(encoder.made)
        notes = [
            f"weight '{weight.inverse[0]}' is stored twice, plain and as '{name}': "
            f"+{weight.type.bytes / 1e6:.1f} MB"
            for name, weight in encoder.made.items()
            if weight.inverse and weight.inverse[0] in used
        ]
        return changed.with_weights(weights).with_notes(*notes)

    def chosen(self, op: Op, weight: str) -> Packing | None:
        """How a contraction gets that weight."""
        own, agreed = self.packing(op), self.alike.get(weight)
        if agreed is None or self.shared is None or (own is not None and own.name == agreed):
            return own
        other = self.shared(op)
        return other if other is not None and other.name == agreed else own


def packings(module: Module) -> dict[str, str]:
    """The weights that a module has packed alone, with the names of their packings."""
    used = used_weights(module.functions.values())
    found: dict[str, str] = {}
    for name, weight in module.weights.items():
        if weight.inverse is not None and weight.inverse[0] not in used:
            original = weight.inverse[0]
            found.setdefault(original, name.removeprefix(f"{original}|"))
    return found


def stored_operand(value: Value) -> Value:
    """What an operand is read from: the value before the conversions of its elements."""
    while value.op is not None and value.op.name == "convert":
        value = value.op.operands[0]
    return value


def used_weights(functions: Iterable[Function]) -> set[str]:
    """Names of the weights that any operation reads."""
    return {
        op.weight for function in functions for op in function.body.walk() if op.name == "weight"
    }


class _Encoder:
    def __init__(self, module: Module, packing: Callable[[Op, str], Packing | None]) -> None:
        self.module, self.packing = module, packing
        self.made: dict[str, Weight] = {}

    def region(self, region: Region) -> Region:
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        placed: dict[str, Value] = {}
        for op in region.ops:
            operands = [mapping.get(value, value) for value in op.operands]
            if op.definition.flow:
                nested = [self.region(rename(body, mapping)) for body in op.regions]
                new = op.with_operands(operands, nested)
            else:
                new = op.with_operands(operands)
                if op.name == "fusion" and op.kind == "contract":
                    new = self.fusion(new, ops, placed)
                elif op.name == "kernel_call":
                    new = self.kernel(new, ops, placed)
            mapping.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        if all(new is old for new, old in zip(ops, region.ops, strict=False)):
            return region
        results = [mapping.get(value, value) for value in region.results]
        return Region(region.arguments, _without_dead_weights(ops, results), results)

    def fusion(self, op: Op, ops: list[Op], placed: dict[str, Value]) -> Op:
        body = op.regions[0]
        contraction = next(
            (inner for inner in body.ops if inner.definition.pattern == "contract"), None
        )
        if contraction is None:
            return op
        for number, operand in enumerate(contraction.operands):
            argument = stored_operand(operand)
            if argument.owner is not body or len(body.uses[argument]) != 1:
                continue
            source = op.operands[argument.index].op
            if source is None or source.name != "weight":
                continue
            wanted = self.packing(op, source.weight)
            if wanted is not None and wanted.operand == number:
                return self.through(op, argument, source, wanted, ops, placed)
        return op

    def through(
        self, op: Op, argument: Value, source: Op, wanted: Packing, ops: list[Op],
        placed: dict[str, Value],
    ) -> Op:  # fmt: skip
        """The fusion, which reads the weight that is an argument of its body packed."""
        body = op.regions[0]
        value = self.placed(source, wanted, ops, placed)
        operands = list(op.operands)
        operands[argument.index] = value
        region = _read_through(body, argument, value.tensor, wanted.inverse)
        return Op(op.definition, operands, op.attributes, (region,), op.result_types, op.origin)

    def kernel(self, op: Op, ops: list[Op], placed: dict[str, Value]) -> Op:
        """A tile function whose contractions read weights, or windows of them, has them packed."""
        for number, operand in enumerate(op.operands):
            source = operand.op
            if source is None or source.name != "weight":
                continue
            load = _only_load(op.regions[0], number)
            wanted = self.packing(load.reader, source.weight) if load is not None else None
            if load is None or wanted is None:
                continue
            window = _window(op, load, wanted)
            if window is None:
                continue
            value = self.placed(source, window.whole, ops, placed)
            operands = [value if n == number else old for n, old in enumerate(op.operands)]
            body = _load_through(op.regions[0], number, value.tensor, load.op, window)
            regions = (body, *op.regions[1:])
            if len(regions) > 1:
                regions = (body, _read_through(
                    regions[1], regions[1].arguments[number], value.tensor, window.whole.inverse
                ))  # fmt: skip
            op = Op(op.definition, operands, op.attributes, regions, op.result_types, op.origin)
        return op

    def placed(
        self, source: Op, packing: Packing, ops: list[Op], placed: dict[str, Value]
    ) -> Value:
        """The packed weight as a value of the region, there once."""
        packed = self.weight(source.weight, packing)
        value = placed.get(packed.name)
        if value is None:
            made = Op(
                source.definition, (), {"weight": packed.name}, (), (packed.type,), source.origin
            )
            ops.append(made)
            value = placed[packed.name] = made.result
        return value

    def weight(self, name: str, packing: Packing) -> Weight:
        """The weight in that order; its data is computed when it is first needed."""
        key = f"{name}|{packing.name}"
        known = self.made.get(key)
        if known is not None:
            return known
        original = self.module.weights[name]
        forward = build_region([original.type], lambda b, x: [packing.forward(b, x)])
        packed = forward.results[0].tensor
        of, back = original.inverse or (name, None)

        def unpacked(b: Builder, x: Value) -> list[Value]:
            found = packing.inverse(b, x)
            return [found] if back is None else inline(b, back, [found])

        inverse = of, build_region([packed], unpacked)
        made = derived(key, [original], forward, original.aliases, inverse)
        self.made[key] = made
        return made


class _Load(NamedTuple):
    """The load of an input, and the one contraction that reads it."""

    op: Op
    reader: Op


class _PackedWindow(NamedTuple):
    """What a load reads of a packed weight: as many steps of each dim, or all of it (None, also for
    dims that are left out); and how the whole and the window itself lie."""

    whole: Packing
    own: Packing
    offsets: tuple[Offset, ...]
    sizes: tuple[int | None, ...]


def _only_load(body: Region, number: int) -> _Load | None:
    """How a tile function reads an input, if it is one load for one contraction."""
    loads = _readers(body, body.arguments[number])
    if len(loads) != 1 or loads[0].name != "tile_load":
        return None
    readers = _readers(body, loads[0].result)
    if len(readers) != 1 or readers[0].definition.pattern != "contract":
        return None
    return _Load(loads[0], readers[0])


def _readers(body: Region, value: Value) -> list[Op]:
    """What reads a value, in regions inside as well."""
    return [op for op in body.walk() if value in op.operands]


def _window(kernel: Op, load: _Load, wanted: Packing) -> _PackedWindow | None:
    """What the load reads where the weight lies as its contraction wants what is loaded; None if
    that is no window of whole steps."""
    op, dims = load.op, load.op.operands[0].dims
    if load.reader.operands[wanted.operand] is not op.result:
        return None
    known = Offsets(kernel)
    starts = [known.of(offset) for offset in op.offsets]
    cut = [d for d, size in enumerate(op.sizes) if size != dims[d] or starts[d] != Offset(0)]
    if not cut:
        return _PackedWindow(wanted, wanted, (), ())
    if wanted.windows is None or op.fill != 0:  # what lies behind the last step is 0
        return None
    offsets: list[Offset] = []
    sizes: list[int | None] = []
    for step in wanted.windows.steps:
        d, count = step or (-1, 1)
        if d not in cut:
            offsets.append(Offset(0))
            sizes.append(None)
            continue
        cut.remove(d)
        start = _divided(starts[d], count)
        if start is None or op.sizes[d] % count or op.sizes[d] > dims[d]:
            return None
        offsets.append(start)
        sizes.append(op.sizes[d] // count)
    if cut:
        return None
    return _PackedWindow(wanted.windows.of(dims), wanted, tuple(offsets), tuple(sizes))


def _divided(offset: Offset, by: int) -> Offset | None:
    """The offset in steps of so many elements; None where it is no whole number of them."""
    numbers = (offset.constant, *(factor for _, factor in offset.terms))
    if any(isinstance(number, SymbolicDim) or number % by for number in numbers):
        return None
    if any(variable.type is not INDEX for variable in offset.variables):
        return None
    terms = tuple((variable, factor // by) for variable, factor in offset.terms)
    return Offset(offset.constant // by, terms)


def _load_through(
    body: Region, number: int, type: TensorType, load: Op, window: _PackedWindow
) -> Region:  # fmt: skip
    """The body of a tile function with an input of another type, of which it loads a window."""
    sizes = [size or dim for size, dim in zip_longest(window.sizes, type.dims)]

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op is load:
            offsets = [_value(b, offset, mapping) for offset in window.offsets]
            offsets += [b.constant(0, INDEX)] * (type.rank - len(offsets))
            tile = b("tile_load", mapping[op.operands[0]], *offsets, sizes=tuple(sizes))
            mapping[op.result] = window.own.inverse(b, tile)
        return op is load

    own = arguments([type if n == number else a.type for n, a in enumerate(body.arguments)])
    return rewritten(body, dict(zip(body.arguments, own, strict=True)), change, own)


def _value(b: Builder, offset: Offset, mapping: Mapping[Value, Value]) -> Value:
    """An offset as operations on its variables."""
    needed = offset.constant or not offset.terms
    total = b.constant(offset.constant, INDEX) if needed else None
    for variable, factor in offset.terms:
        term = mapping.get(variable, variable)
        if factor != 1:
            term = b("multiply", term, b.constant(factor, INDEX))
        total = term if total is None else b("add", total, term)
    assert total is not None
    return total


def _read_through(body: Region, argument: Value, type: TensorType, inverse: Move) -> Region:
    """The body with one argument of another type, read through `inverse`."""
    own = arguments([type if value is argument else value.type for value in body.arguments])
    builder = Builder()
    mapping: dict[Value, Value] = dict(zip(body.arguments, own, strict=True))
    mapping[argument] = inverse(builder, own[argument.index])
    ops = list(builder.ops)
    for op in body.ops:
        new = op.with_operands([mapping.get(value, value) for value in op.operands])
        mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [mapping.get(value, value) for value in body.results])


def _without_dead_weights(ops: list[Op], results: list[Value]) -> list[Op]:
    used = {value for op in ops for value in op.operands} | set(results)
    for op in ops:
        for body in op.regions:
            used.update(body.captures())
    return [op for op in ops if op.name != "weight" or op.result in used]


def stored_weights(simple: Module, encoded: Module) -> dict[str, Weight]:
    """The weights of `simple` as a bundle keeps them: in place of one that only its encoded form is
    read of, that form, so that every tensor is stored once."""
    used = used_weights(encoded.functions.values())
    replaced: dict[str, Weight] = {}
    for weight in encoded.weights.values():
        if weight.inverse and weight.inverse[0] not in used:
            replaced.setdefault(weight.inverse[0], weight)
    return {
        (replaced[name].name if name in replaced else name): replaced.get(name, weight)
        for name, weight in simple.weights.items()
    }


def stored_module(module: Module) -> Module:
    """The module as a bundle keeps it, where it has the weights that `stored_weights` gives: one
    that is there in its encoded form is read through the inverse."""
    replaced = {
        weight.inverse[0]: weight
        for weight in module.weights.values()
        if weight.inverse and weight.inverse[0] not in module.weights
    }
    if not replaced:
        return module
    functions = {
        name: function.with_body(_substitute(function.body, replaced))
        for name, function in module.functions.items()
    }
    return module.with_functions(functions)


def _substitute(region: Region, replaced: dict[str, Weight]) -> Region:
    mapping: dict[Value, Value] = {}
    builder = Builder()
    for op in region.ops:
        if op.name == "weight" and op.weight in replaced:
            weight = replaced[op.weight]
            assert weight.inverse is not None
            with builder.at(op.origin):
                packed = builder("weight", type=weight.type, weight=weight.name)
                mapping[op.result] = inline(builder, weight.inverse[1], [packed])[0]
            continue
        nested = [_substitute(rename(body, mapping), replaced) for body in op.regions]
        new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
        mapping.update(zip(op.results, new.results, strict=True))
        builder.append(new)
    if not mapping:
        return region
    results = [mapping.get(value, value) for value in region.results]
    return Region(region.arguments, builder.ops, results)

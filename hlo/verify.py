"""Checks a module: definitions before uses, every room's clauses, types, calls, weights.

A *level* is a named set of legal operations; a pass states the level it takes and gives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .assumptions import assuming
from .conflicts import conflict, sharding_of
from .errors import UserError, VerifyError
from .graph import Module, Op, Region, Value
from .ops.clauses import same_dim
from .room import OpDefinition
from .sizes import SizeConstraint
from .specialize import names_of, symbols_of_type, with_sizes
from .symbols import Dim, SymbolicDim, substituted, symbols_of
from .text import print_op
from .tiling import TILE_OPS
from .types import Element, QuantizedType, TensorType, Type


@dataclass(frozen=True)
class Level:
    """Which operations may stand in a module; `holds` is asked of those outside fusions only.

    sharded: every tensor has a sharding without open dims; otherwise only those have one that the
    user annotated: arguments of the entry, results of `sharding_constraint`. agreeing: those of
    each operation agree (`conflicts.py`).
    """

    name: str
    meaning: str
    holds: Callable[[OpDefinition], bool] = lambda op: True
    sharded: bool = False
    agreeing: bool = False


_CALLS = frozenset({"call", "composite"})
HLO = Level(
    "HLO",
    "any operation except fusion and those of tiles",
    lambda op: op.name != "fusion" and op.name not in TILE_OPS,
)
INLINED = Level(
    "INLINED",
    "HLO without calls",
    lambda op: op.name != "fusion" and op.name not in _CALLS | TILE_OPS,
)
SHARDED = Level(
    "SHARDED",
    "INLINED, and every tensor has a sharding",
    INLINED.holds,
    sharded=True,
)
DECIDED = Level(
    "DECIDED",
    "SHARDED; only sharding_constraint changes how a value lies, and all else can be computed on "
    "each device's parts",
    INLINED.holds,
    sharded=True,
    agreeing=True,
)
FUSED = Level(
    "FUSED",
    "fusions, kernels, control flow, sources and single opaque operations",
    lambda op: op.name not in _CALLS | TILE_OPS,
)
_TILE_PATTERNS = ("tile", "elementwise", "index", "reduce", "contract", "source", "control")
TILED = Level(
    "TILED",
    "what stands in a tile function: tile operations, and operations that have tiles",
    lambda op: (
        op.pattern in _TILE_PATTERNS
        and op.name not in _CALLS
        and op.name not in ("weight", "fusion")
    ),
)


_SINGLE = ("elementwise", "index", "contract", "source")  # patterns of operations with one result
MAXIMUM_RANK = 64  # numpy's


_VERIFIED: weakref.WeakSet[Module] = weakref.WeakSet()  # modules never change
_PROVEN: weakref.WeakSet[Module] = weakref.WeakSet()


def verify(module: Module, level: Level | None = None) -> None:
    """Raise VerifyError for the first fault. A module without one is not looked at again."""
    if level is None and module in _VERIFIED:
        return
    unknown: list[SizeConstraint | None] = []
    with assuming(module.assumptions, unknown=unknown):
        _verify(module, level)
    if level is None:
        _VERIFIED.add(module)
        if not unknown:
            _PROVEN.add(module)


def require_proven_sizes(module: Module) -> None:
    """VerifyError for the first clause about sizes that does not follow from what the module says
    of its symbols; what is only not refuted passes `verify`. Where data decide a size, that is
    enough here, too: whether it fits is computed by the program (`mask-bounded`). A module without
    one is not looked at again."""
    if module in _PROVEN:
        return
    dims = [dim for a in module.body.arguments for dim in _dims(a)]
    given = frozenset(name for dim in dims for name in symbols_of(dim))
    with assuming(module.assumptions, proven=True):
        _verify(module, None, given)
    _PROVEN.add(module)


def _dims(value: Value) -> Sequence[Dim]:
    return value.type.dims if isinstance(value.type, TensorType) else ()


def _verify(module: Module, level: Level | None, given: frozenset[str] | None = None) -> None:
    if module.entry not in module.functions:
        raise VerifyError(f"the module has no entry function '{module.entry}'")
    for function in module.functions.values():
        verifier = _Verifier(module, level, given)
        verifier.region(function.body, set(), function.name == module.entry)
    signature = module.signature
    if signature is not None:
        body = module.body
        for what, declared, actual in (
            ("arguments", len(signature.arguments), len(body.arguments)),
            ("results", len(signature.computed) + module.logged, len(body.results)),
        ):
            if declared != actual:
                raise VerifyError(f"the signature has {declared} {what}, the program {actual}")


class _Verifier:
    def __init__(
        self, module: Module, level: Level | None, given: frozenset[str] | None = None
    ) -> None:
        """given: symbols that calls decide; only what has no others has to be proven."""
        self.module, self.level, self.given = module, level, given

    def region(self, region: Region, outer: set[Value], annotated: bool = False) -> None:
        """`annotated`: its arguments may have shardings at every level."""
        for number, argument in enumerate(region.arguments):
            place = f"argument {number} of {'the program' if annotated else 'a region'}"
            _require_meaning(argument.type, place)
            reason = self.unplaced(argument.type, annotated)
            if reason:
                raise VerifyError(f"{place} is {argument.type}: {reason}")
        defined = outer | set(region.arguments)
        for op in region.ops:
            for number, value in enumerate(op.operands):
                if value not in defined:
                    raise _fault(op, f"operand {number} is used before it is defined")
            if self.level is not None and not self.level.holds(op.definition):
                raise _fault(op, f"is not legal at level {self.level.name} ({self.level.meaning})")
            if self.of_data(op):
                with assuming(self.module.assumptions):
                    self.op(op)
            else:
                self.op(op)
            inner = set() if op.definition.isolated else defined
            for nested in op.regions:
                self.inside(op, nested).region(nested, inner)
            defined.update(op.results)
        for number, value in enumerate(region.results):
            if value not in defined:
                raise VerifyError(f"result {number} of a region is not defined in it")

    def of_data(self, op: Op) -> bool:
        """Whether data decide a size of its operands or results, where that makes a difference."""
        if self.given is None:
            return False
        values = [*op.operands, *op.results]
        if op.name in ("call", "call_with_weights") and op.callee in self.module.functions:
            body = self.module.functions[op.callee].body
            values += [*body.arguments, *body.results]
        dims = [dim for value in values for dim in _dims(value)]
        return any(name not in self.given for dim in dims for name in symbols_of(dim))

    def inside(self, op: Op, nested: Region) -> _Verifier:
        """Who checks a body: what stands inside a kernel is another level's business."""
        if op.name == "kernel_call" and nested is op.regions[0]:
            return _Verifier(self.module, TILED, self.given)
        if op.name == "sdy.manual_computation" and self.level is DECIDED:
            # What stands inside is for one device.
            return _Verifier(self.module, SHARDED, self.given)
        return _Verifier(self.module, None, self.given) if op.definition.sealed else self

    def op(self, op: Op) -> None:
        op.definition.check(op)
        for number, result in enumerate(op.results):
            _require_meaning(result.type, f"result {number} of {op.name}")
            reason = self.unplaced(result.type, op.name == "sharding_constraint")
            if reason:
                raise _fault(op, f"result {number} is {result.type}: {reason}")
        if self.level is not None and self.level.agreeing:
            reason = self.conflict(op)
            if reason:
                raise _fault(op, reason)
        inferred = op.definition.inferred(op)
        if inferred is None and op.definition.pattern in _SINGLE and len(op.results) != 1:
            raise _fault(op, f"must have 1 result, has {len(op.results)}")
        if inferred is not None:
            if len(inferred) != len(op.results):
                raise _fault(op, f"must have {len(inferred)} results, has {len(op.results)}")
            for number, (wanted, result) in enumerate(zip(inferred, op.results, strict=True)):
                if not compatible(wanted, result.type):
                    raise _fault(op, f"result {number} must be {wanted}, is {result.type}")
        if op.name == "weight":
            weight = self.module.weights.get(op.weight)
            if weight is None:
                raise _fault(op, f"there is no weight '{op.weight}'")
            if not compatible(weight.type, op.result.type):
                raise _fault(op, f"weight '{op.weight}' is {weight.type}, not {op.result.type}")
        elif op.name in ("call", "call_with_weights"):
            for _, here in op.attributes.get("weights", ()):
                if here not in self.module.weights:
                    raise _fault(op, f"there is no weight '{here}'")
            callee = self.module.functions.get(op.callee)
            if callee is None:
                raise _fault(op, f"there is no function '{op.callee}'")
            given = tuple(value.type for value in op.operands)
            takes, gives = called_types(self.module, callee.body, given)
            if len(given) != len(takes) or not all(map(compatible, takes, given)):
                raise _fault(op, f"'{op.callee}' takes {list(takes)}, got {list(given)}")
            if len(gives) != len(op.results) or not all(map(compatible, gives, op.result_types)):
                raise _fault(op, f"'{op.callee}' gives {list(gives)}")

    def conflict(self, op: Op) -> str:
        """Why the shardings of its tensors do not agree, or nothing."""
        names = {s.mesh for s in map(sharding_of, (*op.operands, *op.results)) if s is not None}
        if len(names) > 1:
            return f"its tensors lie on several meshes: {', '.join(sorted(names))}"
        return next((conflict(op, self.module.meshes[name]) for name in names), "")

    def unplaced(self, kind: Type, annotated: bool) -> str:
        """Why a value of this type has no legal place on a mesh, or nothing; `annotated`: the user
        may have said it."""
        if not isinstance(kind, TensorType):
            return ""
        level, sharding = self.level, kind.sharding
        if sharding is None:
            needed = level is not None and level.sharded
            return f"at level {level.name} it needs a sharding" if level and needed else ""
        mesh = self.module.meshes.get(sharding.mesh)
        if mesh is None:
            known = ", ".join(f"@{name}" for name in self.module.meshes) or "none"
            return f"the module has no mesh @{sharding.mesh}; it has {known}"
        try:
            sharding.check(mesh, kind.rank)
        except UserError as error:
            return str(error)
        if level is None or level.sharded:
            is_open = level is not None and any(dim.open for dim in sharding.dims)
            return f"at level {level.name} no dim is open" if level and is_open else ""
        if annotated:
            return ""
        return f"at level {level.name} only arguments and sharding_constraint have shardings"


def called_types(
    module: Module, body: Region, given: Sequence[Type]
) -> tuple[tuple[Type, ...], tuple[Type, ...]]:
    """The types that a function takes and gives where it is called with `given`: symbols that the
    module does not know (`specialize.names_of`) are the function's own, and stand for what its
    operands have."""
    takes, gives = body.argument_types, body.result_types
    kinds = [kind for kind in (*takes, *gives) if isinstance(kind, TensorType)]
    own = {name for kind in kinds for name in symbols_of_type(kind)} - set(names_of(module))
    sizes: dict[str, Dim] = {}
    for said, kind in zip(takes, given, strict=False):
        if own and isinstance(said, TensorType) and isinstance(kind, TensorType):
            for dim, size in zip(said.dims, kind.dims, strict=False):
                dim = substituted(dim, sizes)
                name = next((n for n in symbols_of(dim) if n in own and n not in sizes), None)
                rest = None if name is None else dim - SymbolicDim(name)
                if name is not None and isinstance(rest, int):
                    sizes[name] = size - rest
    if not sizes:
        return takes, gives
    return tuple(with_sizes(t, sizes) for t in takes), tuple(with_sizes(t, sizes) for t in gives)


def _require_meaning(type: Type, place: str) -> None:
    """VerifyError for a quantised type that says nothing about some element, and for more dims than
    arrays have."""
    if isinstance(type, TensorType) and type.rank > MAXIMUM_RANK:
        raise VerifyError(f"{place} has {type.rank} dims; tensors have at most {MAXIMUM_RANK}")
    if isinstance(type, TensorType) and isinstance(type.element, QuantizedType):
        reason = type.element.fault(type.dims)
        if reason:
            raise VerifyError(f"{place} is {type}: {reason}")


def compatible(left: Type, right: Type) -> bool:
    """Equal but for shardings and for the dim along which parameters of quantisation vary, which
    moves with its dim; sizes are equal as far as it is known."""
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        return (
            _same_element(left.element, right.element)
            and left.rank == right.rank
            and all(same_dim(a, b) for a, b in zip(left.dims, right.dims, strict=True))
        )
    return left == right


def _same_element(left: Element, right: Element) -> bool:
    if isinstance(left, QuantizedType) and isinstance(right, QuantizedType):
        return left.along(right.axis) is right or left.along(None) is right.along(None)
    return left is right


def _fault(op: Op, reason: str) -> VerifyError:
    return VerifyError(f"{op.place}{op.name}: {reason}\n    {print_op(op)}")

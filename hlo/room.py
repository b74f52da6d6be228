"""What a room is: the one place that holds everything about one operation.

A room is a subclass of `OpDefinition`: declarations first (operands, attributes, regions, numbered
constraints), then `infer` (types only; constraints already hold), `evaluate` (the only arithmetic
of the project), `flops`, `cases`. Operations that differ in one formula share a room as rows.

    class Concatenate(OpDefinition, name="concatenate"):
        "result = the inputs, one after the other along `dimension`."
        inputs = variadic()
        dimension = attribute(int)
        C4 = constraint(
            "0 <= dimension < rank(inputs[0])", lambda o: 0 <= o.dimension < o.inputs[0].rank
        )

        def infer(self, o): ...
        def evaluate(self, o, *arrays): return np.concatenate(arrays, o.dimension)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .access import Access, elementwise
from .deciding import estimating
from .errors import CompilerBug, UserError, VerifyError
from .factors import Factors, from_access
from .graph import Dense, Op, Origin, Region, Value
from .groups import Groups
from .sharding import Mesh
from .types import Type, unsharded

Array = np.ndarray[Any, Any]
RunRegion = Callable[[Region, Sequence[Any]], list[Any]]
BuildRegion = Callable[[Sequence[Type], Callable[..., Sequence[Any]]], Region]

ANY = object()  # an attribute of any legal kind
REQUIRED = object()  # an attribute without a default

# What clauses and `infer` raise on attributes that are of the right kind and mean nothing.
_MALFORMED = (
    ArithmeticError, AttributeError, CompilerBug, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class OperandSpec(NamedTuple):
    name: str
    variadic: bool = False


class AttributeSpec(NamedTuple):
    """`kind` is bool, int, float, str, bytes, tuple, dict, Dense or ANY. `since` is the program
    format that first had it, where that is newer than the operation's; its default means what the
    operation meant before."""

    kind: Any
    default: Any = REQUIRED
    since: str = ""


class Constraint(NamedTuple):
    """One numbered clause of the specification, with the check that enforces it."""

    clause: str
    text: str
    holds: Callable[[Op], bool]


class Case(NamedTuple):
    """One example of an operation: what to call it with. `regions` builds its regions, if it has
    any, with `build.build_region`.

    `input_types` is for operands whose type their array does not tell (quantised ones), `meshes`
    are those that shardings in `result_types` name.
    """

    name: str
    inputs: tuple[Array, ...]
    attributes: Mapping[str, Any] = {}
    result_types: tuple[Type, ...] | None = None
    regions: Callable[[BuildRegion], tuple[Region, ...]] | None = None
    tolerance: float = 1e-5
    input_types: tuple[Type, ...] | None = None
    meshes: Mapping[str, Mesh] = {}


def operand() -> Any:
    """Declare one operand; its name is the class attribute's."""
    return OperandSpec("")


def variadic() -> Any:
    """Declare any number of operands; at most one per operation."""
    return OperandSpec("", True)


def attribute(kind: Any, default: Any = REQUIRED, since: str = "") -> Any:
    """Declare an attribute; with a default it may be left out, and printing leaves it out."""
    return AttributeSpec(kind, default, since)


def constraint(text: str, holds: Callable[[Op], bool]) -> Any:
    """Declare a clause; the class attribute's name is the specification's number."""
    return Constraint("", text, holds)


class OpDefinition:
    """Everything about one operation; one instance per operation name.

    `pattern` tells the optimizer what kind of access it has: elementwise, index, reduce, contract,
    source, control, opaque; kernel and tile in tile functions. `effects` forbids removing, merging
    and reordering. `moves`: "whole" where each element of operand 0 is in the result, "part" where
    attributes say which are, "indexed" where other operands do.
    """

    name: ClassVar[str] = ""
    pattern: ClassVar[str] = "opaque"
    commutative: ClassVar[bool] = False
    associative: ClassVar[bool] = False
    idempotent: ClassVar[bool] = False  # x with x is x
    neutral: ClassVar[str] = ""  # with it x is x: "zero", "one", "ones", "lowest" or "highest"
    predicate: ClassVar[bool] = False  # its results are booleans, whatever its operands are
    effects: ClassVar[bool] = False
    regions: ClassVar[tuple[str, ...]] = ()  # names; a last "*" means any number
    isolated: ClassVar[bool] = False  # regions must not use outer values
    sealed: ClassVar[bool] = False  # regions are kernels: passes over programs leave them alone
    communicates: ClassVar[bool] = False  # evaluate needs the `process` that it runs on
    cost_class: ClassVar[str] = "simple"  # of an element; or "division", "transcendental"
    moves: ClassVar[str] = ""  # results hold elements of operand 0: "whole", "part", "indexed"
    strided: ClassVar[bool] = False  # the result is operand 0, or a part, at other strides
    views: ClassVar[str] = ""  # operand 0 in other dims, its elements in order: "once", "repeated"
    linear: ClassVar[str] = ""  # in operands "together", or in each alone ("separately")
    flow: ClassVar[str] = ""  # its regions are programs: "loop" or "branch"
    loops: ClassVar[bool] = False  # a region of it runs any number of times, in or out of a kernel
    known: ClassVar[bool] = False  # elements of the result follow from attributes alone
    stored: ClassVar[bool] = False  # the result is data of the program
    loads: ClassVar[bool] = False  # the result is a window of memory
    stores: ClassVar[bool] = False  # it writes into a window of memory
    distinct: ClassVar[bool] = False  # two of them are two, though all is equal
    numbered: ClassVar[bool] = False  # rows of its window are those of given numbers
    alias: ClassVar[str] = ""  # the operation of which each is a case, and becomes one
    uniform: ClassVar[bool] = False  # of a tile function: one number for all of a tile
    opaque: ClassVar[str] = ""  # why there is no `access`; for those without one
    uncut: ClassVar[str] = ""  # why there are no factors; for those without them
    since: ClassVar[str] = "1.0"  # program format that first had it
    operands: ClassVar[tuple[OperandSpec, ...]] = ()
    attributes: ClassVar[dict[str, AttributeSpec]] = {}
    constraints: ClassVar[tuple[Constraint, ...]] = ()

    def __init_subclass__(cls, name: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if name:
            cls.name = name
        operands, attributes, constraints = (
            list(cls.operands),
            dict(cls.attributes),
            list(cls.constraints),
        )
        for key, declared in list(vars(cls).items()):
            if isinstance(declared, OperandSpec):
                operands.append(declared._replace(name=key))
                delattr(cls, key)
            elif isinstance(declared, AttributeSpec):
                attributes[key] = declared
                delattr(cls, key)
            elif isinstance(declared, Constraint):
                constraints.append(declared._replace(clause=key))
        cls.operands, cls.attributes = tuple(operands), attributes
        cls.constraints = tuple(constraints)
        if "flops" in vars(cls):
            cls.flops = estimating()(cls.flops)

    def part(self, op: Op, name: str) -> Any:
        """`op.lhs` (an operand), `op.inputs` (variadic), `op.body` (a region) or a default."""
        spec = self.attributes.get(name)
        if spec is not None:
            if spec.default is REQUIRED:
                raise AttributeError(f"{self.name} has no value for its attribute '{name}'")
            return spec.default
        fixed_after = 0
        for position, declared in enumerate(self.operands):
            if declared.name == name:
                if declared.variadic:
                    fixed_after = len(self.operands) - position - 1
                    return op.operands[position : len(op.operands) - fixed_after]
                before = [o for o in self.operands[:position] if o.variadic]
                return op.operands[position - len(self.operands) if before else position]
        if name in self.regions:
            return op.regions[self.regions.index(name)]
        raise AttributeError(f"{self.name} has no operand, attribute or region '{name}'")

    # The facets of a room.

    def infer(self, o: Op) -> Sequence[Type] | None:
        """Types of the results; None where they must be given with the operation."""
        return None

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        """The meaning: numpy arrays in, an array (or a tuple of them, several results) out.

        Operations with regions also get `run(region, arrays, watch=None) -> list of arrays`, those
        whose meaning is their decomposition `expanded()`, its results. (`interpret.Interpreter`)
        """
        raise UserError(f"{self.name} cannot be evaluated: it has no meaning without a device")

    def decompose(self, b: Any, o: Op, *values: Any) -> Sequence[Any] | None:
        """The same results from simpler operations, built with Builder `b` on `values`; None where
        there is no such way.
        """
        return None

    def devices(self, o: Op) -> int:
        """How many devices it needs at least, as far as it says that itself."""
        return 1

    def alone(self, b: Any, o: Op, *values: Any) -> Sequence[Any]:
        """The results on a grid of one process, built with Builder `b`; for those that
        communicate. UnsupportedError where there is nobody to communicate with.
        """
        raise UserError(f"{self.name} means nothing on one device")

    def partners(self, o: Op, partitions: int) -> Groups:
        """The processes that exchange values, on a grid of one replica; none by default."""
        return ()

    def traffic(self, o: Op, partitions: int) -> float:
        """Bytes that a process of such a grid receives from others when all of them run it once,
        the mean of all processes."""
        return 0.0

    def access(self, o: Op) -> Access | None:
        """Which elements of the operands an element of the results needs; None where nothing less
        than everything can be said, for the reason that `opaque` gives. Dims are static here.
        """
        if self.pattern != "elementwise":
            return None
        return elementwise(o.results[0].dims, (value.rank for value in o.operands))

    def shard(self, o: Op) -> Factors | None:
        """What cutting its tensors means; None where it cannot be said, for the reason that `uncut`
        gives. By default it follows from `access`. Dims are static here.
        """
        access = None if self.uncut else self.access(o)
        return None if access is None else from_access(o, access)

    def divide(self, o: Op) -> Factors | None:
        """The factors by which devices compute it in parts: those of `shard`, by which propagation
        goes, where a room does not know better."""
        return self.shard(o)

    @estimating()
    def flops(self, o: Op) -> float:
        """Floating-point operations of one execution; a transcendental counts as one."""
        if self.pattern != "elementwise":
            return 0.0
        return float(sum(result.tensor.size for result in o.results))

    def cases(self) -> Iterator[Case]:
        """Examples, small and telling; every test of every engine runs them."""
        return iter(())

    # Operations.

    def make(
        self,
        operands: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[Region] = (),
        result_types: Sequence[Type] | None = None,
        origin: tuple[Origin, ...] = (),
        check: bool = True,
    ) -> Op:
        """One operation, its types inferred if they are not given; VerifyError if it breaks a
        clause."""
        draft = Op(self, operands, attributes or {}, regions, result_types or (), origin)
        if check:
            self.check(draft)
        if result_types is not None:
            return draft
        inferred = self.inferred(draft)
        if inferred is None:
            raise CompilerBug(f"the result types of '{self.name}' must be given")
        return Op(self, operands, draft.attributes, regions, inferred, origin)

    def check(self, o: Op) -> None:
        """Raise VerifyError for the first clause that `o` breaks."""
        fixed = sum(not declared.variadic for declared in self.operands)
        any_number = fixed != len(self.operands)
        if len(o.operands) < fixed or (len(o.operands) > fixed and not any_number):
            wanted = f"at least {fixed}" if any_number else str(fixed)
            raise broken(o, "operands", f"needs {wanted} operands, got {len(o.operands)}")
        for key, spec in self.attributes.items():
            if key not in o.attributes:
                if spec.default is REQUIRED:
                    raise broken(o, key, f"attribute '{key}' is missing")
            elif not _fits(o.attributes[key], spec):
                got = o.attributes[key]
                wanted = getattr(spec.kind, "__name__", "a value")
                raise broken(o, key, f"attribute '{key}' must be {wanted}, got {got!r}")
        if self.regions and self.regions[-1] != "*" and len(o.regions) != len(self.regions):
            raise broken(o, "regions", f"needs {len(self.regions)} regions, got {len(o.regions)}")
        for clause in self.constraints:
            try:
                holds = clause.holds(o)
            except _MALFORMED:
                holds = False
            if not holds:
                raise broken(o, clause.clause, clause.text)

    def inferred(self, o: Op) -> Sequence[Type] | None:
        """`infer` of what `check` accepted, without shardings: how an operand is cut says nothing
        of the results before propagation. VerifyError where its results can have no types."""
        try:
            found = self.infer(o)
        except _MALFORMED as error:
            raise broken(o, "results", f"the types of its results are unknown ({error})") from error
        return None if found is None else [unsharded(kind) for kind in found]

    def __repr__(self) -> str:
        return f"<definition of {self.name}>"


def _fits(value: Any, spec: AttributeSpec) -> bool:
    if spec.kind is ANY or value is spec.default:
        return True
    if spec.kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if spec.kind is float:
        return isinstance(value, float)
    return isinstance(value, spec.kind)


def broken(o: Op, clause: str, text: str) -> VerifyError:
    """The error for a broken clause: user's place, clause, requirement, what was got."""
    got = "; ".join(f"operand {i} is {value.type}" for i, value in enumerate(o.operands[:6]))
    shown = ", ".join(f"{k} = {_short(v)}" for k, v in o.attributes.items())
    line = f"{o.name}({', '.join(str(v.type) for v in o.operands)}) {{{shown}}}"
    return VerifyError(f"{o.place}{o.name}.{clause}: {text}{'; ' + got if got else ''}\n    {line}")


def _short(value: Any) -> str:
    if isinstance(value, Dense):
        return f"dense {value.type}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

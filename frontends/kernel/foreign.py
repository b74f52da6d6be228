"""Kernels that were written elsewhere: what a user says of them becomes one `foreign_call`.

A code is a way to compute the kernel on one kind of device: `Ptx`, `Cuda` and `Triton` on GPUs, `C`
and `Llvm` on CPUs. Each gives its record for given shapes (`record`), with every number of its
launch rule known then. specs/foreign_kernels.md has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...hlo import foreign, ptx
from ...hlo.build import Builder
from ...hlo.errors import UserError
from ...hlo.graph import Function, Module, Origin
from ...hlo.types import element_type_of
from ...hlo.verify import verify
from . import reference as references
from . import toolchains
from .definition import Built, Constants, Definition
from .values import Array

Rule = Any  # a value, or a function of inputs, outputs and constants that it names


class Scratch(NamedTuple):
    """The address of the code's scratch, plus so many bytes."""

    offset: int = 0


class TensorMap(NamedTuple):
    """A tensor map over the array of that name, read and written in boxes: sizes of a box in the
    order of the array's dims, swizzle 0, 32, 64 or 128 bytes."""

    array: str
    box: tuple[int, ...]
    swizzle: int = 0


@dataclass(frozen=True)
class Launch:
    """How an entry is started. Every part may be a rule: a function of the inputs, outputs and
    constants that it names.

    grid: blocks along x, y, z; an integer or up to three. block: threads likewise. cluster: blocks
    of a cluster. shared: bytes of dynamic shared memory of a block.
    arguments: the parameters in order: names of inputs and outputs, numpy scalars, `Scratch`,
        `TensorMap`; by default all inputs, then all outputs.
    """

    entry: str
    grid: Rule
    block: Rule
    arguments: Rule = None
    shared: Rule = 0
    cluster: Rule = 1

    def record(self, known: RuleScope) -> foreign.DeviceLaunch:
        arguments = known.value(self.arguments, "arguments")
        return foreign.DeviceLaunch(
            self.entry,
            known.extent(self.grid, "grid"),
            known.extent(self.block, "block"),
            tuple(map(known.argument, known.arrays if arguments is None else arguments)),
            known.size(self.shared, "shared"),
            known.extent(self.cluster, "cluster"),
        )


class Code(Protocol):
    """One way to compute a kernel."""

    def record(self, known: RuleScope) -> foreign.Code:
        """What the `foreign_call` gets; UserError where it cannot work."""
        ...


class Ptx:
    """PTX and its launches, one after the other. scratch: bytes of global memory, a rule."""

    def __init__(self, text: str, *launches: Launch, scratch: Rule = 0) -> None:
        self.text, self.launches, self.scratch = text, launches, scratch

    def record(self, known: RuleScope) -> foreign.DeviceCode:
        launches = tuple(launch.record(known) for launch in self.launches)
        code = foreign.DeviceCode(self.text, launches, known.size(self.scratch, "scratch"))
        ptx.check(code)
        return code


class Cuda:
    """CUDA C++ and its launches. Entries are `extern "C" __global__`.

    Compiled by NVRTC (the package cuda-bindings) or nvcc, whichever is found first, when the kernel
    is traced. architecture: the least one that it shall run on. options: for the compiler, by
    rule. scratch: bytes of global memory, a rule.
    """

    def __init__(
        self,
        source: str,
        *launches: Launch,
        architecture: str = "sm_80",
        options: Rule = (),
        scratch: Rule = 0,
    ) -> None:
        self.source, self.launches, self.scratch = source, launches, scratch
        self.architecture, self.options = architecture, options

    def record(self, known: RuleScope) -> foreign.DeviceCode:
        options = tuple(known.value(self.options, "options"))
        text = toolchains.cuda_to_ptx(self.source, self.architecture, options)
        return Ptx(text, *self.launches, scratch=self.scratch).record(known)


class Triton:
    """A compiled Triton kernel: what `kernel[grid](...)` or `triton.compile` returns, or its PTX
    with its metadata (the .json file beside it in Triton's cache, as a mapping).

    grid: programs along x, y, z, a rule. arguments: the parameters that are no `tl.constexpr`, in
    order, as for `Launch`. The shapes must be those that Triton specialised the kernel for.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Rule,
        arguments: Rule = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.text, self.metadata = _triton_parts(kernel, metadata)
        self.grid, self.arguments = grid, arguments

    def record(self, known: RuleScope) -> foreign.DeviceCode:
        facts = self.metadata
        name, warps = facts.get("name"), facts.get("num_warps")
        if not isinstance(name, str) or not isinstance(warps, int):
            raise UserError("the metadata of the Triton kernel lack 'name' or 'num_warps'")
        for fact, what in (
            ("launch_cooperative_grid", "a cooperative launch"),
            ("tensordesc_meta", "tensor descriptors as parameters"),
            ("tmem_size", "tensor memory"),
        ):
            if facts.get(fact):
                raise UserError(f"the Triton kernel '{name}' needs {what}, which has no record yet")
        launch = Launch(
            name, self.grid, warps * int(facts.get("warp_size", 32)), self.arguments,
            int(facts.get("shared", 0)), int(facts.get("num_ctas", 1)),
        ).record(known)  # fmt: skip
        entry = ptx.declared(self.text).entries.get(name)
        hidden = 0 if entry is None else len(entry.parameters) - len(launch.arguments)
        scratch = int(facts.get("global_scratch_size") or 0) * int(np.prod(launch.grid))
        # Behind the parameters come global scratch and the profiler's, by Triton's version.
        nothing = foreign.Number("ui64", bytes(8))
        extra = [foreign.BufferAddress(-1) if scratch else nothing, nothing][: max(hidden, 0)]
        (x, y, z), (ctas, _, _) = launch.grid, launch.cluster
        complete = replace(launch, grid=(x * ctas, y, z), arguments=(*launch.arguments, *extra))
        code = foreign.DeviceCode(self.text, (complete,), scratch)
        ptx.check(code)
        return code


def _triton_parts(kernel: Any, metadata: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
    if isinstance(kernel, str):
        if metadata is None:
            raise UserError("PTX of a Triton kernel needs metadata=, the .json file beside it")
        return kernel, metadata
    texts, facts = getattr(kernel, "asm", None), getattr(kernel, "metadata", None)
    as_mapping = getattr(facts, "_asdict", None)
    if as_mapping is not None:
        facts = as_mapping()
    if not isinstance(texts, Mapping) or "ptx" not in texts or not isinstance(facts, Mapping):
        raise UserError(f"this is no Triton kernel that was compiled for CUDA: {kernel!r}")
    return str(texts["ptx"]), facts


_CHOOSES_INSTRUCTIONS = re.compile(r"-m(?!tune=|prefer-vector-width=|no-)")


class C:
    """A C function of the plain ABI, compiled by the system's C compiler when the kernel is traced:

        void entry(const void *const *arguments, int64_t begin, int64_t end, void *scratch)

    `arguments` has the addresses of the inputs, then of the outputs, dense and row-major. The
    function computes the tiles [begin, end); any split of [0, tiles) must give the same. It may be
    called by several threads at once, each with scratch of its own.
    tiles, scratch (bytes), options: rules. features: what of the processor it needs, "avx2", for
    which the compiler gets -mavx2; options that choose instructions (-march=native) are refused.
    """

    def __init__(
        self,
        source: str,
        entry: str,
        *,
        tiles: Rule = 1,
        scratch: Rule = 0,
        options: Rule = (),
        features: Sequence[str] = (),
    ) -> None:
        self.source, self.entry, self.features = source, entry, tuple(features)
        self.tiles, self.scratch, self.options = tiles, scratch, options

    def record(self, known: RuleScope) -> foreign.HostCode:
        given = known.value(self.options, "options")
        options = (given,) if isinstance(given, str) else tuple(given)
        for option in options:  # a program for another processor would take the code as it is
            if _CHOOSES_INSTRUCTIONS.match(option):
                raise UserError(
                    f"{known.place}: the option {option} chooses a processor's instructions, which "
                    "not every target has; say features=('avx2', ...) instead"
                )
        data, architecture = toolchains.c_to_object(self.source, options, self.features)
        tiles, scratch = known.size(self.tiles, "tiles"), known.size(self.scratch, "scratch")
        return foreign.HostCode(self.entry, data, architecture, self.features, tiles, scratch)


class Llvm:
    """LLVM IR that defines a function of the plain ABI (see `C`): text, compiled with each target's
    features when a program is compiled."""

    def __init__(self, text: str, entry: str, *, tiles: Rule = 1, scratch: Rule = 0) -> None:
        self.text, self.entry, self.tiles, self.scratch = text, entry, tiles, scratch

    def record(self, known: RuleScope) -> foreign.HostCode:
        tiles, scratch = known.size(self.tiles, "tiles"), known.size(self.scratch, "scratch")
        return foreign.HostCode(self.entry, self.text, "", (), tiles, scratch)


@dataclass(frozen=True)
class RuleScope:
    """What rules may name, for given shapes: arrays (inputs, then outputs) and constants."""

    place: str
    arrays: Mapping[str, Array]
    constants: Constants
    call: Callable[[Any, Mapping[str, Any], str], Any]

    def value(self, rule: Rule, what: str) -> Any:
        return self.call(rule, {**self.arrays, **self.constants}, what)

    def size(self, rule: Rule, what: str) -> int:
        found = self.value(rule, what)
        if not isinstance(found, (int, np.integer)) or isinstance(found, bool) or found < 0:
            raise UserError(f"{self.place}: {what} has to be an integer from 0, not {found!r}")
        return int(found)

    def extent(self, rule: Rule, what: str) -> foreign.Extent:
        found = self.value(rule, what)
        several = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        least = 0 if what == "grid" else 1
        right = all(isinstance(n, (int, np.integer)) and n >= least for n in several)
        if not right or not 1 <= len(several) <= 3:
            raise UserError(
                f"{self.place}: {what} has to be 1 to 3 integers from {least}, not {found!r}"
            )
        x, y, z = (*map(int, several), 1, 1)[:3]
        return x, y, z

    def argument(self, given: Any) -> foreign.Argument:
        """A parameter of a launch."""
        if isinstance(given, str):
            return self.buffer(given)
        if isinstance(given, Scratch):
            return foreign.BufferAddress(-1, given.offset)
        if isinstance(given, TensorMap):
            return self.tensor_map(given)
        if isinstance(given, np.generic):
            name = element_type_of(given.dtype).name
            if name in foreign.ELEMENTS:
                return foreign.Number(name, given.tobytes())
        raise UserError(
            f"{self.place}: arguments are names of arrays, numpy scalars (np.int32(5)), Scratch or "
            f"TensorMap, not {given!r}"
        )

    def buffer(self, name: str) -> foreign.BufferAddress:
        if name not in self.arrays:
            raise UserError(
                f"{self.place}: arguments ask for '{name}'; arrays are {', '.join(self.arrays)}"
            )
        return foreign.BufferAddress(list(self.arrays).index(name))

    def tensor_map(self, given: TensorMap) -> foreign.TensorMap:
        buffer, array = self.buffer(given.array), self.arrays[given.array]
        dims, box = array.shape, tuple(int(n) for n in given.box)
        if len(box) != len(dims) or not 1 <= len(dims) <= 5 or 0 in dims:
            raise UserError(
                f"{self.place}: a tensor map of {given.array} needs a box of its rank, 1 to 5"
            )
        size = array.dtype.itemsize
        strides = [size * int(np.prod(dims[axis + 1 :])) for axis in range(len(dims) - 1)]
        if any(stride % 16 for stride in strides):
            raise UserError(
                f"{self.place}: a tensor map needs rows of a multiple of 16 bytes; {given.array} "
                f"has strides of {strides}"
            )
        return foreign.TensorMap(
            buffer, array.dtype.name, dims[::-1], tuple(strides[::-1]), box[::-1], given.swizzle
        )


@dataclass
class ForeignDefinition(Definition):
    """A kernel of codes with what `girih.foreign_kernel` was told about it. `function` is the
    reference, or None."""

    label: str = ""
    codes: tuple[Code, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs_named: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        self.arrays = (*self.inputs, *self.outputs_named)
        self.constants = dict(self.given)
        if len({*self.arrays, *self.constants}) < len(self.arrays) + len(self.constants):
            raise UserError(f"{self.place}: inputs, outputs and constants need different names")

    @property
    def name(self) -> str:
        return self.label

    @property
    def place(self) -> str:
        return f"{self.origin.file}:{self.origin.line}: kernel '{self.label}'"

    def build_one(self, inputs: Sequence[Array], bound: Constants) -> Built:
        """The kernel for inputs of those shapes, without variants."""
        outputs = self.outputs(inputs, bound)
        names = self.arrays[: len(inputs)]
        arrays = {**dict(zip(names, inputs, strict=True)), **outputs}
        known = RuleScope(self.place, arrays, bound, self._call)
        records = []
        for code in self.codes:
            try:
                records.append(code.record(known).as_attribute())
            except UserError as error:
                text = str(error)
                place = "" if text.startswith(self.place) else f"{self.place}: "
                raise UserError(f"{place}{text}") from error
        region = None
        if self.function is not None:
            region = references.traced(references.bound(self.function, bound), inputs)
        if region is None and not records:
            raise UserError(f"{self.place} has no code, and no reference that JAX can trace")
        types = tuple(array.type for array in outputs.values())
        if region is not None and region.result_types != types:
            raise UserError(
                f"{self.place}: its reference gives {list(region.result_types)}, out= says "
                f"{list(types)}"
            )
        builder = Builder((self.origin,))
        operands = builder.arguments([array.type for array in inputs])
        facts: dict[str, Any] = {"kernel": self.label, "codes": tuple(records)}
        if self.sharding:
            facts["sharding"] = self.sharding
        regions = () if region is None else (region,)
        op = builder.op("foreign_call", operands, facts, regions, types)
        module = Module({"main": Function("main", builder.region(op.results))}, name=self.label)
        verify(module)
        return Built(module, dict(bound), ())

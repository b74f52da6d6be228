"""A program in this process: its parts, the entry point that a call runs, its plans on devices."""

from __future__ import annotations

import functools
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from .. import __version__
from ..hlo.errors import UserError
from ..hlo.signature import Argument, Signature
from ..hlo.sizes import Symbol
from . import devices
from .aliases import Aliases, find_aliases
from .bundle import Bundle, Parts, PendingCheck, Variant
from .entries import Loaded, default_entry, unnamed
from .inputs import Leaf
from .parts import ALIGNMENT, decode_module, used_weights
from .plans import parse_plan
from .sizes import OpenSizes, Sized, is_open
from .structure import flattener, unflattener
from .undo import Undo

if TYPE_CHECKING:
    from ..hlo.graph import Module
    from ..hlo.sharding import Mesh
    from ..specs.generated import plan_pb2
    from .distributed.layout import MeshLayout

Array = np.ndarray[Any, Any]
Made = Callable[[], "Module"]  # makes a module when it is first asked for


@dataclass(frozen=True)
class Memory:
    """Bytes that a program needs, as other compilers count them."""

    argument_bytes: int
    output_bytes: int
    constant_bytes: int  # weights as this variant stores them
    temporary_bytes: int  # the highest sum of live temporaries
    arena_bytes: int  # what one context allocates for temporaries
    lower_bound_bytes: int  # no plan of this step order can need a smaller arena
    scratch_bytes: int  # per worker, beside the arena; 0 on a GPU, whose scratch is in the arena
    replaced_bytes: int  # of outputs that have the memory of arguments, where these are donated
    workers: int  # of one call
    context_bytes: int  # arena and scratch of one call at a time, as the device allocates them
    padding_bytes: int  # between weights on the device

    @property
    def total_bytes(self) -> int:
        """All memory of one call at a time, where what can be donated is."""
        outputs = self.output_bytes - self.replaced_bytes
        own = self.arena_bytes + self.scratch_bytes * self.workers
        return self.argument_bytes + outputs + self.constant_bytes + own

    @property
    def allocated_bytes(self) -> int:
        """The same as the device allocates it, in its units: what `max_memory` limits."""
        outputs = self.output_bytes - self.replaced_bytes
        weights = self.constant_bytes + self.padding_bytes
        return self.argument_bytes + outputs + weights + self.context_bytes


class LoadedProgram:
    """What a program is before it is called."""

    def __init__(
        self,
        parts: Parts,
        target: str | None = None,
        *,
        threads: int | None = None,
        pin: bool = False,
        module: Made | None = None,
        plan: plan_pb2.Plan | None = None,
        pending: PendingCheck | None = None,
        driver: Any = None,
        reason: str = "it was compiled for it",
        opened: bool = True,
        comm_timeout: float | None = None,
        entry: str | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        """A program of these parts; users call `girih.compile` or `girih.load`.

        `pending`: a check of the weights that has to end well before the first result is given.
        `driver`: the GPU of a program for one; None looks for it at the first call. `reason`: why
        this target was chosen. `opened`: False leaves the device, which takes all weights, to the
        first use. `comm_timeout`: as for `girih.load`. `entry`: the entry point that a call runs,
        whose `plan` and `module` are given. `loaded`: what it shares with other entry points.
        """
        self._parts = parts
        self._target = target = devices.choose_target(parts.variants, target)
        self._pending = pending
        self._layout = _layout_of(parts.variants[target])
        self._driver, self._reason = driver, reason
        self._workers: dict[str, Any] = {
            "threads": threads, "pin": pin, "comm_timeout": comm_timeout,
        }  # fmt: skip
        names = tuple(parts.signatures)
        if not names:
            raise UserError("the program has no entry point")
        self._entry = entry = default_entry(names) if entry is None else entry
        self._loaded = Loaded() if loaded is None else loaded
        self._sizes: OpenSizes | None = None
        if entry is not None:
            self._bind(entry, module, plan)
        programs = cast("dict[str, Self]", self._loaded.programs)
        if loaded is None:
            for name in names if len(names) > 1 else ():
                programs[name] = self if name == entry else self._sibling(name)
        for one in (programs.values() or (self,)) if opened else ():
            one._open()

    def _sibling(self, entry: str) -> Self:
        """The program of another entry point."""
        return type(self)(
            self._parts, self._target, pending=self._pending, driver=self._driver,
            reason=self._reason, opened=False, entry=entry, loaded=self._loaded, **self._workers,
        )  # fmt: skip

    def _bind(
        self,
        entry: str,
        module: Made | None,
        plan: plan_pb2.Plan | None,
    ) -> None:
        """Take this entry point for what a call runs. Where calls decide sizes, the program is that
        of the largest ones."""
        parts = self._parts
        variant = parts.variants[self._target]
        if plan is None:
            plan = parse_plan(variant, entry=entry)
        signature = parts.signatures[entry]
        if is_open(signature):
            self._sizes = sizes = OpenSizes(plan, signature, "the program")
            self._number = sizes.number_at_largest
            plan = sizes.message(sizes.largest_of(self._number))
            signature = sizes.signature_at(sizes.largest)
            self._of_plans: dict[int, devices.Device] = {}
        self._plan, self._signature = plan, signature
        self._measures = bool(signature.measured)  # a signature at new sizes is made on demand
        self._module = module
        layout = self._layout
        local = signature if layout is None else layout.signature(signature)
        results = tuple(Leaf(result) for result in local.computed)
        self._check_plan(local.arguments, results)
        own, shared = cast(Any, variant.weights), cast(Any, parts.weights)  # that nobody writes
        if layout is not None:
            from .distributed.started import own_rank

            own = layout.weights_of(own_rank(), own, shared)
        weights = self._weights = ChainMap[str, Array](own, shared)
        aliases = self._aliases = find_aliases(self._plan, local.arguments, weights)
        overwritten = {a for _, a in (*aliases.donated, *aliases.replacing)}
        self._can_be_given = bool(overwritten)
        self._leaves = tuple(
            Leaf(argument, index in overwritten)
            if layout is None
            else layout.leaf(argument, index, index in overwritten)
            for index, argument in enumerate(signature.arguments)
        )
        self._buffers = len(signature.buffers)
        # An interrupted call of a session leaves buffers half changed, where the plan writes them.
        first = len(self._leaves) - self._buffers
        self.overwrites_state = any(leaf.overwritten for leaf in self._leaves[first:])
        self._overwritten = frozenset(n for n in overwritten if n >= first)
        self._undo = Undo(self._plan, len(results))
        known = self._sizes
        formulas = () if known is None else known.largest_of(self._number).formulas
        self._keeps = self._undo.gives(formulas)
        self._contexts: deque[Any] = deque()
        self._copies = [0]  # one number, of which programs at other sizes know as well
        self._lock = threading.Lock()
        self._defaults = [weights.get(a.default or "") for a in signature.arguments]
        # What the quick ways of a call read: one for flat inputs, one for nested ones.
        plain = signature.inputs.is_flat and not signature.keywords.children
        self._quick = plain and not self._buffers
        self._accepts = tuple((leaf.dtype, leaf.shape) for leaf in self._leaves)
        self._results = results
        self._gives = tuple((r.shape, r.dtype, r.bytes + ALIGNMENT - 1) for r in results)
        self._flatten = flattener(signature.inputs)
        plain_results = signature.results[: signature.outputs.leaf_count]
        self._keys = [(n, r.key) for n, r in enumerate(plain_results) if r.key is not None]
        self._unflatten = unflattener(signature.outputs)
        self._outputs_are_flat_list = (
            signature.outputs.is_flat and signature.outputs.kind == "list" and not signature.state
        )

    def __getattr__(self, name: str) -> Any:
        # Reached only where an attribute is missing: one of an entry point, where none is named.
        if name in _OF_AN_ENTRY:
            raise unnamed(self.entries)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _open(self) -> devices.Device:
        """The plan on its device, with the weights: once, whoever asks first."""
        loaded = self._loaded
        with loaded.opening:
            if "_device" not in self.__dict__:
                variant = self._parts.variants[self._target]
                if loaded.weights is None:
                    programs = loaded.programs.values() or (self,)
                    plans = (plan for one in programs for plan in one.plans)
                    loaded.weights = used_weights(plans, self._weights)
                known = self._sizes
                formulas = () if known is None else known.largest_of(self._number).formulas
                device = devices.open_device(
                    self._plan, variant.image, loaded.weights, cubins=variant.cubins,
                    driver=self._driver, facts=_facts(self._parts), shared=loaded.on_device,
                    sizes=formulas, beside=() if known is None else known.plans, **self._workers,
                )  # fmt: skip
                if device.has_memory:  # it copies results out of whatever they lie in
                    self._aliases = Aliases((), (), ())
                self._device = device
            return self._device

    def _device_of(self, number: int) -> devices.Device:
        """One of the plans, at its largest sizes, where calls decide them."""
        opened, known = self._opened(), self._sizes
        assert known is not None
        with self._loaded.opening:
            found = self._of_plans.get(number)
            if found is None:
                other = number != self._number
                found = self._device_for(known.largest_of(number)) if other else opened
                self._of_plans[number] = found
        return found

    def _device_for(self, sized: Sized) -> devices.Device:
        """A plan at fixed sizes on the device, where the program is open already."""
        known = self._sizes
        assert known is not None
        variant = self._parts.variants[self._target]
        return devices.open_device(
            known.message(sized), variant.image, self._loaded.weights or {}, cubins=variant.cubins,
            driver=self._driver, facts=_facts(self._parts), shared=self._loaded.on_device,
            sizes=sized.formulas, beside=known.plans, **self._workers,
        )  # fmt: skip

    def _device_at(self, sized: Sized) -> devices.Device:
        """A plan at the sizes of a call."""
        device = self._of_plans.get(sized.number) or self._device_of(sized.number)
        if device.at is not None:
            return device.at(sized.formulas, sized.offsets, sized.arena_bytes)
        with self._loaded.opening:
            return self._device_for(sized)

    def _opened(self) -> devices.Device:
        return self.__dict__.get("_device") or self._open()

    def _settle(self) -> None:
        """Wait until the weights are known to be whole; UserError if they are not."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def _check_plan(self, arguments: Sequence[Argument], results: Sequence[Leaf]) -> None:
        """UserError if the plan's arguments and results are not these."""
        plan = self._plan
        kept = len(plan.outputs) - len(results)
        if len(plan.inputs) != len(arguments) or kept < 0 or (kept and not plan.undo):
            raise UserError(
                f"the plan takes {len(plan.inputs)} arguments and gives {len(plan.outputs)} "
                f"results, the signature says {len(arguments)} and {len(results)}; "
                "compile the program again"
            )
        leaves = [*map(Leaf, arguments), *results]
        for leaf, index in zip(leaves, (*plan.inputs, *plan.outputs[: len(results)]), strict=True):
            found = plan.buffers[index].bytes if index < len(plan.buffers) else None
            if found != leaf.bytes:
                raise UserError(
                    f"the plan has {found} bytes for {leaf.path}, the signature {leaf.bytes}; "
                    "compile the program again"
                )

    @property
    def plans(self) -> tuple[plan_pb2.Plan, ...]:
        """All plans of the entry point: where calls decide sizes there may be several, and a call
        takes the first of which its sizes satisfy the guards."""
        return (self._plan,) if self._sizes is None else self._sizes.plans

    @property
    def sizes(self) -> dict[str, Symbol]:
        """The sizes that calls decide, by name, with what they may be."""
        return {} if self._sizes is None else dict(self._sizes.symbols)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points."""
        return tuple(self._parts.signatures)

    @property
    def entry_name(self) -> str | None:
        """The entry point that a call runs; None where one has to be named."""
        return self._entry

    @property
    def signature(self) -> Signature:
        """Structure, names, types and donation of inputs and outputs."""
        return self._signature

    @property
    def target(self) -> str:
        """What the program was compiled for."""
        return self._target

    @property
    def mesh(self) -> Mesh | None:
        """The devices that run it together, one process each; None for a program of one device."""
        return None if self._layout is None else self._layout.mesh

    @property
    def rank(self) -> int:
        """The number of this process among those that a launcher has started together."""
        from .distributed.started import own_rank

        return own_rank()

    @property
    def layout(self) -> MeshLayout | None:
        """How arguments and results lie on the mesh, in the signature's order."""
        return self._layout

    @property
    def reason(self) -> str:
        """Why this target runs, where a bundle has several."""
        return self._reason

    @property
    def plan(self) -> plan_pb2.Plan:
        """Kernels, steps and buffers: the message of specs/plan.proto."""
        return self._plan

    @functools.cached_property
    def memory(self) -> Memory:
        """Exact byte counts."""
        summary, opened = self._plan.memory, self._opened()
        own = "replaced_bytes", "workers", "context_bytes", "padding_bytes"
        return Memory(
            **{
                one.name: getattr(summary, one.name)
                for one in fields(Memory)
                if one.name not in own
            },
            replaced_bytes=sum(b.bytes for b in self._plan.buffers if b.HasField("replaces")),
            workers=opened.workers,
            context_bytes=opened.context_bytes,
            padding_bytes=opened.padding_bytes,
        )

    @property
    def received(self) -> Mapping[str, int]:
        """Bytes that other processes have sent to this one in all calls so far, by the operation of
        the program for which they did; empty for a program of one process."""
        return self._opened().received()

    @property
    def events(self) -> Mapping[str, int]:
        """What all calls so far have asked a GPU for: `launches` of kernels and `graph_launches` by
        the host, `nodes` and `edges` of the graphs that it launched, `copies_to_host` and
        `synchronisations`, where it waits for the device; a simulated one starts each kernel by
        itself, but for schedule "graph". Empty on a CPU, where a call is one."""
        return self._opened().events()

    @property
    def module(self) -> Module:
        """The program as it came into the compiler: to read, interpret or compile anew."""
        if self._module is None:
            self._settle()
            self._module = functools.cache(lambda: decode_module(self._parts, self._entry))
        return self._module()

    @property
    def parts(self) -> Parts:
        """All that a bundle of this program holds."""
        return self._parts

    @property
    def _fixed_plan(self) -> plan_pb2.Plan | None:
        """The plan of the entry point that a call runs; None where the parts say it, since calls
        decide sizes, or where no entry point is named."""
        if self._entry is None or is_open(self._parts.signatures[self._entry]):
            return None
        return self._plan


# What an entry point gives a program; missing where none is named.
_OF_AN_ENTRY = frozenset(
    {
        "_plan", "_signature", "_measures", "_module", "_aliases", "_can_be_given", "_leaves",
        "_buffers", "overwrites_state", "_overwritten", "_undo", "_keeps", "_contexts", "_copies",
        "_lock", "_weights", "_defaults", "_quick", "_accepts", "_results", "_gives", "_flatten",
        "_keys", "_unflatten",
        "_outputs_are_flat_list", "_device",
    }
)  # fmt: skip


def _facts(parts: Parts) -> dict[str, bytes]:
    """What all processes that run a program have to have equal, beside its plan."""
    digest = parts.digest if isinstance(parts, Bundle) else "compiled by each process"
    return {"version of girih": __version__.encode(), "bundle": digest.encode()}


def _layout_of(variant: Variant) -> MeshLayout | None:
    """How a variant for several devices lies on them."""
    if variant.layout is None:
        return None
    from .distributed.layout import layout_of

    return layout_of(variant)

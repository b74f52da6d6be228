"""A compiled program: called like a function, saved as a bundle, loaded without a compiler."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import __version__
from ..hlo.errors import UserError
from ..hlo.signature import Argument, Signature
from ..hlo.sizes import Symbol
from ..hlo.trees import StructureError
from . import devices
from .aliases import Aliases, find_aliases, like
from .bundle import MAIN, Bundle, Check, MemoryParts, Parts, PendingCheck, Variant
from .bundle_writer import write
from .entries import Loaded, default_entry, unknown_entry, unnamed
from .inputs import Leaf, as_keys, check_donations
from .parts import (
    ALIGNMENT,
    aligned,
    copied_parts,
    decode_module,
    encoded,
    relative_error,
    used_weights,
    variant_of,
)
from .plans import parse_plan
from .prepared import PreparedCall, check_outputs
from .profile import Profile
from .session import Session, named_state
from .sized import AtSizes
from .sizes import OpenSizes, Sized, is_open
from .structure import Differs, flattener, unflattener
from .undo import HostLog, Log, Undo

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

    @property
    def total_bytes(self) -> int:
        """All memory of one call at a time, where what can be donated is."""
        outputs = self.output_bytes - self.replaced_bytes
        own = self.arena_bytes + self.scratch_bytes * self.workers
        return self.argument_bytes + outputs + self.constant_bytes + own

    @property
    def allocated_bytes(self) -> int:
        """The same as the device allocates it, in whole pages: what `max_memory` limits."""
        outputs = self.output_bytes - self.replaced_bytes
        return self.argument_bytes + outputs + self.constant_bytes + self.context_bytes


class Program:
    """A program for one target; immutable, and safe to call from any number of threads, but for the
    state of a model that changes its buffers: threads take a `session` each.

    It has one or more entry points; a call runs the one that it was made for (`entry`), by default
    "main", or the only one. Of several without a "main", none is run until it is named. All of them
    have their weights and their code in memory once.

    Every concurrent call has a context of its own (arena, scratch), which is kept for later calls.
    """

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
        programs = self._loaded.programs
        if loaded is None:
            for name in names if len(names) > 1 else ():
                programs[name] = self if name == entry else self._sibling(name)
        for one in (programs.values() or (self,)) if opened else ():
            one._open()

    def _sibling(self, entry: str) -> Program:
        """The program of another entry point."""
        return Program(
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

    @staticmethod
    def from_parts(
        program: bytes | Made | Mapping[str, Made],
        signature: Signature | Mapping[str, Signature],
        variants: Mapping[str, tuple[Any, ...]],
        weights: Mapping[str, Array] | None = None,
        *,
        target: str | None = None,
        threads: int | None = None,
        pin: bool = False,
        checks: Sequence[Check] = (),
        provenance: Mapping[str, Any] | None = None,
        debug: Mapping[str, bytes] | None = None,
        tuning: Mapping[str, Any] | None = None,
        driver: Any = None,
        comm_timeout: float | None = None,
    ) -> Program:
        """The program that a compiler has just made; `save` and `load` give an equal one.

        program, signature: of the entry point "main", or of each by name; a program is its wire
        form, or what makes the module when somebody first asks for it. variants: target ->
        (plan_pb2.Plan, or one for each entry point, image), with the weights of this variant alone,
        and its cubins by architecture, behind them where there are some. driver: the GPU; None
        finds it. weights: name -> array, also by aliases. Arrays in the same memory are stored
        once.
        """
        programs = program if isinstance(program, Mapping) else {MAIN: program}
        modules = {
            n: functools.cache(one) for n, one in programs.items() if not isinstance(one, bytes)
        }
        sources = {
            name: one if isinstance(one, bytes) else _encoder(modules[name])
            for name, one in programs.items()
        }
        first, *others = sources
        plans = {
            name: plan if isinstance(plan, Mapping) else {MAIN: plan}
            for name, (plan, *_) in variants.items()
        }
        parts = MemoryParts(
            source=sources[first],
            further={name: sources[name] for name in others},
            signatures=signature if isinstance(signature, Mapping) else {MAIN: signature},
            weights=dict(weights or {}),
            variants={name: variant_of(plans[name], *made[1:]) for name, made in variants.items()},
            checks=tuple(checks),
            provenance=dict(provenance or {}),
            debug=dict(debug or {}),
            tuning=tuning,
        )
        chosen = devices.choose_target(parts.variants, target)
        return Program(
            parts, chosen, threads=threads, pin=pin, module=None if others else modules.get(first),
            plan=None if others else plans[chosen][first], driver=driver, comm_timeout=comm_timeout,
        )  # fmt: skip

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run the program; inputs and result have the structure that `signature` says.

        Inputs are numpy arrays, anything that speaks DLPack, or Python scalars. Types are never
        cast; an input that is not C-contiguous is copied, and counted in `copies`. Inputs are never
        written, donated ones either: see `donate`. A model that changes its own buffers (counters,
        running means, caches) does so from call to call: see `session` and `stateless`.
        """
        one = self if self._sizes is None else self.of_call(inputs, keywords)
        count = len(one._accepts)
        if one._quick and not keywords and len(inputs) == count and one._are_ready(inputs):
            return one._pack(one._run(inputs)[0])
        if one._buffers:
            return one._own(inputs, keywords)
        return one._pack(one._run(one._arrays(inputs, keywords))[0])

    def of_call(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Program:
        """The program at the sizes of these inputs; itself where no call decides any."""
        known = self._sizes
        if known is None:
            return self
        values: Sequence[Any] = inputs
        if not self._quick or keywords or len(inputs) != len(self._accepts):
            values = [
                *self._values(inputs, keywords),
                *self._defaults[len(self._accepts) - self._buffers :],
            ]
            values = [d if v is None else v for v, d in zip(values, self._defaults, strict=True)]
        shapes = tuple(map(_shape, values))
        return known.known(shapes) or self._of_shapes(known, shapes)

    def _of_shapes(self, known: OpenSizes, shapes: tuple[tuple[int, ...], ...]) -> Program:
        """The program of a call whose arguments have these shapes."""
        values = known.of_call(shapes)
        return known.program(values, lambda: SizedProgram(self, known, values), shapes)

    def at(self, **sizes: int) -> Program:
        """The program at fixed sizes, by the names of `sizes`: what calls of them run, with its
        plan and memory. It is kept for later calls, with those of the last 63 other sizes."""
        known = self._sizes
        if known is None:
            if sizes:
                raise UserError("the program's sizes are fixed; call it")
            return self
        if sizes.keys() != known.symbols.keys():
            raise UserError(f"at: give all of the sizes {', '.join(known.symbols)}")
        values = tuple(sizes[name] for name in known.symbols)
        known.check(values)
        return known.program(values, lambda: SizedProgram(self, known, values))

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

    def entry(self, name: str) -> Program:
        """The same program, of which a call runs this entry point."""
        if name == self._entry:
            return self
        if name not in self._parts.signatures:
            raise unknown_entry(name, self.entries)
        return self._loaded.programs[name]

    def session(self) -> Session:
        """New state, which begins with what the model was exported with: calls of the session
        advance it, and nothing else does. All entry points share it: `session.decode(x)` is a call
        of the entry point "decode", `session(x)` one of this program's own."""
        return Session(self, self.initial_state)

    def stateless(
        self, *inputs: Any, state: Mapping[str, Any] | None = None, **keywords: Any
    ) -> tuple[Any, dict[str, Any]]:
        """(result, new state) of a call on a given state, which is not changed: values by name for
        some or all of `signature.buffers`, by default what the model was exported with. The new
        state also has the inputs that the model writes, by path: a state that names them is taken,
        and the inputs are still those of the call."""
        if self._sizes is not None:
            return self.of_call(inputs, keywords).stateless(*inputs, state=state, **keywords)
        given = named_state({} if state is None else state, self._signature.state)
        buffers = [given.get(name) for name in self._signature.buffers]
        outputs = self._blocks(self._run(self._arrays(inputs, keywords, buffers=buffers))[0])
        return self._pack(outputs), self._signature.states(outputs)

    @property
    def undoes(self) -> bool:
        """Whether a session can go back to the state before a call that does not end."""
        return self._overwritten <= self._undo.arguments

    def log(self, known: tuple[Any, Log] | None) -> tuple[Any, Log]:
        """Memory for what a session's call keeps of the state that it overwrites, and whose it is:
        that of an earlier call, where it is of the same sizes."""
        if known is not None and known[0] is self._keeps:
            return known
        return self._keeps, (self._opened().log or HostLog)(self._keeps)

    def before(self, buffers: Mapping[str, Any], log: Log) -> dict[str, Any]:
        """The state as it was before a call that did not end, by name."""
        names = dict(enumerate(self._signature.buffers, len(self._leaves) - self._buffers))
        given = {number: buffers[name] for number, name in names.items()}
        found = self._undo.restored(given, log)
        return {**buffers, **{names[number]: array for number, array in found.items()}}

    @property
    def state_arguments(self) -> dict[str, Argument]:
        """The state of all entry points: a declaration of each by name."""
        return {
            argument.state: argument
            for signature in self._parts.signatures.values()
            for argument in signature.arguments
            if argument.state is not None
        }

    @property
    def initial_state(self) -> dict[str, Array]:
        """What the model was exported with, by the names of its state: parts of the bundle, which
        nobody may write; of a program of several processes, this one's blocks."""
        self._settle()
        one = self if self._entry is not None else next(iter(self._loaded.programs.values()))
        state = self.state_arguments
        found = {name: one._weights.get(given.default or "") for name, given in state.items()}
        whole = {name: array for name, array in found.items() if array is not None}
        if len(whole) < len(found):
            raise UserError("the bundle lacks the values that its state begins with")
        if one._layout is None:
            return whole
        return {name: leaf.accept(whole[name])[0] for name, leaf in self.state_leaves.items()}

    @property
    def state_leaves(self) -> dict[str, Leaf]:
        """What is taken for each state, by its name."""
        one = self if self._entry is not None else next(iter(self._loaded.programs.values()))
        if one._layout is None:
            return {name: Leaf(argument) for name, argument in self.state_arguments.items()}
        names = one._signature.buffers
        return dict(zip(names, one._leaves[len(one._leaves) - len(names) :], strict=True))

    def as_state(self, buffers: Mapping[str, Array]) -> dict[str, Array]:
        """Values of all states by name; those of one process of several know of what they are a
        block."""
        if self._entry is None or self._layout is None:
            return dict(buffers)
        names = self._signature.buffers
        found = self._layout.buffers([buffers[name] for name in names], self._signature.arguments)
        return dict(zip(names, found, strict=True))

    @property
    def own_session(self) -> Session:
        """The session that calls of the program itself advance."""
        with self._loaded.lock:
            if self._loaded.session is None:
                self._loaded.session = self.session()
            return self._loaded.session

    def bind_state(
        self,
        inputs: Sequence[Any],
        keywords: Mapping[str, Any],
        buffers: Sequence[Any],
        giving: bool = False,
        stay: bool = False,
    ) -> list[Any]:
        """The flat arguments of a session's call, for `advance`; nothing is run yet."""
        if stay:
            self._check_memory()
        return self._arrays(inputs, keywords, giving, buffers, keeps=True)

    def _own(self, inputs: Sequence[Any], keywords: Mapping[str, Any], **options: Any) -> Any:
        """A call of the program's own session."""
        return self.own_session.run(self, inputs, keywords, **options)

    def advance(
        self,
        arrays: Sequence[Any],
        begin: Callable[[], None],
        log: Log,
        giving: bool = False,
        stay: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """A session's call: the result, and what has become of state, by name. `begin`: called when
        all is checked and allocated, before anything is written. `log`: for what is overwritten of
        state. `giving`: donated inputs are given up. `stay`: results stay on the device."""
        plain = self._signature.outputs.leaf_count
        if self._opened().has_memory:
            outputs = self._on_device(arrays, begin, log)
            if not stay:
                outputs[:plain] = [x.numpy() for x in outputs[:plain]]
        else:
            outputs = self._run(arrays, giving=giving, begin=begin, log=log)[0]
            for result, argument in (*self._aliases.donated, *self._aliases.replacing):
                if result < plain and argument >= len(self._leaves) - self._buffers:
                    outputs[result] = outputs[result].copy()  # it is the session's memory
        states = self._signature.states(outputs)
        names = self._signature.buffers
        return self._pack(outputs), {n: value for n, value in states.items() if n in names}

    def call_flat(self, inputs: Sequence[Any]) -> list[Array]:
        """The results, flat, of the flat arguments: in the order of `signature.arguments` and of
        `signature.results`, as a library that has flattened its own structures calls it. State is
        given and comes back like everything else."""
        if (known := self._sizes) is not None and len(inputs) == len(self._leaves):
            shapes = tuple(map(_shape, inputs))
            return (known.known(shapes) or self._of_shapes(known, shapes)).call_flat(inputs)
        if len(inputs) != len(self._leaves):
            raise UserError(
                f"the program takes {len(self._leaves)} arguments, {len(inputs)} are given"
            )
        if not self._are_ready(inputs):
            inputs = self._accepted(inputs)
        return self._run(inputs)[0]

    def donate(self, *inputs: Any, **keywords: Any) -> Any:
        """Like a call, but donated arguments are given up: where the plan computes a result in
        their memory, the result is that memory, and no copy is made."""
        if self._sizes is not None:
            return self.of_call(inputs, keywords).donate(*inputs, **keywords)
        if self._buffers:
            return self._own(inputs, keywords, giving=True)
        return self._pack(self._run(self._arrays(inputs, keywords, True), giving=True)[0])

    def on_device(self, *inputs: Any, donate: bool = False, **keywords: Any) -> Any:
        """Like a call, but results stay in the GPU's memory, as `DeviceArray`s: they speak DLPack
        and `__cuda_array_interface__`, are taken as inputs, and `.numpy()` copies them. Returns
        before the work is done.

        donate: donated arguments that lie in that memory are given up, as by `donate`.
        """
        self._check_memory()
        if self._buffers:
            return self._own(inputs, keywords, giving=donate, stay=True)
        return self._pack(self._on_device(self._arrays(inputs, keywords, donate)))

    def on_device_flat(self, inputs: Sequence[Any]) -> list[Any]:
        """`call_flat` with results as those of `on_device`."""
        self._check_memory()
        return self._on_device(self._accepted(inputs))

    def _check_memory(self) -> None:
        if self._opened().run_on_device is None:
            raise UserError(
                f"on_device: a program for {self._target!r} has no memory of its own; call it"
            )

    def _on_device(
        self,
        arrays: Sequence[Any],
        begin: Callable[[], None] = lambda: None,
        log: Log | None = None,
    ) -> list[Any]:
        context = self._take_context()
        assert self._device.run_on_device is not None
        gives = [(result.shape, result.dtype) for result in self._results]
        if self._keeps and log is None:
            log = self.log(None)[1]
        saved = self._undo.saved
        results = list(self._device.run_on_device(context, arrays, gives, begin, log, saved))
        self._contexts.append(context)
        if self._pending is not None:
            self._settle()
        return self._signature.settled_on_device(results) if self._signature.measured else results

    def prepare(
        self, *inputs: Any, outputs: Sequence[Array] | None = None, **keywords: Any
    ) -> PreparedCall:
        """The call with these inputs, to be made again and again: `call = program.prepare(x)`, then
        `y = call()`.

        Inputs are read anew at each call: write into them in between. So they have to be arrays
        that kernels can read as they are; where a call would copy one, this is a UserError.
        outputs: a flat sequence of arrays to write, by default made once; each has a result's type
        and shape, is C-contiguous, aligned and writable, and shares no memory with another array.
        """
        if self._sizes is not None:
            return self.of_call(inputs, keywords).prepare(*inputs, outputs=outputs, **keywords)
        if any(one.size for one in self._signature.measured):
            raise UserError(
                "prepare: the program's data decide sizes of its results, so its arrays are not "
                "bound; call it"
            )
        if self._buffers:
            raise UserError(
                "prepare: the program keeps state between calls, so its arrays are not bound; call "
                "it, or a session of it"
            )
        arrays = []
        values = self._values(inputs, keywords)
        for leaf, value, default in zip(self._leaves, values, self._defaults, strict=True):
            array, copied = leaf.accept(default if value is None else value)
            if copied:
                raise leaf.refuse(
                    "the array would be copied, and later changes of it not seen",
                    f"pass numpy.ascontiguousarray(x, {leaf.dtype.name!r})",
                )
            arrays.append(array)
        seen = len(self._signature.results)
        made = [aligned(*result) for result in self._gives[0 if outputs is None else seen :]]
        given = [*([] if outputs is None else outputs), *made]
        check_outputs(self._results[:seen], given[: len(given) - len(self._results) + seen], arrays)
        self._settle()
        device = self._opened()
        bound, before = list(arrays), []
        for result, argument in self._aliases.donated:
            bound[argument] = like(given[result], arrays[argument])
            before.append((bound[argument], arrays[argument]))
        after = []
        if self._aliases.copied:
            after.append(functools.partial(self._aliases.fill, bound, given))
        if self._signature.measured:
            after.append(functools.partial(self._signature.settled, given))
        run = device.bind(device.context(), bound, given)
        results = given[:seen]
        return PreparedCall(run, arrays, results, self._pack(results), before, after)

    def profile(self, *inputs: Any, warmup: int = 0, **keywords: Any) -> Profile:
        """Run once and say what each kernel took; `.save(path)` writes a trace for Perfetto. State
        is what the model was exported with, and does not advance.

        `warmup`: calls before it, which are not looked at. The profile says whether it was warm.
        """
        if self._sizes is not None:
            return self.of_call(inputs, keywords).profile(*inputs, warmup=warmup, **keywords)
        arrays = self._arrays(inputs, keywords)
        for _ in range(warmup):
            self._run(arrays)
        warm = bool(self._contexts)  # one that a call has used is taken again
        found, events = self._run(arrays, profile=True)
        outputs = self._blocks(found)
        states = self._signature.states(outputs)
        return Profile(self._plan, events or (), self._pack(outputs), states, warm)

    def save(
        self, path: str | os.PathLike[str], *, seal: bool = True, version: str | None = None
    ) -> None:
        """Write the bundle; equal programs give equal bytes, and the file appears whole or not.

        `seal`: mark it with this user's key, so that it runs here without `allow_native`.
        `version`: the oldest program format whose readers have to take it ("1.1",
        specs/compatibility.md); a UserError lists everything that this format cannot say.
        """
        if isinstance(self._parts, Bundle):
            self._parts.verify_all()  # else damage would get a digest that fits
            seal = seal and self._may_seal(self._parts)
        if version is None:
            return write(path, self._parts, seal)
        from ..hlo.wire import for_version

        first, *others = (for_version(one, version) for one in self._parts.programs.values())
        further = dict(zip(self.entries[1:], others, strict=True))
        write(path, copied_parts(self._parts, source=first, further=further), seal)

    def _may_seal(self, bundle: Bundle) -> bool:
        """Whether this user trusts the bundle's machine code: it is theirs, or they let it run."""
        native = [name for name, variant in bundle.variants.items() if variant.native]
        if bundle.is_trusted or not native or self._target in native:
            return True
        warnings.warn(
            f"{', '.join(native)} was not compiled by you, so the bundle is not sealed",
            stacklevel=3,
        )
        return False

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
        summary, own = self._plan.memory, ("replaced_bytes", "workers", "context_bytes")
        return Memory(
            **{
                one.name: getattr(summary, one.name)
                for one in fields(Memory)
                if one.name not in own
            },
            replaced_bytes=sum(b.bytes for b in self._plan.buffers if b.HasField("replaces")),
            workers=self._opened().workers,
            context_bytes=self._opened().context_bytes,
        )

    @property
    def received(self) -> Mapping[str, int]:
        """Bytes that other processes have sent to this one in all calls so far, by the operation of
        the program for which they did; empty for a program of one process."""
        return self._opened().received()

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
    def copies(self) -> int:
        """How many inputs had to be copied so far: not contiguous, or donated but read-only. What
        goes to a GPU's memory does not count."""
        return self._copies[0]

    def with_checks(self, *cases: Sequence[Any], tolerance: float = 1e-3) -> Program:
        """The same program with golden results, which `girih verify` compares on other machines.

        Each case is a sequence of inputs; its golden outputs are what this program gives for them.
        """
        checks = []
        for case in cases:
            one = self.of_call(case, {})
            given = [*one._values(case, {}), *[None] * one._buffers]
            values = [d if v is None else v for v, d in zip(given, one._defaults, strict=True)]
            leaves = map(Leaf, one._signature.arguments)
            arrays = [leaf.accept(v)[0].copy() for leaf, v in zip(leaves, values, strict=True)]
            outputs = tuple(one._checked(arrays))
            checks.append(Check(tuple(arrays), outputs, tolerance, self._entry or MAIN))
        return self.with_golden(checks)

    def with_parts(self, parts: Parts, target: str | None = None, reason: str = "") -> Program:
        """The same program of other parts, which have its target; or for another target of them,
        with the reason for it."""
        self._settle()
        same = target in (None, self._target)
        named = self._entry is not None
        return Program(
            parts,
            target or self._target,
            module=self._module if named else None,
            plan=self._fixed_plan if same else None,
            driver=self._driver,
            reason=reason or self._reason,
            opened="_device" in self.__dict__,
            entry=self._entry,
            **self._workers,
        )

    def with_device(self, number: int) -> Program:
        """The same program on the GPU with this number, of those that the process sees."""
        from .devices.cuda import find_gpus

        if devices.family(self._target) != "nvidia":
            raise UserError(f"with_device: a program for {self._target!r} runs on no GPU")
        (gpu,) = find_gpus(number)
        self._settle()
        named = self._entry is not None
        return Program(
            self._parts,
            self._target,
            module=self._module if named else None,
            plan=self._fixed_plan,
            driver=gpu,
            reason=f"device {number} was asked for",
            entry=self._entry,
            **self._workers,
        )

    @property
    def _fixed_plan(self) -> plan_pb2.Plan | None:
        """The plan of the entry point that a call runs; None where the parts say it, since calls
        decide sizes, or where no entry point is named."""
        if self._entry is None or is_open(self._parts.signatures[self._entry]):
            return None
        return self._plan

    def with_golden(self, checks: Sequence[Check]) -> Program:
        """The same program with these golden flat inputs and outputs added."""
        return self.with_parts(copied_parts(self._parts, checks=(*self._parts.checks, *checks)))

    def run_checks(self) -> list[tuple[float, float]]:
        """(error, tolerance) of each golden case; the error is relative to max |golden output|."""
        found = []
        for check in self._parts.checks:
            outputs = self.entry(check.entry)._checked(check.inputs)
            pairs = zip(outputs, check.outputs, strict=True)
            found.append(
                (max((relative_error(*pair) for pair in pairs), default=0.0), check.tolerance)
            )
        return found

    def _checked(self, inputs: Sequence[Array]) -> list[Array]:
        """The whole flat results for whole flat inputs, which are left as they are."""
        if (known := self._sizes) is not None:
            return self._of_shapes(known, tuple(map(_shape, inputs)))._checked(inputs)
        outputs = self._run(self._accepted([array.copy() for array in inputs]))[0]
        if self._layout is None:
            return outputs
        return [block.gather() for block in self._blocks(outputs)]

    def __copy__(self) -> Program:
        return self  # immutable

    def __deepcopy__(self, memo: Any) -> Program:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a girih program is not pickled: write it with program.save(path) and read it in the "
            "other process with girih.load(path), which shares the memory of its weights"
        )

    def __repr__(self) -> str:
        if self._entry is None:
            return f"<girih program for {self._target}: entry points {', '.join(self.entries)}>"
        arguments = ", ".join(map(str, self._signature.arguments[:4]))
        more = ", ..." if len(self._signature.arguments) > 4 else ""
        named = f"{self._entry}" if len(self.entries) > 1 else ""
        return (
            f"<girih program for {self._target}: {named}({arguments}{more}), "
            f"{len(self._plan.kernels)} kernels>"
        )

    def _arrays(
        self,
        inputs: Sequence[Any],
        keywords: Mapping[str, Any],
        giving: bool = False,
        buffers: Sequence[Any] = (),
        keeps: bool = False,
    ) -> list[Array]:
        """The call's flat arguments as arrays that kernels can read; with `giving`, donated ones
        as arrays that they may write. `buffers`: the state, None for what was exported; `keeps`: it
        is a session's, which they may write as well."""
        values = [*self._values(inputs, keywords), *(buffers or [None] * self._buffers)]
        giving = giving and self._can_be_given
        if not giving and not keeps and self._are_ready(values):
            return values
        arrays = self._accepted(values, giving, keeps)
        if giving:
            check_donations(self._leaves, arrays)
        return arrays

    def _accepted(
        self, values: Sequence[Any], giving: bool = False, keeps: bool = False
    ) -> list[Array]:
        """Each flat argument as its leaf accepts it; what is copied is counted."""
        arrays, copies, asked = [], 0, giving
        borrow = self._opened().borrow
        first = len(self._leaves) - self._buffers
        for number, (leaf, value, default) in enumerate(
            zip(self._leaves, values, self._defaults, strict=True)
        ):
            giving = (asked or keeps and number >= first) and number not in self._undo.apart
            if value is None and default is not None:
                value = default
            if borrow is not None and not isinstance(value, np.ndarray):
                view = leaf.accept_view(value, borrow, giving)
                if view is not None:
                    arrays.append(view)
                    continue
            array, copied = leaf.accept(value, giving)
            copies += copied
            arrays.append(array)
        if copies:
            with self._lock:
                self._copies[0] += copies
        return arrays

    def _values(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The call's flat arguments as they were passed; None for those left out."""
        values: list[Any] = []
        try:
            if keywords or self._signature.keywords.children:
                raise Differs
            self._flatten(inputs, values)
            return values
        except Differs:
            try:
                return self._signature.flatten(inputs, keywords)
            except StructureError as error:
                raise UserError(str(error)) from None

    def _settle(self) -> None:
        """Wait until the weights are known to be whole; UserError if they are not."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def _are_ready(self, values: Sequence[Any]) -> bool:
        """Whether all values are arrays that kernels can read as they are."""
        for value, (dtype, shape) in zip(values, self._accepts, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return False
            flags = value.flags
            if value.shape != shape or not (flags.c_contiguous and flags.aligned):
                return False
        return True

    def _run(
        self,
        inputs: Sequence[Array],
        profile: bool = False,
        giving: bool = False,
        begin: Callable[[], None] | None = None,
        log: Any = None,
    ) -> tuple[list[Array], Sequence[Any] | None]:
        """The outputs, and the device's events if it was asked for them. `giving`: donated inputs
        become outputs. `begin`, `log`: of a session, whose state becomes outputs; as for
        `advance`."""
        context = self._take_context()
        outputs = [aligned(*result) for result in self._gives]
        first, keeps = len(self._accepts) - self._buffers, log is not None
        if self._aliases.donated:
            inputs = list(inputs)
            for result, argument in self._aliases.donated:
                if giving or keeps and argument >= first:
                    outputs[result] = like(inputs[argument], outputs[result])
                else:
                    copy = like(outputs[result], inputs[argument])
                    copy[...] = inputs[argument]
                    inputs[argument] = copy
        for result, argument in self._aliases.replacing:
            if (giving or keeps and argument >= first) and argument not in self._undo.apart:
                outputs[result] = like(inputs[argument], outputs[result])
        results = len(outputs)
        if self._keeps:
            kept = [aligned(*one) for one in self._keeps] if log is None else log.arrays
            outputs += kept
            for number in self._undo.saved:
                kept[number].fill(0)
        if begin is not None:
            begin()
        events = self._device.run(context, inputs, outputs, profile)
        self._contexts.append(context)  # after an error it is not: its state is unknown
        del outputs[results:]
        if self._pending is not None:
            self._settle()
        if self._aliases.copied:
            self._aliases.fill(inputs, outputs)
        if self._measures:
            outputs = self._signature.settled(outputs)
        return outputs, events

    def _take_context(self) -> Any:
        """A context that no other call uses; it is given back where the call succeeds. From here on
        the device is open."""
        try:
            return self._contexts.pop() if self._contexts else self._opened().context()
        except IndexError:  # another thread has just taken the last one
            return self._opened().context()

    def _pack(self, outputs: list[Any]) -> Any:
        for number, kind in self._keys:
            outputs[number] = as_keys(kind, outputs[number])
        outputs = self._blocks(outputs)
        if self._outputs_are_flat_list:
            return outputs
        return self._unflatten(iter(outputs))

    def _blocks(self, outputs: list[Any]) -> list[Any]:
        """The outputs; those of one process of several know of what they are a block."""
        if self._layout is None:
            return outputs
        return self._layout.blocks(outputs, self._signature.results)

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


def _encoder(made: Made) -> Callable[[], bytes]:
    """What gives the wire form of a module that is made when it is first asked for."""
    return lambda: encoded(made())


def _layout_of(variant: Variant) -> MeshLayout | None:
    """How a variant for several devices lies on them."""
    if variant.layout is None:
        return None
    from .distributed.layout import layout_of

    return layout_of(variant)


class SizedProgram(AtSizes, Program):
    """The program at the sizes of one call (sized.py)."""


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array of any library, or of a Python number."""
    try:
        shape = value.shape
    except AttributeError:
        return ()
    return shape if type(shape) is tuple else tuple(shape)

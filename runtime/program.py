"""A compiled program: called like a function, saved as a bundle, loaded without a compiler."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..hlo.errors import UserError
from ..hlo.signature import Signature
from . import devices
from .aliases import like
from .bundle import MAIN, Bundle, Check, MemoryParts, Parts
from .bundle_writer import write
from .entries import unknown_entry
from .inputs import Leaf
from .loaded import Array, Made
from .parts import aligned, copied_parts, encoded, relative_error, variant_of
from .prepared import PreparedCall, check_outputs
from .profile import Profile
from .session import Session, named_state
from .sized import AtSizes
from .sizes import OpenSizes
from .stateful import StatefulProgram


class Program(StatefulProgram):
    """A program for one target; immutable, and safe to call from any number of threads, but for the
    state of a model that changes its buffers: threads take a `session` each.

    It has one or more entry points; a call runs the one that it was made for (`entry`), by default
    "main", or the only one. Of several without a "main", none is run until it is named. All of them
    have their weights and their code in memory once.

    Every concurrent call has a context of its own (arena, scratch), which is kept for later calls.
    """

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
    def own_session(self) -> Session:
        """The session that calls of the program itself advance."""
        with self._loaded.lock:
            if self._loaded.session is None:
                self._loaded.session = self.session()
            return self._loaded.session

    def _own(self, inputs: Sequence[Any], keywords: Mapping[str, Any], **options: Any) -> Any:
        """A call of the program's own session."""
        return self.own_session.run(self, inputs, keywords, **options)

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


def _encoder(made: Made) -> Callable[[], bytes]:
    """What gives the wire form of a module that is made when it is first asked for."""
    return lambda: encoded(made())


class SizedProgram(AtSizes, Program):
    """The program at the sizes of one call (sized.py)."""


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array of any library, or of a Python number."""
    try:
        shape = value.shape
    except AttributeError:
        return ()
    return shape if type(shape) is tuple else tuple(shape)

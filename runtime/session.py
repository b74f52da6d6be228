"""The state of a model between calls: buffers that a call changes.

A program has a session of its own, which its calls advance as the framework's would; more are made
by `program.session()`. Entry points that name the same state share it. Buffers are allocated once
and stay on the device, where that has memory of its own; the plan overwrites them where it can, and
elsewhere the new values take their place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.trees import describe
from .entries import nearest, unnamed
from .parts import ALIGNMENT, aligned
from .saved_state import read_state, write_state

if TYPE_CHECKING:
    from .program import Program

Array = np.ndarray[Any, Any]


class Session:
    """`session(*inputs)` is a call of its program, on buffers of its own; `session.decode(*inputs)`
    one of the entry point "decode".

    One call at a time: a second one from another thread is a UserError. A call that fails before
    its work begins (arguments that are not what they have to be, no memory) leaves the state as it
    was. So does one that fails or is interrupted from then on (Ctrl-C, a device, a check of the
    results), where the plan keeps what it overwrites: all but programs that overwrite a large
    buffer whole, or in a loop. There it may have changed some, and every use of the state says so
    until `reset`, or until all of it is assigned or loaded. An interrupt that comes when the new
    state is there already is one after the call. Made by `Program.session`.
    """

    def __init__(self, program: Program, values: Mapping[str, Array]) -> None:
        """`values`: what to begin with, by the names of the program's state; they are copied."""
        self._program = program
        self._lock = threading.Lock()
        self._buffers: dict[str, Any] = {name: _copy(x) for name, x in values.items()}
        self._is_whole = True  # False while a call writes into the buffers and keeps nothing
        # What calls of entry points keep of state, and the call that has begun, and not ended.
        self._logs: dict[str, Any] = {}
        self._begun: tuple[Program, Mapping[str, Any], Any] | None = None

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Like a call of the program; the session's state advances."""
        return self.run(self._program, inputs, keywords)

    def donate(self, *inputs: Any, **keywords: Any) -> Any:
        """Like `Program.donate`; the session's state advances."""
        return self.run(self._program, inputs, keywords, giving=True)

    def on_device(self, *inputs: Any, donate: bool = False, **keywords: Any) -> Any:
        """Like `Program.on_device`; the session's state advances."""
        return self.run(self._program, inputs, keywords, giving=donate, stay=True)

    def entry(self, name: str) -> SessionEntry:
        """The entry point of that name, on this session's state."""
        return SessionEntry(self, self._program.entry(name))

    def __getattr__(self, name: str) -> SessionEntry:
        program = self.__dict__.get("_program")
        if program is None or name.startswith("_"):
            raise AttributeError(name)
        if name not in program.entries:
            known = [*program.entries, *(one for one in dir(type(self)) if one[0] != "_")]
            raise AttributeError(
                f"a session has no entry point {name!r}{nearest(name, known)}; the program has "
                f"{', '.join(program.entries)}"
            )
        return self.entry(name)

    @property
    def state(self) -> dict[str, Array]:
        """A copy of each buffer by its name in the model; a block of it, which can be gathered,
        where several processes run the program. Values by name may be assigned: buffers that they
        do not name stay as they are."""
        with _alone(self._lock):
            found = {name: _host(buffer) for name, buffer in self._whole().items()}
        return self._program.as_state(found)

    @state.setter
    def state(self, values: Mapping[str, Any]) -> None:
        declared = self._program.state_leaves
        given = named_state(values, tuple(self._buffers))
        self._take({name: _copy(declared[name].accept(x)[0]) for name, x in given.items()})

    @property
    def memory(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def reset(self) -> None:
        """Begin again with what the model was exported with."""
        self._take({name: _copy(x) for name, x in self._program.initial_state.items()})

    def seed(self, number: int) -> None:
        """Draw random numbers from this seed on, as if no call had been before; UserError where
        the program draws none. The rest of the state stays."""
        signatures = self._program.parts.signatures.values()
        name = next((one.generator for one in signatures if one.generator is not None), None)
        if name is None:
            raise UserError("seed: the program draws no random numbers")
        self.state = {name: np.array([number % (1 << 64), 0], np.uint64)}

    def fork(self) -> Session:
        """A new session that begins with this one's state."""
        with _alone(self._lock):
            kept = {name: _host(buffer) for name, buffer in self._whole().items()}
        return Session(self._program, kept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which appears whole or not at all; `load` of a session of the
        same bundle reads it, on other machines and targets too. One of safetensors, no pickle."""
        write_state(path, self.state, self._program.parts)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on with the state in a file that `save` has written. UserError, and nothing changed,
        if that is of another bundle, of another byte order, cut off or altered."""
        declared = self._program.state_leaves
        values = read_state(path, declared, self._program.parts)
        self._take({name: _copy(value) for name, value in values.items()})

    def run(
        self, program: Program, inputs: Sequence[Any], keywords: Mapping[str, Any], **options: Any
    ) -> Any:
        """A call of an entry point of the session's program; options as for `Program.advance`."""
        name = program.entry_name
        if name is None:
            raise unnamed(program.entries)
        program = program.of_call(inputs, keywords)
        with _alone(self._lock):
            kept = self._whole()
            buffers = [kept[name] for name in program.signature.buffers]
            arrays = program.bind_state(inputs, keywords, buffers, **options)
            known = self._logs[name] = program.log(self._logs.get(name))
            begin = self._begins(program, kept, known[1])
            result, changed = program.advance(arrays, begin, known[1], **options)
            self._buffers = {**kept, **changed}  # what comes now undoes nothing that is here
            self._begun, self._is_whole = None, True
        return result

    def _begins(self, program: Program, kept: Mapping[str, Any], log: Any) -> Any:
        def begin() -> None:
            if program.undoes:
                self._begun = program, kept, log
            else:
                self._is_whole = False

        return begin

    def _take(self, arrays: Mapping[str, Array]) -> None:
        """Go on with these values, which are the session's own now."""
        with _alone(self._lock):
            kept = self._buffers if len(arrays) == len(self._buffers) else self._whole()
            self._buffers = {**kept, **arrays}
            self._begun, self._is_whole = None, True

    def __copy__(self) -> Session:
        return self.fork()

    def __deepcopy__(self, memo: Any) -> Session:
        return self.fork()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a session is not pickled: save(path) its state, and load(path) that in a "
            "program.session() of the other process, which has the program from girih.load(path)"
        )

    def __repr__(self) -> str:
        return f"<session of {self._program!r}: {', '.join(self._buffers) or 'no state'}>"

    def _whole(self) -> dict[str, Any]:
        """The buffers, as they were before a call that did not end; UserError where it has left
        them half changed."""
        if self._begun is not None:
            program, kept, log = self._begun
            self._buffers = program.before(kept, log)
            self._begun = None
        if self._is_whole:
            return self._buffers
        raise UserError(
            "a call of the session failed or was interrupted while it overwrote the state; reset() "
            "the session, or assign or load all of its state"
        )


class SessionEntry:
    """An entry point on a session's state: a call of it advances that. Made by `Session.entry`."""

    def __init__(self, session: Session, program: Program) -> None:
        self._session, self.program = session, program

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Like a call of the entry point; the session's state advances."""
        return self._session.run(self.program, inputs, keywords)

    def donate(self, *inputs: Any, **keywords: Any) -> Any:
        """Like `Program.donate`; the session's state advances."""
        return self._session.run(self.program, inputs, keywords, giving=True)

    def on_device(self, *inputs: Any, donate: bool = False, **keywords: Any) -> Any:
        """Like `Program.on_device`; the session's state advances."""
        return self._session.run(self.program, inputs, keywords, giving=donate, stay=True)

    def __repr__(self) -> str:
        return f"<{self.program.entry_name} of {self._session!r}>"


def named_state(values: Any, known: Sequence[str]) -> dict[str, Any]:
    """The values by name; UserError where it is no mapping, or a name or a value is none."""
    if not isinstance(values, Mapping):
        raise UserError(f"state: expected values by name, got {describe(values)}")
    for name, value in values.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            near = nearest(name, known)
            raise UserError(f"{name}: the program has no such state{near}; it has {listed}")
        if value is None:
            raise UserError(f"{name}: expected an array, got None; leave it out to keep its value")
    return dict(values)


def _alone(lock: threading.Lock) -> threading.Lock:
    """A session's lock, to be held; UserError where it is. No interrupt comes between taking a lock
    and the body of its `with`, as one may between `acquire` and a `try`."""
    if lock.locked():
        raise UserError(
            "the session is used in another thread; make one for each: program.session()"
        )
    return lock


def _host(buffer: Any) -> Array:
    return np.array(buffer if isinstance(buffer, np.ndarray) else buffer.numpy(), order="C")


def _copy(source: Array) -> Array:
    """A copy, aligned as kernels like it."""
    made = aligned(source.shape, source.dtype, source.nbytes + ALIGNMENT - 1)
    made[...] = source
    return made

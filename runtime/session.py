"""The state of a model between calls: buffers that a call changes.

A program has a session of its own, which its calls advance as the framework's would; more are made
by `program.session()`. Buffers are allocated once and stay on the device, where that has memory of
its own; the plan overwrites them where it can, and elsewhere the new values take their place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.signature import describe
from .parts import ALIGNMENT, aligned

if TYPE_CHECKING:
    from .program import Program

Array = np.ndarray[Any, Any]


class Session:
    """`session(*inputs)` is a call of its program, on buffers of its own.

    One call at a time: a second one from another thread is a UserError. A call that fails leaves
    the state as it was; where the plan overwrites buffers in place, one that is interrupted at its
    work may have changed some of them, and every use of the state says so until `reset`, or until
    all of it is assigned. Made by `Program.session`.
    """

    def __init__(self, program: Program, buffers: Sequence[Array]) -> None:
        """`buffers`: what to begin with, one for each of `program.signature.buffers`; they are
        copied."""
        self._program = program
        self._lock = threading.Lock()
        self._buffers: list[Any] = [_copy(buffer) for buffer in buffers]
        self._is_whole = True  # False while a call writes into the buffers

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Like a call of the program; the session's state advances."""
        return self._run(inputs, keywords)

    def donate(self, *inputs: Any, **keywords: Any) -> Any:
        """Like `Program.donate`; the session's state advances."""
        return self._run(inputs, keywords, giving=True)

    def on_device(self, *inputs: Any, donate: bool = False, **keywords: Any) -> Any:
        """Like `Program.on_device`; the session's state advances."""
        return self._run(inputs, keywords, giving=donate, stay=True)

    @property
    def state(self) -> dict[str, Array]:
        """A copy of each buffer by its name in the model; a block of it, which can be gathered,
        where several processes run the program. Values by name may be assigned: buffers that they
        do not name stay as they are."""
        with _Alone(self._lock):
            found = self._program.as_state(list(map(_host, self._whole())))
            return dict(zip(self._names, found, strict=True))

    @state.setter
    def state(self, values: Mapping[str, Any]) -> None:
        declared = dict(zip(self._names, self._program.state_leaves, strict=True))
        given = named_state(values, self._names)
        arrays = {name: _copy(declared[name].accept(x)[0]) for name, x in given.items()}
        with _Alone(self._lock):
            kept = self._buffers if len(arrays) == len(self._names) else self._whole()
            pairs = zip(self._names, kept, strict=True)
            self._buffers = [arrays.get(name, buffer) for name, buffer in pairs]
            self._is_whole = True

    @property
    def memory(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def reset(self) -> None:
        """Begin again with what the model was exported with."""
        with _Alone(self._lock):
            self._buffers = [_copy(buffer) for buffer in self._program.initial_state]
            self._is_whole = True

    def fork(self) -> Session:
        """A new session that begins with this one's state."""
        with _Alone(self._lock):
            return Session(self._program, list(map(_host, self._whole())))

    def __copy__(self) -> Session:
        return self.fork()

    def __deepcopy__(self, memo: Any) -> Session:
        return self.fork()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a session is not pickled: pickle its state, and assign that to program.session() in "
            "the other process, which has the program from girih.load(path)"
        )

    def __repr__(self) -> str:
        return f"<session of {self._program!r}: {', '.join(self._names) or 'no state'}>"

    @property
    def _names(self) -> tuple[str, ...]:
        return self._program.signature.buffers

    def _run(self, inputs: Sequence[Any], keywords: Mapping[str, Any], **options: Any) -> Any:
        program = self._program
        with _Alone(self._lock):
            arrays = program.bind_state(inputs, keywords, self._whole(), **options)
            self._is_whole = not program.overwrites_state
            result, self._buffers = program.advance(arrays, **options)
            self._is_whole = True
        return result

    def _whole(self) -> list[Any]:
        """The buffers; UserError where a call has left them half changed."""
        if self._is_whole:
            return self._buffers
        raise UserError(
            "a call of the session was interrupted while it overwrote the state; reset() the "
            "session, or assign all of its state"
        )


def named_state(values: Any, known: Sequence[str]) -> dict[str, Any]:
    """The values by name; UserError where it is no mapping, or a name or a value is none."""
    if not isinstance(values, Mapping):
        raise UserError(f"state: expected values by name, got {describe(values)}")
    for name, value in values.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UserError(f"{name}: the program has no such state; it has {listed}")
        if value is None:
            raise UserError(f"{name}: expected an array, got None; leave it out to keep its value")
    return dict(values)


class _Alone:
    """Holds a session's lock; UserError where another thread holds it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            raise UserError(
                "the session is used in another thread; make one for each: program.session()"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _host(buffer: Any) -> Array:
    return np.array(buffer if isinstance(buffer, np.ndarray) else buffer.numpy(), order="C")


def _copy(source: Array) -> Array:
    """A copy, aligned as kernels like it."""
    made = aligned(source.shape, source.dtype, source.nbytes + ALIGNMENT - 1)
    made[...] = source
    return made

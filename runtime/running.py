"""How a program runs: arguments become arrays that kernels can read, and outputs what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from ..hlo.trees import StructureError
from .aliases import like
from .inputs import as_keys, check_donations
from .loaded import Array, LoadedProgram
from .parts import aligned
from .structure import Differs
from .undo import HostLog, Log


class RunningProgram(LoadedProgram):
    """What all ways to call a program have in common."""

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

    def _check_memory(self) -> None:
        if self._opened().run_on_device is None:
            raise UserError(
                f"on_device: a program for {self._target!r} has no memory of its own; call it"
            )

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

    def log(self, known: tuple[Any, Log] | None) -> tuple[Any, Log]:
        """Memory for what a session's call keeps of the state that it overwrites, and whose it is:
        that of an earlier call, where it is of the same sizes."""
        if known is not None and known[0] is self._keeps:
            return known
        return self._keeps, (self._opened().log or HostLog)(self._keeps)

"""A program whose model changes buffers of its own: what a session keeps of them between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..hlo.errors import UserError
from ..hlo.signature import Argument
from .inputs import Leaf
from .loaded import Array
from .running import RunningProgram
from .undo import Log


class StatefulProgram(RunningProgram):
    """What sessions ask of a program."""

    @property
    def undoes(self) -> bool:
        """Whether a session can go back to the state before a call that does not end."""
        return self._overwritten <= self._undo.arguments

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

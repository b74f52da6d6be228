"""A call whose inputs and outputs are bound once: what is left is the work itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..hlo.errors import UserError
from .inputs import Leaf

Array = np.ndarray[Any, Any]


class PreparedCall:
    """`call()` runs a program on bound arrays and returns its results.

    `inputs` are read and `outputs` (flat) written anew at each call; the results are the same
    arrays each time. Made by `Program.prepare`. One call at a time; a second one from another
    thread is a UserError, and so is none of them wrong without a word.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        results: Any,
        before: Sequence[tuple[Array, Array]] = (),
        after: Sequence[Callable[[], Any]] = (),
    ) -> None:
        """`before`: (target, source) of copies that precede each run; `after`: what follows it."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._run, self._results = run, results
        self._before, self._after = before, after
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        """Run; the results in the program's structure, in the memory that was bound."""
        if self._lock.locked():
            raise UserError(
                "this prepared call is running in another thread; prepare one for each thread"
            )
        with self._lock:  # no interrupt comes between taking it and what releases it
            for target, source in self._before:
                target[...] = source
            self._run()
            for step in self._after:
                step()
        return self._results


def check_outputs(
    results: Sequence[Leaf], outputs: Sequence[Array], inputs: Sequence[Array]
) -> None:
    """UserError unless kernels can write these arrays as the program's results."""
    if len(outputs) != len(results):
        raise UserError(f"outputs: the program gives {len(results)} results, got {len(outputs)}")
    for index, (leaf, array) in enumerate(zip(results, outputs, strict=True)):
        if type(array) is not np.ndarray or array.dtype != leaf.dtype or array.shape != leaf.shape:
            found = getattr(array, "dtype", type(array).__name__), getattr(array, "shape", "")
            raise UserError(f"outputs[{index}]: expected {leaf}, got {found[0]}{found[1]}")
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            raise UserError(
                f"outputs[{index}]: it must be C-contiguous, aligned and writable; make it with "
                "numpy.empty"
            )
        for other in (*inputs, *outputs[:index]):
            if array.nbytes and np.may_share_memory(array, other):
                raise UserError(f"outputs[{index}] lies in the memory of another array; copy it")

"""How long plans take on this machine, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..hlo.types import element_type
from . import devices

_ROUNDS = 15  # samples of each plan
_LONGEST = 1.0  # seconds for all samples; then only begun rounds are ended
_SAMPLE = 5e-4  # seconds that a sample takes at least, by repeated calls
_MOST_CALLS = 200
_ALIGNMENT = 64


def fastest(
    programs: Sequence[tuple[Any, bytes, Mapping[str, Any]]], threads: int | None = None
) -> list[float]:
    """Seconds of a call of each (plan, image, weights): the least of several samples in turns.

    The plans have the same inputs and outputs. Floating-point inputs are made up, others are 0.
    """
    if not programs:
        return []
    plan = programs[0][0]
    random = np.random.default_rng(0)
    inputs = [_array(plan.buffers[index], random) for index in plan.inputs]
    outputs = [_array(plan.buffers[index], None) for index in plan.outputs]
    calls, counts = [], []
    for one, image, weights in programs:
        device = devices.open_device(one, image, weights, threads)
        call = device.bind(device.context(), inputs, outputs)
        call()
        begin = perf_counter()
        call()
        took = max(perf_counter() - begin, 1e-7)
        calls.append(call)
        counts.append(max(1, min(_MOST_CALLS, round(_SAMPLE / took))))
    best = [float("inf")] * len(calls)
    end = perf_counter() + _LONGEST
    for _ in range(_ROUNDS):
        for number, (call, count) in enumerate(zip(calls, counts, strict=True)):
            begin = perf_counter()
            for _ in range(count):
                call()
            best[number] = min(best[number], (perf_counter() - begin) / count)
        if perf_counter() > end:
            break
    return best


def _array(buffer: Any, random: np.random.Generator | None) -> np.ndarray[Any, Any]:
    """An array for a buffer, with random numbers if it is given a source of them."""
    element, dims = element_type(buffer.element_type), tuple(buffer.dims)
    size = math.prod(dims) * element.dtype.itemsize
    block = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -block.ctypes.data % _ALIGNMENT
    array = block[begin : begin + size].view(element.dtype).reshape(dims)
    if random is not None and element.kind == "float":
        array[...] = random.uniform(-1, 1, dims)
    return array

"""Engines beside girih that have one program for all sizes of a call.

Each maker takes a PyTorch model and its export with open sizes, and gives a function of the flat
inputs, numpy arrays, that returns the flat results. It raises `Unavailable` with the reason where
the engine cannot.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engines import Unavailable, threads

Call = Callable[[Sequence[np.ndarray]], Sequence[Any]]


def onnx_runtime(model: Any, exported: Any) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    file = _onnx(exported)
    try:
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    except Exception as error:
        raise Unavailable(f"onnxruntime: {_first(error)}") from error
    names = [one.name for one in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def openvino(model: Any, exported: Any) -> Call:
    import openvino as vino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }  # fmt: skip
    file = _onnx(exported)
    try:
        core = vino.Core()
        compiled = core.compile_model(core.read_model(file), "CPU", settings)
    except Exception as error:
        raise Unavailable(f"openvino: {_first(error)}") from error
    request = compiled.create_infer_request()

    def call(arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        request.infer(dict(enumerate(arrays)))
        return [request.get_output_tensor(n).data for n in range(len(compiled.outputs))]

    return call


def torch_compile(model: Any, exported: Any) -> Call:
    """Inductor with dynamic sizes; it compiles when it is called, for each pattern of ones anew."""
    import torch
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils import _pytree as pytree

    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise Unavailable(f"inductor finds no C++ compiler: {_first(error)}") from error
    torch.set_num_threads(threads())
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True)

    def call(arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        with torch.inference_mode():
            found = compiled(*map(torch.from_numpy, arrays))
        return [leaf.numpy() for leaf in pytree.tree_leaves(found)]

    return call


@functools.lru_cache(maxsize=1)
def _onnx(exported: Any) -> bytes:
    """The export as ONNX, with open axes."""
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        program = torch.onnx.export(exported, dynamo=True, verbose=False)
        assert program is not None
        return program.model_proto.SerializeToString()
    except Exception as error:
        raise Unavailable(f"torch.onnx.export: {_first(error.__cause__ or error)}") from error


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


ENGINES: dict[str, Callable[[Any, Any], Call]] = {
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
    "torch.compile": torch_compile,
}

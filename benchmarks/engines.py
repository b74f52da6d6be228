"""Ways to run a zoo model: girih and its peers, each behind the same small face.

A maker takes the built model and gives `Prepared`: a call without arguments that runs the model
once and waits for its results, what preparing cost, and facts such as temporary bytes. A maker
raises `Unavailable` with the reason where an engine cannot run a model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models import Built


class Unavailable(Exception):
    """This engine cannot run this model; the text says why."""


@dataclass
class Prepared:
    """`call()` runs the model once and returns its flat results."""

    call: Callable[[], Any]
    compile_seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


def threads() -> int:
    return len(os.sched_getaffinity(0))


def numpy_inputs(built: Built) -> tuple[Any, ...]:
    """The model's inputs as numpy arrays of their own, the structure kept."""
    if built.framework == "jax":
        import jax

        return jax.tree_util.tree_map(np.array, built.inputs)
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: np.array(leaf.detach()), built.inputs)


def girih_engine(built: Built, folder: Path, name: str, precision: str = "float32") -> Prepared:
    """Compile, save, load, run. Facts: import time, bundle bytes, memory, kernels."""
    import girih

    started = time.perf_counter()
    module = girih.import_model(built.source, *built.inputs)
    imported = time.perf_counter()
    options = girih.Options(matmul_precision=precision, activation_precision=precision)
    compiled = girih.compile(module, options=options)
    finished = time.perf_counter()
    bundle = folder / f"{name}.girih"
    compiled.save(bundle)
    saved = time.perf_counter()
    program = girih.load(bundle)
    inputs = numpy_inputs(built)
    memory = program.memory
    return Prepared(
        lambda: program(*inputs),
        finished - imported,
        {
            "import_seconds": imported - started,
            "save_seconds": saved - finished,
            "bundle": str(bundle),
            "bundle_bytes": bundle.stat().st_size,
            "argument_bytes": memory.argument_bytes,
            "output_bytes": memory.output_bytes,
            "constant_bytes": memory.constant_bytes,
            "temporary_bytes": memory.temporary_bytes,
            "kernels": len(compiled.plan.kernels),
            "steps": len(compiled.plan.steps),
        },
    )


def torch_eager(built: Built, folder: Path, name: str) -> Prepared:
    import torch

    _only(built, "torch")
    torch.set_num_threads(threads())

    def call() -> Any:
        with torch.inference_mode():
            return built.source(*built.inputs)

    return Prepared(call, 0.0)


def torch_compile(built: Built, folder: Path, name: str) -> Prepared:
    import torch

    _only(built, "torch")
    torch.set_num_threads(threads())
    compiled = torch.compile(built.source)

    def call() -> Any:
        with torch.inference_mode():
            return compiled(*built.inputs)

    started = time.perf_counter()
    try:
        call()
    except Exception as error:
        raise Unavailable(str(error).splitlines()[0]) from error
    return Prepared(call, time.perf_counter() - started)


def xla_cpu(built: Built, folder: Path, name: str) -> Prepared:
    """The same StableHLO on XLA:CPU: a JAX model as it is, a torch model as girih imported it."""
    if built.framework == "jax":
        return _xla_of_jax(built)
    return _xla_of_module(built)


def _xla_of_jax(built: Built) -> Prepared:
    import jax

    # donation would use up the inputs, so the function is compiled anew without it
    function = getattr(built.source, "__wrapped__", built.source)
    lowered = jax.jit(function).lower(*built.inputs)
    started = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - started
    inputs = jax.device_put(built.inputs)
    memory = compiled.memory_analysis()
    facts = {"temporary_bytes": memory.temp_size_in_bytes} if memory else {}
    return Prepared(lambda: jax.block_until_ready(compiled(*inputs)), seconds, facts)


def _xla_of_module(built: Built) -> Prepared:
    import jax
    import jax.extend.backend
    from jaxlib import xla_client

    import girih
    from girih.frontends.stablehlo.write import write_text

    jax.config.update("jax_enable_x64", True)  # torch's indices have 64 bits
    module = girih.import_model(built.source, *built.inputs)
    written = write_text(module)
    backend = jax.extend.backend.get_backend("cpu")
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    started = time.perf_counter()
    loaded = backend.compile_and_load(written.text, devices, xla_client.CompileOptions())
    seconds = time.perf_counter() - started
    weights = [module.weights[weight].array for weight in written.weights]
    arguments = [jax.device_put(array) for array in (*built.flat_inputs(), *weights)]

    def call() -> Any:
        results = loaded.execute_sharded(arguments).disassemble_into_single_device_arrays()
        return jax.block_until_ready([shards[0] for shards in results])

    memory = loaded.get_compiled_memory_stats()
    return Prepared(call, seconds, {"temporary_bytes": memory.temp_size_in_bytes})


def onnx_runtime(built: Built, folder: Path, name: str) -> Prepared:
    import onnxruntime
    import torch

    _only(built, "torch")
    started = time.perf_counter()
    path = folder / f"{name}.onnx"
    try:
        program = torch.onnx.export(built.source, built.inputs, dynamo=True, verbose=False)
        assert program is not None
        program.save(path, external_data=True)
    except Exception as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise Unavailable(f"torch.onnx.export: {first[:160]}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as error:
        raise Unavailable(f"onnxruntime: {str(error).splitlines()[0][:160]}") from error
    seconds = time.perf_counter() - started
    names = [entry.name for entry in session.get_inputs()]
    feeds = dict(zip(names, built.flat_inputs(), strict=True))
    return Prepared(lambda: session.run(None, feeds), seconds)


def girih_bf16(built: Built, folder: Path, name: str) -> Prepared:
    """girih whose products and activations are bf16, as OpenVINO's are."""
    return girih_engine(built, folder, f"{name}-bf16", "bfloat16")


def torch_bf16(built: Built, folder: Path, name: str) -> Prepared:
    """torch eager whose products are bf16 (autocast)."""
    import torch

    _only(built, "torch")
    torch.set_num_threads(threads())

    def call() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return built.source(*built.inputs)

    return Prepared(call, 0.0)


def openvino_f32(built: Built, folder: Path, name: str) -> Prepared:
    return _openvino(built, "f32")


def openvino_bf16(built: Built, folder: Path, name: str) -> Prepared:
    """OpenVINO with the precision that it chooses by itself on CPUs that multiply bf16."""
    return _openvino(built, "bf16")


def _openvino(built: Built, precision: str) -> Prepared:
    import openvino
    import torch

    _only(built, "torch")
    started = time.perf_counter()
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    try:
        exported = torch.export.export(built.source, built.inputs)
        model = openvino.convert_model(exported)
        compiled = openvino.Core().compile_model(model, "CPU", settings)
    except Exception as error:
        raise Unavailable(f"openvino: {str(error).splitlines()[0][:160]}") from error
    request = compiled.create_infer_request()
    feeds = dict(enumerate(built.flat_inputs()))

    def call() -> Any:
        request.infer(feeds)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return Prepared(call, time.perf_counter() - started)


def _only(built: Built, framework: str) -> None:
    if built.framework != framework:
        raise Unavailable(f"not a {framework} model")


ENGINES: dict[str, Callable[[Built, Path, str], Prepared]] = {
    "girih": girih_engine,
    "xla": xla_cpu,
    "torch": torch_eager,
    "torch.compile": torch_compile,
    "onnxruntime": onnx_runtime,
    "openvino": openvino_f32,
}
# Products of bf16: compared with each other (benchmarks/low_precision.py), not with the above.
BF16_ENGINES: dict[str, Callable[[Built, Path, str], Prepared]] = {
    "girih-bf16": girih_bf16,
    "torch-bf16": torch_bf16,
    "openvino-bf16": openvino_bf16,
}


def flat(results: Any) -> list[np.ndarray]:
    """Numpy arrays of a nested result, dictionaries in the order of their sorted keys."""
    if isinstance(results, dict):
        return [leaf for key in sorted(results) for leaf in flat(results[key])]
    if isinstance(results, (list, tuple)):
        return [leaf for item in results for leaf in flat(item)]
    if str(getattr(results, "dtype", "")) == "torch.bfloat16":
        results = results.float()  # numpy has no such type
    return [np.asarray(results)]

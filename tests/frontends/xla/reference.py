"""XLA itself, as jaxlib has it: its parser, its printer, and running what it parsed."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np

hlo: Any = importlib.import_module("jaxlib._hlo")
_jax: Any = importlib.import_module("jaxlib._jax")
_client: Any = importlib.import_module("jaxlib.xla_client")


def protobuf_of(text: str) -> bytes:
    """The HloModuleProto that XLA's parser makes of HLO text."""
    return hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def text_of(module: Any, short: bool = False) -> str:
    """HLO text with every constant: as dumps have it, or as short as it can be parsed."""
    if short:
        return module.to_string(hlo.HloPrintOptions.short_parsable())
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)


def run(data: bytes, inputs: list[Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of an HloModuleProto that XLA compiles for the CPU."""
    client: Any = jax.devices()[0].client
    device = client.local_devices()[0]
    executable = client.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(data), _client.DeviceList((device,)), _client.CompileOptions()
    )
    arrays = [jax.device_put(value, device) for value in inputs]
    results = executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [np.asarray(result[0]) for result in results]

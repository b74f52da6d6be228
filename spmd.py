"""One plan for all devices of a mesh (SPMD), from a program that says how its tensors lie.

    program = girih.compile(source, mesh={"data": 2, "model": 4}, shardings={"x": ("data",)})
    program.save("model.girih")                    # mpiexec -n 8 girih run model.girih

The bundle keeps the program as it is annotated, so that it can be compiled for other meshes later;
`partition` gives the program of one device, and the pipeline of one device compiles it. Weights
that are cut are those of device 0 while compiling: no pass asks for their data, so that what was
made of them (packed orders) is then made again of each device's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .backends import SIMULATED
from .backends import find as find_backend
from .backends.cpu.machines import find
from .compilation import Compiled, compile_entries, tuner_for, with_variant
from .hlo.build import Builder
from .hlo.errors import UnsupportedError
from .hlo.graph import Attribute, Module, Region, Weight, signature_of
from .hlo.placement import cut_for
from .hlo.regions import rewritten
from .hlo.sharding import Sharding
from .hlo.types import TensorType
from .lowering import Progress
from .optimizer.machine import Machine
from .optimizer.sharding.budgets import limits
from .optimizer.sharding.interconnect import interconnect_of
from .optimizer.sharding.partition.program import WEIGHT, WHOLE
from .optimizer.tuning import Tuner
from .options import Options
from .partitioning import Partitioned, annotated_for, moved, partition_module
from .runtime.bundle import MAIN, MemoryParts, Parts
from .runtime.devices import family
from .runtime.distributed.launch import target_on
from .runtime.distributed.layout import MeshLayout
from .runtime.parts import copied_parts, encoded, module_weights
from .runtime.program import Program
from .simulated import simulated_gpu

Array = np.ndarray[Any, Any]


def compile_on(
    module: Module,
    mesh: Mapping[str, int | None],
    shardings: Mapping[str, Iterable[Any]] | str | None,
    targets: Sequence[str],
    options: Options,
    say: Progress,
    tuner: Tuner | None,
) -> Program:
    """The program of a module on a mesh, with code for each target; errors as for `partition`."""
    module, sizes = annotated_for(module, mesh, shardings, options.memory_limit)
    parts: Parts = MemoryParts(
        source=lambda: encoded(module),
        signatures={MAIN: signature_of(module)},
        weights=module_weights(module),
    )
    names = []
    for target in targets:
        parts, name = with_mesh(parts, module, sizes, target, options, say, tuner)
        names.append(name)
    simulate = targets[0].partition(":")[0] == SIMULATED
    return Program(
        parts, names[0], module=lambda: module, threads=options.threads, pin=options.pin,
        opened=False, comm_timeout=options.comm_timeout,
        driver=simulated_gpu(names[0]) if simulate else None,
    )  # fmt: skip


def with_mesh(
    parts: Parts,
    module: Module,
    mesh: Mapping[str, int | None] | None,
    target: str,
    options: Options,
    say: Progress = lambda stage: None,
    tuner: Tuner | None = None,
) -> tuple[Parts, str]:
    """The parts with code for a target on a mesh, and the name of that code.

    module: the annotated program that the parts hold. mesh: the sizes of its axes where they are
    to be others. For a mesh of one device, or with an axis without a size, the code is for one.
    """
    if _devices(module, mesh) <= 1:
        module = module if mesh is None else moved(module, mesh)
        known = tuner_for(parts, options)
        parts = with_variant(parts, {MAIN: module}, target, options, say, known)
        return parts, target
    say("partition")
    interconnect = interconnect_of(_machine(target, options), _devices(module, mesh))
    partitioned = partition_module(module, mesh, interconnect, options.memory_limit)
    if options.max_reshard is not None:
        partitioned.require_within(limits(options.max_reshard, partitioned.mesh.names))
    layout, local = _local(partitioned)
    count = partitioned.mesh.devices
    modules = [local.with_weights(_weights_of(local, module, layout, n)) for n in range(count)]
    made = compile_entries(lambda: {MAIN: modules[0]}, target, options, say, tuner)
    own = made.program.parts.variants[made.program.target]
    say("weights")
    read = {buffer.weight for buffer in made.program.plan.buffers if buffer.weight}
    weights = _of_each(sorted(read - {*layout.weights, *parts.weights}), made, modules)
    blocks = {name: block for name, block in layout.weights.items() if name in read}
    layout = replace(layout, weights=blocks)
    name = target_on(made.program.target, partitioned.mesh.axes)
    variants = {
        **parts.variants, name: replace(own, weights=weights, layout=layout.to_json())
    }  # fmt: skip
    provenance = parts.provenance or made.program.parts.provenance
    tuning = parts.tuning or made.program.parts.tuning
    return copied_parts(parts, variants=variants, provenance=provenance, tuning=tuning), name


def _machine(target: str, options: Options) -> Machine | None:
    """The machine whose devices send to each other; None for a target that has none."""
    if family(target) == "cpu":
        return find(options.machine)
    return None if target == "null" else find_backend(target, options).model


def _devices(module: Module, mesh: Mapping[str, int | None] | None) -> int:
    """The devices of the mesh of these sizes, of the module's own where none are given; 0 where a
    size is open."""
    if mesh is None:
        return max((own.devices for own in module.meshes.values() if own.static), default=0)
    return math.prod(size or 0 for size in mesh.values())


def _local(partitioned: Partitioned) -> tuple[MeshLayout, Module]:
    """How the program lies on its mesh, and the program of one device: blocks of weights, which
    are arguments there, are weights of their own, as yet without data."""
    local, mesh = partitioned.local, partitioned.mesh
    main, whole = local.main, signature_of(partitioned.decided)
    count = len(whole.arguments)
    placed = [_sharding(facts) for facts in main.argument_attributes]
    names = [str(facts.get(WEIGHT, "")) for facts in main.argument_attributes[count:]]
    blocks = {
        f"{name} {sharding}": (name, sharding)
        for name, sharding in zip(names, placed[count:], strict=True)
    }
    results = tuple(map(_sharding, main.result_attributes))
    layout = MeshLayout(mesh, tuple(placed[:count]), results, blocks)
    b = Builder(check=False)
    body = main.body
    kinds = [value.type for value in body.arguments[count:]]
    made = [b("weight", type=kind, weight=name) for name, kind in zip(blocks, kinds, strict=True)]
    renamed = dict(zip(body.arguments[count:], made, strict=True))
    rest = rewritten(body, renamed, lambda b, op, mapping: False, body.arguments)
    function = replace(
        main,
        body=Region(body.arguments[:count], [*b.ops, *rest.ops], rest.results),
        argument_attributes=main.argument_attributes[:count],  # `check_call_order` reads them
    )
    functions = {**local.functions, local.entry: function}
    signature = layout.signature(whole)
    given = [
        replace(one, aliases=None)  # another block has other memory
        if one.aliases is not None and signature.results[one.aliases].dims != one.dims
        else one
        for one in signature.arguments
    ]
    signature = replace(signature, arguments=tuple(given))
    return layout, replace(local, functions=functions, signature=signature)


def _weights_of(
    local: Module, module: Module, layout: MeshLayout, device: int
) -> dict[str, Weight]:
    """The weights of a device's program: whole ones, and its blocks of those that are cut."""
    found = dict(local.weights)
    for name, (base, sharding) in layout.weights.items():
        weight = module.weights[base]
        dims = sharding.local_dims(layout.mesh, weight.type.dims)

        def block(weight: Weight = weight, sharding: Sharding = sharding) -> Array:
            return np.asarray(cut_for(weight.array, sharding, layout.mesh, device), order="C")

        found[name] = Weight(name, block, TensorType(dims, weight.type.element))
    return found


def _of_each(names: Sequence[str], made: Compiled, modules: Sequence[Module]) -> dict[str, Array]:
    """What the code's own arrays are on each device: `name@2` of device 2, one `name` where they
    are the same on all. Equal arrays are one."""
    if not names:
        return {}
    remade = made.remade()
    if remade is None:
        raise UnsupportedError(
            "the data of the weights decides the code of this program, so that devices which hold "
            "different blocks cannot run one plan; leave the weights whole (shardings of arguments "
            "alone)"
        )
    known: dict[bytes, Array] = {}
    found: dict[str, list[Array]] = {name: [] for name in names}
    for module in modules:
        arrays = remade({MAIN: module})
        for name in names:
            array = arrays[name]
            state = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
            state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            found[name].append(known.setdefault(state.digest(), array))
    weights: dict[str, Array] = {}
    for name, arrays in found.items():
        if all(array is arrays[0] for array in arrays):
            weights[name] = arrays[0]
        else:
            weights |= {f"{name}@{device}": array for device, array in enumerate(arrays)}
    return weights


def _sharding(facts: Mapping[str, Attribute]) -> Sharding:
    kind = facts[WHOLE]
    assert isinstance(kind, TensorType) and kind.sharding is not None
    return kind.sharding

"""`torch.compile(model, backend="girih")`: graphs of TorchDynamo as girih programs.

A graph is compiled at its first call, and anew for each combination of sizes where TorchDynamo made
them symbolic. Parameters and buffers become weights of the program, which are read where they are;
when one of them changes, the graph is compiled anew. What girih cannot compile runs in PyTorch with
a warning, or is an error with `options={"fallback": False}`.

A graph runs where its tensors are: on the CPU, or on the NVIDIA GPU that all of them are on, for
whose architecture it is compiled. There, tensors are read where they lie (DLPack), results stay,
and all is in the order of PyTorch's current stream.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .frontends.torch.exported import Reader, array_of, decompositions, element_of, tensor_of
from .frontends.torch.lower import lower
from .frontends.torch.program import Input, Output, Program
from .hlo.errors import UserError
from .hlo.graph import Weight
from .hlo.signature import Tree
from .hlo.types import TensorType
from .options import Options
from .runtime.devices.architectures import target_for


@dataclass(frozen=True)
class Choices:
    """What `torch.compile(..., options={...})` may say besides the fields of `girih.Options`.

    fallback: run in PyTorch, with a warning, what girih cannot compile; False: raise the error.
    freeze: make parameters and buffers part of the program for inference. When one has changed,
        the graph is compiled anew and takes them at each call from then on, as with False. A
        change through `.data` is not seen.
    sizes: how many combinations of symbolic sizes are compiled per graph; the others fall back.
    """

    fallback: bool = True
    freeze: bool = True
    sizes: int = 16


class GirihWarning(UserWarning):
    """A graph runs in PyTorch because girih cannot compile it."""


def backend(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend that PyTorch's entry point `torch_dynamo_backends` names; torch.compile calls it.

    options: fields of `Choices` and of `girih.Options`; UserError for others, and for a mode.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.utils import get_static_address_type

    if mode not in (None, "default"):
        raise UserError(f"torch.compile: girih has no mode '{mode}'; give options instead")
    choices, compile_options = _chosen(dict(options or {}))
    fixed = []
    for tensor in example_inputs if choices.freeze else ():
        if _is_parameter(tensor) or get_static_address_type(tensor) is not None:
            fixed.append(tensor)
    own = [*graph_module.parameters(), *graph_module.buffers()] if choices.freeze else []
    weights = {id(tensor): tensor for tensor in (*fixed, *own)}

    def inference(graph: Any, inputs: Sequence[Any]) -> Any:
        return _Graph(graph, weights, choices, compile_options)

    def training(graph: Any, inputs: Sequence[Any]) -> Any:
        return _Graph(graph, {}, choices, compile_options)  # parameters change at each step

    compiled = aot_autograd(
        fw_compiler=training, bw_compiler=training, inference_compiler=inference,
        decompositions=decompositions(), keep_inference_input_mutations=False,
    )  # fmt: skip
    return compiled(graph_module, example_inputs)  # type: ignore[no-any-return]


def _chosen(given: dict[str, Any]) -> tuple[Choices, Options]:
    """The options of this backend and those of the compiler; UserError names unknown ones."""
    ours = {field.name for field in fields(Choices)}
    theirs = {field.name for field in fields(Options)}
    unknown = sorted(set(given) - ours - theirs)
    if unknown:
        known = ", ".join(sorted(ours | theirs))
        raise UserError(f"torch.compile: no option '{unknown[0]}'; there are {known}")
    try:
        return (
            Choices(**{key: value for key, value in given.items() if key in ours}),
            Options(**{key: value for key, value in given.items() if key in theirs}),
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"torch.compile: {error}") from None


def _is_parameter(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Parameter)


class _Graph:
    """One functional graph of ATen operators, compiled per combination of sizes; called with a
    list of arguments, which it may empty.
    """

    def __init__(
        self, graph: Any, weights: Mapping[int, Any], choices: Choices, options: Options
    ) -> None:
        self.graph, self.choices, self.options = graph, choices, options
        self.weights = dict(weights)
        self.places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.symbolic = any(_symbols(node.meta.get("val")) for node in self.places)
        self.programs: dict[Any, _Program | None] = {}
        self._boxed_call = True  # what PyTorch looks for, and copies with an object's own names

    def __call__(self, args: list[Any]) -> Any:
        sizes = self.sizes(args) if self.symbolic else {}
        key = tuple(sizes.items())
        program = self.programs.get(key)
        if program is not None and not program.is_current():
            program, self.weights = None, {}
            self.programs.clear()
        if program is None and key not in self.programs:
            program = self.programs[key] = self.compile(args, sizes)
        return self.graph(*args) if program is None else program(args)

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """The value of each symbol in the inputs."""
        found: dict[str, int] = {}
        for node, value in zip(self.places, args, strict=True):
            for axis, name in _symbols(node.meta.get("val")):
                found.setdefault(name, int(value if axis is None else value.shape[axis]))
        return found

    def compile(self, args: Sequence[Any], sizes: Mapping[str, int]) -> _Program | None:
        """A program for these arguments; None, with a warning, if PyTorch has to run the graph."""
        try:
            if len(self.programs) >= self.choices.sizes:
                raise UserError(f"more than {self.choices.sizes} combinations of sizes")
            return _Program(self.graph, self.places, self.weights, args, sizes, self.options)
        except UserError as error:
            if not self.choices.fallback:
                raise
            warnings.warn(f"girih: this graph runs in PyTorch: {error}", GirihWarning, stacklevel=4)
            return None


class _Program:
    """A compiled graph: arguments that are no weights go in, PyTorch's tensors come out."""

    def __init__(
        self,
        graph: Any,
        places: Sequence[Any],
        weights: Mapping[int, Any],
        args: Sequence[Any],
        sizes: Mapping[str, int],
        options: Options,
    ) -> None:
        import torch

        from .compiler import compile

        self.gpu = _gpu_of(args)
        target = "cpu"
        if self.gpu is not None:
            target = target_for(torch.cuda.get_device_capability(self.gpu))
        changed = _written(graph)
        frozen = [
            id(value) in weights and node.name not in changed
            for node, value in zip(places, args, strict=True)
        ]
        self.given = [
            at for at, (value, fixed) in enumerate(zip(args, frozen, strict=True))
            if isinstance(value, torch.Tensor) and not fixed
        ]  # fmt: skip
        self.frozen = [(args[at], _version(args[at])) for at, fixed in enumerate(frozen) if fixed]
        program, self.outputs = _program(graph, places, args, frozen, sizes)
        self.run = compile(lower(program), target=target, options=options)
        if self.gpu is not None:
            self.run = self.run.with_device(self.gpu)

    def is_current(self) -> bool:
        """Whether the weights are what they were."""
        return all(_version(tensor) == version for tensor, version in self.frozen)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        given = [_plain(args[at]) for at in self.given]
        if self.gpu is None:
            results, tensor = self.run(*given), tensor_of
        else:
            results, tensor = self.run.on_device(*[one.contiguous() for one in given]), _taken
        return [
            None if finish is None else finish(tensor(array))
            for finish, array in zip(self.outputs, results, strict=True)
        ]


def _gpu_of(args: Sequence[Any]) -> int | None:
    """The number of the GPU that tensors are on; None for the CPU. Numbers of no dims may be on the
    CPU in any case; UserError for several devices, and for others than NVIDIA's."""
    import torch

    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    devices = {tensor.device for tensor in tensors}
    cpu = torch.device("cpu")
    if devices <= {cpu}:
        return None
    if all(tensor.device != cpu or not tensor.dim() for tensor in tensors):
        devices.discard(cpu)
    names = ", ".join(sorted(map(str, devices)))
    if len(devices) > 1:
        raise UserError(f"tensors are on several devices: {names}")
    (device,) = devices
    if device.type != "cuda" or torch.version.hip is not None:
        raise UserError(f"a tensor is on {names}; girih compiles for CPUs and NVIDIA's GPUs")
    return torch.cuda.current_device() if device.index is None else int(device.index)


def _taken(array: Any) -> Any:
    """A result on a GPU as a tensor of the same memory, ready for PyTorch's current stream."""
    import torch

    return torch.from_dlpack(array)


def _version(tensor: Any) -> tuple[int, int]:
    """Changes when a tensor is written, or gets other memory."""
    return tensor.data_ptr(), tensor._version


def _plain(tensor: Any) -> Any:
    """What a program takes: no gradients, no lazy conjugation or negation."""
    return tensor.detach().resolve_conj().resolve_neg()


def _written(graph: Any) -> set[str]:
    """Inputs that the graph changes in place."""
    import torch

    return {
        node.args[0].name for node in graph.graph.nodes
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default
        and node.args[0].op == "placeholder"
    }  # fmt: skip


def _symbols(value: Any) -> list[tuple[int | None, str]]:
    """Where a placeholder tells a symbol: the number of a dimension, None for the value itself."""
    import torch

    if isinstance(value, torch.SymInt):
        return [(None, str(value.node.expr))] if value.node.expr.is_Symbol else []
    if not isinstance(value, torch.Tensor):
        return []
    return [
        (axis, str(size.node.expr)) for axis, size in enumerate(value.shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    ]  # fmt: skip


def _program(
    graph: Any,
    places: Sequence[Any],
    args: Sequence[Any],
    frozen: Sequence[bool],
    sizes: Mapping[str, int],
) -> tuple[Program, list[Any]]:
    """The graph as a reader's Program, and for each of its outputs what makes it of the program's
    result (None: it is None).
    """
    import torch

    reader = Reader(sizes)
    read = reader.graph(graph)
    tensors: dict[str, Weight] = {}
    inputs: list[Input] = []
    for node, value, fixed in zip(places, args, frozen, strict=True):
        if fixed:
            inputs.append(Input("weight", node.name, node.name))
            tensors[node.name] = _weight(node.name, value)
        elif isinstance(value, torch.Tensor):
            inputs.append(Input("user", node.name))
        else:
            inputs.append(Input("size", node.name, value=value))
    for name, value in reader.tensors.items():
        inputs.append(Input("constant", name, name))
        tensors[name] = _weight(name, value)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    given = output.args[0]
    kinds = [_result(one) for one in (given if isinstance(given, (tuple, list)) else (given,))]
    users = sum(1 for bound in inputs if bound.kind == "user")
    program = Program(
        graph=read, inputs=tuple(inputs), outputs=tuple(Output("user") for _ in kinds),
        tensors=tensors,
        input_tree=Tree.tuple_of(Tree.flat(users), Tree.dict_of({})),
        output_tree=Tree.flat(len(kinds)), name="graph",
    )  # fmt: skip
    return program, kinds


def _weight(name: str, tensor: Any) -> Weight:
    type = TensorType(tensor.shape, element_of(tensor.dtype))
    return Weight(name, lambda: array_of(tensor), type)


def _result(node: Any) -> Any:
    """What makes a graph's result of the program's, a tensor; None where there is none."""
    if not hasattr(node, "meta"):
        return None if node is None else lambda tensor: node
    value = node.meta.get("val")
    if not hasattr(value, "stride"):
        return lambda tensor: tensor.item()  # a size
    dense = _is_dense(value)

    def finished(tensor: Any) -> Any:
        import torch

        if dense:
            return tensor
        order = sorted(range(tensor.dim()), key=lambda d: -int(strides[d]))
        steps = _strides(tensor.shape, order)
        like = torch.empty_strided(tensor.shape, steps, dtype=tensor.dtype, device=tensor.device)
        return like.copy_(tensor)

    strides = [size if isinstance(size, int) else 1 << 40 for size in value.stride()]
    return finished


def _is_dense(value: Any) -> bool:
    """Whether PyTorch would lay the result out in row-major order."""
    strides = [size if isinstance(size, int) else None for size in value.stride()]
    return None in strides or bool(value.is_contiguous())


def _strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of a dense tensor whose dims lie in that order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * max(int(shape[axis]), 1)
    return strides

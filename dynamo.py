"""`torch.compile(model, backend="girih")`: graphs of TorchDynamo as girih programs.

A graph is compiled at its first call. Where TorchDynamo made sizes symbolic, one program serves all
of them (`call_sizes.py`), or, with a warning, one each where girih has no such code. Parameters and
buffers become weights of the program, which are read where they are; when one of them changes, the
graph is compiled anew. What a graph changes in place is overwritten where it lies. What girih
cannot compile runs in PyTorch with a warning, or is an error with `options={"fallback": False}`.

Random numbers of a graph follow from a seed that PyTorch's default generator draws at each call.

A graph runs where its tensors are: on the CPU, or on the NVIDIA GPU that all of them are on, for
whose architecture it is compiled. There, tensors are read where they lie (DLPack), results stay,
and all is in the order of PyTorch's current stream.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from .call_sizes import Chosen, bounded, fixed, opened, warn
from .compiler import compile
from .frontends.torch.exported import GraphReader, array_of, decompositions, element_of, tensor_of
from .frontends.torch.graph_sizes import dims_of, guards_of, places_of
from .frontends.torch.lower import lower
from .frontends.torch.program import Graph, Input, Node, Output, Ref, TorchProgram
from .hlo.errors import CompilerBug, UserError
from .hlo.graph import Weight
from .hlo.sizes import Symbol
from .hlo.symbols import Dim, SymbolicDim, bound, symbols_of
from .hlo.trees import Tree
from .hlo.types import UI8, TensorType
from .options import Options
from .runtime.devices.architectures import target_for


@dataclass(frozen=True)
class Choices:
    """What `torch.compile(..., options={...})` may say besides the fields of `girih.Options`.

    fallback: run in PyTorch, with a warning, what girih cannot compile; False: raise the error.
    freeze: make parameters and buffers part of the program for inference. When one has changed,
        the graph is compiled anew and takes them at each call from then on, as with False. A
        change through `.data` is not seen.
    sizes: how many combinations of symbolic sizes are compiled per graph where girih has no code
        that serves all of them, which is a warning, or an error with `strict`; the others fall
        back.
    """

    fallback: bool = True
    freeze: bool = True
    sizes: int = 16


_KEPT = 4096  # combinations of sizes of which a graph remembers the program


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
        return _FunctionalGraph(graph, weights, choices, compile_options)

    def training(graph: Any, inputs: Sequence[Any]) -> Any:
        return _FunctionalGraph(
            graph, {}, choices, compile_options
        )  # parameters change at each step

    compiled = aot_autograd(
        fw_compiler=training, bw_compiler=training, inference_compiler=inference,
        decompositions=decompositions(), keep_inference_input_mutations=True,
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


class _FunctionalGraph:
    """One functional graph of ATen operators; called with a list of arguments, which it may empty.

    Where TorchDynamo made sizes symbolic, one program serves all calls of which some sizes are
    equal and others are not, up to a largest value; another is compiled where a call leaves that.
    """

    def __init__(
        self, graph: Any, weights: Mapping[int, Any], choices: Choices, options: Options
    ) -> None:
        self.graph, self.choices, self.options = graph, choices, options
        self.weights = dict(weights)
        self.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.places = places_of(self.inputs)
        self.opens = bool(self.places)  # whether calls decide sizes of its programs
        self.programs: list[_GraphProgram] = []
        self.refused = 0  # combinations of sizes that have none
        self.known: OrderedDict[tuple[int, ...], _GraphProgram | None] = OrderedDict()
        self._boxed_call = True  # what PyTorch looks for, and copies with an object's own names

    def __call__(self, args: list[Any]) -> Any:
        sizes = tuple([one.of_call(args) for one in self.places])
        program = self.known.get(sizes)
        if program is None or not program.is_current():
            program = self.find(args, sizes)
        return self.graph(*args) if program is None else program(args, sizes)

    def find(self, args: Sequence[Any], sizes: tuple[int, ...]) -> _GraphProgram | None:
        """The program for these arguments, made where there is none; None: PyTorch runs them."""
        if any(not program.is_current() for program in self.programs):
            self.weights = {}
            self.programs.clear()
            self.known.clear()
        if sizes in self.known:
            return self.known[sizes]
        found = next((one for one in self.programs if one.admits(sizes)), None)
        if found is None:
            found = self.compile(args, sizes)
        self.known[sizes] = found
        if len(self.known) > _KEPT:
            self.known.popitem(last=False)
        return found

    def compile(self, args: Sequence[Any], sizes: tuple[int, ...]) -> _GraphProgram | None:
        """A program for these arguments; None, with a warning, if PyTorch has to run the graph."""
        try:
            if self.opens and (program := self.compile_open(args, sizes)) is not None:
                return program
            if self.places and len(self.programs) + self.refused >= self.choices.sizes:
                raise UserError(f"more than {self.choices.sizes} combinations of sizes")
            return self.made(args, sizes, fixed(sizes))
        except UserError as error:
            if not self.choices.fallback:
                raise
            self.refused += 1
            warn(f"this graph runs in PyTorch: {error}", 4)
            return None

    def compile_open(self, args: Sequence[Any], sizes: tuple[int, ...]) -> _GraphProgram | None:
        """A program that serves other sizes, too; None, with a warning, if girih has no code for
        that."""
        before = [program.chosen for program in self.programs]
        said = [
            one.said if size >= 0 else None for one, size in zip(self.places, sizes, strict=True)
        ]
        try:
            return self.made(args, sizes, opened(said, sizes, before))
        except (UserError, CompilerBug) as error:
            if self.options.strict:
                raise
            self.opens = False
            warn(f"each size of this graph is compiled on its own: {error}", 5)
            return None

    def made(self, args: Sequence[Any], sizes: tuple[int, ...], chosen: Chosen) -> _GraphProgram:
        """A program, which is kept; `torch._dynamo.utils.counters["girih"]` has how many there are,
        and the milliseconds that they took."""
        from torch._dynamo.utils import counters

        begin = time.perf_counter()
        before = [program.chosen for program in self.programs]
        program = _GraphProgram(self, args, sizes, chosen, before)
        counters["girih"]["programs"] += 1
        counters["girih"]["milliseconds"] += round(1e3 * (time.perf_counter() - begin))
        self.programs.append(program)
        return program


class _GraphProgram:
    """A compiled graph: arguments that are no weights go in, PyTorch's tensors come out."""

    def __init__(
        self,
        owner: _FunctionalGraph,
        args: Sequence[Any],
        sizes: Sequence[int],
        chosen: Chosen,
        before: Sequence[Chosen],
    ) -> None:
        import torch

        graph, weights = owner.graph, owner.weights
        self.gpu = _gpu_of(args)
        target = "cpu"
        if self.gpu is not None:
            target = target_for(torch.cuda.get_device_capability(self.gpu))
        changed = _written(graph)
        frozen = [
            id(value) in weights and node.name not in changed
            for node, value in zip(owner.inputs, args, strict=True)
        ]
        self.given = [
            at for at, (value, fixed) in enumerate(zip(args, frozen, strict=True))
            if isinstance(value, torch.Tensor) and not fixed
        ]  # fmt: skip
        self.frozen = [(args[at], _version(args[at])) for at, fixed in enumerate(frozen) if fixed]
        values = dict(zip((one.symbol for one in owner.places), chosen.dims, strict=True))
        read = _read(graph, owner.inputs, args, frozen, values, chosen.ranges)
        self.outputs, self.updates, self.told = read.outputs, read.updates, read.told
        module = lower(read.program, keeps_generator=False)
        # A program that draws random numbers takes the state of its generator as well, the last.
        self.draws = len(module.body.arguments) > len(self.given) + len(self.told)
        if self.updates and module.signature is not None:
            first = len(module.signature.results) - len(self.updates)
            replaced = {self.given.index(at): first + n for n, at in enumerate(self.updates)}
            module = replace(module, signature=module.signature.donating(replaced))
        if chosen.ranges:
            guards = guards_of(graph, values)
            module = replace(module, constraints=(*module.constraints, *guards))
            module, chosen = bounded(module, chosen, sizes, before)
        self.chosen, self.admits = chosen, chosen.admits
        self.run = compile(module, target=target, options=owner.options)
        if self.gpu is not None:
            self.run = self.run.with_device(self.gpu)

    def is_current(self) -> bool:
        """Whether the weights are what they were."""
        return all(_version(tensor) == version for tensor, version in self.frozen)

    def __call__(self, args: Sequence[Any], sizes: tuple[int, ...]) -> list[Any]:
        values = self.chosen.values(sizes)
        if self.gpu is None:
            given = [array_of(args[at]) for at in self.given]
            given += [np.empty((values[name], 0), np.uint8) for name in self.told]
            if self.draws:
                given.append(array_of(_drawn_seed()))
            found = self.run.donate(*given) if self.updates else self.run.call_flat(given)
            tensor = tensor_of
        else:
            import torch

            there = [_plain(args[at]).contiguous() for at in self.given]
            there += [
                there[0].new_empty((values[name], 0), dtype=torch.uint8) for name in self.told
            ]
            if self.draws:
                there.append(_drawn_seed().to(there[0].device))
            found, tensor = self.run.on_device(*there), _taken
        results = iter(found)
        outputs = [one.finished(values, results, tensor) for one in self.outputs]
        for at, result in zip(self.updates, results, strict=True):
            _update(args[at], tensor(result))
        return outputs


def _drawn_seed() -> Any:
    """The state of a generator for one call, ui64[2]: a seed that PyTorch's default generator
    draws, so that torch.manual_seed decides it, and no calls before."""
    import torch

    seed = torch.zeros(2, dtype=torch.int64)
    seed[0] = torch.randint(-(1 << 63), (1 << 63) - 1, ())
    return seed.view(torch.uint64)


def _update(tensor: Any, value: Any) -> None:
    """Give an argument its new value, which may lie in its memory already."""
    import torch

    if tensor.data_ptr() != value.data_ptr() or tensor.stride() != value.stride():
        tensor.detach().copy_(value)
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


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


class _GraphRead(NamedTuple):
    """A graph as a reader's TorchProgram, whose results are those of `outputs` that are tensors,
    and behind them the new values of the arguments `updates`. Behind its tensors it takes one of no
    bytes, [size, 0], for each of the sizes `told`, which no other has."""

    program: TorchProgram
    outputs: list[_Output]
    updates: list[int]
    told: list[str]


def _read(
    graph: Any,
    places: Sequence[Any],
    args: Sequence[Any],
    frozen: Sequence[bool],
    sizes: Mapping[str, Dim],
    ranges: Mapping[str, Symbol],
) -> _GraphRead:
    import torch

    reader = GraphReader(sizes)
    read = reader.graph(graph)
    tensors: dict[str, Weight] = {}
    inputs: list[Input] = []
    for node, value, is_frozen in zip(places, args, frozen, strict=True):
        if is_frozen:
            inputs.append(Input("weight", node.name, node.name))
            tensors[node.name] = _weight(node.name, value)
        elif isinstance(value, torch.Tensor):
            inputs.append(Input("user", node.name))
        else:
            said = node.meta.get("val")
            size = dims_of([said], sizes)[0] if isinstance(said, torch.SymInt) else value
            inputs.append(Input("size", node.name, value=size))
    for name, value in reader.tensors.items():
        inputs.append(Input("constant", name, name))
        tensors[name] = _weight(name, value)
    known = {
        name for one in inputs if one.kind == "user" and one.name in read.types
        for dim in read.types[one.name].dims for name in symbols_of(dim)
    }  # fmt: skip
    told = [name for name in ranges if name not in known]
    inputs += [Input("user", f"size {name}") for name in told]
    read = replace(
        read, inputs=(*read.inputs, *(f"size {name}" for name in told)),
        types={
            **read.types,
            **{f"size {name}": TensorType((SymbolicDim(name), 0), UI8) for name in told},
        },
    )  # fmt: skip
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    given = output.args[0]
    nodes = given if isinstance(given, (tuple, list)) else (given,)
    outputs = [_output(one, sizes) for one in nodes]
    updates, read = _without_updates(read, [node.name for node in places])
    kept = [one for one, made in zip(read.outputs, outputs, strict=True) if made.kind == "tensor"]
    kept += updates.values()
    users = sum(1 for bound in inputs if bound.kind == "user")
    program = TorchProgram(
        graph=replace(read, outputs=tuple(kept)), inputs=tuple(inputs),
        outputs=tuple(Output("user") for _ in kept), tensors=tensors,
        input_tree=Tree.tuple_of(Tree.flat(users), Tree.dict_of({})),
        output_tree=Tree.flat(len(kept)), symbols=ranges, name="graph",
    )  # fmt: skip
    return _GraphRead(program, outputs, list(updates), told)


def _without_updates(graph: Graph, names: Sequence[str]) -> tuple[dict[int, Ref], Graph]:
    """What a graph writes into its arguments at its end, by number, and the graph without that."""
    found: dict[int, Ref] = {}
    values: dict[str, Ref] = {}  # of arguments that are written, and of the nodes that do it
    nodes: list[Node] = []
    numbers = {name: number for number, name in enumerate(names)}
    for node in graph.nodes:
        args = _renamed(node.args, values)
        at = node.args[0] if node.args else None
        if node.target == _COPY and isinstance(at, Ref) and at.name in numbers:
            value = args[1]
            if not isinstance(value, Ref) or graph.types[at.name] != graph.types[value.name]:
                raise UserError("the graph changes an argument to a value of another type")
            found[numbers[at.name]] = value
            values.update(dict.fromkeys((at.name, *node.outputs), value))
        else:
            kwargs = {key: _renamed(item, values) for key, item in node.kwargs.items()}
            nodes.append(replace(node, args=args, kwargs=kwargs))
    outputs = _renamed(graph.outputs, values)
    return found, replace(graph, nodes=tuple(nodes), outputs=outputs)


def _renamed(argument: Any, values: Mapping[str, Ref]) -> Any:
    if isinstance(argument, Ref):
        return values.get(argument.name, argument)
    if type(argument) is tuple:
        return tuple(_renamed(part, values) for part in argument)
    return argument


_COPY = "aten.copy_.default"


def _weight(name: str, tensor: Any) -> Weight:
    type = TensorType(tensor.shape, element_of(tensor.dtype))
    return Weight(name, lambda: array_of(tensor), type)


class _Output(NamedTuple):
    """What a graph gives: a "tensor", of strides that are not row-major; a "size"; or a "value",
    which is no tensor."""

    kind: str
    value: Any = None
    shape: tuple[Dim, ...] = ()
    strides: tuple[Dim, ...] | None = None  # None: row-major

    def finished(self, sizes: Mapping[str, int], results: Iterator[Any], tensor: Any) -> Any:
        """The output, of the program's next result where it is a tensor."""
        if self.kind == "tensor":
            found = tensor(next(results))
            return found if self.strides is None else self.laid_out(found, sizes)
        return bound(self.value, sizes) if self.kind == "size" else self.value

    def laid_out(self, tensor: Any, sizes: Mapping[str, int]) -> Any:
        """The result in PyTorch's memory order."""
        import torch

        strides = [bound(stride, sizes) for stride in self.strides or ()]
        order = sorted(range(tensor.dim()), key=lambda d: -strides[d])
        steps = _strides(tensor.shape, order)
        like = torch.empty_strided(tensor.shape, steps, dtype=tensor.dtype, device=tensor.device)
        return like.copy_(tensor)


def _output(node: Any, sizes: Mapping[str, Dim]) -> _Output:
    """What becomes of one of the graph's outputs; UserError for sizes that it cannot tell."""
    import torch

    if not hasattr(node, "meta"):
        return _Output("value", node)
    value = node.meta.get("val")
    if isinstance(value, int):
        return _Output("value", value)
    try:
        if isinstance(value, torch.SymInt):
            return _Output("size", dims_of([value], sizes)[0])
        shape, strides = dims_of(value.shape, sizes), dims_of(value.stride(), sizes)
    except ValueError as error:
        raise UserError(f"the graph returns a size that programs cannot tell: {error}") from None
    usual = _strides(shape, range(len(shape)))
    plain = all(
        one == two or size == 1 for one, two, size in zip(strides, usual, shape, strict=True)
    )
    return _Output("tensor", None, shape, None if plain or 0 in shape else strides)


def _strides(shape: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Strides of a dense tensor whose dims lie in that order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * (max(shape[axis], 1) if isinstance(shape[axis], int) else shape[axis])
    return strides

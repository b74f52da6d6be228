"""Joint graphs: the export of a model that gives a loss becomes one of the loss and its gradients.

PyTorch's own (`torch.export.experimental._export_forward_backward`) forgets the lines of the model,
and refuses weights that are tied and parameters that the loss does not depend on. Here the export
is run once more under autograd, which is traced; what a backward function computes has the line of
the operation that it belongs to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...hlo.errors import UserError
from .exported import decompositions, identity
from .failures import export_failure, graph_place


def joint_graph(exported: Any, loss: int = 0) -> Any:
    """The `torch.export.ExportedProgram` of forward and backward of an export.

    exported: a `torch.export.ExportedProgram`. loss: which of its results, as a flat list, is the
    loss: a float of rank 0 (or of one element) that depends on a parameter that requires gradients.
    Compiled, the program gives a pair: what the model returns, and a dict of the gradients of the
    loss by the names of parameters (of tied ones, the first name) and the paths of inputs that
    required gradients when they were exported. What the loss does not depend on has no gradient.
    UserError for other sources and losses.
    """
    import torch

    if not isinstance(exported, torch.export.ExportedProgram):
        kind = type(exported).__name__
        raise UserError(f"joint_graph: a {kind} is no torch.export.ExportedProgram")
    if exported.graph_signature.backward_signature is not None:
        raise UserError("joint_graph: the export is a joint graph already")
    try:
        with torch.enable_grad():
            return _traced(exported, loss)
    except UserError:
        raise
    except Exception as error:  # of many kinds; the whole story stays attached
        raise UserError(
            f"{graph_place(error)}PyTorch cannot trace the gradients of this export: "
            f"{export_failure(error)}"
        ) from error


def _traced(exported: Any, loss: int) -> Any:
    """The joint graph, which may write in place where the export does, or PyTorch's own
    decompositions."""
    import torch
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch.fx import traceback
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.graph import CodeGen

    signature, graph = exported.graph_signature, exported.graph_module
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    given = [node.meta["val"] for node in inputs]
    learned = _learned(exported, given)
    users = [n for n, spec in enumerate(signature.output_specs) if spec.kind.name == "USER_OUTPUT"]
    if not 0 <= loss < len(users):
        raise UserError(f"joint_graph: no result {loss}; the export has {len(users)}")
    found: list[int] = []  # the inputs that have gradients

    def step(*values: Any) -> list[Any]:
        leaves = [
            value.detach().requires_grad_() if first == n else value
            for n, (value, first) in enumerate(zip(values, learned, strict=True))
        ]
        for n, first in enumerate(learned):
            if first is not None:
                leaves[n] = leaves[first]
        forward = _forward(graph)
        results = forward.run(*leaves)
        value = _scalar(results[users[loss]], loss)
        forward.follow(value.grad_fn)
        asked = [n for n, first in enumerate(learned) if first == n]
        slopes = torch.autograd.grad(value, [leaves[n] for n in asked], allow_unused=True)
        told = [(n, slope) for n, slope in zip(asked, slopes, strict=True) if slope is not None]
        found[:] = [n for n, _ in told]
        plain = [r.detach() if isinstance(r, torch.Tensor) else r for r in results]
        return [*plain, *(slope for _, slope in told)]

    mode = detect_fake_mode(given)
    assert mode is not None
    with (
        mode,
        traceback.preserve_node_meta(),
        enable_python_dispatcher(),
        warnings.catch_warnings(),  # of PyTorch about its own use of itself
    ):
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False):  # its LSTM's gradient is opaque
            joint = make_fx(step, decompositions())(*given)
    joint.graph.set_codegen(CodeGen())  # of plain arguments, as exports have it
    joint.graph.eliminate_dead_code()
    return exported._update(joint, _signature(signature, joint, inputs, users[loss], found))


def _learned(exported: Any, given: Sequence[Any]) -> list[int | None]:
    """For each input that gradients are asked of, the first that is the same tensor."""
    firsts: dict[Any, int] = {}
    found: list[int | None] = []
    for n, spec in enumerate(exported.graph_signature.input_specs):
        value = given[n]
        if spec.kind.name == "PARAMETER":
            value = exported.state_dict[spec.target]
        asked = spec.kind.name in ("PARAMETER", "USER_INPUT") and getattr(
            value, "requires_grad", False
        )
        tied = identity(spec.target, value) if spec.kind.name == "PARAMETER" else n
        found.append(firsts.setdefault(tied, n) if asked else None)
    return found


def _scalar(value: Any, number: int) -> Any:
    """The loss; UserError if it is none."""
    import torch

    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise UserError(f"joint_graph: result {number} is no loss, a float of rank 0, but {shape}")
    if not value.requires_grad:
        raise UserError(
            f"joint_graph: result {number} depends on no parameter that requires gradients"
        )
    return value


def _forward(graph: Any) -> Any:
    """An interpreter of a graph that remembers which node made which functions of autograd."""
    import torch
    from torch.fx import traceback

    autograd: Any = torch.autograd
    kept = ("stack_trace", "nn_module_stack")

    class Forward(torch.fx.Interpreter):
        def __init__(self) -> None:
            super().__init__(graph)
            self.made: dict[int, Any] = {}

        def run_node(self, n: Any) -> Any:
            first = autograd._get_sequence_nr()
            result = super().run_node(n)
            last = autograd._get_sequence_nr()
            self.made.update(dict.fromkeys(range(first, last), n))
            return result

        def follow(self, root: Any) -> None:
            """From now on, what a backward function runs is noted under its node's line, and what
            stands in front of them all under that of the loss."""
            for function in _functions(root):
                if (node := self.made.get(function._sequence_nr())) is not None:
                    said = {key: node.meta[key] for key in kept if key in node.meta}
                    function.register_prehook(_entering(said))
                    if function is root:
                        _entering(said)(())

    def _entering(said: dict[str, Any]) -> Any:
        return lambda slopes: traceback.get_current_meta().update(said)

    return Forward()


def _functions(root: Any) -> Iterator[Any]:
    """All functions of autograd from the loss's on."""
    seen, waiting = {root}, [root]
    while waiting:
        function = waiting.pop()
        yield function
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _signature(
    signature: Any, joint: Any, inputs: Sequence[Any], loss: int, found: Sequence[int]
) -> Any:
    """The signature with the joint graph's names, the loss, and gradients of the found inputs."""
    from torch.export.graph_signature import (
        ExportGraphSignature,
        OutputKind,
        OutputSpec,
        TensorArgument,
    )

    nodes = [node for node in joint.graph.nodes if node.op == "placeholder"]
    for old, node in zip(inputs, nodes, strict=True):
        node._rename(old.name)
        node.target, node.meta["val"] = node.name, old.meta["val"]
    joint.recompile()
    renamed = {old.name: node.name for old, node in zip(inputs, nodes, strict=True)}
    given = [
        replace(spec, arg=replace(spec.arg, name=node.name))
        for spec, node in zip(signature.input_specs, nodes, strict=True)
    ]
    results = joint.graph.output_node().args[0]
    own = signature.output_specs
    outputs = [
        replace(
            spec,
            kind=OutputKind.LOSS_OUTPUT if n == loss else spec.kind,
            arg=replace(spec.arg, name=node.name) if hasattr(node, "name") else spec.arg,
            target=renamed.get(spec.target, spec.target),
        )
        for n, (spec, node) in enumerate(zip(own, results[: len(own)], strict=True))
    ]
    for n, node in zip(found, results[len(own) :], strict=True):
        spec = signature.input_specs[n]
        of_parameter = spec.kind.name == "PARAMETER"
        kind = (
            OutputKind.GRADIENT_TO_PARAMETER if of_parameter else OutputKind.GRADIENT_TO_USER_INPUT
        )
        target = spec.target if of_parameter else nodes[n].name
        outputs.append(OutputSpec(kind, TensorArgument(name=node.name), target))
    return ExportGraphSignature(input_specs=given, output_specs=outputs)

"""Whole models from PyTorch: structure, state, weights, control flow, and the zoo in small."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch.nn import functional as F
from torch.utils import _pytree

import girih
from girih.frontends.torch import lowerings, shard_operator
from girih.frontends.torch.exported import array_of
from girih.frontends.torch.functional import MAYBE_VIEWS, VIEWS, operator
from girih.frontends.torch.importing import import_torch
from girih.frontends.torch.lowerings import LOWERINGS
from girih.hlo.errors import ImportBlockers, UserError
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.stated_sizes import with_stated_sizes
from girih.hlo.symbols import SymbolicDim
from girih.hlo.verify import verify
from girih.kernels import torch_operator
from models import ZOO, relative_error

TORCH_ZOO = [model for model in ZOO if model.framework == "torch"]


def normal(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(len(dims)))


def exported(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, inputs, dict(keywords or {}), strict=False, **more)


def saved(program: Any) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def without_name(module: Module) -> list[str]:
    return str(module).split("\n")[1:]


def compare(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    tolerance: float = 2e-6,
    file: bool = True,
) -> Module:
    """The imported program gives the model's numbers, and what it writes; a file gives the same."""
    fresh = copy.deepcopy(model)
    given, named = copy.deepcopy((inputs, dict(keywords or {})))
    with torch.no_grad():
        expected = _pytree.tree_leaves(fresh(*given, **named))
    program = exported(model, inputs, keywords)
    module = import_torch(program)
    verify(module)
    signature = module.signature
    assert signature is not None
    flat = [array_of(x) for x in signature.flatten(inputs, dict(keywords or {}))]
    results = interpret(module, [*flat, *initial(module)])
    wanted = [array_of(x) for x in expected if isinstance(x, torch.Tensor)]
    buffers = dict(fresh.named_buffers())
    wanted += [array_of(buffers[name]) for name in signature.state if name in buffers]
    assert len(results) >= len(wanted)
    for actual, right in zip(results, wanted, strict=False):
        assert actual.dtype == right.dtype
        assert relative_error(actual, right) <= tolerance
    if file:
        assert without_name(import_torch(saved(program))) == without_name(module)
    return module


def initial(module: Module) -> list[Any]:
    """What the buffers that a program changes begin with."""
    assert module.signature is not None
    return [
        np.array(module.weights[argument.default or ""].array)
        for argument in module.signature.arguments
        if argument.state is not None
    ]


class Calls(nn.Module):
    """A function with modules inside."""

    def __init__(self, body: Any, **modules: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.body(self, *inputs, **keywords)


# The zoo.


@pytest.mark.parametrize("entry", TORCH_ZOO, ids=lambda entry: entry.name)
def test_zoo_model_in_one_layer(entry: Any) -> None:
    """The import agrees with PyTorch, decomposed or not, and a file says the same."""
    shallow = "layers" in inspect.signature(entry.build).parameters and entry.name != "mobilenet-v2"
    built = entry.build(layers=1) if shallow else entry.build()
    program = exported(built.source, built.inputs)
    module = import_torch(program)
    verify(module)
    results = interpret(module, built.flat_inputs())
    reference = built.reference()
    assert len(results) == len(reference)
    for actual, right in zip(results, reference, strict=True):
        assert relative_error(actual, right) <= 1e-4
    assert without_name(import_torch(saved(program))) == without_name(module)
    core = program.run_decompositions()
    from_core = import_torch(core)
    assert without_name(import_torch(saved(core))) == without_name(from_core)
    for actual, right in zip(interpret(from_core, built.flat_inputs()), reference, strict=True):
        assert relative_error(actual, right) <= 1e-4


# Layers.


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers(kind: Any, bidirectional: bool) -> None:
    torch.manual_seed(0)
    layers = kind(6, 7, num_layers=2, bidirectional=bidirectional, batch_first=True).eval()
    module = compare(layers, (normal(2, 5, 6),))
    assert sum(op.name == "while" for op in module.body.ops) == (4 if bidirectional else 2)


def test_recurrent_layer_without_biases_with_state() -> None:
    state = (normal(1, 2, 7), normal(1, 2, 7) * 0.5)
    module = compare(nn.LSTM(6, 7, bias=False).eval(), (normal(5, 2, 6), state))
    assert module.signature is not None
    paths = [argument.path for argument in module.signature.arguments]
    assert paths == ["input", "hx[0]", "hx[1]"]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind: Any) -> None:
    torch.manual_seed(0)
    compare(kind(6, 7).eval(), (normal(2, 6),))


def test_transformer_layers() -> None:
    torch.manual_seed(0)
    compare(
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval(), (normal(2, 5, 8), normal(2, 3, 8))
    )
    compare(nn.MultiheadAttention(8, 2, batch_first=True).eval(), (normal(2, 5, 8),) * 3)


def test_linear_contracts_the_weight_in_place() -> None:
    module = compare(nn.Linear(6, 4), (normal(2, 3, 6),))
    assert not any(op.name == "transpose" for op in module.walk())
    (dot,) = [op for op in module.walk() if op.name == "dot_general"]
    assert dot.rhs_contracting_dimensions == (1,) and dot.type.dims == (2, 3, 4)
    core = import_torch(exported(nn.Linear(6, 4), (normal(2, 6),)).run_decompositions())
    assert not any(op.name == "transpose" for op in core.walk())


def test_bfloat16_model() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)).to(torch.bfloat16).eval()
    module = compare(model, (normal(4, 6).to(torch.bfloat16),), tolerance=2e-2)
    assert all(weight.array.dtype.name == "bfloat16" for weight in module.weights.values())


# Weights.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def test_tied_weights_are_one_weight() -> None:
    model = Tied().eval()
    program = exported(model, (torch.tensor([[1, 2]]),))
    for module in (import_torch(program), import_torch(saved(program))):
        (weight,) = module.weights.values()
        assert {weight.name, *weight.aliases} == {"table.weight", "head.weight"}
        assert sum(op.name == "weight" for op in module.walk()) == 1


def test_weights_share_the_memory_of_the_model() -> None:
    model = nn.Linear(3, 2)
    weight = import_torch(model, normal(1, 3)).weights["weight"]
    assert np.shares_memory(weight.array, model.weight.detach().numpy())


def test_small_constants_are_part_of_the_program_and_large_ones_are_weights() -> None:
    def body(_: Any, x: torch.Tensor) -> torch.Tensor:
        return (
            x + torch.tensor([1.0, 2.0]) + torch.tensor(list(range(2048)), dtype=torch.float32)[:2]
        )

    module = compare(Calls(body).eval(), (normal(2),))
    (weight,) = module.weights.values()
    assert weight.type.dims == (2048,)


# State.


class Cache(nn.Module):
    count: torch.Tensor
    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(4, 2), persistent=False)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.cache[1:3] = x
        self.cache.index_copy_(0, place, x[:1])
        return self.cache * 1 + self.count.sum()


def test_changed_buffers_are_extra_results() -> None:
    inputs = (normal(2, 2), torch.tensor([0]))
    module = compare(Cache(), inputs)
    assert module.signature is not None and module.signature.state == ("count", "cache")
    core = import_torch(exported(Cache(), inputs).run_decompositions())
    assert core.signature is not None and core.signature.state == ("count", "cache")
    flat = [*(array_of(x) for x in inputs), *initial(module)]
    for left, right in zip(interpret(module, flat), interpret(core, flat), strict=True):
        np.testing.assert_array_equal(left, right)


def test_batch_norm_in_training_returns_its_statistics() -> None:
    model = nn.BatchNorm1d(6).train()
    module = compare(model, (normal(8, 6),), file=False)
    assert module.signature is not None
    assert module.signature.state == ("running_mean", "running_var", "num_batches_tracked")


def test_changed_input_is_named_by_its_path() -> None:
    def body(_: Any, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return x["a"].add_(1) * 2

    program = exported(Calls(body), ({"a": normal(3)},))
    for said in (program, program.run_decompositions()):
        signature = import_torch(said).signature
        assert signature is not None and signature.state == (signature.arguments[0].path,)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda x: x.reshape(-1).add_(1), "may be a view"),
        (lambda x: torch.chain_matmul(x).add_(1), "may be a view"),
        (lambda x: x.expand(2, 3, 4)[0].add_(1), "through expand"),
    ],
)
def test_unclear_writes_are_left_to_pytorch_and_blocked_in_files(write: Any, words: str) -> None:
    def body(_: Any, x: torch.Tensor) -> Any:
        y = x * 1
        return write(y), y * 2

    program = exported(Calls(body), (normal(3, 4),))
    with pytest.raises(ImportBlockers, match=words):
        import_torch(saved(program))
    results = interpret(import_torch(program), [normal(3, 4).numpy()])
    with torch.no_grad():
        for actual, right in zip(results, body(None, normal(3, 4)), strict=True):
            np.testing.assert_allclose(actual, right.numpy(), rtol=1e-6)


def test_a_product_of_matrices_may_be_changed_in_place() -> None:
    def body(_: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.chain_matmul(x, y).add_(1), x * 2

    compare(Calls(body), (normal(3, 4), normal(4, 3)))


def test_each_operator_has_one_lowering() -> None:
    """Only the rooms of sizes from data stand in front of others, which they call."""
    rooms: dict[str, str] = {}
    for room in lowerings._ROOMS:
        for target in room.TABLE:
            before = rooms.setdefault(target, room.__name__)
            assert before == room.__name__ or room is lowerings.data_parts, (target, before)


def overloads() -> list[tuple[str, Any]]:
    """Every operator that has a lowering, with PyTorch's own description of it."""
    torch_operator()  # ours exist once they are asked for, those of others with their modules
    shard_operator.operator()
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    importlib.import_module("transformers.integrations.moe")
    importlib.import_module("torch.nn.modules.linear_cross_entropy")
    found = []
    for target in LOWERINGS:
        if target.count(".") == 2:
            space, name, kind = target.split(".")
            operators = getattr(torch.ops, space)
            packet = getattr(operators, name, None)
            if packet is None or kind not in packet.overloads():  # what is there in place alone
                packet = getattr(operators, f"{name}_")
            found.append((target, getattr(packet, kind)))
    return found


def test_every_lowered_view_is_known_to_share_memory() -> None:
    """An operator that may return a view must be in the tables that in-place writes go by."""
    for target, overload in overloads():
        aliases = [r.alias_info for r in overload._schema.returns if r.alias_info]
        if any(not info.is_write for info in aliases):
            assert operator(target) in VIEWS | MAYBE_VIEWS, target


def test_lowerings_have_the_arguments_and_defaults_of_their_operators() -> None:
    """A file stores no defaults: a lowering's own signature must have PyTorch's."""
    unimportant = {"memory_format", "layout", "device", "pin_memory"}
    for target, overload in overloads():
        parameters = list(inspect.signature(LOWERINGS[target]).parameters.values())[1:]
        kinds = {parameter.kind for parameter in parameters}
        if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
            continue
        named = {parameter.name: parameter for parameter in parameters}
        for place, argument in enumerate(overload._schema.arguments):
            if argument.kwarg_only and argument.name in unimportant:
                continue
            ours = named.get(argument.name) if argument.kwarg_only else parameters[place]
            assert ours is not None, f"{target} does not know {argument.name}"
            if argument.has_default_value():
                theirs = argument.default_value
                alike = [theirs]
                if isinstance(theirs, list):
                    alike = [tuple(theirs), *theirs[:1]]
                same = ours.default in alike or not (ours.default or theirs)
                assert same, f"{target}: {argument.name} is {theirs} by default"


# Structure.


def test_inputs_and_outputs_keep_their_structure() -> None:
    def body(_: Any, x: Any, *, mask: Any = None, past: Any = None) -> Any:
        return {"sum": x + past[0][1], "more": (None, x * 2, 3)}

    module = compare(Calls(body), (normal(2),), {"mask": None, "past": [(normal(2), normal(2))]})
    signature = module.signature
    assert signature is not None
    assert [a.path for a in signature.arguments][1:] == ["past[0][0]", "past[0][1]"]
    assert [r.path for r in signature.results] == ["output['sum']", "output['more'][1]"]
    result = signature.unflatten([1, 2])
    assert result == {"sum": 1, "more": (None, 2, 3)}


def test_a_baked_in_scalar_is_told() -> None:
    def body(_: Any, x: Any, scale: int) -> Any:
        return x * scale

    module = import_torch(exported(Calls(body), (normal(2), 3)))
    assert module.signature is not None and len(module.signature.arguments) == 1
    assert any("fixed to 3" in note for note in module.notes)


def test_parameters_may_be_named() -> None:
    class Named(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left - right

    signature = import_torch(Named(), normal(2), normal(2)).signature
    assert signature is not None and signature.names == ("left", "right")


def test_dynamic_sizes_stay_symbols() -> None:
    def body(_: Any, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu().softmax(-1)

    sizes = {"inputs": ({0: torch.export.Dim("batch", min=2, max=64)},)}
    program = exported(Calls(body), (normal(3, 4),), dynamic_shapes=sizes)
    for module in (import_torch(program), import_torch(saved(program))):
        ((symbol, limits),) = module.symbols.items()
        assert limits == Symbol(2, 64)
        assert module.body.arguments[0].dims == (SymbolicDim(symbol), 4)
        assert module.body.results[0].dims == (SymbolicDim(symbol), 4)
        for size in (2, 5, 64):
            x = normal(size, 4)
            (found,) = interpret(module, [array_of(x)])
            np.testing.assert_allclose(found, body(None, x).numpy(), rtol=1e-5, atol=1e-6)
        with pytest.raises(UserError, match="dimension 0 is 65, but the size .* from 2 to 64"):
            interpret(module, [array_of(normal(65, 4))])
        fixed = with_stated_sizes(module, {symbol: 3}).body
        assert fixed.results[0].dims == (3, 4)


class Flattened(nn.Module):
    """A size that is the product of two symbols."""

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.reshape(y.shape[0] * y.shape[1]).cumsum(0)


def test_examples_fix_dynamic_sizes() -> None:
    batch, width = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("width", min=2)
    sizes = {"x": {0: batch}, "y": {0: batch, 1: width}}
    inputs, keywords = (normal(4, 3),), {"y": normal(4, 5)}
    program = exported(Flattened(), inputs, keywords, dynamic_shapes=sizes)
    other, named = normal(6, 3), {"y": normal(6, 2)}
    for said in (program, saved(program)):
        assert len(import_torch(said).symbols) == 2
        module = import_torch(said, other, **named)
        assert not module.symbols
        (result,) = interpret(module, [array_of(other), array_of(named["y"])])
        np.testing.assert_allclose(result, Flattened()(other, **named).numpy(), rtol=1e-5)
        with pytest.raises(UserError, match=r"y: dimension 0 is 5, the export needs"):
            import_torch(said, other, y=normal(5, 2))
        with pytest.raises(UserError, match=r"= 99 is not what the export admits: from 2 to 64"):
            import_torch(said, normal(99, 3), y=normal(99, 2))
        with pytest.raises(UserError, match=r"do not have the export's structure"):
            import_torch(said, other)


# Control flow.


def test_cond_becomes_if() -> None:
    def body(_: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    for sign in (1, -1):
        module = compare(Calls(body), (normal(4).abs() * sign,))
        assert sum(op.name == "if" for op in module.body.ops) == 1


def test_while_loop_becomes_while() -> None:
    def body(_: Any, x: torch.Tensor) -> Any:
        start = (torch.tensor(0), x)
        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.1), start)

    compare(Calls(body), (normal(4),))


def test_no_grad_inside_a_model_is_transparent() -> None:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.sin()
        return self.linear(x) * scale.sum()

    with torch.enable_grad():
        compare(Calls(body, linear=nn.Linear(4, 4)), (normal(2, 4),))


def test_a_model_without_data_is_blocked_by_its_weights() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    program = exported(model, (torch.empty(1, 3, device="meta"),))
    with pytest.raises(ImportBlockers, match="no data for 'weight'"):
        import_torch(program)


# Places and blockers.


def test_operations_know_the_users_line_and_module() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x)

    line = inspect.getsourcelines(Inner.forward)[1] + 1
    model = nn.Sequential(nn.Identity(), Inner())
    program = exported(model, (normal(3),))
    for module in (import_torch(program), import_torch(saved(program))):
        (erf,) = [op for op in module.walk() if op.name == "chlo.erf"]
        (origin,) = erf.origin
        assert (origin.file, origin.line, origin.name) == (__file__, line, "1")


def test_lines_of_pytorch_stand_for_models_without_lines_of_users() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module = girih.import_model(model, normal(2, 3))
    places = [origin for op in module.walk() for origin in op.origin if origin.file]
    assert {place.name for place in places} == {"0", "1"}
    assert all("modules" in place.file for place in places)


for name in ("unknown", "unlike"):  # operators that no lowering knows
    wild = torch.library.custom_op(
        f"girih_tests::{name}", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    wild.register_fake(torch.empty_like)


def test_all_blockers_at_once() -> None:
    class Wild(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            first = torch.ops.girih_tests.unknown(x)
            second = torch.ops.girih_tests.unlike(x)
            return first, second

    line = inspect.getsourcelines(Wild.forward)[1]
    program = exported(Wild(), (normal(2, 2),))
    for said in (program, saved(program)):
        with pytest.raises(ImportBlockers) as caught:
            import_torch(said)
        found = {blocker.operation: blocker for blocker in caught.value.blockers}
        assert set(found) == {"girih_tests.unknown.default", "girih_tests.unlike.default"}
        for number, blocker in enumerate(found.values(), 1):
            assert blocker.place.startswith(f"{__file__}:{line + number}")
            assert "decomposition" in blocker.remedy


@pytest.mark.parametrize(
    ("source", "inputs", "words"),
    [
        (nn.Linear(2, 2), (), "give example inputs"),
        (3, (), "a int is no export"),
        ("missing.pt2", (), "cannot be read"),
        (torch.export.export(nn.Linear(2, 2), (normal(1, 2),)), (1,), "fixed sizes already"),
    ],
)
def test_what_is_no_export_is_told(source: Any, inputs: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        import_torch(source, *inputs)


def test_a_size_that_has_to_be_known_is_a_blocker_with_a_remedy_and_examples_fix_it() -> None:
    class Tail(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.fft.rfft(x, dim=0).real.sum()

    dims = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(Tail(), (torch.ones(3, 4),), dynamic_shapes=dims)
    with pytest.raises(girih.ImportBlockers, match="give example inputs"):
        girih.import_model(exported)
    found = girih.compile(exported, torch.ones(5, 4))(np.ones((5, 4), np.float32))
    np.testing.assert_allclose(found, np.full((5, 4), 21), rtol=1e-5)

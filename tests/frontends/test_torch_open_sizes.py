"""Exports of PyTorch whose sizes a call decides: every size is as the eager module, or refused."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import girih
from girih.frontends.torch.importing import import_torch
from girih.hlo.errors import UserError
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.stated_sizes import with_stated_sizes
from girih.hlo.verify import require_proven_sizes

OPTIONS = girih.Options(cache="off")
BATCHES, LENGTHS, IMAGES = (1, 6), (1, 40), (8, 40)


def normal(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(sum(dims)))


class Calls(nn.Module):
    """A function with modules as a model."""

    def __init__(self, body: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def exported(model: nn.Module, inputs: Sequence[torch.Tensor], dims: Any) -> Any:
    with torch.no_grad():
        return torch.export.export(model, tuple(inputs), dynamic_shapes=dims, strict=False)


def saved(program: Any) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def agree(model: nn.Module, module: Module, inputs: Sequence[torch.Tensor]) -> None:
    """The interpreter's results are the eager module's."""
    with torch.no_grad():
        wanted = model(*inputs)
    found = interpret(module, [x.numpy() for x in inputs])
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one.numpy(), rtol=2e-5, atol=2e-5, strict=True)


# Sequences: x is [batch, length, 8].


def reshapes(_: Any, x: torch.Tensor) -> Any:
    b, n, c = x.shape
    return x.reshape(b * n, c), x.view(b, -1).sum(1), x.transpose(0, 1).reshape(-1, 4), x.flatten()


def moves(_: Any, x: torch.Tensor) -> Any:
    n = x.shape[1]
    parts = (x.roll(2, 1), x.flip(1), x.repeat(1, 2, 1), x.repeat_interleave(2, 1), x[:, -1])
    more = (x[:, ::2], x[:, : n - 1], x[:, -2:], torch.cat([x[:, 1:], x[:, :1]], 1))
    return *parts, *more, F.pad(x, (1, 0, 2, 1)), torch.stack([x, x], 2), x[:, n // 2 :].sum(1)


def numbers(_: Any, x: torch.Tensor) -> Any:
    b, n, _ = x.shape
    mean = x.sum((0, 1)) / (b * n)
    root = x / torch.sym_sqrt(n)
    return mean, root, x * n, x + (n + 1) // 2, x.sum(1) * (n / (b + 1)), torch.full((b,), n)


def made(_: Any, x: torch.Tensor) -> Any:
    b, n, _ = x.shape
    places = torch.arange(n)
    mask = torch.triu(torch.full((n, n), -3.0), 1)
    near = (places[:, None] - places[None, :]).clamp(-3, 3)
    angles = torch.arange(n, dtype=torch.float32) * 0.5
    wide = torch.zeros(b, n, 2 * n) + x.sum()
    return mask, near, angles, torch.eye(n), torch.ones(b, n).cumsum(1), wide


def reductions(_: Any, x: torch.Tensor) -> Any:
    spread = torch.var_mean(x, 1, correction=0)
    several = (x.mean(), x.amax((0, 1)), x.argmax(1), x.softmax(1), x.logsumexp(1), x.prod(1))
    so_far = (x.cumsum(1), *x.cummax(1), x.logcumsumexp(1))
    return *several, *spread, *so_far, F.normalize(x, dim=1), (x > 1).any(1), x.std((0, 2))


def attention(_: Any, x: torch.Tensor) -> Any:
    b, n, _ = x.shape
    q = x.view(b, n, 2, 4).transpose(1, 2)
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
    scores = (q @ q.transpose(-1, -2) / math.sqrt(4)).masked_fill(~mask, -math.inf)
    by_hand = (scores.softmax(-1) @ q).transpose(1, 2).reshape(b, n, 8)
    return by_hand, F.scaled_dot_product_attention(q, q, q, attn_mask=mask, scale=0.5)


def norms(self: Any, x: torch.Tensor) -> Any:
    y = x.transpose(1, 2)
    return self.group(y), self.batch(y), F.layer_norm(x, (8,)), F.rms_norm(x, (8,))


# Images: x is [batch, 4, height, width].


def pools(_: Any, x: torch.Tensor) -> Any:
    padded = F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
    fitted = F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, 4)
    return *padded, *fitted, F.max_pool2d(x, 2), x.mean((2, 3))


def resized(_: Any, x: torch.Tensor) -> Any:
    twice = [F.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bicubic")]
    fixed = F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True)
    half = F.interpolate(x, scale_factor=1.5, mode="bilinear")
    return *twice, fixed, half, F.interpolate(x, size=(x.shape[3], 9), mode="nearest")


def borders(_: Any, x: torch.Tensor) -> Any:
    kinds = [F.pad(x, (1, 2, 2, 1), mode=mode) for mode in ("reflect", "replicate", "circular")]
    return *kinds, F.pad(x, (-1, 0, 0, -2)), F.pixel_shuffle(x, 2), F.unfold(x, 3, padding=1)


def convolved(self: Any, x: torch.Tensor) -> Any:
    x = self.first(x).relu()
    return self.up(self.depthwise(x)), self.second(self.first(x))


class Case(NamedTuple):
    name: str
    model: nn.Module
    sizes: Sequence[tuple[int, ...]]
    is_image: bool = False

    def input(self, sizes: Sequence[int]) -> torch.Tensor:
        return normal(sizes[0], 4, *sizes[1:]) if self.is_image else normal(*sizes, 8)

    def dims(self) -> Any:
        batch = Dim("batch", min=BATCHES[0], max=BATCHES[1])
        if not self.is_image:
            return ({0: batch, 1: Dim("length", min=LENGTHS[0], max=LENGTHS[1])},)
        low, high = IMAGES
        return ({0: batch, 2: Dim("h", min=low, max=high), 3: Dim("w", min=low, max=high)},)


SHORT, PLAIN = ((3, 7), (2, 2), (1, 13)), ((3, 7), (1, 1), (2, 13))
SQUARES = ((2, 12, 9), (1, 8, 8), (3, 23, 11))


def cases() -> list[Case]:
    torch.manual_seed(0)
    normed = Calls(norms, group=nn.GroupNorm(4, 8), batch=nn.BatchNorm1d(8)).eval()
    convolutions = Calls(
        convolved, first=nn.Conv2d(4, 4, 3, padding=1), second=nn.Conv2d(4, 6, 3, 2),
        depthwise=nn.Conv2d(4, 4, 3, 2, 1, groups=4), up=nn.ConvTranspose2d(4, 2, 4, 2, 1),
    ).eval()  # fmt: skip
    return [
        *(Case(f.__name__, Calls(f), PLAIN) for f in (reshapes, numbers, made)),
        *(Case(f.__name__, Calls(f), PLAIN) for f in (reductions, attention)),
        Case("norms", normed, PLAIN),
        Case("convolved", convolutions, SQUARES, True),
        *(Case(f.__name__, Calls(f), SQUARES, True) for f in (pools, resized, borders)),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_all_sizes_are_as_eager(case: Case) -> None:
    program = exported(case.model, [case.input(case.sizes[0])], case.dims())
    for module in (import_torch(program), import_torch(saved(program))):
        require_proven_sizes(module)
        for sizes in case.sizes:
            agree(case.model, module, [case.input(sizes)])


def test_parts_of_a_length() -> None:
    model = Calls(moves)
    program = exported(model, [normal(3, 7, 8)], ({0: Dim.AUTO, 1: Dim.AUTO},))
    module = import_torch(program)
    assert module.symbols == {"x_0": Symbol(1), "x_1": Symbol(1)}
    for sizes in SHORT:
        agree(model, module, [normal(*sizes, 8)])


def test_pools_that_end_outside() -> None:
    def body(_: Any, x: torch.Tensor) -> Any:
        largest = F.max_pool2d(x, 3, 2, ceil_mode=True), F.max_pool2d(x, 2, 3, 1, ceil_mode=True)
        return *largest, F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)

    model = Calls(body)
    module = import_torch(exported(model, [normal(2, 3, 9, 10)], ({2: Dim.AUTO, 3: Dim.AUTO},)))
    for sizes in ((9, 10), (2, 4), (5, 7), (8, 11), (6, 13)):
        agree(model, module, [normal(2, 3, *sizes)])


# What is refused, and who says so.


def test_what_a_view_needs_is_refused_with_its_line() -> None:
    def body(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 2, 32)

    model = Calls(body)
    program = exported(model, [normal(3, 8, 16)], ({0: Dim.AUTO, 1: Dim.AUTO},))
    module = import_torch(program)
    for sizes in ((1, 2), (3, 14), (5, 8)):
        agree(model, module, [normal(*sizes, 16)])
    with pytest.raises(UserError, match=r"x_1\) % 2 == 0 does not hold .*test_torch_open_sizes.py"):
        interpret(module, [normal(2, 3, 16).numpy()])
    compiled = girih.compile(program, options=OPTIONS, sizes={"x.0": (1, 4), "x.1": (2, 32)})
    x = normal(2, 26, 16)
    np.testing.assert_array_equal(compiled(x), body(None, x).numpy())


def test_padding_to_windows_takes_every_size() -> None:
    def body(_: Any, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        padding = -n % 7
        return F.pad(x, (0, 0, 0, padding)).view(b, (n + padding) // 7, 7, c).mean(2)

    model = Calls(body)
    module = import_torch(exported(model, [normal(3, 10, 4)], ({0: Dim.AUTO, 1: Dim.AUTO},)))
    assert not module.constraints
    for sizes in ((1, 1), (2, 7), (3, 13), (2, 14)):
        agree(model, module, [normal(*sizes, 4)])


def test_writes_into_a_buffer_take_every_size_that_fits() -> None:
    class Kept(nn.Module):
        kept: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(4, 8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, _ = x.shape
            self.kept[:b, :t].add_(x)
            return self.kept.sum((0, 1))

    program = exported(Kept(), [normal(3, 5, 4)], ({0: Dim.AUTO, 1: Dim.AUTO},))
    module = import_torch(program)
    assert module.symbols["x_1"]._replace(origin="") == Symbol(1, 8)
    start = np.zeros((4, 8, 4), np.float32)
    for sizes in ((1, 1), (4, 8), (2, 3)):
        x = normal(*sizes, 4)
        found, state = interpret(module, [x.numpy(), start])
        np.testing.assert_allclose(found, x.sum((0, 1)).numpy(), atol=1e-5)
        assert state[: sizes[0], : sizes[1]].tolist() == x.tolist()
    with pytest.raises(UserError, match="dimension 1 is 9, but the size x_1 must be from 1 to 8"):
        interpret(module, [normal(2, 9, 4).numpy(), start])


def test_a_branch_by_a_size_is_told_and_its_other_side_refused() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n = x.shape
            return x * 2 if b * n > 20 else x + 1

    program = exported(Branches(), [normal(3, 5)], ({0: Dim.AUTO, 1: Dim.AUTO},))
    module = import_torch(program)
    (note,) = module.notes
    assert "test_torch_open_sizes.py" in note and "x_0*x_1 <= 20" in note
    agree(Branches(), module, [normal(4, 5)])
    with pytest.raises(UserError, match=r"x_0\*x_1 <= 20 does not hold .*open_sizes.py"):
        interpret(module, [normal(3, 7).numpy()])
    sizes = {"x_0": (1, 4), "x_1": (1, 8)}
    strict = girih.Options(cache="off", strict=True)
    with pytest.raises(UserError, match="the model's way for"):
        girih.compile(program, options=strict, sizes=sizes)
    with pytest.raises(UserError, match=r"x_0\*x_1 <= 20 does not hold"):
        interpret(import_torch(saved(program)), [normal(3, 7).numpy()])


def test_a_size_that_the_model_fixes_is_told() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] != 5:
                raise ValueError("5 frames")
            return x + 1

    module = import_torch(exported(Fixed(), [normal(3, 5)], ({0: Dim.AUTO, 1: Dim.AUTO},)))
    (note,) = module.notes
    assert "open_sizes.py" in note and "the model fixes dimension 1 of x to 5" in note


def test_symbols_have_the_users_names_and_ranges() -> None:
    class Named(nn.Module):
        def forward(self, ids: torch.Tensor, more: dict[str, torch.Tensor]) -> torch.Tensor:
            return ids + more["a.b"][:, :1]

    batch, width = Dim("batch", min=2, max=64), Dim("width", min=3)
    dims = {"ids": {0: batch}, "more": {"a.b": {0: batch, 1: width}}}
    inputs = normal(3, 1), {"a.b": normal(3, 4)}
    program = torch.export.export(Named(), inputs, dynamic_shapes=dims, strict=False)
    module = import_torch(program)
    assert module.symbols == {"batch": Symbol(2, 64), "width": Symbol(3)}
    assert module.body.arguments[1].dims == module.body.arguments[0].dims[:1] + (
        *module.body.arguments[1].dims[1:],
    )
    narrowed = with_stated_sizes(module, {"batch": (1, 8), "more['a.b'].1": (1, 16)})
    assert [str(s) for s in narrowed.symbols.values()] == ["from 2 to 8", "from 3 to 16"]
    assert set(import_torch(saved(program)).symbols) == {"ids_0", "more_a_b_1"}


# Several calls.


def test_the_static_cache_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    recipes = pytest.importorskip("transformers.integrations.executorch")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=16, max_position_embeddings=16, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )  # fmt: skip
    new = Dim("new", min=1, max=15)  # tokens of a call
    program = recipes.convert_and_export_with_cache(
        model, example_input_ids=torch.tensor([[3, 4, 5]]), example_cache_position=torch.arange(3),
        dynamic_shapes={"input_ids": {1: new}, "cache_position": {0: new}}, strict=False,
    )  # fmt: skip
    module = import_torch(program)
    assert module.signature is not None and module.symbols == {"new": Symbol(1, 15)}
    states = [argument.state for argument in module.signature.arguments if argument.state]
    kinds = "key_cache", "value_cache", "cumulative_length"
    assert states == [f"{kind}_{layer}" for layer in (0, 1) for kind in kinds]
    results = [result.state for result in module.signature.results[1:]]
    state: dict[str | None, Any] = {
        name: np.zeros(argument.dims, argument.element.dtype)
        for name, argument in zip(states, module.body.arguments[2:], strict=True)
    }
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        wanted = model(ids, use_cache=False).logits.numpy()
    at = 0
    for count in (5, 1, 1, 4):  # prefill, two steps, several tokens at once
        given = [ids[:, at : at + count].numpy(), np.arange(at, at + count)]
        found, *new_state = interpret(module, [*given, *map(state.get, states)])
        state = dict(zip(results, new_state, strict=True))
        np.testing.assert_allclose(found, wanted[:, at : at + count], atol=1e-5)
        at += count

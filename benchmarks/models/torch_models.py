"""The zoo's PyTorch models: `transformers` architectures from their configs, with random weights.

Each function returns `(module, inputs)`, the modules wrapped so that tensors alone go in and out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Outputs(nn.Module):
    """`model(*inputs)` reduced to the named tensors of its result; one name gives a bare tensor."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]):
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *tensors: Tensor) -> Any:
        given = dict(zip(self.inputs, tensors, strict=True))
        result = self.model(**given, return_dict=True)
        values = tuple(getattr(result, name) for name in self.outputs)
        return values[0] if len(values) == 1 else values


@torch.no_grad()
def scattered(model: nn.Module) -> nn.Module:
    """`model` in eval mode, without weights that hide mistakes: no bias is 0, no gain 1, and no
    convolution so small that its signal dies out.
    """
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=generator)
        if isinstance(module, nn.BatchNorm2d) and isinstance(module.running_mean, Tensor):
            module.running_mean.normal_(0.0, 0.1, generator=generator)
            assert module.running_var is not None
            module.running_var.uniform_(0.8, 1.2, generator=generator)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model.eval()


def thousand_labels(config: Any) -> Any:
    """The configuration with ImageNet's number of classes."""
    config.num_labels = 1000
    return config


def tokens(count: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary, (1, count), generator=generator)


def picture(size: int = 224) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


def bert_base(layers: int = 12) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    mask = torch.ones(1, 128, dtype=torch.long)
    mask[:, 100:] = 0  # a padded sentence, so that masking is part of what is compared
    module = Outputs(
        scattered(BertModel(config)),
        ("input_ids", "attention_mask"),
        ("last_hidden_state", "pooler_output"),
    )
    return module, (tokens(128, config.vocab_size), mask)


def gpt2(layers: int = 12) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, use_cache=False)
    module = Outputs(scattered(GPT2LMHeadModel(config)), ("input_ids",), ("logits",))
    return module, (tokens(128, config.vocab_size),)


class CachedDecode(nn.Module):
    """One step of decoding: token, cache -> logits, longer cache; (key, value) per layer."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, cache: tuple[tuple[Tensor, Tensor], ...]) -> Any:
        from transformers import DynamicCache

        past = DynamicCache(cache)
        result = self.model(input_ids=token, past_key_values=past, use_cache=True)
        longer = tuple((layer.keys, layer.values) for layer in result.past_key_values.layers)
        return result.logits, longer


def gpt2_decode(layers: int = 12) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers)
    heads, width = config.n_head, config.n_embd // config.n_head
    generator = torch.Generator().manual_seed(2)
    cache = tuple(
        (
            torch.randn(1, heads, 127, width, generator=generator),
            torch.randn(1, heads, 127, width, generator=generator),
        )
        for _ in range(layers)
    )
    return CachedDecode(scattered(GPT2LMHeadModel(config))), (tokens(1, config.vocab_size), cache)


def llama(layers: int = 12) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        vocab_size=32000,
        use_cache=False,
    )
    module = Outputs(scattered(LlamaForCausalLM(config)), ("input_ids",), ("logits",))
    return module, (tokens(64, config.vocab_size),)


def t5_small(layers: int = 6) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    # T5Config's own defaults are T5-small's sizes
    config = T5Config(num_layers=layers, num_decoder_layers=layers, use_cache=False)
    module = Outputs(
        scattered(T5ForConditionalGeneration(config)),
        ("input_ids", "decoder_input_ids"),
        ("logits",),
    )
    return module, (tokens(64, config.vocab_size), tokens(16, config.vocab_size))


def vit_b16(layers: int = 12) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = thousand_labels(ViTConfig(num_hidden_layers=layers))
    return Outputs(scattered(ViTForImageClassification(config)), ("pixel_values",), ("logits",)), (
        picture(),
    )


def resnet50(layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    """`layers` counts stages."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes, depths = [256, 512, 1024, 2048][:layers], [3, 4, 6, 3][:layers]
    config = thousand_labels(ResNetConfig(hidden_sizes=sizes, depths=depths))
    return Outputs(
        scattered(ResNetForImageClassification(config)), ("pixel_values",), ("logits",)
    ), (picture(),)


def mobilenet_v2() -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(0)
    config = thousand_labels(MobileNetV2Config())
    return Outputs(
        scattered(MobileNetV2ForImageClassification(config)), ("pixel_values",), ("logits",)
    ), (picture(),)


def convnext_tiny(layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    """`layers` counts stages."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    torch.manual_seed(0)
    sizes, depths = [96, 192, 384, 768][:layers], [3, 3, 9, 3][:layers]
    config = thousand_labels(ConvNextConfig(hidden_sizes=sizes, depths=depths, num_stages=layers))
    return Outputs(
        scattered(ConvNextForImageClassification(config)), ("pixel_values",), ("logits",)
    ), (picture(),)


class WhisperEncoderOnly(nn.Module):
    """Log-mel frames -> the encoder's hidden states."""

    def __init__(self, encoder: Any):
        super().__init__()
        self.encoder = encoder

    def forward(self, frames: Tensor) -> Tensor:
        return self.encoder(frames, return_dict=True).last_hidden_state


def whisper_encoder(layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import WhisperConfig, WhisperModel

    torch.manual_seed(0)
    # WhisperConfig's own defaults are Whisper-tiny's sizes
    config = WhisperConfig(encoder_layers=layers, decoder_layers=1)
    frames = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(1))
    return WhisperEncoderOnly(scattered(WhisperModel(config).get_encoder())), (frames,)


class SequenceTagger(nn.Module):
    """A stacked LSTM, then a linear layer: sequence -> tags, last hidden, last cell."""

    def __init__(self, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(256, 256, num_layers=layers, batch_first=True)
        self.head = nn.Linear(256, 32)

    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, (hidden, cell) = self.lstm(sequence)
        return self.head(states), hidden, cell


def lstm(layers: int = 2) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    sequence = torch.randn(1, 64, 256, generator=torch.Generator().manual_seed(1))
    return scattered(SequenceTagger(layers)), (sequence,)

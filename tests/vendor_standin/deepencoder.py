"""The stand-in's vision parts: one token for 64 x 64 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sam(nn.Module):
    """Images [N, 3, S, S] to a grid of features [N, width, S / 64, S / 64]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.net_2 = nn.Conv2d(width, width, kernel_size=2, stride=2)
        self.net_3 = nn.Conv2d(width, width, kernel_size=2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images) / 8
        halved = self.net_2(patches)
        return torch.tanh(self.net_3(halved))


class Clip(nn.Module):
    """The grid of features to [N, 1 + tokens, width]; the first token is the class embedding.

    As the published encoder it takes the images too, which it does not look at.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.mix = nn.Linear(width, width)
        # In no checkpoint, as the published one: transformers then warns that it should be trained.
        self.register_buffer("position_ids", torch.arange(257)[None])

    def forward(self, images: Tensor, grid: Tensor) -> Tensor:
        features = grid.flatten(2).transpose(1, 2)
        class_token = self.class_embedding.expand(len(images), 1, -1)
        return torch.cat([class_token, self.mix(features)], dim=1)

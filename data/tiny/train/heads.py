"""Throwaway heads that teach the network what it needs to read, and the small functions they share."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HIDDEN = 256
_LONGEST_GRID = 9  # crops in a row or a column


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer in the input's dtype."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def layer_norm(x: Tensor, norm: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Layer norm, computed in float32."""
    return F.layer_norm(x.float(), (x.shape[-1],), norm[0], norm[1], eps).to(x.dtype)


def pair(module: Any) -> tuple[Tensor, Tensor | None]:
    """A module's weight and bias."""
    return module.weight, module.bias


class Heads(nn.Module):
    """Throwaway heads; after training they are dropped.

    Two name the character in every cell of 16 x 8 pixels, one from SAM's patches, one from the projected
    vision tokens: they teach the vision stack its letters long before the language model has a use for them.
    One names column and row of the crop that a token belongs to, from the decoder's hidden states: without
    it they hardly know, and a line goes on in another crop.
    """

    def __init__(self, patch_width: int, token_width: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.patch_norm = nn.LayerNorm(patch_width)
        self.patch = nn.Linear(patch_width, 2 * classes)
        self.token_norm = nn.LayerNorm(token_width)
        self.token_in = nn.Linear(token_width, _HIDDEN)
        self.token_out = nn.Linear(_HIDDEN, 32 * classes)
        self.place_norm = nn.LayerNorm(token_width)
        self.place = nn.Linear(token_width, 2 * _LONGEST_GRID)


def map_losses(patches: Tensor, tokens: Tensor, characters: Tensor, heads: Heads) -> Tensor:
    """[2]: mean loss of the character maps from SAM's patches and from the vision tokens."""
    batch, side = patches.shape[:2]
    low = linear(layer_norm(patches, pair(heads.patch_norm), 1e-5), *pair(heads.patch))
    low = low.reshape(batch, side, 2 * side, heads.classes)
    h = linear(layer_norm(tokens, pair(heads.token_norm), 1e-5), *pair(heads.token_in))
    high = linear(F.gelu(h), *pair(heads.token_out))
    high = high.reshape(batch, side // 4, side // 4, 4, 8, heads.classes).transpose(2, 3)
    weight = torch.where(characters > 0, 1.0, 0.1).flatten()  # most cells are empty
    losses = [
        F.cross_entropy(x.reshape(-1, heads.classes).float(), characters.flatten(), reduction="none")
        for x in (low, high)
    ]
    return torch.stack([(loss * weight).sum() / weight.sum() for loss in losses])


def place_loss(h: Tensor, heads: Heads) -> Tensor:
    """Mean loss of the crop's column plus that of its row, each named from every hidden state of its tokens.

    h: [B, rows, q, columns, q, width], the tokens of a grid of crops where they stand on the page.
    """
    guesses = linear(layer_norm(h, pair(heads.place_norm), 1e-5), *pair(heads.place)).float()
    columns = torch.arange(h.shape[3], device=h.device)[:, None].expand(h.shape[:5])
    rows = torch.arange(h.shape[1], device=h.device)[:, None, None, None].expand(h.shape[:5])
    losses = [
        F.cross_entropy(guess.flatten(0, 4), truth.flatten())
        for guess, truth in zip(guesses.chunk(2, dim=-1), (columns, rows), strict=True)
    ]
    return torch.stack(losses).sum()

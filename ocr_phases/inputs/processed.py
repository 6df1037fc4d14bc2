"""A page and a prompt as a model's own processor packs them: what any class of transformers takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class ProcessedInputs:
    """One batch of B prompts of T tokens on the model's device.

    Attributes
    ----------
    given
        What the processor made, by the names that the class takes: ``input_ids`` int64 [B, T],
        ``attention_mask`` int64 [B, T], pixels, grids and masks.
    image_token_id
        The id that stands for one image token.
    start_positions
        The positions of the prompt's tokens, as the class computes them; None until it has.
    """

    given: dict[str, Any]
    image_token_id: int | None
    start_positions: Tensor | None = field(default=None, repr=False)

    @property
    def input_ids(self) -> Tensor:
        """The ids of the prompts, int64 [B, T]."""
        return self.given["input_ids"]

    @property
    def attention_mask(self) -> Tensor:
        """1 for each token that may be seen, int64 [B, T]."""
        mask = self.given.get("attention_mask")
        return torch.ones_like(self.input_ids) if mask is None else mask

    @property
    def images_seq_mask(self) -> Tensor:
        """True at image tokens, bool [B, T]."""
        if self.image_token_id is None:
            return torch.zeros_like(self.input_ids, dtype=torch.bool)
        return self.input_ids == self.image_token_id

    @property
    def position_ids(self) -> None:
        """None: the class counts positions itself, also of padded rows."""
        return None

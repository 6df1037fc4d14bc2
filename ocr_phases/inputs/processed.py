"""A page and a prompt as a model's own processor packs them: what any class of transformers
takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.families import Preset
from ocr_phases.inputs.packing import DeviceInputs, PageInputs


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

    def followed_by(self, tokens: Tensor) -> ProcessedInputs:
        """The same prompts with text ``tokens``, int64 [B, N], behind them."""
        given = dict(self.given)
        given["input_ids"] = torch.cat([self.input_ids, tokens], dim=1)
        new = tokens.shape[1]
        for name, value in self.given.items():
            if name == "attention_mask":
                given[name] = nn.functional.pad(value, (0, new), value=1)
            elif name != "input_ids" and _is_per_token(value, self.input_ids):  # text has 0
                given[name] = nn.functional.pad(value, (0, new))
        return ProcessedInputs(given, self.image_token_id)


def _is_per_token(value: Any, ids: Tensor) -> bool:
    """Whether a processor's output has one mark for each token, such as its type."""
    return isinstance(value, Tensor) and value.shape == ids.shape


@dataclass(frozen=True)
class ProcessedPages:
    """One batch of B prompts of T tokens as a processor made it, still on the CPU.

    Attributes
    ----------
    on_cpu
        The inputs on the CPU.
    presets
        How each page of the batch was cut, in row order; ``views_per_row`` of them for each row.
        Nobody knows more of it than the processor.
    prompts
        The prompts, without the template around them.
    """

    on_cpu: ProcessedInputs
    presets: tuple[Preset, ...]
    views_per_row: tuple[int, ...]
    prompts: tuple[str, ...]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ProcessedInputs:
        """The batch on ``device``, with pixels in ``dtype``."""
        moved = {}
        for name, value in self.on_cpu.given.items():
            if isinstance(value, Tensor):
                value = value.to(device, dtype if value.is_floating_point() else None)
            moved[name] = value
        return ProcessedInputs(moved, self.on_cpu.image_token_id)

    @property
    def input_ids(self) -> Tensor:
        """The ids of the prompts, int64 [B, T]."""
        return self.on_cpu.input_ids

    @property
    def batch_size(self) -> int:
        """Rows in the batch, B."""
        return self.input_ids.shape[0]

    @property
    def prefill_len(self) -> int:
        """Tokens in a row, T, padding included."""
        return self.input_ids.shape[1]

    @property
    def padded(self) -> bool:
        """Whether any row is shorter than the longest."""
        return not bool(self.on_cpu.attention_mask.all())

    @property
    def image_tokens(self) -> tuple[int | None, ...]:
        """Image tokens of each row; None where the checkpoint does not name the token for them."""
        if not bool(self.on_cpu.images_seq_mask.any()):
            return (None,) * self.batch_size
        return tuple(self.on_cpu.images_seq_mask.sum(dim=1).tolist())

    @property
    def text_tokens(self) -> tuple[int | None, ...]:
        """Text tokens of each row, padding not; None where image tokens are not known."""
        if not bool(self.on_cpu.images_seq_mask.any()):
            return (None,) * self.batch_size
        inputs = self.on_cpu
        real = inputs.attention_mask.sum(dim=1) - inputs.images_seq_mask.sum(dim=1)
        return tuple(real.tolist())


#: What a request is packed into, on the CPU.
PackedPages = PageInputs | ProcessedPages
#: The same on the model's device.
ModelInputs = DeviceInputs | ProcessedInputs

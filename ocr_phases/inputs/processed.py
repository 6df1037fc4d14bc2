"""A page and a prompt as a model's own processor packs them: what any class of transformers takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
            elif name.endswith("token_type_ids"):  # a mark per token; text has 0
                given[name] = nn.functional.pad(value, (0, new))
        return ProcessedInputs(given, self.image_token_id)


class ProcessedPage(NamedTuple):
    """A page in a batch: how it was cut is the processor's own affair."""

    preset: Preset
    grid: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ProcessedPages:
    """One batch of B prompts of T tokens as a processor made it, still on the CPU.

    Attributes
    ----------
    given
        What the processor made, by the names that the class takes.
    image_token_id
        The id that stands for one image token; None where the checkpoint names none.
    views
        Every page of the batch, in row order; ``views_per_row`` of them for each row.
    prompts
        The prompts, without the template around them.
    """

    given: Mapping[str, Any]
    image_token_id: int | None
    views: tuple[ProcessedPage, ...]
    views_per_row: tuple[int, ...]
    prompts: tuple[str, ...]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ProcessedInputs:
        """The batch on ``device``, with pixels in ``dtype``."""
        moved = {}
        for name, value in self.given.items():
            if isinstance(value, Tensor):
                value = value.to(device, dtype if value.is_floating_point() else None)
            moved[name] = value
        return ProcessedInputs(moved, self.image_token_id)

    @property
    def _on_cpu(self) -> ProcessedInputs:
        return ProcessedInputs(dict(self.given), self.image_token_id)

    @property
    def input_ids(self) -> Tensor:
        """The ids of the prompts, int64 [B, T]."""
        return self._on_cpu.input_ids

    @property
    def presets(self) -> tuple[Preset, ...]:
        """How each page of the batch was cut: nobody knows but the processor."""
        return tuple(view.preset for view in self.views)

    @property
    def batch_size(self) -> int:
        """Rows in the batch, B."""
        return self._on_cpu.input_ids.shape[0]

    @property
    def prefill_len(self) -> int:
        """Tokens in a row, T, padding included."""
        return self._on_cpu.input_ids.shape[1]

    @property
    def padded(self) -> bool:
        """Whether any row is shorter than the longest."""
        return not bool(self._on_cpu.attention_mask.all())

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """Image tokens of each row; none are counted where the checkpoint names no image token."""
        return tuple(self._on_cpu.images_seq_mask.sum(dim=1).tolist())

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """Text tokens of each row, padding not."""
        inputs = self._on_cpu
        real = inputs.attention_mask.sum(dim=1) - inputs.images_seq_mask.sum(dim=1)
        return tuple(real.tolist())


#: What a request is packed into, on the CPU.
PackedPages = PageInputs | ProcessedPages
#: The same on the model's device.
ModelInputs = DeviceInputs | ProcessedInputs

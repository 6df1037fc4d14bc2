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
    arguments
        What the processor made, by the names that the class takes: ``input_ids`` int64 [B, T],
        ``attention_mask`` int64 [B, T], pixels, grids and masks.
    image_token_id
        The id that stands for one image token; None where the checkpoint names none.
    start_positions
        The positions of the prompt's tokens, as the class computes them; None until it has.
    """

    arguments: dict[str, Any]
    image_token_id: int | None
    start_positions: Tensor | None = field(default=None, repr=False)

    @property
    def input_ids(self) -> Tensor:
        """The ids of the prompts, int64 [B, T]."""
        return self.arguments["input_ids"]

    @property
    def attention_mask(self) -> Tensor:
        """1 for each token that may be seen, int64 [B, T]."""
        mask = self.arguments.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(self.input_ids)
        return mask

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
        """The same prompts with text ``tokens``, int64 [B, N], behind them.

        What has a mark for each token gets 0 for them, which is text. The class computes the
        positions anew.
        """
        new_count = tokens.shape[1]
        longer = dict(self.arguments)
        for name, value in self.arguments.items():
            if name == "input_ids":
                longer[name] = torch.cat([value, tokens], dim=1)
            elif name == "attention_mask":
                longer[name] = nn.functional.pad(value, (0, new_count), value=1)
            elif _is_per_token(value, self.input_ids):
                longer[name] = nn.functional.pad(value, (0, new_count), value=0)
        return ProcessedInputs(longer, self.image_token_id)


def _is_per_token(value: Any, ids: Tensor) -> bool:
    """Whether a processor's output has one mark for each token, such as its type."""
    return isinstance(value, Tensor) and value.shape == ids.shape


@dataclass(frozen=True)
class ProcessedPages:
    """One batch of B prompts of T tokens as a processor made it, still on the CPU.

    Attributes
    ----------
    inputs
        What the processor made, on the CPU.
    presets
        How each page of the batch was cut, in the order of the rows. Only the processor knows how
        it cuts, so they name it and have no sizes.
    views_per_row
        How many of the pages each row has.
    prompts
        The prompts, without the template around them.
    """

    inputs: ProcessedInputs
    presets: tuple[Preset, ...]
    views_per_row: tuple[int, ...]
    prompts: tuple[str, ...]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ProcessedInputs:
        """The batch on ``device``, with pixels in ``dtype``."""
        moved = {}
        for name, value in self.inputs.arguments.items():
            if not isinstance(value, Tensor):
                moved[name] = value
            elif value.is_floating_point():
                moved[name] = value.to(device, dtype)
            else:
                moved[name] = value.to(device)  # ids, masks and grids stay whole numbers
        return ProcessedInputs(moved, self.inputs.image_token_id)

    @property
    def input_ids(self) -> Tensor:
        """The ids of the prompts, int64 [B, T]."""
        return self.inputs.input_ids

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
        return not bool(self.inputs.attention_mask.all())

    @property
    def image_tokens(self) -> tuple[int | None, ...]:
        """Image tokens of each row; None where the checkpoint does not name the token for them."""
        is_image = self.inputs.images_seq_mask
        if not bool(is_image.any()):
            return (None,) * self.batch_size
        return tuple(is_image.sum(dim=1).tolist())

    @property
    def text_tokens(self) -> tuple[int | None, ...]:
        """Text tokens of each row, padding not; None where image tokens are not known."""
        is_image = self.inputs.images_seq_mask
        if not bool(is_image.any()):
            return (None,) * self.batch_size
        tokens = self.inputs.attention_mask.sum(dim=1)
        text_tokens = tokens - is_image.sum(dim=1)
        return tuple(text_tokens.tolist())


#: What a request is packed into, on the CPU.
PackedPages = PageInputs | ProcessedPages
#: The same on the model's device.
ModelInputs = DeviceInputs | ProcessedInputs

"""From views of a page and a prompt to what the model reads: one batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ocr_phases.errors import Hinted, OcrPhasesError, explain_wrong_calls
from ocr_phases.families import IMAGE_TAG, Preset
from ocr_phases.inputs.views import PageViews, image_token_count, view_pictures
from ocr_phases.text import count_text

_TITLE = "Inputs, ready for the model"
_MOST_PAGES_SHOWN = 4  # by a notebook's cell
_IMAGE = -1  # an image token before it has its id, which a text may have too

# What each of the 256 grey levels becomes. A table, so that every device gives the same bits: CUDA
# divides by a constant through its reciprocal, which can land on the other side of a bfloat16
# rounding.
_LEVELS = ((torch.arange(256, dtype=torch.float32, device="cpu") / 255 - 0.5) / 0.5).to(
    torch.bfloat16
)


@dataclass(frozen=True, eq=False)
class DeviceInputs:
    """One batch on the model's device, under the names that the native model class takes.

    Row and pixel shapes as in `PageInputs`. pixel_values: None where there is no page.
    num_local_patches: crops of each page; patches_grid: [columns, rows] of each page. position_ids:
    int64 [B, T] counted from each row's first real token; None where no row is padded.
    """

    input_ids: Tensor
    attention_mask: Tensor
    images_seq_mask: Tensor
    pixel_values: Tensor | None
    pixel_values_local: Tensor | None
    num_local_patches: list[int]
    patches_grid: list[list[int]]
    position_ids: Tensor | None

    def followed_by(self, tokens: Tensor) -> DeviceInputs:
        """The same prompts with text ``tokens``, int64 [B, N], behind them."""
        new = tokens.shape[1]
        positions = self.position_ids
        if positions is not None:
            following = positions[:, -1:] + 1 + torch.arange(new, device=tokens.device)
            positions = torch.cat([positions, following], dim=1)
        return replace(
            self,
            input_ids=torch.cat([self.input_ids, tokens], dim=1),
            attention_mask=nn.functional.pad(self.attention_mask, (0, new), value=1),
            images_seq_mask=nn.functional.pad(self.images_seq_mask, (0, new)),
            position_ids=positions,
        )


@dataclass(frozen=True, eq=False, repr=False)
class PageInputs(Hinted):
    """One batch of B prompts of T tokens, ready for a model, still on the CPU.

    input_ids, attention_mask: int64 [B, T], rows padded on the left. images_seq_mask: bool [B, T],
    True at image tokens. views: every page of the batch in row order, views_per_row of them for
    each row.
    """

    input_ids: Tensor
    attention_mask: Tensor
    images_seq_mask: Tensor
    views: tuple[PageViews, ...]
    views_per_row: tuple[int, ...]
    prompts: tuple[str, ...]

    @property
    def presets(self) -> tuple[Preset, ...]:
        """How each page of the batch was cut."""
        return tuple(view.preset for view in self.views)

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
        return not bool(self.attention_mask.all())

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """Image tokens of each row."""
        return tuple(self.images_seq_mask.sum(dim=1).tolist())

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """Text tokens of each row, BOS included, padding not."""
        real = self.attention_mask.sum(dim=1) - self.images_seq_mask.sum(dim=1)
        return tuple(real.tolist())

    @explain_wrong_calls
    def to(self, device: torch.device | str, dtype: torch.dtype) -> DeviceInputs:
        """The batch on `device`; pixels travel as uint8 and become the same bits in `dtype` as on
        the CPU.
        """
        global_views = None
        local_views = None
        if self.views:
            pages = np.stack([view.global_view for view in self.views])
            crops = np.concatenate([view.crops for view in self.views])
            global_views = _normalised(pages, device, dtype)
            if len(crops):
                local_views = _normalised(crops, device, dtype)
        positions = (self.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        return DeviceInputs(
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            images_seq_mask=self.images_seq_mask.to(device),
            pixel_values=global_views,
            pixel_values_local=local_views,
            num_local_patches=[len(view.crops) for view in self.views],
            patches_grid=[list(view.grid) for view in self.views],
            position_ids=positions.to(device) if self.padded else None,
        )

    def __repr__(self) -> str:
        pages = len(self.views)
        return f"PageInputs(rows={self.batch_size}, tokens={self.prefill_len}, pages={pages})"

    def _facts(self) -> dict[str, Any]:
        return {
            "prompt": list(dict.fromkeys(map(repr, self.prompts))),
            "rows": self.batch_size,
            "tokens of a row": self.prefill_len,
            # One number where all rows have as many.
            "image tokens": list(dict.fromkeys(self.image_tokens)),
            "text tokens": list(dict.fromkeys(self.text_tokens)),
            "pages": len(self.views),
        }

    def __str__(self) -> str:
        from ocr_phases.show.section import facts_text

        return facts_text(_TITLE, self._facts())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.section import facts_bundle

        pictures = []
        for views in self.views[:_MOST_PAGES_SHOWN]:
            pictures.extend(view_pictures(views))
        return facts_bundle(_TITLE, self._facts(), pictures)


def _normalised(pixels: np.ndarray, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """uint8 [N, H, W, 3] as `dtype` [N, 3, H, W] on the device, by `_LEVELS`."""
    levels = _LEVELS.to(device, dtype)
    return levels[torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).contiguous().int()]


class Tokens(Protocol):
    """What turns text into ids, without special tokens around it, and the ids of those."""

    @property
    def image_token_id(self) -> int | None:
        """The id that stands for one vision token; every family has one."""

    @property
    def bos_id(self) -> int:
        """The id that begins a row."""

    @property
    def pad_id(self) -> int:
        """The id that fills a shorter row on its left."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""


def pack(views: Sequence[PageViews], prompts: Sequence[str], tokens: Tokens) -> PageInputs:
    """Put pages and prompts together into one batch, one row a prompt.

    Each ``<image>`` of the prompts becomes the image tokens of the next page; the text between is
    tokenised piece by piece; BOS goes in front, padding on the left. Without any page the prompts
    have no ``<image>`` either.

    Raises OcrPhasesError for prompts that have more or fewer ``<image>`` than there are pages, or
    one without any beside pages.
    """
    counts = tuple(prompt.count(IMAGE_TAG) for prompt in prompts)
    lacks_image = bool(views) and not all(counts)
    if lacks_image or sum(counts) != len(views):
        many = "many" if sum(counts) > len(views) else "few"
        whose = "The prompt has" if len(prompts) == 1 else "The prompts have"
        raise OcrPhasesError(
            f"{whose} too {many} {IMAGE_TAG} ({sum(counts)} for {count_text(len(views), 'page')}): "
            "write one for each page."
        )
    views_left = iter(views)
    rows: list[list[int]] = []
    for prompt in prompts:
        first, *pieces = prompt.split(IMAGE_TAG)
        ids = [tokens.bos_id, *tokens.encode(first)]
        for piece in pieces:
            view = next(views_left)
            ids += [_IMAGE] * image_token_count(view.preset, view.grid) + tokens.encode(piece)
        rows.append(ids)
    input_ids = torch.full((len(rows), max(map(len, rows))), tokens.pad_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(rows):
        input_ids[row, -len(ids) :] = torch.tensor(ids)
        attention_mask[row, -len(ids) :] = 1
    images_seq_mask = input_ids == _IMAGE
    assert tokens.image_token_id is not None  # every family has one
    input_ids[images_seq_mask] = tokens.image_token_id
    return PageInputs(
        input_ids, attention_mask, images_seq_mask, tuple(views), counts, tuple(prompts)
    )

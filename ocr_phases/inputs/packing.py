"""From views of a page and a prompt to what the model reads: one batch of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
#: What stands for an image token until all rows are packed: its id, which a text may have too.
_IMAGE_PLACEHOLDER = -1


def _normalised_levels() -> Tensor:
    """What each of the 256 levels of a colour becomes: bfloat16 [256], from -1 to 1.

    A table, so that every device gives the same bits: CUDA divides by a constant through its
    reciprocal, which can land on the other side of a bfloat16 rounding.
    """
    mean = 0.5
    deviation = 0.5
    shares = torch.arange(256, dtype=torch.float32, device="cpu") / 255
    normalised = (shares - mean) / deviation
    return normalised.to(torch.bfloat16)


_LEVELS = _normalised_levels()


@dataclass(frozen=True, eq=False)
class DeviceInputs:
    """One batch of B prompts of T tokens on the model's device, under the names that the native
    model class takes.

    Attributes
    ----------
    input_ids
        The ids of the prompts, int64 [B, T], padded on the left.
    attention_mask
        1 for each token that is no padding, int64 [B, T].
    images_seq_mask
        True at image tokens, bool [B, T].
    pixel_values
        The global view of each of P pages, [P, 3, S, S] from -1 to 1; None where there is no page.
    pixel_values_local
        The crops of all pages, [crops, 3, C, C] from -1 to 1; None where there are none.
    num_local_patches
        The number of crops of each page.
    patches_grid
        ``[columns, rows]`` of each page.
    position_ids
        Positions counted from each row's first real token, int64 [B, T]; None where no row is
        padded.
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
        new_count = tokens.shape[1]
        positions = self.position_ids
        if positions is not None:
            steps = torch.arange(new_count, device=tokens.device)
            following = positions[:, -1:] + 1 + steps
            positions = torch.cat([positions, following], dim=1)
        return replace(
            self,
            input_ids=torch.cat([self.input_ids, tokens], dim=1),
            attention_mask=nn.functional.pad(self.attention_mask, (0, new_count), value=1),
            images_seq_mask=nn.functional.pad(self.images_seq_mask, (0, new_count), value=False),
            position_ids=positions,
        )


@dataclass(frozen=True, eq=False, repr=False)
class PageInputs(Hinted):
    """One batch of B prompts of T tokens, ready for a model, still on the CPU.

    `OCRSession.prepare` makes one.

    Attributes
    ----------
    input_ids
        The ids of the prompts, int64 [B, T], padded on the left.
    attention_mask
        1 for each token that is no padding, int64 [B, T].
    images_seq_mask
        True at image tokens, bool [B, T].
    views
        Every page of the batch in the order of the rows, with its pixels in uint8.
    views_per_row
        How many of the views each row has.
    prompts
        The text of each row's prompt, with ``<image>`` where a page stands.

    Examples
    --------
    >>> inputs = session.prepare("page.png")  # doctest: +SKIP
    >>> inputs.prefill_len, inputs.image_tokens  # doctest: +SKIP
    (912, (903,))
    >>> inputs.to("cuda", torch.bfloat16).pixel_values.shape  # doctest: +SKIP
    torch.Size([1, 3, 1024, 1024])
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
        """The batch on ``device``, with its pixels normalised in ``dtype``.

        Pixels are sent as uint8, which has the fewest bytes, and normalised there by a table, so
        that every device computes the same values.
        """
        pixel_values = None
        pixel_values_local = None
        if self.views:
            pages = np.stack([view.global_view for view in self.views])
            pixel_values = _normalise(pages, device, dtype)
            crops = np.concatenate([view.crops for view in self.views])
            if len(crops) > 0:
                pixel_values_local = _normalise(crops, device, dtype)
        position_ids = None
        if self.padded:
            positions = self.attention_mask.cumsum(dim=1) - 1
            position_ids = positions.clamp(min=0).to(device)  # padding before a row has 0 too
        return DeviceInputs(
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            images_seq_mask=self.images_seq_mask.to(device),
            pixel_values=pixel_values,
            pixel_values_local=pixel_values_local,
            num_local_patches=[len(view.crops) for view in self.views],
            patches_grid=[list(view.grid) for view in self.views],
            position_ids=position_ids,
        )

    def __repr__(self) -> str:
        pages = len(self.views)
        return f"PageInputs(rows={self.batch_size}, tokens={self.prefill_len}, pages={pages})"

    def _facts(self) -> dict[str, Any]:
        """What a cell and a terminal say of the batch: of equal rows, each thing once."""
        different_prompts = dict.fromkeys(self.prompts)
        different_image_tokens = dict.fromkeys(self.image_tokens)
        different_text_tokens = dict.fromkeys(self.text_tokens)
        return {
            "prompt": [repr(prompt) for prompt in different_prompts],
            "rows": self.batch_size,
            "tokens of a row": self.prefill_len,
            "image tokens": list(different_image_tokens),
            "text tokens": list(different_text_tokens),
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


def _normalise(pixels: np.ndarray, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Pixels, uint8 [N, H, W, 3], as ``dtype`` [N, 3, H, W] on the device, by `_LEVELS`."""
    on_device = torch.from_numpy(pixels).to(device)
    channels_first = on_device.permute(0, 3, 1, 2).contiguous()
    levels = _LEVELS.to(device, dtype)
    # Three times as fast on a CPU as an index of four dimensions.
    normalised = levels.index_select(0, channels_first.flatten().int())
    return normalised.view(channels_first.shape)


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

    Parameters
    ----------
    views : sequence of PageViews
        Every page of the batch in the order of the rows.
    prompts : sequence of str
        The text of each row's prompt.
    tokens : Tokens
        A checkpoint's tokenizer and special ids.

    Returns
    -------
    PageInputs
        The batch, on the CPU.

    Raises
    ------
    OcrPhasesError
        For prompts that have more or fewer ``<image>`` than there are pages, and for one without
        any beside pages.

    Examples
    --------
    >>> views = [make_views(image, preset)]  # doctest: +SKIP
    >>> pack(views, ["<image>\\nFree OCR."], session.checkpoint)  # doctest: +SKIP
    PageInputs(rows=1, tokens=279, pages=1)
    """
    pages_of_prompts = tuple(prompt.count(IMAGE_TAG) for prompt in prompts)
    _check_pages(pages_of_prompts, len(views))
    views_left = iter(views)
    rows = [_row_ids(prompt, views_left, tokens) for prompt in prompts]
    longest = max(len(ids) for ids in rows)
    input_ids = torch.full((len(rows), longest), tokens.pad_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(rows):
        input_ids[row, -len(ids) :] = torch.tensor(ids)
        attention_mask[row, -len(ids) :] = 1
    images_seq_mask = input_ids == _IMAGE_PLACEHOLDER
    assert tokens.image_token_id is not None  # every family has one
    input_ids[images_seq_mask] = tokens.image_token_id
    return PageInputs(
        input_ids=input_ids,
        attention_mask=attention_mask,
        images_seq_mask=images_seq_mask,
        views=tuple(views),
        views_per_row=pages_of_prompts,
        prompts=tuple(prompts),
    )


def _check_pages(pages_of_prompts: Sequence[int], page_count: int) -> None:
    """Raise OcrPhasesError unless every page has its ``<image>``, and every prompt a page."""
    image_tags = sum(pages_of_prompts)
    lacks_page = page_count > 0 and 0 in pages_of_prompts
    if image_tags == page_count and not lacks_page:
        return
    subject = "The prompts have"
    if len(pages_of_prompts) == 1:
        subject = "The prompt has"
    amount = "too few"
    if image_tags > page_count:
        amount = "too many"
    raise OcrPhasesError(
        f"{subject} {amount} {IMAGE_TAG} ({image_tags} for {count_text(page_count, 'page')}): "
        "write one for each page."
    )


def _row_ids(prompt: str, views_left: Iterator[PageViews], tokens: Tokens) -> list[int]:
    """The ids of a row, with `_IMAGE_PLACEHOLDER` for image tokens; takes its pages off
    ``views_left``.
    """
    first_text, *later_texts = prompt.split(IMAGE_TAG)
    ids = [tokens.bos_id, *tokens.encode(first_text)]
    for text in later_texts:
        view = next(views_left)
        image_tokens = image_token_count(view.preset, view.grid)
        ids += [_IMAGE_PLACEHOLDER] * image_tokens
        ids += tokens.encode(text)
    return ids

"""From a page and a prompt to what the model reads: presets, tiling into views, image tokens, batches.

Every size, grid and count here reproduces the vendor's preprocessing as recorded (9 pages in 5 presets).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError, public
from ocr_phases.families import IMAGE_TAG, FamilyFacts, Preset
from ocr_phases.files import each_page
from ocr_phases.inputs.images import as_rgb
from ocr_phases.record import elsewhere
from ocr_phases.settings import RunSettings
from ocr_phases.text import count_text

Page = str | Path | bytes | Image.Image
Pages = Page | Sequence[Page]

_PIXELS_PER_TOKEN = 16 * 4  # per side: patches of 16, then two convolutions of stride 2
_PAD_COLOUR = (127, 127, 127)
_IMAGE = -1  # an image token before it has its id, which a text may have too

# What each of the 256 grey levels becomes. A table, so that every device gives the same bits: CUDA divides by
# a constant through its reciprocal, which can land on the other side of a bfloat16 rounding.
_LEVELS = ((torch.arange(256, dtype=torch.float32, device="cpu") / 255 - 0.5) / 0.5).to(torch.bfloat16)


@dataclass(frozen=True, eq=False, repr=False)
class PageViews:
    """One page cut for one preset of base size S and image size C.

    global_view: uint8 [S, S, 3]. crops: uint8 [n, C, C, 3] row by row, n = columns x rows, or 0 without
    crops. grid: (columns, rows), (1, 1) without crops. size: the page's (width, height) in pixels.
    """

    global_view: np.ndarray
    crops: np.ndarray
    grid: tuple[int, int]
    size: tuple[int, int]
    preset: Preset

    def __repr__(self) -> str:
        return f"PageViews(preset={self.preset.name!r}, size={self.size}, grid={self.grid})"


def make_views(page: Image.Image, preset: Preset) -> PageViews:
    """Cut one upright page (from `load_page`; any mode is converted by `as_rgb`) as the preset says.

    Presets without crops: the page is squeezed into a small square (`Preset.squeezes`), into a larger one it
    is scaled to fit and padded with grey 127. With crops: the global view is padded, and a page with a side
    above the image size is also stretched to the grid of `Preset.grid` and cut into its tiles. All scaling is
    bicubic. Bit-exact with the recorded vendor preprocessing; only pages so thin that they vanish there keep
    one line of pixels here.

    Raises OcrPhasesError for a page of no pixels or of a mode that cannot be converted.
    """
    page = as_rgb(page)
    if preset.squeezes:
        global_view = page.resize((preset.base_size, preset.base_size), Image.Resampling.BICUBIC)
    else:
        global_view = _padded(page, preset.base_size)
    grid = preset.grid(*page.size)
    crops = _tiles(page, grid, preset.image_size)
    return PageViews(np.asarray(global_view), crops, grid, page.size, preset)


def _padded(page: Image.Image, side: int) -> Image.Image:
    """The page scaled to fit a square, centred on grey."""
    width = height = side
    if page.width > page.height:
        height = max(1, round(page.height / page.width * side))
    else:
        width = max(1, round(page.width / page.height * side))
    view = Image.new("RGB", (side, side), _PAD_COLOUR)
    scaled = page.resize((width, height), Image.Resampling.BICUBIC)
    view.paste(scaled, (round((side - width) * 0.5), round((side - height) * 0.5)))
    return view


def _tiles(page: Image.Image, grid: tuple[int, int], side: int) -> np.ndarray:
    """uint8 [columns x rows, side, side, 3], row by row; none for the grid (1, 1)."""
    columns, rows = grid
    if grid == (1, 1):
        return np.zeros((0, side, side, 3), np.uint8)
    pixels = np.asarray(page.resize((columns * side, rows * side), Image.Resampling.BICUBIC))
    return pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)


def _queries(side: int) -> int:
    """Vision tokens along one side of a square view of `side` pixels."""
    return math.ceil(side / _PIXELS_PER_TOKEN)


def image_token_count(preset: Preset, grid: tuple[int, int]) -> int:
    """How many image tokens one page takes in the prompt.

    The global view is q rows of q tokens and a separator; the crops add their own rows across the whole grid.
    With row ends a line break follows each row: 73, 111, 273 and 421 for DeepSeek-OCR's presets, gundam 273
    without crops and 903 for 2 x 3. Measured against the recorded vendor preprocessing.
    """
    count = _queries(preset.base_size) ** 2 + image_break_count(preset, grid)
    return count if grid == (1, 1) else count + math.prod(grid) * _queries(preset.image_size) ** 2


def image_break_count(preset: Preset, grid: tuple[int, int]) -> int:
    """How many of a page's image tokens are line breaks and the separator, which no vision vector fills."""
    if not preset.row_ends:
        return 1
    rows = 0 if grid == (1, 1) else grid[1] * _queries(preset.image_size)
    return _queries(preset.base_size) + 1 + rows


def valid_image_tokens(preset: Preset, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """How many vision tokens show the page and not padding, by the vendor's formula.

    A padded global view of q x q tokens counts by the page's shorter side over its longer one, rounded down;
    a squeezed one counts whole; each crop counts whole. `size` is the page's (width, height) in pixels. The
    formula is DeepSeek-OCR's for base sizes 1024 and 1280 (and 512 and 640 without crops); other sizes and
    families follow the same rule.
    """
    full = _queries(preset.base_size) ** 2
    if preset.squeezes:
        return full
    ratio = 1 - (max(size) - min(size)) / max(size)
    crops = 0 if grid == (1, 1) else math.prod(grid)
    return int(full * ratio) + crops * _queries(preset.image_size) ** 2


@dataclass(frozen=True, eq=False)
class DeviceInputs:
    """One batch on the model's device, under the names that the native model class takes.

    Row and pixel shapes as in `PageInputs`. num_local_patches: crops of each page; patches_grid: [columns,
    rows] of each page. position_ids: int64 [B, T] counted from each row's first real token; None where no row
    is padded.
    """

    input_ids: Tensor
    attention_mask: Tensor
    images_seq_mask: Tensor
    pixel_values: Tensor
    pixel_values_local: Tensor | None
    num_local_patches: list[int]
    patches_grid: list[list[int]]
    position_ids: Tensor | None

    def followed_by(self, tokens: Tensor) -> DeviceInputs:
        """The same prompts with text ``tokens``, int64 [B, N], behind them."""
        positions, new = self.position_ids, tokens.shape[1]
        if positions is not None:
            positions = torch.cat(
                [positions, positions[:, -1:] + 1 + torch.arange(new, device=tokens.device)], 1
            )
        return replace(
            self,
            input_ids=torch.cat([self.input_ids, tokens], dim=1),
            attention_mask=nn.functional.pad(self.attention_mask, (0, new), value=1),
            images_seq_mask=nn.functional.pad(self.images_seq_mask, (0, new)),
            position_ids=positions,
        )


@public
@dataclass(frozen=True, eq=False, repr=False)
class PageInputs:
    """One batch of B prompts of T tokens, ready for a model, still on the CPU.

    input_ids, attention_mask: int64 [B, T], rows padded on the left. images_seq_mask: bool [B, T], True at
    image tokens. views: every page of the batch in row order, views_per_row of them for each row.
    """

    input_ids: Tensor
    attention_mask: Tensor
    images_seq_mask: Tensor
    views: tuple[PageViews, ...]
    views_per_row: tuple[int, ...]
    prompts: tuple[str, ...]

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

    def to(self, device: torch.device | str, dtype: torch.dtype) -> DeviceInputs:
        """The batch on `device`; pixels travel as uint8 and become the same bits in `dtype` as on the CPU."""
        pages = np.stack([view.global_view for view in self.views])
        crops = np.concatenate([view.crops for view in self.views])
        positions = (self.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        return DeviceInputs(
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            images_seq_mask=self.images_seq_mask.to(device),
            pixel_values=_normalised(pages, device, dtype),
            pixel_values_local=_normalised(crops, device, dtype) if len(crops) else None,
            num_local_patches=[len(view.crops) for view in self.views],
            patches_grid=[list(view.grid) for view in self.views],
            position_ids=positions.to(device) if self.padded else None,
        )

    def __repr__(self) -> str:
        return f"PageInputs(rows={self.batch_size}, tokens={self.prefill_len}, pages={len(self.views)})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return elsewhere("show.results.inputs_bundle")(self)


def _normalised(pixels: np.ndarray, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """uint8 [N, H, W, 3] as `dtype` [N, 3, H, W] on the device, by `_LEVELS`."""
    levels = _LEVELS.to(device, dtype)
    return levels[torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).contiguous().int()]


def make_rows(page: Pages, asked: RunSettings, family: FamilyFacts) -> tuple[list[Page], list[str]]:
    """All pages in their order, and one resolved prompt a row, as the ``family`` has prompts.

    A list of pages, or ``file.pdf#2-4``, is a batch of one page a row; with a single prompt that names
    several ``<image>``, or the family's prompt for many pages, it is one row of several pages.
    """
    given = list(page) if isinstance(page, Iterable) and not isinstance(page, str | bytes) else [page]
    if not given:
        raise OcrPhasesError("There is no page in the list: give at least one.")
    named = (each_page(str(item)) if isinstance(item, str | Path) else [item] for item in given)
    pages: list[Page] = list(itertools.chain.from_iterable(named))
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    count = len(pages) if len(prompts) == 1 else 1
    texts = [family.text_of(text, grounding=asked.grounding, pages=count) for text in prompts]
    return pages, texts * len(pages) if len(texts) == 1 and texts[0].count(IMAGE_TAG) == 1 else texts


class Tokens(Protocol):
    """What turns text into ids, without special tokens around it, and the ids of those."""

    @property
    def image_token_id(self) -> int:
        """The id that stands for one vision token."""

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

    Each ``<image>`` of the prompts becomes the image tokens of the next page; the text between is tokenised
    piece by piece; BOS goes in front, padding on the left.

    Raises OcrPhasesError for prompts that have more or fewer ``<image>`` than there are pages, or one without
    any, and for pages of different presets.
    """
    counts = tuple(prompt.count(IMAGE_TAG) for prompt in prompts)
    if not all(counts) or sum(counts) != len(views):
        many = "many" if sum(counts) > len(views) else "few"
        whose = "The prompt has" if len(prompts) == 1 else "The prompts have"
        raise OcrPhasesError(
            f"{whose} too {many} {IMAGE_TAG} ({sum(counts)} for {count_text(len(views), 'page')}): "
            "write one for each page."
        )
    presets = {view.preset for view in views}
    if len(presets) > 1:
        names = ", ".join(sorted(preset.name for preset in presets))
        raise OcrPhasesError(f"All pages of a batch must have the same preset: cut them for one of {names}.")
    left, rows = iter(views), []
    for prompt in prompts:
        first, *pieces = prompt.split(IMAGE_TAG)
        ids = [tokens.bos_id, *tokens.encode(first)]
        for piece in pieces:
            view = next(left)
            ids += [_IMAGE] * image_token_count(view.preset, view.grid) + tokens.encode(piece)
        rows.append(ids)
    input_ids = torch.full((len(rows), max(map(len, rows))), tokens.pad_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(rows):
        input_ids[row, -len(ids) :] = torch.tensor(ids)
        attention_mask[row, -len(ids) :] = 1
    images_seq_mask = input_ids == _IMAGE
    input_ids[images_seq_mask] = tokens.image_token_id
    return PageInputs(input_ids, attention_mask, images_seq_mask, tuple(views), counts, tuple(prompts))

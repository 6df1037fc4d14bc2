"""From a page and a prompt to what the model reads: presets, tiling into views, image tokens, batches.

Every size, grid and count here reproduces the vendor's preprocessing as recorded (9 pages in 5 presets).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError, public
from ocr_phases.families import IMAGE_TAG, Preset
from ocr_phases.inputs.images import as_rgb
from ocr_phases.record import elsewhere
from ocr_phases.text import count_text

_PIXELS_PER_TOKEN = 16 * 4  # per side: patches of 16, then two convolutions of stride 2
_PAD_COLOUR = (127, 127, 127)

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


def pack(
    views_per_row: Sequence[Sequence[PageViews]],
    prompts: Sequence[str],
    encode: Callable[[str], list[int]],
    *,
    image_token_id: int,
    bos_token_id: int,
    pad_token_id: int,
) -> PageInputs:
    """Put pages and prompts together into one batch, one row a prompt.

    Each ``<image>`` of a prompt becomes the image tokens of that row's next page; the text between is
    tokenised piece by piece with `encode`, which must add no special tokens; BOS goes in front, padding on
    the left.

    Raises OcrPhasesError for an empty batch, rows and prompts of different number, a row without a page, a
    prompt with more or fewer ``<image>`` than its row has pages, and pages of different presets.
    """
    if not prompts or len(views_per_row) != len(prompts):
        raise OcrPhasesError(
            f"Give one list of pages for each prompt: got {len(views_per_row)} for {len(prompts)} prompts."
        )
    views = tuple(view for row in views_per_row for view in row)
    presets = {view.preset for view in views}
    if len(presets) > 1:
        names = ", ".join(sorted(preset.name for preset in presets))
        raise OcrPhasesError(f"All pages of a batch must have the same preset: cut them for one of {names}.")
    rows = [
        _row(*pair, encode, image_token_id, bos_token_id) for pair in zip(views_per_row, prompts, strict=True)
    ]
    shape = len(rows), max(len(row) for row, _ in rows)
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    images_seq_mask = torch.zeros(shape, dtype=torch.bool)
    for index, (ids, is_image) in enumerate(rows):
        input_ids[index, -len(ids) :] = torch.tensor(ids, dtype=torch.int64)
        attention_mask[index, -len(ids) :] = 1
        images_seq_mask[index, -len(ids) :] = torch.tensor(is_image)
    counts = tuple(len(row) for row in views_per_row)
    return PageInputs(input_ids, attention_mask, images_seq_mask, views, counts, tuple(prompts))


def _row(
    views: Sequence[PageViews],
    prompt: str,
    encode: Callable[[str], list[int]],
    image_token_id: int,
    bos_token_id: int,
) -> tuple[list[int], list[bool]]:
    """One prompt's token ids, and for each whether it is an image token."""
    pieces = prompt.split(IMAGE_TAG)
    wanted, given = len(pieces) - 1, len(views)
    if not given:
        raise OcrPhasesError(f"The prompt {prompt!r} has no page: give at least one for each prompt.")
    if wanted != given:
        many = "few" if wanted < given else "many"
        raise OcrPhasesError(
            f"The prompt has too {many} {IMAGE_TAG} ({wanted} for {count_text(given, 'page')}): "
            "write one for each page."
        )
    ids, is_image = [bos_token_id], [False]
    for index, piece in enumerate(pieces):
        if index:
            count = image_token_count(views[index - 1].preset, views[index - 1].grid)
            ids += [image_token_id] * count
            is_image += [True] * count
        text = encode(piece) if piece else []
        ids += text
        is_image += [False] * len(text)
    return ids, is_image

"""How a page is cut, how many image tokens that takes, and which prompts its rows have; no torch is
needed.

Every size, grid and count here reproduces the vendor's preprocessing as recorded (9 pages in 5
presets).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import IMAGE_TAG, FamilyFacts, Preset
from ocr_phases.files import each_page
from ocr_phases.images import as_rgb
from ocr_phases.settings import RunSettings
from ocr_phases.text import count_text

Page = str | Path | bytes | Image.Image
Pages = Page | Sequence[Page]

_PIXELS_PER_TOKEN = 16 * 4  # per side: patches of 16, then two convolutions of stride 2
_PAD_COLOUR = (127, 127, 127)


@dataclass(frozen=True, eq=False, repr=False)
class PageViews:
    """One page cut for one preset of base size S and image size C.

    global_view: uint8 [S, S, 3]. crops: uint8 [n, C, C, 3] row by row, n = columns x rows, or 0
    without crops. grid: (columns, rows), (1, 1) without crops. size: the page's (width, height) in
    pixels.
    """

    global_view: np.ndarray
    crops: np.ndarray
    grid: tuple[int, int]
    size: tuple[int, int]
    preset: Preset

    def __repr__(self) -> str:
        return f"PageViews(preset={self.preset.name!r}, size={self.size}, grid={self.grid})"


def make_views(page: Image.Image, preset: Preset) -> PageViews:
    """Cut one upright page (from `load_page`; any mode is converted by `as_rgb`) as the preset
    says.

    Presets without crops: the page is squeezed into a small square (`Preset.squeezes`), into a
    larger one it is scaled to fit and padded with grey 127. With crops: the global view is padded,
    and a page with a side above the image size is also stretched to the grid of `Preset.grid` and
    cut into its tiles. All scaling is bicubic. Bit-exact with the recorded vendor preprocessing;
    only pages so thin that they vanish there keep one line of pixels here.

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


def view_pictures(views: PageViews) -> list[tuple[Image.Image, str]]:
    """A page's global view, and its crops joined with their cuts drawn, each with its caption."""
    from ocr_phases.show.boxes import draw_crops

    preset = views.preset
    width, height = views.size
    side = preset.base_size
    global_tokens = image_token_count(preset, (1, 1))
    caption = (
        f"{preset.name}: page of {width} x {height} px, global view {side} x {side} px, "
        f"{count_text(global_tokens, 'token')}"
    )
    pictures = [(Image.fromarray(views.global_view), caption)]
    if len(views.crops):
        columns, rows = views.grid
        side = preset.image_size
        crop_tokens = image_token_count(preset, views.grid) - global_tokens
        caption = (
            f"{columns} x {rows} crops of {side} x {side} px, {count_text(crop_tokens, 'token')}"
        )
        pictures.append((draw_crops(views.crops, views.grid), caption))
    return pictures


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

    The global view is q rows of q tokens and a separator; the crops add their own rows across the
    whole grid. With row ends a line break follows each row: 73, 111, 273 and 421 for DeepSeek-OCR's
    presets, gundam 273 without crops and 903 for 2 x 3. Measured against the recorded vendor
    preprocessing.
    """
    count = _queries(preset.base_size) ** 2 + image_break_count(preset, grid)
    return count if grid == (1, 1) else count + math.prod(grid) * _queries(preset.image_size) ** 2


def image_break_count(preset: Preset, grid: tuple[int, int]) -> int:
    """How many of a page's image tokens are line breaks and the separator, which no vision vector
    fills.
    """
    if not preset.row_ends:
        return 1
    rows = 0 if grid == (1, 1) else grid[1] * _queries(preset.image_size)
    return _queries(preset.base_size) + 1 + rows


def valid_image_tokens(preset: Preset, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """How many vision tokens show the page and not padding, by the vendor's formula.

    A padded global view of q x q tokens counts by the page's shorter side over its longer one,
    rounded down; a squeezed one counts whole; each crop counts whole. `size` is the page's (width,
    height) in pixels. The formula is DeepSeek-OCR's for base sizes 1024 and 1280 (and 512 and 640
    without crops); other sizes and families follow the same rule.
    """
    full = _queries(preset.base_size) ** 2
    if preset.squeezes:
        return full
    ratio = 1 - (max(size) - min(size)) / max(size)
    crops = 0 if grid == (1, 1) else math.prod(grid)
    return int(full * ratio) + crops * _queries(preset.image_size) ** 2


def make_rows(page: Pages, asked: RunSettings, family: FamilyFacts) -> tuple[list[Page], list[str]]:
    """All pages in their order, and one resolved prompt a row, as the ``family`` has prompts.

    A list of pages, or ``file.pdf#2-4``, is a batch of one page a row; with a single prompt that
    names several ``<image>``, or the family's prompt for many pages, it is one row of several
    pages.
    """
    given = (
        list(page) if isinstance(page, Iterable) and not isinstance(page, str | bytes) else [page]
    )
    if not given:
        raise OcrPhasesError("There is no page in the list: give at least one.")
    named = (each_page(str(item)) if isinstance(item, str | Path) else [item] for item in given)
    pages: list[Page] = list(itertools.chain.from_iterable(named))
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    count = len(pages) if len(prompts) == 1 else 1
    texts = [family.text_of(text, grounding=asked.grounding, pages=count) for text in prompts]
    # A prompt without a mark for the page stands for each page, too.
    if len(texts) == 1 and (family.is_unknown or texts[0].count(IMAGE_TAG) == 1):
        texts = texts * len(pages)
    return pages, texts

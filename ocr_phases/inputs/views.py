"""How a page is cut into views, and how many image tokens they take; no torch is needed.

Every size, grid and count here reproduces the vendor's preprocessing as recorded (9 pages in 5
presets).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ocr_phases.families import Preset
from ocr_phases.images import as_rgb
from ocr_phases.text import count_text

#: Pixels along a side of a view that become one vision token: patches of 16, then two convolutions
#: of stride 2.
_PIXELS_PER_TOKEN = 16 * 4
_PAD_COLOUR = (127, 127, 127)
#: The grid of a page that is not cut into crops, in ``(columns, rows)``.
_UNCUT = (1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class PageViews:
    """One page cut for one preset of base size S and image size C.

    Attributes
    ----------
    global_view
        The whole page, uint8 [S, S, 3].
    crops
        Its tiles row by row, uint8 [n, C, C, 3] with n = columns x rows; n is 0 without crops.
    grid
        ``(columns, rows)`` of the crops; (1, 1) without crops.
    size
        ``(width, height)`` of the page in pixels.
    preset
        How the page was cut.
    """

    global_view: np.ndarray
    crops: np.ndarray
    grid: tuple[int, int]
    size: tuple[int, int]
    preset: Preset

    def __repr__(self) -> str:
        return f"PageViews(preset={self.preset.name!r}, size={self.size}, grid={self.grid})"


def make_views(page: Image.Image, preset: Preset) -> PageViews:
    """Cut one page as its preset says.

    Without crops a page is squeezed into a small square (`Preset.squeezes`); into a larger one it
    is scaled to fit and padded with grey 127. With crops the global view is padded, and a page
    with a side above `Preset.small_side` is also stretched to the grid of `Preset.grid` and cut
    into its tiles. All scaling is bicubic. The pixels are those of the recorded vendor
    preprocessing, bit for bit; only pages so thin that they vanish there keep one line of pixels
    here.

    Parameters
    ----------
    page : PIL.Image.Image
        An upright page, as `ocr_phases.images.load_page` gives it, of any mode.
    preset : Preset
        Sizes in pixels, and how the page is cut.

    Returns
    -------
    PageViews
        The global view and the crops, RGB in uint8.

    Raises
    ------
    OcrPhasesError
        For a page of no pixels, and for one of a mode that cannot be converted.

    Examples
    --------
    >>> from ocr_phases.families import FAMILIES
    >>> page = Image.new("RGB", (1000, 1400), "white")
    >>> make_views(page, FAMILIES["deepseek-ocr"].presets["gundam"])
    PageViews(preset='gundam', size=(1000, 1400), grid=(2, 3))
    """
    page = as_rgb(page)
    side = preset.base_size
    if preset.squeezes:
        global_view = page.resize((side, side), Image.Resampling.BICUBIC)
    else:
        global_view = _fit_into_square(page, side)
    grid = preset.grid(*page.size)
    return PageViews(
        global_view=np.asarray(global_view),
        crops=_cut_into_tiles(page, grid, preset.image_size),
        grid=grid,
        size=page.size,
        preset=preset,
    )


def view_pictures(views: PageViews) -> list[tuple[Image.Image, str]]:
    """The pictures of a page's views with their captions: the global view and, where there are
    crops, all of them joined, with the cuts drawn.
    """
    from ocr_phases.show.boxes import draw_crops

    preset = views.preset
    width, height = views.size
    global_tokens = image_token_count(preset, _UNCUT)
    global_caption = (
        f"{preset.name}: page of {width} x {height} px, "
        f"global view {preset.base_size} x {preset.base_size} px, "
        f"{count_text(global_tokens, 'token')}"
    )
    pictures = [(Image.fromarray(views.global_view), global_caption)]
    if len(views.crops) > 0:
        columns, rows = views.grid
        crop_tokens = image_token_count(preset, views.grid) - global_tokens
        crops_caption = (
            f"{columns} x {rows} crops of {preset.image_size} x {preset.image_size} px, "
            f"{count_text(crop_tokens, 'token')}"
        )
        pictures.append((draw_crops(views.crops, views.grid), crops_caption))
    return pictures


def _fit_into_square(page: Image.Image, side: int) -> Image.Image:
    """The page scaled to fit a square of ``side`` pixels, centred on grey."""
    width = side
    height = side
    if page.width > page.height:
        height = max(1, round(page.height / page.width * side))
    else:
        width = max(1, round(page.width / page.height * side))
    scaled = page.resize((width, height), Image.Resampling.BICUBIC)
    left = round((side - width) * 0.5)
    top = round((side - height) * 0.5)
    square = Image.new("RGB", (side, side), _PAD_COLOUR)
    square.paste(scaled, (left, top))
    return square


def _cut_into_tiles(page: Image.Image, grid: tuple[int, int], side: int) -> np.ndarray:
    """The page stretched to a grid of square tiles, uint8 [columns x rows, side, side, 3], row by
    row; no tiles for a page that is not cut.
    """
    if grid == _UNCUT:
        return np.zeros((0, side, side, 3), np.uint8)
    columns, rows = grid
    stretched = page.resize((columns * side, rows * side), Image.Resampling.BICUBIC)
    pixels = np.asarray(stretched).reshape(rows, side, columns, side, 3)
    tiles = pixels.transpose(0, 2, 1, 3, 4)  # row, column, then the pixels of one tile
    return tiles.reshape(columns * rows, side, side, 3)


def _tokens_per_side(side: int) -> int:
    """Vision tokens along one side of a square view of ``side`` pixels."""
    return math.ceil(side / _PIXELS_PER_TOKEN)


def _crop_count(grid: tuple[int, int]) -> int:
    """Crops of a page; 0 for one that is not cut, whose grid is (1, 1)."""
    if grid == _UNCUT:
        return 0
    columns, rows = grid
    return columns * rows


def image_token_count(preset: Preset, grid: tuple[int, int]) -> int:
    """How many image tokens one page takes in the prompt.

    The global view is q rows of q tokens and a separator; the crops add their own rows across the
    whole grid. With row ends a line break follows each row: 73, 111, 273 and 421 for DeepSeek-OCR's
    presets, gundam 273 without crops and 903 for 2 x 3. Measured against the recorded vendor
    preprocessing.

    Parameters
    ----------
    preset : Preset
        How the page is cut.
    grid : (int, int)
        ``(columns, rows)`` of the page's crops, from `Preset.grid`; (1, 1) without crops.

    Examples
    --------
    >>> from ocr_phases.families import FAMILIES
    >>> image_token_count(FAMILIES["deepseek-ocr"].presets["gundam"], (2, 3))
    903
    """
    global_tokens = _tokens_per_side(preset.base_size) ** 2
    crop_tokens = _crop_count(grid) * _tokens_per_side(preset.image_size) ** 2
    return global_tokens + crop_tokens + image_break_count(preset, grid)


def image_break_count(preset: Preset, grid: tuple[int, int]) -> int:
    """How many of a page's image tokens are line breaks and the separator, which no vision vector
    fills.

    ``grid`` is as for `image_token_count`.
    """
    separator = 1
    if not preset.row_ends:
        return separator
    breaks = _tokens_per_side(preset.base_size)
    if grid != _UNCUT:
        rows = grid[1]
        breaks += rows * _tokens_per_side(preset.image_size)
    return breaks + separator


def valid_image_tokens(preset: Preset, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """How many vision tokens show the page and not padding, by the vendor's formula.

    A padded global view of q x q tokens counts by the page's shorter side over its longer one,
    rounded down; a squeezed one counts whole; each crop counts whole. The formula is DeepSeek-OCR's
    for base sizes 1024 and 1280 (and 512 and 640 without crops); other sizes and families follow
    the same rule.

    Parameters
    ----------
    preset : Preset
        How the page is cut.
    size : (int, int)
        ``(width, height)`` of the page in pixels.
    grid : (int, int)
        ``(columns, rows)`` of the page's crops; (1, 1) without crops.
    """
    global_tokens = _tokens_per_side(preset.base_size) ** 2
    if preset.squeezes:
        return global_tokens
    longer = max(size)
    shorter = min(size)
    # Not shorter / longer: the vendor's way may round down to one token less.
    page_part = 1 - (longer - shorter) / longer
    crop_tokens = _crop_count(grid) * _tokens_per_side(preset.image_size) ** 2
    return int(global_tokens * page_part) + crop_tokens

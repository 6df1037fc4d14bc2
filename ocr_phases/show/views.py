"""Pictures of a page's views: the global view and the grid of crops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from ocr_phases.show.overlay import LABEL_COLOURS, page_font
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.inputs.packing import PageViews

_LINE = LABEL_COLOURS["image"]


def draw_crops(crops: np.ndarray, grid: tuple[int, int]) -> Image.Image:
    """Crops uint8 [columns x rows, C, C, 3] put together again, with their cuts and numbers drawn."""
    columns, rows = grid
    side = crops.shape[1]
    joined = (
        crops.reshape(rows, columns, side, side, 3).swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    )
    canvas = Image.fromarray(joined)
    draw = ImageDraw.Draw(canvas)
    size = side // 14
    font = page_font(size, bold=True)
    for number in range(columns * rows):
        left, top = number % columns * side, number // columns * side
        draw.rectangle((left, top, left + side, top + side), outline=_LINE, width=max(2, side // 160))
        text = str(number + 1)
        draw.rectangle((left, top, left + font.getlength(text) + size, top + 1.5 * size), fill=_LINE)
        draw.text((left + size / 2, top + 0.75 * size), text, font=font, fill=(255, 255, 255), anchor="lm")
    return canvas


def view_pictures(views: PageViews) -> list[tuple[Image.Image, str]]:
    """A page's global view, and its crops joined with their cuts drawn, each with its caption."""
    from ocr_phases.inputs.packing import image_token_count  # of the measuring half: only now

    preset, (columns, rows) = views.preset, views.grid
    tokens = image_token_count(preset, (1, 1))
    page, side = f"{views.size[0]} x {views.size[1]} px", preset.base_size
    whole = f"{preset.name}: page of {page}, global view {side} x {side} px, {count_text(tokens, 'token')}"
    pictures = [(Image.fromarray(views.global_view), whole)]
    if len(views.crops):
        side, tokens = preset.image_size, image_token_count(preset, views.grid) - tokens
        cut = f"{columns} x {rows} crops of {side} x {side} px, {count_text(tokens, 'token')}"
        pictures.append((draw_crops(views.crops, views.grid), cut))
    return pictures

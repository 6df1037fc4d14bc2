"""What stands in a picture: charts and photographs.

Words in a picture belong to it: they are no region's text.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from PIL import Image, ImageDraw, ImageFilter

from benchmarks.random_pages.faces import Face
from benchmarks.random_pages.sheet import Colour, Pixels, Sheet

_HUES = (
    (58, 92, 138),
    (176, 82, 60),
    (92, 140, 84),
    (150, 110, 160),
    (205, 160, 70),
    (84, 90, 102),
    (40, 130, 140),
)


def chart(sheet: Sheet, box: Pixels) -> None:
    """Bars, curves or dots, with axes and their numbers."""
    rng, draw = sheet.rng, sheet.draw
    x1, y1, x2, y2 = box
    _frame(sheet, box, 0.6)
    form = rng.choice(("bars", "bars", "curves", "dots"))
    hues = rng.sample(_HUES, 4)
    wide, high = x2 - x1, y2 - y1
    left, right, top, bottom = x1 + 0.14 * wide, x2 - 0.05 * wide, y1 + 0.1 * high, y2 - 0.16 * high
    thin = max(1, high // 90)
    face = sheet.face("regular", 0.6)
    if rng.random() < 0.6 and face.size * 8 < high and face.width("100") < 0.13 * wide:
        for mark in range(4):
            y = bottom - mark * (bottom - top) / 3.2
            _label(sheet, face, str(mark * 25), x1 + 2, round(y + face.rise / 2))
    count = rng.randint(4, 9)
    values = [rng.uniform(0.1, 1.0) for _ in range(count)]
    step = (right - left) / count
    points = [(left + (i + 0.5) * step, bottom - v * (bottom - top)) for i, v in enumerate(values)]
    for i, (x, y) in enumerate(points):
        if form == "bars":
            draw.rectangle((x - 0.35 * step, y, x + 0.35 * step, bottom), fill=hues[i % 2])
        elif form == "dots":
            r = max(2, high / 40)
            draw.ellipse((x - r, y - r, x + r, y + r), fill=hues[0])
    if form == "curves":
        draw.line(points, fill=hues[0], width=2 * thin)
        draw.line([(x, (y + bottom) / 2) for x, y in points], fill=hues[1], width=2 * thin)
    draw.line((left, top, left, bottom, right, bottom), fill=sheet.look.ink, width=thin)


def photograph(sheet: Sheet, box: Pixels) -> None:
    """Blurred light and shapes."""
    rng = sheet.rng
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    small = Image.new("RGB", (48, 32), _shade(rng, rng.choice(_HUES)))
    draw = ImageDraw.Draw(small)
    draw.rectangle((0, rng.randint(14, 24), 48, 32), fill=_shade(rng, rng.choice(_HUES)))
    for _ in range(rng.randint(3, 9)):
        x, y, r = rng.randint(0, 47), rng.randint(0, 31), rng.randint(2, 11)
        shape = rng.choice((draw.ellipse, draw.rectangle))
        shape((x - r, y - r, x + r, y + r), fill=_shade(rng, rng.choice(_HUES)))
    soft = small.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2)))
    sheet.image.paste(soft.resize((wide, high), Image.Resampling.BILINEAR), (x1, y1))


Painter = Callable[[Sheet, Pixels], None]
#: Pictures that go with a caption.
PAINTERS: tuple[Painter, ...] = (chart, photograph)


def picture(sheet: Sheet, paint: Painter, height: int, width: int = 0, align: str = "left") -> bool:
    """A region without text; ``width`` 0 is the column's. Not drawn where it would be a mere
    speck.
    """
    height = min(height, sheet.room - 2)
    width = min(width or sheet.width, sheet.width)
    if height < max(30, sheet.image.height // 16) or width < 40:
        return False
    x = {"left": sheet.left, "centre": sheet.left + (sheet.width - width) // 2}.get(
        align, sheet.right - width
    )
    box = (x, sheet.y, x + width, sheet.y + height)
    paint(sheet, box)
    sheet.record("image", box, "")
    return True


def _label(
    sheet: Sheet, face: Face, text: str, x: int, baseline: int, colour: Colour | None = None
) -> None:
    if sheet.words.shows(text):
        sheet.draw.text(
            (x, baseline), text, fill=colour or sheet.look.ink, font=face.font, anchor="ls"
        )


def _frame(sheet: Sheet, box: Pixels, filled: float) -> None:
    """The panel a picture stands on: always an outline, so that its extent can be seen."""
    x1, y1, x2, y2 = box
    light = sheet.look.paper if sheet.rng.random() > filled else sheet.look.panel
    sheet.draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill=light, outline=sheet.look.ink)


def _shade(rng: random.Random, hue: Colour) -> Colour:
    factor = rng.uniform(0.5, 1.5)
    red, green, blue = (min(255, round(v * factor)) for v in hue)
    return red, green, blue

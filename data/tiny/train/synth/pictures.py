"""What stands in a picture: charts, diagrams, photographs, codes, signatures, stamps.

Words in a picture belong to it: they are no region's text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from PIL import Image, ImageDraw, ImageFilter

from synth.fonts import Face
from synth.page import Pixels
from synth.sheet import Colour, Sheet

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
    """Bars, curves, dots or a pie, with axes and their numbers."""
    rng, draw = sheet.rng, sheet.draw
    x1, y1, x2, y2 = box
    _frame(sheet, box, 0.6)
    form = rng.choice(("bars", "bars", "curves", "dots", "pie"))
    hues = rng.sample(_HUES, 4)
    wide, high = x2 - x1, y2 - y1
    if form == "pie":
        side = 0.8 * min(wide, high)
        middle = ((x1 + x2) / 2, (y1 + y2) / 2)
        corners = (middle[0] - side / 2, middle[1] - side / 2, middle[0] + side / 2, middle[1] + side / 2)
        cuts = sorted(rng.uniform(0, 360) for _ in range(3))
        for hue, start, end in zip(hues, cuts, [*cuts[1:], cuts[0] + 360], strict=False):
            draw.pieslice(corners, start, end, fill=hue)
        return
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


def diagram(sheet: Sheet, box: Pixels) -> None:
    """Boxes in a row, joined by arrows."""
    rng, draw = sheet.rng, sheet.draw
    x1, y1, x2, y2 = box
    _frame(sheet, box, 0.7)
    count = rng.randint(2, 4)
    step, high = (x2 - x1) / count, y2 - y1
    ink = sheet.look.ink
    thin = max(1, round(high / 70))
    face = sheet.face("regular", 0.7)
    for i in range(count):
        left, right = x1 + (i + 0.15) * step, x1 + (i + 0.75) * step
        top, bottom = y1 + 0.3 * high, y1 + 0.7 * high
        hue = rng.choice(_HUES)
        draw.rectangle((left, top, right, bottom), fill=hue, outline=ink, width=thin)
        if face.width("ABC") < right - left and face.size * 2 < bottom - top:
            _label(
                sheet,
                face,
                rng.choice("ABCDEFGH"),
                round(left + 4),
                round(bottom - 4 - face.fall),
                (250, 250, 250),
            )
        if i < count - 1:
            middle = (top + bottom) / 2
            draw.line((right, middle, right + 0.36 * step, middle), fill=ink, width=thin)
            tip = right + 0.38 * step
            draw.polygon(
                ((tip, middle), (tip - 5 * thin, middle - 3 * thin), (tip - 5 * thin, middle + 3 * thin)), ink
            )


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


def shapes(sheet: Sheet, box: Pixels) -> None:
    """A framed drawing of plain shapes."""
    rng, draw = sheet.rng, sheet.draw
    x1, y1, x2, y2 = box
    _frame(sheet, box, 1.0)
    for _ in range(rng.randint(2, 6)):
        a, b = rng.randint(x1 + 2, x2 - 8), rng.randint(y1 + 2, y2 - 8)
        c, d = min(x2 - 3, a + rng.randint(4, 90)), min(y2 - 3, b + rng.randint(4, 60))
        rng.choice((draw.ellipse, draw.rectangle))((a, b, c, d), fill=_shade(rng, rng.choice(_HUES)))


def bars_code(sheet: Sheet, box: Pixels) -> None:
    """A bar code."""
    rng = sheet.rng
    x1, y1, x2, y2 = box
    sheet.draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill=(250, 250, 250), outline=(90, 90, 90))
    module = max(1, (x2 - x1) // 90)
    x = x1 + 5 * module
    while x < x2 - 8 * module:
        bar = rng.randint(1, 4) * module
        sheet.draw.rectangle((x, y1 + 3 * module, x + bar - 1, y2 - 3 * module), fill=(20, 20, 20))
        x += bar + rng.randint(1, 3) * module


def dots_code(sheet: Sheet, box: Pixels) -> None:
    """A square code of dots with its three corner marks."""
    rng = sheet.rng
    side = 21
    code = Image.new("L", (side + 2, side + 2), 250)
    code.putdata([20 if rng.random() < 0.5 else 250 for _ in range((side + 2) ** 2)])
    draw = ImageDraw.Draw(code)
    for x, y in ((1, 1), (side - 6, 1), (1, side - 6)):
        draw.rectangle((x, y, x + 6, y + 6), fill=20)
        draw.rectangle((x + 1, y + 1, x + 5, y + 5), fill=250)
        draw.rectangle((x + 2, y + 2, x + 4, y + 4), fill=20)
    draw.rectangle((0, 0, side + 1, side + 1), outline=250)
    x1, y1, x2, y2 = box
    sheet.image.paste(code.convert("RGB").resize((x2 - x1, y2 - y1), Image.Resampling.NEAREST), (x1, y1))
    sheet.draw.rectangle((x1, y1, x2 - 1, y2 - 1), outline=(120, 120, 120))


def signature(sheet: Sheet, box: Pixels) -> None:
    """A signature over a line."""
    rng = sheet.rng
    x1, y1, x2, y2 = box
    _frame(sheet, box, 0.4)
    wide, high, turns, lean = x2 - x1, y2 - y1, rng.uniform(24, 44), rng.uniform(4, 12)
    points = []
    for step in range(161):
        t = step / 160
        swing = math.sin(turns * t) * (0.3 - 0.2 * t) + 0.06 * math.sin(lean * t)
        points.append(
            (x1 + wide * (0.12 + 0.68 * t + 0.05 * math.cos(turns * t)), y1 + high * (0.46 - swing))
        )
    thin = max(1, round(high / 60))
    sheet.draw.line(points, fill=rng.choice(_HUES), width=2 * thin)
    sheet.draw.line(
        (x1 + 0.06 * wide, y2 - 0.12 * high, x2 - 0.06 * wide, y2 - 0.12 * high), sheet.look.ink, thin
    )


def stamp(sheet: Sheet, box: Pixels) -> None:
    """A slanted stamp: a word in a frame."""
    rng = sheet.rng
    hue = rng.choice(((170, 40, 40), (40, 60, 150), (30, 110, 70)))
    x1, y1, x2, y2 = box
    face = sheet.face("bold")
    word = rng.choice(("PAID", "COPY", "DRAFT", "APPROVED", "RECEIVED", "FINAL"))
    pad = face.size // 2
    size = round(face.width(word)) + 2 * pad, face.rise + 2 * pad
    mask = Image.new("L", size, 0)
    draw = ImageDraw.Draw(mask)
    draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=255, width=max(2, pad // 4))
    draw.text((pad, size[1] - pad), word, fill=255, font=face.font, anchor="ls")
    mask = mask.rotate(rng.uniform(-14, 14), Image.Resampling.BILINEAR, expand=True)
    mask = mask.crop(mask.getbbox()).resize((x2 - x1, y2 - y1), Image.Resampling.BILINEAR)
    sheet.image.paste(hue, (x1, y1), mask)


Painter = Callable[[Sheet, Pixels], None]
#: Pictures that go with a caption.
FIGURES: tuple[Painter, ...] = (chart, chart, diagram, photograph, shapes)
#: Pictures that stand at the foot of a form, and their shape: width over height.
MARKS: tuple[tuple[Painter, float], ...] = (
    (bars_code, 3.5),
    (dots_code, 1.0),
    (signature, 2.8),
    (stamp, 2.4),
)


def picture(sheet: Sheet, paint: Painter, height: int, width: int = 0, align: str = "left") -> bool:
    """A region without text; ``width`` 0 is the column's. Not drawn where it would be a mere speck."""
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


def _label(sheet: Sheet, face: Face, text: str, x: int, baseline: int, colour: Colour | None = None) -> None:
    if sheet.words.shows(text):
        sheet.draw.text((x, baseline), text, fill=colour or sheet.look.ink, font=face.font, anchor="ls")


def _frame(sheet: Sheet, box: Pixels, filled: float) -> None:
    """The panel a picture stands on: always an outline, so that its extent can be seen."""
    x1, y1, x2, y2 = box
    light = sheet.look.paper if sheet.rng.random() > filled else sheet.look.panel
    sheet.draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill=light, outline=sheet.look.ink)


def _shade(rng: random.Random, hue: Colour) -> Colour:
    factor = rng.uniform(0.5, 1.5)
    red, green, blue = (min(255, round(v * factor)) for v in hue)
    return red, green, blue

"""The six sample pages of ``data/pages``: nothing in them is random, their type is matplotlib's DejaVu."""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import ImageDraw

from ocr_phases.errors import OcrPhasesError
from ocr_phases.synth.canvas import BOLD, MONO, SERIF, Canvas
from ocr_phases.synth.page import Pixels, SynthPage

SHADES = ((58, 92, 138), (112, 144, 184), (84, 90, 102))


def bars(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """A bar chart."""
    x1, y1, x2, y2 = box
    heights = (0.35, 0.52, 0.44, 0.68, 0.6, 0.86)
    step = (x2 - x1) / (len(heights) + 0.5)
    for i, height in enumerate(heights):
        left, top = x1 + step * (i + 0.5), y2 - (y2 - y1) * height
        draw.rectangle((left, top, left + step * 0.6, y2 - 2), fill=SHADES[i % 2])


def curve(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """Two axes and a falling curve with its measured points."""
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    origin = (x1 + 0.08 * wide, y2 - 0.14 * high)
    thin = max(1, round(high / 100))
    draw.line((origin[0], y1 + 0.1 * high, *origin), fill=SHADES[2], width=thin)
    draw.line((*origin, x2 - 0.06 * wide, origin[1]), fill=SHADES[2], width=thin)
    points = [
        (origin[0] + wide * 0.8 * t / 12, origin[1] - high * (0.1 + 0.58 * math.exp(-t / 4)))
        for t in range(13)
    ]
    draw.line(points, fill=SHADES[0], width=2 * thin)
    dot = high / 36
    for x, y in points[::2]:
        draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=SHADES[0])


def barcode(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """Upright bars of four widths on a quiet margin."""
    x1, y1, x2, y2 = box
    bars_and_gaps = [((1, 2, 1, 3, 1, 1, 2, 4)[i * 5 % 8], (1, 2, 1)[i % 3]) for i in range(32)]
    module = (x2 - x1) / (sum(map(sum, bars_and_gaps)) + 12)
    x = x1 + 6 * module
    for bar, gap in bars_and_gaps:
        draw.rectangle((x, y1 + 6 * module, x + bar * module, y2 - 6 * module), fill=SHADES[2])
        x += (bar + gap) * module


def signature(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """A signature: loops that run out to the right, over a line."""
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    points = []
    for step in range(241):
        t = step / 240
        swing = math.sin(34 * t) * (0.3 - 0.2 * t) + 0.08 * math.sin(9 * t)
        points.append((x1 + wide * (0.12 + 0.68 * t + 0.06 * math.cos(34 * t)), y1 + high * (0.48 - swing)))
    thin, rule = max(1, round(high / 80)), y2 - 0.16 * high
    draw.line((x1 + 0.08 * wide, rule, x2 - 0.08 * wide, rule), fill=SHADES[2], width=thin)
    draw.line(points, fill=SHADES[0], width=2 * thin, joint="curve")


PARAGRAPHS = (
    "A reading machine first looks at the whole page. It cuts the picture into small squares, finds the "
    "strokes in each of them, and keeps a short summary of what it saw.",
    "Then it writes. Every new letter depends on that summary and on all the letters before it, so the work "
    "is done one step after another and cannot be spread out.",
    "The first part is heavy, but it happens once. The second part is light, but it happens for every token, "
    "and on a long page it takes most of the time.",
    "To make it faster, first find out which part is slow: the arithmetic, the memory, or the computer that "
    "gives the orders. Each asks for another cure.",
    "So measure first. Then change one thing, and measure again on the same page and the same machine.",
)
METHOD = "Prefill sees the page at once. Decode adds one token at a time, and reads all weights for each."
RESULT = "On a long page most of the time is spent in decode, where the device waits for its orders."
BILL = (
    ("Item", "Qty", "Amount"),
    ("Paper", "40", "€180.00"),
    ("Ink", "6", "€92.40"),
    ("Binding", "12", "€66.00"),
)
ORDER = (("Espresso", "£2.40"), ("Porridge", "£5.80"), ("Juice", "£3.90"), ("TOTAL", "£12.10"))
VISITOR = (("Name", "Moreau"), ("Company", "Lumen"), ("Date", "14/03/26"), ("Badge", "C-118"))
POINTS = ("Revenue up 18% to $4.2 M", "Two new offices opened", "Support time: 3.5 hours")


def draw_paper(page: Canvas) -> None:
    """The first page of an article: title, summary, a wide figure, then two columns."""
    page.write("title", "Where the Time Goes", size=30, centre=True)
    summary = "A page is read once and written one token after another. We time both."
    page.write("text", summary, gap=16, size=19, face=SERIF)
    page.picture(curve, 142, gap=18)
    page.write("image_caption", "Fig. 1: time per token over the page", gap=10)
    top = page.y + 24
    for left, heading, text in ((30, "1. Method", METHOD), (266, "2. Result", RESULT)):
        page.column(left, top, 216)
        page.write("sub_title", heading)
        page.write("text", text, gap=8, face=SERIF)


def draw_invoice(page: Canvas) -> None:
    """An invoice with a ruled table of items."""
    page.write("title", "Invoice 2047", size=34)
    page.write("text", "Harbour Press Ltd.\n12 Quay Street, Bergen\nDate: 14/03/2026", gap=18, size=21)
    page.table(BILL, gap=26, size=23)
    page.write("text", "Total due: €338.40", gap=26, size=25, face=BOLD)
    page.write("text", "Please pay within 30 days. Thank you for your order.", gap=24, size=21)


def draw_receipt(page: Canvas) -> None:
    """A till receipt in fixed-width type."""
    page.column(50, 24, 412)
    page.write("title", "CORNER CAFE", size=34)
    page.write("text", "Table 7, receipt 3142\n14/03/2026 at 09:26", gap=18, size=22, face=MONO)
    page.table(ORDER, gap=24, size=23, grid=False)
    page.write("text", "Paid by card\nThank you, come again!", gap=22, size=22, face=MONO)
    page.picture(barcode, 76, gap=20, width=280)


def draw_slide(page: Canvas) -> None:
    """A slide: a headline, three points, a chart."""
    page.write("title", "Quarter in review", size=38)
    page.bullets(POINTS, gap=24, size=26)
    page.picture(bars, 176, gap=28)
    page.write("text", "Source: annual report, page 12", gap=20, size=20)


def draw_form(page: Canvas) -> None:
    """A filled-in form with a signature."""
    page.write("title", "Visitor form", size=34)
    page.write("text", "Please fill in every line and hand this page to the front desk.", gap=18, size=21)
    page.table(VISITOR, gap=24, size=23)
    page.write("text", "Host: Dr. A. Lind, room 3.07\nCar on site: (x) yes ( ) no", gap=24, size=21)
    page.picture(signature, 92, gap=22, width=270)


def draw_dense(page: Canvas) -> None:
    """A page full of text, with a page number."""
    page.write("title", "On reading machines", size=26)
    for paragraph in PARAGRAPHS:
        page.write("text", paragraph, gap=20, size=16, face=SERIF)
    page.column(30, 480, 452)
    page.write("footer", "12", centre=True)


LAYOUTS: dict[str, Callable[[Canvas], None]] = {
    "paper": draw_paper,
    "invoice": draw_invoice,
    "receipt": draw_receipt,
    "slide": draw_slide,
    "form": draw_form,
    "dense": draw_dense,
}
#: Names of the sample pages.
SAMPLES = tuple(LAYOUTS)


def draw_page(kind: str, size: int = 1024) -> SynthPage:
    """Draw the sample page ``kind`` (one of `SAMPLES`), ``size`` pixels square."""
    if kind not in LAYOUTS:
        raise OcrPhasesError(f"There is no sample page {kind!r}: choose one of {', '.join(SAMPLES)}.")
    canvas = Canvas(size)
    LAYOUTS[kind](canvas)
    return canvas.page()

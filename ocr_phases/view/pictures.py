"""A page of a report as drawings over one picture, which the file has once."""

from __future__ import annotations

from PIL import Image

from ocr_phases.record import Record
from ocr_phases.show.boxes import (
    MOST_BOXES,
    DrawnBox,
    Tag,
    boxes_sentence,
    place_tags,
    type_colour,
)
from ocr_phases.show.page import MarkedPage, marked_pages
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file

#: Pixels of the embedded page, of which a reader sees half as many until they magnify it.
_WIDTH = 1_040
_SHOWN_WIDTH = 520
_TALLEST = 6  # of a page: its height in widths
_FONT = "DejaVu Sans, Verdana, sans-serif"


def svg_pictures(image: Image.Image, run: Record, row: int, page: int, name: str) -> Html:
    """The pictures of `ocr_phases.show.page.marked_pages` as SVG, side by side if they fit.

    The page itself is in the first, as an element with ``name`` as its id; the others refer to it.
    """
    small, jpeg = jpeg_file(image, _WIDTH, _TALLEST * _WIDTH)
    width, height = small.size
    address = data_address(jpeg, "image/jpeg")
    ground = element("image", id=name, href=address, width=width, height=height)
    figures = []
    for marked in marked_pages(run, row, page, small.size):
        drawing = element(
            "svg",
            ground,
            *_marks(marked, small.size),
            viewBox=f"0 0 {width} {height}",
            class_="op-image",
            role="img",
            aria_label=marked.caption,
            style=f"width:{_SHOWN_WIDTH}px",
        )
        caption = element("figcaption", marked.caption)
        figures.append(element("figure", drawing, caption, class_="op-picture"))
        ground = element("use", href=f"#{name}")
    return element("div", *figures, class_="op op-pictures")


def _marks(marked: MarkedPage, size: tuple[int, int]) -> list[Html]:
    """The boxes of a page of ``size`` pixels, and above all of them their tags.

    Otherwise a box would lie over the tag of an earlier one. A sentence at the foot of the page
    says so where there are more boxes than are drawn.
    """
    boxes = marked.boxes[:MOST_BOXES]
    rectangles = [_box_rectangle(box, marked.opacity) for box in boxes]
    tags = []
    for box, tag in zip(boxes, place_tags(boxes, size), strict=True):
        if tag is not None:
            tags += _tag_marks(box, tag)
    sentence = boxes_sentence(len(marked.boxes))
    if sentence:
        tags.append(element("text", sentence, x=8, y=size[1] - 8, fill="#111111"))
    return [fragment(*rectangles), fragment(*tags)]


def _box_rectangle(box: DrawnBox, opacity: float) -> Html:
    left, top, right, bottom = box.box
    return element(
        "rect",
        x=left,
        y=top,
        width=right - left,
        height=bottom - top,
        fill=box.colour,
        fill_opacity=f"{opacity:.2f}",
        stroke=box.colour,
        stroke_width=2,
    )


def _tag_marks(box: DrawnBox, tag: Tag) -> list[Html]:
    """The ground of a box's tag, and its words.

    The words are as wide as the ground has room for, however wide a browser's letters are.
    """
    left, top, right, bottom = tag.ground
    width = right - left
    text_left, baseline = tag.start
    margin = text_left - left
    ground = element("rect", x=left, y=top, width=width, height=bottom - top, fill=box.colour)
    words = element(
        "text",
        tag.text,
        x=text_left,
        y=baseline,
        fill=type_colour(box.colour),
        font_size=tag.size,
        font_weight="bold",
        font_family=_FONT,
        textLength=width - 2 * margin,
    )
    return [ground, words]

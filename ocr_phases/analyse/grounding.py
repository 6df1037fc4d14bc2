"""The regions of the output on the page, with their decode times.

The model marks a region as `<|ref|>LABEL<|/ref|><|det|>[[x1, y1, x2, y2], ...]<|/det|>` followed by the
region's content. Unlimited-OCR marks it as `<|det|>LABEL [x1, y1, x2, y2]<|/det|>`, beside which the first
form is read too, and starts each page with `<PAGE>`. All of it is text that a model made up, so it is read
with a strict grammar in linear time and never evaluated; whatever does not fit the grammar stays ordinary
text.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocr_phases.families import FAMILIES

PREAMBLE = -1
"""Region number of the tokens before the first region, of a page too where pages are marked."""

GRID = 999
"""Box coordinates run from 0 to this, whatever the page's size."""

MATCHED_IOU = 0.5
"""Two boxes are of one region from this intersection over union on."""

Box = tuple[int, int, int, int]

# No tag may stand inside a label or a box list, so a failed match never reads past the next tag: linear time.
_UNTAGGED = r"[^<]*(?:<(?!\|/?(?:ref|det)\|>)[^<]*)*"
_MARKUP = re.compile(rf"<\|ref\|>({_UNTAGGED})<\|/ref\|><\|det\|>({_UNTAGGED})<\|/det\|>")
_SHORT_MARKUP = re.compile(rf"{_MARKUP.pattern}|<\|det\|>({_UNTAGGED})<\|/det\|>")
_LIST_ITEM = re.compile(r"\s*\[([^\[\]]*)\]\s*(,|\Z)")
_INTEGER = re.compile(r"-?[0-9]+")
_CELL = 64  # of the grid by which boxes find each other
_MOST_NEAR = 32


@dataclass(frozen=True)
class Region:
    """One marked region: its label, its boxes on the 0..999 grid and the characters of the text it spans."""

    index: int
    """Order in the text, from 0."""
    label: str
    """What the model called it; any characters, never to be trusted."""
    boxes: tuple[Box, ...]
    """`(x1, y1, x2, y2)` on the grid, repaired: inside it and with x1 <= x2, y1 <= y2. May be empty."""
    repaired: bool
    """A coordinate was clamped or corners were swapped."""
    start: int
    """Character at which the markup starts."""
    content_start: int
    """Character just behind the markup."""
    end: int
    """Character at which the next region starts, or the text's length."""
    text: str
    """The content, stripped."""
    page: int = 0
    """The page of the prompt that it is on, from 0; the model may name more pages than it was given."""

    def pixel_boxes(self, width: int, height: int) -> list[Box]:
        """The boxes in pixels of a page of this size; x2 and y2 may equal the width and the height."""
        return [pixel_box(box, width, height) for box in self.boxes]


@dataclass(frozen=True)
class Grounding:
    """All regions of one output text, in order, and how many boxes could not be used."""

    regions: tuple[Region, ...]
    dropped: int
    """Boxes that were not four integers, plus one for each box list that could not be read at all."""
    page_starts: tuple[int, ...] = ()
    """Character at which each page's mark starts, where the family has one."""
    page_mark: str = ""
    """That mark."""

    def on_page(self, page: int) -> Grounding:
        """The regions of one page alone, with their numbers."""
        return replace(self, regions=tuple(region for region in self.regions if region.page == page))

    def without_marks(self, text: str, left_out: Sequence[str] = ()) -> str:
        """The text that was parsed, without the marks of regions and pages, and regions of these labels."""
        starts = [region.start for region in self.regions] + [len(text)]
        parts = [text[: starts[0]]]
        parts += [
            text[region.content_start : end]
            for region, end in zip(self.regions, starts[1:], strict=True)
            if region.label not in left_out
        ]
        if self.page_mark:
            parts = [part.replace(self.page_mark, " ") for part in parts]
        return "\n\n".join(parts)


def parse_grounding(text: str, family: str | None = None) -> Grounding:
    """Read the regions out of a model's output text; never raises, in time linear in its length.

    ``family`` is the record's, DeepSeek-OCR's by default. A page's mark ends the region before it.

    A region whose boxes are all dropped stays a region with `boxes=()`: its markup is markup (it vanishes
    from the Markdown), and its text and time are its own, not its predecessor's. Markup that is never closed,
    such as the last line of an output that hit its token limit, is ordinary text.
    """
    mark = FAMILIES[family].page_mark if family in FAMILIES else None
    matches = list((_MARKUP if mark is None else _SHORT_MARKUP).finditer(text))
    pages = [] if mark is None else [found.start() for found in re.finditer(re.escape(mark), text)]
    bounds = sorted({match.start() for match in matches} | set(pages) | {len(text)})
    regions = []
    dropped = 0
    for index, match in enumerate(matches):
        label, listing = match.group(1), match.group(2)
        if label is None:
            label, listing = _short_mark(match.group(3))
        boxes, repaired, unusable = _read_boxes(listing)
        dropped += unusable
        end = bounds[bisect_left(bounds, match.end())]
        regions.append(
            Region(
                index=index,
                label=label,
                boxes=boxes,
                repaired=repaired,
                start=match.start(),
                content_start=match.end(),
                end=end,
                text=text[match.end() : end].strip(),
                page=max(bisect_right(pages, match.start()) - 1, 0),
            )
        )
    return Grounding(tuple(regions), dropped, tuple(pages), mark or "")


def match_boxes(
    ours: Sequence[Sequence[Box]], theirs: Sequence[Sequence[Box]]
) -> list[tuple[int, int, float]]:
    """Pairs ``(ours, theirs, IoU)`` of the regions whose boxes overlap most, the best first.

    Each region has any number of boxes and is in one pair at most, of at least `MATCHED_IOU`. Of equal
    overlaps the one of the first region is the best. Of a box `_MOST_NEAR` different ones are looked at.
    """
    mine, others = _by_box(ours), _by_box(theirs)
    known, boxes = list(others), np.array(list(others), dtype=np.int64).reshape(-1, 4)
    grid: dict[tuple[int, int], list[int]] = {}
    for number, box in enumerate(others):
        grid.setdefault(next(_cells(box)), []).append(number)
    near = [
        (-overlap, owners[0], others[known[number]][0], box, known[number])
        for box, owners in mine.items()
        for overlap, number in _overlaps(box, boxes, grid)
    ]
    pairs, taken = [], (set[int](), set[int]())
    for overlap, _, _, box, other in sorted(near):
        queues = mine[box], others[other]
        while all(queues):
            heads = [queue[0] for queue in queues]
            used = [head in side for head, side in zip(heads, taken, strict=True)]
            for queue, head, side, old in zip(queues, heads, taken, used, strict=True):
                if old or not any(used):
                    queue.popleft()
                    side.add(head)
            if not any(used):
                pairs.append((heads[0], heads[1], -overlap))
    return sorted(pairs, key=lambda pair: (-pair[2], *pair[:2]))


def _by_box(regions: Sequence[Sequence[Box]]) -> dict[Box, deque[int]]:
    """The regions of each box, in their order."""
    owners: dict[Box, deque[int]] = {}
    for number, boxes in enumerate(regions):
        for box in boxes:
            owners.setdefault(box, deque()).append(number)
    return owners


def _cells(box: Box, reach: float = 0.0) -> Iterator[tuple[int, int]]:
    """The cells of a grid in which a centre lies that is at most ``reach`` sides from this box's own."""
    x1, y1, x2, y2 = box
    ends = [((low + high) / 2, reach * (high - low)) for low, high in ((x1, x2), (y1, y2))]
    across, down = (range(int((at - far) // _CELL), int((at + far) // _CELL) + 1) for at, far in ends)
    return itertools.product(across, down)


def _overlaps(box: Box, boxes: np.ndarray, grid: Mapping[Any, list[int]]) -> Iterator[tuple[float, int]]:
    """The boxes, int64 [n, 4], that overlap this one by `MATCHED_IOU` or more, with their numbers."""
    # Such a box is at most twice as long, and its centre at most a third of the longer side away.
    numbers = np.array(
        [number for cell in _cells(box, 2 / 3) for number in grid.get(cell, ())], dtype=np.int64
    )
    overlaps = intersection_over_union(box, boxes[numbers])
    best = np.flatnonzero(overlaps >= MATCHED_IOU)
    best = best[np.argsort(-overlaps[best], kind="stable")][:_MOST_NEAR]
    return zip(overlaps[best].tolist(), numbers[best].tolist(), strict=True)


def intersection_over_union(box: Box, others: np.ndarray) -> np.ndarray:
    """Of a box with each of ``others``, int64 [n, 4]; float64 [n], 0 where neither has an area."""
    left, top, right, bottom = others.T
    across = np.minimum(right, box[2]) - np.maximum(left, box[0])
    down = np.minimum(bottom, box[3]) - np.maximum(top, box[1])
    inside = np.maximum(across, 0) * np.maximum(down, 0)
    union = (right - left) * (bottom - top) + (box[2] - box[0]) * (box[3] - box[1]) - inside
    return inside / np.maximum(union, 1)


def _short_mark(inside: str) -> tuple[str, str]:
    """The label and the boxes of `LABEL [x1, y1, x2, y2]`; several boxes, or a list of them, are read too."""
    label, bracket, rest = inside.partition("[")
    listing = (bracket + rest).strip()
    return label.strip(), listing if listing.startswith("[[") else f"[{listing}]"


def token_regions(grounding: Grounding, token_texts: Sequence[str]) -> list[int]:
    """The region of every token, by the span its first character falls in; -1 (`PREAMBLE`) in none.

    The token texts joined are the text that was parsed. An empty token text belongs where it stands, and
    tokens behind the end of that text (an end-of-sentence token cut from it) belong to the last region.
    """
    parts = [(region.start, region.index) for region in grounding.regions]
    parts = sorted([*parts, *((start, PREAMBLE) for start in grounding.page_starts)])
    starts, numbers = [start for start, _ in parts], [PREAMBLE, *(number for _, number in parts)]
    owners = []
    position = 0
    for token_text in token_texts:
        owners.append(numbers[bisect_right(starts, position)])
        position += len(token_text)
    return owners


def pixel_box(box: Box, width: int, height: int) -> Box:
    """A box on the grid in pixels of a page of this size; x2 and y2 may equal the width and the height."""
    x1, y1, x2, y2 = box
    return _pixel(x1, width), _pixel(y1, height), _pixel(x2, width), _pixel(y2, height)


def _pixel(value: int, side: int) -> int:
    return int(value / GRID * side)


def _read_boxes(listing: str) -> tuple[tuple[Box, ...], bool, int]:
    """The usable boxes of a `[[a, b, c, d], ...]` listing, whether one was repaired, how many were dropped.

    A listing that is not a flat list of lists is dropped as a whole and counts as one.
    """
    items = _list_items(listing.strip())
    if items is None:
        return (), False, 1
    boxes = []
    repaired = False
    for item in items:
        numbers = item.split(",", 4)
        values = [_read_coordinate(number.strip()) for number in numbers]
        usable = [value for value in values if value is not None]
        if len(numbers) != 4 or len(usable) != 4:
            continue
        box, changed = _repair(usable)
        boxes.append(box)
        repaired = repaired or changed
    return tuple(boxes), repaired, len(items) - len(boxes)


def _list_items(listing: str) -> list[str] | None:
    """The insides of the inner lists, or None when the listing is anything but a non-empty list of lists."""
    if not (listing.startswith("[") and listing.endswith("]")):
        return None
    inner = listing[1:-1]
    items = []
    position = 0
    while match := _LIST_ITEM.match(inner, position):
        items.append(match.group(1))
        if match.group(2) == "":
            return items
        position = match.end()
    return None


def _read_coordinate(number: str) -> int | None:
    """An integer, cut to just outside the grid when it is far outside (it may have thousands of digits)."""
    if not _INTEGER.fullmatch(number):
        return None
    digits = number.lstrip("-").lstrip("0")
    value = int(digits or "0") if len(digits) <= len(str(GRID)) else GRID + 1
    return -value if number.startswith("-") else value


def _repair(values: list[int]) -> tuple[Box, bool]:
    """The box inside the grid with its corners in order, and whether that changed anything."""
    x1, y1, x2, y2 = (min(max(value, 0), GRID) for value in values)
    box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
    return box, list(box) != values

"""The regions of an output text on the page, and which regions of two texts lie in one place.

The model marks a region as `<|ref|>LABEL<|/ref|><|det|>[[x1, y1, x2, y2], ...]<|/det|>` followed by
the region's content. Unlimited-OCR marks it as `<|det|>LABEL [x1, y1, x2, y2]<|/det|>`, beside
which the first form is read too, and starts each page with `<PAGE>`. A server that leaves special
tokens out makes it a line `LABEL[[x1, y1, x2, y2]]`, which is read where a text has no tags at all.
All of it is text that a model made up, so it is read with a strict grammar in linear time and never
evaluated; whatever does not fit the grammar stays ordinary text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ocr_phases.families import FAMILIES

#: Region number of the tokens before the first region, of a page too where pages are marked.
PREAMBLE = -1
#: Box coordinates run from 0 to this, whatever the page's size.
GRID = 999
#: Two boxes are of one region from this intersection over union on.
MATCHED_IOU = 0.5

Box = tuple[int, int, int, int]

# No tag may stand inside a label or a box list, so a failed match never reads past the next tag:
# linear time.
_UNTAGGED = r"[^<]*(?:<(?!\|/?(?:ref|det)\|>)[^<]*)*"
_MARKUP = re.compile(rf"<\|ref\|>({_UNTAGGED})<\|/ref\|><\|det\|>({_UNTAGGED})<\|/det\|>")
_SHORT_MARKUP = re.compile(rf"{_MARKUP.pattern}|<\|det\|>({_UNTAGGED})<\|/det\|>")
#: A region without its tags, which a server left out: a line of its label and its boxes.
_LINE_WITHOUT_TAGS = re.compile(
    r"^([^\[\]\n]+)(\[\[[^\[\]\n]*\](?:,[ \t]*\[[^\[\]\n]*\])*\])[ \t]*$", re.MULTILINE
)
_ITEM = re.compile(r"\[([^\[\]]*)\]")
_FLAT = re.compile(rf"\s*{_ITEM.pattern}\s*(?:,\s*{_ITEM.pattern}\s*)*")
_NESTED = re.compile(rf"\s*\[{_FLAT.pattern}\]\s*")
_FOUR_NUMBERS = re.compile(",".join([r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*"] * 4))
#: Of the others' boxes those that are taken for a box's own: more than any page has in one place.
_MOST_NEAR = 32


@dataclass(frozen=True)
class Region:
    """One marked region: its label, its boxes on the 0..999 grid and the characters of the text it
    spans.

    ``index`` is its order in the text, from 0. ``label`` is what the model called it: any
    characters, never to be trusted. ``boxes`` are ``(x1, y1, x2, y2)`` inside the grid with x1 <=
    x2 and y1 <= y2, and may be none; ``repaired`` says that the model wrote one in another form: a
    coordinate was clamped, corners were swapped, the outer brackets are missing, or a coordinate
    has a decimal point (``120.0``, or shares of the page from 0 to 1). Its markup begins at
    character ``start`` and ends before ``content_start``; ``end`` is where the next region or page
    starts, or the text's length. ``text`` is the content, stripped. ``page`` is the page of the
    prompt that it is on, from 0; the model may name more pages than it was given.
    """

    index: int
    label: str
    boxes: tuple[Box, ...]
    repaired: bool
    start: int
    content_start: int
    end: int
    text: str
    page: int = 0

    @property
    def box(self) -> Box | None:
        """The first of the boxes."""
        return self.boxes[0] if self.boxes else None

    def pixel_boxes(self, width: int, height: int) -> list[Box]:
        """The boxes in pixels of a page of this size; x2 and y2 may equal the width and the
        height.
        """
        return [pixel_box(box, width, height) for box in self.boxes]


class Grounding(NamedTuple):
    """All regions of one output text, in order, and how many boxes could not be used.

    ``dropped`` are the boxes that were not four integers or four shares of the page, plus one for
    each box list that could not be read at all. ``page_starts`` are the characters at which each
    page's mark starts and ``page_mark`` is that mark, where the family has one. ``without_tags``
    says that the regions are lines whose tags a server left out.
    """

    regions: tuple[Region, ...]
    dropped: int
    page_starts: tuple[int, ...] = ()
    page_mark: str = ""
    without_tags: bool = False

    def on_page(self, page: int) -> Grounding:
        """The regions of one page alone, with their numbers."""
        return self._replace(
            regions=tuple(region for region in self.regions if region.page == page)
        )

    def without_marks(self, text: str, left_out: Sequence[str] = ()) -> str:
        """The text that was parsed, without the marks of regions and pages, and regions of these
        labels.
        """
        starts = [*(region.start for region in self.regions), len(text)]
        parts = [text[: starts[0]]]
        for region, end in zip(self.regions, starts[1:], strict=True):
            if region.label not in left_out:
                parts.append(text[region.content_start : end])
        joined = "\n\n".join(parts)
        if self.page_mark:
            joined = joined.replace(self.page_mark, " ")
        return joined


def parse_grounding(text: str, family: str | None = None) -> Grounding:
    """Read the regions out of a model's output text; never raises, in time linear in its length.

    ``family`` is the record's, DeepSeek-OCR's by default. A page's mark ends the region before it.

    A region whose boxes are all dropped stays a region with `boxes=()`: its markup is markup (it
    vanishes from the Markdown), and its text and time are its own, not its predecessor's. Markup
    that is never closed, such as the last line of an output that hit its token limit, is ordinary
    text.
    """
    mark = FAMILIES[family].page_mark if family in FAMILIES else None
    markup = _SHORT_MARKUP if mark else _MARKUP
    matches = list(markup.finditer(text))
    without_tags = False
    if not matches and "<|det|>" not in text and "<|ref|>" not in text:
        matches = _lines_without_tags(text)
        without_tags = bool(matches)
    page_starts = []
    if mark:
        page_starts = [found.start() for found in re.finditer(re.escape(mark), text)]
    bounds = sorted([*(match.start() for match in matches), *page_starts, len(text)])
    regions = []
    dropped = 0
    for index, match in enumerate(matches):
        label, listing = _label_and_listing(match)
        boxes, repaired, unusable = _read_boxes(listing)
        dropped += unusable
        content_start = match.end()
        end = bounds[bisect_left(bounds, content_start)]
        regions.append(
            Region(
                index=index,
                label=label,
                boxes=boxes,
                repaired=repaired,
                start=match.start(),
                content_start=content_start,
                end=end,
                text=text[content_start:end].strip(),
                page=max(bisect_right(page_starts, match.start()) - 1, 0),
            )
        )
    return Grounding(tuple(regions), dropped, tuple(page_starts), mark or "", without_tags)


def _label_and_listing(match: re.Match[str]) -> tuple[str, str]:
    """A region's label, and the listing of its boxes as ``[[x1, y1, x2, y2], ...]``."""
    if match[1] is not None:
        return match[1], match[2]
    # LABEL [x1, y1, x2, y2], or a list of boxes behind the label.
    label, bracket, rest = match[3].partition("[")
    listing = bracket + rest
    if not rest.lstrip().startswith("["):
        listing = f"[{listing}]"
    return label.strip(), listing


def _lines_without_tags(text: str) -> list[re.Match[str]]:
    """The lines that are a label and boxes; one with an unusable box is ordinary text."""
    lines = []
    for match in _LINE_WITHOUT_TAGS.finditer(text):
        boxes, _, dropped = _read_boxes(match[2])
        if boxes and not dropped:
            lines.append(match)
    return lines


def _read_boxes(listing: str) -> tuple[tuple[Box, ...], bool, int]:
    """The usable boxes of a `[[a, b, c, d], ...]` listing, whether one was repaired, how many were
    dropped.

    The outer brackets may be missing. A listing of any other form is dropped as a whole and counts
    as one.
    """
    is_nested = _NESTED.fullmatch(listing) is not None
    if not is_nested and not _FLAT.fullmatch(listing):
        return (), False, 1
    if is_nested:
        listing = listing[listing.index("[") + 1 :]
    items = _ITEM.findall(listing)
    written = [corners for item in items if (corners := _read_corners(item)) is not None]
    has_shares = any(corners.are_shares for corners in written)
    boxes: list[Box] = []
    repaired = False
    for corners in written:
        # Beside shares, 0.0 and 1.0 are the page's edges; alone they are the integers 0 and 1.
        if corners.are_shares or (has_shares and corners.has_point and corners.within_one):
            boxes.append(grid_box(corners.values, 1, 1))
            repaired = True
        elif not corners.has_fraction:
            box = grid_box(corners.values)
            boxes.append(box)
            repaired = repaired or not is_nested or corners.has_point or box != corners.values
    return tuple(boxes), repaired, len(items) - len(boxes)


class _Corners(NamedTuple):
    """Four numbers as the model wrote them; ``has_fraction`` is false of ``120.0``, ``has_point``
    is not.
    """

    values: tuple[float, ...]
    has_point: bool
    has_fraction: bool

    @property
    def within_one(self) -> bool:
        return min(self.values) >= 0 and max(self.values) <= 1

    @property
    def are_shares(self) -> bool:
        """Whether they can only be shares of the page's width and height."""
        return self.has_fraction and self.within_one


def _read_corners(item: str) -> _Corners | None:
    """What stands between the brackets of one box; None where it is not four plain numbers."""
    match = _FOUR_NUMBERS.fullmatch(item)
    if match is None:
        return None
    # Floats, because Python refuses to read an integer of thousands of digits.
    values = tuple(float(number) for number in match.groups())
    fractions = [number.partition(".")[2] for number in match.groups()]
    return _Corners(values, any(fractions), any(fraction.strip("0") for fraction in fractions))


def grid_box(corners: Sequence[float], width: float = GRID, height: float = GRID) -> Box:
    """The box on the grid, and within it, around points ``(x, y, x, y, ...)`` of a page of this
    size.
    """
    xs = corners[0::2]
    ys = corners[1::2]
    return (
        _on_grid(min(xs), width),
        _on_grid(min(ys), height),
        _on_grid(max(xs), width),
        _on_grid(max(ys), height),
    )


def _on_grid(place: float, size: float) -> int:
    """A place along a side of a page of this size, on the grid and within it."""
    return round(min(max(place * (GRID / size), 0), GRID))


def pixel_box(box: Box, width: int, height: int) -> Box:
    """A box on the grid in pixels of a page of this size; x2 and y2 may equal the width and the
    height.
    """
    x1, y1, x2, y2 = box
    return (
        int(x1 / GRID * width),
        int(y1 / GRID * height),
        int(x2 / GRID * width),
        int(y2 / GRID * height),
    )


def token_regions(grounding: Grounding, token_texts: Sequence[str]) -> list[int]:
    """The region of every token, by the span its first character falls in; -1 (`PREAMBLE`) in none.

    The token texts joined are the text that was parsed. An empty token text belongs where it
    stands, and tokens behind the end of that text (an end-of-sentence token cut from it) belong to
    the last region.
    """
    if not token_texts:
        return []
    begins = [(region.start, region.index) for region in grounding.regions]
    begins += [(start, PREAMBLE) for start in grounding.page_starts]
    begins.sort()
    starts = [start for start, _ in begins]
    numbers = [PREAMBLE, *(number for _, number in begins)]
    places = accumulate((len(text) for text in token_texts[:-1]), initial=0)
    return [numbers[bisect_right(starts, place)] for place in places]


# -- which regions lie in one place ----------------------------------------------------------------


def match_boxes(
    ours: Sequence[Sequence[Box]], theirs: Sequence[Sequence[Box]]
) -> list[tuple[int, int, float]]:
    """Pairs ``(ours, theirs, IoU)`` of the regions whose boxes overlap most, the best first.

    Each region has any number of boxes and is in one pair at most, of at least `MATCHED_IOU`. Of
    equal overlaps the one of the first region is the best.
    """
    # Of each different box of theirs the regions that have it; the first region stands last, so
    # that it can be popped.
    owners: dict[Box, list[int]] = {}
    for number in reversed(range(len(theirs))):
        for box in theirs[number]:
            owners.setdefault(box, []).append(number)
    boxes = list(owners)
    edges = np.array(boxes, dtype=np.int64).reshape(-1, 4)
    # Negative overlaps, so that sorting puts the largest first.
    candidates: list[tuple[float, int, int, Box]] = []
    for mine, own_boxes in enumerate(ours):
        for own_box in own_boxes:
            shared = intersection_over_union(own_box, edges)
            for place in _nearest(shared):
                box = boxes[place]
                candidates.append((-float(shared[place]), mine, owners[box][-1], box))
    pairs: list[tuple[int, int, float]] = []
    paired_ours: set[int] = set()
    paired_theirs: set[int] = set()
    for negative_overlap, mine, _, box in sorted(candidates):
        free = owners[box]
        while free and free[-1] in paired_theirs:
            free.pop()
        if free and mine not in paired_ours:
            partner = free.pop()
            pairs.append((mine, partner, -negative_overlap))
            paired_ours.add(mine)
            paired_theirs.add(partner)
    return sorted(pairs, key=lambda pair: (-pair[2], *pair[:2]))


def _nearest(shared: np.ndarray) -> list[int]:
    """The places of the largest of these overlaps, at most `_MOST_NEAR` of at least `MATCHED_IOU`,
    the largest first; of equal ones the first in place.
    """
    least = MATCHED_IOU
    if len(shared) > _MOST_NEAR:  # finding the last of them is quicker than sorting all
        least = max(least, float(np.partition(shared, -_MOST_NEAR)[-_MOST_NEAR]))
    near = np.flatnonzero(shared >= least)
    order = np.argsort(-shared[near], kind="stable")
    return near[order][:_MOST_NEAR].tolist()


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The area that each of ``boxes`` shares with each of ``others``, int64 [n, 4] and [m, 4]; [n,
    m].
    """
    left, top, right, bottom = boxes.T[..., None]
    across = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    down = np.minimum(bottom, others[:, 3]) - np.maximum(top, others[:, 1])
    return np.maximum(across, 0) * np.maximum(down, 0)


def intersection_over_union(box: Box, others: np.ndarray) -> np.ndarray:
    """Of a box with each of ``others``, int64 [n, 4]; float64 [n], 0 where neither has an area."""
    one = np.array([box])
    inside = overlaps(one, others)[0]
    union = _areas(one) + _areas(others) - inside
    return inside / np.maximum(union, 1)


def _areas(boxes: np.ndarray) -> np.ndarray:
    """The area of each of the boxes, int64 [n, 4]; [n]."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

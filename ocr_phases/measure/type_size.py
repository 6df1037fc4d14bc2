"""How large a page's type is, estimated from its pixels alone, before a model reads it: no torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocr_phases.presets import AUTO
from ocr_phases.type_fit import LEAST_TYPE_PX, fitting_preset, small_type

Ints = NDArray[np.int64]

_PIXELS = 2.5e6  # of the copy that is looked at
_LARGEST_SCALE = 2.0
_BLOCKS = 24  # of the page's shorter side: each has a paper level and an ink level of its own
_FAINTEST = 40.0  # grey levels between ink and paper
_LEAST_LETTER = 5  # pixels of the copy
_CAPITAL = 0.71  # height of capitals, digits and ascenders, in parts of the type size
_TALL = 0.85  # the quantile of a line's letters that is as high as those
_LINE_LETTERS = 3
_LEAST_LETTERS = 8
_LEAST_SHARE = 0.1  # of all that looks like a letter; in noise next to nothing stands in lines


def type_height(page: Image.Image) -> float | None:
    """A page's typical type size in its own pixels (10 points at 144 dpi are 20); None where it has none.

    Half of the letters stand in type of this size or smaller. The page is told into ink and paper block by
    block, whichever of the two is darker; ink that hangs together is a letter, letters side by side are a
    line, and the type of a line is told from the height of its taller letters. Upright Latin type is assumed.
    """
    scale = min(_LARGEST_SCALE, math.sqrt(_PIXELS / (page.width * page.height)))
    size = (max(1, round(page.width * scale)), max(1, round(page.height * scale)))
    grey = np.asarray(page.convert("L").resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    rows, starts, ends = _runs(_ink(grey))
    if not len(rows):
        return None
    letter = _connected(rows, starts, ends)
    boxes = _boxes(letter, rows, starts, ends)
    width, height = (boxes[2] - boxes[0]), (boxes[3] - boxes[1])
    filled = np.bincount(letter, ends - starts) / (width * height)
    like_letters = (
        (height >= _LEAST_LETTER)
        & (height < size[1] / 4)
        & (width < 8 * height)
        & (height < 8 * width)
        & (filled > 0.12)
        & (filled < 0.95)
    )
    kept = like_letters[letter]
    if not kept.any():
        return None
    rows, starts, ends, letter = rows[kept], starts[kept], ends[kept], letter[kept]
    # A space is narrower than one and a half letters are high.
    line = _connected(rows, starts, ends + height[letter] * 3 // 2)
    of_letter = np.zeros(len(height), dtype=np.int64)
    of_letter[letter] = line
    letters = np.flatnonzero(like_letters)
    heights, lines = height[letters], of_letter[letters]
    order = np.lexsort((heights, lines))
    heights, lines = heights[order], lines[order]
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    count = np.diff(first, append=len(lines))
    tall = heights[first + ((count - 1) * _TALL).round().astype(np.int64)]
    line_boxes = _boxes(line, rows, starts, ends)
    reach = (line_boxes[3] - line_boxes[1])[lines[first]]
    good = (count >= _LINE_LETTERS) & (reach < 3 * tall)
    if count[good].sum() < max(_LEAST_LETTERS, _LEAST_SHARE * len(letters)):
        return None
    return float(np.median(np.repeat(tall[good], count[good]))) / _CAPITAL / scale


def type_warning(page: Image.Image, model: str, preset: str | None) -> str:
    """`small_type` of a page that a model, by its name, is to read; empty where no warning is due.

    ``preset`` None or "auto" is the one that fits best. Raises OcrPhasesError for an unknown preset.
    """
    least = LEAST_TYPE_PX.get(model)
    if least is None:
        return ""
    sizes, types = [page.size], [type_height(page)]
    named = preset if preset not in (None, AUTO) else fitting_preset(sizes, types, least)
    return small_type(named, sizes, types, least) if named else ""


def _ink(grey: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which pixels differ from the paper around them by more than half of what the ink around them does."""
    high, wide = grey.shape
    side = max(16, min(high, wide) // _BLOCKS)
    down, across = math.ceil(high / side), math.ceil(wide / side)
    padded = np.pad(grey, ((0, down * side - high), (0, across * side - wide)), mode="edge")
    blocks = padded.reshape(down, side, across, side)
    paper = np.median(_around(np.median(blocks[:, ::4, :, ::4], axis=(1, 3))), axis=0)
    ink = np.abs(blocks - paper[:, None, :, None])
    limit = np.maximum(_around(ink.max(axis=(1, 3))).max(axis=0) / 2, _FAINTEST)
    return (ink > limit[:, None, :, None]).reshape(padded.shape)[:high, :wide]


def _around(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each value with its eight neighbours, [9, rows, columns]; beyond the edge it is the edge's own."""
    padded = np.pad(values, 1, mode="edge")
    rows, columns = values.shape
    return np.stack([padded[y : y + rows, x : x + columns] for y in range(3) for x in range(3)])


def _runs(ink: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """The rows, starts and ends (just outside) of what is inked from left to right without a gap."""
    edges = np.diff(ink.astype(np.int8), axis=1, prepend=0, append=0)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1]


def _connected(rows: Ints, starts: Ints, ends: Ints) -> Ints:
    """A number for each run, from 0, equal for runs that hang together (of neighbouring rows, corners too).

    Runs of one row may overlap, as they do when they are drawn longer.
    """
    stride = int(ends.max()) + 2
    begin, end = rows * stride + starts, rows * stride + ends
    reach = np.maximum.accumulate(end)
    pairs = []
    for offset in (0, stride):
        low = np.searchsorted(reach, begin - offset, side="left")
        high = np.searchsorted(begin, end - offset, side="right")
        count = np.maximum(high - low, 0)
        own = np.repeat(np.arange(len(rows)), count)
        other = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
        touching = end[other] >= begin[own] - offset
        pairs.append(np.stack([own[touching], other[touching]]))
    own, other = np.concatenate(pairs, axis=1)
    label = np.arange(len(rows))
    while True:
        least = np.minimum(label[own], label[other])
        before = label.copy()
        np.minimum.at(label, label[own], least)
        np.minimum.at(label, label[other], least)
        label = label[label]
        if (label == before).all():
            return np.unique(label, return_inverse=True)[1]


def _boxes(number: Ints, rows: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Left, top, right and bottom (just outside) of each number's runs."""
    count = int(number.max()) + 1
    left, top = np.full((2, count), np.iinfo(np.int64).max)
    right, bottom = np.zeros((2, count), dtype=np.int64)
    np.minimum.at(left, number, starts)
    np.minimum.at(top, number, rows)
    np.maximum.at(right, number, ends)
    np.maximum.at(bottom, number, rows + 1)
    return left, top, right, bottom

"""How well an answer reads a page: characters, boxes, order and form."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizer import LABELS, SPECIAL, TABLE

from ocr_phases.analyse.grounding import Box, Grounding, parse_grounding

_FOUND = 0.5
_HEAD = rf"<\|ref\|>(?:{'|'.join(LABELS)})<\|/ref\|><\|det\|>\[\[\d{{1,3}}(?:, \d{{1,3}}){{3}}\]\]<\|/det\|>"
_TABLE_TEXT = re.compile(r"<table>(?:<tr>(?:<td>(?:(?!</?t).)*</td>)+</tr>)+</table>", re.DOTALL)
_TAGS = re.compile("|".join(map(re.escape, (*SPECIAL, *TABLE))))
_CELLS = re.compile(r"(?:</?(?:table|tr|td)>)+")


def edits(one: str, other: str) -> int:
    """Levenshtein distance, by Myers' bit vectors on Python's long integers (Hyyrö's form)."""
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for index, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << index
    full, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    up, down, distance = full, 0, len(one)
    for letter in other:
        same = places.get(letter, 0)
        diagonal = (((same & up) + up) ^ up) | same | down
        more, less = down | (full & ~(diagonal | up)), diagonal & up
        distance += bool(more & last) - bool(less & last)
        more, less = (more << 1 | 1) & full, less << 1 & full
        up, down = less | (full & ~(diagonal | more)), more & diagonal
    return distance


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / (_area(one) + _area(other) - both)


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


@dataclass(frozen=True)
class Score:
    """One page: summed, these give every figure of `summary`."""

    edits: int
    letters: int
    overlap: float
    truths: int
    regions: int
    found: int
    out_of_order: int
    labels: int
    well_formed: bool
    ended: bool
    tokens: int
    blank: int
    invented: int


def score(answer: str, truth: str, *, ended: bool, tokens: int) -> Score:
    """Compare an answer to the prompt ``markdown`` with the truth, both as text."""
    read, real = parse_grounding(answer), parse_grounding(truth)
    pairs = match(_boxes(read), _boxes(real))
    found = [(i, j) for i, j, iou in pairs if iou >= _FOUND]
    said, written = plain_text(read, answer), plain_text(real, truth)
    order = [j for _, j in sorted(found)]
    blank = {j for j, region in enumerate(real.regions) if region.label == "text" and not region.text}
    return Score(
        edits=edits(said, written),
        letters=len(written),
        overlap=sum(iou for _, _, iou in pairs),
        truths=len(real.regions),
        regions=len(read.regions),
        found=len(found),
        out_of_order=len(order) - _longest_rise(order),
        labels=sum(read.regions[i].label == real.regions[j].label for i, j in found),
        well_formed=well_formed(answer),
        ended=ended,
        tokens=tokens,
        blank=len(blank),
        invented=sum(1 for i, j in found if j in blank and read.regions[i].text),
    )


def plain_text(grounding: Grounding, text: str) -> str:
    """The text alone: no boxes, table cells apart by tabs, blocks apart by line breaks."""
    blocks = [region.text for region in grounding.regions if region.text] or [text.strip()]
    return "\n".join(_CELLS.sub("\t", block).strip("\t") for block in blocks if block)


def _boxes(grounding: Grounding) -> list[Box | None]:
    return [region.boxes[0] if region.boxes else None for region in grounding.regions]


def match(read: Sequence[Box | None], real: Sequence[Box | None]) -> list[tuple[int, int, float]]:
    """Pairs of a read and a real box, each used once, the best overlaps first."""
    every = [
        (overlap(one, other), i, j)
        for i, one in enumerate(read)
        for j, other in enumerate(real)
        if one is not None and other is not None
    ]
    pairs: list[tuple[int, int, float]] = []
    used_read, used_real = set(), set()
    for iou, i, j in sorted(every, key=lambda row: (-row[0], row[1], row[2])):
        if iou > 0 and i not in used_read and j not in used_real:
            pairs.append((i, j, iou))
            used_read.add(i)
            used_real.add(j)
    return pairs


def _longest_rise(order: Sequence[int]) -> int:
    """Length of the longest rising subsequence."""
    best: list[int] = []
    for index, value in enumerate(order):
        best.append(1 + max((best[k] for k in range(index) if order[k] < value), default=0))
    return max(best, default=0)


def well_formed(answer: str) -> bool:
    """Whether an answer is blocks of reference, box and text from end to end, and its tables are tables."""
    heads = list(re.finditer(_HEAD, answer))
    if not heads or heads[0].start() != 0:
        return False
    ends = [head.start() for head in heads[1:]] + [len(answer)]
    for number, (head, end) in enumerate(zip(heads, ends, strict=True)):
        content = answer[head.end() : end]
        if number + 1 < len(heads):
            if not content.endswith("\n\n"):
                return False
            content = content[:-2]
        if content and not content.startswith("\n"):
            return False
        if _TAGS.search(content) and not _TABLE_TEXT.fullmatch(content[1:]):
            return False
    return True


def summary(scores: Sequence[Score]) -> dict[str, float]:
    """The figures of a set of pages: error rate over all characters, overlap over all real regions."""
    pages = len(scores)

    def total(name: str) -> float:
        return float(sum(getattr(score, name) for score in scores))

    rates = [score.edits / max(1, score.letters) for score in scores]
    return {
        "pages": pages,
        "cer": total("edits") / max(1.0, total("letters")),
        "cer_median": statistics.median_high(rates),
        "cer_worst": max(rates),
        "iou": total("overlap") / max(1.0, total("truths")),
        "precision": total("found") / max(1.0, total("regions")),
        "recall": total("found") / max(1.0, total("truths")),
        "labels": total("labels") / max(1.0, total("found")),
        "out_of_order": total("out_of_order") / max(1.0, total("found")),
        "well_formed": total("well_formed") / pages,
        "ended": total("ended") / pages,
        "tokens": total("tokens") / pages,
        "invented": total("invented") / max(1.0, total("blank")),
    }


def by_length(scores: Sequence[Score], step: int = 150) -> dict[str, dict[str, float]]:
    """Error rate over all characters of pages that hold up to 150 letters, up to 300, and so on."""
    return _by_group(scores, [max(1, -(-page.letters // step)) * step for page in scores])


def by_type(
    scores: Sequence[Score], sizes: Sequence[float], edges: Sequence[int] = (0, 18, 20, 24, 32)
) -> dict[str, dict[str, float]]:
    """Error rate over all characters of pages whose type, to the pixel, has at least so many of them."""
    return _by_group(scores, [max(edge for edge in edges if edge <= round(size)) for size in sizes])


def _by_group(scores: Sequence[Score], groups: Sequence[int]) -> dict[str, dict[str, float]]:
    found = {}
    for group in sorted(set(groups)):
        pages = [page for page, its in zip(scores, groups, strict=True) if its == group]
        found[str(group)] = {"pages": len(pages), "cer": round(summary(pages)["cer"], 5)}
    return found

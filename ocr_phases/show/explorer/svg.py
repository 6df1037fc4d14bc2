"""Inline SVG for the explorer: the page under its boxes, and the latency of every token.

A drawing is sent to the browser once. What moves afterwards (the highlight, the cursor, opacity, filters) is
a style sheet of a few hundred bytes, so that a slider never waits for a picture. And unlike a matplotlib
figure a curve is made in about a millisecond, while a measurement runs in the same process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ocr_phases.analyse.grounding import PREAMBLE, Region
from ocr_phases.show.blocks import Html, element, fragment, small_jpeg
from ocr_phases.show.overlay import hex_colour, region_boxes

_PAGE_SIDE = 1_400  # pixels of the embedded page
_MOST_POINTS = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 10.0, 32.0


@dataclass(frozen=True)
class Curve:
    """The scale of a latency curve: ``count`` tokens from left to right, 0 to ``top`` ms upwards."""

    count: int
    top: float
    width: float = 640.0
    height: float = 190.0

    @classmethod
    def of(cls, runs: Sequence[Sequence[float]], count: int | None = None) -> Curve:
        """A scale that the bulk of all ``runs`` (ms a token, NaN for none) fits; what is above is cut off."""
        values = np.asarray([ms for run in runs for ms in run], dtype=np.float64)
        values = values[np.isfinite(values)]
        usual = float(np.quantile(values, 0.98)) if len(values) else 0.0
        longest = max((len(run) for run in runs), default=0)
        return cls(count=max(count or longest, 1), top=1.3 * usual or 1.0)

    def x(self, index: float) -> float:
        """Where token ``index`` stands, in user units."""
        return _LEFT + (index + 0.5) / self.count * (self.width - _LEFT - _RIGHT)

    def y(self, ms: float) -> float:
        """Where ``ms`` stands; at the upper edge where it is above it."""
        return self.height - _BOTTOM - min(ms / self.top, 1.0) * (self.height - _TOP - _BOTTOM)


def curve_svg(
    curve: Curve,
    runs: Sequence[Sequence[float]],
    *,
    title: str,
    bands: Mapping[int, tuple[int, int]] | None = None,
    cursor: bool = False,
) -> str:
    """``runs`` (ms a token) as lines, the last one strong, over axes in tokens and ms.

    ``bands`` (region -> first token and the one behind its last) and the ``cursor`` stay hidden until
    `cursor_css` moves them.
    """
    parts = []
    floor, ceiling = curve.y(0.0), curve.y(curve.top)
    for region, (start, end) in (bands or {}).items():
        left, right = curve.x(start - 0.5), curve.x(end - 0.5)
        parts.append(
            f'<rect class="opx-band opx-b{region}" x="{left:.1f}" y="{ceiling:.1f}" '
            f'width="{max(right - left, 1):.1f}" height="{floor - ceiling:.1f}"/>'
        )
    for tick in MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]).tick_values(0.0, curve.top):
        if not 0 <= tick <= curve.top:
            continue
        y = curve.y(float(tick))
        parts.append(
            f'<line class="opx-grid" x1="{_LEFT}" x2="{curve.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in MaxNLocator(nbins=6, integer=True).tick_values(0, curve.count):
        if 0 <= tick < curve.count:
            x = curve.x(float(tick))
            parts.append(f'<text x="{x:.1f}" y="{floor + 14:.1f}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text x="{curve.width - _RIGHT}" y="{curve.height - 4}" text-anchor="end">token</text>'
        f'<text x="{_LEFT - 40}" y="{curve.height - 4}">ms a token</text>'
    )
    for place, run in enumerate(runs):
        kind = "opx-line" if place == len(runs) - 1 else "opx-line opx-faint"
        parts.append(f'<polyline class="{kind}" points="{_points(curve, run)}"/>')
    if cursor:
        parts.append(
            f'<line class="opx-cursor" x1="0" x2="0" y1="{ceiling:.1f}" y2="{floor:.1f}"/>'
            '<circle class="opx-dot" r="4"/>'
        )
    box = f"0 0 {curve.width:g} {curve.height:g}"
    return element("svg", Html("".join(parts)), class_="opx-curve", viewBox=box, role="img", aria_label=title)


def _points(curve: Curve, values: Sequence[float]) -> str:
    """A polyline's points; of many values the slowest of each few, so that no slow step goes missing."""
    data = np.asarray(values, dtype=np.float64)
    data = np.where(np.isfinite(data), data, -np.inf)
    bunch = max(1, math.ceil(len(data) / _MOST_POINTS))
    data = np.pad(data, (0, -len(data) % bunch), constant_values=-np.inf).reshape(-1, bunch)
    places = data.argmax(axis=1) + np.arange(len(data)) * bunch
    slowest = data.max(axis=1)
    pairs = zip(places.tolist(), slowest.tolist(), strict=True)
    return " ".join(f"{curve.x(place):.1f},{curve.y(ms):.1f}" for place, ms in pairs if ms >= 0)


def cursor_css(scope: str, curve: Curve, token: int, ms: float | None, region: int) -> str:
    """Moves the cursor of a curve within the class ``scope`` to a token, and marks its region's tokens."""
    x = curve.x(token)
    dot = "display:none" if ms is None else f"transform:translate({x:.1f}px,{curve.y(ms):.1f}px)"
    return (
        f".{scope} .opx-cursor{{transform:translateX({x:.1f}px)}}"
        f".{scope} .opx-dot{{{dot}}}.{scope} .opx-b{region}{{visibility:visible}}"
    )


def page_svg(
    image: Image.Image | None,
    size: tuple[int, int],
    regions: Sequence[Region],
    notes: Mapping[int, str],
) -> str:
    """The page, ``size`` pixels as the model saw it, under its boxes; hovering shows a region's note.

    A group a box has the classes ``opx-r<index>`` (its region) and ``opx-k<number>`` (its type, see
    `kinds`). A page that is not in the record is an empty sheet.
    """
    width, height = size
    parts = [
        f'<svg class="opx-page" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="The page with {len(regions)} regions">'
        f'<rect class="opx-sheet" width="{width}" height="{height}"/>'
    ]
    if image is not None:
        _, address = small_jpeg(image, _PAGE_SIDE, _PAGE_SIDE)
        parts.append(
            f'<image href="{address}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        )
    numbers = {label: number for number, label in enumerate(kinds(regions))}
    classes = {region.index: f"opx-r{region.index} opx-k{numbers[region.label]}" for region in regions}
    for region, (x1, y1, x2, y2), colour, tag in region_boxes(regions, size):
        text = fragment()
        if tag is not None:
            x, y = tag.start
            text = element("text", tag.text, class_="opx-tag", x=x, y=y, font_size=tag.size)
        across, down = max(x2 - x1, 1), max(y2 - y1, 1)
        drawn = f'<rect class="opx-box" x="{x1}" y="{y1}" width="{across}" height="{down}"/>'
        title = element("title", notes.get(region, ""))
        named, style = f"opx-region {classes[region]}", f"--op-region:{hex_colour(colour)}"
        parts.append(element("g", title, Html(drawn), text, class_=named, style=style))
    parts.append("</svg>")
    return "".join(parts)


def page_css(
    scope: str,
    *,
    current: int,
    opacity: float,
    labels: bool,
    hidden: Sequence[int] = (),
    colours: Mapping[int, str] | None = None,
) -> str:
    """How the boxes within the class ``scope`` look: ``current`` region marked, ``hidden`` types left out.

    ``opacity`` is the fill's, 0 to 1; ``colours`` overrule a region's own.
    """
    rules = [f".{scope} .opx-box{{fill-opacity:{opacity:.2f}}}"]
    if not labels:
        rules.append(f".{scope} .opx-tag{{display:none}}")
    rules += [f".{scope} .opx-k{number}{{display:none}}" for number in hidden]
    rules += [
        f".{scope} .opx-r{region} .opx-box{{fill:{colour};stroke:{colour}}}"
        f".{scope} .opx-r{region} .opx-tag{{fill:{colour}}}"
        for region, colour in (colours or {}).items()
    ]
    if current != PREAMBLE:
        rules.append(
            f".{scope} .opx-r{current} .opx-box{{fill-opacity:{min(1.0, opacity + 0.22):.2f};stroke-width:5}}"
            f".{scope} .opx-r{current} .opx-tag{{font-weight:800;display:inline}}"
        )
    return "".join(rules)


def kinds(regions: Sequence[Region]) -> list[str]:
    """The types of region on a page, in order of appearance."""
    return list(dict.fromkeys(region.label for region in regions))

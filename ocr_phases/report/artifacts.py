"""The files an output turns into: result.mmd, images/K.jpg, result_with_boxes.jpg and geo.jpg.

Of several pages in one prompt each has its own: images/page_N_K.jpg and result_with_boxes_N.jpg.

Everything here reads text that a model wrote: it is parsed, never evaluated.
"""

from __future__ import annotations

import ast
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ocr_phases.analyse.grounding import GRID, Box, Grounding, Region, parse_grounding
from ocr_phases.families import FAMILIES, facts_of
from ocr_phases.files import RECORD, same_file, save_or_rescue, write_into
from ocr_phases.record import PhaseRun
from ocr_phases.show.overlay import draw_boxes, printable

ARTIFACTS = (
    rf"{'|'.join(re.escape(facts.result_name) for facts in FAMILIES.values())}"
    r"|images(/(page_\d+_)?\d+\.jpg)?|result_with_boxes(_\d+)?\.jpg|geo\.jpg"
)
"""A regular expression of the names of `write_artifacts`."""
RESULTS = rf"{RECORD}|report\.(ipynb|html)|{ARTIFACTS}"
"""The same of all that a report writes into its folder."""
VERIFICATION = rf"{RECORD}|verify\.(ipynb|html)"
"""The same of a verification."""

EOS_TEXT = "<｜end▁of▁sentence｜>"

MAX_CROPS = 500
"""Crops of one output, at most."""

MAX_CROP_PAGES = 20
"""How often all crops of one output together may cover the page, at most."""

Point = tuple[float, float]
Pages = Image.Image | None | Sequence[Image.Image | None]

_LONGEST_GEOMETRY = 20_000
_FARTHEST_POINT = 1e6
_GEOMETRY_AXIS = 15
_JPEG_LONGEST_SIDE = 65_500
_NUMBER = r"\s*([-+]?[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*"
_POINT = rf"\({_NUMBER},{_NUMBER}\)"
_LINE = re.compile(rf"\s*{_POINT}\s*--\s*{_POINT}\s*")
_ENDPOINT = re.compile(rf"([^:]*):\s*{_POINT}\s*")


@dataclass(frozen=True)
class GeometryLine:
    """A straight line between two points of the figure's own coordinates."""

    start: Point
    end: Point
    dashed: bool


@dataclass(frozen=True)
class Geometry:
    """A geometric figure as the model writes it: lines, and the points that carry a name."""

    lines: tuple[GeometryLine, ...]
    endpoints: tuple[tuple[str, Point], ...]


def result_markdown(text: str, family: str | None = None, pages: int = 1) -> str:
    """The Markdown of an output: no grounding markup, each crop of an `image` region linked in its place.

    Links count on through all boxes of all `image` regions exactly as `crop_images` does, so `images/K.jpg`
    is crop K. A last line says how many crops were left out (`MAX_CROPS`, `MAX_CROP_PAGES`). The
    end-of-sentence text is cut, and two LaTeX commands that viewers lack are spelled out. Of a ``family``
    that marks pages the marks stay, each on a line; the mark of an image on none of the ``pages`` stays too.
    """
    text = _without_eos(text)
    pieces = []
    position = 0
    left_out = 0
    grounding = parse_grounding(text, family)
    for region, kept, beyond in _crops(grounding, pages):
        if region.label == "image" and region.page >= pages:
            continue
        pieces.append(text[position : region.start])
        pieces += [f"![]({name})\n" for _, name in kept]
        left_out += beyond
        position = region.content_start
    pieces.append(text[position:])
    if grounding.page_starts:
        mark = facts_of(family).page_mark
        pieces = [re.sub(rf"{mark}(?!\n)", f"{mark}\n", "".join(pieces))]
    if left_out:
        pieces.append(
            f"\n\n*{left_out:,} more pictures have no file: an output has at most {MAX_CROPS} crops, "
            f"and together they cover the page at most {MAX_CROP_PAGES} times.*"
        )
    return "".join(pieces).replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:")


def crop_images(page: Image.Image, grounding: Grounding) -> Iterator[Image.Image]:
    """The pictures on the page: an RGB crop for each box of an `image` region, in order, one at a time.

    A box without area on the 0..999 grid has no crop and no link. A box with an area that a small page rounds
    away is widened to one pixel: which crops exist must not depend on the page's size, or links would drift.
    There are at most `MAX_CROPS`, and together they cover the page at most `MAX_CROP_PAGES` times.
    """
    for _, crop in _named_crops(page, grounding, 0, 1):
        yield crop


def _named_crops(
    page: Image.Image, grounding: Grounding, of: int, pages: int
) -> Iterator[tuple[str, Image.Image]]:
    """The same of page ``of`` of ``pages``, each with its file's name."""
    upright = page.convert("RGB")
    for region, kept, _ in _crops(grounding, pages):
        if region.page == of:
            pixels = region.pixel_boxes(*upright.size) if kept else []
            for index, name in kept:
                yield name, upright.crop(_at_least_one_pixel(pixels[index], upright.size))


def parse_geometry(text: str) -> Geometry | None:
    """The figure that a geometry output describes, or None when the text is anything else or malformed.

    Expected is a literal dict whose `Line` holds as many `line` strings (`"(0, 1) -- (2, 3)"`) as `line_type`
    strings, and `line_endpoint` strings (`"A: (0, 1)"`). A `line_type` of `--` is dashed, any other solid.
    """
    text = _without_eos(text)
    if "line_type" not in text or len(text) > _LONGEST_GEOMETRY:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    figure = content.get("Line") if isinstance(content, dict) else None
    if not isinstance(figure, dict):
        return None
    columns = [_strings(figure.get(name)) for name in ("line", "line_type", "line_endpoint")]
    if any(column is None for column in columns):
        return None
    lines, types, endpoints = (column or [] for column in columns)
    if len(lines) != len(types):
        return None
    return _geometry(lines, types, endpoints)


def draw_geometry(geometry: Geometry) -> Image.Image:
    """The figure on axes from -15 to 15, with the name of every named point beside it."""
    figure = Figure(figsize=(6, 6), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    limits = (-_GEOMETRY_AXIS, _GEOMETRY_AXIS)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    axes.grid(visible=True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors="0.4")
    for line in geometry.lines:
        xs, ys = zip(line.start, line.end, strict=True)
        style = "--" if line.dashed else "-"
        axes.plot(xs, ys, color="black", linewidth=1.2, linestyle=style, marker="o", markersize=3)
    centre = np.mean([point for _, point in geometry.endpoints], axis=0) if geometry.endpoints else (0, 0)
    for name, point in geometry.endpoints:
        outward = math.atan2(point[1] - centre[1], point[0] - centre[0])
        axes.annotate(
            printable(name),
            point,
            xytext=(9 * math.cos(outward), 9 * math.sin(outward)),
            textcoords="offset points",
            ha="center",
            va="center",
            annotation_clip=True,
            parse_math=False,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name with a character the font lacks is drawn as an empty box
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def write_artifacts(
    folder: Path, page: Pages, text: str, family: str | None = None, *, overwrite: bool = False
) -> list[Path]:
    """Write the files of one output into `folder` and return their paths, result.mmd (or .md) first.

    `page` is the upright page the model saw, or a list of those in one prompt; without one (a record that
    does not embed its page) only the text is written. A file is never seen half written; what an earlier
    output left there goes. Raises as `ocr_phases.files.write_into` does.
    """
    pages = list(page) if isinstance(page, Sequence) else [page]
    name, count = facts_of(family).result_name, len(pages)
    files = {name: result_markdown(text, family, count).encode("utf-8", "replace")}
    grounding = parse_grounding(text, family)
    for number, image in enumerate(pages):
        if image is not None:
            files |= {file: _jpeg(crop) for file, crop in _named_crops(image, grounding, number, count)}
            boxes = "result_with_boxes.jpg" if count == 1 else f"result_with_boxes_{number}.jpg"
            files[boxes] = _jpeg(draw_boxes(image, grounding.on_page(number)))
    if pages[0] is not None:
        geometry = parse_geometry(text)
        if geometry is not None:
            files["geo.jpg"] = _jpeg(draw_geometry(geometry))
    return write_into(folder, files, overwrite=overwrite, stale=ARTIFACTS)


def write_results(
    folder: Path, run: PhaseRun, record: str | Path | None = None, *, overwrite: bool = False
) -> None:
    """`write_record`, then the first row's text and pictures if it has them; raises as both do."""
    write_record(folder, run, record, overwrite=overwrite)
    if run.text is not None:
        family = run.model.get("family")
        write_artifacts(folder, row_images(run, 0), run.text, family, overwrite=overwrite)


def write_record(
    folder: Path, run: PhaseRun, record: str | Path | None = None, *, overwrite: bool = False
) -> None:
    """Write a record as run.json into ``folder``, unless that is ``record``, the file that it is from.

    Raises as `ocr_phases.files.write_into` does; the record is then saved elsewhere (`save_or_rescue`).
    """
    path = folder / RECORD

    def save(_: str | Path) -> Path:
        return write_into(folder, {RECORD: run.to_json()}, overwrite=overwrite)[0]

    if not same_file(path, record):
        save_or_rescue(save, path, run.save)


def row_images(run: PhaseRun, row: int) -> list[Image.Image | None]:
    """The pages of a batch row whose regions can be told apart, None for one that the record does not hold.

    Without page marks that is the first.
    """
    numbers = [number for number, page in enumerate(run.pages) if page["row"] == row]
    marked = facts_of(run.model.get("family")).page_mark is not None
    return [run.page_image(number) for number in (numbers if marked else numbers[:1])]


def _without_eos(text: str) -> str:
    return text.strip().removesuffix(EOS_TEXT).strip()


def _crops(grounding: Grounding, pages: int) -> Iterator[tuple[Region, list[tuple[int, str]], int]]:
    """Each region with those of its boxes that become crops and how many are beyond what one output may have.

    A box is its number in the region and its crop's file. This is the one rule that links and crops share.
    """
    named: Counter[int] = Counter()
    crops, area = MAX_CROPS, MAX_CROP_PAGES * GRID**2
    for region in grounding.regions:
        kept: list[tuple[int, str]] = []
        beyond = 0
        for index, (x1, y1, x2, y2) in enumerate(region.boxes if region.label == "image" else ()):
            if x1 == x2 or y1 == y2 or region.page >= pages:
                continue
            crops, area = crops - 1, area - (x2 - x1) * (y2 - y1)
            if crops < 0 or area < 0:
                beyond += 1
            else:
                page = "" if pages == 1 else f"page_{region.page}_"
                kept.append((index, f"images/{page}{named[region.page]}.jpg"))
                named[region.page] += 1
        yield region, kept, beyond


def _at_least_one_pixel(box: Box, page_size: tuple[int, int]) -> Box:
    width, height = page_size
    x1, y1 = min(box[0], width - 1), min(box[1], height - 1)
    return x1, y1, max(box[2], x1 + 1), max(box[3], y1 + 1)


def _strings(value: object) -> list[str] | None:
    if not isinstance(value, list):
        return None
    strings = [item for item in value if isinstance(item, str)]
    return strings if len(strings) == len(value) else None


def _geometry(lines: list[str], types: list[str], endpoints: list[str]) -> Geometry | None:
    line_matches = [match for match in map(_LINE.fullmatch, lines) if match]
    named_matches = [match for match in map(_ENDPOINT.fullmatch, endpoints) if match]
    if len(line_matches) != len(lines) or len(named_matches) != len(endpoints):
        return None
    numbers = [float(group) for match in line_matches for group in match.groups()]
    numbers += [float(group) for match in named_matches for group in match.groups()[1:]]
    if any(abs(number) > _FARTHEST_POINT for number in numbers):
        return None
    return Geometry(
        tuple(
            GeometryLine(_point(match.group(1, 2)), _point(match.group(3, 4)), kind == "--")
            for match, kind in zip(line_matches, types, strict=True)
        ),
        tuple((match.group(1), _point(match.group(2, 3))) for match in named_matches),
    )


def _point(numbers: tuple[str, ...]) -> Point:
    x, y = (float(number) for number in numbers)
    return x, y


def _jpeg(image: Image.Image) -> bytes:
    if max(image.size) > _JPEG_LONGEST_SIDE:  # the format cannot hold it
        image = image.copy()
        image.thumbnail((_JPEG_LONGEST_SIDE, _JPEG_LONGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()

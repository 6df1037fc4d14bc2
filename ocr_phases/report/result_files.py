"""The files a record turns into: result.mmd, result_ori.mmd, images/K.jpg, result_with_boxes.jpg,
geo.jpg and a Chrome trace.

Of several pages in one prompt each has its own: images/page_N_K.jpg and result_with_boxes_N.jpg.
Of several rows each has a folder: row-0, row-1 and so on.

Everything here reads text that a model wrote: it is parsed, never evaluated.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

from ocr_phases.analyse.cost import energy_of
from ocr_phases.analyse.grounding import GRID, Box, Grounding, Region, parse_grounding, pixel_box
from ocr_phases.analyse.stages import tokens_of
from ocr_phases.families import FAMILIES, facts_of
from ocr_phases.files import RECORD, TRACE_OWNER, rescued, same_file, write_given, write_into
from ocr_phases.images import image_file
from ocr_phases.record import Record
from ocr_phases.show.boxes import draw_marks, region_boxes
from ocr_phases.show.page import pages_of_row
from ocr_phases.show.web import printable

PICTURES = "images/"
"""How the names of an output's crops begin."""
ARTIFACTS = (
    rf"{'|'.join(re.escape(facts.result_name) for facts in FAMILIES.values())}"
    r"|result_ori\.(mmd|md)"
    r"|images(/(page_\d+_)?\d+\.jpg)?|result_with_boxes(_\d+)?\.jpg|geo\.jpg"
)
"""A regular expression of the names of `write_artifacts`."""
WRITTEN_RESULTS = rf"{RECORD}|{ARTIFACTS}"
"""The same of `write_results`."""
RESULTS = rf"report\.(ipynb|html)|{WRITTEN_RESULTS}"
"""The same of all that a report writes into its folder."""
VERIFICATION = rf"{RECORD}|verify\.(ipynb|html)"
"""The same of a verification."""

EOS_TEXT = "<｜end▁of▁sentence｜>"

MAX_CROPS = 500
"""Crops of one output, at most."""

MAX_CROP_PAGES = 20
"""How often all crops of one output together may cover the page, at most."""

Point = tuple[float, float]
PageImages = Image.Image | None | Sequence[Image.Image | None]

#: The label of the regions that are cut out of the page.
_PICTURE = "image"
#: Characters of a geometry output, at most.
_LONGEST_GEOMETRY = 20_000
_FARTHEST_POINT = 1e6
_GEOMETRY_AXIS = (-15, 15)
#: The longest side that the format JPEG can hold, in pixels.
_JPEG_LONGEST_SIDE = 65_500
_NUMBER = r"\s*([-+]?[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*"
_POINT = rf"\({_NUMBER},{_NUMBER}\)"
_LINE = re.compile(rf"\s*{_POINT}\s*--\s*{_POINT}\s*")
_ENDPOINT = re.compile(rf"[^:]*:\s*{_POINT}\s*")


@dataclass(frozen=True)
class GeometryLine:
    """A straight line between two points of the figure's own coordinates."""

    start: Point
    end: Point
    dashed: bool


@dataclass(frozen=True)
class GeometryCircle:
    """A circle in the figure's own coordinates."""

    center: Point
    radius: float


@dataclass(frozen=True)
class Geometry:
    """A geometric figure as the model writes it: lines, points that carry a name, and circles."""

    lines: tuple[GeometryLine, ...]
    endpoints: tuple[tuple[str, Point], ...]
    circles: tuple[GeometryCircle, ...] = ()


def original_name(family: str | None = None) -> str:
    """The file of the text with its marks: result_ori.mmd, or .md where the result is one."""
    return "result_ori" + Path(facts_of(family).result_name).suffix


def result_markdown(
    text: str, family: str | None = None, pages: int = 1, pictures: str = PICTURES
) -> str:
    """The Markdown of an output: no grounding markup, each crop of an `image` region linked in its
    place.

    Links count on through all boxes of all `image` regions, so `images/K.jpg` is crop K; the names
    of the crops begin with ``pictures``. A last line says how many crops were left out
    (`MAX_CROPS`, `MAX_CROP_PAGES`). The end-of-sentence text is cut, and two LaTeX commands that
    viewers lack are spelled out. Of a ``family`` that marks pages the marks stay, each on a line;
    the mark of an image on none of the ``pages`` stays too.
    """
    text = without_eos(text)
    pieces = []
    position = 0
    left_out = 0
    grounding = parse_grounding(text, family)
    for cropped in _cropped_regions(grounding, pages, pictures):
        region = cropped.region
        if region.label == _PICTURE and region.page >= pages:
            continue
        pieces.append(text[position : region.start])
        pieces += [f"![]({crop.file})\n" for crop in cropped.crops]
        left_out += cropped.left_out
        position = region.content_start
    pieces.append(text[position:])
    markdown = "".join(pieces)
    if grounding.page_starts:
        mark = facts_of(family).page_mark
        markdown = re.sub(rf"{mark}(?!\n)", f"{mark}\n", markdown)
    if left_out:
        markdown += (
            f"\n\n*{left_out:,} more pictures have no file: an output has at most {MAX_CROPS} "
            f"crops, and together they cover the page at most {MAX_CROP_PAGES} times.*"
        )
    return markdown.replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:")


def parse_geometry(text: str) -> Geometry | None:
    """The figure that a geometry output describes, or None when the text is anything else or
    malformed.

    Expected is a literal dict whose `Line` holds as many `line` strings (`"(0, 1) -- (2, 3)"`) as
    `line_type` strings, and `line_endpoint` strings (`"A: (0, 1)"`). A `line_type` of `--` is
    dashed, any other solid. A `Circle` may hold as many `circle_center` strings (`"O: (0, 1)"`) as
    `radius` numbers; malformed circles are left out, and the lines stay.
    """
    text = without_eos(text)
    if "line_type" not in text or len(text) > _LONGEST_GEOMETRY:
        return None
    literal = _read_literal(text)
    try:
        figure = msgspec.convert(literal, _Figure)
        lines = _geometry_lines(figure.Line)
        endpoints = _named_points(figure.Line.line_endpoint)
    except ValueError:  # another shape, unequal numbers of lines and types, or a malformed point
        return None
    return Geometry(lines, endpoints, _circles(figure.Circle))


def _read_literal(text: str) -> Any:
    """The value of a Python literal, which is never evaluated; None for any other text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    # All that literal_eval raises by its documentation; a model writes every kind of text.
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Lines(msgspec.Struct):
    line: list[str]
    line_type: list[str]
    line_endpoint: list[str]


class _Circles(msgspec.Struct):
    circle_center: list[str]
    radius: list[float]


class _Figure(msgspec.Struct):
    """What a geometry output has to hold; the keys are the model's."""

    Line: _Lines
    Circle: Any = None


def _geometry_lines(written: _Lines) -> tuple[GeometryLine, ...]:
    """The lines of a figure; `ValueError` where one is malformed."""
    lines = []
    for line, line_type in zip(written.line, written.line_type, strict=True):
        start, end = _points(_LINE, line)
        lines.append(GeometryLine(start, end, dashed=line_type == "--"))
    return tuple(lines)


def _named_points(written: Sequence[str]) -> tuple[tuple[str, Point], ...]:
    """Each point with its name, of ``"A: (0, 1)"``; `ValueError` where one is malformed."""
    points = []
    for text in written:
        name = text.partition(":")[0]
        points.append((name, _points(_ENDPOINT, text)[0]))
    return tuple(points)


def _circles(written: Any) -> tuple[GeometryCircle, ...]:
    """The circles of a figure; none where one is malformed, as in the published code."""
    if written is None:
        return ()
    circles = []
    try:
        figure = msgspec.convert(written, _Circles)
        centers = _named_points(figure.circle_center)
        for (_, center), radius in zip(centers, figure.radius, strict=True):
            if not 0 < radius <= _FARTHEST_POINT:
                return ()
            circles.append(GeometryCircle(center, radius))
    except ValueError:  # another shape, unequal numbers of centers and radii, or a malformed point
        return ()
    return tuple(circles)


def _points(form: re.Pattern[str], text: str) -> list[Point]:
    """The points in a text of this form; `ValueError` for another form and for a point too far
    away.
    """
    match = form.fullmatch(text)
    if match is None:
        raise ValueError(text)
    numbers = [float(number) for number in match.groups()]
    if max(map(abs, numbers)) > _FARTHEST_POINT:
        raise ValueError(text)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def draw_geometry(geometry: Geometry) -> Image.Image:
    """The figure on axes from -15 to 15, with the name of every named point beside it."""
    figure = Figure(figsize=(6, 6), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlim=_GEOMETRY_AXIS, ylim=_GEOMETRY_AXIS, aspect="equal")
    axes.grid(visible=True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors="0.4")
    for line in geometry.lines:
        xs, ys = zip(line.start, line.end, strict=True)
        style = "--" if line.dashed else "-"
        axes.plot(xs, ys, color="black", linewidth=1.2, linestyle=style, marker="o", markersize=3)
    for circle in geometry.circles:
        axes.add_patch(Circle(circle.center, circle.radius, fill=False, linewidth=1.2))
    center = _middle([point for _, point in geometry.endpoints])
    for name, point in geometry.endpoints:
        outward = math.atan2(point[1] - center[1], point[0] - center[0])
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
        # A name with a character that the font lacks is drawn as an empty box.
        warnings.simplefilter("ignore")
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _middle(points: Sequence[Point]) -> Point:
    """The mean of some points, from which their names point away; the origin for none."""
    if not points:
        return (0.0, 0.0)
    x, y = np.mean(points, axis=0)
    return (float(x), float(y))


def write_artifacts(
    folder: Path, page: PageImages, text: str, family: str | None = None, *, overwrite: bool = False
) -> list[Path]:
    """Write the files of one output into `folder` and return their paths, result.mmd (or .md)
    first, then the text with its marks, as the model wrote it.

    `page` is the upright page the model saw, or a list of those in one prompt; without one (a
    record that does not embed its page, or of a prompt without an image) only the text is written.
    A file is never seen half written; what an earlier output left there goes. Raises as
    `ocr_phases.files.write_into` does.
    """
    pages = list(page) if isinstance(page, Sequence) else [page]
    markdown = result_markdown(text, family, len(pages))
    files = {
        facts_of(family).result_name: markdown.encode("utf-8", "replace"),
        original_name(family): text.encode("utf-8", "replace"),
    }
    grounding = parse_grounding(text, family)
    for number, image in enumerate(pages):
        if image is None:
            continue
        files |= picture_files(image, grounding, number, len(pages))
        name = "result_with_boxes.jpg"
        if len(pages) > 1:
            name = f"result_with_boxes_{number}.jpg"
        files[name] = _jpeg(page_with_boxes(image, grounding, number))
    geometry = parse_geometry(text)
    if geometry is not None and pages and pages[0] is not None:
        files["geo.jpg"] = _jpeg(draw_geometry(geometry))
    return write_into(folder, files, overwrite=overwrite, stale=ARTIFACTS)


def picture_files(
    image: Image.Image,
    grounding: Grounding,
    page: int = 0,
    pages: int = 1,
    pictures: str = PICTURES,
) -> dict[str, bytes]:
    """The crops of one page's `image` regions as JPEG, by the names that `result_markdown` links.

    ``image`` is page number ``page`` of the ``pages`` that ``grounding`` is of.
    """
    files = {}
    for cropped in _cropped_regions(grounding, pages, pictures):
        if cropped.region.page == page:
            for crop in cropped.crops:
                files[crop.file] = _jpeg(_cut_out(image, crop.box))
    return files


def page_with_boxes(image: Image.Image, grounding: Grounding, page: int = 0) -> Image.Image:
    """The page with the boxes of its regions, drawn on a copy."""
    return draw_marks(image, region_boxes(grounding.on_page(page).regions, image.size))


def write_results(
    folder: Path, run: Record, record: str | Path | None = None, *, overwrite: bool = False
) -> None:
    """`write_record`, then the text and pictures of each row that has them; raises as both do."""
    write_record(folder, run, record, overwrite=overwrite)
    family = run.model.family
    for row, result in enumerate(run.results):
        if result.text is not None:
            target = row_folder(folder, run, row)
            write_artifacts(target, row_images(run, row), result.text, family, overwrite=overwrite)


def row_folder(folder: Path, run: Record, row: int) -> Path:
    """Where the files of a row go: the folder itself, of several rows ``row-0``, ``row-1``, ..."""
    if len(run.results) == 1:
        return folder
    return folder / f"row-{row}"


def write_record(
    folder: Path, run: Record, record: str | Path | None = None, *, overwrite: bool = False
) -> None:
    """Write a record as run.json into ``folder``, unless that is ``record``, the file that it is
    from.

    Raises as `ocr_phases.files.write_into` does; the record is then saved elsewhere (`rescued`).
    """
    if not same_file(folder / RECORD, record):
        with rescued(run.save):
            write_into(folder, {RECORD: run.to_json()}, overwrite=overwrite)


def row_images(run: Record, row: int) -> list[Image.Image | None]:
    """The pages of a batch row whose regions can be told apart; None for one that the record does
    not hold.

    All of them where the family marks pages in its text, else the first one alone.
    """
    numbers = pages_of_row(run, row)
    if facts_of(run.model.family).page_mark is None:
        numbers = numbers[:1]
    return [run.page_image(number) for number in numbers]


def without_eos(text: str) -> str:
    """A model's text without the end token behind it and without blanks around it."""
    return text.strip().removesuffix(EOS_TEXT).strip()


@dataclass(frozen=True)
class _Crop:
    """A box that is cut out of its page, and the file that it is written to."""

    box: Box
    file: str


@dataclass(frozen=True)
class _CroppedRegion:
    """A region with its crops, and how many more boxes are beyond what one output may have."""

    region: Region
    crops: list[_Crop]
    left_out: int


def _cropped_regions(
    grounding: Grounding, pages: int, pictures: str = PICTURES
) -> list[_CroppedRegion]:
    """All regions with their crops: the one rule that links in the text and files share."""
    cropped = []
    crops_left = MAX_CROPS
    area_left = MAX_CROP_PAGES * GRID**2
    crops_of_page: Counter[int] = Counter()
    for region in grounding.regions:
        crops = []
        left_out = 0
        beginning = pictures if pages == 1 else f"{pictures}page_{region.page}_"
        for box in _picture_boxes(region, pages):
            x1, y1, x2, y2 = box
            crops_left -= 1
            area_left -= (x2 - x1) * (y2 - y1)
            if crops_left < 0 or area_left < 0:
                left_out += 1
                continue
            crops.append(_Crop(box, f"{beginning}{crops_of_page[region.page]}.jpg"))
            crops_of_page[region.page] += 1
        cropped.append(_CroppedRegion(region, crops, left_out))
    return cropped


def _picture_boxes(region: Region, pages: int) -> list[Box]:
    """The boxes of a picture that have an area and lie on one of the pages."""
    if region.label != _PICTURE or region.page >= pages:
        return []
    return [box for box in region.boxes if box[0] != box[2] and box[1] != box[3]]


def _cut_out(page: Image.Image, box: Box) -> Image.Image:
    """A box of the page, at least one pixel wide and high.

    Which crops exist must not depend on the page's size, or links would drift.
    """
    width, height = page.size
    left, top, right, bottom = pixel_box(box, width, height)
    left = min(left, width - 1)
    top = min(top, height - 1)
    right = max(right, left + 1)
    bottom = max(bottom, top + 1)
    return page.crop((left, top, right, bottom)).convert("RGB")


def _jpeg(image: Image.Image) -> bytes:
    if max(image.size) > _JPEG_LONGEST_SIDE:  # the format cannot hold it
        image = image.copy()
        image.thumbnail((_JPEG_LONGEST_SIDE, _JPEG_LONGEST_SIDE))
    return image_file(image, "JPEG", quality=90)


def trace_of_spans(run: Record) -> dict[str, Any]:
    """All spans of all repeats as one trace for ui.perfetto.dev and chrome://tracing; a repeat
    starts at 0.

    After the Trace Event Format: complete events (``X``) with times in microseconds, and metadata
    events (``M``) that name processes and threads. A process is a repeat, a thread a clock: on a
    CPU there is one, ``host``. Process numbers start at 1: viewers give 0 a meaning of its own.
    Counter events (``C``) have the KV cache's bytes, the GPU's power and its clock, as far as the
    record knows them.
    """
    clocks = ("host", "device") if run.device.has_own_clock else ("host",)
    events = [
        *_track_names(run, clocks),
        *_span_events(run, clocks),
        *_cache_counter(run, clocks[-1]),
        *_power_counter(run, clocks[-1]),
        *_clock_counter(run),
    ]
    return {**TRACE_OWNER, "traceEvents": events, "displayTimeUnit": "ms"}


def _track_names(run: Record, clocks: Sequence[str]) -> list[dict[str, Any]]:
    """What the processes, which are repeats, and the threads, which are clocks, are called."""
    events = []
    for repeat in run.repeats:
        process = {"ph": "M", "pid": repeat + 1}
        title = f"repeat {repeat + 1}: {run.page_file}"
        events.append({"name": "process_name", **process, "args": {"name": title}})
        for thread, clock in enumerate(clocks, start=1):
            args = {"name": f"{clock} clock"}
            events.append({"name": "thread_name", **process, "tid": thread, "args": args})
    return events


def _span_events(run: Record, clocks: Sequence[str]) -> list[dict[str, Any]]:
    """Each span by each clock; that of a decode step has the first row's token that it made."""
    events = []
    steps = tokens_of(run, 0).dropna(subset=["step"])
    text_of_step = dict(zip(steps["step"], steps["text"], strict=True))
    for span in run.spans.to_dict("records"):
        name = span["stage"]
        args: dict[str, Any] = {}
        if span["view"]:
            name = f"{span['stage']} {span['view']}"
            args["view"] = span["view"]
        if span["stage"] == "decode_step":
            args["step"] = int(span["step"])
            args["token"] = text_of_step.get(span["step"], "")
        for thread, clock in enumerate(clocks, start=1):
            events.append(
                {
                    "name": name,
                    "cat": span["phase"],
                    "ph": "X",
                    "pid": span["repeat"] + 1,
                    "args": args,
                    "tid": thread,
                    "ts": 1e3 * span[f"{clock}_start_ms"],
                    "dur": 1e3 * span[f"{clock}_ms"],
                }
            )
    return events


def _counter(name: str, repeat: int, at_ms: float, unit: str, value: float) -> dict[str, Any]:
    """A point of a counter track: it holds until the next point of the same name."""
    ts = 1e3 * at_ms
    return {"name": name, "ph": "C", "pid": repeat + 1, "ts": ts, "args": {unit: value}}


def _cache_counter(run: Record, clock: str) -> list[dict[str, Any]]:
    """The bytes of the KV cache, after the prefill and after each decode step."""
    sizes = run.cache.bytes or []
    events = []
    for span in run.spans.to_dict("records"):
        place = None
        if span["stage"] == "prefill":
            place = 0
        elif span["stage"] == "decode_step":
            place = int(span["step"]) + 1
        if place is None or place >= len(sizes):
            continue
        end_ms = span[f"{clock}_start_ms"] + span[f"{clock}_ms"]
        events.append(_counter("KV cache", span["repeat"], end_ms, "bytes", sizes[place]))
    return events


def _power_counter(run: Record, clock: str) -> list[dict[str, Any]]:
    """The power of the device: its mean over all repeats, as the counter of energy moves seldom."""
    energy = energy_of(run)
    if energy is None or not energy.seconds or energy.run_joules is None:
        return []
    watts = energy.run_joules * len(run.repeats) / energy.seconds
    events = []
    for repeat in run.repeats:
        spans = run.spans[run.spans["repeat"] == repeat]
        end_ms = float((spans[f"{clock}_start_ms"] + spans[f"{clock}_ms"]).max())
        events.append(_counter("power, mean of all repeats", repeat, 0.0, "W", watts))
        events.append(_counter("power, mean of all repeats", repeat, end_ms, "W", watts))
    return events


def _clock_counter(run: Record) -> list[dict[str, Any]]:
    """The clock of the GPU's multiprocessors before the first repeat and after the last one."""
    conditions = run.device.conditions
    if conditions is None or conditions.gpu is None:
        return []
    events = []
    first = conditions.gpu.before
    if first is not None and first.sm_mhz is not None:
        events.append(_counter("SM clock", run.repeats[0], 0.0, "MHz", first.sm_mhz))
    last = conditions.gpu.after
    if last is not None and last.sm_mhz is not None:
        spans = run.spans[run.spans["repeat"] == run.repeats[-1]]
        end_ms = float((spans["host_start_ms"] + spans["host_ms"]).max())
        events.append(_counter("SM clock", run.repeats[-1], end_ms, "MHz", last.sm_mhz))
    return events


def write_chrome_trace(run: Record, path: str | Path, *, overwrite: bool = False) -> Path:
    """`trace_of_spans` as a JSON file; raises as `Record.save` does."""
    data = json.dumps(trace_of_spans(run), allow_nan=False).encode() + b"\n"
    return write_given(path, data, overwrite=overwrite)

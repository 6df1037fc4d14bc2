"""The linked view in a report: one block of static pictures and of data, which a script brings to
life.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from ocr_phases.record import Record
from ocr_phases.show.page import (
    page_heading,
    pages_of_row,
    picture_parts,
    region_parts,
    row_heading,
    rows_shown,
)
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, element, fragment
from ocr_phases.view.assets import view_file
from ocr_phases.view.data import row_data
from ocr_phases.view.pictures import svg_pictures
from ocr_phases.view.scripts import VIEW_SCRIPT

#: The MIME type of the block in an executed notebook: only a report of this package reads it.
VIEW_TYPE = "application/vnd.ocr-phases.view"
_COMMENT = re.compile(r"^ *(/\*.*?\*/|//[^\n]*)\n", re.DOTALL | re.MULTILINE)
#: Columns that are long and may go on evenly, so that `packed` makes them short.
_EVEN_COLUMNS = ("step", "cache_len", "region", "probability", "ms")
_SHORTEST_RUN = 3


class LinkedPage:
    """The page of a record in a report's notebook: the pictures and, in the report, the linked
    view.

    In a notebook it is the static pictures, and below them what each region took. The block for the
    report stands beside the pictures as `VIEW_TYPE`.
    """

    def __init__(self, run: Record) -> None:
        self.run = run

    def _ipython_display_(self) -> None:
        from IPython.display import display

        pictures = fragment(*picture_parts(self.run))
        display({VIEW_TYPE: str(view_block(self.run)), "text/html": str(pictures)}, raw=True)
        Section(*region_parts(self.run))._ipython_display_()


def view_block(run: Record) -> Html:
    """The static pictures of each row, and the data of the linked view as JSON.

    Without scripts, and in print, the pictures are what is seen. The linked view draws on the same
    picture of a page, which the data name by its id.
    """
    parts = []
    rows = []
    for row in rows_shown(run):
        parts.append(row_heading(run, row))
        numbers = pages_of_row(run, row)
        for place, number in enumerate(numbers):
            image = run.page_image(number)
            if image is not None:
                parts.append(page_heading(place, len(numbers)))
                parts.append(svg_pictures(image, run, row, place, _picture_id(run, row, place)))
        rows.append(_embedded_data(run, row))
    static = element("div", *parts, class_="opv-static")
    text = json.dumps({"rows": rows}, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # In a script's text only this sign could end it.
    data_block = element("script", Html(text.replace("<", "\\u003c")), type="application/json")
    return element("div", static, data_block, class_="opv-report")


def _embedded_data(run: Record, row: int) -> dict[str, Any]:
    """The data of a row for a file, which has the pictures of its pages beside them."""
    data = row_data(run, row)
    for place, number in enumerate(pages_of_row(run, row)):
        page = data["pages"][place]
        del page["href"]  # the whole picture, as an address
        if run.page_image(number) is not None:
            page["picture"] = _picture_id(run, row, place)
    for name in _EVEN_COLUMNS:
        data[name] = packed(data[name])
    return data


def _picture_id(run: Record, row: int, place: int) -> str:
    """The id of the picture of a row's page; its place counts from 0."""
    return f"op-page-{_record_key(run)}-{row}-{place}"


def _record_key(run: Record) -> str:
    """Eight letters that tell records apart, of which a notebook may show several."""
    pages = "".join(page.sha256 for page in run.pages)
    name = f"{run.created}{run.model.name}{pages}"
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def packed(values: list[Any]) -> list[Any] | dict[str, list[list[Any]]]:
    """A column as runs of ``[first, step, length]``, where that is shorter; lossless.

    Examples
    --------
    >>> packed([5, 6, 7, 8, None, None, None, None, None, 2])
    {'runs': [[5, 1, 4], [None, 0, 5], [2, 0, 1]]}
    """
    runs: list[list[Any]] = []
    start = 0
    while start < len(values):
        step, length = _run_from(values, start)
        runs.append([values[start], step, length])
        start += length
    if 3 * len(runs) < len(values):  # a run is written as three values
        return {"runs": runs}
    return values


def _run_from(values: list[Any], start: int) -> tuple[int, int]:
    """The step and the length of the run of values that begins at ``start``.

    Where the values do not go on evenly, or only for a few of them, it is a run of one value.
    """
    run_of_one = (0, 1)
    if start + 1 == len(values):
        return run_of_one
    first = values[start]
    step = _step(first, values[start + 1])
    if step is None:
        return run_of_one
    length = 2
    while start + length < len(values):
        expected = first
        if step != 0:  # what does not grow need not be a number
            expected = first + step * length
        if values[start + length] != expected:
            break
        length += 1
    if length < _SHORTEST_RUN:
        return run_of_one
    return step, length


def _step(first: Any, second: Any) -> int | None:
    """How much is added from one value of a run to the next; None where these two begin no run.

    Only integers may grow, because sums of fractions would not be exact.
    """
    if first == second:
        return 0
    if isinstance(first, int) and isinstance(second, int):
        return second - first
    return None


def view_script() -> str:
    """The scripts of the linked view for a file, without their comments."""
    return _COMMENT.sub("", VIEW_SCRIPT + view_file("report.js"))


def view_style() -> str:
    """The style sheet of the linked view."""
    return view_file("view.css")

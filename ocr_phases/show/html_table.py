"""A DataFrame as a table of HTML: columns with units, cells that are rounded and can be sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import Any

import pandas as pd

from ocr_phases.analyse.figure_rows import FIGURE_ROWS, SHARE, FigureRow
from ocr_phases.analyse.kernels import short_kernel
from ocr_phases.show.web import MISSING, Html, block, fragment, note, printable
from ocr_phases.stages import stage_title
from ocr_phases.text import bytes_text, digits_text, percent_text

_CACHE_PARTS = {"kv_update": "KV cache, write", "attention": "KV cache, read (attention)"}
# By how the name of a column ends.
_UNITS = {"ms": "ms", "us": "µs", "s": "s", "j": "J", "bytes": "bytes", "%": "%"}
_SHARES = ("share", "probability")
# Column -> (heading, unit), for columns that are no figure of `FIGURE_ROWS` and whose name says less
# than their heading. A unit decides how the column is written.
_COLUMN_HEADINGS: dict[str, tuple[str, str]] = {
    "ms_per_char": ("per character", "ms"),
    "prompt_tokens": ("prompt", ""),
    "cache_len": ("cache length", ""),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "gflop": ("GFLOP", ""),
    "loops": ("end in a loop", ""),
    "detectable": ("smallest resolved change", "%"),
    "others": ("other programs", "%"),
    "steal": ("stolen by a hypervisor", "%"),
    "busy_ms": ("GPU busy", "ms"),
    "of_busy": ("of GPU busy time", "%"),
    "of_wall": ("of the phase", "%"),
}
#: Rows of a table that a page shows. What is longer a model or a stranger's record made up.
MOST_TABLE_ROWS = 2_000
_LINE = partial(printable, longest=240)
#: Column -> how a text of it is written.
TEXTS: dict[str, Callable[[str], str]] = {
    "stage": stage_title,
    "kernel": short_kernel,
    "label": printable,
    "text": partial(printable, longest=60),
    "part": lambda name: _CACHE_PARTS.get(name, name),
}


def table_html(
    table: pd.DataFrame,
    *,
    caption: str = "",
    headings: Mapping[str, tuple[str, str]] | None = None,
    strong: Iterable[bool] | None = None,
    links: Mapping[str, Iterable[str]] | None = None,
    missing: str | None = None,
    empty: str | None = None,
    marks: Mapping[str, Iterable[str]] | None = None,
    classes: str = "",
) -> Html:
    """A DataFrame as a sortable table, without its index: numbers aligned and rounded, text
    escaped.

    ``headings`` goes before `column_heading`; a unit of ``ms``, ``%`` or ``bytes`` decides how a column is
    written. ``strong`` marks rows, such as a phase's whole among its stages. ``links`` gives text
    columns an address a row, empty for none. ``missing`` says why a figure may be n/a; without it a
    column of none is left out, as is one without a word or a yes. ``marks`` gives columns words a
    row to stand behind the value, empty for none. ``empty`` stands in place of a table without
    rows. Texts become a line each, by `TEXTS`. Of more than `MOST_TABLE_ROWS` rows the first are
    shown, which the caption says.
    """
    if empty is not None and not len(table):
        return note(empty)
    count = len(table)
    table = table.head(MOST_TABLE_ROWS)
    texts = table.select_dtypes(exclude="number")
    silent = [
        name
        for name, values in texts.items()
        if not any(pd.notna(each) and each for each in values)
    ]
    silent += table.columns[table.isna().all()].tolist() if missing is None else []
    table = table.drop(columns=silent if len(table) else [])
    own_headings = headings or {}
    columns = []
    cells = []
    for name, values in table.items():
        heading, unit = own_headings.get(str(name)) or column_heading(str(name))
        numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        columns.append((heading, unit, "op-num" if numeric else None))
        addresses = (links or {}).get(str(name), repeat(""))
        shown = [_cell(value, unit, numeric, TEXTS.get(str(name), _LINE)) for value in values]
        words = (marks or {}).get(str(name), repeat(""))
        shown = [_marked(cell, word) for cell, word in zip(shown, words, strict=False)]
        cells.append([(*cell, to) for cell, to in zip(shown, addresses, strict=False)])
    if table.isna().any(axis=None):
        caption = f"{caption} ({MISSING}: {missing or 'not measured'})"
    if count > MOST_TABLE_ROWS:
        told = f"The first {MOST_TABLE_ROWS:,} of {count:,} rows are shown."
        caption = fragment(caption, ". " if caption else "", told)
    rows = zip(repeat(False) if strong is None else strong, zip(*cells, strict=True), strict=False)
    return block("table", caption=caption, columns=columns, rows=rows, classes=classes)


def column_heading(name: str) -> tuple[str, str]:
    """The heading and the unit of a column, by its name."""
    row = FIGURE_ROWS.get(name)
    if row is not None:
        return row.heading, _column_unit(row)
    if name in _COLUMN_HEADINGS:
        return _COLUMN_HEADINGS[name]
    if name.endswith("_per_s"):  # a rate, not a time in seconds
        return name.removesuffix("_per_s").replace("_", " ") + " per s", ""
    first, _, last = name.rpartition("_")
    if last in _UNITS and first:
        return first.replace("_", " "), _UNITS[last]
    return name.replace("_", " "), "%" if name in _SHARES else ""


def _column_unit(row: FigureRow) -> str:
    """The unit of a figure's column: shares are shown in per cent, and no heading is repeated."""
    if row.unit == SHARE:
        return "%"
    if row.unit == row.heading:
        return ""
    return row.unit


def _cell(
    value: Any, unit: str, numeric: bool, as_text: Callable[[str], str]
) -> tuple[object, str | None]:
    """What a cell shows, and the number that it is sorted by."""
    if pd.isna(value) or value in (math.inf, -math.inf):
        return MISSING, None
    if numeric:
        return _number(float(value), unit), repr(float(value))
    if isinstance(value, bool):
        return "yes" if value else "", None
    return value if isinstance(value, Html) else as_text(str(value)), None


def _marked(cell: tuple[object, str | None], word: str) -> tuple[object, str | None]:
    """A cell with a word behind what it shows."""
    text, number = cell
    return (f"{text} {word}", number) if word else cell


def _number(value: float, unit: str) -> str:
    """A number with three digits; its unit is in the heading."""
    if unit in ("%", "bytes"):
        return percent_text(value).removesuffix(" %") if unit == "%" else bytes_text(value)
    return f"{int(value):,}" if value.is_integer() and unit != "ms" else digits_text(value)

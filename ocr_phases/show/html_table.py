"""A DataFrame as a table of HTML.

A table consists of columns (`Column`) and rows (`TableRow`) of cells (`TableCell`). The template
``blocks.html.j2`` reads them by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from ocr_phases.analyse.figure_rows import FIGURE_ROWS, SHARE, FigureRow
from ocr_phases.analyse.kernels import short_kernel
from ocr_phases.show.web import NOT_AVAILABLE, Html, block, element, fragment, note, printable
from ocr_phases.stages import stage_title
from ocr_phases.text import bytes_text, digits_text, percent_text

#: The heading of a column, and its unit: empty for none.
Heading = tuple[str, str]

_CACHE_PARTS = {"kv_update": "KV cache, write", "attention": "KV cache, read (attention)"}
#: What limits a stage, as the record's tables name it -> as a person names it.
_LIMITS = {"arithmetic": "compute", "bandwidth": "memory bandwidth"}
#: The end of a column's name -> its unit.
_UNITS = {"ms": "ms", "us": "µs", "s": "s", "j": "J", "bytes": "bytes", "%": "%"}
#: Columns of shares whose names do not end in a unit.
_SHARES = ("share", "probability")
#: Column -> (heading, unit), for columns that are no figure of `FIGURE_ROWS` and whose name says
#: less than their heading. A unit decides how the column is written.
_COLUMN_HEADINGS: dict[str, Heading] = {
    "ms_per_char": ("per character", "ms"),
    "prompt_tokens": ("prompt", ""),
    "cache_len": ("cache length", ""),
    "times_floor": ("time / floor", ""),
    "bound_by": ("floor limited by", ""),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "gflop": ("GFLOP", ""),
    "loops": ("end in a loop", ""),
    "detectable": ("smallest resolved change", "%"),
    "others": ("other programs", "%"),
    "steal": ("taken by the hypervisor", "%"),
    "busy_ms": ("GPU busy", "ms"),
    "idle_after_sync": ("idle after host syncs", "%"),
    "queue_ms": ("between kernels", "ms"),
    "of_floor": ("floor / busy", "%"),
    "of_busy": ("share of GPU busy time", "%"),
    "by": ("found by", ""),
    "through": ("inner operator", ""),
    "waited_s": ("waited for a core", "s"),
    "wall_s": ("wall time", "s"),
    "cpu_s": ("CPU time", "s"),
    "other_threads_s": ("CPU time of other threads", "s"),
    "load_start": ("load at the start", ""),
    "load_end": ("load at the end", ""),
    "of_wall": ("share of the phase", "%"),
}
#: Rows of a table that a page shows. Only a model or a stranger's record makes longer ones.
MOST_TABLE_ROWS = 2_000


def _one_line(text: str) -> str:
    return printable(text, longest=240)


def _short_text(text: str) -> str:
    return printable(text, longest=60)


def _cache_part(name: str) -> str:
    return _CACHE_PARTS.get(name, name)


def _limit(name: str) -> str:
    return _LIMITS.get(name, name)


#: Column -> how a text of it is written.
TEXTS: dict[str, Callable[[str], str]] = {
    "stage": stage_title,
    "kernel": short_kernel,
    "label": printable,
    "text": _short_text,
    "part": _cache_part,
    "bound_by": _limit,
}


@dataclass(frozen=True, slots=True)
class Column:
    """What stands above the cells of a column, and how they are written.

    Attributes
    ----------
    name : str
        The name of the DataFrame's column.
    heading, unit : str
        What the head of the table says. The unit also decides how numbers are written.
    numeric : bool
        Whether the cells are numbers, which stand on the right.
    """

    name: str
    heading: str
    unit: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell of a table.

    Attributes
    ----------
    text : object
        What it shows: text, or `Html`.
    numeric : bool
        Whether its column has numbers.
    sort_value : str, optional
        The number by which the browser sorts; None sorts by the text.
    address : str
        Where the text links to; empty for no link.
    """

    text: object
    numeric: bool = False
    sort_value: str | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row; ``strong`` rows stand out, such as a whole phase among its stages."""

    cells: Sequence[TableCell]
    strong: bool = False


def table_html(
    table: pd.DataFrame,
    *,
    caption: str = "",
    headings: Mapping[str, Heading] | None = None,
    strong: Iterable[bool] | None = None,
    links: Mapping[str, Iterable[str]] | None = None,
    missing: str | None = None,
    empty: str | None = None,
    marks: Mapping[str, Iterable[str]] | None = None,
    classes: str = "",
) -> Html:
    """Write a DataFrame as a sortable table without its index.

    Numbers are aligned and rounded. Texts are escaped, and each is cut to one line by `TEXTS`. Of
    more than `MOST_TABLE_ROWS` rows the first are shown, and the caption says so.

    Parameters
    ----------
    table : pandas.DataFrame
        One column of it is one column of the table.
    caption : str
        What stands above the table.
    headings : mapping of str to (str, str), optional
        Headings with units by column, which go before those of `column_heading`. A unit of
        ``ms``, ``%`` or ``bytes`` decides how the numbers of a column are written.
    strong : iterable of bool, optional
        For each row whether it stands out.
    links : mapping of str to iterable of str, optional
        For text columns an address for each row; empty for no link.
    missing : str, optional
        Why a value may be n/a. Without it, a column without any value is left out.
    empty : str, optional
        What is shown instead of a table without rows.
    marks : mapping of str to iterable of str, optional
        For columns a word for each row that stands behind the value; empty for none.
    classes : str
        More classes of the table, for the style sheet.

    Returns
    -------
    Html
        The table, or a note of what ``empty`` says.
    """
    if empty is not None and not len(table):
        return note(empty)
    shown = table.head(MOST_TABLE_ROWS)
    if len(shown):
        shown = shown.drop(columns=_silent_columns(shown, keep_missing=missing is not None))
    if shown.isna().any(axis=None):
        caption = f"{caption} ({NOT_AVAILABLE}: {missing or 'not measured'})"
    if len(shown) < len(table):
        cut = f"The first {len(shown):,} of {len(table):,} rows are shown."
        caption = fragment(caption, ". ", cut) if caption else cut
    columns = []
    cells_of_columns = []
    for name, values in shown.items():
        column = _column(str(name), values, headings or {})
        cells = _cells(column, values)
        if marks and column.name in marks:
            cells = _with_marks(cells, marks[column.name])
        if links and column.name in links:
            cells = _with_links(cells, links[column.name])
        columns.append(column)
        cells_of_columns.append(cells)
    rows = _rows(cells_of_columns, strong)
    return block("table", caption=caption, columns=columns, rows=rows, classes=classes)


def _rows(
    cells_of_columns: Sequence[Sequence[TableCell]], strong: Iterable[bool] | None
) -> list[TableRow]:
    """The rows of a table from its columns; ``strong`` has as many items as rows, or more."""
    rows = [TableRow(cells) for cells in zip(*cells_of_columns, strict=True)]
    if strong is None:
        return rows
    return [
        replace(row, strong=bool(stands_out)) for row, stands_out in zip(rows, strong, strict=False)
    ]


def _silent_columns(table: pd.DataFrame, *, keep_missing: bool) -> list[str]:
    """The columns that would show nothing.

    These are texts without a word, truth values without a yes and, unless ``keep_missing``, columns
    without any value.
    """
    silent: list[str] = []
    for name, values in table.select_dtypes(exclude="number").items():
        known = values[values.notna()]
        if not any(known):
            silent.append(str(name))
    if not keep_missing:
        silent.extend(table.columns[table.isna().all()])
    return silent


def _column(name: str, values: pd.Series, headings: Mapping[str, Heading]) -> Column:
    """The column of these values, with the heading that a caller gave it or its usual one."""
    if name in headings:
        heading, unit = headings[name]
    else:
        heading, unit = column_heading(name)
    # To pandas truth values are numbers, too.
    numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
    return Column(name, heading, unit, numeric)


def column_heading(name: str) -> Heading:
    """The heading and the unit of a column, by its name."""
    row = FIGURE_ROWS.get(name)
    if row is not None:
        return row.heading, _column_unit(row)
    if name in _COLUMN_HEADINGS:
        return _COLUMN_HEADINGS[name]
    if name.endswith("_per_s"):  # a rate, not a time in seconds
        rate = name.removesuffix("_per_s").replace("_", " ")
        return f"{rate} per s", ""
    first, _, last = name.rpartition("_")
    if first and last in _UNITS:
        return first.replace("_", " "), _UNITS[last]
    unit = "%" if name in _SHARES else ""
    return name.replace("_", " "), unit


def _column_unit(row: FigureRow) -> str:
    """The unit of a figure's column: shares are shown in per cent, and no heading is repeated."""
    if row.unit == SHARE:
        return "%"
    if row.unit == row.heading:
        return ""
    return row.unit


def _cells(column: Column, values: pd.Series) -> list[TableCell]:
    write_text = TEXTS.get(column.name, _one_line)
    return [_cell(value, column, write_text) for value in values]


def _cell(value: Any, column: Column, write_text: Callable[[str], str]) -> TableCell:
    """The cell of a value; ``write_text`` writes it where it is a text."""
    if pd.isna(value) or value in (math.inf, -math.inf):
        return TableCell(NOT_AVAILABLE, column.numeric)
    if column.numeric:
        number = float(value)
        text = _number_text(number, column.unit)
        return TableCell(text, numeric=True, sort_value=repr(number))
    if isinstance(value, bool):
        return TableCell("yes" if value else "")
    if isinstance(value, Html):
        return TableCell(value)
    return TableCell(write_text(str(value)))


def _with_marks(cells: Sequence[TableCell], marks: Iterable[str]) -> list[TableCell]:
    """The cells with the word of each row behind what they show; there may be more words."""
    marked = []
    for cell, mark in zip(cells, marks, strict=False):
        if not mark:
            marked.append(cell)
            continue
        word = element("span", mark, class_="op-mark")
        marked.append(replace(cell, text=fragment(f"{cell.text} ", word)))
    return marked


def _with_links(cells: Sequence[TableCell], addresses: Iterable[str]) -> list[TableCell]:
    return [replace(cell, address=address) for cell, address in zip(cells, addresses, strict=False)]


def _number_text(value: float, unit: str) -> str:
    """A number with three digits; its unit is in the heading."""
    if unit == "%":
        return percent_text(value).removesuffix(" %")
    if unit == "bytes":
        return bytes_text(value)
    if value.is_integer() and unit != "ms":
        return f"{int(value):,}"
    return digits_text(value)

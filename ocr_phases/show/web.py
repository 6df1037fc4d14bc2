"""Plain values as HTML: elements, tables and the other blocks of a report, and the file around it.

Jinja writes and escapes it. Whatever a model, a file name or a person wrote is text; no fragment
has a script, a style of its own or an address. Classes start with ``op-`` and are dressed by
``fragments.css``.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from itertools import repeat
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup as Html
from markupsafe import escape
from PIL.Image import Image, Resampling

from ocr_phases.analyse.figure_rows import FIGURE_ROWS, SHARE, FigureRow
from ocr_phases.analyse.kernels import short_kernel
from ocr_phases.images import image_file
from ocr_phases.text import bytes_text, digits_text, percent_text, plain, stage_name

MISSING = "n/a"
#: Pixels a CSS pixel, for screens of high density.
SHARPNESS = 2

_CACHE_PARTS = {"kv_update": "KV cache, write", "attention": "KV cache, read (attention)"}
#: Facts that are shown in another place than among the others, or not in words.
_APART = ("conditions", "config", "data")
_QUANTITY = re.compile(r"(?<=\d) (?=%|(?:ms|s|µs|B|kB|MB|GB)\b)")
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


def printable(text: str, longest: int = 24) -> str:
    """Model-made text as one short line that any font can be asked to draw."""
    line = " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 4 * longest]).split()
    )
    return line if len(line) <= longest else line[: longest - 1] + "…"


#: Rows of a table that a page shows. What is longer a model or a stranger's record made up.
MOST_TABLE_ROWS = 2_000
_LINE = partial(printable, longest=240)
#: Column -> how a text of it is written.
TEXTS: dict[str, Callable[[str], str]] = {
    "stage": stage_name,
    "kernel": short_kernel,
    "label": printable,
    "text": partial(printable, longest=60),
    "part": lambda name: _CACHE_PARTS.get(name, name),
}


def element(name: str, *content: object, **attributes: object) -> Html:
    """``<name attributes>content</name>``: everything is text that is nothing but text, except
    `Html`.

    Control characters become a replacement sign. ``class_`` is the class, other underscores stand
    for hyphens; an attribute that is None or False is left out, True is bare.
    """
    given = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            given += f" {key.rstrip('_').replace('_', '-')}"
            given += "" if value is True else f'="{escape(plain(str(value)))}"'
    return Html(f"<{name}{given}>{fragment(*content)}" + ("" if name == "img" else f"</{name}>"))


def fragment(*content: object) -> Html:
    """Content one after the other, with no element around it; text as in `element`."""
    return Html("".join(escape(_safe(value)) for value in content))


def _safe(value: object) -> str:
    return value if isinstance(value, Html) else plain(str(value))


def render(template: str, **values: Any) -> Html:
    """A template filled with ``values``: each is text, control characters replaced, except `Html`."""
    return Html(_environment().get_template(f"{template}.html.j2").render(values))


def block(name: str, **values: Any) -> Html:
    """One of the macros of ``blocks.html.j2``; values as in `render`."""
    return Html(getattr(_environment().get_template("blocks.html.j2").module, name)(**values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ocr_phases.show"),
        autoescape=True,
        finalize=_safe,
        undefined=StrictUndefined,
    )
    environment.filters["units"] = lambda text: _QUANTITY.sub("\N{NO-BREAK SPACE}", text)
    return environment


def note(sentence: str) -> Html:
    """A sentence as a note; nothing for none."""
    return element("p", sentence, class_="op op-note") if sentence else fragment()


def section_heading(title: str) -> Html:
    """The heading of a section that brings its own: the contents of a report link to it."""
    return element("div", element("h2", title, id=title.replace(" ", "-")), class_="prose")


def badge(verdict: str) -> Html:
    """A verdict as a word in a coloured outline: never by colour alone."""
    kind = verdict if verdict in ("pass", "fail", "noisy") else "other"
    return element("span", verdict, class_=f"op-badge op-{kind}")


def fold(
    summary: object, *content: object, opened: bool = False, classes: str = "op op-fold"
) -> Html:
    """A block that unfolds under its ``summary``."""
    return element("details", element("summary", summary), *content, class_=classes, open=opened)


def preformatted(text: object) -> Html:
    """Text in its own lines, in a box that scrolls."""
    return element("pre", text, class_="op-text", tabindex=0)


def facts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values of a record in words, by their names in words; ``*_bytes`` in a fitting unit."""
    told = {str(name): value for name, value in values.items() if name not in _APART}
    return {
        name.replace("_", " ").removesuffix(" bytes"): _fact(name, value)
        for name, value in told.items()
    }


def _fact(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{inner} {_fact(str(inner), item)}" for inner, item in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(_fact(name, item) for item in value)
    if value is None or isinstance(value, bool):
        return {None: MISSING, True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return bytes_text(value) if name.endswith("_bytes") else f"{value:,}"
    return str(value)


def pairs(values: Mapping[str, Any]) -> Html:
    """`facts` beside their names."""
    rows = [
        fragment(element("dt", name), element("dd", value)) for name, value in facts(values).items()
    ]
    return element("dl", *rows, class_="op-pairs")


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


def data_address(data: bytes, kind: str) -> str:
    """An address that carries its data; ``kind`` is a MIME type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def jpeg_file(image: Image, width: int, height: int) -> tuple[Image, bytes]:
    """An RGB copy of an image of at most these pixels, and the bytes of it as a JPEG."""
    small = image.convert("RGB")
    small.thumbnail(
        (width, height), Resampling.HAMMING
    )  # as sharp as the default here, in half the time
    return small, image_file(small, "JPEG", quality=85, optimize=True)


def image_html(image: Image, alt: str, *, width: int) -> Html:
    """An RGB image as an inline JPEG shown at most ``width`` CSS pixels wide, sharp on dense
    screens.
    """
    small, data = jpeg_file(image, width * SHARPNESS, 6 * width * SHARPNESS)
    shown = min(width, small.width)
    size = {"width": shown, "height": round(small.height * shown / small.width)}
    return element("img", class_="op-image", src=data_address(data, "image/jpeg"), **size, alt=alt)


def pictures_html(pictures: Sequence[tuple[Image, str]]) -> Html:
    """Page pictures with captions, side by side if they fit."""
    shown = [
        (image_html(image, name, width=520), element("figcaption", name))
        for image, name in pictures
    ]
    figures = [element("figure", *parts, class_="op-picture") for parts in shown]
    return element("div", *figures, class_="op op-pictures") if figures else fragment()


def document_html(
    title: str, contents: Sequence[tuple[str, str]], body: Html, *, css: str = ""
) -> str:
    """A whole file that fetches nothing.

    ``contents`` are a heading and its id each. ``css`` goes behind the style that all files share.
    """
    script = (
        asset_text("sort.js") + 'document.querySelectorAll("table.op-table").forEach(sortable);'
    )
    return render(
        "document",
        title=title,
        contents=contents,
        body=body,
        style=Html(
            asset_text("theme.css") + asset_text("fragments.css") + asset_text("page.css") + css
        ),
        script=Html(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def notebook_style() -> Html:
    """A ``<style>`` for fragments shown in a notebook, in its colours; a report brings its own."""
    return Html(f"<style>{notebook_css()}</style>")


def notebook_css(more: str = "") -> str:
    """The style of fragments in a notebook, and ``more`` rules that come after them.

    JupyterLab has rules for bare elements in its outputs, such as ``.jp-OutputArea-output dd``.
    Nested in a selector with an id, every rule of ours is stronger than any of them.
    """
    rules = asset_text("notebook.css") + asset_text("fragments.css") + more
    return f"{asset_text('theme.css')}:root:not(#op) {{\n{rules}}}\n"


@cache
def asset_text(name: str) -> str:
    """A style sheet or script of this folder; ``sort.js`` defines ``sortable(table)``."""
    return resources.files("ocr_phases.show").joinpath(name).read_text(encoding="utf-8")

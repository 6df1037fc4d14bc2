"""Plain values as HTML: elements, tables and the other blocks of a report, and the file around it.

Jinja writes and escapes it. Whatever a model, a file name or a person wrote is text; no fragment
has a script, a style of its own or an address. Classes start with ``op-`` and are dressed by
``fragments.css``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup as Html
from markupsafe import escape
from PIL.Image import Image, Resampling

from ocr_phases.images import image_file
from ocr_phases.text import bytes_text, plain

MISSING = "n/a"
#: Pixels a CSS pixel, for screens of high density.
SHARPNESS = 2
#: Facts that are shown in another place than among the others, or not in words.
_APART = ("conditions", "config", "data")
_QUANTITY = re.compile(r"(?<=\d) (?=%|(?:ms|s|µs|B|kB|MB|GB)\b)")


def printable(text: str, longest: int = 24) -> str:
    """Model-made text as one short line that any font can be asked to draw."""
    line = " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 4 * longest]).split()
    )
    return line if len(line) <= longest else line[: longest - 1] + "…"


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


def fill_template(template: str, **values: Any) -> Html:
    """A template filled with ``values``: all but `Html` is text without control characters."""
    return Html(_environment().get_template(f"{template}.html.j2").render(values))


def block(name: str, **values: Any) -> Html:
    """One of the macros of ``blocks.html.j2``; values as in `fill_template`."""
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
    title: str,
    contents: Sequence[tuple[str, str]],
    body: Html,
    *,
    css: str = "",
    script: str = "",
) -> str:
    """A whole file that fetches nothing.

    ``contents`` are a heading and its id each. ``css`` and ``script`` go behind those that all
    files share.
    """
    script = (
        asset_text("sort.js")
        + 'document.querySelectorAll("table.op-table").forEach(sortable);'
        + script
    )
    return fill_template(
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
    Nested in a selector with an id, every rule of ours is stronger than any of them. marimo shows a
    widget in a shadow tree, whose only way out is ``:host``.
    """
    rules = asset_text("notebook.css") + asset_text("fragments.css") + more
    return f"{asset_text('theme.css')}:is(:root:not(#op), :host) {{\n{rules}}}\n"


@cache
def asset_text(name: str) -> str:
    """A style sheet or script of this folder; ``sort.js`` defines ``sortable(table)``."""
    return resources.files("ocr_phases.show").joinpath(name).read_text(encoding="utf-8")

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
from ocr_phases.text import bytes_text, ms_text, plain

NOT_AVAILABLE = "n/a"
#: Pixels a CSS pixel, for screens of high density.
SHARPNESS = 2
#: CSS pixels of a page's picture.
_PICTURE_WIDTH = 520
#: Facts that are shown in another place than among the others, or not in words.
_APART = ("conditions", "config", "data")
_SORT_ALL_TABLES = 'document.querySelectorAll("table.op-table").forEach(sortable);'
#: A space between a number and its unit.
_QUANTITY = re.compile(r"(?<=\d) (?=%|(?:ms|s|µs|B|kB|MB|GB)\b)")


def printable(text: str, longest: int = 24) -> str:
    """Text of a model as one line of at most ``longest`` characters.

    What no font can draw becomes a space, and a text that is cut ends in an ellipsis.
    """
    beginning = text[: 4 * longest]  # a text may be very long
    drawable = []
    for char in beginning:
        drawable.append(char if char.isprintable() else " ")
    words = "".join(drawable).split()
    line = " ".join(words)
    if len(line) <= longest:
        return line
    return line[: longest - 1] + "…"


def element(name: str, *content: object, **attributes: object) -> Html:
    """An element of HTML: ``<name attributes>content</name>``.

    Parameters
    ----------
    name : str
        The element's name, such as ``p``.
    *content : object
        What stands in it. Everything but `Html` is text: it is escaped, and its control characters
        become a replacement sign.
    **attributes : object
        ``class_`` is the class; any other underscore stands for a hyphen. An attribute that is None
        or False is left out, and one that is True stands without a value.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> element("a", "the record", href="run.json")
    Markup('<a href="run.json">the record</a>')
    """
    start = f"<{name}{_attributes_html(attributes)}>"
    if name == "img":  # it has neither content nor an end
        return Html(start)
    return Html(f"{start}{fragment(*content)}</{name}>")


def _attributes_html(attributes: Mapping[str, object]) -> str:
    """The attributes of an element, each with a space before it."""
    html = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        html += f" {key.rstrip('_').replace('_', '-')}"
        if value is not True:
            html += f'="{escape(plain(str(value)))}"'
    return html


def fragment(*content: object) -> Html:
    """Content one after the other, without an element around it; text is escaped as in
    `element`.
    """
    return Html("".join(escape(_safe(value)) for value in content))


def breakable_path(path: str) -> Html:
    """The path of a file or the dotted name of an object, which may break after a slash, a dot or
    an underscore.
    """
    pieces = re.split(r"(?<=[/._])", _safe(path))
    return Html("<wbr>".join(escape(piece) for piece in pieces))


def _safe(value: object) -> str:
    return value if isinstance(value, Html) else plain(str(value))


def fill_template(template: str, **values: Any) -> Html:
    """A template of ``templates/`` filled with ``values``.

    Everything but `Html` is text: it is escaped and has no control characters.
    """
    return Html(_environment().get_template(f"{template}.html.j2").render(values))


def block(name: str, **values: Any) -> Html:
    """One of the macros of ``blocks.html.j2`` by its name; values as in `fill_template`."""
    macros = _environment().get_template("blocks.html.j2").module
    macro = getattr(macros, name)
    return Html(macro(**values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ocr_phases.show"),
        autoescape=True,
        finalize=_safe,
        undefined=StrictUndefined,
    )
    environment.filters["units"] = _keep_units_together
    return environment


def _keep_units_together(text: str) -> str:
    """The text with a space that no line breaks at before each unit."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", text)


def note(sentence: str) -> Html:
    """A sentence as a paragraph; nothing for an empty one."""
    if not sentence:
        return fragment()
    return element("p", sentence, class_="op op-note")


def section_heading(title: str) -> Html:
    """The heading of a section, which the contents of a report link to."""
    return element("div", element("h2", title, id=heading_id(title)), class_="prose")


def heading_id(title: str) -> str:
    """The id of a `section_heading`."""
    return title.replace(" ", "-")


def badge(verdict: str) -> Html:
    """A verdict as a word in a coloured outline: never by colour alone."""
    kind = verdict if verdict in ("pass", "fail", "noisy") else "other"
    return element("span", verdict, class_=f"op-badge op-{kind}")


def fold(
    summary: object, *content: object, opened: bool = False, classes: str = "op op-fold"
) -> Html:
    """A block that unfolds under its ``summary``; ``opened`` shows it unfolded from the start."""
    return element("details", element("summary", summary), *content, class_=classes, open=opened)


def preformatted(text: object) -> Html:
    """Text in its own lines, in a box that scrolls."""
    return element("pre", text, class_="op-text", tabindex=0)


def facts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values of a record in words, by their names in words.

    A value whose name ends in ``_bytes`` has a fitting unit. What is shown in another place is left
    out.
    """
    words: dict[str, str] = {}
    for name, value in values.items():
        if name not in _APART:
            label = str(name).replace("_", " ").removesuffix(" bytes")
            words[label] = _fact(str(name), value)
    return words


def _fact(name: str, value: Any) -> str:
    """A value in words; those of lists and mappings with commas between them.

    Of a mapping within another one, what is not known is left out.
    """
    if isinstance(value, Mapping):
        return _mapping_in_words(value)
    if isinstance(value, list | tuple):
        between = ", "
        if any(isinstance(item, Mapping) for item in value):
            between = "; "  # the items of a mapping have commas between them
        return between.join(_fact(name, item) for item in value)
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return bytes_text(value) if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, float) and name.endswith("_ms"):
        return ms_text(value)
    return str(value)


def _mapping_in_words(values: Mapping[Any, Any]) -> str:
    words = []
    for key, item in values.items():
        if item is not None:
            name = str(key)
            words.append(f"{name} {_fact(name, item)}")
    if not words:
        return "none"
    return ", ".join(words)


def pairs(values: Mapping[str, Any]) -> Html:
    """A list of `facts`, each beside its name."""
    items: list[Html] = []
    for name, value in facts(values).items():
        items.append(element("dt", name))
        items.append(element("dd", value))
    return element("dl", *items, class_="op-pairs")


def data_address(data: bytes, kind: str) -> str:
    """An address that carries its data; ``kind`` is a MIME type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def jpeg_file(image: Image, width: int, height: int) -> tuple[Image, bytes]:
    """An RGB copy of an image of at most so many pixels, and that copy as the bytes of a JPEG."""
    small = image.convert("RGB")
    # This filter is as sharp as the default one here and takes half of its time.
    small.thumbnail((width, height), Resampling.HAMMING)
    return small, image_file(small, "JPEG", quality=85, optimize=True)


def image_html(image: Image, alt: str, *, width: int) -> Html:
    """An RGB image as an inline JPEG that is shown at most ``width`` CSS pixels wide.

    It has `SHARPNESS` times as many pixels, for screens of high density. ``alt`` is its text
    alternative.
    """
    small, data = jpeg_file(image, width * SHARPNESS, 6 * width * SHARPNESS)
    shown_width = min(width, small.width)
    return element(
        "img",
        class_="op-image",
        src=data_address(data, "image/jpeg"),
        width=shown_width,
        height=round(small.height * shown_width / small.width),
        alt=alt,
    )


def pictures_html(pictures: Sequence[tuple[Image, str]]) -> Html:
    """Pictures of pages with their captions, side by side where they fit; empty for none."""
    if not pictures:
        return fragment()
    figures = []
    for image, caption in pictures:
        picture = image_html(image, caption, width=_PICTURE_WIDTH)
        figures.append(
            element("figure", picture, element("figcaption", caption), class_="op-picture")
        )
    return element("div", *figures, class_="op op-pictures")


def document_html(
    title: str,
    contents: Sequence[tuple[str, str]],
    body: Html,
    *,
    css: str = "",
    script: str = "",
) -> str:
    """A whole HTML file that fetches nothing.

    Parameters
    ----------
    title : str
        The title of the file.
    contents : sequence of (str, str)
        The headings that the file's contents list, each with the id that it links to.
    body : Html
        What the file shows.
    css, script : str
        Rules and statements behind those that all files share.

    Returns
    -------
    str
        The file's text.
    """
    styles = [asset_text(name) for name in ("theme.css", "fragments.css", "page.css")]
    scripts = [asset_text("sort.js"), _SORT_ALL_TABLES, script]
    whole_script = "".join(scripts)
    # The file's policy allows the script with this hash and no other one.
    digest = hashlib.sha256(whole_script.encode()).digest()
    return fill_template(
        "document",
        title=title,
        contents=contents,
        body=body,
        style=Html("".join(styles) + css),
        script=Html(whole_script),
        script_hash=base64.b64encode(digest).decode(),
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

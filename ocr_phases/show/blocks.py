"""Plain values as HTML: elements, and the blocks that every report begins with.

`element` is the one place where text becomes HTML, so the one place that escapes it.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence

from PIL.Image import Image, Resampling

from ocr_phases.text import plain

_EMPTY = ("img",)
_QUANTITY = re.compile(r"(?<=\d) (?=%|(?:ms|s|µs|B|kB|MB|GB)\b)")


class Html(str):
    """A fragment of HTML, which stays as it is where other strings are text."""

    __slots__ = ()

    def __html__(self) -> Html:
        """What a template takes as HTML."""
        return self


def element(name: str, *content: object, **attributes: object) -> Html:
    """``<name attributes>content</name>``: everything is text that is nothing but text, except `Html`.

    Here and nowhere else text becomes HTML; control characters become a replacement sign. ``class_`` is the
    class, other underscores stand for hyphens; an attribute that is None or False is left out, True is bare.
    """
    given = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            given += f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_text(value)}"')
    end = "" if name in _EMPTY else f"</{name}>"
    return Html(f"<{name}{given}>{fragment(*content)}{end}")


def fragment(*content: object) -> Html:
    """Content one after the other, with no element around it; text as in `element`."""
    return Html("".join(part if isinstance(part, Html) else _text(part) for part in content))


def _text(value: object) -> str:
    return html.escape(plain(str(value)))


def data_address(data: bytes, kind: str) -> str:
    """An address that carries its data; ``kind`` is a MIME type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def small_jpeg(image: Image, width: int, height: int) -> tuple[Image, str]:
    """An RGB copy of an image of at most these pixels, and the address of it as a JPEG."""
    small, data = jpeg_file(image, width, height)
    return small, data_address(data, "image/jpeg")


def jpeg_file(image: Image, width: int, height: int) -> tuple[Image, bytes]:
    """An RGB copy of an image of at most these pixels, and the bytes of it as a JPEG."""
    small = image.convert("RGB")
    small.thumbnail((width, height), Resampling.HAMMING)  # as sharp as the default here, in half the time
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, optimize=True)
    return small, buffer.getvalue()


def title_block(
    title: str,
    about: Sequence[object],
    lead: str = "",
    *,
    headline: str = "",
    picture: str = "",
    below: str = "",
) -> Html:
    """The head of a report: picture, title, a line of facts, the finding in one sentence, a paragraph.

    ``picture`` and ``below`` (what comes under the paragraph) are HTML of this package; the rest is text.
    """
    shown = element("div", Html(picture), class_="op-thumb") if picture else ""
    first = element("p", _words(headline), class_="op-headline") if headline else ""
    line = " · ".join(str(part) for part in about)
    said = (
        element("h1", title),
        element("p", line, class_="op-sub"),
        first,
        element("p", _words(lead), class_="op-verdict"),
        Html(below),
    )
    return element("header", shown, element("div", *said, class_="op-lead"), class_="op op-header")


def section_heading(title: str) -> Html:
    """The heading of a section that brings its own: the contents of a report link to it."""
    return element("div", element("h2", title, id=title.replace(" ", "-")), class_="prose")


def status_line(kind: str, sentence: str) -> Html:
    """A badge (``pass``, ``fail``, ``noisy`` or another word) and what it stands for."""
    return element("p", badge(kind), " ", sentence, class_="op-status")


def badge(verdict: str) -> Html:
    """A verdict as a word in a coloured outline: never by colour alone."""
    kind = verdict if verdict in ("pass", "fail", "noisy") else "other"
    return element("span", verdict, class_=f"op-badge op-{kind}")


def _words(sentence: str) -> str:
    """A sentence whose numbers stay on one line with their units."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", sentence)


def cards_block(figures: Sequence[tuple[str, str, str]]) -> Html:
    """Key figures as cards: ``(label, value, note)`` each, all plain text."""
    items = [
        element(
            "div",
            element("dt", label),
            element("dd", element("strong", value), " ", element("small", _words(note))),
            class_="op-card",
        )
        for label, value, note in figures
    ]
    return element("dl", *items, class_="op op-cards")


def fold(summary: object, *content: object, opened: bool = False, classes: str = "op op-fold") -> Html:
    """A block that unfolds under its ``summary``."""
    return element("details", element("summary", summary), *content, class_=classes, open=opened)


def preformatted(text: object) -> Html:
    """Text in its own lines, in a box that scrolls."""
    return element("pre", text, class_="op-text", tabindex=0)


def share_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """A bar cut into shares, and under it what each piece is: ``(label, size, value as text)`` each.

    The key is the bar's text alternative. Pieces take the colours ``op-part-0``, ``op-part-1``, ... by place;
    what has no size is left out.
    """
    whole = sum(size for _, size, _ in parts)
    if whole <= 0:
        return ""
    pieces, keys, left = "", fragment(), 0.0
    for number, (label, size, value) in enumerate(parts):
        if not size:
            continue
        width = 1000 * size / whole
        pieces += (
            f'<rect class="op-part-{number}" x="{left:.2f}" y="0" width="{width:.2f}" height="20"></rect>'
        )
        left += width
        part = f'<rect class="op-part-{number}" width="10" height="10"></rect>'
        key = Html(f'<svg class="op-key" viewBox="0 0 10 10" aria-hidden="true">{part}</svg> ')
        keys = fragment(keys, element("li", key, label, " ", element("strong", value)))
    bar = (
        '<svg class="op-bar" viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true">'
        f"{pieces}</svg>"
    )
    return fragment(Html(bar), element("ul", keys, class_="op-keys"))

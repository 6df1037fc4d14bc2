"""What every report begins with, as HTML from plain values: title block, key figures as cards, shares."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocr_phases.plain_text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

_QUANTITY = re.compile(r"(?<=\d) (?=%|(?:ms|s|µs|B|kB|MB|GB)\b)")


def safe(value: object) -> str:
    """Any value as text that is nothing but text in HTML; control characters become a replacement sign."""
    return html.escape(plain(str(value)))


def data_address(data: bytes, kind: str) -> str:
    """An address that carries its data; ``kind`` is a MIME type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def small_jpeg(image: Image, width: int, height: int) -> tuple[Image, str]:
    """An RGB copy of an image of at most these pixels, and the address of it as a JPEG."""
    small = image.convert("RGB")
    small.thumbnail((width, height))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, optimize=True)
    return small, data_address(buffer.getvalue(), "image/jpeg")


def title_block(
    title: str,
    about: Sequence[object],
    lead: str = "",
    *,
    headline: str = "",
    picture: str = "",
    below: str = "",
) -> str:
    """The head of a report: picture, title, a line of facts, the finding in one sentence, a paragraph.

    ``picture`` and ``below`` (what comes under the paragraph) are HTML of this package; the rest is text.
    """
    shown = f'<div class="op-thumb">{picture}</div>' if picture else ""
    first = f'<p class="op-headline">{_words(headline)}</p>' if headline else ""
    line = " · ".join(str(part) for part in about)
    return (
        f'<header class="op op-header">{shown}<div class="op-lead"><h1>{safe(title)}</h1>'
        f'<p class="op-sub">{safe(line)}</p>{first}<p class="op-verdict">{_words(lead)}</p>{below}'
        "</div></header>"
    )


def status_line(kind: str, sentence: str) -> str:
    """A badge (``pass``, ``fail``, ``noisy`` or another word) and what it stands for."""
    return f'<p class="op-status">{badge(kind)} {safe(sentence)}</p>'


def badge(verdict: str) -> str:
    """A verdict as a word in a coloured outline: never by colour alone."""
    kind = verdict if verdict in ("pass", "fail", "noisy") else "other"
    return f'<span class="op-badge op-{kind}">{safe(verdict)}</span>'


def _words(text: str) -> str:
    """A sentence whose numbers stay on one line with their units."""
    return safe(_QUANTITY.sub("\N{NO-BREAK SPACE}", text))


def cards_block(figures: Sequence[tuple[str, str, str]]) -> str:
    """Key figures as cards: ``(label, value, note)`` each, all plain text."""
    items = "".join(
        f'<div class="op-card"><dt>{safe(label)}</dt><dd><strong>{safe(value)}</strong> '
        f"<small>{_words(note)}</small></dd></div>"
        for label, value, note in figures
    )
    return f'<dl class="op op-cards">{items}</dl>'


def share_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """A bar cut into shares, and under it what each piece is: ``(label, size, value as text)`` each.

    The key is the bar's text alternative. Pieces take the colours ``op-part-0``, ``op-part-1``, ... by place;
    what has no size is left out.
    """
    whole = sum(size for _, size, _ in parts)
    if whole <= 0:
        return ""
    pieces, keys, left = "", "", 0.0
    for number, (label, size, value) in enumerate(parts):
        if not size:
            continue
        width = 1000 * size / whole
        pieces += (
            f'<rect class="op-part-{number}" x="{left:.2f}" y="0" width="{width:.2f}" height="20"></rect>'
        )
        left += width
        keys += (
            '<li><svg class="op-key" viewBox="0 0 10 10" aria-hidden="true">'
            f'<rect class="op-part-{number}" width="10" height="10"></rect></svg> '
            f"{safe(label)} <strong>{safe(value)}</strong></li>"
        )
    return (
        '<svg class="op-bar" viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true">'
        f'{pieces}</svg><ul class="op-keys">{keys}</ul>'
    )

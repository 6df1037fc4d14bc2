"""Random pages as HTML: what a browser lays out, and what each part of it is to the model.

An element with ``data-label`` is a region; its text is what stands in it, line by line, a table's as a table.
"""

from __future__ import annotations

import html
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from synth.more_layouts import code_line
from synth.vocabulary import COLUMNS, FIELDS, HEADINGS
from synth.words import Words

Block = Callable[["WebPage"], str]
_HUES = ("#3a5c8a", "#b0523c", "#5c8c54", "#966ea0", "#cda046", "#28828c", "#545a66")


@dataclass(frozen=True)
class WebPage:
    """One page in the making; lengths in CSS pixels."""

    rng: random.Random
    words: Words
    width: int
    height: int
    size: float
    """Of the body type."""
    letters: int
    """About how many it may hold."""


def page_html(page: WebPage, family: str, display: str, fixed: str) -> str:
    """The page as one ``section`` of a document."""
    rng = page.rng
    kind = rng.choice(_KINDS)
    paper, ink, accent, panel = _colours(rng)
    margin = rng.uniform(0.03, 0.1) * page.width
    head = _edge(page, "header", "top") if rng.random() < 0.25 else ""
    foot = _edge(page, "footer", "bottom") if rng.random() < 0.3 else ""
    above, below = (
        max(rng.uniform(0.03, 0.08) * page.height, 3 * page.size if edge else 0) for edge in (head, foot)
    )
    style = {
        "width": f"{page.width}px", "height": f"{page.height}px", "font": f"{page.size:.2f}px {family}",
        "line-height": f"{rng.uniform(1.1, 1.7):.2f}", "background": paper, "color": ink,
        "padding": f"{above:.0f}px {margin:.0f}px {below:.0f}px",
        "--accent": accent, "--panel": panel, "--fixed": fixed, "--display": display,
        "--gap": f"{rng.uniform(0.4, 1.3):.2f}em", "text-align": rng.choice(("left",) * 4 + ("justify",)),
    }  # fmt: skip
    css = ";".join(f"{name}:{value}" for name, value in style.items())
    return f'<section style="{html.escape(css)}">{head}<main>{kind(page)}</main>{foot}</section>'


def _colours(rng: random.Random) -> tuple[str, str, str, str]:
    if rng.random() < 0.65:
        return "#fff", rng.choice(("#000", "#111", "#222", "#333", "#444")), "inherit", "#eee"
    if rng.random() < 0.2:
        return rng.choice(("#1e1e1e", "#0d1b2a", "#222b33")), "#e6e6e6", "#ffd166", "#3a3f4a"
    paper = f"rgb({rng.randint(225, 255)},{rng.randint(225, 255)},{rng.randint(215, 255)})"
    return (
        paper,
        f"rgb({rng.randint(0, 90)},{rng.randint(0, 90)},{rng.randint(0, 90)})",
        rng.choice(_HUES),
        "#dde3ea",
    )


def _edge(page: WebPage, label: str, side: str) -> str:
    rng, words = page.rng, page.words
    parts = [
        words.phrase(1, 4),
        rng.choice((str(rng.randint(1, 400)), f"Page {rng.randint(1, 40)}", words.date())),
    ]
    chosen = parts if rng.random() < 0.6 else parts[rng.randrange(2) :][:1]
    spans = "".join(f'<span data-label="{label}">{html.escape(text)}</span>' for text in chosen)
    return f'<div class="edge {side}">{spans}</div>'


def _region(tag: str, label: str, text: str, css: str = "") -> str:
    style = f' style="{css}"' if css else ""
    return f'<{tag} data-label="{label}"{style}>{html.escape(text)}</{tag}>'


def _running(page: WebPage, letters: int) -> str:
    words, text = [page.words.token(start=True)], 0
    while text < letters:
        words.append(page.words.token())
        text += len(words[-1]) + 1
    return " ".join(words)


def title(page: WebPage) -> str:
    text = page.words.phrase(1, 5)
    centre = "text-align:center" if page.rng.random() < 0.3 else ""
    return _region("h1", "title", text.upper() if page.rng.random() < 0.1 else text, centre)


def heading(page: WebPage) -> str:
    return _region("h2", "sub_title", page.words.heading(HEADINGS))


def paragraph(page: WebPage) -> str:
    return _region("p", "text", _running(page, page.rng.choice((30, 90, 160, 260, 400))))


def callout(page: WebPage) -> str:
    return f'<div class="callout">{_region("p", "text", _running(page, 90))}</div>'


def points(page: WebPage) -> str:
    rng = page.rng
    mark = rng.choice(("• ", "• ", "- ", "1. ", "– "))
    items = [
        f"{mark.replace('1', str(i + 1))}{_running(page, rng.choice((8, 20, 50)))}"
        for i in range(rng.randint(2, 6))
    ]
    return (
        f'<div class="list" data-label="text">{"".join(f"<div>{html.escape(t)}</div>" for t in items)}</div>'
    )


def table(page: WebPage) -> str:
    rng, words = page.rng, page.words
    makers = [rng.choice((words.plain, lambda: words.phrase(1, 3), words.name))]
    makers += [rng.choice((words.number, words.money, words.code, words.date, words.plain, words.measure))
               for _ in range(rng.randint(1, 4))]  # fmt: skip
    rows = [[words.label() if rng.random() < 0.6 else rng.choice(COLUMNS) for _ in makers]]
    rows += [["" if i and rng.random() < 0.03 else make() for i, make in enumerate(makers)]
             for _ in range(rng.randint(2, 9))]  # fmt: skip
    aligns = ["left", *(rng.choice(("left", "right", "right", "center")) for _ in makers[1:])]
    body = ""
    for number, row in enumerate(rows):
        tag = "th" if number == 0 and rng.random() < 0.8 else "td"
        cells = (_cell(tag, text, align) for text, align in zip(row, aligns, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    look = rng.choice(("grid", "rows", "bare", "bare", "zebra", "head"))
    wide = "width:100%" if rng.random() < 0.6 else ""
    caption = ""
    if rng.random() < 0.25:
        caption = _region(
            "div",
            "table_caption",
            f"{rng.choice(('Table', 'Tab.'))} {rng.randint(1, 20)}: {words.phrase(1, 6)}",
        )
    return f'{caption}<table class="{look}" style="{wide}" data-label="table">{body}</table>'


def _cell(tag: str, text: str, align: str) -> str:
    bare = "".join(c for c in text if c not in "<>&|")
    return f'<{tag} style="text-align:{align}">{html.escape(bare)}</{tag}>'


def sums(page: WebPage) -> str:
    rng, words = page.rng, page.words
    mark = rng.choice(("", ":"))
    rows = [(words.label() + mark, words.money()) for _ in range(rng.randint(1, 5))]
    lines = "".join(
        f"<div><span>{html.escape(label)}</span> <span>{html.escape(value)}</span></div>"
        for label, value in rows
    )
    wide = rng.choice((40, 60, 100))
    style = f"width:{wide}%;margin-left:{rng.choice((0, 100 - wide))}%"
    return f'<div class="sums" data-label="text" style="{style}">{lines}</div>'


def boxes(page: WebPage) -> str:
    rng, words = page.rng, page.words
    makers = (words.name, words.date, words.code, words.money, words.number, words.plain, words.email)
    cells = "".join(
        f'<div class="cell"><div data-label="text"><div class="small">{html.escape(words.label())}</div>'
        f"<div>{html.escape(rng.choice(makers)())}</div></div></div>"
        for _ in range(rng.randint(2, 9))
    )
    return f'<div class="boxes" style="grid-template-columns:repeat({rng.randint(1, 3)},1fr)">{cells}</div>'


def pairs(page: WebPage) -> str:
    rng, words = page.rng, page.words
    makers = (words.name, words.date, words.code, words.money, words.number, words.email)
    rows = ""
    for _ in range(rng.randint(2, 6)):
        label = rng.choice(FIELDS) if rng.random() < 0.4 else words.label()
        rows += f"<div><b>{html.escape(label)}:</b> {html.escape(rng.choice(makers)())}</div>"
    return f'<div data-label="text">{rows}</div>'


def code(page: WebPage) -> str:
    source = "\n".join(code_line(page.words) for _ in range(page.rng.randint(2, 9))).lstrip()
    lines = "".join(f"<div>{html.escape(line)}</div>" for line in source.split("\n"))
    return f'<div class="code" data-label="text">{lines}</div>'


def figure(page: WebPage) -> str:
    rng = page.rng
    wide, high = rng.randint(40, 100), rng.randint(20, 40)
    bars = "".join(
        f'<rect x="{8 + i * 11}" y="{y}" width="8" height="{96 - y}" fill="{rng.choice(_HUES)}"/>'
        for i, y in enumerate(rng.randint(10, 80) for _ in range(8))
    )
    line = " ".join(f"{4 + 12 * i},{rng.randint(8, 92)}" for i in range(9))
    spots = [
        (rng.randint(5, 95), rng.randint(5, 95), rng.randint(3, 25), rng.choice(_HUES)) for _ in range(5)
    ]
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="{r}" fill="{hue}"/>' for x, y, r, hue in spots)
    inner = rng.choice((bars, f'<polyline points="{line}" fill="none" stroke="{rng.choice(_HUES)}"/>', dots))
    back = rng.choice(("#fff", "#f4f4f4", "#dde", "var(--panel)"))
    svg = _picture(inner, f"width:{wide}%;height:{high * page.width // 140}px;background:{back}")
    text = (
        f"{rng.choice(('Fig.', 'Figure', 'Photo', 'Chart'))} {rng.randint(1, 20)}: {page.words.phrase(1, 8)}"
    )
    return f"<div>{svg}{_region('div', 'image_caption', text) if rng.random() < 0.7 else ''}</div>"


def _picture(inner: str, style: str) -> str:
    frame = 'viewBox="0 0 100 100" preserveAspectRatio="none"'
    return f'<svg data-label="image" {frame} style="{style}">{inner}</svg>'


def signature(page: WebPage) -> str:
    rng = page.rng
    points = " ".join(
        f"{10 + 0.5 * t + 8 * math.cos(t / 3):.0f},{50 + rng.uniform(20, 38) * math.sin(t / 3):.0f}"
        for t in range(150)
    )
    line = f'<polyline points="{points}" fill="none" stroke="{rng.choice(_HUES)}"/>'
    svg = _picture(line, f"width:30%;height:{page.width // 12}px;border-bottom:1px solid")
    return f"<div>{svg}{_region('div', 'text', page.words.drawable(page.words.name))}</div>"


def _filled(page: WebPage, blocks: Sequence[Block], weights: Sequence[int], letters: int) -> str:
    parts: list[str] = []
    while letters > 0:
        part = page.rng.choices(blocks, weights)[0](page)
        parts.append(part)
        letters -= sum(len(piece.partition("<")[0]) for piece in part.split(">"))
        if page.rng.random() < 0.03:
            parts.append("<hr>")
    return "".join(parts)


def _article(page: WebPage) -> str:
    blocks = (heading, paragraph, callout, points, table, figure, code)
    return title(page) + _filled(page, blocks, (2, 8, 1, 1, 1, 1, 1), page.letters)


def _columns(page: WebPage) -> str:
    blocks = (heading, paragraph, points, figure, table)
    halves = (f"<div>{_filled(page, blocks, (2, 7, 1, 2, 1), page.letters // 2)}</div>" for _ in range(2))
    return f'{title(page)}<div class="columns">{"".join(halves)}</div>'


def _invoice(page: WebPage) -> str:
    blocks = (table, sums, paragraph, boxes, pairs, signature)
    return title(page) + pairs(page) + _filled(page, blocks, (4, 4, 2, 1, 1, 1), page.letters)


def _form(page: WebPage) -> str:
    return title(page) + _filled(
        page, (boxes, pairs, paragraph, signature, heading), (6, 3, 2, 1, 1), page.letters
    )


def _manual(page: WebPage) -> str:
    return title(page) + _filled(page, (code, paragraph, heading, points), (4, 5, 2, 1), page.letters)


def _letter(page: WebPage) -> str:
    greeting = _region("p", "text", f"Dear {page.words.name()},")
    return pairs(page) + greeting + _filled(page, (paragraph,), (1,), page.letters) + signature(page)


_KINDS = (_article, _article, _columns, _invoice, _form, _manual, _letter)

STYLE = Path(__file__).with_suffix(".css").read_text("utf-8")

"""What users see as text files: compared with ``tests/approved``, accepted with ``pytest --approve``."""

from __future__ import annotations

import difflib
import re
from html.parser import HTMLParser
from pathlib import Path

APPROVED = Path(__file__).with_name("approved")

_UNSEEN = ("style", "script", "head")
_LINES = ("p", "div", "section", "header", "h1", "h2", "h3", "li", "tr", "pre", "summary", "caption", "svg")
_CELLS = ("td", "th", "dt", "dd", "text", "span")


class _Seen(HTMLParser):
    """The text of a document, one line a paragraph, a heading, a table's row or a text of a figure."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.lines = [""]
        self.unseen = 0
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unseen += tag in _UNSEEN
        if tag in _LINES:
            self.lines.append("")
        elif tag in _CELLS and self.lines[-1]:
            self.lines[-1] += " | "
        if tag == "img":
            self.lines.append(f"[{dict(attrs).get('alt') or ''}]")

    def handle_endtag(self, tag: str) -> None:
        self.unseen -= tag in _UNSEEN
        if tag in _LINES:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self.unseen:
            self.lines[-1] += data


def seen(document: str) -> str:
    """The text of an HTML document, white space collapsed."""
    lines = (" ".join(line.split()).strip("| ") for line in _Seen(document).lines)
    return "\n".join(line for line in lines if line) + "\n"


def check_approved(name: str, text: str, *, hide: dict[str, str], approve: bool) -> None:
    """Compare ``text`` with the approved file ``name``; with ``approve`` write it.

    ``hide`` are words of this machine and run, such as a temporary folder, and what stands for each.
    """
    for word, stand_in in hide.items():
        text = text.replace(word, stand_in)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"finished [\d-]+ [\d:]+ UTC", "finished WHEN", text)
    text = re.sub(r"[\d.]+ pages/min", "N pages/min", text)
    path = APPROVED / name
    if approve:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = difflib.unified_diff(known.splitlines(), text.splitlines(), name, "now", lineterm="", n=1)
    assert text == known, "accept with pytest --approve:\n" + "\n".join(list(changes)[:80])

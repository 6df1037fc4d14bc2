"""Tables of documents: written between marks by a program, and compared by a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ocr_phases.files import write_atomic


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """``text`` with each of ``parts`` between the marks of its name, which must be there."""
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise SystemExit(f"The document has no {begin} and {end} to write between.")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text


def rewrite(document: Path, parts: Mapping[str, str]) -> None:
    """Write the parts into the document."""
    write_atomic(document, with_parts(document.read_text(encoding="utf-8"), parts).encode())

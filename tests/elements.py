"""The elements of an HTML document, for tests that look at what is shown."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Every element of a document with its attributes; what stands in a script or style is text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.stray: list[str] = []
        self.said = ""
        self.feed(str(document))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.stray.append(tag)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}

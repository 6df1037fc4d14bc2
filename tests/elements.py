"""The elements and the text of an HTML document, for tests that look at what is shown."""

from html.parser import HTMLParser

_UNSEEN = ("style", "script", "head")
_LINES = (
    "p",
    "div",
    "section",
    "header",
    "h1",
    "h2",
    "h3",
    "li",
    "tr",
    "pre",
    "summary",
    "caption",
    "svg",
)
_CELLS = ("td", "th", "dt", "dd", "text", "span")


class Elements(HTMLParser):
    """Every element of a document with its attributes; what stands in a script or style is text in
    ``said``.

    ``lines`` is what is seen: a paragraph, a heading, a table's row or a text of a figure each.
    """

    def __init__(self, document: object) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.stray: list[str] = []
        self.said, self.lines, self.unseen = "", [""], 0
        self.feed(str(document))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.unseen += tag in _UNSEEN
        if tag in _LINES:
            self.lines.append("")
        elif tag in _CELLS and self.lines[-1]:
            self.lines[-1] += " | "
        if tag == "img":
            self.lines.append(f"[{dict(attrs).get('alt') or ''}]")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data
        if not self.unseen:
            self.lines[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.stray.append(tag)
        self.unseen -= tag in _UNSEEN
        if tag in _LINES:
            self.lines.append("")

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}


def seen(document: str) -> str:
    """The text of an HTML document, white space collapsed."""
    lines = (" ".join(line.split()).strip("| ") for line in Elements(document).lines)
    return "\n".join(line for line in lines if line) + "\n"

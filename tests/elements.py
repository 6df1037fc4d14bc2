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
    """The elements and the text of a document.

    ``found`` has every element with its attributes, ``said`` all text, also that of scripts and
    styles. ``lines`` is what is seen: a paragraph, a heading, a table's row or a text of a figure
    each. ``open`` are the elements that never end, ``stray`` the ends that nothing began.
    """

    def __init__(self, document: object) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.stray: list[str] = []
        self.said = ""
        self.lines = [""]
        self.unseen = 0  # of the elements that are open, those that nobody sees
        self.feed(str(document))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        if tag in _UNSEEN:
            self.unseen += 1
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
        if tag in _UNSEEN:
            self.unseen -= 1
        if tag in _LINES:
            self.lines.append("")

    def tags(self) -> set[str]:
        """The names of all elements."""
        return {tag for tag, _ in self.found}

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element of this name."""
        return [attributes for name, attributes in self.found if name == tag]


def seen(document: str) -> str:
    """The text of an HTML document, white space collapsed."""
    lines = (" ".join(line.split()).strip("| ") for line in Elements(document).lines)
    return "\n".join(line for line in lines if line) + "\n"

"""The cells of an executed notebook as HTML. `ocr_phases.show.web` writes the file around them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import mistune

from ocr_phases.show.blocks import Html, element
from ocr_phases.show.figures import STILL
from ocr_phases.show.web import render

#: Cells with this tag serve a person in JupyterLab: a report leaves them out, or shows their code alone.
NOTEBOOK_ONLY = "notebook-only"
_HEADING = re.compile(r'<h2 id="([\w-]+)">([\w ]+)</h2>')  # as this package writes it, in no escaped text
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"<[^>]*>")
#: What only a live notebook can run shows nothing, and its other forms neither.
_LIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")
#: The forms of an output that are shown, the best first.
_SHOWN = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain")

Part = tuple[str, str, dict[str, Any]]


class _Prose(mistune.HTMLRenderer):
    """Headings get an id and a link to themselves."""

    def heading(self, text: str, level: int, **_: Any) -> str:
        name = anchor(html.unescape(_TAG.sub("", text)))
        link = element("a", "#", class_="anchor-link", href=f"#{name}")
        return element(f"h{level}", Html(text), link, id=name) + "\n"


_PROSE = mistune.create_markdown(renderer=_Prose(escape=False), plugins=["table", "strikethrough"])


def anchor(heading: str) -> str:
    """The id of a heading."""
    return heading.strip().replace(" ", "-")


def cells_html(notebook: Any, *, show_code: bool) -> Html:
    """Prose and outputs, without stderr and widgets; ``show_code`` adds the code."""
    parts: list[Part] = []
    for cell in notebook.cells:
        hidden = NOTEBOOK_ONLY in cell.metadata.get("tags", [])
        if cell.cell_type == "markdown" and not hidden:
            parts.append(("prose", Html(_PROSE(cell.source)), {}))
        elif cell.cell_type == "code":
            parts += [("code", cell.source, {})] if show_code else []
            parts += () if hidden else _outputs(cell)
    return render("cells", parts=parts)


def contents(notebook: Any) -> list[tuple[str, str]]:
    """Second-level headings, each with its id: of Markdown cells, and of outputs that not every run has."""
    found = []
    for cell in notebook.cells:
        if NOTEBOOK_ONLY in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "markdown":
            lines = [line[3:].strip() for line in cell.source.splitlines() if line[:3] == "## "]
            found += [(line, anchor(line)) for line in lines]
        for output in cell.get("outputs", []):
            shown = output.get("data", {}).get("text/html", "")
            found += [(title, name) for name, title in _HEADING.findall(shown)]
    return found


def _outputs(cell: Any) -> Iterator[Part]:
    for output in cell.outputs:
        if output.output_type == "error":
            yield "error", _TERMINAL.sub("", f"{output.ename}: {output.evalue}"), {}
        elif output.output_type == "stream":
            if output.name == "stdout":
                yield "stream", _TERMINAL.sub("", output.text), {}
        else:
            kind = next((name for name in (*_LIVE, *_SHOWN) if name in output.data), "")
            if kind in _SHOWN:
                content = output.data[kind]
                drawn = {"text/html": content.partition(STILL)[0], "image/svg+xml": content}.get(kind)
                yield kind, content if drawn is None else Html(drawn), output.metadata.get(kind, {})

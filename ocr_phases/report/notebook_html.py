"""The cells of an executed notebook as HTML. `ocr_phases.show.document` writes the file around them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import mistune

from ocr_phases.report.notebooks import Notebook, has_tag, joined
from ocr_phases.show.blocks import Html, element, fragment
from ocr_phases.show.figures import STILL

#: Cells with this tag serve a person in JupyterLab: a report leaves them out, or shows their code alone.
NOTEBOOK_ONLY = "notebook-only"
_HEADING = re.compile(r'<h2 id="([\w-]+)">([\w ]+)</h2>')  # as this package writes it, in no escaped text
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"<[^>]*>")


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


def cells_html(notebook: Notebook, *, show_code: bool) -> Html:
    """Prose and outputs, without stderr and widgets; ``show_code`` adds the code."""
    parts: list[Html] = []
    for cell in notebook["cells"]:
        hidden = has_tag(cell, NOTEBOOK_ONLY)
        if cell["cell_type"] == "markdown" and not hidden:
            parts.append(element("section", Html(_PROSE(cell["source"])), class_="prose"))
        elif cell["cell_type"] == "code":
            if show_code:
                parts.append(element("pre", cell["source"], class_="code"))
            if not hidden:
                parts += _outputs(cell)
    return fragment(*parts)


def contents(notebook: Notebook) -> list[tuple[str, str]]:
    """Second-level headings, each with its id: of Markdown cells, and of outputs that not every run has."""
    found = []
    for cell in notebook["cells"]:
        if has_tag(cell, NOTEBOOK_ONLY):
            continue
        if cell["cell_type"] == "markdown":
            lines = [line[3:].strip() for line in cell["source"].splitlines() if line[:3] == "## "]
            found += [(line, anchor(line)) for line in lines]
        for output in cell.get("outputs", []):
            shown = joined(output.get("data", {}).get("text/html", ""))
            found += [(title, name) for name, title in _HEADING.findall(shown)]
    return found


def _outputs(cell: dict[str, Any]) -> Iterator[Html]:
    for output in cell["outputs"]:
        kind = output["output_type"]
        if kind == "error":
            said = _TERMINAL.sub("", f"{output['ename']}: {output['evalue']}")
            yield element("pre", said, class_="plain error")
        elif kind == "stream":
            if output["name"] == "stdout":
                yield element("pre", _TERMINAL.sub("", joined(output["text"])), class_="plain")
        else:
            # The best of what there is; what only a live notebook can run shows nothing, as do its words.
            shown = next((name for name in (*_LIVE, *_SHOWN) if name in output["data"]), None)
            if shown in _SHOWN:
                about = output.get("metadata", {}).get(shown, {})
                yield _SHOWN[shown](joined(output["data"][shown]), about)


def _text(content: str, _: Any) -> Html:
    return element("pre", content, class_="plain")


def _html(content: str, _: Any) -> Html:
    return Html(content.partition(STILL)[0])


def _svg(content: str, _: Any) -> Html:
    frame = {"class_": "figure drawn", "role": "group", "aria_label": "Figure", "tabindex": 0}
    return element("div", Html(content), **frame)


def _pixels(kind: str, name: str) -> Callable[[str, Any], Html]:
    def picture(content: str, about: dict[str, Any]) -> Html:
        address = f"data:{kind};base64,{''.join(content.split())}"
        image = element("img", src=address, width=about.get("width"), alt=about.get("alt") or name)
        return element("div", image, class_="figure pixels")

    return picture


_LIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")
#: How each type is shown, the best first.
_SHOWN: dict[str, Callable[[str, Any], Html]] = {
    "text/html": _html,
    "text/markdown": _text,
    "image/svg+xml": _svg,
    "image/png": _pixels("image/png", "Figure"),
    "image/jpeg": _pixels("image/jpeg", "Picture"),
    "text/plain": _text,
}

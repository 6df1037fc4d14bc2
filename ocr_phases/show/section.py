"""What a cell, a panel or a report shows: fragments of HTML and figures, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ocr_phases.show.shown_figure import figure_html
from ocr_phases.show.web import Html, element, facts, fragment, notebook_style, pairs, pictures_html
from ocr_phases.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

#: What a cell shows, by MIME type.
Bundle = dict[str, str]


class Section:
    """HTML fragments and figures in their order; empty ones are left out."""

    def __init__(self, *parts: str | Figure | Section) -> None:
        flat = [part.parts if isinstance(part, Section) else [part] for part in parts]
        self.parts: list[str | Figure] = [part for some in flat for part in some if part]

    def html(self) -> str:
        """All of it as one fragment."""
        return "".join(part if isinstance(part, str) else figure_html(part) for part in self.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in self.parts:
            display(
                {"text/html": part} if isinstance(part, str) else part, raw=isinstance(part, str)
            )


def style_section() -> Section:
    """The look of all sections in JupyterLab; a report brings its own."""
    return Section(notebook_style())


def bundle(shown: str, text: str) -> Bundle:
    """HTML of this package with its style, and the same in words for a terminal."""
    return {"text/html": str(notebook_style()) + str(shown), "text/plain": plain(text)}


def facts_bundle(
    title: str,
    values: Mapping[str, Any],
    pictures: Sequence[tuple[Image, str]] = (),
    *,
    below: str = "",
) -> Bundle:
    """An object as a title, `facts` and pictures with captions; ``below`` is HTML of ours."""
    shown = element(
        "div", element("p", title, class_="op-headline"), pairs(values), class_="op op-object"
    )
    return bundle(fragment(shown, pictures_html(pictures), Html(below)), facts_text(title, values))


def facts_text(title: str, values: Mapping[str, Any]) -> str:
    """An object for a terminal: its title and, below it, its `facts`."""
    lines = [f"  {name}: {value}" for name, value in facts(values).items()]
    return plain("\n".join([title, *lines]))

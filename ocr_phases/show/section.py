"""What a cell, a panel or a report shows: fragments of HTML and figures, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ocr_phases.show.web import (
    Html,
    document_html,
    element,
    facts,
    fragment,
    heading_id,
    notebook_style,
    pairs,
    pictures_html,
    section_heading,
)
from ocr_phases.text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

#: What a cell shows, by MIME type.
Bundle = dict[str, str]


class Section:
    """Fragments of HTML and figures in their order.

    Parameters
    ----------
    *parts : str, matplotlib.figure.Figure or Section
        What the section shows. An empty text is left out, and another section gives its own parts.

    Examples
    --------
    >>> Section(note("Nothing was measured."), note("")).html()
    '<p class="op op-note">Nothing was measured.</p>'
    """

    def __init__(self, *parts: str | Figure | Section) -> None:
        self.parts: list[str | Figure] = []
        for part in parts:
            if isinstance(part, Section):
                self.parts.extend(part.parts)
            elif part:
                self.parts.append(part)

    def html(self) -> str:
        """All of it as one fragment."""
        # What draws is imported where it draws: every measurement imports this module.
        from ocr_phases.show.shown_figure import figure_html

        fragments = []
        for part in self.parts:
            fragments.append(part if isinstance(part, str) else figure_html(part))
        return "".join(fragments)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in self.parts:
            if isinstance(part, str):
                display({"text/html": part}, raw=True)
            else:
                display(part)


def style_section() -> Section:
    """The look of all sections in JupyterLab; a report brings its own."""
    return Section(notebook_style())


def sections_document(
    title: str, head: Html, sections: Mapping[str, Section], *, css: str = ""
) -> str:
    """A whole HTML file: its head, then each section under its heading, without empty ones.

    Parameters
    ----------
    title : str
        The title of the file.
    head : Html
        What stands above the sections.
    sections : mapping of str to Section
        The sections by their headings, which the file's contents list.
    css : str
        Rules behind those that all files share.

    Returns
    -------
    str
        The file's text.
    """
    contents = []
    parts = [head]
    for heading, section in sections.items():
        if section.parts:
            contents.append((heading, heading_id(heading)))
            parts.append(element("section", section_heading(heading), Html(section.html())))
    return document_html(title, contents, fragment(*parts), css=css)


def bundle(shown: str, text: str) -> Bundle:
    """What a cell shows: HTML of this package with its style, and the same in words."""
    return {"text/html": f"{notebook_style()}{shown}", "text/plain": plain(text)}


def facts_bundle(
    title: str,
    values: Mapping[str, Any],
    pictures: Sequence[tuple[Image, str]] = (),
    *,
    below: str = "",
) -> Bundle:
    """What a cell shows of an object.

    Parameters
    ----------
    title : str
        What the object is.
    values : mapping of str to object
        What is known of it, by name; `ocr_phases.show.web.facts` writes it in words.
    pictures : sequence of (PIL.Image.Image, str)
        Pictures with their captions, which stand below.
    below : str
        HTML of this package that stands last.

    Returns
    -------
    Bundle
        The object as HTML and in words.
    """
    headline = element("p", title, class_="op-headline")
    known = element("div", headline, pairs(values), class_="op op-object")
    shown = fragment(known, pictures_html(pictures), Html(below))
    return bundle(shown, facts_text(title, values))


def facts_text(title: str, values: Mapping[str, Any]) -> str:
    """An object for a terminal: its title and, below it, its `facts`."""
    lines = [f"  {name}: {value}" for name, value in facts(values).items()]
    return plain("\n".join([title, *lines]))

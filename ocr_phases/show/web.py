"""HTML from the templates beside this file, escaped by Jinja; the file around every report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ocr_phases.show.blocks import Html
from ocr_phases.text import plain


def render(template: str, **values: Any) -> Html:
    """A template filled with ``values``: each is text, control characters replaced, except `Html`."""
    return Html(_environment().get_template(f"{template}.html.j2").render(values))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("ocr_phases.show"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Html) else plain(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def document_html(title: str, contents: Sequence[tuple[str, str]], body: Html, *, css: str = "") -> str:
    """A whole file that fetches nothing.

    ``contents`` are a heading and its id each. ``css`` goes behind the style that all files share.
    """
    script = sorting_script() + 'document.querySelectorAll("table.op-table").forEach(sortable);'
    return render(
        "document",
        title=title,
        contents=contents,
        body=body,
        style=Html(fragments_css() + _file("page.css") + css),
        script=Html(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def notebook_style() -> str:
    """A ``<style>`` for fragments shown in a notebook, in its colours; a report brings its own."""
    return f"<style>{notebook_theme()}\n{fragments_css()}</style>"


def notebook_theme() -> str:
    """The colours of a notebook, and what its figures need beside them.

    JupyterLab says what its colours are. Elsewhere they follow the colour scheme of the page around. A still
    of a figure shows where a viewer drops this style and the drawing.
    """
    theme = {
        "--op-ink": "var(--jp-content-font-color1, light-dark(#1c2024, #e4e8ec))",
        "--op-muted": "var(--jp-content-font-color2, light-dark(#5b6470, #a3adb8))",
        "--op-line": "var(--jp-border-color2, light-dark(#d8dde3, #39424c))",
        "--op-soft": "var(--jp-layout-color2, light-dark(#f4f6f8, #232a31))",
        "--op-card": "var(--jp-layout-color1, light-dark(#ffffff, #1b2127))",
        "--op-accent": "var(--jp-brand-color1, light-dark(#0072b2, #7cc4f0))",
        "--op-pass": "light-dark(#00694c, #4fd1a5)",
        "--op-fail": "light-dark(#b03a00, #ff9a66)",
        "--op-plot-ink": "var(--op-ink)",
        "--op-plot-muted": "var(--op-muted)",
        "--op-plot-axis": "light-dark(#99a1aa, #66717c)",
        "--op-plot-grid": "light-dark(#e3e7eb, #3a3f45)",
        "--op-plot-surface": "var(--jp-layout-color0, light-dark(#ffffff, #111111))",
        "--op-plot-blue": "light-dark(#0072b2, #4fa9e2)",
    }
    colours = "".join(f"{name}:{value};" for name, value in theme.items())
    # JupyterLab marks the theme of its body alone.
    sides = "".join(
        f'[data-jp-theme-light="{light}"] :is(.op,.drawn){{color-scheme:{scheme}}}'
        for light, scheme in (("true", "light"), ("false", "dark"))
    )
    figures = ".drawn{overflow-x:auto}.drawn>svg{max-width:100%;height:auto}"
    figures += ".drawn>.op-narrow,.op-still{display:none!important}"
    return f":root{{{colours}}}{sides}{figures}"


def fragments_css() -> str:
    """The style sheet of all fragments; colours are custom properties set by the page."""
    return _file("fragments.css")


def sorting_script() -> str:
    """JavaScript that defines ``sortable(table)``."""
    return _file("sort.js")


def _file(name: str) -> str:
    return resources.files("ocr_phases.show").joinpath(name).read_text(encoding="utf-8")

"""The HTML file around every report and every index of a batch: one frame, one style, one script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from ocr_phases.show.blocks import element


def document_html(title: str, sections: Sequence[tuple[str, str]], body: str, *, css: str = "") -> str:
    """A whole file that fetches nothing; its policy also forbids the browser to.

    ``sections`` are the contents, a heading and its id each. ``body`` is HTML of this package, ``css`` goes
    behind the style that all files share.
    """
    script = sorting_script() + 'document.querySelectorAll("table.op-table").forEach(sortable);'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    items = [element("li", element("a", name, href=f"#{anchor}")) for name, anchor in sections]
    above = element("p", "Contents", aria_hidden="true")
    contents = element("nav", above, element("ul", *items), aria_label="Contents") if items else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{element("title", title)}
<link rel="icon" href="data:,">
<style>{fragments_css()}{_file("page.css")}{css}</style>
</head>
<body>
<a class="skip" href="#report">Skip to the report</a>
{contents}
<main id="report" tabindex="-1">{body}</main>
<footer>Made with ocr_phases. This file fetches nothing and runs only its own table sorting.</footer>
<script>{script}</script>
</body>
</html>
"""


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

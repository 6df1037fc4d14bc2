"""The panel's script in the browser (``panel.js``)."""

from __future__ import annotations

from importlib import resources

import anywidget

from ocr_phases.show.web import asset_text

_FILE = resources.files("ocr_phases.explorer").joinpath("panel.js")


class PanelScript(anywidget.AnyWidget):
    """A widget that shows nothing: keeps the keys of the panel, names its sliders, sorts its tables."""

    _esm = asset_text("sort.js") + _FILE.read_text("utf-8")

"""The panel's script in the browser (``panel.js``)."""

from __future__ import annotations

from importlib import resources

import anywidget

from ocr_phases.show.document import sorting_script


class PanelScript(anywidget.AnyWidget):
    """A widget without a face: keeps the panel's keys from JupyterLab, names its sliders, sorts its tables."""

    _esm = sorting_script() + resources.files("ocr_phases.show.explorer").joinpath("panel.js").read_text("utf-8")

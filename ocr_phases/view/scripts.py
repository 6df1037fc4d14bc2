"""The scripts that every linked view needs, in an order in which each finds what it uses."""

from __future__ import annotations

from ocr_phases.view.assets import view_file

_NAMES = ("elements.js", "drawings.js", "parts.js", "view.js")
VIEW_SCRIPT = "".join(view_file(name) for name in _NAMES)

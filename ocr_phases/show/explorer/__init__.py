"""`Explorer`: one widget panel for JupyterLab that measures a page, watches it and shows its record."""

from ocr_phases.show.explorer.panel import Explorer

__all__ = ["Explorer"]

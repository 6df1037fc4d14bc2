"""`Explorer`: a JupyterLab panel that measures a page and shows the record."""

from ocr_phases.explorer.panel import Explorer

__all__ = ["Explorer"]

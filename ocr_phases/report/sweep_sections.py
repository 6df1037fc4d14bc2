"""The sections of a sweep's report, for the notebook: what its own plots do not show.

Examples
--------
>>> from ocr_phases.report import sweep_sections
>>> sweep_sections.cells(sweep)  # doctest: +SKIP
"""

from ocr_phases.show.sweep_overview import cells_section as cells
from ocr_phases.show.sweep_overview import cost_quality_section as cost_and_quality
from ocr_phases.show.sweep_overview import sweep_head as summary

__all__ = ["cells", "cost_and_quality", "summary"]

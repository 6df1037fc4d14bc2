"""The sections of a report, for the notebooks: what a record's own tables and plots do not show.

A notebook calls them between ``run``, ``run.plot.latency()`` and the like. Each takes a record and
shows itself.

Examples
--------
>>> from ocr_phases.report import sections
>>> sections.stages(run)  # doctest: +SKIP
"""

from ocr_phases.show.checks_section import checks_section as checks
from ocr_phases.show.checks_section import references_section as references
from ocr_phases.show.checks_section import verification_section as verification
from ocr_phases.show.energy_section import energy_section as energy
from ocr_phases.show.kernel_section import kernels_section as kernels
from ocr_phases.show.method_section import method_section as method
from ocr_phases.show.page_and_text import quality_section as quality
from ocr_phases.show.page_and_text import text_section as text
from ocr_phases.show.run_times import floors_section as floors
from ocr_phases.show.run_times import latency_section as latency
from ocr_phases.show.run_times import slowest_steps_section as slowest_steps
from ocr_phases.show.run_times import stages_section as stages
from ocr_phases.show.section import style_section as style
from ocr_phases.view.embed import LinkedPage as linked_page

__all__ = [
    "checks",
    "energy",
    "floors",
    "kernels",
    "latency",
    "linked_page",
    "method",
    "quality",
    "references",
    "slowest_steps",
    "stages",
    "style",
    "text",
    "verification",
]

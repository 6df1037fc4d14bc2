"""The sections of a comparison's report, for the notebook: what its own plots do not show.

Examples
--------
>>> from ocr_phases.report import comparison_sections
>>> comparison_sections.figures(comparison)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocr_phases.show.comparison_overview import (
    compare_html,
    comparison_head,
    environment_html,
    first_token_html,
)
from ocr_phases.show.section import Section

if TYPE_CHECKING:
    from ocr_phases.analyse.comparison import ComparedRecords

summary = comparison_head


def figures(comparison: ComparedRecords) -> Section:
    """The figures of each record against the baseline, with their verdicts.

    Beside a server's record follows where the time until the first token goes.
    """
    table = compare_html(comparison.headline, comparison.labels[0])
    if not comparison.has_server:
        return Section(table)
    return Section(table, first_token_html(comparison.first_token))


def stages(comparison: ComparedRecords) -> Section:
    """The time of each stage against the baseline."""
    table = comparison.table
    return Section(compare_html(table[table["stage"] != ""], comparison.labels[0]))


def environments(comparison: ComparedRecords) -> Section:
    """What differs between the records besides their times."""
    return Section(environment_html(comparison.differs))

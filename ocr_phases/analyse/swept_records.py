"""The records of a sweep with their table, curves, cost and quality, and the result in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic

import pandas as pd

from ocr_phases.analyse.cost_quality import cell_points, cost_quality_sentence
from ocr_phases.analyse.repetition import loops_sentence
from ocr_phases.analyse.sweep_table import decode_curve_table, sweep_table
from ocr_phases.analyse.sweep_words import (
    NOTHING_MEASURED,
    Recommendation,
    fastest_sentences,
    models_sentence,
    noise_sentence,
    prefills_sentence,
    recommendation,
    recommendation_sentence,
    strategies_sentence,
    visions_sentence,
)
from ocr_phases.errors import Hinted
from ocr_phases.record import RecordType
from ocr_phases.text import count_text


@dataclass(frozen=True, repr=False)
class SweptRecords(Hinted, Generic[RecordType]):
    """The records of a sweep by cell in ``runs``, with ``table``, ``failures`` and ``verdict``.

    ``failures`` are the cells that could not be measured, columns
    `ocr_phases.analyse.sweep_table.FAILURE_COLUMNS`.
    """

    runs: dict[str, RecordType]
    failures: pd.DataFrame

    @cached_property
    def table(self) -> pd.DataFrame:
        """`sweep_table` of the records."""
        return sweep_table(self.runs)

    @cached_property
    def cost_quality(self) -> pd.DataFrame:
        """What each cell costs and loses: `ocr_phases.analyse.cost_quality.cell_points`."""
        return cell_points(self.table)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Decode over the cache: `ocr_phases.analyse.sweep_table.decode_curve_table`."""
        return decode_curve_table(self.runs)

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece."""
        table = self.table
        by_model = models_sentence(table)
        sentences = [
            noise_sentence(table),
            recommendation_sentence(self.recommended(), table),
            cost_quality_sentence(self.cost_quality),
            loops_sentence(table, "cell"),
            by_model,
            strategies_sentence(table),
            "" if by_model else prefills_sentence(table),
            visions_sentence(table),
            *fastest_sentences(table, self.runs),
        ]
        if len(self.failures):
            sentences.append(f"{count_text(len(self.failures), 'cell')} could not be measured.")
        known = [sentence for sentence in sentences if sentence]
        return known or [NOTHING_MEASURED]

    @property
    def verdict(self) -> str:
        """The sweep's result as a short paragraph of plain text: noisy cells, then the cell to
        take.
        """
        return " ".join(self.findings)

    @property
    def first(self) -> RecordType:
        """The first record of the smallest batch: one of a single row holds the page."""
        return min(self.runs.values(), key=lambda run: len(run.results))

    def recommended(self) -> Recommendation | None:
        """The cell to take and why, or None: `ocr_phases.analyse.sweep_words.recommendation`."""
        return recommendation(self.table, self.runs)
